//! Attention, which PyTorch writes as products of tensors.
//!
//! Biases and masks are added to scores; windows are blocks of positions beside which the batch counts the windows.
//!
//! Example: `einsum("blxd,blyd->blxy", q, k)` makes scores, which have no tensor of the graph; scaling and softmax are
//! noted; `einsum("bhxy,bhyd->bhxd", scores, v)` becomes an attention of q, k and v.

mod terms;
mod window;

use super::{Fault, Read, Tensor, Translation, Value, reason};
use crate::layout::{Axis, Layout, extent_of};
use crate::network::{Call, Operation};
use partita_graph::{Activation, AttentionWindow, Op, ParameterRole, ScoreBias, Shape};
use window::{is_of_space, window, with_usual_mask};

/// Scores of queries and keys.
#[derive(Clone, Debug)]
pub(super) struct Scores {
    factors: [Tensor; 2],
    heads: usize,
    dims: Vec<ScoreDim>,
    scale: f64,
    window: Option<AttentionWindow>,
    /// Masks later positions.
    causal: bool,
    bias: Option<(ScoreBias, Read)>,
    /// The factor that a softmax has made the keys.
    keys: Option<Count>,
}

/// A dim of scores.
#[derive(Clone, Debug, PartialEq)]
struct ScoreDim {
    counts: Count,
    axes: Vec<Axis>,
}

/// What a dim of scores counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Samples, heads or both.
    Batch,
    /// Positions of the first factor.
    First,
    /// Positions of the second factor.
    Second,
}

/// The letters of the dims of two factors and of their product, as in `einsum`.
pub(super) type Letters = [String; 3];

const NO_ATTENTION: &str =
    "a product of two tensors that is no attention over all positions is not read";

impl Scores {
    fn has_terms(&self) -> bool {
        let is_masked = self.window.is_some_and(|window| window.mask != 0.0);
        self.causal || self.bias.is_some() || is_masked
    }
}

