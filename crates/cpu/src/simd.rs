//! Vectors of f32 at three instruction levels, and the dispatch on them.

/// Lanes of the widest level.
pub(crate) const LANES_MAX: usize = 16;

/// Instruction level of the kernels.
///
/// A level is chosen once, when a [`crate::Team`] is made, and never looked up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust, 4 lanes, no fused multiply-add; runs everywhere.
    Portable,
    /// AVX2 and FMA, 8 lanes.
    Avx2,
    /// AVX-512F, 16 lanes.
    Avx512,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    /// The highest level this processor has.
    pub fn detect() -> Level {
        let mut best = Level::Portable;
        for level in Level::ALL {
            if level.available() {
                best = level;
            }
        }
        best
    }

    /// Whether this processor has the level.
    pub fn available(self) -> bool {
        match self {
            Level::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => is_x86_feature_detected!("avx512f") && Level::Avx2.available(),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => false,
        }
    }

    /// Elements of f32 in one vector.
    pub fn lanes(self) -> usize {
        match self {
            Level::Portable => Portable::LANES,
            Level::Avx2 => 8,
            Level::Avx512 => 16,
        }
    }

    /// Accumulators that a register tile may hold; the rest is for operands.
    pub(crate) fn accumulators(self) -> usize {
        match self {
            Level::Portable | Level::Avx2 => 12,
            Level::Avx512 => 24,
        }
    }

    /// Runs `op` compiled for this level.
    ///
    /// The level must be available; [`crate::Team`] asserts it.
    #[inline]
    pub(crate) fn run<O: Op>(self, op: O) -> O::Out {
        match self {
            // SAFETY: the portable level needs no processor feature.
            Level::Portable => unsafe { op.run::<Portable>() },
            // SAFETY: the team that carries the level has checked that it is available.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { x86::on_avx2(op) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { x86::on_avx512(op) },
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => unreachable!("level not available"),
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
    /// The processor has the features of `S`; the pointers held by the operation are valid.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// A vector of f32.
///
/// # Safety
/// All functions need the features of the level, and pointers valid for the lanes they touch.
pub(crate) trait Simd: Copy + 'static {
    type V: Copy;
    const LANES: usize;
    const ACCUMULATORS: usize;

    unsafe fn splat(a: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, a: Self::V);
    /// First `n` lanes, the rest zero; `n <= LANES`.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V;
    /// First `n` lanes; `n <= LANES`.
    unsafe fn store_part(p: *mut f32, n: usize, a: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    unsafe fn sum(a: Self::V) -> f32;
    /// Per lane `x > m` or `x` is not a number: (the larger, `t` where `x` was taken, else `i`).
    unsafe fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V);
    /// Per lane `v` where `a == b`, else zero.
    unsafe fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V;
    /// Per lane `v` where `sign > 0`, else `other`.
    unsafe fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V;
}

/// Four lanes of plain Rust: what the baseline of x86-64 and of aarch64 holds in a register.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const ACCUMULATORS: usize = 12;

    #[inline(always)]
    unsafe fn splat(a: f32) -> Self::V {
        [a; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Self::V) {
        unsafe { p.cast::<[f32; 4]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
        let mut a = [0.0; 4];
        for (i, lane) in a.iter_mut().enumerate().take(n) {
            *lane = unsafe { *p.add(i) };
        }
        a
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, n: usize, a: Self::V) {
        for (i, lane) in a.iter().enumerate().take(n) {
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        zip(zip(a, b, |a, b| a * b), c, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sum(a: Self::V) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    unsafe fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V) {
        let (mut m, mut i) = (m, i);
        for lane in 0..4 {
            if x[lane] > m[lane] || x[lane].is_nan() {
                m[lane] = x[lane];
                i[lane] = t[lane];
            }
        }
        (m, i)
    }
    #[inline(always)]
    unsafe fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V {
        let mut r = [0.0; 4];
        for lane in 0..4 {
            if a[lane] == b[lane] {
                r[lane] = v[lane];
            }
        }
        r
    }
    #[inline(always)]
    unsafe fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V {
        let mut r = other;
        for lane in 0..4 {
            if sign[lane] > 0.0 {
                r[lane] = v[lane];
            }
        }
        r
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Op, Simd};
    use std::arch::x86_64::*;

    /// # Safety
    /// The processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn on_avx2<O: Op>(op: O) -> O::Out {
        unsafe { op.run::<Avx2>() }
    }

    /// # Safety
    /// The processor has AVX-512F.
    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) unsafe fn on_avx512<O: Op>(op: O) -> O::Out {
        unsafe { op.run::<Avx512>() }
    }

    #[derive(Clone, Copy)]
    pub(super) struct Avx2;

    /// Mask with the first `n` of 8 lanes set.
    #[inline(always)]
    unsafe fn mask8(n: usize) -> __m256i {
        const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        unsafe { _mm256_loadu_si256(BITS.as_ptr().add(8 - n).cast()) }
    }

    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;
        const ACCUMULATORS: usize = 12;

        #[inline(always)]
        unsafe fn splat(a: f32) -> Self::V {
            unsafe { _mm256_set1_ps(a) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self::V {
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, a: Self::V) {
            unsafe { _mm256_storeu_ps(p, a) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
            unsafe { _mm256_maskload_ps(p, mask8(n)) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f32, n: usize, a: Self::V) {
            unsafe { _mm256_maskstore_ps(p, mask8(n), a) }
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(a: Self::V) -> f32 {
            unsafe {
                let q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
                let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
                _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
            }
        }
        #[inline(always)]
        unsafe fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V) {
            unsafe {
                let larger = _mm256_cmp_ps(x, m, _CMP_GT_OQ);
                let take = _mm256_or_ps(larger, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
                (_mm256_blendv_ps(m, x, take), _mm256_blendv_ps(i, t, take))
            }
        }
        #[inline(always)]
        unsafe fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V {
            unsafe { _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), v) }
        }
        #[inline(always)]
        unsafe fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V {
            unsafe {
                let positive = _mm256_cmp_ps(sign, _mm256_setzero_ps(), _CMP_GT_OQ);
                _mm256_blendv_ps(other, v, positive)
            }
        }
    }

    #[derive(Clone, Copy)]
    pub(super) struct Avx512;

    /// Mask with the first `n` of 16 lanes set.
    #[inline(always)]
    fn mask16(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }

    impl Simd for Avx512 {
        type V = __m512;
        const LANES: usize = 16;
        const ACCUMULATORS: usize = 24;

        #[inline(always)]
        unsafe fn splat(a: f32) -> Self::V {
            unsafe { _mm512_set1_ps(a) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self::V {
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, a: Self::V) {
            unsafe { _mm512_storeu_ps(p, a) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
            unsafe { _mm512_maskz_loadu_ps(mask16(n), p) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f32, n: usize, a: Self::V) {
            unsafe { _mm512_mask_storeu_ps(p, mask16(n), a) }
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(a: Self::V) -> f32 {
            unsafe { _mm512_reduce_add_ps(a) }
        }
        #[inline(always)]
        unsafe fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V) {
            unsafe {
                let larger = _mm512_cmp_ps_mask(x, m, _CMP_GT_OQ);
                let take = larger | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
                (
                    _mm512_mask_blend_ps(take, m, x),
                    _mm512_mask_blend_ps(take, i, t),
                )
            }
        }
        #[inline(always)]
        unsafe fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V {
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), v) }
        }
        #[inline(always)]
        unsafe fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V {
            unsafe {
                let positive = _mm512_cmp_ps_mask(sign, _mm512_setzero_ps(), _CMP_GT_OQ);
                _mm512_mask_blend_ps(positive, other, v)
            }
        }
    }
}
