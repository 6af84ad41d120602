//! A picture of a dataset: middle slices of some samples, a tile per channel, and their classes in colors.

use std::path::Path;

use partita_formats::slab::Region4;
use partita_formats::{
    DType, DataError, DimOrder, ReadError, Samples, SourceArray, SourceFile, VolumeShape,
};

use crate::dataset::Dataset;
use crate::opened::SampleArray;
use crate::reader::read_region;
use crate::split::Split;

/// Samples that are shown.
const SAMPLES: usize = 4;
/// Channels that are shown.
const CHANNELS: usize = 8;
/// Smaller tiles are enlarged to about this size, larger ones reduced to it. Units: pixels.
const TILE: usize = 192;
/// Pixels between tiles.
const GAP: usize = 4;
/// Least height of a tile, so that a sequence is a strip.
const STRIP: usize = 16;
/// Share of the values of a tile that may be darker than black, and brighter than white.
const CLIPPED: f64 = 0.01;

const BACKGROUND: [u8; 3] = [48, 48, 48];
/// Where values are not finite.
const FAULT: [u8; 3] = [255, 0, 255];

/// Draws what is at `path`, a dataset or a file of arrays, as a PNG image.
///
/// Each row is a sample: of each of the first eight channels the middle slice along D, black being its 1st percentile
/// and white its 99th; then its classes, where it has some, each in a color. Values that are not finite are magenta.
///
/// Errors: nothing at `path` that can be drawn; those of reading.
pub fn picture(path: impl AsRef<Path>) -> Result<Vec<u8>, DataError> {
    let path = path.as_ref();
    let rows = match crate::inspect::open(path) {
        Ok(dataset) => rows_of(&dataset)?,
        Err(refused) => {
            if !path.is_file() && !partita_formats::is_store(path) {
                return Err(refused);
            }
            match SourceFile::open(path) {
                Ok(file) => rows_of_file(path, &file)?,
                Err(_) => return Err(refused),
            }
        }
    };
    compose(&rows)
        .encoded()
        .map_err(|error| unreadable(path, error.to_string()))
}

/// There is nothing to draw.
fn unreadable(path: &Path, reason: String) -> DataError {
    ReadError::Unsupported(reason).of(path, None, None)
}

/// Samples of the first split that has some.
fn rows_of(dataset: &Dataset) -> Result<Vec<Vec<Image>>, DataError> {
    let mut samples = Split::ALL
        .map(|split| (split, dataset.samples(split)))
        .into_iter();
    let Some((split, count)) = samples.find(|&(_, count)| count > 0) else {
        return Err(unreadable(dataset.path(), "it has no samples".to_owned()));
    };
    let mut reader = dataset.reader(split);
    let (mut values, mut labels) = (Samples::new(dataset.dtype()), Samples::new(DType::Int16));
    let mut rows = Vec::new();
    for sample in evenly(count) {
        let shape = dataset.shape_of(split, sample);
        reader.read_volume(sample, middle(shape), &mut values)?;
        let mut tiles = gray_tiles(&values, shape);
        if let Some([d, h, w]) = dataset.labels_of(split, sample) {
            reader.read_labels_as_stored(sample, middle([1, d, h, w]), &mut labels)?;
            tiles.push(colored(&labels, [h, w], shape));
        }
        rows.push(tiles);
    }
    Ok(rows)
}

/// Samples of the first array that can be drawn: of 5 dims (N, C, D, H, W), of fewer without the first of these, of
/// an image (H, W, C).
fn rows_of_file(path: &Path, file: &SourceFile) -> Result<Vec<Vec<Image>>, DataError> {
    let is_image = partita_formats::is_image(path);
    for key in file.keys() {
        let array = file.array(key)?;
        if let Some((order, samples, shape)) = layout(&array, is_image) {
            let dtype = array.delivered()?;
            let stored = SampleArray::check(array, &order, samples, shape)?;
            let mut values = Samples::new(dtype);
            let mut rows = Vec::new();
            for sample in evenly(samples.unwrap_or(1)) {
                let place = samples.map(|_| sample);
                let region = middle(shape);
                read_region(&stored, place, &region, dtype, &mut None, &mut values)?;
                rows.push(gray_tiles(&values, shape));
            }
            return Ok(rows);
        }
    }
    let reason = "it has no array of numbers with 1 to 5 dims, which could be drawn".to_owned();
    Err(unreadable(path, reason))
}

