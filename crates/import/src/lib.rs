//! Networks of other systems: PyTorch's exported programs (`.pt2`) and ONNX models (`.onnx`) become a [`Graph`](partita_graph::Graph).
//!
//! Does: reads the file, translates operator by operator, and gives each layer the name of its module, so that
//! weights and strategies name layers as PyTorch does. What cannot be expressed is refused: all such operators
//! at once, each with its module and source line. Nothing is approximated.
//! Knows: the archive of `torch.export.save`, ATen's operators, ONNX's messages and operators, and `graph`.
//! Must not know: ranks, strategies, datasets, how weights are stored on disk by Partita.
//!
//! A reader of a format makes a `network::Network`, operations between named values with PyTorch's order of dims;
//! `translate` makes a graph of it. Views, reshapes and permutations become nothing: each
//! value keeps which axes its dims are (`layout`).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read what they wrote")
)]

mod archive;
mod error;
mod imported;
mod layout;
mod network;
mod onnx;
mod pt2;
mod simplify;
mod strided;
mod translate;
mod weights;

pub use error::{ImportError, Reason, Unsupported};
pub use imported::{Imported, Layer, LossChoice, Options, Stored};
pub use onnx::write::{OnnxTensor, is_own_onnx, write_onnx};
pub use translate::state_dict_role;
pub use weights::{Element, Weight};

use std::path::Path;

/// What the names of files that are read end in.
pub const ENDS: [&str; 2] = ["pt2", "onnx"];

/// Reads a network: an ONNX model if the name of the file ends in `.onnx`, else what `torch.export.save` wrote.
///
/// Errors: a file of another kind or version, a damaged one, operators that cannot be expressed (all of them),
/// several inputs, several outputs of which none is chosen.
pub fn read(path: &Path, options: &Options) -> Result<Imported, ImportError> {
    if is_onnx(path) {
        onnx::read(path, options)
    } else {
        pt2::read(path, options)
    }
}

/// Reads the parameters and buffers of a network, by their names in the state dict.
///
/// Errors: a file of another kind or a damaged one, tensors that are pickled or of a type that is not read.
pub fn read_weights(path: &Path) -> Result<Vec<Weight>, ImportError> {
    if is_onnx(path) {
        onnx::read_weights(path)
    } else {
        pt2::read_weights(path)
    }
}

fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "onnx")
}
