//! NEON.

use super::{Op, Simd};
use std::arch::aarch64::*;

/// # Safety
/// The processor has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn on_neon<O: Op>(op: O) -> O::Out {
    unsafe { op.run::<Neon>() }
}

#[derive(Clone, Copy)]
pub(super) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const ACCUMULATORS: usize = 24;
    // With more, loads of neighbors are merged and push accumulators out of the registers.
    const UNROLL: usize = 1;

    #[inline(always)]
    unsafe fn splat(a: f32) -> Self::V {
        unsafe { vdupq_n_f32(a) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Self::V) {
        unsafe { vst1q_f32(p, a) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
        unsafe {
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
        }
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, n: usize, a: Self::V) {
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
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn sum(a: Self::V) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    unsafe fn sum4(a: [Self::V; 4], to: *mut f32) {
        unsafe {
            let (p, q) = (vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3]));
            vst1q_f32(to, vpaddq_f32(p, q));
        }
    }
    #[inline(always)]
    unsafe fn store_columns(a: [Self::V; 4], to: *mut f32, pitch: usize) {
        unsafe {
            let low = |a, b| vreinterpretq_f64_f32(vzip1q_f32(a, b));
            let high = |a, b| vreinterpretq_f64_f32(vzip2q_f32(a, b));
            let (p, q) = (low(a[0], a[1]), low(a[2], a[3]));
            let (r, s) = (high(a[0], a[1]), high(a[2], a[3]));
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
    unsafe fn max(x: Self::V, m: Self::V) -> Self::V {
        unsafe {
            let take = vornq_u32(vcgtq_f32(x, m), vceqq_f32(x, x));
            vbslq_f32(take, x, m)
        }
    }
    #[inline(always)]
    unsafe fn any_nan(a: Self::V) -> bool {
        unsafe { vminvq_u32(vceqq_f32(a, a)) == 0 }
    }
    #[inline(always)]
    unsafe fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V) {
        unsafe {
            // Only what is not a number differs from itself.
            let take = vornq_u32(vcgtq_f32(x, m), vceqq_f32(x, x));
            (vbslq_f32(take, x, m), vbslq_f32(take, t, i))
        }
    }
    #[inline(always)]
    unsafe fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V {
        unsafe {
            let bits = vandq_u32(vceqq_f32(a, b), vreinterpretq_u32_f32(v));
            vreinterpretq_f32_u32(bits)
        }
    }
    #[inline(always)]
    unsafe fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V {
        unsafe { vbslq_f32(vcgtq_f32(sign, vdupq_n_f32(0.0)), v, other) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) p, options(nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn expect(p: *const f32) {
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags));
        }
    }
}
