//! Elementwise loops over boxes, row by row: y = f(up to three boxes, y, per-channel columns).

use crate::grid::{Canceled, Grid, Shared, View, ViewMut};
use crate::simd::{Op, Simd};
use crate::team::{ELEMENT, Team};
use std::ops::Range;

/// Elements of a cache line.
const LINE: usize = 16;
/// Elements of a position that are prefetched: the hardware prefetcher covers long stretches only.
const AHEAD: usize = 64;
/// Prefetch distance in positions.
const DISTANCE: usize = 16;

/// A box as the threads see it: whoever holds it touches only rows that nobody else writes.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Valid for the box, as only views become rows.
    data: Shared,
    pub(crate) grid: &'a Grid,
}

impl<'a> From<View<'a>> for Rows<'a> {
    fn from(view: View<'a>) -> Self {
        Rows {
            data: Shared(view.data.as_ptr().cast_mut()),
            grid: view.grid,
        }
    }
}

impl<'a> From<ViewMut<'a>> for Rows<'a> {
    fn from(view: ViewMut<'a>) -> Self {
        Rows {
            data: Shared(view.data.as_mut_ptr()),
            grid: view.grid,
        }
    }
}

impl Rows<'_> {
    /// First element of a flat row in (N, D, H) order.
    ///
    /// # Safety
    /// The box has the row.
    #[inline(always)]
    pub(crate) unsafe fn start(&self, row: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.data.get().add(self.grid.row_offset(row)) }
    }
}

/// Up to three boxes of one shape, the rest made up by another: what a formula does not look at is
/// not loaded.
pub(crate) fn three<'a, const N: usize>(boxes: [View<'a>; N], rest: Rows<'a>) -> [Rows<'a>; 3] {
    std::array::from_fn(|i| match boxes.get(i) {
        Some(view) => {
            view.grid.assert_like(rest.grid);
            Rows::from(*view)
        }
        None => rest,
    })
}

/// An elementwise formula. A trait, not a closure, as it must work on vectors of any level.
pub(crate) trait Formula: Copy + Sync {
    /// Whether it looks at columns.
    const COLUMNS: bool;
    /// The new y of three inputs, the old y, and four columns at the channel.
    ///
    /// # Safety
    /// The processor has the features of `S`.
    unsafe fn at<S: Simd>(self, inputs: [S::V; 3], y: S::V, k: [S::V; 4]) -> S::V;
}

/// `formula!(Name { fields }, columns, |S, [inputs], y, k| body)`.
macro_rules! formula {
    ($name:ident { $($field:ident),* }, $columns:literal, |$s:ident, $inputs:pat_param, $y:pat_param, $k:pat_param| $body:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $field: f32),*
        }

        impl crate::rows::Formula for $name {
            const COLUMNS: bool = $columns;

            #[inline(always)]
            #[allow(unused_unsafe, reason = "some bodies only name an operand")]
            unsafe fn at<$s: crate::simd::Simd>(
                self,
                $inputs: [$s::V; 3],
                $y: $s::V,
                $k: [$s::V; 4],
            ) -> $s::V {
                // SAFETY: the features are those of the caller.
                unsafe {
                    $(let $field = $s::splat(self.$field);)*
                    $body
                }
            }
        }
    };
}
pub(crate) use formula;

/// `value`, or `slope * value` where the sign is not positive.
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn leaky<S: Simd>(sign: S::V, value: S::V, slope: S::V) -> S::V {
    // The factor is chosen and not the product: in place, the choice between a value and its product
    // would be compiled to a masked store, which is slow on some processors.
    // SAFETY: guaranteed by the caller.
    unsafe { S::mul(value, S::where_positive(sign, S::splat(1.0), slope)) }
}

