//! oneDNN as a leaf: single convolutions by the library, which is loaded at run time.
//!
//! Does: finds the library, states the workspace of a convolution, and computes it in the memory of programs.
//! Knows: the C functions of oneDNN 3, the threads of OpenMP, kernels and views of programs.
//! Must not know: models, strategies, the environment, other implementations of kernels, or who chooses among them.

mod affinity;
mod api;
mod convolution;
mod kernels;
mod library;
mod open_mp;
mod problem;
mod recipe;

pub use api::OneDnnError;
pub use kernels::{NAME, Offer, OneDnnKernels, OneDnnMenu};
pub use library::{Instructions, Library, LibrarySearch, LoadError, OneDnn, Version};
