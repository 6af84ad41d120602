//! Iteration over the positions of a direct convolution.

use crate::grid::Grid;

/// The widest tile in positions.
pub(crate) const P_MAX: usize = 12;

/// Offsets of the positions of a tile, in elements.
pub(crate) type Offsets = [usize; P_MAX];

/// Layout of the positions of a direct convolution in a buffer, in elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Positions {
    /// Of the position (0, 0, 0, 0).
    pub base: usize,
    pub step: [usize; 4],
}

impl Positions {
    /// Every `step`th position from `first` on, from a channel on.
    pub(crate) fn new(
        grid: &Grid,
        channel: usize,
        first: [usize; 3],
        step: [usize; 3],
    ) -> Positions {
        let p = grid.pitch;
        let base = (0..3).map(|i| first[i] * p[i + 1]).sum::<usize>() + channel;
        let step = [p[0], step[0] * p[1], step[1] * p[2], step[2] * p[3]];
        Positions { base, step }
    }
}

/// A walk over the positions of a job, in several boxes.
#[derive(Clone)]
pub(crate) struct Walk<const N: usize> {
    count: [usize; 4],
    index: [usize; 4],
    steps: [[usize; 4]; N],
    at: [usize; N],
}

impl<const N: usize> Walk<N> {
    pub(crate) fn new(mut count: [usize; 4], positions: [Positions; N], position: usize) -> Self {
        // Rows that follow each other without a gap, in all boxes, are one.
        for dim in (0..3).rev() {
            let follows = |p: &Positions| p.step[dim] == count[3] * p.step[3];
            if count[dim] != 1 && !positions.iter().all(follows) {
                break;
            }
            (count[3], count[dim]) = (count[3] * count[dim], 1);
        }
        let (mut index, mut rest) = ([0; 4], position);
        for dim in (0..4).rev() {
            index[dim] = rest % count[dim];
            rest /= count[dim];
        }
        let at = |p: Positions| p.base + (0..4).map(|i| index[i] * p.step[i]).sum::<usize>();
        Walk {
            count,
            index,
            steps: positions.map(|p| p.step),
            at: positions.map(at),
        }
    }

    /// Offsets of the next `n` positions; the rest repeats the last of them, which is harmless
    /// because a tile loads all its outputs before it stores any.
    #[inline(always)]
    pub(crate) fn take(&mut self, n: usize, offsets: &mut [Offsets; N]) {
        let next = self.index[3] + n;
        if next >= self.count[3] {
            return self.take_across(n, offsets);
        }
        self.index[3] = next;
        for ((offsets, at), step) in offsets.iter_mut().zip(&mut self.at).zip(&self.steps) {
            for (i, offset) in offsets.iter_mut().enumerate() {
                *offset = *at + i.min(n - 1) * step[3];
            }
            *at += n * step[3];
        }
    }

    /// The same for a tile of `P` positions, which reads no more offsets: only these are computed.
    #[inline(always)]
    pub(crate) fn take_tile<const P: usize>(&mut self, n: usize, offsets: &mut [Offsets; N]) {
        let next = self.index[3] + n;
        if n != P || next >= self.count[3] {
            return self.take(n, offsets);
        }
        self.index[3] = next;
        for ((offsets, at), step) in offsets.iter_mut().zip(&mut self.at).zip(&self.steps) {
            for offset in &mut offsets[..P] {
                *offset = *at;
                *at += step[3];
            }
        }
    }

    /// The same where a row ends.
    #[inline(never)]
    fn take_across(&mut self, n: usize, offsets: &mut [Offsets; N]) {
        for i in 0..P_MAX {
            for (o, at) in offsets.iter_mut().zip(self.at) {
                o[i] = if i < n { at } else { o[n - 1] };
            }
            if i < n {
                self.step();
            }
        }
    }

    #[inline]
    fn step(&mut self) {
        for dim in (0..4).rev() {
            self.index[dim] += 1;
            for (at, step) in self.at.iter_mut().zip(&self.steps) {
                *at += step[dim];
            }
            if self.index[dim] < self.count[dim] {
                return;
            }
            for (at, step) in self.at.iter_mut().zip(&self.steps) {
                *at -= self.count[dim] * step[dim];
            }
            self.index[dim] = 0;
        }
    }
}
