//! The discrete Fourier transform along one dim, of vectors of channels.
//!
//! Channels are innermost, so each lane transforms a line of its own, and a transform is a few
//! butterflies on whole vectors. Libraries transform lines whose elements are neighbors: they would
//! need the box transposed, and back.
//! Source: Cooley and Tukey, An Algorithm for the Machine Calculation of Complex Fourier Series
//! (1965).

use crate::simd::Simd;
use std::mem::MaybeUninit;

/// Points of the longest line.
pub(super) const LINE_MAX: usize = 32;
/// Points of the last step of each line.
const LAST: usize = 8;

/// Real and imaginary parts.
pub(super) type Complex<S> = [<S as Simd>::V; 2];

/// Where a line comes from.
pub(super) trait Feed: Copy {
    /// # Safety
    /// The processor has the features of `S`, and the line has a point `n`.
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S>;
}

/// Where a line goes.
pub(super) trait Sink: Copy {
    /// # Safety
    /// The processor has the features of `S`, and no other thread accesses the point.
    unsafe fn put<S: Simd>(self, k: usize, a: Complex<S>);
}

/// Transforms a line of `n` points, of which the first `count` are not zero: a sum of
/// exp(-2 pi i j k / n) times element j for each k. May go where it comes from.
///
/// # Safety
/// As for [`Feed::get`] below `count` and [`Sink::put`] below `n`.
#[inline(always)]
pub(super) unsafe fn transform<S: Simd>(n: usize, feed: impl Feed, count: usize, sink: impl Sink) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match n {
            8 => steps::<S, 1>(feed, count, sink),
            16 => steps::<S, 2>(feed, count, sink),
            32 => steps::<S, 4>(feed, count, sink),
            _ => unreachable!("no line of {n} points"),
        }
    }
}

