//! The text form of a model: one line per node, `#` starts a comment, words are set apart by blanks.
//!
//! ```text
//! model tiny
//! input x channels=4 extent=32x32x32
//! c1 = conv x filters=16 kernel=3 stride=2 pad=0:1 bias=true init=he_normal init_bias=0.1
//! b1 = batch_norm c1 epsilon=1e-5 momentum=0.1
//! a1 = leaky_relu b1 slope=0.01
//! p1 = average_pool a1 kernel=3x3x1 stride=2 pad=1x1x0 count_padding=true
//! c2 = conv p1 filters=16 kernel=3 dilation=2 pad=2 padding=periodic groups=4 bias=false
//! c3 = conv c2 filters=16 kernel=3 dilation=2 pad=2 groups=4 bias=false weight=c2.weight
//! s = add c3 p1
//! u = conv_transpose s filters=8 kernel=3 stride=2 pad=1 output_padding=1 bias=true
//! k = concat a1 u
//! f = flatten k
//! d = dropout f rate=0.2
//! fc = linear d features=4 bias=false
//! loss = mse fc
//! ```
//!
//! An `input NAME features=N` after the input has N numbers of each sample beside its volume, at one position.
//!
//! The operations are `conv`, `conv_transpose`, `max_pool`, `average_pool`, `l2_pool`, `upsample`, `pad`,
//! `adaptive_average_pool`, `batch_norm`, `relu`,
//! `leaky_relu`, `prelu`, `softmax`, `gelu`, `silu`, `sigmoid`, `tanh`, `elu`, `layer_norm`, `rms_norm`, `group_norm`, `instance_norm`, `linear`,
//! `dropout`,
//! `flatten`, `add`, `multiply`, `concat`, `slice`, `embedding`, `positions`, `position_embedding`,
//! `reshape`, `attention`, and the losses `mse`, `l1`, `huber`, `smooth_l1`,
//! `bce_with_logits`, `softmax_cross_entropy`, `dice` and `dice_cross_entropy`.
//! `extent` gives W, or HxW, or DxHxW, and with it the spatial dims of the model. A value per dim is
//! one for all or one each, in the order of `extent`; padding is `LOW:HIGH`, or one value for both
//! sides.
//!
//! The last line is the loss. One with a `weight=NUMBER` stands before it and is an auxiliary loss:
//! training adds it with that weight, evaluation leaves it out, `aux = softmax_cross_entropy a
//! weight=0.4`. All losses are of one kind and shape, for they have the same target.
//!
//! ```text
//! t = slice x start=0 channels=1
//! e = embedding t rows=16 channels=64 init=normal:1.0
//! p = positions e
//! n = layer_norm p epsilon=1e-6
//! a = attention n n n heads=8 causal=true
//! loss = softmax_cross_entropy a smoothing=0.1
//! ```
//!
//! A sequence lies along W. An `embedding` reads one channel of class indices of the sample, and may share
//! its weights, (1, 1, 1, rows, channels). An `attention` reads q, k and v, of sequences or
//! volumes. `smoothing` is label
//! smoothing; it may be left out, and may differ between losses.
//!
//! An `add` reads two tensors, a `concat` two or more of equal extents, whose channels come one after
//! the other in the order of the line.
//!
//! A `conv_transpose` is the adjoint of a `conv` with the same keys: `stride` spreads its inputs, `pad`
//! takes outputs away, and `output_padding`, below the stride or the dilation, adds some at the end. Its
//! weights are those of that `conv`, (Kd, Kh, Kw, F / groups, C).
//!
//! A `conv` may leave out `stride=1`, `dilation=1`, `pad=0`, `padding=zero` and `groups=1`, a
//! `conv_transpose` all but the `padding`, and `output_padding=0`, a pooling `pad=0` and a stride as its kernel.
//! Other defaults are PyTorch's: `bias=true`, `epsilon=1e-5`, `momentum=0.1`, `slope=0.01`, `rate=0.5`,
//! `count_padding=true`, `slopes=one` and `causal=false`. A parameter is shared by its name in place of a
//! value: `weight=`, `bias=`, `gamma=`, `beta=` or `slope=LAYER.ROLE`. Initializations are set by `init` for
//! weights and `init_ROLE` for the others: `constant:NUMBER` (for vectors just `NUMBER`); for what is
//! trained also `normal:DEVIATION` and `uniform:LIMIT`; for weights also `glorot_uniform`, `he_normal`
//! and `he_normal_fan_out`. A norm with `affine=false` has no gamma and beta, a `layer_norm` with `bias=false` no
//! beta.

mod loss;
mod parse;
mod print;
mod read;
mod synonym;
mod values;

pub use crate::error::TextError;
pub use loss::parse_loss;
pub use print::print;
pub use read::parse;
