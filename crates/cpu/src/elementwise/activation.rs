//! Functions of one element: GELU, SiLU, hard swish and so on.

use crate::grid::{Call, Canceled, View, ViewMut, Work};
use crate::math::{exp, exp_minus_one};
use crate::rows::Rows;
use crate::sequence::row_kernels::{each_range, read, write};
use crate::simd::{Op, Simd};
use std::ops::Range;

/// An elementwise function in a form that the compiler vectorizes.
pub(crate) trait Function: Copy + Sync {
    /// The value at x.
    fn value<S: Simd>(self, x: f32) -> f32;

    /// The derivative at x.
    fn slope<S: Simd>(self, x: f32) -> f32;
}

/// x / 2 (1 + erf(x / sqrt(2)))
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gelu;

/// x / (1 + exp(-x))
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silu;

/// 1 / (1 + exp(-x))
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sigmoid;

/// tanh(x)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tanh;

/// x for x > 0, else alpha (exp(x) - 1)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elu {
    /// Minus the limit for very negative inputs.
    pub(crate) alpha: f32,
}

/// x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
#[derive(Clone, Copy, Debug)]
pub(crate) struct GeluTanh;

/// x tanh(ln(1 + exp(x)))
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mish;

/// ln(1 + exp(beta x)) / beta
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softplus {
    pub(crate) beta: f32,
}

/// x, bounded
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardtanh {
    pub(crate) low: f32,
    pub(crate) high: f32,
}

/// x, bounded, with gradient 1 at the bounds
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clamp {
    pub(crate) low: f32,
    pub(crate) high: f32,
}

/// (x + 3) / 6, bounded by 0 and 1
#[derive(Clone, Copy, Debug)]
pub(crate) struct HardSigmoid;

/// x times its hard sigmoid
#[derive(Clone, Copy, Debug)]
pub(crate) struct HardSwish;

/// scale x + shift
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) shift: f32,
}

/// An odd function that rises from -1/2 to 1/2, as x times a quotient of polynomials of the square of x.
///
/// Coefficients of ascending powers; they minimize the largest error up to the edge, beyond which the function
/// is constant to 6e-8.
struct Step {
    numerator: [f32; 6],
    /// After 1.
    denominator: [f32; 5],
    edge: f32,
}

/// The cumulative distribution function of the standard normal distribution less 1/2, to 6e-9.
const NORMAL: Step = Step {
    numerator: [
        0.398_942_24,
        0.033_464_763,
        0.004_655_843,
        1.651_802_8e-4,
        6.357_495_3e-6,
        2.325_693e-8,
    ],
    denominator: [
        0.250_549_8,
        0.028_429_91,
        0.001_863_825_3,
        7.263_316e-5,
        1.212_643_3e-6,
    ],
    edge: 5.42,
};

/// The derivative of GELU less 1/2, to 1.2e-7.
const GELU_SLOPE: Step = Step {
    numerator: [
        0.797_885_36,
        -0.030_985_153,
        0.014_229_338,
        1.943_582_8e-5,
        3.594_935e-5,
        1.928_217e-7,
    ],
    denominator: [
        0.294_507_32,
        0.040_983_65,
        0.003_523_276_4,
        1.920_921_3e-4,
        8.948_937e-6,
    ],
    edge: 5.95,
};

impl Step {
    /// Its value at x, plus 1/2; beyond the edge exactly 0 or 1.
    #[inline(always)]
    fn at<S: Simd>(&self, x: f32) -> f32 {
        let (square, fma) = (x * x, S::multiply_add);
        let [p0, p1, p2, p3, p4, p5] = self.numerator;
        let [q1, q2, q3, q4, q5] = self.denominator;
        let next = |factor: f32, sum: f32| fma(square, sum, factor);
        let p = next(p0, next(p1, next(p2, next(p3, next(p4, p5)))));
        let q = next(1.0, next(q1, next(q2, next(q3, next(q4, q5)))));
        let inside = 0.5 + x * p / q;
        let beyond = if x > 0.0 { 1.0 } else { 0.0 };
        if square > self.edge * self.edge {
            beyond
        } else {
            inside
        }
    }
}

