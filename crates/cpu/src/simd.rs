//! Vectors of f32 at four instruction levels, and the dispatch on them.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::bf16;
use portable::Portable;

/// Lanes of the widest level.
pub(crate) const LANES_MAX: usize = 16;

/// Instruction level of the kernels.
///
/// A level is chosen once, when a [`crate::Team`] is made, and never looked up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust, 4 lanes, no fused multiply-add; runs everywhere.
    Portable,
    /// NEON of 64-bit ARM, 4 lanes with fused multiply-add; so far run in an emulator only
    /// (`make test-neon`), so its results are tested and its speed is not known.
    Neon,
    /// AVX2 and FMA, 8 lanes.
    Avx2,
    /// AVX-512F and AVX-512DQ (products of 64-bit integers), 16 lanes.
    Avx512,
    /// The same with AVX512_BF16, which multiplies pairs of bf16; in f32 it computes what AVX-512 does.
    Avx512Bf16,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Level; 5] = [
        Level::Portable,
        Level::Neon,
        Level::Avx2,
        Level::Avx512,
        Level::Avx512Bf16,
    ];

    /// The highest level this processor has.
    pub fn detect() -> Level {
        let best = Level::all_available().last();
        best.unwrap_or(Level::Portable)
    }

    /// The levels that this processor has, lowest first.
    pub fn all_available() -> impl Iterator<Item = Level> {
        Level::ALL.into_iter().filter(|level| level.available())
    }

    /// Its name in options and variables.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512_bf16",
        }
    }

    /// The level of a name, in any case; `None` of another word.
    pub fn named(name: &str) -> Option<Level> {
        let name = name.to_ascii_lowercase();
        Level::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Whether this processor has the level.
    pub fn available(self) -> bool {
        match self {
            Level::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(not(target_arch = "aarch64"))]
            Level::Neon => false,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && Level::Avx2.available()
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => {
                is_x86_feature_detected!("avx512bf16") && Level::Avx512.available()
            }
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 | Level::Avx512Bf16 => false,
        }
    }

    /// Elements of f32 in one vector.
    pub fn lanes(self) -> usize {
        match self {
            Level::Portable | Level::Neon => 4,
            Level::Avx2 => 8,
            Level::Avx512 | Level::Avx512Bf16 => 16,
        }
    }

    /// Accumulators that a register tile may hold; the rest is for operands.
    pub(crate) fn accumulators(self) -> usize {
        match self {
            Level::Portable | Level::Avx2 => 12,
            Level::Neon | Level::Avx512 | Level::Avx512Bf16 => 24,
        }
    }

    /// Runs `op` compiled for this level.
    ///
    /// # Safety
    /// The processor has the level, as it has that of every [`crate::Team`], and what the operation
    /// says of its pointers holds.
    #[inline]
    pub(crate) unsafe fn run<O: Op>(self, op: O) -> O::Out {
        debug_assert!(self.available(), "this processor lacks {self:?}");
        match self {
            // SAFETY: the portable level needs no processor feature; the rest is guaranteed by the caller.
            Level::Portable => unsafe { op.run::<Portable>() },
            // SAFETY: guaranteed by the caller.
            #[cfg(target_arch = "aarch64")]
            Level::Neon => unsafe { neon::on_neon(op) },
            #[cfg(not(target_arch = "aarch64"))]
            Level::Neon => unreachable!("level not available"),
            // SAFETY: guaranteed by the caller.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { x86::on_avx2(op) },
            // SAFETY: guaranteed by the caller.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 => unsafe { x86::on_avx512(op) },
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 | Level::Avx512Bf16 => {
                unreachable!("level not available")
            }
        }
    }

    /// Whether the level multiplies pairs of bf16; see [`Pairs`].
    pub(crate) fn has_pairs(self) -> bool {
        match self {
            Level::Portable | Level::Neon | Level::Avx2 | Level::Avx512 => false,
            Level::Avx512Bf16 => true,
        }
    }

    /// Runs `op` compiled for a level that has [`Pairs`]. Panics on any other.
    ///
    /// # Safety
    /// As for [`Level::run`].
    #[inline]
    pub(crate) unsafe fn run_pairs<O: PairOp>(self, op: O) -> O::Out {
        debug_assert!(self.available(), "this processor lacks {self:?}");
        match self {
            // SAFETY: guaranteed by the caller.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => unsafe { x86::on_avx512_bf16(op) },
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx512Bf16 => {
                drop(op);
                unreachable!("level not available")
            }
            Level::Portable | Level::Neon | Level::Avx2 | Level::Avx512 => {
                unreachable!("{self:?} has no pairs of bf16")
            }
        }
    }
}

