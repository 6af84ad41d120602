//! Flips and right-angle rotations.

use std::ops::Range;

/// A box of three dims.
pub(super) type Region3 = [Range<usize>; 3];

/// Where the dims of a sample as the network sees it lie in the stored volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orientation {
    /// Dim of the volume along which each dim of the sample lies.
    pub(super) dims: [usize; 3],
    /// Whether it runs the other way.
    pub(super) reversed: [bool; 3],
}

impl Orientation {
    pub(super) const AS_STORED: Self = Self {
        dims: [0, 1, 2],
        reversed: [false; 3],
    };

    /// All that quarter turns in planes with equal extents lead to, the stored one first: one, four or 24.
    pub(super) fn rotations(extent: [usize; 3]) -> Vec<Self> {
        let planes: Vec<[usize; 2]> = [[0, 1], [0, 2], [1, 2]]
            .into_iter()
            .filter(|&[a, b]| extent[a] == extent[b] && extent[a] > 1)
            .collect();
        let mut all = vec![Self::AS_STORED];
        let mut next = 0;
        while next < all.len() {
            for &[a, b] in &planes {
                let mut turned = all[next];
                turned.dims.swap(a, b);
                turned.reversed.swap(a, b);
                turned.reversed[a] = !turned.reversed[a];
                if !all.contains(&turned) {
                    all.push(turned);
                }
            }
            next += 1;
        }
        all
    }

    /// The same with some dims of the sample reversed.
    pub(super) fn flipped(mut self, flips: [bool; 3]) -> Self {
        for (reversed, flip) in self.reversed.iter_mut().zip(flips) {
            *reversed ^= flip;
        }
        self
    }

    /// The box of the volume, before any offset, in which a box of a sample of extents `extent` lies.
    pub(super) fn source(&self, extent: [usize; 3], part: &Region3) -> Region3 {
        let mut source = [0..0, 0..0, 0..0];
        for dim in 0..3 {
            let Range { start, end } = part[dim].clone();
            source[self.dims[dim]] = if self.reversed[dim] {
                extent[dim] - end..extent[dim] - start
            } else {
                start..end
            };
        }
        source
    }

    /// Turns a box of the volume, C volumes of it, into the box of the sample; `shape` is that of the sample's box.
    pub(super) fn turn<T: Copy>(
        &self,
        channels: usize,
        shape: [usize; 3],
        stored: &[T],
        out: &mut Vec<T>,
    ) {
        let mut extent = [0; 3];
        for dim in 0..3 {
            extent[self.dims[dim]] = shape[dim];
        }
        let strides = [extent[1] * extent[2], extent[2], 1];
        let steps: [isize; 3] = std::array::from_fn(|dim| {
            let stride = strides[self.dims[dim]] as isize;
            if self.reversed[dim] { -stride } else { stride }
        });
        let first: isize = (0..3)
            .filter(|&dim| self.reversed[dim])
            .map(|dim| -steps[dim] * (shape[dim] as isize - 1))
            .sum();
        let volume = shape.iter().product::<usize>();
        for channel in 0..channels {
            let stored = &stored[channel * volume..(channel + 1) * volume];
            for d in 0..shape[0] {
                for h in 0..shape[1] {
                    let row = first + d as isize * steps[0] + h as isize * steps[1];
                    match steps[2] {
                        1 => {
                            let row = row as usize;
                            out.extend_from_slice(&stored[row..row + shape[2]]);
                        }
                        step => out.extend(
                            (0..shape[2]).map(|w| stored[(row + w as isize * step) as usize]),
                        ),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_rotations_as_a_cube_has() {
        assert_eq!(Orientation::rotations([4, 4, 4]).len(), 24);
        assert_eq!(Orientation::rotations([1, 4, 4]).len(), 4);
        assert_eq!(Orientation::rotations([4, 2, 4]).len(), 4);
        assert_eq!(Orientation::rotations([4, 2, 3]), [Orientation::AS_STORED]);
        assert_eq!(Orientation::rotations([1, 1, 3]), [Orientation::AS_STORED]);
        for rotation in Orientation::rotations([4, 4, 4]) {
            // A rotation has no mirror: an even permutation with an even number of reversals, or both odd.
            let inversions = [(0, 1), (0, 2), (1, 2)]
                .into_iter()
                .filter(|&(a, b)| rotation.dims[a] > rotation.dims[b])
                .count();
            let reversals = rotation
                .reversed
                .iter()
                .filter(|&&reversed| reversed)
                .count();
            assert_eq!(inversions % 2, reversals % 2, "{rotation:?}");
        }
    }

    #[test]
    fn twice_the_same_flip_changes_nothing() {
        let shape = [2, 3, 4];
        let stored: Vec<u16> = (0..48).collect();
        let flip = |flips, values: &[u16]| {
            let mut out = Vec::new();
            Orientation::AS_STORED
                .flipped(flips)
                .turn(2, shape, values, &mut out);
            out
        };
        for flips in [[true, false, false], [false, true, true], [true; 3]] {
            let once = flip(flips, &stored);
            assert_ne!(once, stored);
            assert_eq!(flip(flips, &once), stored);
        }
        let last = flip([true; 3], &stored);
        assert_eq!((last[0], last[23], last[24]), (23, 0, 47));
    }

    #[test]
    fn a_part_of_a_turned_sample_is_turned_from_its_source() {
        let extent = [3, 3, 3];
        let stored: Vec<u16> = (0..27).collect();
        let part = [1..3, 0..2, 0..3];
        for rotation in Orientation::rotations(extent) {
            let orientation = rotation.flipped([false, true, false]);
            let mut whole = Vec::new();
            orientation.turn(1, extent, &stored, &mut whole);
            let cut = |values: &[u16], region: &Region3| -> Vec<u16> {
                let [d, h, w] = region.clone();
                let rows = d.flat_map(|d| h.clone().map(move |h| (d * 3 + h) * 3));
                rows.flat_map(|row| values[row + w.start..row + w.end].to_vec())
                    .collect()
            };
            let source = cut(&stored, &orientation.source(extent, &part));
            let mut turned = Vec::new();
            orientation.turn(1, [2, 2, 3], &source, &mut turned);
            assert_eq!(turned, cut(&whole, &part), "{orientation:?}");
        }
    }
}