impl Function for Gelu {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        x * NORMAL.at::<S>(x)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        GELU_SLOPE.at::<S>(x)
    }
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
fn sigmoid<S: Simd>(x: f32) -> f32 {
    let small = exp::<S>(-x.abs());
    let part = if x > 0.0 { 1.0 } else { small };
    part / (1.0 + small)
}

impl Function for Silu {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        x * sigmoid::<S>(x)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let sigmoid = sigmoid::<S>(x);
        sigmoid * (1.0 + x * (1.0 - sigmoid))
    }
}

impl Function for Sigmoid {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        sigmoid::<S>(x)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let small = exp::<S>(-x.abs());
        small / ((1.0 + small) * (1.0 + small))
    }
}

impl Function for Tanh {
    /// From the magnitude, with the sign of x.
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        let below = exp_minus_one::<S>(-2.0 * x.abs());
        let magnitude = -below / (2.0 + below);
        if x < 0.0 { -magnitude } else { magnitude }
    }

    /// 4 e / (1 + e)^2 with e = exp::<S>(-2 |x|), which cancels nothing.
    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let small = exp::<S>(-2.0 * x.abs());
        4.0 * small / ((1.0 + small) * (1.0 + small))
    }
}

impl Function for Elu {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        let below = self.alpha * exp_minus_one::<S>(if x > 0.0 { 0.0 } else { x });
        if x > 0.0 { x } else { below }
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let below = self.alpha * exp::<S>(if x > 0.0 { 0.0 } else { x });
        if x > 0.0 { 1.0 } else { below }
    }
}

/// The argument of tanh in the approximation of GELU, twice, and its derivative.
#[inline(always)]
fn bent<S: Simd>(x: f32) -> [f32; 2] {
    const FACTOR: f32 = 1.595_769_2;
    const CUBIC: f32 = FACTOR * 0.044_715;
    let square = x * x;
    [
        x * S::multiply_add(square, CUBIC, FACTOR),
        S::multiply_add(square, 3.0 * CUBIC, FACTOR),
    ]
}

impl Function for GeluTanh {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        x * sigmoid::<S>(bent::<S>(x)[0])
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let [at, rise] = bent::<S>(x);
        let small = exp::<S>(-at.abs());
        let both = 1.0 + small;
        // Far out it is 0 times infinity.
        let bell = if small > 0.0 {
            x * rise * small / (both * both)
        } else {
            0.0 * x
        };
        sigmoid::<S>(at) + bell
    }
}

/// tanh(ln(1 + exp(x))), and 1 less it.
#[inline(always)]
fn mish_gate<S: Simd>(x: f32) -> [f32; 2] {
    let small = exp::<S>(-x.abs());
    let above = if x > 0.0 {
        1.0 + 2.0 * small
    } else {
        small * (small + 2.0)
    };
    let rest = if x > 0.0 { 2.0 * small * small } else { 2.0 };
    let sum = above + rest;
    [above / sum, rest / sum]
}

impl Function for Mish {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        x * mish_gate::<S>(x)[0]
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let [gate, rest] = mish_gate::<S>(x);
        gate + x * sigmoid::<S>(x) * rest * (1.0 + gate)
    }
}

/// ln(1 + x) for x from 0 to 1: 2 artanh(s) with s = x / (2 + x), by its series.
#[inline(always)]
fn log_one_plus<S: Simd>(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let square = s * s;
    let next = |factor: f32, sum: f32| S::multiply_add(square, sum, factor);
    let low = next(1.0 / 9.0, next(1.0 / 11.0, next(1.0 / 13.0, 1.0 / 15.0)));
    2.0 * s * next(1.0, next(1.0 / 3.0, next(1.0 / 5.0, next(1.0 / 7.0, low))))
}

impl Function for Softplus {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        let at = self.beta * x;
        let above = if at > 0.0 { at } else { 0.0 };
        let inside = (above + log_one_plus::<S>(exp::<S>(-at.abs()))) / self.beta;
        if at > 20.0 { x } else { inside }
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let at = self.beta * x;
        let inside = sigmoid::<S>(at);
        if at > 20.0 { 1.0 } else { inside }
    }
}