/// A computation that can be compiled for any level.
///
/// `run` must be `#[inline(always)]`, and so must all that it calls in its hot loops:
/// only code inlined into the entry of a level is compiled with the features of the level.
pub(crate) trait Op {
    type Out;
    /// # Safety
    /// The processor has the features of `S`, and what the operation says of its pointers holds. One
    /// that says nothing has none.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// A computation that can be compiled for any level with [`Pairs`]; as [`Op`].
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only AVX-512 has pairs")
)]
pub(crate) trait PairOp {
    type Out;
    /// # Safety
    /// As for [`Op::run`].
    unsafe fn run<S: Pairs>(self) -> Self::Out;
}

/// Products of pairs of bf16. A vector of pairs has a word in each lane: the first of a pair in its low
/// half, the second in its high half.
///
/// Subnormal operands count as zero, and so do subnormal results. Rounding is to the nearest even.
///
/// # Safety
/// Of all functions: the processor has the features of [`Level::run_pairs`].
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only AVX-512 has pairs")
)]
pub(crate) trait Pairs: Simd {
    /// Per lane `acc` plus the products of the first and the second of the pairs, in f32.
    ///
    /// # Safety
    /// As said above.
    unsafe fn dot2(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Neighbors of two vectors, rounded to bf16: lane i has elements 2 i and 2 i + 1 of `low` followed by
    /// `high`.
    ///
    /// # Safety
    /// As said above.
    unsafe fn neighbors(low: Self::V, high: Self::V) -> Self::V;
    /// Lane i has the lanes i of both, rounded to bf16.
    ///
    /// # Safety
    /// As said above.
    unsafe fn zip(first: Self::V, second: Self::V) -> Self::V;
    /// Lane i has the lanes i of both, which are values that bf16 holds.
    ///
    /// # Safety
    /// As said above.
    unsafe fn join(first: Self::V, second: Self::V) -> Self::V;
    /// As [`Simd::store_bf16`], but subnormals become zeros.
    ///
    /// # Safety
    /// As said above, and `LANES` elements can be written from `p` on.
    unsafe fn store_normal(p: *mut bf16, a: Self::V);
}

/// Vectors of f32 at one level.
///
/// Only `splat`, `load` and `load_part` make a vector, and their callers answer for the features of
/// the level. So a vector proves that the processor has them, and what works on vectors is safe.
pub(crate) trait Simd: Copy + 'static {
    type V: Copy;
    const LANES: usize;
    const ACCUMULATORS: usize;
    /// Input channels that one turn of the innermost loop of a convolution takes.
    const UNROLL: usize;

