//! Fast f32 kernels for CPUs: direct convolutions and what goes with them, channels-last.
//! Does: computes boxes of buffers with explicit pitches, on a team of threads, without allocating.
//! Knows: instruction levels (portable, AVX2, AVX-512), cache-sized tiles, cancellation.
//! Must not know: the model, the strategy, other ranks, who planned the buffers.
//! Counts the flops and bytes of every call from its own loop bounds; see [`Work`].

mod grid;
mod simd;
mod team;

mod conv_data;
mod conv_forward;
mod conv_weight;
mod tile;

pub use conv_data::{conv_backward_data, conv_backward_data_scratch};
pub use conv_forward::{Convolution, conv_forward, conv_forward_scratch};
pub use conv_weight::{bias_backward, conv_backward_weight, conv_backward_weight_scratch};
pub use grid::{Call, Canceled, Grid, View, ViewMut, Window, Work};
pub use simd::Level;
pub use team::{Team, TeamError};
