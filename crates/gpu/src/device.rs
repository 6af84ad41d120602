//! Devices of OpenCL, and the kernels compiled for them.

use crate::api::{Api, CallError, Handle, NO_PLATFORM, ObjectKind, device};
use partita_program::Dtype;
use partita_space::Bytes;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

/// The sources of all kernels, in an order in which each knows what it needs.
const SOURCE: &str = concat!(
    include_str!("source/common.cl"),
    include_str!("source/contents.cl"),
    include_str!("source/pointwise.cl"),
    include_str!("source/sums.cl"),
    include_str!("source/norm.cl"),
    include_str!("source/rows.cl"),
    include_str!("source/pool.cl"),
    include_str!("source/convolution.cl"),
    include_str!("source/attention.cl"),
    include_str!("source/loss.cl"),
    include_str!("source/update.cl"),
);

/// What kind of processor a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU or another accelerator.
    Gpu,
    /// The processor of the host, on which a driver emulates a device.
    Software,
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// Name of the platform, which is that of its driver's maker.
    pub platform: String,
    /// Versions of OpenCL and of the driver.
    pub version: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its memory.
    pub memory: Bytes,
    /// The largest single allocation, which bounds the arena of a rank.
    pub largest: Bytes,
    /// Multiprocessors of a GPU, cores of a processor.
    pub units: usize,
    /// Whether it computes in f64, without which it cannot be used.
    pub has_f64: bool,
}

/// No device, or one that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The library is not there, or lacks a function.
    #[error(
        "OpenCL cannot be loaded: {reason}. The driver of a GPU brings it; on Debian `apt-get install ocl-icd-libopencl1 \
         pocl-opencl-icd` brings one that computes on the processor"
    )]
    Library {
        /// The loader's message, which names the file.
        reason: String,
    },
    /// The library finds no driver.
    #[error(
        "OpenCL finds no driver: the drivers of NVIDIA, AMD and Intel register themselves in /etc/OpenCL/vendors; on \
         Debian `apt-get install pocl-opencl-icd` brings one that computes on the processor"
    )]
    Driver,
    /// There is no device of a kind.
    #[error("there is no {}; OpenCL finds {found}", .kind.name())]
    Missing {
        /// What was asked for.
        kind: DeviceKind,
        /// All devices.
        found: String,
    },
    /// The device lacks something.
    #[error(
        "{device} has no arithmetic in f64 (cl_khr_fp64), which sums are taken in; choose another device"
    )]
    NoDoubles {
        /// Its name.
        device: String,
    },
    /// A kernel has more elements than it counts.
    #[error("{device}: {kernel} has 2^32 elements or more; split the samples over more ranks")]
    Large {
        /// Its name.
        device: String,
        /// What is computed.
        kernel: &'static str,
    },
    /// The driver refuses a call.
    #[error("{device}: {call} fails with OpenCL error {code}{detail}")]
    Call {
        /// The device.
        device: String,
        /// What was called.
        call: &'static str,
        /// Its error.
        code: i32,
        /// What else is known; begins with a colon.
        detail: String,
    },
}

/// A device with a context, shared by all ranks of a process that compute on it.
pub struct Device {
    api: &'static Api,
    facts: DeviceFacts,
    id: Handle,
    context: Handle,
    /// Kernels for activations in f32, in bf16 and in f16, compiled when they are first needed.
    programs: [OnceLock<Result<Compiled, DeviceError>>; 3],
}

struct Compiled(Handle);

// SAFETY: OpenCL 1.1 and later may be called from any thread, but for the arguments of one kernel object, which
// belong to a queue. Handles are reference-counted by the library.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

impl Device {
    /// All devices, platform by platform, and those of a platform in its order.
    ///
    /// Errors: there is no OpenCL, or it has no driver.
    pub fn list() -> Result<Vec<DeviceFacts>, DeviceError> {
        let all = handles(api()?)?.into_iter();
        Ok(all.map(|(_, facts)| facts).collect())
    }

    /// All devices of a kind.
    ///
    /// Errors: there is none, or one cannot be used.
    pub fn open_all(kind: DeviceKind) -> Result<Vec<Arc<Self>>, DeviceError> {
        let api = api()?;
        let all = handles(api)?;
        let found: Vec<String> = all.iter().map(|(_, facts)| facts.to_string()).collect();
        let of_kind = all.into_iter().filter(|(_, facts)| facts.kind == kind);
        let open: Vec<Arc<Self>> = of_kind
            .map(|(id, facts)| Self::open(api, id, facts).map(Arc::new))
            .collect::<Result<_, _>>()?;
        if open.is_empty() {
            let found = found.join(", ");
            return Err(DeviceError::Missing { kind, found });
        }
        Ok(open)
    }