    /// # Safety
    /// The processor has the features of the level.
    unsafe fn splat(a: f32) -> Self::V;
    /// # Safety
    /// The processor has the features of the level, and `LANES` elements can be read from `p` on.
    unsafe fn load(p: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` elements can be written from `p` on.
    unsafe fn store(p: *mut f32, a: Self::V);
    /// First `n` lanes, the rest zero.
    ///
    /// # Safety
    /// The processor has the features of the level, `n <= LANES`, and `n` elements can be read from
    /// `p` on.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V;
    /// First `n` lanes.
    ///
    /// # Safety
    /// `n <= LANES`, and `n` elements can be written from `p` on.
    unsafe fn store_part(p: *mut f32, n: usize, a: Self::V);
    /// `LANES` elements of bf16.
    ///
    /// # Safety
    /// The processor has the features of the level, and the elements can be read from `p` on.
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// First `n` lanes of bf16, the rest zero.
    ///
    /// # Safety
    /// As for `load_part`.
    unsafe fn load_bf16_part(p: *const bf16, n: usize) -> Self::V;
    /// Per lane the nearest bf16, of two the even one; NaN stays NaN.
    fn round_to_bf16(a: Self::V) -> Self::V;
    /// The lanes rounded to bf16.
    ///
    /// # Safety
    /// `LANES` elements can be written from `p` on.
    unsafe fn store_bf16(p: *mut bf16, a: Self::V);
    /// First `n` lanes rounded to bf16.
    ///
    /// # Safety
    /// As for `store_part`.
    unsafe fn store_bf16_part(p: *mut bf16, n: usize, a: Self::V);
    fn add(a: Self::V, b: Self::V) -> Self::V;
    fn sub(a: Self::V, b: Self::V) -> Self::V;
    fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a * b + c` of single numbers, in one instruction where the level has one.
    fn multiply_add(a: f32, b: f32, c: f32) -> f32;
    /// Sum of the lanes, in a fixed order.
    fn sum(a: Self::V) -> f32;
    /// The sums of the lanes of each, to four elements.
    ///
    /// # Safety
    /// Four elements can be written from `to` on.
    unsafe fn sum4(a: [Self::V; 4], to: *mut f32);
    /// Lane `i` of all four to the four elements from `to + i * pitch` on.
    ///
    /// # Safety
    /// These elements of every lane can be written.
    unsafe fn store_columns(a: [Self::V; 4], to: *mut f32, pitch: usize);
    /// Per lane `x` where `x > m` or `x` is NaN, else `m`.
    fn max(x: Self::V, m: Self::V) -> Self::V;
    /// Whether a lane is NaN.
    fn any_nan(a: Self::V) -> bool;
    /// Per lane `x > m` or `x` is NaN: (the larger, `t` where `x` was taken, else `i`).
    fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V);
    /// Per lane `v` where `a == b`, else zero.
    fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V;
    /// Per lane `v` where `sign > 0`, else `other`.
    fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V;
    /// Asks for the line of an element that will be written; any address is allowed.
    fn prefetch(p: *const f32);
    /// Asks for the line of an element that will be read after many others; any address is allowed.
    fn expect(p: *const f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers, others for each step.
    fn column<S: Simd>(step: usize) -> Vec<f32> {
        lanes::<S>(|i| ((i + 1) * step % 11) as f32 - 5.0)
    }

    fn lanes<S: Simd>(f: impl Fn(usize) -> f32) -> Vec<f32> {
        (0..S::LANES).map(f).collect()
    }

    /// # Safety
    /// The level is available.
    #[inline(always)]
    unsafe fn same<S: Simd>(v: S::V, want: Vec<f32>) {
        let mut got = vec![0.0; S::LANES];
        // SAFETY: guaranteed by the caller, and the vector has its lanes.
        unsafe { S::store(got.as_mut_ptr(), v) };
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&want), "{got:?} {want:?}");
    }

    /// Arithmetic of a level against the same lane by lane.
    struct Arithmetic;

    impl Op for Arithmetic {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let [b, c, d] = [4, 5, 6].map(column::<S>);
            // SAFETY: the level is available, and all slices have its lanes.
            unsafe {
                let [vb, vc, vd] = [&b, &c, &d].map(|v| S::load(v.as_ptr()));
                same::<S>(S::splat(2.5), vec![2.5; S::LANES]);
                same::<S>(S::add(vb, vc), lanes::<S>(|i| b[i] + c[i]));
                same::<S>(S::sub(vb, vc), lanes::<S>(|i| b[i] - c[i]));
                same::<S>(S::mul(vb, vc), lanes::<S>(|i| b[i] * c[i]));
                same::<S>(S::fma(vb, vc, vd), lanes::<S>(|i| b[i] * c[i] + d[i]));
                assert_eq!(S::sum(vb), b.iter().sum::<f32>());
                let mut sums = [0.0; 4];
                S::sum4([vb, vc, vd, vb], sums.as_mut_ptr());
                // Small integers: every order of summation is exact.
                let of = [&b, &c, &d, &b];
                assert_eq!(sums, of.map(|v| v.iter().sum::<f32>()));
            }
        }
    }

    /// What compares lanes, also with what is NaN.
    struct Comparisons;

    impl Op for Comparisons {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let [b, c, d] = [4, 5, 6].map(column::<S>);
            // SAFETY: the level is available, and all slices have its lanes.
            unsafe {
                let [vb, vc, vd] = [&b, &c, &d].map(|v| S::load(v.as_ptr()));
                for shift in 0..6 {
                    let none = f32::NAN;
                    let cycle = |of: [f32; 6]| lanes::<S>(|i| of[(i + shift) % 6]);
                    let x = cycle([4.0, none, -2.0, 3.0, 7.0, none]);
                    let m = cycle([4.0, 1.0, 5.0, none, 6.0, none]);
                    let (vx, vm) = (S::load(x.as_ptr()), S::load(m.as_ptr()));
                    let takes = |i: usize| x[i] > m[i] || x[i].is_nan();
                    let larger = lanes::<S>(|i| if takes(i) { x[i] } else { m[i] });
                    let (taken, index) = S::take_max(vx, vm, vc, vd);
                    same::<S>(taken, larger.clone());
                    same::<S>(S::max(vx, vm), larger);
                    assert_eq!(S::any_nan(vx), x.iter().any(|x| x.is_nan()));
                    same::<S>(index, lanes::<S>(|i| if takes(i) { c[i] } else { d[i] }));
                    let equal = |i: usize| if x[i] == m[i] { c[i] } else { 0.0 };
                    same::<S>(S::where_eq(vx, vm, vc), lanes::<S>(equal));
                    let chosen = |i: usize| if x[i] > 0.0 { c[i] } else { d[i] };
                    same::<S>(S::where_positive(vx, vc, vd), lanes::<S>(chosen));
                }
                assert!(!S::any_nan(vb));
                for at in 0..S::LANES {
                    let one = lanes::<S>(|i| if i == at { f32::NAN } else { f32::INFINITY });
                    assert!(S::any_nan(S::load(one.as_ptr())), "lane {at}");
                }
                // Of what is equal the second stays: here the zero with the sign.
                let [zero, signed] = [0.0, -0.0].map(|zero| S::splat(zero));
                same::<S>(S::max(zero, signed), vec![-0.0; S::LANES]);
            }
        }
    }

    /// Loads and stores of columns and of parts of vectors.
    struct Parts;

    impl Op for Parts {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            const PITCH: usize = 5;
            let [b, c, d] = [4, 5, 6].map(column::<S>);
            // SAFETY: the level is available, and all slices have its lanes.
            unsafe {
                let [vb, vc, vd] = [&b, &c, &d].map(|v| S::load(v.as_ptr()));
                let mut rows = vec![9.0; S::LANES * PITCH];
                S::prefetch(rows.as_ptr());
                S::expect(rows.as_ptr());
                S::store_columns([vb, vc, vd, vb], rows.as_mut_ptr(), PITCH);
                for (i, row) in rows.chunks(PITCH).enumerate() {
                    assert_eq!(row, [b[i], c[i], d[i], b[i], 9.0], "lane {i}");
                }
                for n in 0..=S::LANES {
                    // Of exactly n elements, so that a lane too far is a lane outside.
                    let part = b[..n].to_vec();
                    let loaded = S::load_part(part.as_ptr(), n);
                    same::<S>(loaded, lanes::<S>(|i| if i < n { b[i] } else { 0.0 }));
                    let mut stored = vec![9.0; S::LANES];
                    S::store_part(stored.as_mut_ptr(), n, vb);
                    let want = lanes::<S>(|i| if i < n { b[i] } else { 9.0 });
                    assert_eq!(stored, want, "{n} lanes stored");
                }
            }
        }
    }

    /// bf16 to f32 and back, of all bit patterns of bf16 and around all points where rounding changes.
    struct Conversions;

    impl Op for Conversions {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            for high in 0..=u16::MAX {
                let patterns = |i: usize| {
                    let low = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff][i % 6];
                    f32::from_bits(u32::from(high.wrapping_add(i as u16 / 6)) << 16 | low)
                };
                let wide = lanes::<S>(patterns);
                let narrow: Vec<bf16> = wide.iter().map(|a| bf16::from_f32(*a)).collect();
                let widened: Vec<f32> = narrow.iter().map(|a| shifted(*a)).collect();
                // SAFETY: the level is available, and all slices have its lanes.
                unsafe {
                    let v = S::load(wide.as_ptr());
                    same::<S>(S::round_to_bf16(v), widened.clone());
                    same::<S>(S::load_bf16(narrow.as_ptr()), widened);
                    let mut stored = vec![bf16::ONE; S::LANES];
                    S::store_bf16(stored.as_mut_ptr(), v);
                    assert_eq!(bits(&stored), bits(&narrow), "{wide:?}");
                }
            }
        }
    }

    fn shifted(a: bf16) -> f32 {
        f32::from_bits(u32::from(a.to_bits()) << 16)
    }

    fn bits(all: &[bf16]) -> Vec<u16> {
        all.iter().map(|a| a.to_bits()).collect()
    }

    /// Loads and stores of parts of vectors of bf16.
    struct HalfParts;

    impl Op for HalfParts {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let all: Vec<bf16> = column::<S>(4).into_iter().map(bf16::from_f32).collect();
            for n in 0..=S::LANES {
                // Of exactly n elements, so that a lane too far is a lane outside.
                let part = all[..n].to_vec();
                let want = lanes::<S>(|i| if i < n { shifted(all[i]) } else { 0.0 });
                // SAFETY: the level is available, and the elements are there.
                unsafe {
                    let loaded = S::load_bf16_part(part.as_ptr(), n);
                    same::<S>(loaded, want);
                    let mut stored = vec![bf16::NAN; n + 1];
                    S::store_bf16_part(stored.as_mut_ptr(), n, loaded);
                    assert_eq!(bits(&stored[..n]), bits(&part), "{n} lanes stored");
                    assert!(stored[n].is_nan(), "lane {n} of {n} stored");
                }
            }
        }
    }

    /// Products of pairs, and the two ways to make them.
    struct Products;

    impl PairOp for Products {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Pairs>(self) {
            let [b, c, d, e] = [4, 5, 6, 7].map(column::<S>);
            let pair = |a: f32, b: f32| {
                let [low, high] = [a, b].map(|a| u32::from(bf16::from_f32(a).to_bits()));
                f32::from_bits(low | high << 16)
            };
            // SAFETY: the level is available, and all slices have its lanes.
            unsafe {
                let [vb, vc, vd, ve] = [&b, &c, &d, &e].map(|v| S::load(v.as_ptr()));
                let zipped = S::zip(vb, vc);
                same::<S>(zipped, lanes::<S>(|i| pair(b[i], c[i])));
                same::<S>(S::join(vb, vc), lanes::<S>(|i| pair(b[i], c[i])));
                let both = [b.clone(), c.clone()].concat();
                let neighbors = lanes::<S>(|i| pair(both[2 * i], both[2 * i + 1]));
                same::<S>(S::neighbors(vb, vc), neighbors);
                let dot = S::dot2(vb, zipped, S::zip(vd, ve));
                same::<S>(dot, lanes::<S>(|i| b[i] + b[i] * d[i] + c[i] * e[i]));
            }
        }
    }

    /// The narrowing store of pairs, of the same patterns as [`Conversions`].
    struct NormalStores;

    impl PairOp for NormalStores {
        type Out = ();

        #[inline(always)]
        unsafe fn run<S: Pairs>(self) {
            for high in 0..=u16::MAX {
                let low = |i: usize| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff][i % 6];
                let wide = lanes::<S>(|i| f32::from_bits(u32::from(high) << 16 | low(i)));
                let normal = |a: &f32| {
                    let zero = 0f32.copysign(*a);
                    bf16::from_f32(if a.is_subnormal() { zero } else { *a })
                };
                let want: Vec<bf16> = wide.iter().map(normal).collect();
                let mut stored = vec![bf16::ONE; S::LANES];
                // SAFETY: the level is available, and the slices have its lanes.
                unsafe { S::store_normal(stored.as_mut_ptr(), S::load(wide.as_ptr())) };
                assert_eq!(bits(&stored), bits(&want), "{wide:?}");
            }
        }
    }

    #[test]
    fn all_levels_agree_with_plain_arithmetic() {
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            // SAFETY: the level is available.
            unsafe {
                level.run(Arithmetic);
                level.run(Comparisons);
                level.run(Parts);
                level.run(Conversions);
                level.run(HalfParts);
                if level.has_pairs() {
                    level.run_pairs(Products);
                    level.run_pairs(NormalStores);
                }
            }
        }
    }

    #[test]
    fn levels_and_their_vectors_agree() {
        struct Sizes;
        impl Op for Sizes {
            type Out = (usize, usize);
            #[inline(always)]
            unsafe fn run<S: Simd>(self) -> (usize, usize) {
                (S::LANES, S::ACCUMULATORS)
            }
        }
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            // SAFETY: the level is available.
            let sizes = unsafe { level.run(Sizes) };
            assert_eq!((level.lanes(), level.accumulators()), sizes);
        }
        assert_eq!(Level::Neon.available(), cfg!(target_arch = "aarch64"));
    }
}
