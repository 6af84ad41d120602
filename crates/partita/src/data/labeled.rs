//! Datasets of labeled volumes and images.

use super::error::DatasetError;
use super::maker::{DatasetMaker, MakeRequest, integer};
use partita_data::{DatasetSpec, DatasetSummary, Kind};
use partita_formats::{DType, Layout, Samples};
use partita_site::Context;
use partita_synth::{
    CLASSES, FRACTAL_CHANNELS, FractalVolume, Fractals, Picture, SegmentationSpec, SegmentedVolume,
    ShapesSpec, class_names, fractal_classes, make_picture, make_segmented,
};

/// A dataset of volumes of an organ with lesions, with a class at each voxel.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentationRequest {
    /// Folder, seed and splits.
    pub make: MakeRequest,
    /// Number of volumes over all splits.
    pub volumes: usize,
    /// Voxels per side, 8 to 1024.
    pub grid: usize,
}

/// A dataset of volumes of fractals, with a class at each voxel.
#[derive(Clone, Debug, PartialEq)]
pub struct FractalsRequest {
    /// Folder, seed and splits.
    pub make: MakeRequest,
    /// Number of volumes over all splits.
    pub volumes: usize,
    /// Voxels per side as a power of two, 3 to 11.
    pub scale: usize,
}

/// A dataset of images of simple shapes, with one class each.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapesRequest {
    /// Folder, seed and splits.
    pub make: MakeRequest,
    /// Number of images over all splits.
    pub images: usize,
    /// Pixels per side, 16 to 4096.
    pub size: usize,
    /// Number of classes, 2 to 1000: ten shapes, then textures of the figure, then of the background.
    pub classes: usize,
}

/// Makes a dataset of volumes with a class at each voxel, and summarizes it.
///
/// Errors: as [`make_cosmology`](super::make_cosmology).
pub fn make_segmentation(
    context: &Context,
    request: &SegmentationRequest,
) -> Result<DatasetSummary, DatasetError> {
    let spec = SegmentationSpec {
        grid: request.grid,
        seed: request.make.seed,
    };
    spec.validate().map_err(DatasetError::Spec)?;
    let maker = DatasetMaker::new(&request.make, "volumes", request.volumes)?;
    let dataset = volumes(
        &maker,
        ("segmentation", "grid", spec.grid as u64),
        (1, spec.grid),
        CLASSES.map(str::to_owned).to_vec(),
    );
    maker.make(
        context,
        &dataset,
        move |volume| make_segmented(&spec, volume),
        |writer, split, volume: SegmentedVolume| {
            let (values, labels) = (Samples::I16(volume.values), Samples::I16(volume.labels));
            writer.append_labeled(split, &values, &labels)
        },
    )
}

/// A dataset of cubes with a class at each voxel; a maker's name and its setting are kept.
fn volumes(
    maker: &DatasetMaker,
    (name, setting, value): (&str, &str, u64),
    (channels, grid): (usize, usize),
    classes: Vec<String>,
) -> DatasetSpec {
    let [train, validation, test] = maker.splits();
    let mut asked = maker.asked(name);
    asked.insert(setting.to_owned(), integer(value));
    DatasetSpec {
        kind: Kind::Segmentation,
        shape: [channels, grid, grid, grid],
        dtype: DType::Int16,
        targets: classes,
        labels: Some([grid; 3]),
        layout: Layout::Contiguous,
        train,
        validation,
        test,
        spec: asked,
    }
}

/// Most bytes of the planes of a volume of fractals that are written at once, unless those of one plane are more.
const PLANES_BYTES: usize = 16 << 20;

/// Makes a dataset of volumes of fractals with a class at each voxel, and summarizes it. Volumes are written plane by plane.
///
/// Errors: as [`make_cosmology`](super::make_cosmology).
pub fn make_fractals(
    context: &Context,
    request: &FractalsRequest,
) -> Result<DatasetSummary, DatasetError> {
    let made = Fractals::new(request.scale, request.make.seed).map_err(DatasetError::Spec)?;
    let maker = DatasetMaker::new(&request.make, "volumes", request.volumes)?;
    let grid = made.grid();
    let dataset = volumes(
        &maker,
        ("fractals", "scale", request.scale as u64),
        (FRACTAL_CHANNELS, grid),
        fractal_classes(),
    );
    let plane = (FRACTAL_CHANNELS + 1) * grid * grid * DType::Int16.size_bytes();
    let at_once = (PLANES_BYTES / plane).max(1);
    maker.make(
        context,
        &dataset,
        move |volume| Ok(made.volume(volume)),
        |writer, split, volume: FractalVolume| {
            writer.append_labeled_planes(split, at_once, |planes| {
                let (values, labels) = volume.planes(planes);
                (Samples::I16(values), Samples::I16(labels))
            })
        },
    )
}

/// Makes a dataset of images with one class each, and summarizes it.
///
/// Errors: as [`make_cosmology`](super::make_cosmology).
pub fn make_shapes(
    context: &Context,
    request: &ShapesRequest,
) -> Result<DatasetSummary, DatasetError> {
    let spec = ShapesSpec {
        size: request.size,
        classes: request.classes,
        seed: request.make.seed,
    };
    spec.validate().map_err(DatasetError::Spec)?;
    let maker = DatasetMaker::new(&request.make, "images", request.images)?;
    let [train, validation, test] = maker.splits();
    let mut asked = maker.asked("shapes");
    asked.insert("size".to_owned(), integer(spec.size as u64));
    asked.insert("classes".to_owned(), integer(spec.classes as u64));
    let dataset = DatasetSpec {
        kind: Kind::Shapes,
        shape: [3, 1, spec.size, spec.size],
        dtype: DType::Int16,
        targets: class_names(spec.classes),
        labels: Some([1; 3]),
        layout: Layout::Contiguous,
        train,
        validation,
        test,
        spec: asked,
    };
    maker.make(
        context,
        &dataset,
        move |image| make_picture(&spec, image),
        |writer, split, picture: Picture| {
            let (values, class) = (
                Samples::I16(picture.values),
                Samples::I16(vec![picture.class]),
            );
            writer.append_labeled(split, &values, &class)
        },
    )
}
