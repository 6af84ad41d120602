//! Elastic deformation: a smooth displacement of each position.
//!
//! The points of a regular grid get independent random displacements, and a uniform cubic B-spline lies between
//! them. Its weights are not negative and sum to 1, so no displacement exceeds those of the points.

use partita_program::random::Draws;

use super::Elastic;

/// Displacements of all positions of a sample.
pub(super) struct Field {
    spacing: usize,
    magnitude: f64,
    /// Points along D, H, W; one along a dim of extent 1, which nothing is displaced along.
    points: [usize; 3],
    /// Displacements (D, H, W) of each point.
    displacements: Vec<[f64; 3]>,
}

/// Points around a position that count, and their weights.
type Taps = [(usize, f64); 4];

impl Field {
    pub(super) fn new(elastic: Elastic, extent: [usize; 3], draws: Draws) -> Self {
        let Elastic { magnitude, spacing } = elastic;
        // One point before the sample, and two behind the last one inside.
        let points = extent.map(|extent| match extent {
            1 => 1,
            _ => (extent - 1) / spacing + 4,
        });
        let count = points.iter().product::<usize>() as u64;
        let displacements = (0..count).map(|point| {
            std::array::from_fn(|dim| match extent[dim] {
                1 => 0.0,
                _ => (2.0 * draws.unit(3 * point + dim as u64) - 1.0) * magnitude,
            })
        });
        Self {
            spacing,
            magnitude,
            points,
            displacements: displacements.collect(),
        }
    }

    /// Displacements along the row of positions `columns` at a depth and a height.
    pub(super) fn row(
        &self,
        (d, h): (usize, usize),
        columns: std::ops::Range<usize>,
        mut visit: impl FnMut(usize, [f64; 3]),
    ) {
        let [_, heights, widths] = self.points;
        let (depth_taps, height_taps) = (self.taps(0, d), self.taps(1, h));
        let mut points = vec![[0.0; 3]; widths];
        for (depth, depth_weight) in depth_taps {
            for (height, height_weight) in height_taps {
                let weight = depth_weight * height_weight;
                if weight == 0.0 {
                    continue;
                }
                let row = (depth * heights + height) * widths;
                let row = &self.displacements[row..row + widths];
                for (sum, displacement) in points.iter_mut().zip(row) {
                    for (sum, &displacement) in sum.iter_mut().zip(displacement) {
                        *sum += weight * displacement;
                    }
                }
            }
        }
        for w in columns {
            let mut sum = [0.0; 3];
            for (point, weight) in self.taps(2, w) {
                for (sum, displacement) in sum.iter_mut().zip(points[point]) {
                    *sum += weight * displacement;
                }
            }
            // Rounding may exceed the bound, on which the region that is read relies.
            visit(w, sum.map(|sum| sum.clamp(-self.magnitude, self.magnitude)));
        }
    }

    fn taps(&self, dim: usize, position: usize) -> Taps {
        if self.points[dim] == 1 {
            return [(0, 1.0), (0, 0.0), (0, 0.0), (0, 0.0)];
        }
        let first = position / self.spacing;
        let t = (position % self.spacing) as f64 / self.spacing as f64;
        let s = 1.0 - t;
        let weights = [
            s * s * s / 6.0,
            (3.0 * t * t * t - 6.0 * t * t + 4.0) / 6.0,
            (3.0 * s * s * s - 6.0 * s * s + 4.0) / 6.0,
            t * t * t / 6.0,
        ];
        std::array::from_fn(|tap| (first + tap, weights[tap]))
    }
}

/// Values of a box of a volume, between which is interpolated.
pub(super) struct Stored<'v, T> {
    /// Values of one channel.
    pub(super) values: &'v [T],
    /// Where the box begins in the volume.
    pub(super) start: [usize; 3],
    /// Extents of the box.
    pub(super) extent: [usize; 3],
}

impl<T: Copy> Stored<'_, T> {
    fn at(&self, position: [usize; 3]) -> T {
        let [d, h, w] = std::array::from_fn(|dim| position[dim] - self.start[dim]);
        self.values[(d * self.extent[1] + h) * self.extent[2] + w]
    }

    /// The value nearest to a position inside the volume.
    pub(super) fn nearest(&self, position: [f64; 3]) -> T {
        self.at(position.map(|at| (at + 0.5).floor() as usize))
    }
}

impl Stored<'_, f32> {
    /// Trilinear interpolation at a position inside the volume.
    pub(super) fn linear(&self, position: [f64; 3]) -> f32 {
        let low = position.map(|at| at.floor() as usize);
        let weights: [f32; 3] = std::array::from_fn(|dim| (position[dim] - low[dim] as f64) as f32);
        // Where the weight is 0, the next value may lie outside of the box.
        let high: [usize; 3] =
            std::array::from_fn(|dim| low[dim] + usize::from(position[dim] > low[dim] as f64));
        let between = |from: f32, to: f32, weight: f32| from + weight * (to - from);
        let row = |d: usize, h: usize| {
            let ends = [low[2], high[2]].map(|w| self.at([d, h, w]));
            between(ends[0], ends[1], weights[2])
        };
        let plane = |d: usize| between(row(d, low[1]), row(d, high[1]), weights[1]);
        between(plane(low[0]), plane(high[0]), weights[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(extent: [usize; 3]) -> Field {
        let elastic = Elastic {
            magnitude: 2.0,
            spacing: 3,
        };
        Field::new(elastic, extent, Draws::new(1, 2, 3, 4))
    }

    #[test]
    fn displacements_are_bounded_smooth_and_the_same_from_everywhere() {
        let field = field([5, 8, 9]);
        let (mut largest, mut jump) = (0.0f64, 0.0f64);
        for d in 0..5 {
            for h in 0..8 {
                let mut all = Vec::new();
                field.row((d, h), 0..9, |_, one| all.push(one));
                let mut part = Vec::new();
                field.row((d, h), 4..7, |_, one| part.push(one));
                assert_eq!(part, all[4..7]);
                for pair in all.windows(2) {
                    for (a, b) in pair[0].iter().zip(pair[1]) {
                        largest = largest.max(a.abs());
                        jump = jump.max((a - b).abs());
                    }
                }
            }
        }
        assert!(largest > 0.5 && largest <= 2.0, "{largest}");
        // The slope of a cubic B-spline is at most its points' differences, 4 at most here, over their distance.
        assert!(jump <= 4.0 / 3.0, "{jump}");
        let flat = self::field([1, 8, 9]);
        flat.row((0, 3), 0..9, |_, one| assert_eq!(one[0], 0.0));
    }

    #[test]
    fn a_linear_function_is_interpolated_exactly() {
        let values: Vec<f32> = (0..60)
            .map(|i| (i / 20 * 100 + i / 5 % 4 * 10 + i % 5) as f32)
            .collect();
        let stored = Stored {
            values: &values,
            start: [2, 0, 1],
            extent: [3, 4, 5],
        };
        assert_eq!(stored.linear([2.5, 1.25, 3.0]), 50.0 + 12.5 + 2.0);
        assert_eq!(stored.linear([4.0, 3.0, 5.0]), 234.0);
        assert_eq!(stored.nearest([2.5, 1.25, 3.4]), 112.0);
    }
}
