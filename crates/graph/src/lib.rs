//! The model: operations, parameters, shapes, the zoo and the text form.
//!
//! Does: builds and checks a graph of operations, infers shapes, counts parameters, flops and bytes.
//! Knows: layers and their mathematics, per sample; windows and extents of `space`.
//! Must not know: ranks, strategies, machines, programs, time. No number here depends on a split.

mod builder;
mod count;
mod error;
mod infer;
mod initialize;
mod keyword;
mod model;
mod op;
mod parameter;
mod shape;
mod sizes;
pub mod text;
mod walk;
pub mod zoo;

pub use builder::{GraphBuilder, ParameterSource};
pub use count::{Counts, LayerCount, count};
pub use error::GraphError;
pub use initialize::{initial_part, initial_values};
pub use model::{Graph, Node};
pub use op::{Activation, Convolution, Loss, Op, Pool, PoolKind, TransposedConvolution};
pub use parameter::{Initialization, Parameter, ParameterRole, fans};
pub use shape::{NodeId, ParameterId, Shape};
pub use walk::{needed_by_last, readers};
