//! Resampling of volumes: values on the voxels of one grid from those on another, axis by axis.

use partita_formats::{Samples, gather};

use crate::grid::{Alignment, Grid};

/// How a value between voxels is computed. Beyond the outermost voxels it is that of the outermost ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The value of the nearest voxel, of two the one before.
    Nearest,
    /// Linear between the two voxels around.
    #[default]
    Linear,
    /// Cubic through the four voxels around, without smoothing.
    ///
    /// Source: Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 15 (a = -1/2).
    Cubic,
}

impl Interpolation {
    /// Its word on the command line and in the index.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Linear => "linear",
            Self::Cubic => "cubic",
        }
    }
}

/// The values of C volumes on `to`, which lie on `from` as `alignment` says.
///
/// Shapes: `values` are (C, D, H, W) with the extents of `from` as W, H and D; so is the answer with those of `to`.
/// Where the voxels are the same, in another order, so are the values, bit by bit.
pub(crate) fn resample(
    values: Vec<f32>,
    [from, to]: [&Grid; 2],
    alignment: &Alignment,
    interpolation: Interpolation,
) -> Vec<f32> {
    let channels = values.len() / from.extent.iter().product::<usize>();
    let mut values = values;
    // Of the values so far, along the axes of `from`.
    let mut extent = from.extent;
    for axis in 0..3 {
        let along = alignment.axes[axis];
        let taps: Vec<Taps> = (0..to.extent[axis])
            .map(|at| {
                let position = alignment.starts[axis] + at as f64 * alignment.steps[axis];
                Taps::at(position, from.extent[along], interpolation)
            })
            .collect();
        let is_same = taps.len() == extent[along]
            && taps
                .iter()
                .enumerate()
                .all(|(at, taps)| taps.is_copy_of(at));
        if !is_same {
            let inner = extent[..along].iter().product();
            values = sum_along(&values, (extent[along], inner), &taps);
            extent[along] = taps.len();
        }
    }
    if alignment.axes == [0, 1, 2] {
        return values;
    }
    let stride = |axis: usize| extent[..alignment.axes[axis]].iter().product();
    let [width, height, depth] = to.extent;
    gather(
        &values,
        [channels, depth, height, width],
        [width * height * depth, stride(2), stride(1), stride(0)],
    )
}

/// The same of samples; integers are rounded to the nearest, and to the range of their type.
pub(crate) fn resample_samples(
    samples: &mut Samples,
    grids: [&Grid; 2],
    alignment: &Alignment,
    interpolation: Interpolation,
) {
    match samples {
        Samples::F32(values) => {
            *values = resample(std::mem::take(values), grids, alignment, interpolation);
        }
        Samples::I16(values) => {
            let wide = values.iter().map(|&value| f32::from(value)).collect();
            let wide = resample(wide, grids, alignment, interpolation);
            values.clear();
            values.extend(wide.into_iter().map(|value| value.round() as i16));
        }
    }
}

/// Voxels that a value is a sum of, and their weights.
struct Taps {
    first: usize,
    weights: Vec<f64>,
}

impl Taps {
    /// The taps of a position among this many voxels.
    fn at(position: f64, voxels: usize, interpolation: Interpolation) -> Self {
        /// Rounding of a position that is a voxel's or lies in the middle of two.
        const ROUNDING: f64 = 1e-6;
        let last = voxels - 1;
        let position = position.clamp(0.0, last as f64);
        let copy = |first: usize| Self {
            first,
            weights: vec![1.0],
        };
        let nearest = (position - 0.5 - ROUNDING).ceil().max(0.0);
        if interpolation == Interpolation::Nearest || (position - nearest).abs() <= ROUNDING {
            return copy(nearest as usize);
        }
        let before = position.floor() as usize;
        let part = position - before as f64;
        if interpolation == Interpolation::Linear {
            return Self {
                first: before,
                weights: vec![1.0 - part, part],
            };
        }
        let first = before.saturating_sub(1);
        let mut weights = vec![0.0; (before + 2).min(last) - first + 1];
        for at in -1..=2_isize {
            let voxel = before.saturating_add_signed(at).min(last);
            weights[voxel - first] += keys(part - at as f64);
        }
        Self { first, weights }
    }

    fn is_copy_of(&self, voxel: usize) -> bool {
        self.first == voxel && self.weights.len() == 1
    }
}

/// The weight of a voxel at a distance.
fn keys(distance: f64) -> f64 {
    let x = distance.abs();
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    } else {
        0.0
    }
}

