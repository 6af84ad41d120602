//! Networks of other systems: PyTorch's exported programs (`.pt2`) become a [`Graph`](partita_graph::Graph).
//!
//! Does: reads the file, translates operator by operator, and gives each layer the name of its module, so that
//! weights and strategies name layers as PyTorch does. What cannot be expressed is refused: all such operators
//! at once, each with its module and source line. Nothing is approximated.
//! Knows: the archive of `torch.export.save`, ATen's operators, and `graph`.
//! Must not know: ranks, strategies, datasets, how weights are stored on disk by Partita.
//!
//! A reader of a format makes a `network::Network`, operations between named values with PyTorch's order of dims;
//! `translate` makes a graph of it. Views, reshapes and permutations become nothing: each
//! value keeps which axes its dims are (`layout`).

mod archive;
mod error;
mod imported;
mod layout;
mod network;
mod pt2;
mod translate;
mod weights;

pub use error::{ImportError, Unsupported};
pub use imported::{Imported, Layer, LossChoice, Options, Stored};
pub use pt2::{read, read_weights};
pub use translate::state_dict_role;
pub use weights::{Element, Weight};
