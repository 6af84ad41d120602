//! Boxes inside buffers, windows, counted work, and the arguments common to all kernels.

pub use crate::team::Canceled;
use crate::team::Team;

/// A box inside a buffer: N samples x (D, H, W) positions x C channels, channels innermost.
///
/// Units: elements. Lower-dimensional tensors have extent 1 in the unused dims.
/// The slice of a grid starts at the first element of the box; elements between the rows of the box
/// (padding, halos, other channels) are never written, and read only by kernels that document it.
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

    /// Length of the shortest slice that holds the box. Panics on overflow.
    pub fn span(&self) -> usize {
        self.checked_span()
            .unwrap_or_else(|| panic!("a box is larger than the address space: {self:?}"))
    }

    fn checked_span(&self) -> Option<usize> {
        let counts = self.counts();
        if counts.contains(&0) || self.channels == 0 {
            return Some(0);
        }
        let (mut elements, mut span) = (self.channels, self.channels);
        for (count, pitch) in counts.into_iter().zip(self.pitch) {
            elements = elements.checked_mul(count)?;
            span = span.checked_add((count - 1).checked_mul(pitch)?)?;
        }
        Some(span)
    }

    /// Whether each position lies beyond the one before; threads write them at the same time. Only of
    /// a box whose span is counted.
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
    /// Panics on overflow.
    pub fn input_extent(&self, out: [usize; 3]) -> [usize; 3] {
        let extent = |i: usize, n: usize| {
            let steps = (n - 1).checked_mul(self.stride[i])?;
            let taps = self.kernel[i]
                .checked_sub(1)?
                .checked_mul(self.dilation[i])?;
            steps.checked_add(taps)?.checked_add(1)
        };
        std::array::from_fn(|i| match out[i] {
            0 => 0,
            n => extent(i, n)
                .unwrap_or_else(|| panic!("{out:?} outputs of {self:?} have no input extent")),
        })
    }

    /// Outputs whose input extent is this one or less; none where an input extent is not counted.
    pub(crate) fn outputs(&self, input: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|i| {
            let taps = self.kernel[i].saturating_sub(1);
            let first = taps.saturating_mul(self.dilation[i]).saturating_add(1);
            match input[i].checked_sub(first) {
                Some(rest) => rest / self.stride[i].max(1) + 1,
                None => 0,
            }
        })
    }

    pub(crate) fn assert_valid(&self) {
        let all = self.kernel.iter().chain(&self.stride).chain(&self.dilation);
        assert!(
            all.copied().min() >= Some(1),
            "window with a zero: {self:?}"
        );
        product(self.kernel);
    }

    /// Panics if a position computed from outputs, taps and a shift might overflow.
    pub(crate) fn assert_near(&self, shift: [i64; 3], inputs: [usize; 3], outputs: [usize; 3]) {
        let near = (0..3).all(|i| {
            let sizes = [
                outputs[i].checked_mul(self.stride[i]),
                self.kernel[i].checked_mul(self.dilation[i]),
                Some(inputs[i]),
            ];
            let is_near = |size: Option<usize>| size.is_some_and(|size| (size as u64) < FAR);
            shift[i].unsigned_abs() < FAR && sizes.into_iter().all(is_near)
        });
        assert!(
            near,
            "{outputs:?} outputs of {self:?}, shifted by {shift:?}, over {inputs:?} inputs: \
             positions and sizes must be below 2^60"
        );
    }
}

/// Sums of a few numbers below it do not wrap in 64 bits.
const FAR: u64 = 1 << 60;

/// The product of sizes; panics on overflow.
pub(crate) fn product<const N: usize>(sizes: [usize; N]) -> usize {
    if sizes.contains(&0) {
        return 0;
    }
    let all = sizes.into_iter().try_fold(1, usize::checked_mul);
    all.unwrap_or_else(|| panic!("a product of {sizes:?} is larger than the address space"))
}

/// A box that is read, of f32 or of other elements.
#[derive(Clone, Copy)]
pub struct View<'a, E = f32> {
    /// Elements, from the first of the box.
    pub(crate) data: &'a [E],
    /// The box.
    pub(crate) grid: &'a Grid,
}

impl<'a, E> View<'a, E> {
    /// Panics if the slice is too short for the box.
    pub fn new(data: &'a [E], grid: &'a Grid) -> View<'a, E> {
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

    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<E>() * self.grid.elements()) as u64
    }
}

/// A box that is written, of f32 or of other elements.
pub struct ViewMut<'a, E = f32> {
    /// Elements, from the first of the box.
    pub(crate) data: &'a mut [E],
    /// The box.
    pub(crate) grid: &'a Grid,
}

impl<'a, E> ViewMut<'a, E> {
    /// Panics if the slice is too short for the box, or if positions of the box overlap.
    pub fn new(data: &'a mut [E], grid: &'a Grid) -> ViewMut<'a, E> {
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

    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<E>() * self.grid.elements()) as u64
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

/// What a gradient is multiplied by on its way back through an activation: 1 where y > 0, `slope`
/// elsewhere.
#[derive(Clone, Copy)]
pub struct Mask<'a> {
    /// Output of the activation, a box like the gradient.
    pub y: View<'a>,
    /// Factor of the negative side.
    pub slope: f32,
}

/// The gradient of an output, as its consumers left it.
#[derive(Clone, Copy)]
pub struct Gradient<'a> {
    /// The box.
    pub dy: View<'a>,
    /// To be applied while it is read.
    pub mask: Option<Mask<'a>>,
}

impl<'a> From<View<'a>> for Gradient<'a> {
    fn from(dy: View<'a>) -> Self {
        Gradient { dy, mask: None }
    }
}

/// Arguments common to all kernels.
pub struct Call<'a> {
    /// The threads.
    pub team: &'a mut Team,
    /// Scratch elements, at least as many as the `_scratch` function of the kernel returns.
    pub scratch: &'a mut [f32],
    /// Called by the calling thread between tiles; `false` cancels.
    pub progress: &'a mut dyn FnMut() -> bool,
}

/// A pointer that threads share; each writes elements of its own.
#[derive(Clone, Copy)]
pub(crate) struct Shared<E = f32>(pub *mut E);

// SAFETY: a pointer alone touches nothing; who reads or writes through it answers for the threads.
unsafe impl<E> Send for Shared<E> {}
// SAFETY: as above.
unsafe impl<E> Sync for Shared<E> {}

impl<E> Shared<E> {
    /// A method, so that closures capture the whole and not the bare pointer.
    pub(crate) fn get(self) -> *mut E {
        self.0
    }
}

/// Elements `[part * n / parts, (part + 1) * n / parts)`.
pub(crate) fn part(n: usize, part: usize, parts: usize) -> std::ops::Range<usize> {
    n * part / parts..n * (part + 1) / parts
}
