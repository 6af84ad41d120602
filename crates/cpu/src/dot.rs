//! Backward-data for few positions: reads the weights once, as they lie.
//!
//! Transposing the weights would cost more than the convolution itself. A tile of P positions x
//! Q input channels keeps a vector of partial sums over output channels for each of its elements.
//! Legend as in `tile`, with the roles of a backward job: C output channels, F input channels.

use crate::grid::Canceled;
use crate::simd::{Level, Op, Simd};
use crate::team::Team;
use crate::tile::{Job, P_MAX, Walk};

/// Positions above which packing the weights pays.
pub(crate) const POSITIONS_MAX: usize = 96;
/// Taps of one sweep.
const TAPS_MAX: usize = 64;
/// The widest tile in positions.
const P: usize = 4;

impl Job<'_> {
    /// [`Job::run`] on transposed weights, without the epilogue.
    pub(crate) fn run_dot(
        &self,
        w: &[f32],
        w_pitch: usize,
        team: &mut Team,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<(), Canceled> {
        let positions: usize = self.count.iter().product();
        let volume: usize = self.kernel.iter().product();
        assert!(
            self.c == 0 || w.len() >= (volume * self.f - 1) * w_pitch + self.c,
            "weights too short"
        );
        let level = team.level();
        let q_max = level.accumulators() / P;
        let units = self.f.div_ceil(q_max);
        let flops = 2 * self.taps_all() * self.c * self.f / units;
        team.units(
            progress,
            units,
            (flops * positions) as u64,
            &|unit, poll| {
                let q = crate::grid::part(self.f, unit, units);
                let mut walk = Walk::new(self.count, [self.x_place, self.y_place], 0);
                let mut at = 0;
                while at < positions {
                    let n = P.min(positions - at);
                    let [xo, yo] = walk.take(n);
                    self.dot(level, (w, w_pitch), (&xo, &yo, n), q.clone());
                    at += n;
                    if !poll.tick((flops * n) as u64) {
                        return;
                    }
                }
            },
        )
    }

    /// One tile.
    fn dot(
        &self,
        level: Level,
        (w, w_pitch): (&[f32], usize),
        (xo, yo, n): (&[usize; P_MAX], &[usize; P_MAX], usize),
        q: std::ops::Range<usize>,
    ) {
        let (all, volume) = (self.taps_all(), self.kernel.iter().product::<usize>());
        let mut taps = [(0, 0); TAPS_MAX];
        let (mut tap, mut load) = (0, self.accumulate);
        // Without any tap the outputs are still to be written.
        loop {
            let count = (all - tap).min(TAPS_MAX);
            for (i, at) in taps[..count].iter_mut().enumerate() {
                let (x, flipped) = self.tap(tap + i);
                *at = (x, ((volume - 1 - flipped) * self.f + q.start) * w_pitch);
            }
            let args = TileArgs {
                x: self.x.as_ptr(),
                xo,
                y: self.y.get(),
                yo,
                c0: q.start,
                w: w.as_ptr(),
                w_pitch,
                taps: &taps[..count],
                channels: self.c,
                load,
            };
            dispatch(level, n, q.len(), args);
            load = true;
            tap += count;
            if tap >= all {
                return;
            }
        }
    }
}

#[derive(Clone, Copy)]
struct TileArgs<'a> {
    x: *const f32,
    xo: &'a [usize; P_MAX],
    y: *mut f32,
    yo: &'a [usize; P_MAX],
    c0: usize,
    w: *const f32,
    w_pitch: usize,
    /// Offsets in x and w.
    taps: &'a [(usize, usize)],
    channels: usize,
    load: bool,
}

struct Tile<'a, const N: usize, const Q: usize>(TileArgs<'a>);

impl<const N: usize, const Q: usize> Op for Tile<'_, N, Q> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { N * Q > S::ACCUMULATORS } {
            unreachable!("tile larger than the registers of its level");
        }
        let t = self.0;
        // SAFETY: offsets are those of the job, whose boxes and weights were checked.
        unsafe {
            let mut acc = [[S::splat(0.0); Q]; N];
            let tail = t.channels % S::LANES;
            for (x, w) in t.taps {
                let (x, w) = (t.x.add(*x), t.w.add(*w));
                let mut c = 0;
                while c + S::LANES <= t.channels {
                    multiply::<S, N, Q>(&t, x.add(c), w.add(c), |p| S::load(p), &mut acc);
                    c += S::LANES;
                }
                if tail > 0 {
                    let load = |p: *const f32| S::load_part(p, tail);
                    multiply::<S, N, Q>(&t, x.add(c), w.add(c), load, &mut acc);
                }
            }
            for (n, row) in acc.iter().enumerate() {
                for (q, a) in row.iter().enumerate() {
                    let y = t.y.add(t.yo[n] + t.c0 + q);
                    *y = S::sum(*a) + if t.load { *y } else { 0.0 };
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply<S: Simd, const N: usize, const Q: usize>(
    t: &TileArgs,
    x: *const f32,
    w: *const f32,
    load: impl Fn(*const f32) -> S::V,
    acc: &mut [[S::V; Q]; N],
) {
    unsafe {
        let xv: [S::V; N] = std::array::from_fn(|n| load(x.add(t.xo[n])));
        for q in 0..Q {
            let wv = load(w.add(q * t.w_pitch));
            for n in 0..N {
                acc[n][q] = S::fma(xv[n], wv, acc[n][q]);
            }
        }
    }
}

fn dispatch(level: Level, n: usize, q: usize, t: TileArgs) {
    macro_rules! pick {
        ($n:literal: $($q:literal)*) => {
            match q {
                $($q => return level.run(Tile::<$n, $q>(t)),)*
                _ => {}
            }
        };
    }
    match n {
        1 => pick!(1: 1 2 3 4 5 6),
        2 => pick!(2: 1 2 3 4 5 6),
        3 => pick!(3: 1 2 3 4 5 6),
        4 => pick!(4: 1 2 3 4 5 6),
        _ => {}
    }
    unreachable!("no tile of {n} positions and {q} channels");
}
