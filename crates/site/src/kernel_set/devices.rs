//! The devices of this process on which kernels compute.

use super::backend::Backend;
use super::{CoreSlot, Precision, Processing};
use partita_cpu::Level;
use partita_gpu::{Device, DeviceError, DeviceKind, GpuKernels, GpuMenu};
use partita_program::Menu;
use partita_run::{Arena, Kernels, RunError};
use partita_space::help::{Help, extend};
use partita_space::{Bytes, Mesh, Rank};
use std::sync::{Arc, OnceLock};

/// Kernels on devices of a kind.
pub(super) struct OnDevices {
    pub name: &'static str,
    pub kind: DeviceKind,
    pub about_kernels: &'static str,
    pub about_devices: &'static str,
}

impl OnDevices {
    /// The device of a slot.
    fn device(&self, slot: usize, rank: Rank) -> Result<Arc<Device>, RunError> {
        let all = devices(self.kind).map_err(|error| of_rank(rank, &error))?;
        Ok(Arc::clone(&all[slot % all.len()]))
    }
}

fn of_rank(rank: Rank, error: &DeviceError) -> RunError {
    let reason = error.to_string();
    RunError::Kernels { rank, reason }
}

impl Backend for OnDevices {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about_kernels(&self) -> &'static str {
        self.about_kernels
    }

    fn about_devices(&self) -> &'static str {
        self.about_devices
    }

    fn devices(&self) -> Option<Result<&'static [Arc<Device>], DeviceError>> {
        Some(devices(self.kind))
    }

    fn device_kind(&self) -> Option<DeviceKind> {
        Some(self.kind)
    }

    fn offers(&self, precision: Precision) -> bool {
        precision != Precision::F64
    }

    fn menu(&self, _threads: usize, _level: Level) -> Box<dyn Menu> {
        // Of a machine file the device may be elsewhere.
        let first = devices(self.kind).ok().and_then(|all| all.first());
        let units = first.map_or(1, |device| device.facts().units);
        Box::new(GpuMenu { units })
    }

    fn arena(&self, rank: Rank, slot: usize, bytes: Bytes) -> Result<Arena, RunError> {
        partita_gpu::arena(self.device(slot, rank)?, rank, bytes)
    }

    fn kernels(
        &self,
        _precision: Precision,
        (mesh, rank): (Mesh, Rank),
        slot: &CoreSlot,
        _processing: &Processing,
    ) -> Result<Box<dyn Kernels>, RunError> {
        let device = self.device(slot.slot, rank)?;
        let made = GpuKernels::new(device, mesh, rank);
        Ok(Box::new(made.map_err(|error| of_rank(rank, &error))?))
    }
}

/// A device that is not there, or not for this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceUseError {
    /// There is none, or it cannot be used.
    #[error("{}", extend(.0, hint(.0)))]
    Device(#[from] DeviceError),
    /// Reference kernels compute on the processor.
    #[error(
        "`kernels = \"reference\"` computes on the processor: remove it from the run file, or take `device = \"cpu\"`"
    )]
    Reference,
    /// No kernels for the type.
    #[error(
        "a device computes in f32, bf16 or f16, not in f64{}",
        Help::none().code("precision = \"f32\"")
    )]
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

/// All devices of a kind, opened by the first call and shared by the ranks of this process.
///
/// Errors: there is none, or one cannot be used.
fn devices(kind: DeviceKind) -> Result<&'static [Arc<Device>], DeviceError> {
    static OPEN: [OnceLock<Result<Vec<Arc<Device>>, DeviceError>>; 2] =
        [OnceLock::new(), OnceLock::new()];
    let open = match kind {
        DeviceKind::Gpu => &OPEN[0],
        DeviceKind::Software => &OPEN[1],
    };
    let all = open.get_or_init(|| Device::open_all(kind));
    all.as_deref().map_err(Clone::clone)
}
