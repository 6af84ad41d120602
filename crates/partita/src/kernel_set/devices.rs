//! The devices of this process on which kernels compute.

use partita_gpu::{Device, DeviceError, DeviceKind};
use std::sync::{Arc, OnceLock};

/// Where kernels compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// The GPUs that OpenCL finds.
    Gpu,
    /// The processor as a device of OpenCL, by the kernels of GPUs.
    Software,
}

/// A device that is not there, or not for this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceUseError {
    /// There is none, or it cannot be used.
    #[error("{0}{hint}", hint = hint(.0))]
    Device(#[from] DeviceError),
    /// Reference kernels compute on the processor.
    #[error(
        "`kernels = \"reference\"` computes on the processor: remove it from the run file, or take `device = \"cpu\"`"
    )]
    Reference,
    /// No kernels for the type.
    #[error("a device computes in f32, bf16 or f16, not in f64: nearest is `precision = \"f32\"`")]
    Precision,
}

/// How to go on without a GPU.
fn hint(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::Missing {
            kind: DeviceKind::Gpu,
            ..
        } => {
            "; the device `software` computes on the processor by the same kernels, and `cpu`, the default, by faster ones"
        }
        DeviceError::Missing { .. }
        | DeviceError::Library { .. }
        | DeviceError::Driver
        | DeviceError::NoDoubles { .. }
        | DeviceError::Large { .. }
        | DeviceError::Call { .. } => "",
    }
}

impl DeviceChoice {
    /// Names in run files.
    pub const CHOICES: [(&str, Self); 3] = [
        ("cpu", Self::Cpu),
        ("gpu", Self::Gpu),
        ("software", Self::Software),
    ];

    /// The kind of OpenCL's device; none for the processor.
    pub(crate) fn kind(self) -> Option<DeviceKind> {
        match self {
            Self::Cpu => None,
            Self::Gpu => Some(DeviceKind::Gpu),
            Self::Software => Some(DeviceKind::Software),
        }
    }
}

/// All devices of a kind, opened by the first call and shared by the ranks of this process.
///
/// Errors: there is none, or one cannot be used.
pub(crate) fn devices(kind: DeviceKind) -> Result<&'static [Arc<Device>], DeviceError> {
    static OPEN: [OnceLock<Result<Vec<Arc<Device>>, DeviceError>>; 2] =
        [OnceLock::new(), OnceLock::new()];
    let open = match kind {
        DeviceKind::Gpu => &OPEN[0],
        DeviceKind::Software => &OPEN[1],
    };
    let all = open.get_or_init(|| Device::open_all(kind));
    all.as_deref().map_err(Clone::clone)
}
