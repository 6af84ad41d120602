//! Winograd's transforms along one dim, for three taps and two or four outputs.
//!
//! y = A^T [(G g) . (B^T d)] at the points 0, 1, -1, (2, -2,) infinity.
//! Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016), sections 4.1
//! and 4.3; those of the weight gradient are the transposed matrices A and G^T.

use crate::simd::Simd;

/// Points along a dim of the largest tile.
pub(crate) const POINTS_MAX: usize = 6;

/// Vectors along one dim; those beyond a map's inputs or outputs are not used.
pub(crate) type Line<S> = [<S as Simd>::V; POINTS_MAX];

/// A linear map along one dim.
pub(crate) trait Map {
    /// Inputs.
    const I: usize;
    /// Outputs.
    const O: usize;
    /// # Safety
    /// The processor has the features of `S`.
    unsafe fn apply<S: Simd>(a: Line<S>) -> Line<S>;
}

/// The five maps of a tile size.
pub(crate) trait Maps {
    /// B^T, of a tile of inputs.
    type Input: Map;
    /// G, of the taps.
    type Kernel: Map;
    /// A^T, to a tile of outputs.
    type Output: Map;
    /// A, of a tile of output gradients.
    type Spread: Map;
    /// G^T, to the gradients of the taps.
    type Taps: Map;
}

/// A dim with one tap.
pub(crate) struct One;
/// F(2, 3).
pub(crate) struct Two;
/// F(4, 3).
pub(crate) struct Four;

impl Maps for One {
    type Input = One;
    type Kernel = One;
    type Output = One;
    type Spread = One;
    type Taps = One;
}

impl Map for One {
    const I: usize = 1;
    const O: usize = 1;
    #[inline(always)]
    unsafe fn apply<S: Simd>(a: Line<S>) -> Line<S> {
        a
    }
}

macro_rules! maps {
    ($size:ident: $($part:ident $name:ident $i:literal $o:literal = $apply:ident;)*) => {
        impl Maps for $size {
            $(type $part = $name;)*
        }
        $(
            pub(crate) struct $name;
            impl Map for $name {
                const I: usize = $i;
                const O: usize = $o;
                #[inline(always)]
                unsafe fn apply<S: Simd>(a: Line<S>) -> Line<S> {
                    // SAFETY: guaranteed by the caller.
                    unsafe { $apply::<S>(a) }
                }
            }
        )*
    };
}

maps! {
    Two:
    Input Input2 4 4 = input2;
    Kernel Kernel2 3 4 = kernel2;
    Output Output2 4 2 = output2;
    Spread Spread2 2 4 = spread2;
    Taps Taps2 4 3 = taps2;
}

