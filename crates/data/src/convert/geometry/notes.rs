//! What the user should know of the geometry of images and labels.

use std::collections::BTreeMap;
use std::path::Path;

use partita_formats::DimOrder;

use super::{GeometrySpec, VoxelOrientation};
use crate::grid::{Grid, short};

/// Spacings whose ratio is larger differ.
const MIXED_RATIO: f64 = 1.01;

/// What was found in the files.
#[derive(Default)]
pub(super) struct Notes {
    /// Images by the orientation of their files.
    orientations: BTreeMap<String, usize>,
    /// Spacing of each sample as it is stored, along D, H and W.
    spacings: Vec<[f64; 3]>,
    nowhere: FileCount,
    half_known: FileCount,
    turned_labels: FileCount,
    unused: FileCount,
    layout: String,
}

/// Number of files, and the first of them.
#[derive(Default)]
struct FileCount {
    count: usize,
    first: String,
}

impl FileCount {
    fn add(&mut self, path: &Path) {
        if self.count == 0 {
            self.first = path.display().to_string();
        }
        self.count += 1;
    }

    /// A line, if there are any.
    fn line(&self, says: &str) -> Option<String> {
        let Self { count, first } = self;
        (*count > 0).then(|| format!("{count} {says} (first {first})"))
    }
}

impl Notes {
    /// An image, and the sample as it is stored.
    pub(super) fn add(&mut self, file: &Grid, stored: &Grid) {
        *self.orientations.entry(file.orientation()).or_default() += 1;
        let [w, h, d] = stored.spacing();
        self.spacings.push([d, h, w]);
    }

    /// An image without positions.
    pub(super) fn add_nowhere(&mut self, image: &Path) {
        self.nowhere.add(image);
    }

    /// Labels of an image, of which only one has positions.
    pub(super) fn add_half_known(&mut self, labels: &Path) {
        self.half_known.add(labels);
    }

    /// Labels in another orientation than their image.
    pub(super) fn add_turned_labels(&mut self, labels: &Path) {
        self.turned_labels.add(labels);
    }

    /// An image whose positions are those of other axes than D, H and W.
    pub(super) fn add_unused(&mut self, order: &DimOrder, image: &Path) {
        self.layout = order.to_string();
        self.unused.add(image);
    }

    /// The lines.
    pub(super) fn lines(&self, asked: &GeometrySpec) -> Vec<String> {
        let unused = format!(
            "images are stored as they lie, without positions: `--layout {}` takes an axis of space as samples or \
             channels",
            self.layout
        );
        let lines = [
            self.orientation_line(asked.orientation),
            self.turned_labels.line(
                "files of labels lie in another orientation than their images, and are reoriented to these",
            ),
            self.nowhere.line(
                "images state no positions of voxels (sform or qform), and are stored as they lie",
            ),
            self.half_known.line(
                "files of labels and their images, of which only one states positions of voxels (sform or qform), are \
                 taken as lying alike",
            ),
            self.unused.line(&unused),
            self.spacing_line(asked.spacing.is_some()),
        ];
        lines.into_iter().flatten().collect()
    }

    fn orientation_line(&self, asked: VoxelOrientation) -> Option<String> {
        let each = self.orientations.iter();
        let each = each.map(|(orientation, count)| format!("{count} in {orientation}"));
        let each = each.collect::<Vec<_>>().join(", ");
        match asked {
            VoxelOrientation::Canonical => {
                let is_turned = self.orientations.keys().any(|found| found != "RAS");
                is_turned.then(|| {
                    format!(
                        "orientation: images ({each}) are stored in RAS (x to the right, y to anterior, z to superior); \
                         `infer` writes NIfTI in that of each image; `--orientation image` keeps it here, too"
                    )
                })
            }
            VoxelOrientation::Image => (self.orientations.len() > 1).then(|| {
                format!(
                    "orientation: images differ ({each}) and are stored as each lies, so that one axis of samples has \
                     several directions; `--orientation canonical` stores all in RAS"
                )
            }),
        }
    }

    /// Spacings that differ, with the median as a remedy.
    fn spacing_line(&self, is_resampled: bool) -> Option<String> {
        if is_resampled || self.spacings.is_empty() {
            return None;
        }
        let sorted = [0, 1, 2].map(|dim| {
            let mut each: Vec<f64> = self.spacings.iter().map(|spacing| spacing[dim]).collect();
            each.sort_by(f64::total_cmp);
            each
        });
        let ends = sorted
            .each_ref()
            .map(|each| (each[0], each[each.len() - 1]));
        if ends.iter().all(|(least, most)| most / least <= MIXED_RATIO) {
            return None;
        }
        let ranges = [0, 1, 2].map(|dim| {
            let (least, most) = ends[dim];
            format!(
                "{} {} to {}",
                ["D", "H", "W"][dim],
                short(least),
                short(most)
            )
        });
        let median = sorted.map(|each| {
            let middle = each[each.len() / 2];
            let scale = 10_f64.powf(2.0 - middle.log10().floor());
            short((middle * scale).round() / scale)
        });
        Some(format!(
            "spacing: that of images differs ({} mm), and a network sees voxels alone; `--spacing {}` (D, H, W in mm, the \
             median) resamples all to one",
            ranges.join(", "),
            median.join("x")
        ))
    }
}