impl Translation<'_> {
    /// The scores that a call makes; none if it makes none.
    pub(super) fn scores(
        &self,
        call: &Call,
        operation: &Operation,
    ) -> Result<Option<Scores>, Fault> {
        let Some(mut scores) = self.read_scores(call, 0) else {
            if let Some(scores) = self.read_scores(call, 1) {
                return match operation {
                    Operation::Contraction(_) => Ok(None),
                    Operation::Add => self.with_term(call, 0, scores).map(Some),
                    _ => reason("it works on attention scores in a way that is not read"),
                };
            }
            let Operation::Contraction(letters) = operation else {
                return Ok(None);
            };
            let factors = [self.tensor(call, 0)?, self.tensor(call, 1)?];
            return self.product(factors, letters).map(Some);
        };
        match operation {
            Operation::Contraction(_) => return Ok(None),
            Operation::Identity => {}
            Operation::Dropout { rate } if *rate == 0.0 => {}
            Operation::Dropout { .. } => {
                return reason("dropout of attention weights is not read; set it to 0");
            }
            &Operation::Activation(Activation::Affine { scale, shift: 0.0 })
                if scores.keys.is_none() && !scores.has_terms() =>
            {
                scores.scale *= scale;
            }
            &Operation::Softmax { dim } if scores.keys.is_none() => {
                let counts = scores.dims.get(dim).map(|one| one.counts);
                scores.keys = counts.filter(|&counts| counts != Count::Batch);
                if scores.keys.is_none() {
                    return reason("a softmax of attention over samples or heads is not read");
                }
            }
            Operation::Permute { order } => {
                let dims = order.iter().map(|&dim| scores.dims.get(dim).cloned());
                let Some(dims) = dims.collect() else {
                    return reason("it names other dims than its input has");
                };
                scores.dims = dims;
            }
            Operation::Add if scores.keys.is_none() => scores = self.with_term(call, 1, scores)?,
            Operation::Reshape => scores.dims = self.regrouped(call, &scores)?,
            _ => return reason("it works on attention scores in a way that is not read"),
        }
        Ok(Some(scores))
    }

    fn read_scores(&self, call: &Call, index: usize) -> Option<Scores> {
        match self.values.get(call.inputs.get(index)?.as_ref()?) {
            Some(Value::Scores(scores)) => Some(scores.as_ref().clone()),
            _ => None,
        }
    }

    /// Scores of two tensors: sums over the channels of each head.
    fn product(&self, factors: [Tensor; 2], letters: &Letters) -> Result<Scores, Fault> {
        let [first, second] = &factors;
        let [left, right, output] = letters;
        let mut batch = Vec::new();
        let mut dims = Vec::new();
        for letter in output.chars() {
            let places = [left, right].map(|of| of.find(letter));
            let (counts, axes) = match places {
                [Some(i), Some(j)] if first.layout.axes(i) == second.layout.axes(j) => {
                    batch.extend_from_slice(first.layout.axes(i));
                    (Count::Batch, first.layout.axes(i))
                }
                [Some(i), None] => (Count::First, first.layout.axes(i)),
                [None, Some(j)] => (Count::Second, second.layout.axes(j)),
                [_, _] => return reason(NO_ATTENTION),
            };
            dims.push(ScoreDim {
                counts,
                axes: axes.to_vec(),
            });
        }
        let summed = summed(left, right, output);
        let Some((i, j)) = summed else {
            return reason(NO_ATTENTION);
        };
        let shapes = [first, second].map(|one| self.shape(one));
        let inner = [first.layout.axes(i), second.layout.axes(j)];
        let count = heads(shapes[0], &batch, inner[0]);
        let is_alike = count == heads(shapes[1], &batch, inner[1]);
        let (Some(heads), true) = (count, is_alike) else {
            return reason(NO_ATTENTION);
        };
        let window = |counts: Count, shape: Shape| {
            let mut own = dims.iter().filter(|one| one.counts == counts);
            let axes = own.next().filter(|_| own.next().is_none());
            axes.and_then(|one| window(shape, &one.axes, &batch))
        };
        let windows = [
            window(Count::First, shapes[0]),
            window(Count::Second, shapes[1]),
        ];
        let [Some(window), Some(other)] = windows else {
            return reason(NO_ATTENTION);
        };
        let is_alike = window.is_none() || shapes[0].extent == shapes[1].extent;
        if window != other || !is_alike {
            return reason(NO_ATTENTION);
        }
        Ok(Scores {
            factors,
            heads,
            dims,
            scale: 1.0,
            window,
            causal: false,
            bias: None,
            keys: None,
        })
    }

    /// The product of scores and values.
    pub(super) fn contract(&mut self, call: &Call, letters: &Letters) -> Result<Tensor, Fault> {
        let [left, right, output] = letters;
        let (scores, v, [left, right]) = match [0, 1].map(|index| self.read_scores(call, index)) {
            [Some(scores), None] => (scores, self.tensor(call, 1)?, [left, right]),
            [None, Some(scores)] => (scores, self.tensor(call, 0)?, [right, left]),
            _ => return reason(NO_ATTENTION),
        };
        self.attend(call, &scores, &v, [left, right, output])
    }

    /// An attention that is one call, of q, k and v of (..., positions, channels).
    pub(super) fn attention(
        &mut self,
        call: &Call,
        (is_causal, scale): (bool, Option<f64>),
        q: &Tensor,
    ) -> Result<Tensor, Fault> {
        let (k, v) = (self.tensor(call, 1)?, self.tensor(call, 2)?);
        let batch: String = ('A'..).take(q.layout.dims().saturating_sub(2)).collect();
        let [q_letters, k_letters, pairs] = ["xd", "yd", "xy"].map(|rest| format!("{batch}{rest}"));
        let letters = [q_letters.clone(), k_letters.clone(), pairs.clone()];
        let channels = q.layout.dims().checked_sub(1);
        let channels = channels.map(|dim| q.layout.axes(dim).to_vec());
        let mut scores = self.product([q.clone(), k], &letters)?;
        let shape = self.shape(q);
        let of_head = channels.unwrap_or_default();
        let of_head: usize = of_head.iter().map(|&axis| extent_of(shape, axis)).product();
        scores.scale = scale.unwrap_or(1.0 / (of_head as f64).sqrt());
        scores.causal = is_causal;
        if call.inputs.get(3).is_some_and(Option::is_some) {
            scores = self.with_term(call, 3, scores)?;
        }
        scores.keys = Some(Count::Second);
        self.attend(call, &scores, &v, [&pairs, &k_letters, &q_letters])
    }

    /// The dims of scores in other extents, of which the last two stay.
    fn regrouped(&self, call: &Call, scores: &Scores) -> Result<Vec<ScoreDim>, Fault> {
        let sizes = self.output_extents(call);
        let shape = self.shape(&scores.factors[0]);
        let found = scores.dims.len().checked_sub(2).and_then(|count| {
            let (batch, pairs) = scores.dims.split_at(count);
            let (others, last) = sizes.split_at(sizes.len().checked_sub(2)?);
            let is_kept = pairs.iter().all(|one| one.counts != Count::Batch)
                && batch.iter().all(|one| one.counts == Count::Batch)
                && last == &self.score_extents(scores)[count..];
            let layout = Layout::of(batch.iter().map(|one| one.axes.clone()).collect());
            let layout = layout
                .reshaped(shape, self.samples, others)
                .filter(|_| is_kept)?;
            let dims = (0..layout.dims()).map(|dim| ScoreDim {
                counts: Count::Batch,
                axes: layout.axes(dim).to_vec(),
            });
            Some(dims.chain(pairs.iter().cloned()).collect())
        });
        found.map_or_else(
            || reason("it regroups attention scores in a way that is not read"),
            Ok,
        )
    }

    /// Extents of the dims of scores.
    fn score_extents(&self, scores: &Scores) -> Vec<usize> {
        let shapes = [0, 1].map(|index| self.shape(&scores.factors[index]));
        let extent = |one: &ScoreDim| {
            let shape = shapes[usize::from(one.counts == Count::Second)];
            let layout = Layout::of(vec![one.axes.clone()]);
            layout.extents(shape, self.samples)[0]
        };
        scores.dims.iter().map(extent).collect()
    }

    fn attend(
        &mut self,
        call: &Call,
        scores: &Scores,
        v: &Tensor,
        [left, right, output]: [&String; 3],
    ) -> Result<Tensor, Fault> {
        let Some(keys) = scores.keys else {
            return reason("a product with scores that have no softmax is not read");
        };
        let mut axes = Vec::new();
        let mut batch = Vec::new();
        let mut inner = None;
        for letter in output.chars() {
            let of_scores = left.find(letter).and_then(|i| scores.dims.get(i));
            let of_v = right.find(letter).map(|j| v.layout.axes(j));
            axes.push(match (of_scores, of_v) {
                (Some(one), Some(other)) if one.counts == Count::Batch && one.axes == other => {
                    batch.extend_from_slice(other);
                    one.axes.clone()
                }
                (Some(one), None) if ![Count::Batch, keys].contains(&one.counts) => {
                    one.axes.clone()
                }
                (None, Some(other)) if inner.is_none() => {
                    inner = Some(other);
                    other.to_vec()
                }
                _ => return reason(NO_ATTENTION),
            });
        }
        let [first, second] = &scores.factors;
        let (q, k) = match keys {
            Count::First => (second, first),
            Count::Second | Count::Batch => (first, second),
        };
        let summed = summed(left, right, output).and_then(|(i, j)| Some((scores.dims.get(i)?, j)));
        let is_over_keys =
            summed.is_some_and(|(dim, j)| dim.counts == keys && dim.axes == v.layout.axes(j));
        let of_v = inner.and_then(|inner| heads(self.shape(v), &batch, inner));
        if !is_over_keys || of_v != Some(scores.heads) || self.shape(k) != self.shape(v) {
            return reason(NO_ATTENTION);
        }
        let of_head = self.shape(q).channels / scores.heads;
        let factor = scores.scale * (of_head as f64).sqrt();
        let mut query = q.node;
        // The graph's attention divides by the root of the channels of a head.
        if (factor - 1.0).abs() > 1e-12 {
            let scale = Activation::Affine {
                scale: factor,
                shift: 0.0,
            };
            query = self.plain(call, Op::Activation(scale), &[query])?;
        }
        let op = Op::Attention {
            heads: scores.heads,
            causal: scores.causal,
            window: scores.window.map(with_usual_mask),
            bias: scores.bias.as_ref().map(|(bias, _)| *bias),
        };
        let bias = scores.bias.as_ref();
        let bias = bias.map(|(_, read)| (ParameterRole::Weight, Some(read.clone())));
        let bias: Vec<_> = bias.into_iter().collect();
        let name = if call.module.is_empty() {
            "attention"
        } else {
            &call.module
        };
        let node = self.named(name, op, &[query, k.node, v.node], &bias)?;
        Ok(Tensor {
            node,
            layout: Layout::of(axes),
        })
    }
}

