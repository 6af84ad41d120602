//! Which axes the dims of a value are.

use partita_graph::Shape;

/// An axis of a tensor of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Sample,
    /// D, H, W are 0, 1, 2.
    Space(usize),
    Channel,
}

/// The axes of each dim, outermost first. Axes of extent 1 are left out, so that a dim of extent 1 has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout(Vec<Vec<Axis>>);

impl Layout {
    /// Samples, channels, then `rank` spatial dims.
    pub(crate) fn image(shape: Shape, rank: usize) -> Self {
        let space = (3 - rank..3).map(Axis::Space);
        let axes = [Axis::Sample, Axis::Channel].into_iter().chain(space);
        Self(axes.map(|axis| kept(shape, axis)).collect())
    }

    /// Samples and features.
    pub(crate) fn features(shape: Shape) -> Self {
        Self(vec![vec![Axis::Sample], kept(shape, Axis::Channel)])
    }

    pub(crate) fn dims(&self) -> usize {
        self.0.len()
    }

    /// The axes of a dim.
    pub(crate) fn axes(&self, dim: usize) -> &[Axis] {
        self.0.get(dim).map_or(&[], Vec::as_slice)
    }

    /// Dim `order[i]` becomes dim `i`.
    pub(crate) fn permuted(&self, order: &[usize]) -> Option<Self> {
        let dims = order.iter().map(|&dim| self.0.get(dim).cloned());
        Some(Self(dims.collect::<Option<_>>()?)).filter(|one| one.dims() == self.dims())
    }

    /// The same elements in dims of other extents; none if an axis would be cut.
    pub(crate) fn reshaped(&self, shape: Shape, samples: usize, extents: &[usize]) -> Option<Self> {
        let (&first, others) = extents.split_first()?;
        let mut axes = self.0.iter().flatten().copied().peekable();
        if axes.next() != Some(Axis::Sample) || first != samples {
            return None;
        }
        let mut dims = vec![vec![Axis::Sample]];
        for &extent in others {
            let mut dim = Vec::new();
            let mut held = 1;
            while held < extent {
                let axis = axes.next()?;
                held *= extent_of(shape, axis);
                dim.push(axis);
            }
            if held != extent {
                return None;
            }
            dims.push(dim);
        }
        axes.next().is_none().then_some(Self(dims))
    }

    /// The extents of the dims.
    pub(crate) fn extents(&self, shape: Shape, samples: usize) -> Vec<usize> {
        let extent = |axis: &Axis| match axis {
            Axis::Sample => samples,
            Axis::Space(_) | Axis::Channel => extent_of(shape, *axis),
        };
        self.0
            .iter()
            .map(|dim| dim.iter().map(extent).fold(1, usize::saturating_mul))
            .collect()
    }

    /// The dims after these have become extent 1, or have been left out.
    pub(crate) fn reduced(&self, dims: &[usize], keeps: bool) -> Self {
        let all = self.0.iter().enumerate();
        let kept = all.filter(|(dim, _)| keeps || !dims.contains(dim));
        let axes = kept.map(|(dim, axes)| {
            if dims.contains(&dim) {
                Vec::new()
            } else {
                axes.clone()
            }
        });
        Self(axes.collect())
    }

    /// The same with this many channels as a dim; unchanged if it lacks the dim.
    pub(crate) fn with_channels(&self, dim: usize, channels: usize) -> Self {
        let mut axes = self.clone();
        if let Some(axis) = axes.0.get_mut(dim) {
            *axis = (channels > 1)
                .then_some(Axis::Channel)
                .into_iter()
                .collect();
        }
        axes
    }

    /// Whether the dims of both are equal but for those of extent 1.
    pub(crate) fn broadcasts(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let fits = |(one, other): (&Vec<Axis>, &Vec<Axis>)| {
            one == other || one.is_empty() || other.is_empty()
        };
        self.dims() == other.dims() && pairs.into_iter().all(fits)
    }

    /// Whether the dims are those of an image: samples, channels, then space.
    pub(crate) fn is_image(&self, shape: Shape, rank: usize) -> bool {
        *self == Self::image(shape, rank)
    }
}

/// Extent of an axis but that of samples, which counts as 1.
pub(crate) fn extent_of(shape: Shape, axis: Axis) -> usize {
    match axis {
        Axis::Sample => 1,
        Axis::Space(dim) => shape.extent[dim],
        Axis::Channel => shape.channels,
    }
}

fn kept(shape: Shape, axis: Axis) -> Vec<Axis> {
    let is_kept = axis == Axis::Sample || extent_of(shape, axis) > 1;
    is_kept.then_some(axis).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Axis::{Channel, Sample, Space};

    const SHAPE: Shape = Shape {
        extent: [1, 4, 6],
        channels: 3,
    };

    #[test]
    fn reshapes_join_and_part_axes_but_cut_none() {
        let image = Layout::image(SHAPE, 2);
        let flat = image.reshaped(SHAPE, 2, &[2, 72]).unwrap();
        assert_eq!(flat.axes(1), [Channel, Space(1), Space(2)]);
        assert_eq!(flat.reshaped(SHAPE, 2, &[2, 3, 4, 6]), Some(image.clone()));
        let sequence = image.reshaped(SHAPE, 2, &[2, 3, 24]).unwrap();
        assert_eq!(sequence.axes(2), [Space(1), Space(2)]);
        assert_eq!(image.reshaped(SHAPE, 2, &[2, 6, 12]), None);
        assert_eq!(image.reshaped(SHAPE, 2, &[6, 24]), None);
        assert_eq!(image.reshaped(SHAPE, 2, &[2, 3, 4, 3]), None);
    }

    #[test]
    fn dims_of_extent_1_have_no_axis() {
        let pooled = Shape {
            extent: [1; 3],
            channels: 3,
        };
        let image = Layout::image(pooled, 3);
        let features = image.reshaped(pooled, 5, &[5, 3]).unwrap();
        assert_eq!(features, Layout::features(pooled));
        assert_eq!(features.reshaped(pooled, 5, &[5, 3, 1, 1, 1]), Some(image));
    }

    #[test]
    fn permutations_move_axes() {
        let image = Layout::image(SHAPE, 2);
        let last = image.permuted(&[0, 2, 3, 1]).unwrap();
        assert_eq!(last.axes(3), [Channel]);
        assert_eq!(last.axes(0), [Sample]);
        assert!(!last.is_image(SHAPE, 2));
        assert!(last.permuted(&[0, 3, 1, 2]).unwrap().is_image(SHAPE, 2));
        assert_eq!(image.permuted(&[0, 1]), None);
    }
}
