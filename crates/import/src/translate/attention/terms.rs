//! What is added to attention scores: trained biases, and masks of known numbers.

use super::window::numbers;
use super::{Count, Scores};
use crate::layout::Axis;
use crate::network::{Call, Constant};
use crate::translate::{Fault, Read, Translation, Value, reason};
use partita_graph::{AttentionWindow, ScoreBias};
use partita_space::ScoreRows;

/// At most this, a term takes all of a weight away in double precision.
const HIDDEN: f32 = -1e4;

const NO_BIAS: &str = "a bias of attention scores is not read but for rows of a table of relative positions, and a \
                       parameter of heads x positions x positions";
const NO_MASK: &str = "a mask of attention scores is not read but for those of shifted windows and of later positions";

impl Translation<'_> {
    /// Scores with the term that a call reads.
    pub(super) fn with_term(
        &self,
        call: &Call,
        index: usize,
        mut scores: Scores,
    ) -> Result<Scores, Fault> {
        if scores.keys.is_some() {
            return reason("a sum with attention weights is not read");
        }
        let name = call.inputs.get(index).and_then(Option::as_ref);
        match name.and_then(|name| self.values.get(name)) {
            Some(Value::Constant(constant)) => match &constant.of {
                Some(parameter) => {
                    let bias = self.relative(&scores, constant, parameter)?;
                    self.set_bias(&mut scores, bias)?;
                }
                None => self.mask(&mut scores, constant)?,
            },
            Some(Value::Stored { .. }) => {
                let bias = self.pairs(&scores, call, index)?;
                self.set_bias(&mut scores, bias)?;
            }
            Some(Value::Unknown) => return Err(Fault::Follows),
            _ => return reason("a bias of attention scores that is computed is not read"),
        }
        Ok(scores)
    }

    fn set_bias(&self, scores: &mut Scores, bias: (ScoreBias, Read)) -> Result<(), Fault> {
        if scores.bias.is_some() {
            return reason("two biases of attention scores are not read");
        }
        if *scores.dims.last().map_or(&Count::Batch, |dim| &dim.counts) != Count::Second {
            return reason("a bias of transposed attention scores is not read");
        }
        scores.bias = Some(bias);
        Ok(())
    }

    /// Positions of q and of k that attend to each other.
    fn own(&self, scores: &Scores) -> [usize; 2] {
        [0, 1].map(|index| {
            let extent = self.shape(&scores.factors[index]).extent;
            let own = scores.window.map_or(extent, |window| window.extent);
            own.into_iter().product()
        })
    }

    /// Whether extents, aligned at the end, are those of heads and positions, with 1 elsewhere.
    fn is_per_head(&self, scores: &Scores, shape: &[usize]) -> bool {
        let extents = self.score_extents(scores);
        let count = extents.len();
        let Some(missing) = count.checked_sub(shape.len()) else {
            return false;
        };
        (0..count).all(|dim| {
            let extent = dim.checked_sub(missing).map_or(1, |at| shape[at]);
            let one = &scores.dims[dim];
            let is_heads = matches!(one.axes[..], [Axis::Part { .. } | Axis::Channel]);
            match one.counts {
                Count::Batch if is_heads => extent == scores.heads,
                Count::Batch => extent == 1,
                Count::First | Count::Second => extent == extents[dim],
            }
        })
    }

    /// Rows of a table, by relative positions.
    fn relative(
        &self,
        scores: &Scores,
        found: &Constant,
        parameter: &str,
    ) -> Result<(ScoreBias, Read), Fault> {
        let table = self.network.shape(parameter).to_vec();
        let [outer, inner] = self.own(scores);
        let &[rows, heads] = &table[..] else {
            return reason(NO_BIAS);
        };
        if heads != scores.heads || outer != inner || !self.is_per_head(scores, &found.shape) {
            return reason(NO_BIAS);
        }
        let place = |window: [usize; 3], at: usize| {
            let (head, i, j) = (at / inner / outer, at / inner % outer, at % inner);
            ScoreRows::Relative(window).row(i, j) * heads + head
        };
        let fits = |window: &[usize; 3]| {
            let mut all = found.values.iter().enumerate();
            window.iter().product::<usize>() >= outer
                && window[..3 - self.rank].iter().all(|&one| one == 1)
                && all.all(|(at, &value)| value == place(*window, at) as f32)
        };
        let Some(window) = windows_with(rows).find(fits) else {
            return reason(NO_BIAS);
        };
        let read = Read {
            value: parameter.to_owned(),
            name: self.network.stored[parameter].clone(),
            shape: table,
        };
        Ok((ScoreBias::Relative(window), read))
    }

    /// A parameter with a number for each head and pair.
    fn pairs(
        &self,
        scores: &Scores,
        call: &Call,
        index: usize,
    ) -> Result<(ScoreBias, Read), Fault> {
        let Some(mut read) = self.parameter(call, index)? else {
            return reason(NO_BIAS);
        };
        let [outer, inner] = self.own(scores);
        if !self.is_per_head(scores, &read.shape) {
            return reason(NO_BIAS);
        }
        read.shape = vec![scores.heads, outer * inner];
        Ok((ScoreBias::Pairs, read))
    }

    /// A mask of shifted windows, or of later positions.
    fn mask(&self, scores: &mut Scores, mask: &Constant) -> Result<(), Fault> {
        let value = |at: usize| match (mask.is_bool, mask.values[at]) {
            (false, value) => value,
            (true, 0.0) => f32::NEG_INFINITY,
            (true, _) => 0.0,
        };
        let shape = self.shape(&scores.factors[0]);
        let volume = scores.window.map_or(0, |windows| windows.volume());
        let (mut parts, mut of) = (Vec::new(), None);
        let mut hidden: Option<f32> = None;
        let (mut is_one, mut is_causal, mut is_of_windows) = (true, true, true);
        let is_read = self.each_place(scores, &mask.shape, |[window, i, j], at| {
            let value = value(at);
            is_one &= value == 0.0 || *hidden.get_or_insert(value) == value;
            is_causal &= (value != 0.0) == (j > i);
            if let Some(windows) = scores.window.filter(|_| of != Some(window)) {
                of = Some(window);
                let all = 0..volume;
                parts = all
                    .map(|at| windows.part(shape.extent, window, at))
                    .collect();
            }
            is_of_windows &= parts.is_empty() || (value != 0.0) == (parts[i] != parts[j]);
        });
        if is_read.is_none() || !is_one {
            return reason(NO_MASK);
        }
        match (hidden, &mut scores.window) {
            (None, _) => Ok(()),
            (Some(value), Some(AttentionWindow { mask, .. }))
                if is_of_windows && *mask == 0.0 && value.is_finite() =>
            {
                *mask = f64::from(value);
                Ok(())
            }
            (Some(value), None) if is_causal && value <= HIDDEN => {
                scores.causal = true;
                Ok(())
            }
            _ => reason(NO_MASK),
        }
    }

    /// Calls `each` with window, position of q and of k of each element of a mask of these extents, and the element; none
    /// where the mask differs by samples or heads.
    fn each_place(
        &self,
        scores: &Scores,
        of: &[usize],
        mut each: impl FnMut([usize; 3], usize),
    ) -> Option<()> {
        let extents = self.score_extents(scores);
        let missing = extents.len().checked_sub(of.len())?;
        let shape = self.shape(&scores.factors[0]);
        let count = scores.window.map_or(1, |window| window.count(shape.extent));
        // What each dim of scores counts: windows, positions of q or of k.
        let mut windows = vec![0];
        let mut counted = vec![None; of.len()];
        for (dim, one) in scores.dims.iter().enumerate().skip(missing) {
            let at = dim - missing;
            counted[at] = match one.counts {
                Count::First if of[at] == extents[dim] => Some(1),
                Count::Second if of[at] == extents[dim] => Some(2),
                Count::Batch if of[at] == 1 => None,
                Count::Batch if of[at] == extents[dim] => {
                    windows = numbers(shape, scores.window.as_ref()?, &one.axes)?;
                    Some(0)
                }
                _ => return None,
            };
        }
        let has = |what| counted.iter().filter(|one| **one == Some(what)).count() == 1;
        if !has(1) || !has(2) || (windows.len() != count && scores.window.is_some_and(is_shifted)) {
            return None;
        }
        for at in 0..of.iter().product() {
            let (mut rest, mut index) = (at, [0; 3]);
            for (extent, what) in of.iter().zip(&counted).rev() {
                if let Some(what) = what {
                    index[*what] = rest % extent;
                }
                rest /= extent;
            }
            each([windows[index[0]], index[1], index[2]], at);
        }
        Some(())
    }
}

fn is_shifted(window: AttentionWindow) -> bool {
    window.shift != [0; 3]
}

/// Windows whose distances have this number of rows in a table.
fn windows_with(rows: usize) -> impl Iterator<Item = [usize; 3]> {
    let odd = move |of: usize| {
        (1..=of)
            .step_by(2)
            .filter(move |one| of.is_multiple_of(*one))
    };
    odd(rows).flat_map(move |d| {
        let rest = rows / d;
        let rows = odd(rest).filter(move |h| (rest / h) % 2 == 1);
        rows.map(move |h| [d, h, rest / h].map(|one| one.div_ceil(2)))
    })
}
