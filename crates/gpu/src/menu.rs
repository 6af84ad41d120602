//! The catalog of the kernels of a device.

use crate::kernels::execute;
use crate::launch::{RankPosition, Run};
use partita_program::{Algorithm, Buffer, Choice, Kernel, KernelShape, Menu, MenuError, Role};
use partita_run::Inputs;
use partita_space::{Bytes, Mesh};

/// The algorithm of all kernels.
pub const NAME: &str = "gpu";

/// The catalog of [`crate::GpuKernels`] on a device with so many units: every kernel, but no fused ones, of a program
/// in f32 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMenu {
    /// Multiprocessors of the device.
    pub units: usize,
}

impl Menu for GpuMenu {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let accesses = shape.kernel.accesses();
        let mut used = accesses
            .iter()
            .map(|(view, _)| &shape.buffers[view.buffer.0 as usize]);
        let is_fused = matches!(shape.kernel, Kernel::Fused { .. });
        if is_fused || !used.all(is_offered) {
            return Err(MenuError {
                backend: "the kernel set of devices (f32 and bf16)".to_owned(),
                kernel: shape.to_string(),
            });
        }
        Ok(Choice {
            algorithm: Algorithm(NAME.to_owned()),
            workspace: self.workspace(shape),
            packed_weights: 0,
        })
    }

    fn fuses(&self) -> bool {
        false
    }
}

impl GpuMenu {
    fn workspace(&self, shape: &KernelShape<'_>) -> Bytes {
        // The place of a rank and the inputs of a step have no influence on a workspace.
        let mesh = Mesh::new([1; 7]);
        let coord = mesh.coord(0);
        let inputs = Inputs::default();
        let position = RankPosition { mesh, coord };
        let mut run = Run::new((shape.buffers, &inputs, position), self.units, None, None);
        execute(shape.kernel, &mut run).expect("nothing is given to a device that could refuse it");
        Bytes(run.workspace())
    }
}

/// Convolutions read weights as they are, not packed.
fn is_offered(buffer: &Buffer) -> bool {
    buffer.role != Role::PackedWeights && buffer.is_f32_or_bf16()
}