/// A line of `R * LAST` points in two steps.
///
/// # Safety
/// As for [`transform`].
#[inline(always)]
unsafe fn steps<S: Simd, const R: usize>(feed: impl Feed, count: usize, sink: impl Sink) {
    // SAFETY: guaranteed by the caller; the first step writes all that the second reads.
    unsafe {
        let zero = [S::splat(0.0); 2];
        let mut middle = [const { MaybeUninit::<Complex<S>>::uninit() }; LINE_MAX];
        for j in 0..LAST {
            let mut a = [zero; R];
            if count <= LAST {
                let first = if j < count { feed.get::<S>(j) } else { zero };
                a = [first; R];
            } else {
                for (i, a) in a.iter_mut().enumerate() {
                    let n = j + LAST * i;
                    if n < count {
                        *a = feed.get::<S>(n);
                    }
                }
                a = first_step::<S, R>(a);
            }
            for (q, a) in a.into_iter().enumerate() {
                let a = if q == 0 {
                    a
                } else {
                    turn::<S>(a, LINE_MAX / (R * LAST) * q * j)
                };
                middle[q * LAST + j].write(a);
            }
        }
        for q in 0..R {
            let mut a = [zero; LAST];
            for (j, a) in a.iter_mut().enumerate() {
                *a = middle[q * LAST + j].assume_init();
            }
            for (i, a) in eight::<S>(a).into_iter().enumerate() {
                sink.put::<S>(q + R * i, a);
            }
        }
    }
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn first_step<S: Simd, const R: usize>(mut a: [Complex<S>; R]) -> [Complex<S>; R] {
    match R {
        2 => [a[0], a[1]] = [add::<S>(a[0], a[1]), sub::<S>(a[0], a[1])],
        4 => [a[0], a[1], a[2], a[3]] = four::<S>([a[0], a[1], a[2], a[3]]),
        _ => {}
    }
    a
}

#[inline(always)]
fn add<S: Simd>(a: Complex<S>, b: Complex<S>) -> Complex<S> {
    [S::add(a[0], b[0]), S::add(a[1], b[1])]
}

#[inline(always)]
fn sub<S: Simd>(a: Complex<S>, b: Complex<S>) -> Complex<S> {
    [S::sub(a[0], b[0]), S::sub(a[1], b[1])]
}

/// a - i b.
#[inline(always)]
fn add_turned<S: Simd>(a: Complex<S>, b: Complex<S>) -> Complex<S> {
    [S::add(a[0], b[1]), S::sub(a[1], b[0])]
}

/// a + i b.
#[inline(always)]
fn sub_turned<S: Simd>(a: Complex<S>, b: Complex<S>) -> Complex<S> {
    [S::sub(a[0], b[1]), S::add(a[1], b[0])]
}

#[inline(always)]
fn four<S: Simd>([a, b, c, d]: [Complex<S>; 4]) -> [Complex<S>; 4] {
    let (even, odd) = (add::<S>(a, c), add::<S>(b, d));
    let (low, high) = (sub::<S>(a, c), sub::<S>(b, d));
    [
        add::<S>(even, odd),
        add_turned::<S>(low, high),
        sub::<S>(even, odd),
        sub_turned::<S>(low, high),
    ]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn eight<S: Simd>([a0, a1, a2, a3, a4, a5, a6, a7]: [Complex<S>; 8]) -> [Complex<S>; 8] {
    // SAFETY: guaranteed by the caller.
    let (root, minus) = unsafe { (S::splat(QUARTER[4]), S::splat(-QUARTER[4])) };
    let [e0, e1, e2, e3] = four::<S>([a0, a2, a4, a6]);
    let [o0, o1, o2, o3] = four::<S>([a1, a3, a5, a7]);
    // Eighths of a turn, but for the root of a half.
    let [r1, i1] = [S::add(o1[0], o1[1]), S::sub(o1[1], o1[0])];
    let [r3, i3] = [S::sub(o3[1], o3[0]), S::add(o3[0], o3[1])];
    [
        add::<S>(e0, o0),
        [S::fma(r1, root, e1[0]), S::fma(i1, root, e1[1])],
        add_turned::<S>(e2, o2),
        [S::fma(r3, root, e3[0]), S::fma(i3, minus, e3[1])],
        sub::<S>(e0, o0),
        [S::fma(r1, minus, e1[0]), S::fma(i1, minus, e1[1])],
        sub_turned::<S>(e2, o2),
        [S::fma(r3, minus, e3[0]), S::fma(i3, root, e3[1])],
    ]
}

/// a * exp(-2 pi i k / LINE_MAX).
///
/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn turn<S: Simd>([re, im]: Complex<S>, k: usize) -> Complex<S> {
    let [cosine, sine] = TURNS[k];
    // SAFETY: guaranteed by the caller.
    let (c, s, minus) = unsafe { (S::splat(cosine), S::splat(sine), S::splat(-sine)) };
    [
        S::fma(im, s, S::mul(re, c)),
        S::fma(re, minus, S::mul(im, c)),
    ]
}

/// Cosines of j / 32 of a turn.
const QUARTER: [f32; 9] = [
    1.0,
    0.980_785_3,
    0.923_879_5,
    0.831_469_6,
    0.707_106_77,
    0.555_570_24,
    0.382_683_43,
    0.195_090_32,
    0.0,
];

/// Cosine and sine of k / 32 of a turn.
const TURNS: [[f32; 2]; LINE_MAX] = {
    let mut turns = [[0.0; 2]; LINE_MAX];
    let mut k = 0;
    while k < LINE_MAX {
        turns[k] = [cosine(k), cosine(k + 24)];
        k += 1;
    }
    turns
};

const fn cosine(k: usize) -> f32 {
    match k % LINE_MAX {
        k @ 0..=8 => QUARTER[k],
        k @ 9..=16 => -QUARTER[16 - k],
        k @ 17..=24 => -QUARTER[k - 16],
        k => QUARTER[LINE_MAX - k],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{LANES_MAX, Level, Op};

    #[test]
    fn turns_are_cosines_and_sines() {
        for (k, [cosine, sine]) in TURNS.into_iter().enumerate() {
            let angle = std::f64::consts::TAU * k as f64 / LINE_MAX as f64;
            assert!((f64::from(cosine) - angle.cos()).abs() < 5e-8, "{k}");
            assert!((f64::from(sine) - angle.sin()).abs() < 5e-8, "{k}");
        }
    }

    /// A line of complex vectors.
    #[derive(Clone, Copy)]
    struct At(*mut f32);

    impl Feed for At {
        #[inline(always)]
        unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
            // SAFETY: guaranteed by the caller.
            unsafe { [0, 1].map(|part| S::load(self.0.add((2 * n + part) * S::LANES))) }
        }
    }

    impl Sink for At {
        #[inline(always)]
        unsafe fn put<S: Simd>(self, k: usize, [re, im]: Complex<S>) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                S::store(self.0.add(2 * k * S::LANES), re);
                S::store(self.0.add((2 * k + 1) * S::LANES), im);
            }
        }
    }

    struct Line<'a>(usize, usize, &'a mut [f32]);

    impl Op for Line<'_> {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let at = At(self.2.as_mut_ptr());
            // SAFETY: the slice holds a line.
            unsafe { transform::<S>(self.0, at, self.1, at) }
        }
    }

    #[test]
    fn lines_are_sums_over_all_points() {
        let element = |n: usize, lane: usize| ((n * 37 + lane * 11) % 23) as f32 - 11.0;
        for level in Level::all_available() {
            let lanes = level.lanes();
            for n in [8, 16, 32] {
                for count in [1, 3, 5, 8, 9, n - 1, n] {
                    let mut line = vec![f32::NAN; 2 * LINE_MAX * LANES_MAX];
                    for i in 0..2 * lanes * count.min(n) {
                        line[i] = element(i / lanes, i % lanes);
                    }
                    // SAFETY: the level is available.
                    unsafe { level.run(Line(n, count.min(n), &mut line)) };
                    for (k, lane) in (0..n).flat_map(|k| (0..lanes).map(move |lane| (k, lane))) {
                        let (mut re, mut im) = (0.0, 0.0);
                        for j in 0..count.min(n) {
                            let angle = -std::f64::consts::TAU * (j * k) as f64 / n as f64;
                            let (sine, cosine) = angle.sin_cos();
                            let [a, b] = [0, 1].map(|part| f64::from(element(2 * j + part, lane)));
                            re += a * cosine - b * sine;
                            im += a * sine + b * cosine;
                        }
                        let got = [0, 1].map(|part| line[(2 * k + part) * lanes + lane]);
                        let error = (f64::from(got[0]) - re).hypot(f64::from(got[1]) - im);
                        assert!(error < 1e-4, "{level:?} {n} {count} {k}: {got:?} {re} {im}");
                    }
                }
            }
        }
    }
}
