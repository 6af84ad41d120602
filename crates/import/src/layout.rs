//! Which axes the dims of a value are.

use partita_graph::Shape;

/// An axis of a tensor of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Sample,
    /// D, H, W are 0, 1, 2.
    Space(usize),
    Channel,
    /// Some of what a channel's number is made of: `number / stride % extent`.
    Part {
        stride: usize,
        extent: usize,
    },
    /// Some of what an index along D, H or W is made of, after a cyclic shift towards lower indices:
    /// `(index - shift) mod extent of the tensor / stride % extent`.
    Block {
        dim: usize,
        shift: usize,
        stride: usize,
        extent: usize,
    },
}

/// Channels that have become blocks of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Positions of a block along D, H, W.
    pub(crate) factors: [usize; 3],
    /// Whether all channels of one position of a block follow each other.
    pub(crate) by_block: bool,
    /// Of the tensor whose channels the blocks no longer are.
    pub(crate) layout: Layout,
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

    /// These axes for each dim.
    pub(crate) fn of(axes: Vec<Vec<Axis>>) -> Self {
        Self(axes)
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

    /// The same elements in dims of other extents; none if that of samples would be cut.
    pub(crate) fn reshaped(&self, shape: Shape, samples: usize, extents: &[usize]) -> Option<Self> {
        let mut axes: Vec<Axis> = self.0.iter().flatten().rev().copied().collect();
        let mut dims = Vec::new();
        let mut others = extents;
        // An extent of 1 does not say where the only sample is, but for the first dim.
        let mut first = Vec::new();
        if axes.last() == Some(&Axis::Sample) && extents.first() == Some(&samples) {
            axes.pop();
            dims.push(vec![Axis::Sample]);
            others = &extents[1..];
        } else if samples == 1 {
            // Joined with the windows that follow in the first dim.
            first.extend(axes.pop().filter(|axis| *axis == Axis::Sample));
            if first.is_empty() {
                return None;
            }
        }
        for &extent in others {
            let mut dim = std::mem::take(&mut first);
            let mut held = 1;
            while held < extent {
                let axis = axes.pop()?;
                let whole = match axis {
                    Axis::Sample => samples,
                    _ => extent_of(shape, axis),
                };
                let wanted = extent / held;
                if whole > wanted {
                    // A part of one index is none, and nothing would be left to cut.
                    if wanted < 2 {
                        return None;
                    }
                    let (outer, inner) = cut(shape, axis, wanted)?;
                    axes.push(inner);
                    held *= wanted;
                    dim.push(outer);
                    continue;
                }
                held *= whole;
                dim.push(axis);
            }
            if held != extent {
                return None;
            }
            let counts_windows =
                |axis: &Axis| matches!(axis, Axis::Sample | Axis::Space(_) | Axis::Block { .. });
            if samples == 1 && dim.contains(&Axis::Sample) && !dim.iter().all(counts_windows) {
                return None;
            }
            dims.push(joined(shape, dim));
        }
        axes.is_empty().then_some(Self(dims))
    }

    /// The same elements, each `amount` indices further along a dim, from its end to its start; none where that is no
    /// dim of space.
    pub(crate) fn rolled(&self, shape: Shape, dim: usize, amount: i64) -> Option<Self> {
        let mut rolled = self.clone();
        let axes = rolled.0.get_mut(dim)?;
        let (space, shift) = match axes[..] {
            [] => return Some(rolled),
            [Axis::Space(space)] => (space, 0),
            [
                Axis::Block {
                    dim: space,
                    shift,
                    stride: 1,
                    extent,
                },
            ] if extent == shape.extent[space] => (space, shift),
            _ => return None,
        };
        let extent = shape.extent[space];
        let shift = (shift as i64)
            .checked_sub(amount)?
            .rem_euclid(extent as i64) as usize;
        *axes = vec![whole_block(
            Axis::Block {
                dim: space,
                shift,
                stride: 1,
                extent,
            },
            extent,
        )];
        Some(rolled)
    }

    /// The extents of the dims.
    pub(crate) fn extents(&self, shape: Shape, samples: usize) -> Vec<usize> {
        let extent = |axis: &Axis| match axis {
            Axis::Sample => samples,
            Axis::Space(_) | Axis::Channel | Axis::Part { .. } | Axis::Block { .. } => {
                extent_of(shape, *axis)
            }
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

    /// The same of a tensor of another shape, with this number of indices along a dim.
    pub(crate) fn cut(&self, dim: usize, indices: usize, shape: Shape) -> Self {
        let mut axes = self.0.clone();
        if let Some([Axis::Part { extent, .. }]) = axes.get_mut(dim).map(Vec::as_mut_slice) {
            *extent = indices;
        }
        let dims = axes.into_iter().map(|axes| {
            let kept = axes
                .into_iter()
                .filter(|&axis| axis == Axis::Sample || extent_of(shape, axis) > 1);
            joined(shape, kept.collect())
        });
        Self(dims.collect())
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

    /// The same for the channels of one block: parts that are all of them become them.
    pub(crate) fn within(&self, channels: usize) -> Self {
        let whole = Axis::Part {
            stride: 1,
            extent: channels,
        };
        let mut axes = self.clone();
        for axis in axes.0.iter_mut().flatten().filter(|axis| **axis == whole) {
            *axis = Axis::Channel;
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

    /// The dim whose channels are taken from groups in turn, and the number of groups.
    pub(crate) fn shuffle(&self, shape: Shape) -> Option<(usize, usize)> {
        let mut dims = self.0.iter().enumerate();
        dims.find_map(|(dim, axes)| match axes[..] {
            [
                Axis::Part {
                    stride: 1,
                    extent: inner,
                },
                Axis::Part { stride, extent },
            ] if stride == inner && inner * extent == shape.channels => Some((dim, extent)),
            _ => None,
        })
    }

    /// Channels that have become blocks of positions, as in a pixel shuffle; none where no dim of space holds any.
    pub(crate) fn blocks_of_space(&self, shape: Shape) -> Option<Blocks> {
        let mut factors = [1; 3];
        let mut strides = [0; 3];
        let mut rest = (0, 1);
        let mut layout = self.clone();
        for axes in &mut layout.0 {
            match axes[..] {
                [Axis::Space(dim), Axis::Part { stride, extent }] => {
                    (factors[dim], strides[dim]) = (extent, stride);
                    *axes = vec![Axis::Space(dim)];
                }
                [Axis::Part { stride, extent }] if rest.1 == 1 => {
                    rest = (stride, extent);
                    *axes = vec![Axis::Channel];
                }
                [] | [Axis::Sample] | [Axis::Space(_)] => {}
                _ => return None,
            }
        }
        let [_, height, width] = factors;
        let inner = [height * width, width, 1];
        let count: usize = factors.iter().product();
        let is_ordered =
            |unit: usize| (0..3).all(|dim| factors[dim] == 1 || strides[dim] == unit * inner[dim]);
        let is_whole = count > 1 && rest.1.checked_mul(count) == Some(shape.channels);
        let by_block = rest.1 > 1 && rest.0 == 1;
        let is_in_order = match rest {
            (_, 1) => is_ordered(1),
            (1, channels) => is_ordered(channels),
            (stride, _) => stride == count && is_ordered(1),
        };
        (is_whole && is_in_order).then_some(Blocks {
            factors,
            by_block,
            layout,
        })
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
        Axis::Part { extent, .. } | Axis::Block { extent, .. } => extent,
    }
}

/// A block that is all of its dim, unshifted, as the dim.
fn whole_block(axis: Axis, whole: usize) -> Axis {
    match axis {
        Axis::Block {
            dim,
            shift: 0,
            stride: 1,
            extent,
        } if extent == whole => Axis::Space(dim),
        other => other,
    }
}

/// An axis as an outer one of this extent and the rest; none where it cannot be cut so.
fn cut(shape: Shape, axis: Axis, extent: usize) -> Option<(Axis, Axis)> {
    let (stride, whole) = match axis {
        Axis::Channel => (1, shape.channels),
        Axis::Part { stride, extent } => (stride, extent),
        Axis::Space(dim) => {
            let block = Axis::Block {
                dim,
                shift: 0,
                stride: 1,
                extent: shape.extent[dim],
            };
            return cut(shape, block, extent);
        }
        Axis::Block {
            dim,
            shift,
            stride,
            extent: whole,
        } => {
            let rest = whole
                .checked_div(extent)
                .filter(|rest| rest * extent == whole)?;
            let block = |stride, extent| Axis::Block {
                dim,
                shift,
                stride,
                extent,
            };
            return Some((block(stride * rest, extent), block(stride, rest)));
        }
        Axis::Sample => return None,
    };
    let rest = whole
        .checked_div(extent)
        .filter(|rest| rest * extent == whole)?;
    let outer = Axis::Part {
        stride: stride * rest,
        extent,
    };
    let inner = Axis::Part {
        stride,
        extent: rest,
    };
    Some((outer, inner))
}

/// The axes of a dim, with parts that follow each other as one.
fn joined(shape: Shape, axes: Vec<Axis>) -> Vec<Axis> {
    let mut joined: Vec<Axis> = Vec::new();
    for axis in axes {
        let pair = (joined.last().copied(), axis);
        if let (
            Some(Axis::Part { stride, extent }),
            Axis::Part {
                stride: next,
                extent: inner,
            },
        ) = pair
            && stride == next * inner
        {
            joined.pop();
            joined.push(Axis::Part {
                stride: next,
                extent: extent * inner,
            });
        } else if let (
            Some(Axis::Block {
                dim,
                shift,
                stride,
                extent,
            }),
            Axis::Block {
                dim: other,
                shift: same,
                stride: next,
                extent: inner,
            },
        ) = pair
            && (dim, shift, stride) == (other, same, next * inner)
        {
            joined.pop();
            let block = Axis::Block {
                dim,
                shift,
                stride: next,
                extent: extent * inner,
            };
            joined.push(whole_block(block, shape.extent[dim]));
        } else {
            joined.push(axis);
        }
    }
    let whole = Axis::Part {
        stride: 1,
        extent: shape.channels,
    };
    for axis in &mut joined {
        if *axis == whole {
            *axis = Axis::Channel;
        }
    }
    joined
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
        assert_eq!(image.reshaped(SHAPE, 2, &[2, 5, 12]), None);
        let joined = image.reshaped(SHAPE, 2, &[6, 24]).unwrap();
        assert_eq!(joined.axes(0), [Sample, Channel]);
        assert_eq!(
            joined.reshaped(SHAPE, 2, &[2, 3, 4, 6]),
            Some(image.clone())
        );
        assert_eq!(image.reshaped(SHAPE, 1, &[3, 24]), None);
        assert_eq!(image.reshaped(SHAPE, 2, &[2, 3, 4, 3]), None);
    }

    #[test]
    fn channels_are_cut_and_joined() {
        let shape = Shape {
            extent: [1, 4, 5],
            channels: 12,
        };
        let image = Layout::image(shape, 2);
        let cut = image.reshaped(shape, 2, &[2, 3, 4, 4, 5]).unwrap();
        assert_eq!(
            (cut.axes(1), cut.axes(2)),
            (
                &[Axis::Part {
                    stride: 4,
                    extent: 3
                }][..],
                &[Axis::Part {
                    stride: 1,
                    extent: 4
                }][..]
            )
        );
        assert_eq!(cut.reshaped(shape, 2, &[2, 12, 4, 5]), Some(image.clone()));
        let shuffled = cut.permuted(&[0, 2, 1, 3, 4]).unwrap();
        let shuffled = shuffled.reshaped(shape, 2, &[2, 12, 4, 5]).unwrap();
        assert_eq!(shuffled.shuffle(shape), Some((1, 3)));
        assert_eq!(image.shuffle(shape), None);
        assert_eq!(image.reshaped(shape, 2, &[2, 5, 12, 4]), None);
    }

    #[test]
    fn channels_become_blocks_of_positions() {
        let shape = Shape {
            extent: [1, 4, 5],
            channels: 12,
        };
        let image = Layout::image(shape, 2);
        let shuffled = |cut: &[usize], order: &[usize], joined: &[usize]| {
            let cut = image.reshaped(shape, 2, cut).unwrap();
            let turned = cut.permuted(order).unwrap();
            let joined = turned.reshaped(shape, 2, joined).unwrap();
            joined.blocks_of_space(shape)
        };
        let target = Shape {
            extent: [1, 8, 15],
            channels: 2,
        };
        let factors = [1, 2, 3];
        let by_channel =
            shuffled(&[2, 2, 2, 3, 4, 5], &[0, 1, 4, 2, 5, 3], &[2, 2, 8, 15]).unwrap();
        assert_eq!((by_channel.factors, by_channel.by_block), (factors, false));
        assert!(by_channel.layout.is_image(target, 2));
        let by_block = shuffled(&[2, 2, 3, 2, 4, 5], &[0, 3, 4, 1, 5, 2], &[2, 2, 8, 15]).unwrap();
        assert_eq!((by_block.factors, by_block.by_block), (factors, true));
        // The same with the positions of a block in another order.
        let other = shuffled(&[2, 2, 3, 2, 4, 5], &[0, 1, 4, 3, 5, 2], &[2, 2, 8, 15]);
        assert_eq!(other, None);
        assert_eq!(image.blocks_of_space(shape), None);
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
    fn windows_are_cut_out_of_a_shifted_image_and_joined_again() {
        let last = Layout::image(SHAPE, 2).permuted(&[0, 2, 3, 1]).unwrap();
        let rolled = last.rolled(SHAPE, 1, -1).unwrap();
        let rolled = rolled.rolled(SHAPE, 2, -1).unwrap();
        for samples in [1, 5] {
            let cut = rolled
                .reshaped(SHAPE, samples, &[samples, 2, 2, 2, 3, 3])
                .unwrap();
            let block = |dim, stride, extent| Axis::Block {
                dim,
                shift: 1,
                stride,
                extent,
            };
            assert_eq!(cut.axes(1), [block(1, 2, 2)]);
            let windows = cut.permuted(&[0, 1, 3, 2, 4, 5]).unwrap();
            let windows = windows
                .reshaped(SHAPE, samples, &[samples * 4, 6, 3])
                .unwrap();
            assert_eq!(windows.axes(0), [Sample, block(1, 2, 2), block(2, 3, 2)]);
            assert_eq!(windows.axes(1), [block(1, 1, 2), block(2, 1, 3)]);
            let back = windows
                .reshaped(SHAPE, samples, &[samples, 2, 2, 2, 3, 3])
                .unwrap();
            let back = back.permuted(&[0, 1, 3, 2, 4, 5]).unwrap();
            let back = back.reshaped(SHAPE, samples, &[samples, 4, 6, 3]).unwrap();
            assert_eq!(back, rolled);
            let back = back.rolled(SHAPE, 1, 1).unwrap();
            assert_eq!(back.rolled(SHAPE, 2, 1), Some(last.clone()));
        }
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
