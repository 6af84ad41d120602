//! The menu of kernels: which implementations a backend offers.

use crate::{Algorithm, Buffer, Configuration, Kernel};
use partita_space::{Bytes, Seconds};

/// A kernel with the buffers of its views: all that an implementation can depend on.
#[derive(Clone, Copy, Debug)]
pub struct KernelShape<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Buffers of the body it belongs to.
    pub buffers: &'a [Buffer],
}

/// The implementation that a menu chooses for a kernel; lowering pins it in the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The implementation.
    pub algorithm: Algorithm,
    /// Workspace it needs while it runs.
    pub workspace: Bytes,
    /// Elements that the weights of a convolution have once packed, if it would pack them itself at
    /// every call; 0 where it takes them as they are, packed or plain. Kernels of the same weights,
    /// direction, taps, groups, implementation and number of elements take the same packed weights.
    pub packed_weights: usize,
}

/// A kernel that no backend offers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend} has no implementation of {kernel}; choose another kernel set")]
pub struct MenuError {
    /// The backend.
    pub backend: String,
    /// The kernel and its shapes.
    pub kernel: String,
}

/// The menu of kernels of a backend.
pub trait Menu: Sync {
    /// The implementation to pin for this kernel where nothing else was measured. A fused kernel without one is
    /// not fused.
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError>;

    /// All implementations of the undivided kernel, that of [`Self::choose`] first.
    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        Ok(vec![self.choose(shape)?])
    }

    /// The time that an implementation of the undivided kernel is expected to take, to compare it with the others
    /// where none was measured. None where the menu has no model of it.
    fn expected(&self, _shape: &KernelShape<'_>, _method: &str) -> Option<Seconds> {
        None
    }

    /// The time that a configuration was measured to take, where so many of the kernel were measured that times decide.
    fn measured(&self, _shape: &KernelShape<'_>, _configuration: &str) -> Option<Seconds> {
        None
    }

    /// A configuration of the kernel with its workspace, the largest of its micro-batches; none if an implementation
    /// is not offered, or the micro-batches do not cover the kernel.
    fn configured(&self, shape: &KernelShape<'_>, configuration: &Configuration) -> Option<Choice> {
        let offered = |shape: &KernelShape<'_>, method: &str| {
            let mut all = self.implementations(shape).ok()?.into_iter();
            all.find(|choice| choice.algorithm.0 == method)
        };
        let dim = match configuration {
            Configuration::Undivided { method } => return offered(shape, method),
            Configuration::Divided { dim, .. } => *dim,
        };
        let whole = shape.cut_extents()?[dim];
        let (mut workspace, mut end) = (Bytes(0), 0);
        // Inner pieces of equal extent need the same.
        let mut last = (0, 0, "");
        for (start, extent, method) in configuration.micro_batches() {
            end = start + extent;
            if end > whole {
                return None;
            }
            let is_inner = last.0 > 0 && end < whole;
            if is_inner && (extent, method) == (last.1, last.2) {
                continue;
            }
            last = (start, extent, method);
            let piece = shape.piece(dim, start, extent)?;
            let piece = KernelShape {
                kernel: &piece,
                buffers: shape.buffers,
            };
            workspace = workspace.max(offered(&piece, method)?.workspace);
        }
        (end == whole).then(|| Choice {
            algorithm: configuration.algorithm(),
            workspace,
            packed_weights: 0,
        })
    }

    /// The fastest configuration with at most this workspace, by measured or expected times; none if the usual
    /// implementation is to run.
    fn fastest_within(&self, _shape: &KernelShape<'_>, _limit: Bytes) -> Option<Choice> {
        None
    }

    /// For each of the kernels a configuration, so that their workspaces together have at most `total` and the sum of
    /// their times is the least; none where no times are known, or the total is too small for all.
    fn divide(&self, shapes: &[KernelShape<'_>], _total: Bytes) -> Vec<Option<Choice>> {
        vec![None; shapes.len()]
    }

    /// Whether any fused kernel is offered; if not, fusion is skipped.
    fn fuses(&self) -> bool {
        true
    }
}

/// Pins no implementation, fuses nothing and reserves no workspace: for programs that are only costed.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnpinnedMenu;

impl Menu for UnpinnedMenu {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        if let Kernel::Fused { .. } = shape.kernel {
            return Err(MenuError {
                backend: "a kernel set left open".to_owned(),
                kernel: shape.to_string(),
            });
        }
        Ok(Choice {
            algorithm: Algorithm::unpinned(),
            workspace: Bytes(0),
            packed_weights: 0,
        })
    }

    fn fuses(&self) -> bool {
        false
    }
}