/// Rows of y = f(inputs, y, columns).
#[derive(Clone, Copy)]
pub(crate) struct Apply<'a, F> {
    /// Boxes like y.
    inputs: [Rows<'a>; 3],
    y: Rows<'a>,
    /// As many values as channels; empty for a formula without columns.
    columns: [&'a [f32]; 4],
    f: F,
}

impl<'a, F: Formula> Apply<'a, F> {
    /// Of a formula without columns.
    pub(crate) fn new<const N: usize>(inputs: [View<'a>; N], y: Rows<'a>, f: F) -> Self {
        assert!(!F::COLUMNS, "a formula of columns");
        Apply {
            inputs: three(inputs, y),
            y,
            columns: [&[]; 4],
            f,
        }
    }

    /// Of a formula that looks at columns.
    pub(crate) fn with_columns<const N: usize>(
        inputs: [View<'a>; N],
        y: Rows<'a>,
        columns: [&'a [f32]; 4],
        f: F,
    ) -> Self {
        let channels = y.grid.channels;
        let fit = columns.iter().all(|column| column.len() == channels);
        assert!(F::COLUMNS && fit, "columns of {channels} channels");
        Apply {
            inputs: three(inputs, y),
            y,
            columns,
            f,
        }
    }

    /// All rows, on the threads of a team.
    ///
    /// # Safety
    /// no other thread accesses y, nor writes the inputs, before this returns.
    pub(crate) unsafe fn all(
        self,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<(), Canceled> {
        let (level, grid) = (team.level(), self.y.grid);
        let cost = ELEMENT * (grid.extent[2] * grid.channels) as u64;
        team.ranges(progress, grid.rows(), cost, &|rows| {
            // SAFETY: guaranteed by the caller; the team has the level, and each row is in one range.
            unsafe { level.run(ApplyRows { apply: self, rows }) };
        })
    }
}

/// Some of the rows. Pointers: the boxes have the rows, and no other thread accesses those of y.
pub(crate) struct ApplyRows<'a, F> {
    pub(crate) apply: Apply<'a, F>,
    pub(crate) rows: Range<usize>,
}

impl<F: Formula> Op for ApplyRows<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Apply {
            inputs: [a, b, c],
            y,
            columns,
            f,
        } = self.apply;
        let (width, channels) = (y.grid.extent[2], y.grid.channels);
        let pitch = [a, b, c, y].map(|x| x.grid.pitch[3]);
        let joined = !F::COLUMNS && pitch == [channels; 4];
        for index in self.rows {
            // SAFETY: guaranteed by the caller; all boxes have one shape, and columns are as many as channels.
            unsafe {
                let start = [a, b, c, y].map(|x| x.start(index));
                if joined {
                    stretch::<S, F>(f, start, width * channels);
                } else if F::COLUMNS {
                    row::<S, F>(f, start, pitch, columns, width);
                } else {
                    for w in 0..width {
                        let next = |i: usize| start[i].wrapping_add((w + DISTANCE) * pitch[i]);
                        for line in (0..channels.min(AHEAD)).step_by(LINE) {
                            S::expect(next(0).wrapping_add(line));
                            S::prefetch(next(3).wrapping_add(line));
                        }
                        stretch::<S, F>(f, moved(start, pitch, w), channels);
                    }
                }
            }
        }
    }
}

/// The pointers at position `w`.
///
/// # Safety
/// The rows that begin there have the position.
#[inline(always)]
unsafe fn moved(p: [*mut f32; 4], pitch: [usize; 4], w: usize) -> [*mut f32; 4] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        [
            p[0].add(w * pitch[0]),
            p[1].add(w * pitch[1]),
            p[2].add(w * pitch[2]),
            p[3].add(w * pitch[3]),
        ]
    }
}

/// `len` contiguous elements, without columns.
///
/// # Safety
/// The processor has the features of `S`. `len` elements of the inputs can be read and of y, the last
/// of them, be read and written; no other thread accesses these.
#[inline(always)]
unsafe fn stretch<S: Simd, F: Formula>(f: F, p: [*mut f32; 4], len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let zero = S::splat(0.0);
        let mut at = 0;
        while at + S::LANES <= len {
            element::<S, F, true>(f, p, at, S::LANES, [zero; 4]);
            at += S::LANES;
        }
        if at < len {
            element::<S, F, false>(f, p, at, len - at, [zero; 4]);
        }
    }
}

/// A row in the order of memory; the columns, which are in the L1 cache, are loaded at each position.
///
/// # Safety
/// As for `stretch`, of `width` positions of as many channels as each column has.
#[inline(always)]
unsafe fn row<S: Simd, F: Formula>(
    f: F,
    start: [*mut f32; 4],
    pitch: [usize; 4],
    columns: [&[f32]; 4],
    width: usize,
) {
    let channels = columns[0].len();
    let whole = channels / S::LANES * S::LANES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        if channels == S::LANES {
            let k = columns.map(|k| S::load(k.as_ptr()));
            for w in 0..width {
                element::<S, F, true>(f, moved(start, pitch, w), 0, S::LANES, k);
            }
            return;
        }
        for w in 0..width {
            let p = moved(start, pitch, w);
            for at in (0..whole).step_by(S::LANES) {
                let k = columns.map(|k| S::load(k.as_ptr().add(at)));
                element::<S, F, true>(f, p, at, S::LANES, k);
            }
            if whole < channels {
                let lanes = channels - whole;
                let k = columns.map(|k| S::load_part(k.as_ptr().add(whole), lanes));
                element::<S, F, false>(f, p, whole, lanes, k);
            }
        }
    }
}

/// A vector of elements; all lanes if `WHOLE`.
///
/// # Safety
/// As for `stretch`, of `lanes` lanes from `at` on.
#[inline(always)]
unsafe fn element<S: Simd, F: Formula, const WHOLE: bool>(
    f: F,
    p: [*mut f32; 4],
    at: usize,
    lanes: usize,
    k: [S::V; 4],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let y = p[3].add(at);
        if WHOLE {
            let inputs = [
                S::load(p[0].add(at)),
                S::load(p[1].add(at)),
                S::load(p[2].add(at)),
            ];
            S::store(y, f.at::<S>(inputs, S::load(y), k));
        } else {
            let part = |p: *mut f32| S::load_part(p.add(at), lanes);
            let inputs = [part(p[0]), part(p[1]), part(p[2])];
            S::store_part(y, lanes, f.at::<S>(inputs, S::load_part(y, lanes), k));
        }
    }
}
