//! The catalog of the kernels of a device.

use crate::kernels::execute;
use crate::launch::{RankPosition, Run};
use crate::method::Method;
use partita_program::fused::is_usual;
use partita_program::{Algorithm, Buffer, Choice, Family, KernelShape, Menu, MenuError, Role};
use partita_run::Inputs;
use partita_space::{Bytes, Mesh};

/// The catalog of [`crate::GpuKernels`] on a device with this many units: every kernel of a program in f32, bf16 or f16, and the
/// usual fused ones. Convolutions have a second implementation where they can do with less workspace.
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
        let parts = shape.kernel.parts();
        let is_apart = parts.len() > 1 && !is_usual(parts, shape.buffers);
        if is_apart || !used.all(is_offered) {
            return Err(MenuError {
                backend: "the kernel set of devices (f32, bf16 and f16)".to_owned(),
                kernel: shape.to_string(),
            });
        }
        Ok(self.choice(shape, Method::Parts))
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        let usual = self.choose(shape)?;
        if shape.kernel.parts()[0].family() != Family::Convolution {
            return Ok(vec![usual]);
        }
        let serial = self.choice(shape, Method::Serial);
        let needs_less = serial.workspace < usual.workspace;
        Ok([usual]
            .into_iter()
            .chain(needs_less.then_some(serial))
            .collect())
    }
}

impl GpuMenu {
    fn choice(&self, shape: &KernelShape<'_>, method: Method) -> Choice {
        Choice {
            algorithm: Algorithm(method.name().to_owned()),
            workspace: self.workspace(shape, method),
            packed_weights: 0,
        }
    }

    fn workspace(&self, shape: &KernelShape<'_>, method: Method) -> Bytes {
        // The place of a rank and the inputs of a step have no influence on a workspace.
        let mesh = Mesh::new([1; 7]);
        let coord = mesh.coord(0);
        let inputs = Inputs::default();
        let position = RankPosition { mesh, coord };
        let mut run = Run::new((shape.buffers, &inputs, position), self.units, None, None);
        run.next_piece(method);
        execute(shape.kernel, &mut run).expect("nothing is given to a device that could refuse it");
        Bytes(run.workspace())
    }
}

/// Convolutions read weights as they are, not packed.
fn is_offered(buffer: &Buffer) -> bool {
    buffer.role != Role::PackedWeights && buffer.is_f32_or_half()
}
