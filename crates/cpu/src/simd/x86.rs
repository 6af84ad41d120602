//! AVX2 and AVX-512.

use super::{Op, Simd};
use std::arch::x86_64::*;

/// # Safety
/// The processor has AVX2 and FMA; the rest as for [`Op::run`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn on_avx2<O: Op>(op: O) -> O::Out {
    // SAFETY: guaranteed by the caller.
    unsafe { op.run::<Avx2>() }
}

/// # Safety
/// The processor has AVX-512F and AVX-512DQ; the rest as for [`Op::run`].
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(super) unsafe fn on_avx512<O: Op>(op: O) -> O::Out {
    // SAFETY: guaranteed by the caller.
    unsafe { op.run::<Avx512>() }
}

#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// Mask with the first `n` of 8 lanes set.
///
/// # Safety
/// The processor has AVX, and `n <= 8`.
#[inline(always)]
unsafe fn mask8(n: usize) -> __m256i {
    const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: guaranteed by the caller; 8 of the 16 elements follow.
    unsafe { _mm256_loadu_si256(BITS.as_ptr().add(8 - n).cast()) }
}

/// A vector, which only code that answers for the features makes; see [`Simd`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32x8(__m256);

impl Simd for Avx2 {
    type V = F32x8;
    const LANES: usize = 8;
    const ACCUMULATORS: usize = 12;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(a: f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x8(unsafe { _mm256_set1_ps(a) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x8(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, F32x8(a): Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe { _mm256_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x8(unsafe { _mm256_maskload_ps(p, mask8(n)) })
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, n: usize, F32x8(a): Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe { _mm256_maskstore_ps(p, mask8(n), a) }
    }
    #[inline(always)]
    fn add(F32x8(a): Self::V, F32x8(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe { _mm256_add_ps(a, b) })
    }
    #[inline(always)]
    fn sub(F32x8(a): Self::V, F32x8(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe { _mm256_sub_ps(a, b) })
    }
    #[inline(always)]
    fn mul(F32x8(a): Self::V, F32x8(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe { _mm256_mul_ps(a, b) })
    }
    #[inline(always)]
    fn fma(F32x8(a): Self::V, F32x8(b): Self::V, F32x8(c): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe { _mm256_fmadd_ps(a, b, c) })
    }
    #[inline(always)]
    fn sum(F32x8(a): Self::V) -> f32 {
        // SAFETY: a vector proves the features.
        unsafe {
            let q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
            let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
            _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)))
        }
    }
    #[inline(always)]
    unsafe fn sum4([F32x8(a), F32x8(b), F32x8(c), F32x8(d)]: [Self::V; 4], to: *mut f32) {
        // SAFETY: vectors prove the features; the rest is guaranteed by the caller.
        unsafe {
            let (p, q) = (_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let halves = _mm256_hadd_ps(p, q);
            let high = _mm256_extractf128_ps(halves, 1);
            _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), high));
        }
    }
    #[inline(always)]
    unsafe fn store_columns(
        [F32x8(a), F32x8(b), F32x8(c), F32x8(d)]: [Self::V; 4],
        to: *mut f32,
        pitch: usize,
    ) {
        // SAFETY: vectors prove the features; the rest is guaranteed by the caller.
        unsafe {
            let low = |a, b| _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
            let high = |a, b| _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
            let (p, q) = (low(a, b), low(c, d));
            let (r, s) = (high(a, b), high(c, d));
            let columns = [
                _mm256_unpacklo_pd(p, q),
                _mm256_unpackhi_pd(p, q),
                _mm256_unpacklo_pd(r, s),
                _mm256_unpackhi_pd(r, s),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                let column = _mm256_castpd_ps(column);
                _mm_storeu_ps(to.add(i * pitch), _mm256_castps256_ps128(column));
                let upper = _mm256_extractf128_ps(column, 1);
                _mm_storeu_ps(to.add((4 + i) * pitch), upper);
            }
        }
    }
    #[inline(always)]
    fn max(F32x8(x): Self::V, F32x8(m): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe {
            // Where one is NaN, the instruction answers the second.
            let none = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
            _mm256_blendv_ps(_mm256_max_ps(x, m), x, none)
        })
    }
    #[inline(always)]
    fn any_nan(F32x8(a): Self::V) -> bool {
        // SAFETY: a vector proves the features.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0 }
    }
    #[inline(always)]
    fn take_max(
        F32x8(x): Self::V,
        F32x8(m): Self::V,
        F32x8(t): Self::V,
        F32x8(i): Self::V,
    ) -> (Self::V, Self::V) {
        // SAFETY: a vector proves the features.
        unsafe {
            let larger = _mm256_cmp_ps(x, m, _CMP_GT_OQ);
            let take = _mm256_or_ps(larger, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
            (
                F32x8(_mm256_blendv_ps(m, x, take)),
                F32x8(_mm256_blendv_ps(i, t, take)),
            )
        }
    }
    #[inline(always)]
    fn where_eq(F32x8(a): Self::V, F32x8(b): Self::V, F32x8(v): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe { _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), v) })
    }
    #[inline(always)]
    fn where_positive(F32x8(sign): Self::V, F32x8(v): Self::V, F32x8(other): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe {
            let positive = _mm256_cmp_ps(sign, _mm256_setzero_ps(), _CMP_GT_OQ);
            _mm256_blendv_ps(other, v, positive)
        })
    }
    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: an address that is asked for is not read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn expect(p: *const f32) {
        // SAFETY: an address that is asked for is not read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// Mask with the first `n` of 16 lanes set.
#[inline(always)]
fn mask16(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// A vector, which only code that answers for the features makes; see [`Simd`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32x16(__m512);

impl Simd for Avx512 {
    type V = F32x16;
    const LANES: usize = 16;
    const ACCUMULATORS: usize = 24;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(a: f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe { _mm512_set1_ps(a) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, F32x16(a): Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe { _mm512_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe { _mm512_maskz_loadu_ps(mask16(n), p) })
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, n: usize, F32x16(a): Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe { _mm512_mask_storeu_ps(p, mask16(n), a) }
    }
    #[inline(always)]
    fn add(F32x16(a): Self::V, F32x16(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe { _mm512_add_ps(a, b) })
    }
    #[inline(always)]
    fn sub(F32x16(a): Self::V, F32x16(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe { _mm512_sub_ps(a, b) })
    }
    #[inline(always)]
    fn mul(F32x16(a): Self::V, F32x16(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe { _mm512_mul_ps(a, b) })
    }
    #[inline(always)]
    fn fma(F32x16(a): Self::V, F32x16(b): Self::V, F32x16(c): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe { _mm512_fmadd_ps(a, b, c) })
    }
    #[inline(always)]
    fn sum(F32x16(a): Self::V) -> f32 {
        // SAFETY: a vector proves the features.
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    unsafe fn sum4([F32x16(a), F32x16(b), F32x16(c), F32x16(d)]: [Self::V; 4], to: *mut f32) {
        // SAFETY: vectors prove the features; the rest is guaranteed by the caller.
        unsafe {
            // All of 512 bits: shorter ones reach only half of the registers.
            let pair = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (p, q) = (pair(a, b), pair(c, d));
            let (p, q) = (_mm512_castps_pd(p), _mm512_castps_pd(q));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(p, q));
            let all = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
            let all = _mm512_add_ps(all, _mm512_shuffle_f32x4::<0b0100_1110>(all, all));
            let all = _mm512_add_ps(all, _mm512_shuffle_f32x4::<0b1011_0001>(all, all));
            _mm_storeu_ps(to, _mm512_castps512_ps128(all));
        }
    }
    #[inline(always)]
    unsafe fn store_columns(
        [F32x16(a), F32x16(b), F32x16(c), F32x16(d)]: [Self::V; 4],
        to: *mut f32,
        pitch: usize,
    ) {
        // SAFETY: vectors prove the features; the rest is guaranteed by the caller.
        unsafe {
            let low = |a, b| _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
            let high = |a, b| _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
            let (p, q) = (low(a, b), low(c, d));
            let (r, s) = (high(a, b), high(c, d));
            let columns = [
                _mm512_unpacklo_pd(p, q),
                _mm512_unpackhi_pd(p, q),
                _mm512_unpacklo_pd(r, s),
                _mm512_unpackhi_pd(r, s),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                let column = _mm512_castpd_ps(column);
                let to = to.add(i * pitch);
                _mm_storeu_ps(to, _mm512_castps512_ps128(column));
                _mm_storeu_ps(to.add(4 * pitch), _mm512_extractf32x4_ps::<1>(column));
                _mm_storeu_ps(to.add(8 * pitch), _mm512_extractf32x4_ps::<2>(column));
                _mm_storeu_ps(to.add(12 * pitch), _mm512_extractf32x4_ps::<3>(column));
            }
        }
    }
    #[inline(always)]
    fn max(F32x16(x): Self::V, F32x16(m): Self::V) -> Self::V {
        // Where one is NaN, the instruction answers the second.
        // SAFETY: a vector proves the features.
        F32x16(unsafe { _mm512_mask_max_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x, m) })
    }
    #[inline(always)]
    fn any_nan(F32x16(a): Self::V) -> bool {
        // SAFETY: a vector proves the features.
        unsafe { _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0 }
    }
    #[inline(always)]
    fn take_max(
        F32x16(x): Self::V,
        F32x16(m): Self::V,
        F32x16(t): Self::V,
        F32x16(i): Self::V,
    ) -> (Self::V, Self::V) {
        // SAFETY: a vector proves the features.
        unsafe {
            let larger = _mm512_cmp_ps_mask(x, m, _CMP_GT_OQ);
            let take = larger | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            (
                F32x16(_mm512_mask_blend_ps(take, m, x)),
                F32x16(_mm512_mask_blend_ps(take, i, t)),
            )
        }
    }
    #[inline(always)]
    fn where_eq(F32x16(a): Self::V, F32x16(b): Self::V, F32x16(v): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), v) })
    }
    #[inline(always)]
    fn where_positive(
        F32x16(sign): Self::V,
        F32x16(v): Self::V,
        F32x16(other): Self::V,
    ) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe {
            let positive = _mm512_cmp_ps_mask(sign, _mm512_setzero_ps(), _CMP_GT_OQ);
            _mm512_mask_blend_ps(positive, other, v)
        })
    }
    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: an address that is asked for is not read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn expect(p: *const f32) {
        // SAFETY: an address that is asked for is not read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
