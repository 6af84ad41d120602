//! Boxes inside buffers, windows, counted work, and what every kernel call needs.

use crate::team::Team;

/// A box inside a buffer: N samples x (D, H, W) positions x C channels, channels innermost.
///
/// Units: elements. Lower-dimensional tensors have extent 1 in the unused dims.
/// The slice that goes with a grid starts at the first element of the box; what lies between
/// the rows of the box (frames, other channels) is never written, and never read unless a
/// kernel says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Samples N.
    pub samples: usize,
    /// Positions in D, H, W.
    pub extent: [usize; 3],
    /// Channels C.
    pub channels: usize,
    /// Distance in elements between neighbors in N, D, H, W; that of channels is 1.
    pub pitch: [usize; 4],
}

impl Grid {
    /// A grid whose box fills its buffer.
    pub fn dense(samples: usize, extent: [usize; 3], channels: usize) -> Grid {
        let w = channels;
        let h = w * extent[2];
        let d = h * extent[1];
        Grid {
            samples,
            extent,
            channels,
            pitch: [d * extent[0], d, h, w],
        }
    }

    /// Positions of all samples: N * D * H * W.
    pub fn positions(&self) -> usize {
        self.samples * self.extent[0] * self.extent[1] * self.extent[2]
    }

    /// Elements of the box.
    pub fn elements(&self) -> usize {
        self.positions() * self.channels
    }

    /// Shortest slice that holds the box.
    pub fn span(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        let count = self.counts();
        let last: usize = (0..4).map(|i| (count[i] - 1) * self.pitch[i]).sum();
        last + self.channels
    }

    /// Whether each position lies beyond the one before; threads write them at the same time.
    fn disjoint(&self) -> bool {
        let (count, mut span) = (self.counts(), self.channels);
        let empty = self.elements() == 0;
        empty
            || (0..4).rev().all(|dim| {
                let beyond = count[dim] <= 1 || self.pitch[dim] >= span;
                span += count[dim].saturating_sub(1) * self.pitch[dim];
                beyond
            })
    }

    pub(crate) fn counts(&self) -> [usize; 4] {
        [self.samples, self.extent[0], self.extent[1], self.extent[2]]
    }

    pub(crate) fn bytes(&self) -> u64 {
        4 * self.elements() as u64
    }

    /// Elements of the flat row `row` in (N, D, H) order start here.
    pub(crate) fn row_offset(&self, row: usize) -> usize {
        let (h, rest) = (row % self.extent[1], row / self.extent[1]);
        let (d, n) = (rest % self.extent[0], rest / self.extent[0]);
        n * self.pitch[0] + d * self.pitch[1] + h * self.pitch[2]
    }

    /// Rows (N, D, H) of the box.
    pub(crate) fn rows(&self) -> usize {
        self.samples * self.extent[0] * self.extent[1]
    }

    pub(crate) fn assert_like(&self, other: &Grid) {
        assert!(
            self.counts() == other.counts() && self.channels == other.channels,
            "boxes differ: {self:?} and {other:?}"
        );
    }
}

/// A convolution or pooling window, per dim D, H, W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Taps.
    pub kernel: [usize; 3],
    /// Step between outputs, at least 1.
    pub stride: [usize; 3],
    /// Distance of taps, at least 1.
    pub dilation: [usize; 3],
}

impl Window {
    /// Taps of all dims.
    pub fn volume(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Input extent that `out` outputs read: `(out - 1) * stride + (kernel - 1) * dilation + 1`.
    pub fn input_extent(&self, out: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|i| match out[i] {
            0 => 0,
            n => (n - 1) * self.stride[i] + (self.kernel[i] - 1) * self.dilation[i] + 1,
        })
    }

    pub(crate) fn assert_valid(&self) {
        let all = self.kernel.iter().chain(&self.stride).chain(&self.dilation);
        assert!(
            all.copied().min() >= Some(1),
            "window with a zero: {self:?}"
        );
    }
}

/// A box that is read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Elements, from the first of the box.
    pub(crate) data: &'a [f32],
    /// The box.
    pub(crate) grid: &'a Grid,
}

impl<'a> View<'a> {
    /// Panics if the slice is too short for the box.
    pub fn new(data: &'a [f32], grid: &'a Grid) -> View<'a> {
        assert!(
            data.len() >= grid.span(),
            "slice of {} for {grid:?}",
            data.len()
        );
        View { data, grid }
    }

    /// The box.
    pub fn grid(&self) -> &'a Grid {
        self.grid
    }
}

/// A box that is written.
pub struct ViewMut<'a> {
    /// Elements, from the first of the box.
    pub(crate) data: &'a mut [f32],
    /// The box.
    pub(crate) grid: &'a Grid,
}

impl<'a> ViewMut<'a> {
    /// Panics if the slice is too short for the box, or if positions of the box overlap.
    pub fn new(data: &'a mut [f32], grid: &'a Grid) -> ViewMut<'a> {
        assert!(
            data.len() >= grid.span(),
            "slice of {} for {grid:?}",
            data.len()
        );
        assert!(grid.disjoint(), "positions overlap in {grid:?}");
        ViewMut { data, grid }
    }

    /// The box.
    pub fn grid(&self) -> &'a Grid {
        self.grid
    }
}

/// Counted work of one call, from the loop bounds of the kernel.
///
/// Rule: convolutions count 2 flops a multiply-add over all outputs and taps, clipped or not;
/// pooling 1 flop a tap and output; elementwise kernels what their docs say. Bytes count every
/// box once, and the written box once more when the kernel adds to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written, each box once.
    pub bytes: u64,
}

/// The caller asked to stop; the outputs hold a part of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel was canceled")]
pub struct Canceled;

/// What every kernel call needs besides its operands.
pub struct Call<'a> {
    /// The threads.
    pub team: &'a mut Team,
    /// Scratch elements, at least as many as the `_scratch` function of the kernel says.
    pub scratch: &'a mut [f32],
    /// Called by the calling thread between tiles; `false` cancels.
    pub progress: &'a mut dyn FnMut() -> bool,
}

/// A pointer that threads share; each writes elements of its own.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub *mut f32);

// SAFETY: the kernels partition what they write; no element is written by two threads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// A method, so that closures capture the whole and not the bare pointer.
    pub(crate) fn get(self) -> *mut f32 {
        self.0
    }
}

/// Elements `[part * n / parts, (part + 1) * n / parts)`.
pub(crate) fn part(n: usize, part: usize, parts: usize) -> std::ops::Range<usize> {
    n * part / parts..n * (part + 1) / parts
}
