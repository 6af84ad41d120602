//! What the tests lower, unless they say something else.

use partita_graph::Graph;
use partita_lower::{Request, SampleFormat, Strategy};
use partita_program::{Dtype, Optimizer, ProgramKind, Transform, UnpinnedMenu};

/// A training by Adam in f32, with kernels left open.
pub fn request<'a>(graph: &'a Graph, strategy: &'a Strategy, batch: usize) -> Request<'a> {
    Request {
        graph,
        strategy,
        batch,
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        optimizer: Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        },
        decay_norms: true,
        ema: None,
        clip: None,
        samples: SampleFormat {
            dtype: Dtype::F32,
            transform: Transform::Identity,
        },
        menu: &UnpinnedMenu,
    }
}
