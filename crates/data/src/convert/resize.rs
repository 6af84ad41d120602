//! Scaling of images to one size: the shorter side is scaled to it, the longer one cropped at its middle.

use partita_formats::image::Image;
use partita_formats::{DType, Samples};

/// A pixel that `int16` does not have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("its value {0} is too large for int16; `--dtype float32` holds it")]
pub(super) struct TooLarge(f64);

/// Bytes that [`fit`] takes, the image included.
pub(super) fn taken([channels, height, width]: [usize; 3], image: [usize; 3], dtype: DType) -> u64 {
    let product = |extents: &[usize]| extents.iter().map(|&extent| extent as u64).product::<u64>();
    // The image has up to two bytes a value, sums have eight.
    2 * product(&image)
        + 8 * product(&[image[0], width])
        + (8 + dtype.size_bytes() as u64) * product(&[channels, height, width])
}

/// The image as (C, 1, H, W) of this many channels: gray is repeated, transparency left out.
///
/// Errors: values that the type of the samples does not have.
pub(super) fn fit(
    image: &Image,
    channels: usize,
    [height, width]: [usize; 2],
    dtype: DType,
) -> Result<Samples, TooLarge> {
    let [from_height, from_width, stored] = image.shape;
    let is_gray = stored < 3;
    let mut out = Vec::with_capacity(channels * height * width);
    let is_same = [from_height, from_width] == [height, width];
    let scale = (from_height as f64 / height as f64).min(from_width as f64 / width as f64);
    let rows = Taps::along(from_height, height, scale);
    let columns = Taps::along(from_width, width, scale);
    for channel in 0..channels {
        let from = if is_gray { 0 } else { channel.min(stored - 1) };
        let value = |h: usize, w: usize| image.elements.get((h * from_width + w) * stored + from);
        if is_same {
            out.extend((0..height * width).map(|at| value(at / width, at % width)));
            continue;
        }
        // Columns first: `narrow` is (H of the image, W of the sample).
        let mut narrow = Vec::with_capacity(from_height * width);
        for h in 0..from_height {
            narrow.extend(columns.iter().map(|taps| taps.sum(|w| value(h, w))));
        }
        for taps in &rows {
            out.extend((0..width).map(|w| taps.sum(|h| narrow[h * width + w]).round()));
        }
    }
    match dtype {
        DType::Float32 => Ok(Samples::F32(
            out.into_iter().map(|value| value as f32).collect(),
        )),
        DType::Int16 => {
            let shorts: Vec<i16> = out.iter().map(|&value| value as i16).collect();
            let misfit = out
                .iter()
                .zip(&shorts)
                .find(|&(&value, &short)| f64::from(short) != value);
            match misfit {
                None => Ok(Samples::I16(shorts)),
                Some((&value, _)) => Err(TooLarge(value)),
            }
        }
    }
}

/// What an output pixel is a mean of: first pixel and weights, which sum to 1.
struct Taps {
    first: usize,
    weights: Vec<f64>,
}

impl Taps {
    /// The taps of all outputs along a side. A triangle as wide as the scale, so that no pixel is skipped.
    fn along(from: usize, to: usize, scale: f64) -> Vec<Self> {
        let margin = (from as f64 - to as f64 * scale) / 2.0;
        let reach = scale.max(1.0);
        let taps = |at: usize| {
            let middle = margin + (at as f64 + 0.5) * scale;
            let first = (middle - reach).floor().max(0.0) as usize;
            let end = ((middle + reach).ceil() as usize).min(from).max(first + 1);
            let weight =
                |pixel: usize| (1.0 - (pixel as f64 + 0.5 - middle).abs() / reach).max(0.0);
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            Taps {
                first,
                weights: weights.into_iter().map(|weight| weight / sum).collect(),
            }
        };
        (0..to).map(taps).collect()
    }

    fn sum(&self, value: impl Fn(usize) -> f64) -> f64 {
        let each = self.weights.iter().enumerate();
        each.map(|(at, weight)| weight * value(self.first + at))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_formats::Elements;

    #[test]
    fn images_are_scaled_and_cropped_at_the_middle() {
        // 2 x 6, gray: the middle 2 x 2 block of each value is kept by a crop to a square.
        let image = Image {
            shape: [2, 6, 1],
            elements: Elements::U8(vec![0, 0, 10, 30, 90, 90, 0, 0, 20, 40, 90, 90]),
        };
        let same = fit(&image, 3, [2, 2], DType::Int16);
        let one = [10, 30, 20, 40];
        assert_eq!(same, Ok(Samples::I16([one, one, one].concat())));
        let whole = fit(&image, 1, [2, 6], DType::Float32).expect("the same size");
        assert_eq!(whole.len(), 12);
        // A constant image stays constant at any size.
        let image = Image {
            shape: [5, 7, 3],
            elements: Elements::U8(vec![77; 105]),
        };
        for size in [[3, 3], [11, 4], [1, 1]] {
            let scaled = fit(&image, 3, size, DType::Int16);
            assert_eq!(
                scaled,
                Ok(Samples::I16(vec![77; 3 * size[0] * size[1]])),
                "{size:?}"
            );
        }
    }
}
