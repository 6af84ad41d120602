//! Limits on sizes. They are checked where input is parsed: models, strategies, programs, options. They imply that
//! all later products and sums fit in 64 bits, which are not checked again.

/// Elements of a tensor or parameter, for one sample or a mini-batch, padding included; its bytes are exact in
/// `f64`.
pub const ELEMENTS_MAX: u64 = 1 << 48;

/// Multiplications, additions and comparisons of one layer in the forward pass of a mini-batch.
pub const FLOPS_MAX: u64 = 1 << 60;

/// Bytes of all buffers of a rank, without sharing of memory.
pub const BYTES_MAX: u64 = 1 << 62;

/// Samples of a mini-batch.
pub const SAMPLES_MAX: usize = 1 << 24;

/// Micro-batches of a mini-batch.
pub const MICRO_BATCHES_MAX: usize = 1 << 14;
