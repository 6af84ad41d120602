//! Learned position embeddings, and attention with biases by position.

use super::{W, X, Y};
use partita_program::{Distribution, Kernel};
use partita_space::AttentionWindow;

pub(super) fn kernels() -> Vec<Kernel> {
    let distribution = Distribution::replicated([2, 4, 8, 8, 16]);
    let halo_low = [0; 5];
    vec![
        Kernel::PositionEmbeddingForward {
            x: X,
            w: W,
            y: Y,
            distribution,
            halo_low,
        },
        Kernel::PositionEmbeddingBackward {
            dy: Y,
            dw: W,
            distribution,
            halo_low,
            accumulate: true,
        },
    ]
}

pub(super) fn biased_attention() -> Vec<Kernel> {
    vec![
        Kernel::AttentionForward {
            q: X,
            k: Y,
            v: Y,
            y: Y,
            heads: 4,
            causal: true,
            window: None,
            bias: None,
            table: None,
        },
        Kernel::AttentionForward {
            q: Y,
            k: Y,
            v: Y,
            y: Y,
            heads: 4,
            causal: false,
            window: None,
            bias: Some(W),
            table: None,
        },
        Kernel::AttentionBackwardBias {
            q: Y,
            k: Y,
            v: Y,
            dy: Y,
            dbias: W,
            heads: 4,
            causal: false,
            window: Some(AttentionWindow {
                extent: [4, 2, 2],
                shift: [0, 1, 1],
                mask: -100.0,
            }),
            bias: Some(W),
            table: Some([4, 2, 3]),
            accumulate: true,
        },
    ]
}
