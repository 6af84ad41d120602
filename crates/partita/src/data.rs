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
pub use labeled::{
    FractalsRequest, SegmentationRequest, ShapesRequest, make_fractals, make_segmentation,
    make_shapes,
};
pub use maker::MakeRequest;

use partita_data::{Inspected, ValueScope, WrittenFeatures};
use std::path::Path;

/// Summarizes a dataset, or the arrays of a file that is none.
///
/// Errors: nothing that is read as either; a corrupt file.
pub fn inspect_data(path: &Path, scope: ValueScope) -> Result<Inspected, DatasetError> {
    Ok(partita_data::inspect_path(path, scope)?)
}

/// Gives the samples of a dataset folder features, from the columns of a table.
///
/// Errors: see [`partita_data::write_features`].
pub fn write_features(
    folder: &Path,
    table: &Path,
    columns: &[String],
) -> Result<WrittenFeatures, DatasetError> {
    Ok(partita_data::write_features(folder, table, columns)?)
}

/// Draws slices of some samples of a dataset, or of a file of arrays, as a PNG image.
///
/// Errors: as [`inspect_data`]; nothing that can be drawn.
pub fn picture_of_data(path: &Path) -> Result<Vec<u8>, DatasetError> {
    Ok(partita_data::picture(path)?)
}