impl Function for Hardtanh {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        let above = if x < self.low { self.low } else { x };
        if above > self.high { self.high } else { above }
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let above = if x > self.low { 1.0 } else { 0.0 };
        if x < self.high { above } else { 0.0 }
    }
}

impl Function for Clamp {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        let Self { low, high } = self;
        Hardtanh { low, high }.value::<S>(x)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let above = if x >= self.low { 1.0 } else { 0.0 };
        if x <= self.high { above } else { 0.0 }
    }
}

#[inline(always)]
fn hard_sigmoid(x: f32) -> f32 {
    let at = (x + 3.0) / 6.0;
    let above = if at < 0.0 { 0.0 } else { at };
    if above > 1.0 { 1.0 } else { above }
}

impl Function for HardSigmoid {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        hard_sigmoid(x)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let above = if x > -3.0 { 1.0 / 6.0 } else { 0.0 };
        if x < 3.0 { above } else { 0.0 }
    }
}

impl Function for HardSwish {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        x * hard_sigmoid(x)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, x: f32) -> f32 {
        let inside = S::multiply_add(x, 1.0 / 3.0, 0.5);
        let above = if x > -3.0 { inside } else { 0.0 };
        if x < 3.0 { above } else { 1.0 }
    }
}

impl Function for Affine {
    #[inline(always)]
    fn value<S: Simd>(self, x: f32) -> f32 {
        S::multiply_add(self.scale, x, self.shift)
    }

    #[inline(always)]
    fn slope<S: Simd>(self, _x: f32) -> f32 {
        self.scale
    }
}

/// y = the value at x, of this many nominal flops.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if boxes differ in shape.
pub(crate) fn activation_forward<F: Function>(
    call: &mut Call,
    (function, flops): (F, u64),
    x: View,
    y: ViewMut,
) -> Result<Work, Canceled> {
    x.grid.assert_like(y.grid);
    let (x, y) = (Rows::from(x), Rows::from(y));
    // SAFETY: boxes of one shape, of which y is borrowed alone.
    unsafe {
        each_range(call, y.grid, 2, |positions| Forward::<F> {
            x,
            y,
            positions,
            function,
        })?
    };
    Ok(Work {
        flops: flops * y.grid.elements() as u64,
        bytes: x.grid.bytes() + y.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of y.
struct Forward<'a, F> {
    x: Rows<'a>,
    y: Rows<'a>,
    positions: Range<usize>,
    function: F,
}

impl<F: Function> Op for Forward<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let function = self.function;
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (x, y) = unsafe { (read(&self.x, at), write(&self.y, at)) };
            y.iter_mut()
                .zip(x)
                .for_each(|(y, x)| *y = function.value::<S>(*x));
        }
    }
}

/// dx (+)= dy times the derivative at x, of this many nominal flops.
pub(crate) fn activation_backward<F: Function>(
    call: &mut Call,
    (function, flops): (F, u64),
    x: View,
    dy: View,
    dx: ViewMut,
    accumulate: bool,
) -> Result<Work, Canceled> {
    x.grid.assert_like(dx.grid);
    dy.grid.assert_like(dx.grid);
    let (x, dy, dx) = (Rows::from(x), Rows::from(dy), Rows::from(dx));
    // SAFETY: boxes of one shape, of which dx is borrowed alone.
    unsafe {
        each_range(call, dx.grid, 2, |positions| Backward::<F> {
            x,
            dy,
            dx,
            accumulate,
            positions,
            function,
        })?;
    }
    Ok(Work {
        flops: flops * dx.grid.elements() as u64,
        bytes: (3 + u64::from(accumulate)) * dx.grid.bytes(),
    })
}

/// Pointers: the boxes have the positions, and no other thread accesses those of dx.
struct Backward<'a, F> {
    x: Rows<'a>,
    dy: Rows<'a>,
    dx: Rows<'a>,
    accumulate: bool,
    positions: Range<usize>,
    function: F,
}

