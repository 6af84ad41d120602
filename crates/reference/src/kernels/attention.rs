//! Attention.

use super::Call;
use crate::values::Values;
use partita_program::fields::{AttentionBackward, AttentionBackwardBias, AttentionForward};
use partita_program::{Fields, Kernel};
use partita_run::RunError;
use partita_space::{AttentionWindow, ScoreRows};

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::AttentionForward(of) => forward(of, call),
        Fields::AttentionBackward(of) => backward(of, call),
        Fields::AttentionBackwardBias(of) => bias_backward(of, call),
        _ => panic!("{} is no attention kernel", kernel.name()),
    }
}

macro_rules! pattern {
    ($of:expr) => {
        Pattern {
            heads: *$of.heads,
            causal: *$of.causal,
            window: *$of.window,
            table: *$of.table,
        }
    };
}

/// What attends to what.
#[derive(Clone, Copy)]
struct Pattern {
    heads: usize,
    causal: bool,
    window: Option<AttentionWindow>,
    table: Option<[usize; 3]>,
}

impl Pattern {
    /// For all windows of a tensor, their positions and the parts of the tensor that these are of.
    fn places(&self, tensor: [usize; 3]) -> Vec<([usize; 3], usize)> {
        let Some(window) = self.window else {
            return Vec::new();
        };
        let (count, volume) = (window.count(tensor), window.volume());
        let place = |at: usize| {
            let (one, position) = (at / volume, at % volume);
            let place = window.position(tensor, one, position);
            (place, window.part(tensor, one, position))
        };
        (0..count * volume).map(place).collect()
    }
}

/// One head of one sample, within one window.
#[derive(Clone, Copy)]
struct Head<'v> {
    n: usize,
    /// Its number, its first channel, and their number.
    number: usize,
    first: usize,
    channels: usize,
    pattern: Pattern,
    /// Positions of the window and the parts of the tensor that they are of; none without windows.
    places: &'v [([usize; 3], usize)],
    /// Positions of q and of k.
    outer: usize,
    inner: usize,
    bias: Option<&'v Values<'v>>,
}

impl<'v> Head<'v> {
    /// All of them.
    fn all(
        [q, k]: [&Values<'_>; 2],
        pattern: Pattern,
        bias: Option<&'v Values<'v>>,
        places: &'v [([usize; 3], usize)],
    ) -> Vec<Self> {
        let channels = q.extent()[4] / pattern.heads;
        let windows = pattern.window.map_or(1, |window| window.count(space(q)));
        let volume = pattern.window.map_or(0, |window| window.volume());
        let own = |of| {
            pattern
                .window
                .map_or_else(|| positions(of), |window| window.volume())
        };
        let (outer, inner) = (own(q), own(k));
        let number = 0..q.extent()[0] * pattern.heads * windows;
        let head = |at: usize| {
            let number = at / windows % pattern.heads;
            Self {
                n: at / windows / pattern.heads,
                number,
                first: number * channels,
                channels,
                pattern,
                places: &places[at % windows * volume..][..volume],
                outer,
                inner,
                bias,
            }
        };
        number.map(head).collect()
    }

    /// Index of a channel at a position of the window in a tensor, which are counted in (D, H, W) order.
    fn at(&self, of: &Values<'_>, position: usize, c: usize) -> [usize; 5] {
        let [d, h, w] = if self.places.is_empty() {
            let [_, h, w] = space(of);
            [position / (h * w), position / w % h, position % w]
        } else {
            self.places[position].0
        };
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

    /// What is added to a score.
    fn added(&self, i: usize, j: usize) -> f64 {
        let bias = self.bias.map_or(0.0, |bias| bias.get(self.row(i, j)));
        let mask = self.pattern.window.map_or(0.0, |window| {
            if self.places[i].1 == self.places[j].1 {
                0.0
            } else {
                window.mask
            }
        });
        bias + mask
    }

    /// Index in the bias.
    fn row(&self, i: usize, j: usize) -> [usize; 5] {
        let rows = ScoreRows::of(self.pattern.table, self.inner);
        [0, 0, 0, rows.row(i, j), self.number]
    }

    /// Attention weights of position `i` over the positions of the keys; 0 where masked.
    fn weights(&self, q: &Values<'_>, k: &Values<'_>, i: usize) -> Vec<f64> {
        let seen = |j: usize| !self.pattern.causal || j <= i;
        let score = |j: usize| {
            if seen(j) {
                self.scale() * self.dot((q, i), (k, j)) + self.added(i, j)
            } else {
                f64::NEG_INFINITY
            }
        };
        let scores: Vec<f64> = (0..self.inner).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / total).collect()
    }

    /// Gradients of the scores of position `i`, given its attention weights.
    fn slopes(&self, weights: &[f64], v: &Values<'_>, dy: (&Values<'_>, usize)) -> Vec<f64> {
        let slopes: Vec<f64> = (0..self.inner).map(|j| self.dot(dy, (v, j))).collect();
        let mean: f64 = weights.iter().zip(&slopes).map(|(a, b)| a * b).sum();
        let pairs = weights.iter().zip(&slopes);
        pairs.map(|(share, slope)| share * (slope - mean)).collect()
    }
}

