//! Geometry of NIfTI files: images in one orientation and at one spacing, labels on the voxels of their images.

mod notes;
mod voxels;

pub(super) use voxels::Geometry;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_formats::{DataError, DimOrder, Samples, VolumeShape, nifti};

use crate::convert::find::{Found, largest_extent};
use crate::convert::geometry::notes::Notes;
use crate::files::FileEntry;
use crate::grid::{AFFINES, CANONICAL, Grid, ORIENTATION, ORIGINALS};
use crate::opened::Inner;
use crate::reader::Reader;
use crate::resample::{Interpolation, resample_samples};
use crate::split::Split;

/// Key of the spacing in the part of the index that says what was converted.
const SPACING: &str = "spacing";
/// Key of the interpolation of images.
const INTERPOLATION: &str = "interpolation";
/// Largest extent of a resampled volume, that of NIfTI-1.
const EXTENT_MAX: usize = i16::MAX as usize;

/// What an image is to its labels.
const ITS_IMAGE: &str = "its image";

/// Orientation in which images are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VoxelOrientation {
    /// x to the right, y to anterior, z to superior (RAS+), or the nearest to it.
    #[default]
    Canonical,
    /// That of each image.
    Image,
}

impl VoxelOrientation {
    /// Its word on the command line and in the index.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canonical => CANONICAL,
            Self::Image => "image",
        }
    }
}

/// On which voxels images are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GeometrySpec {
    /// Common orientation.
    pub orientation: VoxelOrientation,
    /// Spacing along D, H and W, in millimeters (default: that of each image).
    pub spacing: Option<[f64; 3]>,
    /// Interpolation of images that are resampled; labels take the nearest voxel.
    pub interpolation: Interpolation,
}

impl Found {
    /// A reader of one of the files of a sample of known geometry, as the file holds it, and the number of the sample there.
    pub(super) fn own_reader(
        &self,
        (inner, file): (&Inner, usize),
        sample: usize,
    ) -> Option<(Reader, usize)> {
        let found = &self.samples[sample];
        let geometry = found.geometry.as_ref()?;
        let [d, h, w] = geometry.read.dims();
        let labels = inner.labels.map(|extent| geometry.label_extent(extent));
        let shape = [inner.shape[0], d, h, w];
        let one = inner.of_one(found.entry(file), shape, labels);
        let reader = Reader::new(Arc::new(one), Split::Train);
        Some((reader, found.place.unwrap_or(0)))
    }

    /// Reads a volume, on the voxels of its file. Gives the shape of what was read.
    pub(super) fn read_volume(
        &self,
        (inner, file): (&Inner, usize),
        reader: &mut Reader,
        sample: usize,
        out: &mut Samples,
    ) -> Result<VolumeShape, DataError> {
        let mut shape = inner.shape_of(&self.samples[sample].entry);
        let (Some(geometry), Some((mut own, place))) = (
            &self.samples[sample].geometry,
            self.own_reader((inner, file), sample),
        ) else {
            reader.read_volume(sample, shape.map(|extent| 0..extent), out)?;
            return Ok(shape);
        };
        shape[1..].copy_from_slice(&geometry.read.dims());
        own.read_volume(place, shape.map(|extent| 0..extent), out)?;
        Ok(shape)
    }

    /// Brings a volume that was read to the voxels that are stored.
    pub(super) fn store_volume(&self, sample: usize, volume: &mut Samples) {
        if let Some(geometry) = &self.samples[sample].geometry {
            let Geometry { read, stored, .. } = geometry;
            if let Some(alignment) = stored.on(read) {
                resample_samples(volume, [read, stored], &alignment, geometry.interpolation);
            }
        }
    }

    /// Reads stored class numbers, on the voxels of their file. Gives the extents of what was read.
    pub(super) fn read_labels(
        &self,
        inner: &Inner,
        reader: &mut Reader,
        sample: usize,
        out: &mut Samples,
    ) -> Result<[usize; 3], DataError> {
        let entry = &self.samples[sample].entry;
        let extent = inner.labels_of(entry).unwrap_or([1; 3]);
        let (Some(geometry), Some((mut own, place))) = (
            &self.samples[sample].geometry,
            self.own_reader((inner, 0), sample),
        ) else {
            let [d, h, w] = extent;
            reader.read_labels_as_stored(sample, [0..1, 0..d, 0..h, 0..w], out)?;
            return Ok(extent);
        };
        let [d, h, w] = geometry.label_extent(extent);
        own.read_labels_as_stored(place, [0..1, 0..d, 0..h, 0..w], out)?;
        Ok([d, h, w])
    }

    /// Brings class indices that were read, one per position, to the voxels that are stored.
    pub(super) fn store_labels(&self, sample: usize, labels: &mut Samples) {
        let Some(geometry) = &self.samples[sample].geometry else {
            return;
        };
        let nearest = Interpolation::Nearest;
        let Geometry { read, stored, .. } = geometry;
        if let Some(alignment) = read.on(&geometry.labels) {
            resample_samples(labels, [&geometry.labels, read], &alignment, nearest);
        }
        if let Some(alignment) = stored.on(read) {
            resample_samples(labels, [read, stored], &alignment, nearest);
        }
    }

