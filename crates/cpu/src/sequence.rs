//! Kernels over the channels of a position and over positions of a sequence.
//!
//! Attention with its small matrix products, softmax, layer norm, embeddings and positional encoding. What reads
//! and writes the channels of one position, see [`row_kernels`], also serves activations and products.

pub(crate) mod attention;
pub(crate) mod matrix;
pub(crate) mod position_rows;
pub(crate) mod row_kernels;
pub(crate) mod scores;
pub(crate) mod softmax;
