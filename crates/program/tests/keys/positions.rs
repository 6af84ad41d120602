//! Learned position embeddings.

use super::{W, X, Y};
use partita_program::{Distribution, Kernel};

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
