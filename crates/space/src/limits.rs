//! The largest sizes. They are checked where sizes enter: in the text of a model, a strategy, a program, in
//! the options of a verb. From them it follows that all later products and sums fit in 64 bits, so that
//! nothing behind the entrance has to check again.

/// Elements of a tensor or parameter, of one sample or of a mini-batch, the padding around it among
/// them; its bytes are exact in `f64`.
pub const ELEMENTS_MAX: u64 = 1 << 48;

/// Multiplications, additions and comparisons of one layer in the forward pass of a mini-batch.
pub const FLOPS_MAX: u64 = 1 << 60;

/// Bytes of all buffers of a rank together, as if none shared memory.
pub const BYTES_MAX: u64 = 1 << 62;

/// Samples of a mini-batch.
pub const SAMPLES_MAX: usize = 1 << 24;

/// Micro-batches of a mini-batch.
pub const MICRO_BATCHES_MAX: usize = 1 << 14;
