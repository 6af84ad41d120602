//! Attention.

use super::{Call, touched};
use crate::values::Values;
use partita_program::{Kernel, View};
use partita_run::{KernelTally, RunError};

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<KernelTally, RunError> {
    match kernel {
        Kernel::AttentionForward {
            q,
            k,
            v,
            y,
            heads,
            causal,
        } => forward([q, k, v, y], *heads, *causal, call),
        Kernel::AttentionBackward {
            q,
            k,
            v,
            dy,
            dq,
            dk,
            dv,
            heads,
            causal,
            accumulate,
        } => {
            let wanted = [dq, dk, dv].map(Option::as_ref);
            backward([q, k, v, dy], wanted, *accumulate, (*heads, *causal), call)
        }
        other => panic!("{} is no attention kernel", other.name()),
    }
}

/// One head of one sample.
#[derive(Clone, Copy)]
struct Head {
    n: usize,
    /// Its first channel, and their number.
    first: usize,
    channels: usize,
    causal: bool,
}

impl Head {
    /// All of them.
    fn all(q: &View, heads: usize, causal: bool) -> Vec<Self> {
        let channels = q.extent[4] / heads;
        let samples = 0..q.extent[0];
        let of_sample = |n| {
            (0..heads).map(move |head| Self {
                n,
                first: head * channels,
                channels,
                causal,
            })
        };
        samples.flat_map(of_sample).collect()
    }

    /// Index of a channel at a position of a tensor, which are counted in (D, H, W) order.
    fn at(&self, of: &Values<'_>, position: usize, c: usize) -> [usize; 5] {
        let [_, _, h, w, _] = of.extent();
        let [d, h, w] = [position / (h * w), position / w % h, position % w];
        [self.n, d, h, w, self.first + c]
    }

    fn dot(&self, a: (&Values<'_>, usize), b: (&Values<'_>, usize)) -> f64 {
        let products = (0..self.channels)
            .map(|c| a.0.get(self.at(a.0, a.1, c)) * b.0.get(self.at(b.0, b.1, c)));
        products.sum()
    }

    fn scale(&self) -> f64 {
        1.0 / (self.channels as f64).sqrt()
    }

    /// Attention weights of position `i` over the positions of the keys; 0 where masked.
    fn weights(&self, q: &Values<'_>, k: &Values<'_>, i: usize) -> Vec<f64> {
        let seen = |j: usize| !self.causal || j <= i;
        let score = |j: usize| {
            if seen(j) {
                self.scale() * self.dot((q, i), (k, j))
            } else {
                f64::NEG_INFINITY
            }
        };
        let scores: Vec<f64> = (0..positions(k)).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / total).collect()
    }
}

/// Positions of a sample.
fn positions(of: &Values<'_>) -> usize {
    of.extent()[1..4].iter().product()
}

fn forward(
    [q, k, v, y]: [&View; 4],
    heads: usize,
    causal: bool,
    call: &mut Call<'_, '_>,
) -> Result<KernelTally, RunError> {
    assert_eq!(q.extent, y.extent, "{q} and {y} have one shape");
    assert_eq!(k.extent, v.extent, "{k} and {v} have one shape");
    let all = Head::all(q, heads, causal);
    let [q, k, v, y] = [q, k, v, y].map(|view| call.values(view));
    let mut flops = 0;
    for head in all {
        if !(call.progress)() {
            return Err(RunError::Cancelled);
        }
        for i in 0..positions(&q) {
            let weights = head.weights(&q, &k, i);
            for c in 0..head.channels {
                let parts = weights.iter().enumerate();
                let sum = parts
                    .map(|(j, share)| share * v.get(head.at(&v, j, c)))
                    .sum();
                y.set(head.at(&y, i, c), sum);
                flops += 4 * weights.len() as u64;
            }
        }
    }
    Ok(KernelTally {
        flops,
        bytes: q.bytes() + k.bytes() + v.bytes() + y.bytes(),
    })
}

fn backward(
    [q, k, v, dy]: [&View; 4],
    wanted: [Option<&View>; 3],
    accumulate: [bool; 3],
    (heads, causal): (usize, bool),
    call: &mut Call<'_, '_>,
) -> Result<KernelTally, RunError> {
    assert_eq!(q.extent, dy.extent, "{q} and {dy} have one shape");
    assert_eq!(k.extent, v.extent, "{k} and {v} have one shape");
    let all = Head::all(q, heads, causal);
    let [q, k, v, dy] = [q, k, v, dy].map(|view| call.values(view));
    let wanted = wanted.map(|view| view.map(|view| call.values(view)));
    let products = 2 + wanted.iter().flatten().count();
    let mut flops = 0;
    for head in all {
        if !(call.progress)() {
            return Err(RunError::Cancelled);
        }
        let sums = head_backward(&head, [&q, &k, &v, &dy]);
        for ((sums, target), accumulate) in sums.iter().zip(&wanted).zip(accumulate) {
            let Some(target) = target else { continue };
            for (at, &sum) in sums.iter().enumerate() {
                let at = head.at(target, at / head.channels, at % head.channels);
                target.put(at, sum, accumulate);
            }
        }
        flops += (2 * products * positions(&q) * positions(&k) * head.channels) as u64;
    }
    let targets = wanted.iter().zip(accumulate);
    let written = targets.map(|(view, accumulate)| {
        let bytes = view.as_ref().map_or(0, Values::bytes);
        touched(bytes, accumulate)
    });
    Ok(KernelTally {
        flops,
        bytes: q.bytes() + k.bytes() + v.bytes() + dy.bytes() + written.sum::<u64>(),
    })
}

/// Gradients of q, k and v of one head, positions by channels.
fn head_backward(head: &Head, [q, k, v, dy]: [&Values<'_>; 4]) -> [Vec<f64>; 3] {
    let (outer, inner, channels) = (positions(q), positions(k), head.channels);
    let [mut dq, mut dk, mut dv] = [outer, inner, inner].map(|w| vec![0.0; w * channels]);
    for i in 0..outer {
        let weights = head.weights(q, k, i);
        let dshares: Vec<f64> = (0..inner).map(|j| head.dot((dy, i), (v, j))).collect();
        let mean: f64 = weights.iter().zip(&dshares).map(|(a, b)| a * b).sum();
        for j in 0..inner {
            let dscore = head.scale() * weights[j] * (dshares[j] - mean);
            for c in 0..channels {
                dq[i * channels + c] += dscore * k.get(head.at(k, j, c));
                dk[j * channels + c] += dscore * q.get(head.at(q, i, c));
                dv[j * channels + c] += weights[j] * dy.get(head.at(dy, i, c));
            }
        }
    }
    [dq, dk, dv]
}
