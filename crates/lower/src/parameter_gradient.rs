//! Gradients of parameters while contributions to them arrive.

use crate::body::TensorBuffer;
use crate::network::LayerId;
use partita_graph::ParameterId;
use partita_program::{Kernel, View};
use partita_space::{AxisSet, Submesh};

/// A parameter on the ranks of one of its holders, with the axes along which uses of it are partial.
pub(crate) type Key = (ParameterId, Option<Submesh>, AxisSet);

/// A contribution to the gradient of a parameter that waits for its slot.
pub(crate) struct Deferred {
    pub key: Key,
    pub layer: LayerId,
    pub name: String,
    pub kernel: Option<Kernel>,
}

/// Gradient of a parameter from the uses that are partial along the same axes.
#[derive(Clone, Copy)]
pub(crate) struct ParameterGradient {
    pub held: TensorBuffer,
    pub written: bool,
    /// Uses whose contribution is still to come before it is summed over ranks.
    pub open: usize,
    /// Uses in a micro-batch.
    pub uses: usize,
    /// Where the own share of the sum goes, and whether a micro-batch has been there before.
    pub share: Option<(TensorBuffer, bool)>,
}

impl ParameterGradient {
    pub fn view(&self) -> View {
        self.held.view(&self.held.region)
    }

    /// The sum over ranks, once it is complete.
    pub fn sum(&self) -> View {
        let held = self.share.map_or(self.held, |(share, _)| share);
        held.view(&held.region)
    }
}