    fn open(api: &'static Api, id: Handle, facts: DeviceFacts) -> Result<Self, DeviceError> {
        if !facts.has_f64 {
            let device = facts.name;
            return Err(DeviceError::NoDoubles { device });
        }
        let context = api.create_context(id);
        let context = context.map_err(|error| facts.refusal(error, String::new()))?;
        Ok(Self {
            api,
            facts,
            id,
            context,
            programs: [const { OnceLock::new() }; 3],
        })
    }

    /// What it says of itself.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.api
    }

    pub(crate) fn id(&self) -> Handle {
        self.id
    }

    pub(crate) fn context(&self) -> Handle {
        self.context
    }

    pub(crate) fn refusal(&self, error: CallError) -> DeviceError {
        self.facts.refusal(error, String::new())
    }

    /// As [`Self::refusal`], of a kernel.
    pub(crate) fn refusal_of(&self, error: CallError, kernel: &str) -> DeviceError {
        self.facts
            .refusal(error, format!(" for the kernel {kernel}"))
    }

    /// The kernels for activations of a type, compiled by the first call.
    ///
    /// Errors: those of the compiler.
    pub(crate) fn program(&self, activations: Dtype) -> Result<Handle, DeviceError> {
        let (number, options) = match activations {
            Dtype::F32 => (0, c"-cl-std=CL1.2"),
            Dtype::Bf16 => (1, c"-cl-std=CL1.2 -DACTIVATIONS_IN_BF16"),
            Dtype::F16 => (2, c"-cl-std=CL1.2 -DACTIVATIONS_IN_F16"),
            Dtype::F64 | Dtype::I16 => panic!("no kernels on activations in {activations:?}"),
        };
        let compiled = self.programs[number].get_or_init(|| self.compile(options).map(Compiled));
        match compiled {
            Ok(Compiled(program)) => Ok(*program),
            Err(error) => Err(error.clone()),
        }
    }

    fn compile(&self, options: &CStr) -> Result<Handle, DeviceError> {
        let program = self.api.compile((self.context, self.id), SOURCE, options);
        program.map_err(|(error, log)| {
            let detail = if log.is_empty() {
                log
            } else {
                format!(":\n{log}")
            };
            self.facts.refusal(error, detail)
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for program in &self.programs {
            if let Some(Ok(Compiled(program))) = program.get() {
                // SAFETY: made by this device, and no queue outlives it.
                unsafe { self.api.release(ObjectKind::Program, *program) };
            }
        }
        // SAFETY: as above.
        unsafe { self.api.release(ObjectKind::Context, self.context) };
    }
}

impl DeviceKind {
    /// As it is called in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Software => "software device",
        }
    }
}

impl DeviceFacts {
    fn refusal(&self, (call, code): CallError, detail: String) -> DeviceError {
        let device = self.name.clone();
        DeviceError::Call {
            device,
            call,
            code,
            detail,
        }
    }
}

impl std::fmt::Display for DeviceFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            platform,
            memory,
            kind,
            ..
        } = self;
        write!(f, "{name} ({}, {memory}, {platform})", kind.name())
    }
}

fn api() -> Result<&'static Api, DeviceError> {
    Api::load().map_err(|reason| DeviceError::Library {
        reason: reason.to_owned(),
    })
}

/// All devices with what they say of themselves.
fn handles(api: &Api) -> Result<Vec<(Handle, DeviceFacts)>, DeviceError> {
    let platforms = api.platforms().map_err(|(call, code)| match code {
        NO_PLATFORM => DeviceError::Driver,
        code => DeviceError::Call {
            device: "OpenCL".to_owned(),
            call,
            code,
            detail: String::new(),
        },
    })?;
    let mut all = Vec::new();
    for platform in platforms {
        let name = text(api.platform_name(platform).unwrap_or_default());
        // A platform without devices refuses.
        let ids = api.devices(platform).unwrap_or_default();
        all.extend(ids.into_iter().map(|id| (id, facts(api, id, name.clone()))));
    }
    if all.is_empty() {
        return Err(DeviceError::Driver);
    }
    Ok(all)
}

fn facts(api: &Api, id: Handle, platform: String) -> DeviceFacts {
    let data = |what| api.device_info(id, what).unwrap_or_default();
    // Little-endian, of 4 or 8 bytes.
    let number = |what| {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(data(what)) {
            *to = from;
        }
        u64::from_le_bytes(bytes)
    };
    let kind = if number(device::TYPE) & device::PROCESSOR == 0 {
        DeviceKind::Gpu
    } else {
        DeviceKind::Software
    };
    let versions = [device::VERSION, device::DRIVER].map(|what| text(data(what)));
    DeviceFacts {
        name: text(data(device::NAME)),
        platform,
        version: versions.join(", driver "),
        kind,
        memory: Bytes(number(device::MEMORY)),
        largest: Bytes(number(device::LARGEST)),
        units: number(device::UNITS) as usize,
        has_f64: number(device::DOUBLES) != 0,
    }
}

/// A string of the library, which ends with a zero.
fn text(mut bytes: Vec<u8>) -> String {
    bytes.retain(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