/// Positions of a sample.
fn positions(of: &Values<'_>) -> usize {
    of.extent()[1..4].iter().product()
}

fn space(of: &Values<'_>) -> [usize; 3] {
    let [_, d, h, w, _] = of.extent();
    [d, h, w]
}

fn forward(of: AttentionForward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(
        of.q.extent, of.y.extent,
        "{} and {} have one shape",
        of.q, of.y
    );
    assert_eq!(
        of.k.extent, of.v.extent,
        "{} and {} have one shape",
        of.k, of.v
    );
    let [q, k, v, y] = [of.q, of.k, of.v, of.y].map(|view| call.values(view));
    let (bias, pattern) = (of.bias.map(|view| call.values(&view)), pattern!(of));
    let mut flops = 0;
    let places = pattern.places(space(&q));
    for head in Head::all([&q, &k], pattern, bias.as_ref(), &places) {
        if !(call.progress)() {
            return Err(RunError::Cancelled);
        }
        for i in 0..head.outer {
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
    Ok(flops)
}

fn backward(of: AttentionBackward<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(
        of.q.extent, of.dy.extent,
        "{} and {} have one shape",
        of.q, of.dy
    );
    assert_eq!(
        of.k.extent, of.v.extent,
        "{} and {} have one shape",
        of.k, of.v
    );
    let [q, k, v, dy] = [of.q, of.k, of.v, of.dy].map(|view| call.values(view));
    let (bias, pattern) = (of.bias.map(|view| call.values(&view)), pattern!(of));
    let [to_q, to_k, to_v] = *of.accumulate;
    let wanted = [(of.dq, to_q), (of.dk, to_k), (of.dv, to_v)]
        .map(|(view, adds)| view.map(|view| call.result(&view, adds)));
    let products = 2 + wanted.iter().flatten().count();
    let mut flops = 0;
    let places = pattern.places(space(&q));
    for head in Head::all([&q, &k], pattern, bias.as_ref(), &places) {
        if !(call.progress)() {
            return Err(RunError::Cancelled);
        }
        let sums = head_backward(&head, [&q, &k, &v, &dy]);
        for ((sums, target), accumulate) in sums.iter().zip(&wanted).zip(*of.accumulate) {
            let Some(target) = target else { continue };
            for (at, &sum) in sums.iter().enumerate() {
                let at = head.at(target, at / head.channels, at % head.channels);
                target.put(at, sum, accumulate);
            }
        }
        flops += (2 * products * head.outer * head.inner * head.channels) as u64;
    }
    Ok(flops)
}

/// Gradients of q, k and v of one head, positions by channels.
fn head_backward(head: &Head<'_>, [q, k, v, dy]: [&Values<'_>; 4]) -> [Vec<f64>; 3] {
    let (outer, inner, channels) = (head.outer, head.inner, head.channels);
    let [mut dq, mut dk, mut dv] = [outer, inner, inner].map(|w| vec![0.0; w * channels]);
    for i in 0..outer {
        let weights = head.weights(q, k, i);
        let dscores = head.slopes(&weights, v, (dy, i));
        for j in 0..inner {
            let dscore = head.scale() * dscores[j];
            for c in 0..channels {
                dq[i * channels + c] += dscore * k.get(head.at(k, j, c));
                dk[j * channels + c] += dscore * q.get(head.at(q, i, c));
                dv[j * channels + c] += weights[j] * dy.get(head.at(dy, i, c));
            }
        }
    }
    [dq, dk, dv]
}

fn bias_backward(of: AttentionBackwardBias<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let [q, k, v, dy] = [of.q, of.k, of.v, of.dy].map(|view| call.values(view));
    let dbias = call.result(of.dbias, *of.accumulate);
    let (bias, pattern) = (of.bias.map(|view| call.values(&view)), pattern!(of));
    let columns = dbias.extent()[4];
    let mut sums = vec![0.0; dbias.extent()[3] * columns];
    let mut flops = 0;
    let places = pattern.places(space(&q));
    for head in Head::all([&q, &k], pattern, bias.as_ref(), &places) {
        if !(call.progress)() {
            return Err(RunError::Cancelled);
        }
        for i in 0..head.outer {
            let weights = head.weights(&q, &k, i);
            for (j, slope) in head.slopes(&weights, &v, (&dy, i)).into_iter().enumerate() {
                let [.., row, column] = head.row(i, j);
                sums[row * columns + column] += slope;
            }
        }
        flops += (4 * head.outer * head.inner * head.channels) as u64;
    }
    for (at, &sum) in sums.iter().enumerate() {
        dbias.put([0, 0, 0, at / columns, at % columns], sum, *of.accumulate);
    }
    Ok(flops)
}
