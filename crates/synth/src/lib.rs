//! Makers of synthetic datasets whose answers are known.
//! Does: makes universes with their linear baseline, labeled volumes and images, strings of digits.
//! Knows: the linear theory of structure formation, Fourier transforms, ridge regression, shapes.
//! Must not know: networks, ranks, file formats, threads; the caller runs universes in parallel.
//! A sample is a function of (specification, index) alone, whoever makes it and in what order.

mod digits;
mod error;
mod fractals;
mod parameters;
mod segmentation;
mod shapes;
mod universe;

pub mod field;
pub mod fourier;
pub mod growth;
pub mod power;
pub mod random;
pub mod ridge;
pub mod spectrum;
pub mod zeldovich;

pub use digits::{DigitString, DigitStrings, DigitsSpec, DigitsTask, TOKENS};
pub use error::SynthError;
pub use fractals::{FRACTAL_CHANNELS, FRACTAL_VOLUMES, FractalVolume, Fractals, fractal_classes};
pub use parameters::{Cosmology, OMEGA_B, ParameterRange, ParameterRanges};
pub use segmentation::{CLASSES, SegmentationSpec, SegmentedVolume, make_segmented};
pub use shapes::{Picture, ShapesSpec, class_names, make_picture};
pub use universe::{CHANNELS, CosmologySpec, PUBLISHED_REDSHIFTS, Universe, make_universe};
