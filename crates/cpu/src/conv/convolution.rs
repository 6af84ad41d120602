//! What a convolution is: its window, its groups and its weights.

use crate::grid::{Grid, Window, product};

/// A window and the groups of channels it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Taps, strides, dilations.
    pub window: Window,
    /// Groups; divides C and F.
    pub groups: usize,
}

/// Weights as a kernel takes them.
#[derive(Clone, Copy)]
pub enum Weights<'a> {
    /// As they are: (Kd, Kh, Kw, C / groups, F).
    Plain(&'a [f32]),
    /// As the packing function of the kernel wrote them, on a team of the same level.
    Packed(&'a [f32]),
}

impl<'a> Weights<'a> {
    /// Those of a method that packs in its own way. Panics if they are packed.
    pub(crate) fn plain(self) -> &'a [f32] {
        match self {
            Self::Plain(weights) => weights,
            Self::Packed(_) => panic!("weights were packed for another method"),
        }
    }
}

impl Convolution {
    /// Offset of a tap in a box that is read.
    pub(crate) fn offset_of(&self, x: &Grid, tap: usize) -> usize {
        let k = self.window.kernel;
        let at = [tap / k[2] / k[1], tap / k[2] % k[1], tap % k[2]];
        let (d, p) = (self.window.dilation, x.pitch);
        (0..3).map(|i| at[i] * d[i] * p[i + 1]).sum()
    }

    /// Weights (Kd, Kh, Kw, C / groups, F), in elements. Panics where an index cannot count them.
    pub fn weight_elements(&self, c: usize, f: usize) -> usize {
        let [d, h, w] = self.window.kernel;
        product([d, h, w, c / self.groups, f])
    }

    /// Whether every channel is a group of its own.
    pub(crate) fn is_depthwise(&self, c: usize, f: usize) -> bool {
        self.groups > 1 && self.groups == c && self.groups == f
    }

    /// How many jobs compute it, and the channels in and out of each.
    pub(crate) fn jobs(&self, c: usize, f: usize) -> (usize, usize, usize) {
        if self.is_depthwise(c, f) {
            (1, 1, f)
        } else {
            (self.groups, c / self.groups, f / self.groups)
        }
    }

    pub(crate) fn assert_valid(&self, c: usize, f: usize, w: usize) {
        self.window.assert_valid();
        assert!(
            self.groups > 0 && c.is_multiple_of(self.groups) && f.is_multiple_of(self.groups),
            "{} groups of {c} and {f} channels",
            self.groups
        );
        assert!(
            w >= self.weight_elements(c, f),
            "weights of {w} for {self:?}, {c} to {f}"
        );
    }

    /// Panics unless the box of the input is complete, that is with its padding.
    pub(crate) fn assert_boxes(&self, xg: &Grid, yg: &Grid) {
        assert!(xg.samples == yg.samples, "samples of {xg:?} and {yg:?}");
        assert!(
            yg.positions() == 0 || self.window.input_extent(yg.extent) == xg.extent,
            "{xg:?} is not the complete input of {yg:?} under {self:?}"
        );
    }

    pub(crate) fn assert_weights(&self, c: usize, f: usize, w: Weights, packed: usize) {
        match w {
            Weights::Plain(w) => self.assert_valid(c, f, w.len()),
            Weights::Packed(w) => {
                self.assert_valid(c, f, usize::MAX);
                assert!(
                    w.len() >= packed,
                    "packed weights of {}, not {packed}",
                    w.len()
                );
            }
        }
    }

    /// Flops of any direction: `2 * positions * volume * C / groups * F`.
    pub(crate) fn flops(&self, positions: usize, c: usize, f: usize) -> u64 {
        2 * positions as u64 * self.weight_elements(c, f) as u64
    }
}
