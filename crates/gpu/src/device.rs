//! What a device says of itself, what it moves, and what fails on one.

use partita_space::Bytes;

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

/// A call that failed.
#[derive(Clone, Debug)]
pub(crate) struct CallError {
    /// The library.
    pub library: &'static str,
    /// What was called.
    pub call: &'static str,
    /// The number it gave.
    pub code: i32,
    /// What else is known; begins with a colon or a comma.
    pub detail: String,
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

/// Why a kernel was not computed.
#[derive(Debug)]
pub(crate) enum KernelError {
    Device(DeviceError),
    /// A sample has an impossible value.
    Source(String),
}

impl From<DeviceError> for KernelError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}
