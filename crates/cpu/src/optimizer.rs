//! Updates of parameters, on lists of flat slices, with the semantics of PyTorch.
//!
//! Source: PyTorch documentation, torch.optim.SGD and torch.optim.Adam, the algorithm boxes.

use crate::grid::{Call, Canceled, Shared, Work, part};
use crate::simd::{Op, Simd};
use crate::team::ELEMENT;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Elements of one range.
const RANGE: usize = 16 * 1024;
/// Parts of a sum of squares, for any number of threads.
const PARTS: usize = 64;

/// Stochastic gradient descent with momentum, no dampening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Whether to look ahead along the velocity, which then is needed.
    pub is_nesterov: bool,
    /// Learning rate.
    pub rate: f64,
    /// Factor of the velocity; zero leaves the velocity alone.
    pub momentum: f64,
    /// Factor of the weights added to the gradient.
    pub weight_decay: f64,
    /// Factor of the gradient (clipping, averaging).
    pub scale: f64,
}

/// Adam with L2 or decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Whether the decay is decoupled (AdamW).
    pub is_decoupled: bool,
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

/// A parameter with its gradient and moments.
///
/// A rule borrows its list of parameters exclusively, so two teams cannot update them at the same time:
///
/// ```compile_fail,E0499
/// # use partita_cpu::{Call, Parameter, Sgd, Team, sgd};
/// fn race([a, b]: [&mut Team; 2], rule: &Sgd, list: &mut [Parameter<'_>]) {
///     let one = |team: &mut Team, list: &mut [Parameter<'_>]| {
///         let (scratch, progress) = (&mut [][..], &mut || true);
///         sgd(&mut Call { team, scratch, progress }, rule, list).map(|_| ())
///     };
///     std::thread::scope(|scope| {
///         scope.spawn(|| one(a, list));
///         scope.spawn(|| one(b, list));
///     });
/// }
/// ```
///
/// One team after the other may:
///
/// ```
/// # use partita_cpu::{Call, Parameter, Sgd, Team, sgd};
/// fn in_turn(teams: [&mut Team; 2], rule: &Sgd, list: &mut [Parameter<'_>]) {
///     let one = |team: &mut Team, list: &mut [Parameter<'_>]| {
///         let (scratch, progress) = (&mut [][..], &mut || true);
///         sgd(&mut Call { team, scratch, progress }, rule, list).map(|_| ())
///     };
///     for team in teams {
///         std::thread::scope(|scope| {
///             scope.spawn(|| one(team, list));
///         });
///     }
/// }
/// ```
pub struct Parameter<'a> {
    g: &'a [f32],
    w: Shared,
    moments: [(Shared, usize); 2],
    /// Factor on the learning rate.
    ratio: f32,
    life: PhantomData<&'a mut [f32]>,
}