fn layout(array: &SourceArray, is_image: bool) -> Option<(DimOrder, Option<usize>, VolumeShape)> {
    array.check_element().ok()?;
    let order = match array.shape.len() {
        3 if is_image => "HWC",
        1 => "W",
        2 => "HW",
        3 => "DHW",
        4 => "CDHW",
        5 => "NCDHW",
        _ => return None,
    };
    let order: DimOrder = order.parse().ok()?;
    let (samples, shape) = order.read_shape(&array.shape)?;
    let is_empty = shape.contains(&0) || samples == Some(0);
    (!is_empty).then_some((order, samples, shape))
}

/// Samples from the first to the last.
fn evenly(count: usize) -> Vec<usize> {
    let shown = count.min(SAMPLES);
    (0..shown)
        .map(|at| at * (count - 1) / (shown - 1).max(1))
        .collect()
}

/// The middle slice along D of the first channels.
fn middle([c, d, h, w]: VolumeShape) -> Region4 {
    [0..c.min(CHANNELS), d / 2..d / 2 + 1, 0..h, 0..w]
}

/// Pixels, row by row.
#[derive(Clone)]
struct Image {
    height: usize,
    width: usize,
    pixels: Vec<[u8; 3]>,
}

impl Image {
    /// An image of a tile's size, each pixel from the nearest of the slice.
    fn tile([h, w]: [usize; 2], color: impl Fn(usize) -> [u8; 3]) -> Self {
        let [height, width] = tile_size([h, w]);
        let mut pixels = Vec::with_capacity(height * width);
        for y in 0..height {
            for x in 0..width {
                pixels.push(color(y * h / height * w + x * w / width));
            }
        }
        Self {
            height,
            width,
            pixels,
        }
    }

