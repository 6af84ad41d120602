//! Plain Rust.

use super::Simd;
use half::bf16;

/// Four lanes of plain Rust: what the baseline of x86-64 and of aarch64 holds in a register.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn zip(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

#[inline(always)]
fn widen(a: bf16) -> f32 {
    f32::from_bits(u32::from(a.to_bits()) << 16)
}

/// Without branches, so that four become a vector.
#[inline(always)]
fn narrow(a: f32) -> bf16 {
    let bits = a.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x0040_0000;
    bf16::from_bits(((if a.is_nan() { quiet } else { rounded }) >> 16) as u16)
}

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const ACCUMULATORS: usize = 12;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(a: f32) -> Self::V {
        [a; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Self::V) {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V {
        let mut a = [0.0; 4];
        for (i, lane) in a.iter_mut().enumerate().take(n) {
            // SAFETY: guaranteed by the caller.
            *lane = unsafe { *p.add(i) };
        }
        a
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, n: usize, a: Self::V) {
        for (i, lane) in a.iter().enumerate().take(n) {
            // SAFETY: guaranteed by the caller.
            unsafe { *p.add(i) = *lane };
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[bf16; 4]>().read_unaligned() }.map(widen)
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const bf16, n: usize) -> Self::V {
        let mut a = [0.0; 4];
        for (i, lane) in a.iter_mut().enumerate().take(n) {
            // SAFETY: guaranteed by the caller.
            *lane = widen(unsafe { *p.add(i) });
        }
        a
    }
    #[inline(always)]
    fn round_to_bf16(a: Self::V) -> Self::V {
        a.map(|a| widen(narrow(a)))
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, a: Self::V) {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[bf16; 4]>().write_unaligned(a.map(narrow)) }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(p: *mut bf16, n: usize, a: Self::V) {
        for (i, lane) in a.iter().enumerate().take(n) {
            // SAFETY: guaranteed by the caller.
            unsafe { *p.add(i) = narrow(*lane) };
        }
    }
    #[inline(always)]
    fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        zip(zip(a, b, |a, b| a * b), c, |a, b| a + b)
    }
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn sum(a: Self::V) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    unsafe fn sum4(a: [Self::V; 4], to: *mut f32) {
        for (i, a) in a.into_iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { *to.add(i) = Self::sum(a) };
        }
    }
    #[inline(always)]
    unsafe fn store_columns(a: [Self::V; 4], to: *mut f32, pitch: usize) {
        for i in 0..4 {
            // SAFETY: guaranteed by the caller.
            unsafe { Self::store(to.add(i * pitch), a.map(|a| a[i])) };
        }
    }
    #[inline(always)]
    fn max(x: Self::V, m: Self::V) -> Self::V {
        zip(x, m, |x, m| if x > m || x.is_nan() { x } else { m })
    }
    #[inline(always)]
    fn any_nan(a: Self::V) -> bool {
        a.map(f32::is_nan) != [false; 4]
    }
    #[inline(always)]
    fn take_max(x: Self::V, m: Self::V, t: Self::V, i: Self::V) -> (Self::V, Self::V) {
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
    fn where_eq(a: Self::V, b: Self::V, v: Self::V) -> Self::V {
        let mut r = [0.0; 4];
        for lane in 0..4 {
            if a[lane] == b[lane] {
                r[lane] = v[lane];
            }
        }
        r
    }
    #[inline(always)]
    fn where_positive(sign: Self::V, v: Self::V, other: Self::V) -> Self::V {
        std::array::from_fn(|lane| {
            if sign[lane] > 0.0 {
                v[lane]
            } else {
                other[lane]
            }
        })
    }
    #[inline(always)]
    fn prefetch(_: *const f32) {}
    #[inline(always)]
    fn expect(_: *const f32) {}
}
