//! The model: operations, parameters, shapes, the zoo and the text form.
//!
//! Does: builds and checks a graph of operations, infers shapes, counts parameters, flops and bytes.
//! Knows: layers and their mathematics, per sample; windows and extents of `space`.
//! Must not know: ranks, strategies, machines, programs, time. No number here depends on a split.
//!
//! ```
//! use partita_graph::{count, text};
//!
//! let model = text::parse(
//!     "model tiny
//!      input x channels=1 extent=32x32x32
//!      c1 = conv x filters=4 kernel=3 pad=1 bias=true
//!      a1 = relu c1
//!      c2 = conv a1 filters=2 kernel=1 bias=false
//!      loss = softmax_cross_entropy c2",
//! )?;
//! assert_eq!(count(&model).parameters, (27 * 4 + 4) + 4 * 2);
//! # Ok::<(), text::TextError>(())
//! ```

mod builder;
mod constant;
mod count;
mod error;
mod extent;
mod infer;
mod initialize;
mod keyword;
mod loss;
mod model;
mod op;
mod parameter;
mod parameter_shapes;
mod resample;
mod shape;
mod sizes;
mod span;
pub mod text;
mod unused;
mod walk;
pub mod zoo;

pub use builder::GraphBuilder;
pub use count::{Counts, LayerCount, count};
pub use error::{ExtentError, GraphError};
pub use initialize::{initial_part, initial_values};
pub use loss::{ClassLoss, ClassWeights, ElementLoss, Loss, TargetKind, inverse_frequency};
pub use model::{Graph, Node};
pub use op::{Convolution, Op, Pool, PreluSlopes, ScoreBias, TransposedConvolution};
pub use parameter::{Initialization, Parameter, ParameterRole, ParameterSource, fans};
pub use partita_space::{Activation, AttentionWindow, DropoutMask, ElementFunction, PoolKind};
pub use resample::{Interpolation, PadMode, Resample};
pub use shape::{NodeId, ParameterId, Shape};
pub use walk::{needed_by_last, readers};
