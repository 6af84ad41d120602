//! Makers of synthetic datasets whose answers are known.
//! Does: draws cosmologies, makes their universes as voxel counts, and fits the linear baseline.
//! Knows: the linear theory of structure formation, Fourier transforms, ridge regression.
//! Must not know: networks, ranks, file formats, threads; the caller runs universes in parallel.
//! A universe is a function of (specification, index) alone, whoever makes it and in what order.

mod error;
mod parameters;
mod universe;

pub mod field;
pub mod fourier;
pub mod growth;
pub mod power;
pub mod random;
pub mod ridge;
pub mod spectrum;
pub mod zeldovich;

pub use error::SynthError;
pub use parameters::{Cosmology, OMEGA_B, ParameterRange, ParameterRanges};
pub use universe::{CHANNELS, CosmologySpec, PUBLISHED_REDSHIFTS, Universe, make_universe};
