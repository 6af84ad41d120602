//! AVX2 and AVX-512.

use super::{Op, PairOp, Pairs, Simd};
use half::bf16;
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

/// # Safety
/// The processor has AVX-512F, AVX-512DQ and AVX512_BF16; the rest as for [`Op::run`].
#[target_feature(enable = "avx512f,avx512dq,avx512bf16,avx2,fma")]
pub(super) unsafe fn on_avx512_bf16<O: PairOp>(op: O) -> O::Out {
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
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x8(unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const bf16, n: usize) -> Self::V {
        let mut all = [bf16::ZERO; 8];
        // SAFETY: guaranteed by the caller; there are 8 elements.
        unsafe {
            for (i, a) in all.iter_mut().enumerate().take(n) {
                *a = *p.add(i);
            }
            Self::load_bf16(all.as_ptr())
        }
    }
    #[inline(always)]
    fn round_to_bf16(F32x8(a): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x8(unsafe {
            let bits = _mm256_castps_si256(a);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
            let bits = _mm256_blendv_epi8(_mm256_add_epi32(bits, half), quiet, nan);
            let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm256_castsi256_ps(_mm256_and_si256(bits, high))
        })
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, a: Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe {
            let F32x8(a) = Self::round_to_bf16(a);
            let words = _mm256_srli_epi32::<16>(_mm256_castps_si256(a));
            let (low, high) = (
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(p.cast(), _mm_packus_epi32(low, high));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(p: *mut bf16, n: usize, a: Self::V) {
        let mut all = [bf16::ZERO; 8];
        // SAFETY: guaranteed by the caller; there is room for 8 elements.
        unsafe {
            Self::store_bf16(all.as_mut_ptr(), a);
            for (i, a) in all.iter().enumerate().take(n) {
                *p.add(i) = *a;
            }
        }
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
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
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
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const bf16, n: usize) -> Self::V {
        // AVX-512F masks words of 32 bits; an odd element comes alone.
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe {
            let pairs = _mm512_maskz_loadu_epi32(mask16(n / 2), p.cast());
            let words = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs));
            let mut words = _mm512_slli_epi32::<16>(words);
            if n % 2 == 1 {
                let last = i32::from((*p.add(n - 1)).to_bits()) << 16;
                let alone = 1 << (n - 1);
                words = _mm512_mask_set1_epi32(words, alone, last);
            }
            _mm512_castsi512_ps(words)
        })
    }
    #[inline(always)]
    fn round_to_bf16(F32x16(a): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x16(unsafe {
            let bits = _mm512_castps_si512(a);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            let bits = _mm512_mask_mov_epi32(_mm512_add_epi32(bits, half), nan, quiet);
            let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm512_castsi512_ps(_mm512_and_si512(bits, high))
        })
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, a: Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe {
            let F32x16(a) = Self::round_to_bf16(a);
            let words = _mm512_srli_epi32::<16>(_mm512_castps_si512(a));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(words));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(p: *mut bf16, n: usize, a: Self::V) {
        let mut all = [bf16::ZERO; 16];
        // SAFETY: guaranteed by the caller; there is room for 16 elements.
        unsafe {
            Self::store_bf16(all.as_mut_ptr(), a);
            std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
        }
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
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
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

/// Two vectors as one of bf16, rounded, subnormals as zeros: `low` first.
///
/// # Safety
/// The processor has AVX512_BF16.
#[inline(always)]
unsafe fn narrow_two(low: __m512, high: __m512) -> __m512i {
    // SAFETY: guaranteed by the caller; both are 64 bytes of any bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

impl Pairs for Avx512 {
    #[inline(always)]
    unsafe fn dot2(F32x16(acc): Self::V, F32x16(a): Self::V, F32x16(b): Self::V) -> Self::V {
        // SAFETY: guaranteed by the caller; vectors of 64 bytes of any bits.
        F32x16(unsafe {
            let [a, b] = [a, b].map(|v| std::mem::transmute::<__m512, __m512bh>(v));
            _mm512_dpbf16_ps(acc, a, b)
        })
    }
    #[inline(always)]
    unsafe fn neighbors(F32x16(low): Self::V, F32x16(high): Self::V) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe { _mm512_castsi512_ps(narrow_two(low, high)) })
    }
    #[inline(always)]
    unsafe fn zip(F32x16(first): Self::V, F32x16(second): Self::V) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe {
            let both = narrow_two(first, second);
            let low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
            let high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(both));
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32::<16>(high)))
        })
    }
    #[inline(always)]
    unsafe fn join(F32x16(first): Self::V, F32x16(second): Self::V) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x16(unsafe {
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(first));
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(second)))
        })
    }
    #[inline(always)]
    unsafe fn store_normal(p: *mut bf16, F32x16(a): Self::V) {
        // SAFETY: guaranteed by the caller; both are 32 bytes of any bits.
        unsafe {
            let narrow = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(a));
            _mm256_storeu_si256(p.cast(), narrow);
        }
    }
}
