//! Sliding windows.

use crate::Interval;
use serde::{Deserialize, Serialize};

/// A sliding window along one dim.
///
/// Output `o` reads inputs `o * stride - pad_low + k * dilation` for `k` in `0..kernel`.
/// `kernel`, `stride` and `dilation` are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Number of taps.
    pub kernel: usize,
    /// Inputs between neighboring outputs.
    pub stride: usize,
    /// Inputs between neighboring taps.
    pub dilation: usize,
    /// Padding before the first input.
    pub pad_low: usize,
    /// Padding after the last input.
    pub pad_high: usize,
}

impl Window {
    /// The window that reads each input once.
    pub const ONE: Window = Window {
        kernel: 1,
        stride: 1,
        dilation: 1,
        pad_low: 0,
        pad_high: 0,
    };

    /// The window of equal tiles.
    pub fn tile(extent: usize) -> Self {
        Self {
            kernel: extent,
            stride: extent,
            ..Self::ONE
        }
    }

    /// Inputs from the first to the last tap, ends included.
    pub fn span(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Extent of the output over an input of `extent`, 0 when the window does not fit.
    pub fn output_extent(&self, extent: usize) -> usize {
        let padded = extent + self.pad_low + self.pad_high;
        if padded < self.span() {
            0
        } else {
            (padded - self.span()) / self.stride + 1
        }
    }

    /// Inputs that a block of outputs reads, padding included, so it may exceed the extent.
    pub fn inputs_of(&self, outputs: &Interval) -> Interval {
        if outputs.is_empty() {
            return Interval::new(0, 0);
        }
        let first = outputs.start * self.stride as i64 - self.pad_low as i64;
        let last = (outputs.end - 1) * self.stride as i64 - self.pad_low as i64;
        Interval::new(first, last + self.span() as i64)
    }

    /// Outputs that read at least one input of a block, before clipping to the output extent.
    ///
    /// With a stride beyond the span some inputs are read by none, and with dilation some outputs
    /// in the interval touch the block by none of their taps: the interval is the hull.
    pub fn outputs_of(&self, inputs: &Interval) -> Interval {
        if inputs.is_empty() {
            return Interval::new(0, 0);
        }
        let stride = self.stride as i64;
        let low = inputs.start + self.pad_low as i64 - (self.span() as i64 - 1);
        let high = inputs.end - 1 + self.pad_low as i64;
        Interval::new(-(-low).div_euclid(stride), high.div_euclid(stride) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_and_outputs_agree_with_enumeration() {
        for kernel in 1..5 {
            for stride in 1..4 {
                for dilation in 1..3 {
                    for pad_low in 0..3 {
                        let window = Window {
                            kernel,
                            stride,
                            dilation,
                            pad_low,
                            pad_high: 1,
                        };
                        check(&window);
                    }
                }
            }
        }
    }

    fn check(window: &Window) {
        let taps = |o: i64| {
            (0..window.kernel as i64).map(move |k| {
                o * window.stride as i64 - window.pad_low as i64 + k * window.dilation as i64
            })
        };
        for start in 0..6 {
            for end in start + 1..7 {
                let block = Interval::new(start, end);
                let inputs: Vec<i64> = (start..end).flat_map(taps).collect();
                let hull = window.inputs_of(&block);
                assert_eq!(hull.start, *inputs.iter().min().unwrap());
                assert_eq!(hull.end, inputs.iter().max().unwrap() + 1);
                let reached = window.outputs_of(&block);
                for o in -20..20 {
                    if taps(o).any(|i| start <= i && i < end) {
                        assert!(
                            reached.start <= o && o < reached.end,
                            "{window:?} {block} {o}"
                        );
                    }
                }
            }
        }
    }
}