impl<F: Function> Op for Backward<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let function = self.function;
        for at in self.positions {
            // SAFETY: each position is in one range.
            let (x, dy, dx) =
                unsafe { (read(&self.x, at), read(&self.dy, at), write(&self.dx, at)) };
            let all = dx.iter_mut().zip(dy).zip(x);
            if self.accumulate {
                all.for_each(|((dx, dy), x)| *dx += *dy * function.slope::<S>(*x))
            } else {
                all.for_each(|((dx, dy), x)| *dx = *dy * function.slope::<S>(*x))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    /// Value and slope at a number.
    struct At<F>(F, f32);

    impl<F: Function> Op for At<F> {
        type Out = [f32; 2];

        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> [f32; 2] {
            [self.0.value::<S>(self.1), self.0.slope::<S>(self.1)]
        }
    }

    /// At each level.
    fn at<F: Function>(function: F, x: f32) -> impl Iterator<Item = [f32; 2]> {
        // SAFETY: the level is available.
        Level::all_available().map(move |level| unsafe { level.run(At(function, x)) })
    }

    #[test]
    fn gelu_is_within_a_millionth() {
        // By mpmath 1.3.
        for (x, value, slope) in GELU {
            for got in at(Gelu, x) {
                assert!((got[0] - value).abs() < 1e-6, "{x}: {got:?} {value}");
                assert!((got[1] - slope).abs() < 1e-6, "{x}: {got:?} {slope}");
            }
        }
        assert!(at(Gelu, -1e30).all(|got| got == [0.0, 0.0]));
        assert!(at(Gelu, f32::INFINITY).all(|got| got == [f32::INFINITY, 1.0]));
        assert!(at(Gelu, f32::NAN).all(|got| got.iter().all(|got| got.is_nan())));
    }

    /// The slope is the derivative of the value, also between the numbers of the table.
    #[test]
    fn slopes_of_gelu_are_differences_of_its_values() {
        let step = 0.125;
        for i in -64..64 {
            let x = i as f32 * step;
            // Simpson's rule, whose error is below 1e-6 at this step.
            let slopes = [0.0, 0.5, 1.0].map(|part| at(Gelu, x + part * step));
            let [low, middle, high] = slopes;
            for ((low, middle), high) in low.zip(middle).zip(high) {
                let mean = (low[1] + 4.0 * middle[1] + high[1]) / 6.0;
                let rise = high[0] - low[0];
                assert!((step * mean - rise).abs() < 2e-6, "{x}: {mean} {rise}");
            }
        }
    }

    #[test]
    fn silu_is_within_a_millionth() {
        for i in -4000..=4000 {
            let x = i as f32 / 100.0;
            let wide = f64::from(x);
            let sigmoid = 1.0 / (1.0 + (-wide).exp());
            let slope = sigmoid * (1.0 + wide * (1.0 - sigmoid));
            let value = wide * sigmoid;
            for got in at(Silu, x).map(|got| got.map(f64::from)) {
                let error = (got[0] - value).abs();
                assert!(error < 1e-6 * (1.0 + value.abs()), "{x}: {got:?} {value}");
                assert!((got[1] - slope).abs() < 1e-6, "{x}: {got:?} {slope}");
            }
        }
        assert!(at(Silu, -1e30).all(|got| got[0] == 0.0));
        assert!(at(Silu, 1e30).all(|got| got[0] == 1e30));
        assert!(at(Silu, f32::NAN).all(|got| got[0].is_nan()));
    }

    /// Values and derivatives against f64, relative to the value where it is above `least`.
    fn check<F: Function>(function: F, exact: impl Fn(f64) -> [f64; 2], least: f64) {
        let fine = (-1000..=1000).map(|i| i as f32 / 1e6);
        for x in (-4000..=4000).map(|i| i as f32 / 100.0).chain(fine) {
            let exact = exact(f64::from(x));
            for (got, exact) in at(function, x).flat_map(|got| got.into_iter().zip(exact)) {
                let error = (f64::from(got) - exact).abs();
                assert!(error <= 1e-6 * exact.abs().max(least), "{x}: {got} {exact}");
            }
        }
        let is_nan = |got: [f32; 2]| got.iter().all(|got| got.is_nan());
        assert!(at(function, f32::NAN).all(is_nan));
    }

    #[test]
    fn sigmoid_tanh_and_elu_are_within_a_millionth() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        check(Sigmoid, |x| [sigmoid(x), sigmoid(x) * sigmoid(-x)], 1e-30);
        check(Tanh, |x| [x.tanh(), x.cosh().powi(-2)], 1e-30);
        let elu = |x: f64| {
            if x > 0.0 {
                [x, 1.0]
            } else {
                [1.5 * x.exp_m1(), 1.5 * x.exp()]
            }
        };
        check(Elu { alpha: 1.5 }, elu, 1e-30);
        for (x, far) in [(1e30, (1.0, 1.0)), (-1e30, (0.0, -1.0))] {
            for ([sigmoid, _], [tanh, _]) in at(Sigmoid, x).zip(at(Tanh, x)) {
                assert_eq!((sigmoid, tanh), far);
            }
        }
    }

    #[test]
    fn approximate_gelu_mish_and_softplus_are_within_a_millionth() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let bent = |x: f64| {
            let factor = (8.0 / std::f64::consts::PI).sqrt();
            let at = factor * (x + 0.044_715 * x.powi(3));
            let rise = factor * (1.0 + 3.0 * 0.044_715 * x * x);
            let gate = sigmoid(at);
            [x * gate, gate + x * gate * (1.0 - gate) * rise]
        };
        check(GeluTanh, bent, 1.0);
        let mish = |x: f64| {
            let gate = x.exp().ln_1p().tanh();
            [x * gate, gate + x * sigmoid(x) * (1.0 - gate * gate)]
        };
        check(Mish, mish, 1.0);
        let softplus = |x: f64| [(1.5 * x).exp().ln_1p() / 1.5, sigmoid(1.5 * x)];
        // Where it is small, the rounded product with beta decides.
        check(Softplus { beta: 1.5 }, softplus, 1e-6);
        assert!(at(GeluTanh, 1e30).all(|got| got == [1e30, 1.0]));
        assert!(at(GeluTanh, -1e30).all(|got| got == [0.0, 0.0]));
    }

    #[test]
    fn bounded_functions_are_exact() {
        let relu6 = Hardtanh {
            low: 0.0,
            high: 6.0,
        };
        for (x, bounded, sigmoid, swish) in [
            (-4.0, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
            (0.0, [0.0, 0.0], [0.5, 1.0 / 6.0], [0.0, 0.5]),
            (1.5, [1.5, 1.0], [0.75, 1.0 / 6.0], [1.125, 1.0]),
            (6.0, [6.0, 0.0], [1.0, 0.0], [6.0, 1.0]),
            (7.0, [6.0, 0.0], [1.0, 0.0], [7.0, 1.0]),
        ] {
            assert!(at(relu6, x).all(|got| got == bounded), "{x}");
            assert!(at(HardSigmoid, x).all(|got| got == sigmoid), "{x}");
            assert!(at(HardSwish, x).all(|got| got == swish), "{x}");
        }
        let clamp = Clamp {
            low: 0.0,
            high: f32::MAX,
        };
        for (x, expected) in [(-1.0, [0.0, 0.0]), (0.0, [0.0, 1.0]), (9.0, [9.0, 1.0])] {
            assert!(at(clamp, x).all(|got| got == expected), "{x}");
        }
        let scaled = Affine {
            scale: 2.0,
            shift: -1.0,
        };
        assert!(at(scaled, 3.0).all(|got| got == [5.0, 2.0]));
        for got in at(relu6, f32::NAN)
            .chain(at(HardSigmoid, f32::NAN))
            .chain(at(HardSwish, f32::NAN))
        {
            assert!(got[0].is_nan());
        }
    }

    const GELU: [(f32, f32, f32); 12] = [
        (-6.0, -5.9195258e-09, -3.546871e-08),
        (-3.0, -0.004049694, -0.011945647),
        (-1.5, -0.1002108, -0.1274692),
        (-0.75, -0.16997051, 0.00077427825),
        (-0.125, -0.05628272, 0.40078208),
        (0.0, 0.0, 0.5),
        (0.125, 0.06871728, 0.59921795),
        (0.5, 0.34573123, 0.8674951),
        (1.0, 0.8413448, 1.0833155),
        (2.0, 1.9544997, 1.0852318),
        (4.5, 4.4999847, 1.0000685),
        (8.0, 8.0, 1.0),
    ];
}
