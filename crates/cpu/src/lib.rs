//! Fast f32 kernels for CPUs, channels-last: direct convolutions and all other kernels of programs.
//! Does: computes boxes of buffers with explicit pitches, on a team of threads, without allocating.
//! Knows: instruction levels, cache-sized tiles, cancellation, and the kernels of programs.
//! Must not know: the model, the strategy, other ranks, the layout of the arena.
//! Counts the flops and bytes of every call from its own loop bounds; see [`Work`].

mod grid;
mod rows;
mod simd;
mod team;

mod conv;

#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only AVX-512 has pairs")
)]
mod bf16;

mod elementwise;
mod image;
mod math;
mod norm;
mod optimizer;
mod pool;
mod probe;
mod sequence;

mod adapter;

pub use adapter::{CpuKernels, CpuMenu};
pub use bf16::{
    accumulate_bf16, bias_backward_bf16, conv_backward_data_bf16, conv_backward_data_scratch_bf16,
    conv_backward_weight_bf16, conv_backward_weight_scratch_bf16, conv_forward_bf16,
    conv_forward_scratch_bf16, copy_bf16, fill_bf16, pack_backward_data_bf16, pack_forward_bf16,
    packed_backward_data_elements_bf16, packed_forward_elements_bf16,
};
pub use conv::convolution::{Convolution, Weights};
pub use conv::data::{
    conv_backward_data, conv_backward_data_scratch, pack_backward_data,
    packed_backward_data_elements, packs_backward_data,
};
pub use conv::epilogue::{Epilogue, Summed, Sums, sums_scratch};
pub use conv::forward::{
    conv_forward, conv_forward_scratch, pack_forward, packed_forward_elements, packs_forward,
};
pub use conv::fourier::{
    fourier_backward_data, fourier_backward_data_scratch, fourier_backward_weight,
    fourier_backward_weight_scratch, fourier_error_bound, fourier_forward, fourier_forward_scratch,
    fourier_offers,
};
pub use conv::linear::{
    LINEAR, linear_backward_data, linear_backward_weight, linear_forward, linear_scratch,
};
pub use conv::weight::{conv_backward_weight, conv_backward_weight_scratch};
pub use conv::winograd::{
    WinogradTile, winograd_backward_data, winograd_backward_data_scratch, winograd_backward_weight,
    winograd_backward_weight_scratch, winograd_error_bound, winograd_forward,
    winograd_forward_scratch, winograd_offers, winograd_pack_backward_data, winograd_pack_forward,
    winograd_packed_backward_data_elements, winograd_packed_forward_elements,
};
pub use elementwise::{
    Activation, accumulate, accumulate_masked, activate, activate_backward,
    activate_backward_in_place, activate_in_place, add, copy, fill, scale,
};
pub use grid::{Call, Gradient, Grid, Mask, View, ViewMut, Window, Work};
pub use image::import::{Planes, Transform, import};
pub use image::resample::{resample, resample_backward};
pub use norm::{
    Inference, Normalization, bias_backward, norm_backward, norm_backward_statistics, norm_forward,
    norm_inference, norm_scratch, norm_statistics,
};
pub use optimizer::{
    Adam, Parameter, Sgd, adam, along, average, lamb_direction, lars, sgd, sum_of_squares,
};
pub use partita_program::PoolKind;
pub use pool::backward::pool_backward;
pub use pool::forward::pool_forward;
pub use pool::{PoolMask, Pooling};
pub use probe::multiply_adds;
pub use sequence::attention::{
    Heads, attention_backward, attention_backward_bias, attention_forward, attention_scratch,
};
pub use sequence::position_rows::{PositionNumbers, add_position_rows, position_rows_backward};
pub use sequence::row_kernels::{
    PositionOffset, RowGradient, RowNorm, add_positions, embed, embed_backward, row_backward,
    row_backward_parameters, row_backward_statistics, row_norm, row_statistics,
};
pub use simd::Level;
pub use team::{Canceled, Team, TeamError, TeamKind};