    /// Says in the index on which voxels samples are stored, and on which their images were.
    pub(super) fn note_geometry(
        &self,
        asked: &GeometrySpec,
        splits: &[Vec<usize>; 3],
        made: &mut toml::Table,
    ) {
        let geometries = || self.samples.iter().map(|sample| sample.geometry.as_ref());
        if geometries().all(|geometry| geometry.is_none()) {
            return;
        }
        made.insert(ORIENTATION.to_owned(), asked.orientation.name().into());
        if let Some(spacing) = asked.spacing {
            let spacing = spacing.map(toml::Value::Float).to_vec();
            made.insert(SPACING.to_owned(), spacing.into());
            made.insert(INTERPOLATION.to_owned(), asked.interpolation.name().into());
        }
        let table = |value: &dyn Fn(&Geometry) -> toml::Value| {
            let of_split = |split: Split| {
                let samples = splits[split as usize].iter();
                let values = samples.map(|&sample| match &self.samples[sample].geometry {
                    Some(geometry) => value(geometry),
                    None => toml::Value::Array(Vec::new()),
                });
                (split.name().to_owned(), values.collect::<Vec<_>>().into())
            };
            toml::Table::from_iter(Split::ALL.map(of_split))
        };
        let affines = table(&|geometry| geometry.stored.affine.to_toml());
        made.insert(AFFINES.to_owned(), affines.into());
        if geometries()
            .flatten()
            .any(|geometry| geometry.stored != geometry.file)
        {
            let originals = table(&|geometry| geometry.file.to_toml());
            made.insert(ORIGINALS.to_owned(), originals.into());
        }
    }
}

/// Finds on which voxels images and labels lie, and on which samples are stored; gives what the user should know.
///
/// Errors: labels on other voxels than their image, spacing of files that state none.
pub(super) fn find(
    asked: &GeometrySpec,
    targets: Option<&Path>,
    found: &mut Found,
) -> Result<Vec<String>, DataError> {
    let order = found.keys.order.clone().unwrap_or_default();
    let axes = file_axes(&order);
    let mut notes = Notes::default();
    let mut of_file = None;
    for sample in &mut found.samples {
        if sample.place.is_some_and(|place| place > 0) {
            sample.geometry = of_file;
            continue;
        }
        let path = &sample.entry.volumes;
        let labels = sample.entry.targets.as_deref().or(targets);
        let grids = grids(&sample.entry, labels, &mut notes)?;
        if let Some([image, _]) = grids {
            check_channels(path, &sample.more, image)?;
        }
        sample.geometry = match (grids, axes) {
            (Some(grids), Some(axes)) => Some(geometry(asked, grids, axes, path)?),
            (Some(grids), None) => {
                let reason = format!(
                    "`--layout {order}`, which takes an axis of space as samples or channels, reads both as they lie"
                );
                let files = [path, labels.unwrap_or(path)];
                check_as_it_lies(files, grids, (ITS_IMAGE, &reason))?;
                notes.add_unused(&order, path);
                None
            }
            (None, _) => None,
        };
        match &sample.geometry {
            Some(geometry) => notes.add(&geometry.file, &geometry.stored),
            None if asked.spacing.is_some() => return Err(no_spacing(path)),
            None => {}
        }
        of_file = sample.geometry;
    }
    set_extents(found);
    Ok(notes.lines(asked))
}

/// Grids of an image and its labels, which are those of the image if they have no positions; `None` for an image that
/// has none.
fn grids(
    entry: &FileEntry,
    labels: Option<&Path>,
    notes: &mut Notes,
) -> Result<Option<[Grid; 2]>, DataError> {
    let image = &entry.volumes;
    let grid_of = |voxels: &nifti::Voxels| Grid::new(voxels.extent, voxels.affine?);
    let Some(voxels) = nifti::voxels(image) else {
        return Ok(None);
    };
    let grid = grid_of(&voxels);
    if grid.is_none() {
        notes.add_nowhere(image);
    }
    let labels = labels.and_then(|path| Some((path, nifti::voxels(path)?)));
    // One class of a whole sample lies nowhere.
    let labels = labels.filter(|(_, voxels)| voxels.extent != [1; 3]);
    let alike = grid.map(|grid| [grid, grid]);
    let Some((path, voxels)) = labels else {
        return Ok(alike);
    };
    let (grid, own) = match (grid, grid_of(&voxels)) {
        (None, None) => return Ok(None),
        (Some(grid), Some(own)) => (grid, own),
        (Some(_), None) | (None, Some(_)) => {
            notes.add_half_known(path);
            return Ok(alike);
        }
    };
    let Some(alignment) = grid.is_same_voxels(&own) else {
        return Err(DataError::OtherGrid {
            file: path.to_path_buf(),
            of: ITS_IMAGE,
            image: image.clone(),
            found: own.differences(&grid).join("; "),
        });
    };
    if !alignment.is_identity() {
        notes.add_turned_labels(path);
    }
    Ok(Some([grid, own]))
}