impl<'a> Parameter<'a> {
    /// `moments` are the velocity and nothing for [`sgd`] and [`lars`], both moments for [`adam`]; what a rule
    /// does not use may be empty. Panics if the gradient has another length than the weights.
    pub fn new(w: &'a mut [f32], g: &'a [f32], moments: [&'a mut [f32]; 2]) -> Parameter<'a> {
        assert!(
            w.len() == g.len(),
            "{} weights, {} gradients",
            w.len(),
            g.len()
        );
        Parameter {
            g,
            w: Shared(w.as_mut_ptr()),
            moments: moments.map(|moment| (Shared(moment.as_mut_ptr()), moment.len())),
            ratio: 1.0,
            life: PhantomData,
        }
    }

    /// With a factor on the learning rate of [`lars`] and [`along`].
    #[must_use]
    pub fn with_ratio(self, ratio: f64) -> Self {
        let ratio = ratio as f32;
        Self { ratio, ..self }
    }

    /// A moment, as long as the weights.
    fn moment(&self, index: usize) -> Shared {
        let (moment, length) = self.moments[index];
        assert!(
            length == self.g.len(),
            "{} weights, a moment of {length}",
            self.g.len()
        );
        moment
    }
}

/// v = momentum * v + (scale * g + weight_decay * w); w -= rate * v. A velocity of zeros is the
/// first step; without momentum v is not used and may be empty. Counts 6 flops an element.
///
/// With Nesterov's momentum, w -= rate * (scale * g + weight_decay * w + momentum * v), 8 flops.
///
/// Errors of all kernels of this module: [`Canceled`]. They panic if lengths differ.
pub fn sgd(call: &mut Call, options: &Sgd, parameters: &mut [Parameter]) -> Result<Work, Canceled> {
    let [rate, momentum] = [options.rate as f32, options.momentum as f32];
    let [decay, scale] = [options.weight_decay as f32, options.scale as f32];
    let velocity = |p: &Parameter| [p.w, p.moment(0)];
    let (n, states) = if options.is_nesterov {
        let n = update(call, parameters, velocity, move |_, g, [w, v]| {
            let g = scale * g + decay * w;
            let v = momentum * v + g;
            [w - rate * (g + momentum * v), v]
        })?;
        (n, 2)
    } else if momentum == 0.0 {
        let n = update(
            call,
            parameters,
            |p| [p.w],
            move |_, g, [w]| [w - rate * (scale * g + decay * w)],
        )?;
        (n, 1)
    } else {
        let n = update(call, parameters, velocity, move |_, g, [w, v]| {
            let v = momentum * v + (scale * g + decay * w);
            [w - rate * v, v]
        })?;
        (n, 2)
    };
    Ok(Work {
        flops: if options.is_nesterov { 8 } else { 6 } * n as u64,
        bytes: 4 * (1 + 2 * states) * n as u64,
    })
}

/// Factors of a step of Adam.
#[derive(Clone, Copy)]
struct AdamStep {
    keep: [f32; 2],
    add: [f32; 2],
    decay: f32,
    scale: f32,
    epsilon: f32,
    /// One over the root of the correction of the second moment.
    root: f32,
}

impl AdamStep {
    fn new(options: &Adam) -> Self {
        let o = options;
        assert!(o.step >= 1, "steps count from 1");
        Self {
            keep: [o.beta1, o.beta2].map(|beta| beta as f32),
            add: [o.beta1, o.beta2].map(|beta| (1.0 - beta) as f32),
            decay: o.weight_decay as f32,
            scale: o.scale as f32,
            epsilon: o.epsilon as f32,
            root: (1.0 / correction(o.beta2, o.step).sqrt()) as f32,
        }
    }

    #[inline(always)]
    fn moments(&self, g: f32, [m, v]: [f32; 2]) -> [f32; 2] {
        let m = self.keep[0] * m + self.add[0] * g;
        let v = self.keep[1] * v + self.add[1] * g * g;
        [m, v]
    }
}

/// Of the bias of a moment.
fn correction(beta: f64, step: u64) -> f64 {
    1.0 - beta.powf(step as f64)
}

/// One step of Adam on weights w with gradients g and moments m, v. Counts 14 flops an element, 15 with decoupled
/// weight decay.
pub fn adam(
    call: &mut Call,
    options: &Adam,
    parameters: &mut [Parameter],
) -> Result<Work, Canceled> {
    let o = AdamStep::new(options);
    let rate = (options.rate / correction(options.beta1, options.step)) as f32;
    let state = |p: &Parameter| [p.w, p.moment(0), p.moment(1)];
    let n = if options.is_decoupled {
        let kept = (1.0 - options.rate * options.weight_decay) as f32;
        update(call, parameters, state, move |_, g, [w, m, v]| {
            let [m, v] = o.moments(o.scale * g, [m, v]);
            [kept * w - rate * m / (v.sqrt() * o.root + o.epsilon), m, v]
        })?
    } else {
        update(call, parameters, state, move |_, g, [w, m, v]| {
            let [m, v] = o.moments(o.scale * g + o.decay * w, [m, v]);
            [w - rate * m / (v.sqrt() * o.root + o.epsilon), m, v]
        })?
    };
    Ok(Work {
        flops: if options.is_decoupled { 15 } else { 14 } * n as u64,
        bytes: 4 * 7 * n as u64,
    })
}

/// The direction of LAMB, u = m' / (sqrt(v') + epsilon) + weight_decay * w, with the corrected moments m' and v'.
/// In the list, what [`Parameter::new`] takes as the gradient is the weights, and u replaces the gradient
/// in place of the weights. Counts 14 flops an element.
pub fn lamb_direction(
    call: &mut Call,
    options: &Adam,
    parameters: &mut [Parameter],
) -> Result<Work, Canceled> {
    let o = AdamStep::new(options);
    let first = (1.0 / correction(options.beta1, options.step)) as f32;
    let state = |p: &Parameter| [p.w, p.moment(0), p.moment(1)];
    let n = update(call, parameters, state, move |_, w, [g, m, v]| {
        let [m, v] = o.moments(o.scale * g, [m, v]);
        let u = first * m / (v.sqrt() * o.root + o.epsilon) + o.decay * w;
        [u, m, v]
    })?;
    Ok(Work {
        flops: 14 * n as u64,
        bytes: 4 * 7 * n as u64,
    })
}

/// v = momentum * v + rate * ratio * (scale * g + weight_decay * w); w -= v, with the ratio of each parameter. Counts
/// 8 flops an element.
pub fn lars(
    call: &mut Call,
    options: &Sgd,
    parameters: &mut [Parameter],
) -> Result<Work, Canceled> {
    let [rate, momentum] = [options.rate as f32, options.momentum as f32];
    let [decay, scale] = [options.weight_decay as f32, options.scale as f32];
    let state = |p: &Parameter| [p.w, p.moment(0)];
    let n = update(call, parameters, state, move |ratio, g, [w, v]| {
        let v = momentum * v + (rate * ratio) * (scale * g + decay * w);
        [w - v, v]
    })?;
    Ok(Work {
        flops: 8 * n as u64,
        bytes: 4 * 5 * n as u64,
    })
}

/// w -= rate * ratio * u, with the ratio of each parameter, and u in place of the gradient. Counts 2 flops an element.
pub fn along(call: &mut Call, rate: f64, parameters: &mut [Parameter]) -> Result<Work, Canceled> {
    let rate = rate as f32;
    let n = update(
        call,
        parameters,
        |p| [p.w],
        move |ratio, u, [w]| [w - (rate * ratio) * u],
    )?;
    Ok(Work {
        flops: 2 * n as u64,
        bytes: 4 * 3 * n as u64,
    })
}

/// m += (1 - decay) * (w - m), the average m in place of the weights of [`Parameter::new`] and w in place of the
/// gradient. An average of what does not move stays as it is. Counts 3 flops an element.
pub fn average(
    call: &mut Call,
    decay: f64,
    parameters: &mut [Parameter],
) -> Result<Work, Canceled> {
    let moved = (1.0 - decay) as f32;
    let n = update(
        call,
        parameters,
        |p| [p.w],
        move |_, w, [m]| [m + moved * (w - m)],
    )?;
    Ok(Work {
        flops: 3 * n as u64,
        bytes: 4 * 3 * n as u64,
    })
}

/// Sum of g * g in f64 over all slices; the same bits for any number of threads. Counts 2 flops an
/// element.
pub fn sum_of_squares(call: &mut Call, sources: &[&[f32]]) -> Result<(f64, Work), Canceled> {
    let sums = [const { AtomicU64::new(0) }; PARTS];
    let level = call.team.level();
    let total: usize = sources.iter().map(|g| g.len()).sum();
    let cost = ELEMENT * (total / PARTS) as u64;
    call.team.units(call.progress, PARTS, cost, &|unit, _| {
        let mut sum = 0.0;
        let lengths = sources.iter().map(|g| g.len());
        pieces(lengths, part(total, unit, PARTS), |source, range| {
            // SAFETY: the team has the level.
            sum += unsafe { level.run(Squares(&sources[source][range])) };
        });
        sums[unit].store(sum.to_bits(), Ordering::Relaxed);
    })?;
    let sum = sums
        .iter()
        .map(|s| f64::from_bits(s.load(Ordering::Relaxed)))
        .sum();
    Ok((
        sum,
        Work {
            flops: 2 * total as u64,
            bytes: 4 * total as u64,
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

/// Visits the slices, and the ranges of them, that a range of their concatenation falls into.
fn pieces(
    lengths: impl Iterator<Item = usize>,
    range: Range<usize>,
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let mut before = 0;
    for (index, length) in lengths.enumerate() {
        let start = range.start.max(before);
        let end = range.end.min(before + length);
        if start < end {
            visit(index, start - before..end - before);
        }
        before += length;
        if before >= range.end {
            break;
        }
    }
}

/// state = f(ratio, g, state) for all elements, whose number it gives. Ranges go across parameters, so
/// that many small ones cost no more than a large one.
fn update<const K: usize, F>(
    call: &mut Call,
    parameters: &mut [Parameter],
    state: impl Fn(&Parameter) -> [Shared; K] + Sync,
    f: F,
) -> Result<usize, Canceled>
where
    F: Fn(f32, f32, [f32; K]) -> [f32; K] + Copy + Sync,
{
    // The exclusive borrow keeps every other team from the list; the threads of this one share it.
    let parameters = &*parameters;
    let level = call.team.level();
    let total: usize = parameters.iter().map(|p| p.g.len()).sum();
    let cost = 4 * ELEMENT * RANGE.min(total) as u64;
    let units = total.div_ceil(RANGE);
    call.team.units(call.progress, units, cost, &|unit, _| {
        let lengths = parameters.iter().map(|p| p.g.len());
        let flat = unit * RANGE..((unit + 1) * RANGE).min(total);
        pieces(lengths, flat, |index, range| {
            let parameter = &parameters[index];
            // SAFETY: the states are as long as g, and ranges are disjoint. The parameters are borrowed
            // alone, and the team has the level.
            unsafe {
                let state = state(parameter).map(|s| s.get().add(range.start));
                let g = &parameter.g[range];
                let ratio = parameter.ratio;
                level.run(Update { ratio, g, state, f });
            }
        });
    })?;
    Ok(total)
}

/// Pointers: states as long as g, which no other thread accesses.
struct Update<'a, const K: usize, F> {
    ratio: f32,
    g: &'a [f32],
    state: [*mut f32; K],
    f: F,
}

impl<const K: usize, F: Fn(f32, f32, [f32; K]) -> [f32; K]> Op for Update<'_, K, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, g) in self.g.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let next = (self.f)(self.ratio, *g, self.state.map(|s| *s.add(i)));
                for (s, value) in self.state.iter().zip(next) {
                    *s.add(i) = value;
                }
            }
        }
    }
}