    fn encoded(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut out = Vec::new();
        // Both are bounded by the size of a tile and their number.
        let side = |extent: usize| u32::try_from(extent).expect("a picture of few tiles");
        let mut encoder = png::Encoder::new(&mut out, side(self.width), side(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        writer.finish()?;
        Ok(out)
    }
}

/// Small slices are enlarged by a whole factor; of large ones pixels are left out.
fn tile_size([h, w]: [usize; 2]) -> [usize; 2] {
    let longest = h.max(w);
    let scaled = |extent: usize| {
        if longest <= TILE {
            extent * (TILE / longest)
        } else {
            (extent * TILE / longest).max(1)
        }
    };
    [scaled(h).max(STRIP), scaled(w).max(STRIP)]
}

/// A tile per channel of a slice, brighter where values are larger.
fn gray_tiles(values: &Samples, [c, _, h, w]: VolumeShape) -> Vec<Image> {
    let mut floats = Vec::new();
    values.write_f32(&mut floats);
    debug_assert_eq!(floats.len(), c.min(CHANNELS) * h * w, "a slice");
    let tile = |slice: &[f32]| {
        let [black, white] = ends(slice);
        Image::tile([h, w], |at| {
            let value = slice[at];
            if !value.is_finite() {
                return FAULT;
            }
            let level = (f64::from(value) - black) / (white - black);
            [(level.clamp(0.0, 1.0) * 255.0).round() as u8; 3]
        })
    };
    floats.chunks_exact(h * w).map(tile).collect()
}

/// What is black and what is white; they differ.
fn ends(slice: &[f32]) -> [f64; 2] {
    let mut sorted: Vec<f32> = slice.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f32::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let clipped = (last as f64 * CLIPPED) as usize;
    let at = |index: usize| sorted.get(index).copied().map_or(0.0, f64::from);
    let [mut low, mut high] = [at(clipped), at(last - clipped)];
    if low >= high {
        [low, high] = [at(0), at(last)];
    }
    if low >= high {
        [low, low + 1.0]
    } else {
        [low, high]
    }
}

/// The classes of a slice, or the one class of a sample as a tile of the size of its slice.
fn colored(labels: &Samples, [h, w]: [usize; 2], [_, _, height, width]: VolumeShape) -> Image {
    let mut classes = Vec::new();
    labels.write_f32(&mut classes);
    if [h, w] == [height, width] {
        return Image::tile([h, w], |at| color(classes[at]));
    }
    let first = classes.first().map_or(FAULT, |&class| color(class));
    Image::tile([height, width], |_| first)
}

/// Class 0 is black, others are bright, each far from those before it; what is no class is magenta.
fn color(class: f32) -> [u8; 3] {
    /// Of a turn of the color circle, so that the colors of any number of classes lie apart.
    const GOLDEN: f64 = 0.618_033_988_749_895;
    if class < 0.0 {
        return FAULT;
    }
    if class == 0.0 {
        return [0; 3];
    }
    let hue = (f64::from(class - 1.0) * GOLDEN).fract() * 6.0;
    let part = |offset: f64| {
        let distance = ((hue + offset).rem_euclid(6.0) - 3.0).abs();
        ((distance - 1.0).clamp(0.0, 1.0) * 205.0 + 50.0) as u8
    };
    [part(0.0), part(4.0), part(2.0)]
}

/// The rows under one another.
fn compose(rows: &[Vec<Image>]) -> Image {
    let widths = rows
        .iter()
        .map(|row| row.iter().map(|tile| tile.width + GAP).sum::<usize>());
    let heights = rows
        .iter()
        .map(|row| row.iter().map(|tile| tile.height).max().unwrap_or(0) + GAP);
    let heights: Vec<usize> = heights.collect();
    let width = widths.max().unwrap_or(0) + GAP;
    let height = heights.iter().sum::<usize>() + GAP;
    let mut pixels = vec![BACKGROUND; width * height];
    let mut top = GAP;
    for (row, height) in rows.iter().zip(heights) {
        let mut left = GAP;
        for tile in row {
            for (y, line) in tile.pixels.chunks_exact(tile.width).enumerate() {
                let at = (top + y) * width + left;
                pixels[at..at + tile.width].copy_from_slice(line);
            }
            left += tile.width + GAP;
        }
        top += height;
    }
    Image {
        height,
        width,
        pixels,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn tiles_have_a_size_that_can_be_seen() {
        assert_eq!(tile_size([16, 16]), [192, 192]);
        assert_eq!(tile_size([100, 50]), [100, 50]);
        assert_eq!(tile_size([400, 800]), [96, 192]);
        assert_eq!(tile_size([1, 64]), [16, 192]);
    }

    #[test]
    fn values_that_are_not_finite_stand_out_and_outliers_do_not_darken_the_rest() {
        let mut values: Vec<f32> = (0..200).map(|at| at as f32).collect();
        values[3] = f32::NAN;
        values[199] = 1e9;
        let [black, white] = ends(&values);
        assert!(
            black < 5.0 && (190.0..200.0).contains(&white),
            "{black} {white}"
        );
        let tiles = gray_tiles(&Samples::F32(values), [1, 1, 10, 20]);
        let [height, width] = tile_size([10, 20]);
        assert_eq!((tiles[0].height, tiles[0].width), (height, width));
        assert_eq!(tiles[0].pixels[3 * width / 20], FAULT);
        assert_eq!(*tiles[0].pixels.last().unwrap(), [255; 3]);
        assert_eq!(ends(&[2.0, 2.0]), [2.0, 3.0]);
        assert_eq!(ends(&[f32::NAN]), [0.0, 1.0]);
    }

    #[test]
    fn classes_have_colors_of_their_own() {
        let colors: std::collections::BTreeSet<_> =
            (0..20).map(|class| color(class as f32)).collect();
        assert_eq!(colors.len(), 20);
        assert_eq!(color(-1.0), FAULT);
    }
}