/// The axes of a file (x is 0, y 1, z 2) that are W, H and D; `None` where one of them is no dim of space.
fn file_axes(order: &DimOrder) -> Option<[usize; 3]> {
    let text = order.to_string();
    let spatial = ['W', 'H', 'D'];
    let mut letters: Vec<char> = text.chars().rev().take(3).collect();
    if letters.iter().any(|letter| !spatial.contains(letter)) {
        return None;
    }
    letters.extend(spatial.iter().filter(|letter| !text.contains(**letter)));
    let axis = |letter: char| letters.iter().position(|&other| other == letter);
    Some([axis('W')?, axis('H')?, axis('D')?])
}

fn geometry(
    asked: &GeometrySpec,
    [file, labels]: [Grid; 2],
    axes: [usize; 3],
    path: &Path,
) -> Result<Geometry, DataError> {
    let oriented = match asked.orientation {
        VoxelOrientation::Canonical => file.canonical(),
        VoxelOrientation::Image => file,
    };
    let mut stored = oriented.permuted(axes);
    if let Some([d, h, w]) = asked.spacing {
        stored = stored.resampled([w, h, d]);
        let largest = stored.extent.into_iter().fold(0, usize::max);
        if largest > EXTENT_MAX {
            return Err(DataError::BadValue {
                what: "spacing",
                got: format!(
                    "{d}x{h}x{w} mm, {largest} voxels along a dim of {}",
                    path.display()
                ),
                expected: format!("a spacing with at most {EXTENT_MAX} voxels along each dim"),
            });
        }
    }
    Ok(Geometry {
        read: file.permuted(axes),
        labels: labels.permuted(axes),
        stored,
        file,
        interpolation: asked.interpolation,
    })
}

/// Checks labels and image that are read without a conversion, as far as their files state positions.
///
/// Errors: `OtherGrid`.
pub fn check_unconverted(image: &Path, labels: &Path) -> Result<(), DataError> {
    let grid = |path: &Path| {
        let voxels = nifti::voxels(path)?;
        Grid::new(voxels.extent, voxels.affine?)
    };
    let (Some(file), Some(own)) = (grid(image), grid(labels)) else {
        return Ok(());
    };
    let reason = "the index has both read as they lie; `partita data convert` reorients labels";
    check_as_it_lies([image, labels], [file, own], (ITS_IMAGE, reason))
}

/// Further files of a sample hold channels on the voxels of its first one.
///
/// Errors: `OtherGrid`.
fn check_channels(first: &Path, more: &[PathBuf], grid: Grid) -> Result<(), DataError> {
    for path in more {
        let own = nifti::voxels(path).and_then(|voxels| Grid::new(voxels.extent, voxels.affine?));
        if let Some(own) = own {
            let reason = "channels of a sample are stored as they lie";
            let of = "the first channel of its case,";
            check_as_it_lies([first, path], [grid, own], (of, reason))?;
        }
    }
    Ok(())
}

/// Labels that are read as they lie must lie as their image does, and channels as the first one, which `of` names;
/// `reason` says why they are.
fn check_as_it_lies(
    [image, labels]: [&Path; 2],
    [file, own]: [Grid; 2],
    (of, reason): (&'static str, &str),
) -> Result<(), DataError> {
    let found = match file.is_same_voxels(&own) {
        Some(alignment) if alignment.is_identity() => return Ok(()),
        Some(_) => {
            let (own, other) = (own.orientation(), file.orientation());
            format!("orientation {own}, not {other}, and {reason}")
        }
        None => own.differences(&file).join("; "),
    };
    Err(DataError::OtherGrid {
        file: labels.to_path_buf(),
        of,
        image: image.to_path_buf(),
        found,
    })
}

fn no_spacing(path: &Path) -> DataError {
    DataError::BadValue {
        what: "spacing",
        got: format!("{}, which states no positions of voxels along D, H and W", path.display()),
        expected: "NIfTI files with a sform or a qform, whose axes are D, H and W; leave `--spacing` out otherwise"
            .to_owned(),
    }
}

/// Extents of samples are those in which they are stored.
fn set_extents(found: &mut Found) {
    let [_, of_files @ ..] = found.shape;
    for sample in &mut found.samples {
        let stored = sample
            .geometry
            .as_ref()
            .map(|geometry| geometry.stored.dims());
        sample.entry.extent = stored.or(sample.entry.extent).or(Some(of_files));
    }
    let largest = largest_extent(&mut found.samples);
    found.shape[1..].copy_from_slice(&largest);
}
