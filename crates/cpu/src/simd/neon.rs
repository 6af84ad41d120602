//! NEON.

use super::{Op, Simd};
use half::bf16;
use std::arch::aarch64::*;

/// # Safety
/// The processor has NEON; the rest as for [`Op::run`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn on_neon<O: Op>(op: O) -> O::Out {
    // SAFETY: guaranteed by the caller.
    unsafe { op.run::<Neon>() }
}

#[derive(Clone, Copy)]
pub(super) struct Neon;

/// A vector, which only code that answers for the features makes; see [`Simd`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32x4(float32x4_t);

impl Simd for Neon {
    type V = F32x4;
    const LANES: usize = 4;
    const ACCUMULATORS: usize = 24;
    // With more, loads of neighbors are merged and push accumulators out of the registers.
    const UNROLL: usize = 1;

    #[inline(always)]
    unsafe fn splat(a: f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x4(unsafe { vdupq_n_f32(a) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x4(unsafe { vld1q_f32(p) })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, F32x4(a): Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe { vst1q_f32(p, a) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x4(unsafe {
            let zero = vdupq_n_f32(0.0);
            match n {
                0 => zero,
                1 => vld1q_lane_f32::<0>(p, zero),
                2 => vcombine_f32(vld1_f32(p), vget_high_f32(zero)),
                3 => {
                    let two = vcombine_f32(vld1_f32(p), vget_high_f32(zero));
                    vld1q_lane_f32::<2>(p.add(2), two)
                }
                4.. => vld1q_f32(p),
            }
        })
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, n: usize, F32x4(a): Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe {
            match n {
                0 => {}
                1 => vst1q_lane_f32::<0>(p, a),
                2 => vst1_f32(p, vget_low_f32(a)),
                3 => {
                    vst1_f32(p, vget_low_f32(a));
                    vst1q_lane_f32::<2>(p.add(2), a);
                }
                4.. => vst1q_f32(p, a),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        F32x4(unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p.cast())))) })
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const bf16, n: usize) -> Self::V {
        let mut all = [bf16::ZERO; 4];
        // SAFETY: guaranteed by the caller; there are 4 elements.
        unsafe {
            for (i, a) in all.iter_mut().enumerate().take(n) {
                *a = *p.add(i);
            }
            Self::load_bf16(all.as_ptr())
        }
    }
    #[inline(always)]
    fn round_to_bf16(F32x4(a): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe {
            let bits = vreinterpretq_u32_f32(a);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let half = vaddq_u32(odd, vdupq_n_u32(0x7fff));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let bits = vbslq_u32(vceqq_f32(a, a), vaddq_u32(bits, half), quiet);
            vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff_0000)))
        })
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, a: Self::V) {
        // SAFETY: a vector proves the features; the rest is guaranteed by the caller.
        unsafe {
            let F32x4(a) = Self::round_to_bf16(a);
            vst1_u16(p.cast(), vshrn_n_u32::<16>(vreinterpretq_u32_f32(a)));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(p: *mut bf16, n: usize, a: Self::V) {
        let mut all = [bf16::ZERO; 4];
        // SAFETY: guaranteed by the caller; there is room for 4 elements.
        unsafe {
            Self::store_bf16(all.as_mut_ptr(), a);
            for (i, a) in all.iter().enumerate().take(n) {
                *p.add(i) = *a;
            }
        }
    }
    #[inline(always)]
    fn add(F32x4(a): Self::V, F32x4(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn sub(F32x4(a): Self::V, F32x4(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    fn mul(F32x4(a): Self::V, F32x4(b): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    fn fma(F32x4(a): Self::V, F32x4(b): Self::V, F32x4(c): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe { vfmaq_f32(c, a, b) })
    }
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn sum(F32x4(a): Self::V) -> f32 {
        // SAFETY: a vector proves the features.
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    unsafe fn sum4([F32x4(a), F32x4(b), F32x4(c), F32x4(d)]: [Self::V; 4], to: *mut f32) {
        // SAFETY: vectors prove the features; the rest is guaranteed by the caller.
        unsafe {
            let (p, q) = (vpaddq_f32(a, b), vpaddq_f32(c, d));
            vst1q_f32(to, vpaddq_f32(p, q));
        }
    }
    #[inline(always)]
    unsafe fn store_columns(
        [F32x4(a), F32x4(b), F32x4(c), F32x4(d)]: [Self::V; 4],
        to: *mut f32,
        pitch: usize,
    ) {
        // SAFETY: vectors prove the features; the rest is guaranteed by the caller.
        unsafe {
            let low = |a, b| vreinterpretq_f64_f32(vzip1q_f32(a, b));
            let high = |a, b| vreinterpretq_f64_f32(vzip2q_f32(a, b));
            let (p, q) = (low(a, b), low(c, d));
            let (r, s) = (high(a, b), high(c, d));
            let columns = [
                vzip1q_f64(p, q),
                vzip2q_f64(p, q),
                vzip1q_f64(r, s),
                vzip2q_f64(r, s),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                vst1q_f32(to.add(i * pitch), vreinterpretq_f32_f64(column));
            }
        }
    }
    #[inline(always)]
    fn max(F32x4(x): Self::V, F32x4(m): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe {
            let take = vornq_u32(vcgtq_f32(x, m), vceqq_f32(x, x));
            vbslq_f32(take, x, m)
        })
    }
    #[inline(always)]
    fn any_nan(F32x4(a): Self::V) -> bool {
        // SAFETY: a vector proves the features.
        unsafe { vminvq_u32(vceqq_f32(a, a)) == 0 }
    }
    #[inline(always)]
    fn take_max(
        F32x4(x): Self::V,
        F32x4(m): Self::V,
        F32x4(t): Self::V,
        F32x4(i): Self::V,
    ) -> (Self::V, Self::V) {
        // SAFETY: a vector proves the features.
        unsafe {
            // Only what is NaN differs from itself.
            let take = vornq_u32(vcgtq_f32(x, m), vceqq_f32(x, x));
            (F32x4(vbslq_f32(take, x, m)), F32x4(vbslq_f32(take, t, i)))
        }
    }
    #[inline(always)]
    fn where_eq(F32x4(a): Self::V, F32x4(b): Self::V, F32x4(v): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe {
            let bits = vandq_u32(vceqq_f32(a, b), vreinterpretq_u32_f32(v));
            vreinterpretq_f32_u32(bits)
        })
    }
    #[inline(always)]
    fn where_positive(F32x4(sign): Self::V, F32x4(v): Self::V, F32x4(other): Self::V) -> Self::V {
        // SAFETY: a vector proves the features.
        F32x4(unsafe { vbslq_f32(vcgtq_f32(sign, vdupq_n_f32(0.0)), v, other) })
    }
    #[inline(always)]
    fn prefetch(p: *const f32) {
        // SAFETY: an address that is asked for is not read.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) p, options(nostack, preserves_flags));
        }
    }
    #[inline(always)]
    fn expect(p: *const f32) {
        // SAFETY: an address that is asked for is not read.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags));
        }
    }
}
