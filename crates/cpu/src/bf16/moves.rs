//! Copies, sums and constants in bf16.

use crate::conv::values::Values;
use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use half::bf16;

/// As [`crate::copy`] in bf16.
pub fn copy_bf16(call: &mut Call, x: View<bf16>, y: ViewMut<bf16>) -> Result<Work, Canceled> {
    let (bytes, from) = (x.bytes() + y.bytes(), Shared(x.data.as_ptr().cast_mut()));
    let grids = [y.grid, x.grid];
    stretches(
        call,
        grids,
        Shared(y.data.as_mut_ptr()),
        &|[to, from_at], len, to_all| {
            // SAFETY: elements of both boxes; y is borrowed alone, and each stretch is one thread's.
            unsafe {
                let from = from.get().cast_const().add(from_at);
                std::ptr::copy_nonoverlapping(from, to_all.add(to), len);
            }
        },
    )?;
    Ok(Work { flops: 0, bytes })
}

/// As [`crate::accumulate`] in bf16; sums are rounded.
pub fn accumulate_bf16(call: &mut Call, x: View<bf16>, y: ViewMut<bf16>) -> Result<Work, Canceled> {
    let (bytes, level) = (x.bytes() + 2 * y.bytes(), call.team.level());
    let work = Work {
        flops: y.grid.elements() as u64,
        bytes,
    };
    let from = Shared(x.data.as_ptr().cast_mut());
    let grids = [y.grid, x.grid];
    stretches(
        call,
        grids,
        Shared(y.data.as_mut_ptr()),
        &|[to, from_at], len, to_all| {
            // SAFETY: as in `copy_bf16`; the team has the level.
            unsafe {
                level.run(Add {
                    from: from.get().cast_const().add(from_at),
                    to: to_all.add(to),
                    len,
                });
            }
        },
    )?;
    Ok(work)
}

/// As [`crate::fill`] in bf16.
pub fn fill_bf16(call: &mut Call, value: bf16, y: ViewMut<bf16>) -> Result<Work, Canceled> {
    let bytes = y.bytes();
    let grids = [y.grid, y.grid];
    stretches(
        call,
        grids,
        Shared(y.data.as_mut_ptr()),
        &|[to, _], len, to_all| {
            // SAFETY: elements of y, which is borrowed alone, and each stretch is one thread's.
            unsafe { std::slice::from_raw_parts_mut(to_all.add(to), len) }.fill(value);
        },
    )?;
    Ok(Work { flops: 0, bytes })
}

/// y = x, in the type of y; with `rounds` what bf16 holds of x.
pub(crate) fn convert<A: Values, B: Values>(
    call: &mut Call,
    x: View<A>,
    y: ViewMut<B>,
    rounds: bool,
) -> Result<(), Canceled> {
    let (level, grids) = (call.team.level(), [y.grid, x.grid]);
    let from = Shared(x.data.as_ptr().cast_mut());
    stretches(
        call,
        grids,
        Shared(y.data.as_mut_ptr()),
        &|[to, from_at], len, to_all| {
            // SAFETY: as in `copy_bf16`; the team has the level.
            unsafe {
                level.run(Convert {
                    from: from.get().cast_const().add(from_at),
                    to: to_all.add(to),
                    len,
                    rounds,
                });
            }
        },
    )
}

/// Calls `visit(first elements, length, y)` for stretches that are contiguous in two boxes, y first, on the team.
fn stretches<E: Copy>(
    call: &mut Call,
    grids: [&Grid; 2],
    y: Shared<E>,
    visit: &(dyn Fn([usize; 2], usize, *mut E) + Sync),
) -> Result<(), Canceled> {
    let [grid, other] = grids;
    other.assert_like(grid);
    let (width, channels) = (grid.extent[2], grid.channels);
    let is_joined = grids.iter().all(|grid| grid.pitch[3] == channels);
    let cost = ELEMENT * (width * channels) as u64;
    call.team.ranges(call.progress, grid.rows(), cost, &|rows| {
        for row in rows {
            let start = grids.map(|grid| grid.row_offset(row));
            if is_joined {
                visit(start, width * channels, y.get());
                continue;
            }
            for w in 0..width {
                let at = [0, 1].map(|i| start[i] + w * grids[i].pitch[3]);
                visit(at, channels, y.get());
            }
        }
    })
}

/// Adds `len` elements. Pointers: to these elements; no other thread accesses those that are written.
struct Add {
    from: *const bf16,
    to: *mut bf16,
    len: usize,
}

impl Op for Add {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in (0..self.len).step_by(S::LANES) {
            let lanes = (self.len - at).min(S::LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = self.to.add(at);
                let a = bf16::load::<S>(self.from.add(at), lanes);
                bf16::store::<S>(to, lanes, S::add(a, bf16::load::<S>(to, lanes)));
            }
        }
    }
}

/// Converts `len` elements. Pointers: to these elements; no other thread accesses those that are written.
struct Convert<A, B> {
    from: *const A,
    to: *mut B,
    len: usize,
    rounds: bool,
}

impl<A: Values, B: Values> Op for Convert<A, B> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in (0..self.len).step_by(S::LANES) {
            let lanes = (self.len - at).min(S::LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let mut a = A::load::<S>(self.from.add(at), lanes);
                if self.rounds {
                    a = S::round_to_bf16(a);
                }
                B::store::<S>(self.to.add(at), lanes, a);
            }
        }
    }
}
