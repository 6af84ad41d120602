//! Crops and augmentation that the samples of a dataset do not allow.

use partita_data::Dataset;
use partita_formats::DataError;

use super::orientation::Orientation;

/// Crops have positions, and no more than one along dims in which no volume has more.
pub(super) fn check_crop(
    dataset: &Dataset,
    crop: [usize; 3],
    volume: [usize; 3],
) -> Result<(), DataError> {
    let fits = |(crop, extent): (usize, usize)| crop == 1 || (crop > 1 && extent > 1);
    if crop.into_iter().zip(volume).all(fits) {
        return Ok(());
    }
    let nearest: [usize; 3] = std::array::from_fn(|dim| match volume[dim] {
        1 => 1,
        _ => crop[dim].max(1),
    });
    let reason = format!("volumes are D, H, W = {volume:?}");
    let expected = format!("1 along dims in which they are 1, such as {nearest:?}");
    Err(refusal(
        dataset,
        "augmentation.crop",
        format!("{crop:?}"),
        reason,
        expected,
    ))
}

/// The rotations of samples that keep their shape, of which there are several.
pub(super) fn rotations_of(
    dataset: &Dataset,
    extent: [usize; 3],
) -> Result<Vec<Orientation>, DataError> {
    let rotations = Orientation::rotations(extent);
    if rotations.len() > 1 {
        return Ok(rotations);
    }
    let reason = format!(
        "samples are D, H, W = {extent:?}, and no plane has equal extents above 1, so a quarter turn changes their \
         shape"
    );
    let expected = "false, or `crop` with equal extents in a plane".to_owned();
    let got = "true".to_owned();
    Err(refusal(
        dataset,
        "augmentation.rotate",
        got,
        reason,
        expected,
    ))
}

/// Displacements are smaller than samples.
pub(super) fn check_magnitude(
    dataset: &Dataset,
    magnitude: f64,
    extent: [usize; 3],
) -> Result<(), DataError> {
    let largest = extent.into_iter().max().unwrap_or(1) as f64;
    if magnitude >= largest {
        let reason = format!("samples are D, H, W = {extent:?}");
        let (got, expected) = (magnitude.to_string(), format!("below {largest}"));
        let key = "augmentation.elastic.magnitude";
        return Err(refusal(dataset, key, got, reason, expected));
    }
    Ok(())
}

fn refusal(
    dataset: &Dataset,
    key: &'static str,
    got: String,
    reason: String,
    expected: String,
) -> DataError {
    DataError::Augmentation {
        path: dataset.path().to_path_buf(),
        key,
        got,
        reason,
        expected,
    }
}