/// Sums along one dim of an array of this many elements, with `inner` elements for each of it.
fn sum_along(values: &[f32], (voxels, inner): (usize, usize), taps: &[Taps]) -> Vec<f32> {
    let outer = values.len() / (voxels * inner);
    let mut out = Vec::with_capacity(outer * taps.len() * inner);
    let mut sums = vec![0.0_f64; inner];
    for block in values.chunks_exact(voxels * inner) {
        for Taps { first, weights } in taps {
            let rows = block[first * inner..].chunks_exact(inner);
            if let [_] = weights.as_slice() {
                out.extend_from_slice(&block[first * inner..(first + 1) * inner]);
                continue;
            }
            sums.fill(0.0);
            for (row, weight) in rows.zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(row) {
                    *sum += weight * f64::from(value);
                }
            }
            out.extend(sums.iter().map(|&sum| sum as f32));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_formats::nifti::Affine;

    /// 7x6x5 voxels of 1x2x3 mm, the first at the origin; x runs to the left.
    fn grid() -> Grid {
        let rows = [
            [-1.0, 0.0, 0.0, 4.0],
            [0.0, 2.0, 0.0, -3.0],
            [0.0, 0.0, 3.0, 1.0],
        ];
        Grid::new([7, 6, 5], Affine(rows)).unwrap()
    }

    fn values(grid: &Grid, of: impl Fn([f64; 3]) -> f64) -> Vec<f32> {
        let [x, y, z] = grid.extent;
        let each = (0..x * y * z).map(|at| [at % x, at / x % y, at / x / y]);
        each.map(|at| of(grid.position(at.map(|at| at as f64))) as f32)
            .collect()
    }

    fn resampled(
        from: &Grid,
        to: &Grid,
        rule: Interpolation,
        of: impl Fn([f64; 3]) -> f64,
    ) -> Vec<f32> {
        let alignment = to.on(from).unwrap();
        resample(values(from, of), [from, to], &alignment, rule)
    }

    /// A field is computed exactly where it is as smooth as the rule supposes: linear, or quadratic for cubic, beyond
    /// the outermost voxels that of the nearest point between them.
    #[test]
    fn smooth_fields_are_reproduced_at_any_spacing_and_orientation() {
        let from = grid();
        let linear = |[x, y, z]: [f64; 3]| 2.0 * x - 3.0 * y + 0.5 * z + 7.0;
        let quadratic = |[x, y, z]: [f64; 3]| x * x - 0.5 * y * y + x * z + linear([x, y, z]);
        let clamped =
            |[x, y, z]: [f64; 3]| [x.clamp(-2.0, 4.0), y.clamp(-3.0, 7.0), z.clamp(1.0, 13.0)];
        let is_inner = |[x, y, z]: [f64; 3]| {
            (-1.0..=3.0).contains(&x) && (-1.0..=5.0).contains(&y) && (4.0..=10.0).contains(&z)
        };
        for spacing in [[1.0; 3], [0.7, 3.1, 1.3], [2.0, 2.0, 2.0], [5.0, 0.9, 40.0]] {
            for order in [[0, 1, 2], [2, 0, 1]] {
                let to = from.resampled(spacing).canonical().permuted(order);
                let found = resampled(&from, &to, Interpolation::Linear, linear);
                let exact = values(&to, |at| linear(clamped(at)));
                let inner = values(&to, |at| f64::from(u8::from(is_inner(at))));
                let cubic = resampled(&from, &to, Interpolation::Cubic, quadratic);
                let exact_cubic = values(&to, quadratic);
                for at in 0..exact.len() {
                    assert!(
                        (found[at] - exact[at]).abs() < 2e-5,
                        "{spacing:?} {order:?} {at}"
                    );
                    if inner[at] == 1.0 {
                        assert!(
                            (cubic[at] - exact_cubic[at]).abs() < 1e-4,
                            "{spacing:?} {at}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn other_orders_of_the_same_voxels_have_the_same_bits() {
        let from = grid();
        let odd = [f32::MIN_POSITIVE, -0.0, 1.0 / 3.0, 16_777_217.0, 1e30];
        let two: Vec<f32> = (0..420).map(|at| odd[at % 5] + at as f32).collect();
        let to = from.permuted([1, 2, 0]).canonical().permuted([2, 1, 0]);
        for rule in [
            Interpolation::Nearest,
            Interpolation::Linear,
            Interpolation::Cubic,
        ] {
            let there = resample(two.clone(), [&from, &to], &to.on(&from).unwrap(), rule);
            assert_ne!(there, two);
            let back = resample(there, [&to, &from], &from.on(&to).unwrap(), rule);
            let bits = |values: &[f32]| {
                values
                    .iter()
                    .map(|value| value.to_bits())
                    .collect::<Vec<_>>()
            };
            assert_eq!(bits(&back), bits(&two));
        }
    }

    #[test]
    fn labels_take_the_nearest_voxel_and_integers_are_rounded() {
        let from = Grid::new([4, 1, 1], grid().affine).unwrap();
        let to = from.resampled([0.5, 2.0, 3.0]);
        let along = |to: &Grid, rule, values: [i16; 4]| {
            let mut samples = Samples::I16(values.to_vec());
            resample_samples(&mut samples, [&from, to], &to.on(&from).unwrap(), rule);
            samples
        };
        let doubled = along(&to, Interpolation::Nearest, [3, -1, 255, 0]);
        assert_eq!(doubled, Samples::I16(vec![3, 3, -1, -1, 255, 255, 0, 0]));
        // In the middle of two the one before.
        let halved = from.resampled([2.0, 2.0, 3.0]);
        assert_eq!(
            along(&halved, Interpolation::Nearest, [3, -1, 255, 0]),
            Samples::I16(vec![3, 255])
        );
        let linear = along(&to, Interpolation::Linear, [0, 10, 20, 30]);
        assert_eq!(linear, Samples::I16(vec![0, 3, 8, 13, 18, 23, 28, 30]));
        // Cubic overshoots, and stays in the range of the type.
        let cubic = along(
            &to,
            Interpolation::Cubic,
            [i16::MIN, i16::MAX, i16::MAX, i16::MIN],
        );
        let Samples::I16(cubic) = cubic else {
            unreachable!()
        };
        assert_eq!(cubic[3..5], [i16::MAX; 2]);
    }
}
