//! Devices, and the kernels compiled for them.

use crate::driver::{CallError, Driver, Found, ModuleHandle, Owned};
use crate::opencl;
use partita_program::Dtype;
use partita_space::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
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
    #[error("{device}: {call} fails with {library} error {code}{detail}")]
    Call {
        /// The device.
        device: String,
        /// The driver's library.
        library: &'static str,
        /// What was called.
        call: &'static str,
        /// Its error.
        code: i32,
        /// What else is known; begins with a colon.
        detail: String,
    },
}

/// What has gone between a device and the host since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    /// What the host has read.
    pub read: Bytes,
    /// What the host has written.
    pub written: Bytes,
    /// How often the host has waited for kernels.
    pub waits: u64,
}

#[derive(Default)]
struct TrafficCounters {
    read: AtomicU64,
    written: AtomicU64,
    waits: AtomicU64,
}

/// A device that was opened, shared by all ranks of a process that compute on it.
pub struct Device {
    driver: Arc<dyn Driver>,
    facts: DeviceFacts,
    traffic: TrafficCounters,
    /// Kernels for activations in f32, in bf16 and in f16, compiled when they are first needed.
    modules: [OnceLock<Result<Owned<ModuleHandle>, DeviceError>>; 3],
}

impl Device {
    /// All devices, those of a driver in its order.
    ///
    /// Errors: there is no OpenCL, or it has no driver.
    pub fn list() -> Result<Vec<DeviceFacts>, DeviceError> {
        let all = opencl::find()?.into_iter();
        Ok(all.map(|found| found.facts).collect())
    }

    /// All devices of a kind.
    ///
    /// Errors: there is none, or one cannot be used.
    pub fn open_all(kind: DeviceKind) -> Result<Vec<Arc<Self>>, DeviceError> {
        let all = match kind {
            DeviceKind::Gpu | DeviceKind::Software => opencl::find()?,
        };
        let names: Vec<String> = all.iter().map(|found| found.facts.to_string()).collect();
        let of_kind = all.into_iter().filter(|found| found.facts.kind == kind);
        let open: Vec<Arc<Self>> = of_kind
            .map(|found| Self::open(found).map(Arc::new))
            .collect::<Result<_, _>>()?;
        if open.is_empty() {
            let found = names.join(", ");
            return Err(DeviceError::Missing { kind, found });
        }
        Ok(open)
    }

    fn open(Found { facts, open }: Found) -> Result<Self, DeviceError> {
        if !facts.has_f64 {
            let device = facts.name;
            return Err(DeviceError::NoDoubles { device });
        }
        let driver = open().map_err(|error| DeviceError::of_call(&facts.name, error))?;
        Ok(Self {
            driver,
            facts,
            traffic: TrafficCounters::default(),
            modules: [const { OnceLock::new() }; 3],
        })
    }

    /// What it says of itself.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// What has gone between it and the host.
    pub fn traffic(&self) -> DeviceTraffic {
        let TrafficCounters {
            read,
            written,
            waits,
        } = &self.traffic;
        DeviceTraffic {
            read: Bytes(read.load(Ordering::Relaxed)),
            written: Bytes(written.load(Ordering::Relaxed)),
            waits: waits.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self, more: DeviceTraffic) {
        let counters = &self.traffic;
        counters.read.fetch_add(more.read.0, Ordering::Relaxed);
        counters
            .written
            .fetch_add(more.written.0, Ordering::Relaxed);
        counters.waits.fetch_add(more.waits, Ordering::Relaxed);
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// What a call gave, or an error that names the device.
    pub(crate) fn checked<T>(&self, done: Result<T, CallError>) -> Result<T, DeviceError> {
        done.map_err(|error| DeviceError::of_call(&self.facts.name, error))
    }

    /// As [`Self::checked`], of a kernel.
    pub(crate) fn checked_of<T>(
        &self,
        done: Result<T, CallError>,
        kernel: &str,
    ) -> Result<T, DeviceError> {
        self.checked(done.map_err(|error| CallError {
            detail: format!(" for the kernel {kernel}{}", error.detail),
            ..error
        }))
    }

    /// The kernels for activations of a type, compiled by the first call.
    ///
    /// Errors: those of the compiler.
    pub(crate) fn module(&self, activations: Dtype) -> Result<ModuleHandle, DeviceError> {
        let (number, defined) = match activations {
            Dtype::F32 => (0, None),
            Dtype::Bf16 => (1, Some("ACTIVATIONS_IN_BF16")),
            Dtype::F16 => (2, Some("ACTIVATIONS_IN_F16")),
            Dtype::F64 | Dtype::I16 => panic!("no kernels on activations in {activations:?}"),
        };
        let compiled = self.modules[number].get_or_init(|| {
            let module = self.checked(self.driver.compile(SOURCE, defined))?;
            Ok(Owned::new(&self.driver, module))
        });
        compiled.as_ref().map(Owned::get).map_err(Clone::clone)
    }
}

impl DeviceError {
    pub(crate) fn of_call(device: &str, error: CallError) -> Self {
        Self::Call {
            device: device.to_owned(),
            library: error.library,
            call: error.call,
            code: error.code,
            detail: error.detail,
        }
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