/// The places of the only letter that both factors have and the product lacks.
fn summed(left: &str, right: &str, output: &str) -> Option<(usize, usize)> {
    let mut letters = left.chars().filter(|&one| !output.contains(one));
    let letter = letters.next().filter(|_| letters.next().is_none())?;
    let mut others = right.chars().filter(|&one| !output.contains(one));
    others.next().filter(|&one| one == letter)?;
    let is_only = others.next().is_none();
    is_only.then_some((left.find(letter)?, right.find(letter)?))
}

/// The axes of all positions, in order.
pub(super) fn positions(shape: Shape) -> Vec<Axis> {
    let dims = (0..3).filter(|&dim| shape.extent[dim] > 1);
    dims.map(Axis::Space).collect()
}

/// The number of heads whose channels are `inner`, where the batch is samples, heads and windows; none where it is not so.
fn heads(shape: Shape, batch: &[Axis], inner: &[Axis]) -> Option<usize> {
    let all = || batch.iter().copied().filter(|axis| !is_of_space(axis));
    let outer: Vec<Axis> = all().filter(|axis| *axis != Axis::Sample).collect();
    if all().count() != outer.len() + 1 {
        return None;
    }
    let of_head: usize = inner.iter().map(|&axis| extent_of(shape, axis)).product();
    let count: usize = outer.iter().map(|&axis| extent_of(shape, axis)).product();
    let axis = |stride, extent| match extent {
        1 => Vec::new(),
        _ if extent == shape.channels => vec![Axis::Channel],
        _ => vec![Axis::Part { stride, extent }],
    };
    let is_split = outer == axis(of_head, count) && inner == axis(1, of_head);
    (is_split && of_head * count == shape.channels).then_some(count)
}
