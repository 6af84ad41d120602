use super::making::{Making, integer};
use crate::args::{SegmentationArgs, ShapesArgs};
use crate::error::CliError;
use partita_data::{DType, DatasetSpec, Kind, Layout, Samples};
use partita_synth::{
    CLASSES, Picture, SegmentationSpec, SegmentedVolume, ShapesSpec, class_names, make_picture,
    make_segmented,
};
use std::io::Write;

/// Makes a dataset of volumes with a class at each voxel.
pub fn make_segmentation(args: &SegmentationArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let spec = SegmentationSpec {
        grid: args.grid,
        seed: args.making.seed,
    };
    spec.validate().map_err(|error| CliError::user(&error))?;
    let making = Making::new(&args.making, "volumes", args.volumes)?;
    let [train, validation, test] = making.splits();
    let extent = [spec.grid; 3];
    let mut asked = making.asked("segmentation");
    asked.insert("grid".to_owned(), integer(spec.grid as u64));
    let dataset = DatasetSpec {
        kind: Kind::Segmentation,
        shape: [1, extent[0], extent[1], extent[2]],
        dtype: DType::Int16,
        targets: CLASSES.map(str::to_owned).to_vec(),
        labels: Some(extent),
        layout: Layout::Contiguous,
        train,
        validation,
        test,
        spec: asked,
    };
    making.make(
        &dataset,
        move |volume| make_segmented(&spec, volume),
        |writer, split, volume: SegmentedVolume| {
            let (values, labels) = (Samples::I16(volume.values), Samples::I16(volume.labels));
            writer.append_labeled(split, &values, &labels)
        },
        out,
    )
}

/// Makes a dataset of images with one class each.
pub fn make_shapes(args: &ShapesArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let spec = ShapesSpec {
        size: args.size,
        classes: args.classes,
        seed: args.making.seed,
    };
    spec.validate().map_err(|error| CliError::user(&error))?;
    let making = Making::new(&args.making, "images", args.images)?;
    let [train, validation, test] = making.splits();
    let mut asked = making.asked("shapes");
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
    making.make(
        &dataset,
        move |image| make_picture(&spec, image),
        |writer, split, picture: Picture| {
            let (values, class) = (
                Samples::I16(picture.values),
                Samples::I16(vec![picture.class]),
            );
            writer.append_labeled(split, &values, &class)
        },
        out,
    )
}
