//! `data`: makes synthetic datasets, converts files to datasets, and summarizes datasets.

mod convert;
mod cosmology;
mod digits;
mod error;
mod labeled;
mod maker;

pub use convert::convert_data;
pub use cosmology::{CosmologyRequest, make_cosmology};
pub use digits::{DigitsRequest, make_digits};
pub use error::DatasetError;
pub use labeled::{SegmentationRequest, ShapesRequest, make_segmentation, make_shapes};
pub use maker::MakeRequest;

use partita_data::DatasetSummary;
use std::path::Path;

/// Summarizes a dataset folder or a single HDF5 file.
///
/// Errors: no dataset, or a corrupt one.
pub fn inspect_data(path: &Path) -> Result<DatasetSummary, DatasetError> {
    Ok(partita_data::inspect(path)?)
}
