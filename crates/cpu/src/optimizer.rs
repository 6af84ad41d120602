//! Updates of parameters, on flat slices, with the semantics of PyTorch.
//!
//! Source: PyTorch documentation, torch.optim.SGD and torch.optim.Adam, the algorithm boxes.

use crate::grid::{Call, Canceled, Shared, Work};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use std::sync::atomic::{AtomicU64, Ordering};

/// Elements of one range.
const RANGE: usize = 16 * 1024;
/// Parts of a sum of squares, for any number of threads.
const PARTS: usize = 64;

/// Stochastic gradient descent with momentum, no dampening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub rate: f64,
    /// Factor of the velocity; zero leaves the velocity alone.
    pub momentum: f64,
    /// Factor of the weights added to the gradient.
    pub weight_decay: f64,
    /// Factor of the gradient (clipping, averaging).
    pub scale: f64,
}

/// Adam with L2 weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Factor of the weights added to the gradient.
    pub weight_decay: f64,
    /// Factor of the gradient (clipping, averaging).
    pub scale: f64,
    /// Number of this step, from 1.
    pub step: u64,
}

/// v = momentum * v + (scale * g + weight_decay * w); w -= rate * v. A velocity of zeros is the
/// first step; without momentum v is not used and may be empty. Counts 6 flops an element.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if lengths differ.
pub fn sgd(
    call: &mut Call,
    options: &Sgd,
    w: &mut [f32],
    g: &[f32],
    v: &mut [f32],
) -> Result<Work, Canceled> {
    let n = w.len();
    let [rate, momentum] = [options.rate as f32, options.momentum as f32];
    let [decay, scale] = [options.weight_decay as f32, options.scale as f32];
    assert!(n == g.len(), "{n} weights, {} gradients", g.len());
    let w = Shared(w.as_mut_ptr());
    let states = if momentum == 0.0 {
        update(call, g, [w], move |g, [w]| {
            [w - rate * (scale * g + decay * w)]
        })?;
        1
    } else {
        assert!(n == v.len(), "{n} weights, {} velocities", v.len());
        update(call, g, [w, Shared(v.as_mut_ptr())], move |g, [w, v]| {
            let v = momentum * v + (scale * g + decay * w);
            [w - rate * v, v]
        })?;
        2
    };
    Ok(Work {
        flops: 6 * n as u64,
        bytes: 4 * (1 + 2 * states) * n as u64,
    })
}

/// One step of Adam on weights w with gradient g and moments m, v. Counts 14 flops an element.
pub fn adam(
    call: &mut Call,
    options: &Adam,
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) -> Result<Work, Canceled> {
    let (o, n) = (options, w.len());
    assert!(
        n == g.len() && n == m.len() && n == v.len(),
        "lengths of {n} weights differ"
    );
    assert!(o.step >= 1, "steps count from 1");
    let correction = |beta: f64| 1.0 - beta.powf(o.step as f64);
    let rate = (o.rate / correction(o.beta1)) as f32;
    let root = (1.0 / correction(o.beta2).sqrt()) as f32;
    let [keep1, add1] = [o.beta1 as f32, (1.0 - o.beta1) as f32];
    let [keep2, add2] = [o.beta2 as f32, (1.0 - o.beta2) as f32];
    let [decay, scale, epsilon] = [o.weight_decay, o.scale, o.epsilon].map(|a| a as f32);
    let state = [
        Shared(w.as_mut_ptr()),
        Shared(m.as_mut_ptr()),
        Shared(v.as_mut_ptr()),
    ];
    update(call, g, state, move |g, [w, m, v]| {
        let g = scale * g + decay * w;
        let m = keep1 * m + add1 * g;
        let v = keep2 * v + add2 * g * g;
        [w - rate * m / (v.sqrt() * root + epsilon), m, v]
    })?;
    Ok(Work {
        flops: 14 * n as u64,
        bytes: 4 * 7 * n as u64,
    })
}

/// Sum of g * g in f64; the same bits for any number of threads. Counts 2 flops an element.
pub fn sum_of_squares(call: &mut Call, g: &[f32]) -> Result<(f64, Work), Canceled> {
    let sums = [const { AtomicU64::new(0) }; PARTS];
    let level = call.team.level();
    let cost = ELEMENT * (g.len() / PARTS) as u64;
    call.team.units(call.progress, PARTS, cost, &|unit, _| {
        let sum = level.run(Squares(&g[crate::grid::part(g.len(), unit, PARTS)]));
        sums[unit].store(sum.to_bits(), Ordering::Relaxed);
    })?;
    let sum = sums
        .iter()
        .map(|s| f64::from_bits(s.load(Ordering::Relaxed)))
        .sum();
    Ok((
        sum,
        Work {
            flops: 2 * g.len() as u64,
            bytes: 4 * g.len() as u64,
        },
    ))
}

struct Squares<'a>(&'a [f32]);

impl Op for Squares<'_> {
    type Out = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let (mut sums, (chunks, rest)) = ([0f64; 32], self.0.as_chunks::<32>());
        for chunk in chunks {
            for (sum, a) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(*a) * f64::from(*a);
            }
        }
        sums.iter().sum::<f64>() + rest.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>()
    }
}

/// state = f(g, state) for all elements.
fn update<const K: usize, F>(
    call: &mut Call,
    g: &[f32],
    state: [Shared; K],
    f: F,
) -> Result<(), Canceled>
where
    F: Fn(f32, [f32; K]) -> [f32; K] + Copy + Sync,
{
    let level = call.team.level();
    let cost = 4 * ELEMENT * RANGE as u64;
    call.team
        .units(call.progress, g.len().div_ceil(RANGE), cost, &|unit, _| {
            let start = unit * RANGE;
            let g = &g[start..(start + RANGE).min(g.len())];
            // SAFETY: the states are as long as g, and ranges are disjoint.
            let state = state.map(|s| unsafe { s.get().add(start) });
            level.run(Update { g, state, f });
        })
}

struct Update<'a, const K: usize, F> {
    g: &'a [f32],
    state: [*mut f32; K],
    f: F,
}

impl<const K: usize, F: Fn(f32, [f32; K]) -> [f32; K]> Op for Update<'_, K, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, g) in self.g.iter().enumerate() {
            // SAFETY: the states are as long as g.
            unsafe {
                let next = (self.f)(*g, self.state.map(|s| *s.add(i)));
                for (s, value) in self.state.iter().zip(next) {
                    *s.add(i) = value;
                }
            }
        }
    }
}
