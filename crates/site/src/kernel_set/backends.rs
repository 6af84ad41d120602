//! The backends: where kernels come from.
//!
//! A new one has an entry in [`BACKENDS`]; its kernels are a crate of their own.

use super::backend::Backend;
use super::devices::OnDevices;
use super::joined::{JoinedKernels, JoinedMenu, Supplement};
use super::{CoreSlot, Precision, Processing, team};
use partita_cpu::{CpuKernels, CpuMenu, Level};
use partita_gpu::DeviceKind;
use partita_onednn::OneDnnMenu;
use partita_program::Menu;
use partita_reference::{ReferenceKernels, ReferenceMenu};
use partita_run::{Kernels, RunError};
use partita_space::{Mesh, Rank};
use std::sync::Arc;

/// All backends, in the order in which they are listed as choices.
pub(super) static BACKENDS: [&dyn Backend; 4] = [
    &Cpu,
    &Reference,
    &OnDevices {
        name: "gpu",
        kind: DeviceKind::Gpu,
        about_kernels: "Kernels of devices, for GPUs",
        about_devices: "GPUs that OpenCL finds",
    },
    &OnDevices {
        name: "software",
        kind: DeviceKind::Software,
        about_kernels: "Kernels of devices, for the processor as a device of OpenCL",
        about_devices: "The processor as a device of OpenCL, by the kernels of GPUs: to try them without one",
    },
];

/// Fast kernels, and the convolutions of oneDNN where it is found.
pub(super) struct Cpu;

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn about_kernels(&self) -> &'static str {
        "Fast kernels"
    }

    fn about_devices(&self) -> &'static str {
        "The processor"
    }

    fn offers(&self, precision: Precision) -> bool {
        precision != Precision::F64
    }

    fn menu(&self, threads: usize, level: Level) -> Box<dyn Menu> {
        Box::new(CpuMenu { threads, level })
    }

    fn menu_with(&self, processing: &Processing) -> Box<dyn Menu> {
        let usual = self.menu(processing.threads, processing.level);
        let Ok(library) = processing.onednn.library() else {
            return usual;
        };
        let onednn = OneDnnMenu::new(Arc::clone(library), processing.threads);
        let supplements: Vec<Box<dyn Supplement>> = vec![Box::new(onednn)];
        Box::new(JoinedMenu { usual, supplements })
    }

    fn kernels(
        &self,
        _precision: Precision,
        (mesh, rank): (Mesh, Rank),
        slot: &CoreSlot,
        processing: &Processing,
    ) -> Result<Box<dyn Kernels>, RunError> {
        let team = team(slot, processing).map_err(|error| RunError::Kernels {
            rank,
            reason: error.to_string(),
        })?;
        let cpu = CpuKernels::new(mesh, rank, team);
        let own = slot.cores.clone();
        Ok(Box::new(JoinedKernels::new(
            rank,
            cpu,
            processing.clone(),
            own,
        )))
    }
}

/// Plain loops.
pub(super) struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn about_kernels(&self) -> &'static str {
        "Reference kernels: plain loops"
    }

    fn about_devices(&self) -> &'static str {
        "The processor"
    }

    fn offers(&self, _precision: Precision) -> bool {
        true
    }

    fn menu(&self, _threads: usize, _level: Level) -> Box<dyn Menu> {
        Box::new(ReferenceMenu)
    }

    fn kernels(
        &self,
        precision: Precision,
        (mesh, rank): (Mesh, Rank),
        _slot: &CoreSlot,
        _processing: &Processing,
    ) -> Result<Box<dyn Kernels>, RunError> {
        Ok(match precision {
            Precision::F32 | Precision::Bf16 | Precision::F16 => {
                Box::new(ReferenceKernels::<f32>::new(mesh, rank))
            }
            Precision::F64 => Box::new(ReferenceKernels::<f64>::new(mesh, rank)),
        })
    }
}