maps! {
    Four:
    Input Input4 6 6 = input4;
    Kernel Kernel4 3 6 = kernel4;
    Output Output4 6 4 = output4;
    Spread Spread4 4 6 = spread4;
    Taps Taps4 6 3 = taps4;
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn input2<S: Simd>([d0, d1, d2, d3, ..]: Line<S>) -> Line<S> {
    let third = S::sub(d2, d1);
    let last = S::sub(d1, d3);
    [S::sub(d0, d2), S::add(d1, d2), third, last, last, last]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn kernel2<S: Simd>([g0, g1, g2, ..]: Line<S>) -> Line<S> {
    // SAFETY: guaranteed by the caller.
    let half = unsafe { S::splat(0.5) };
    let (even, odd) = (S::mul(S::add(g0, g2), half), S::mul(g1, half));
    [g0, S::add(even, odd), S::sub(even, odd), g2, g2, g2]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn output2<S: Simd>([m0, m1, m2, m3, ..]: Line<S>) -> Line<S> {
    let first = S::add(m0, S::add(m1, m2));
    let second = S::sub(S::sub(m1, m2), m3);
    [first, second, second, second, second, second]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn spread2<S: Simd>([y0, y1, ..]: Line<S>) -> Line<S> {
    // SAFETY: guaranteed by the caller.
    let last = S::sub(unsafe { S::splat(0.0) }, y1);
    [y0, S::add(y0, y1), S::sub(y0, y1), last, last, last]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn taps2<S: Simd>([u0, u1, u2, u3, ..]: Line<S>) -> Line<S> {
    // SAFETY: guaranteed by the caller.
    let half = unsafe { S::splat(0.5) };
    let (sum, difference) = (S::add(u1, u2), S::sub(u1, u2));
    let last = S::fma(sum, half, u3);
    [
        S::fma(sum, half, u0),
        S::mul(difference, half),
        last,
        last,
        last,
        last,
    ]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn input4<S: Simd>([d0, d1, d2, d3, d4, d5]: Line<S>) -> Line<S> {
    // SAFETY: guaranteed by the caller.
    let [two, four, m2, m4, m5] = [2.0, 4.0, -2.0, -4.0, -5.0].map(|a| unsafe { S::splat(a) });
    let (even, odd) = (S::fma(d2, m4, d4), S::fma(d1, m4, d3));
    let (outer, difference) = (S::sub(d4, d2), S::sub(d3, d1));
    [
        S::fma(d0, four, S::fma(d2, m5, d4)),
        S::add(even, odd),
        S::sub(even, odd),
        S::fma(difference, two, outer),
        S::fma(difference, m2, outer),
        S::fma(d1, four, S::fma(d3, m5, d5)),
    ]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn kernel4<S: Simd>([g0, g1, g2, ..]: Line<S>) -> Line<S> {
    let parts = [1.0 / 4.0, -1.0 / 6.0, 1.0 / 6.0, 1.0 / 12.0, 1.0 / 24.0];
    // SAFETY: guaranteed by the caller.
    let [fourth, m6, sixth, twelfth, p24] = parts.map(|a| unsafe { S::splat(a) });
    let (even, odd) = (S::mul(S::add(g0, g2), m6), S::mul(g1, sixth));
    let outer = S::fma(g2, sixth, S::mul(g0, p24));
    let inner = S::mul(g1, twelfth);
    [
        S::mul(g0, fourth),
        S::sub(even, odd),
        S::add(even, odd),
        S::add(outer, inner),
        S::sub(outer, inner),
        g2,
    ]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn output4<S: Simd>([m0, m1, m2, m3, m4, m5]: Line<S>) -> Line<S> {
    // SAFETY: guaranteed by the caller.
    let [two, four, eight] = [2.0, 4.0, 8.0].map(|a| unsafe { S::splat(a) });
    let (sum1, difference1) = (S::add(m1, m2), S::sub(m1, m2));
    let (sum2, difference2) = (S::add(m3, m4), S::sub(m3, m4));
    let last = S::add(S::fma(difference2, eight, difference1), m5);
    [
        S::add(m0, S::add(sum1, sum2)),
        S::fma(difference2, two, difference1),
        S::fma(sum2, four, sum1),
        last,
        last,
        last,
    ]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn spread4<S: Simd>([y0, y1, y2, y3, ..]: Line<S>) -> Line<S> {
    // SAFETY: guaranteed by the caller.
    let [two, four] = [2.0, 4.0].map(|a| unsafe { S::splat(a) });
    let (even1, odd1) = (S::add(y0, y2), S::add(y1, y3));
    let (even2, odd2) = (S::fma(y2, four, y0), S::mul(S::fma(y3, four, y1), two));
    [
        y0,
        S::add(even1, odd1),
        S::sub(even1, odd1),
        S::add(even2, odd2),
        S::sub(even2, odd2),
        y3,
    ]
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn taps4<S: Simd>([u0, u1, u2, u3, u4, u5]: Line<S>) -> Line<S> {
    let parts = [1.0 / 4.0, 1.0 / 6.0, 1.0 / 12.0, 1.0 / 24.0];
    // SAFETY: guaranteed by the caller.
    let [fourth, sixth, twelfth, p24] = parts.map(|a| unsafe { S::splat(a) });
    let (sum1, difference1) = (S::mul(S::add(u1, u2), sixth), S::sub(u2, u1));
    let (sum2, difference2) = (S::add(u3, u4), S::sub(u3, u4));
    let last = S::add(S::sub(S::mul(sum2, sixth), sum1), u5);
    [
        S::fma(sum2, p24, S::sub(S::mul(u0, fourth), sum1)),
        S::fma(difference2, twelfth, S::mul(difference1, sixth)),
        last,
        last,
        last,
        last,
    ]
}
