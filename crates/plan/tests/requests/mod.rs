//! A training whose kernels are left open, fused ones, too.

use partita_graph::Graph;
use partita_lower::{Request, SampleFormat, Strategy};
use partita_program::{
    Algorithm, Choice, Dtype, KernelShape, Menu, MenuError, Optimizer, ProgramKind, Transform,
};
use partita_space::Bytes;

/// Takes every kernel.
pub struct Open;

impl Menu for Open {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm::unpinned(),
            workspace: Bytes(0),
            packed_weights: 0,
        })
    }
}

/// By gradient descent with momentum.
pub fn training<'a>(graph: &'a Graph, strategy: &'a Strategy, batch: usize) -> Request<'a> {
    Request {
        graph,
        strategy,
        batch,
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        optimizer: Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
        decay_norms: true,
        ema: None,
        clip: None,
        samples: SampleFormat {
            dtype: Dtype::F32,
            transform: Transform::Identity,
        },
        menu: &Open,
    }
}
