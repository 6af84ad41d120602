//! Embeddings, positional encoding, layer norm and attention of programs on the kernels of this crate.

use super::Run;
use super::operand::{Input, Output};
use crate::sequence::attention::{
    Heads, attention_backward, attention_backward_bias, attention_forward, attention_scratch,
};
use crate::sequence::position_rows::{PositionNumbers, add_position_rows, position_rows_backward};
use crate::sequence::row_kernels::{
    PositionOffset, RowGradient, RowNorm, add_positions, embed, embed_backward, row_backward,
    row_backward_parameters, row_backward_statistics, row_norm, row_statistics,
};
use crate::team::TeamKind;
use partita_program::fields::{
    AttentionBackward, AttentionBackwardBias, AttentionForward, EmbeddingBackward,
    EmbeddingForward, LayerNormBackwardData, LayerNormBackwardParameters,
    LayerNormBackwardStatistics, LayerNormForward,
};
use partita_program::{Distribution, Fields, Kernel, View};
use partita_run::RunError;
use partita_space::{Coord, Mesh, Rank};

/// What attends to what.
macro_rules! heads {
    ($of:expr) => {
        Heads {
            heads: *$of.heads,
            causal: *$of.causal,
            window: *$of.window,
            table: *$of.table,
        }
    };
}

/// Elements of f32 that a kernel needs.
pub(super) fn scratch(team: TeamKind, kernel: &Kernel) -> usize {
    let of_attention = |heads: Heads, [q, k]: [&View; 2], backward| {
        let extents = [q, k].map(|view| std::array::from_fn(|dim| view.extent[1 + dim]));
        attention_scratch(team, &heads, extents, q.extent[4], backward)
    };
    match kernel.fields() {
        Fields::Positions(of) => of.y.extent[3] * of.y.extent[4],
        Fields::AttentionForward(of) => of_attention(heads!(of), [of.q, of.k], false),
        Fields::AttentionBackward(of) => of_attention(heads!(of), [of.q, of.k], true),
        Fields::AttentionBackwardBias(of) => of_attention(heads!(of), [of.q, of.k], true),
        _ => 0,
    }
}

pub(super) fn execute(
    kernel: &Kernel,
    (mesh, rank, coord): (&Mesh, Rank, &Coord),
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::EmbeddingForward(of) => embedding(of, rank, run),
        Fields::EmbeddingBackward(of) => embedding_backward(of, rank, run),
        Fields::Positions(of) => {
            let offset = of.distribution.corner(of.halo_low, mesh, coord);
            let offset = PositionOffset {
                position: offset[3],
                channel: offset[4],
                channels: of.distribution.shape[4],
            };
            let (x, mut y) = (run.input(of.x), run.output(of.y));
            run.flops(|call| add_positions(call, offset, x.view(), y.view()))
        }
        Fields::PositionEmbeddingForward(of) => {
            let corner = of.distribution.corner(of.halo_low, mesh, coord);
            let numbers = numbers(of.distribution, corner);
            let (x, w, mut y) = (run.input(of.x), run.dense(of.w), run.output(of.y));
            run.flops(|call| add_position_rows(call, numbers, x.view(), w.data(), y.view()))
        }
        Fields::PositionEmbeddingBackward(of) => {
            let corner = of.distribution.corner(of.halo_low, mesh, coord);
            let (numbers, adds) = (numbers(of.distribution, corner), *of.accumulate);
            let (dy, mut dw) = (run.input(of.dy), run.result(of.dw, adds));
            run.flops(|call| position_rows_backward(call, numbers, dy.view(), dw.slice(), adds))
        }
        Fields::AttentionForward(of) => attention(of, run),
        Fields::AttentionBackward(of) => backward(of, run),
        Fields::AttentionBackwardBias(of) => bias_backward(of, run),
        Fields::LayerNormStatistics(of) => {
            let (x, mut sums) = (run.input(of.x), run.totals(of.sums, false));
            run.flops(|call| row_statistics(call, x.view(), sums.data_mut(), *of.rms))
        }
        Fields::LayerNormForward(of) => layer_norm(of, run),
        Fields::LayerNormBackwardStatistics(of) => layer_norm_backward_statistics(of, run),
        Fields::LayerNormBackwardData(of) => layer_norm_backward_data(of, run),
        Fields::LayerNormBackwardParameters(of) => layer_norm_backward_parameters(of, run),
        _ => panic!("{} does not work on sequences", kernel.name()),
    }
}

fn numbers(distribution: &Distribution, corner: [usize; 5]) -> PositionNumbers {
    PositionNumbers {
        corner: std::array::from_fn(|dim| corner[1 + dim]),
        whole: std::array::from_fn(|dim| distribution.shape[1 + dim]),
    }
}

fn out_of_range(number: f32, rows: usize, rank: Rank) -> RunError {
    let last = rows - 1;
    let reason = format!("an embedding reads class number {number}; its rows are 0 to {last}");
    RunError::Source { rank, reason }
}

fn embedding(of: EmbeddingForward<'_>, rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, w, mut y) = (run.input(of.x), run.dense(of.w), run.output(of.y));
    if let Some(index) = run.compute(|call| embed(call, x.view(), w.data(), y.view()))? {
        return Err(out_of_range(index, of.w.extent[3], rank));
    }
    Ok(0)
}

fn embedding_backward(
    of: EmbeddingBackward<'_>,
    rank: Rank,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, dy, adds) = (run.input(of.x), run.input(of.dy), *of.accumulate);
    let mut dw = run.result(of.dw, adds);
    let invalid =
        run.compute(|call| embed_backward(call, x.view(), dy.view(), dw.slice(), adds))?;
    if let Some(index) = invalid {
        return Err(out_of_range(index, of.dw.extent[3], rank));
    }
    Ok(of.dy.volume() as u64)
}

fn layer_norm(of: LayerNormForward<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, sums, mut y) = (run.input(of.x), run.sums(of.sums), run.output(of.y));
    let (gamma, beta) = (run.dense(of.gamma), run.dense(of.beta));
    let norm = by(sums.data(), *of.count, *of.epsilon);
    let vectors = [gamma.data(), beta.data()];
    run.flops(|call| row_norm(call, norm, x.view(), vectors, y.view()))
}

fn layer_norm_backward_statistics(
    of: LayerNormBackwardStatistics<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (run.input(of.x), run.sums(of.sums), run.input(of.dy));
    let (gamma, mut totals) = (run.dense(of.gamma), run.totals(of.gradient_sums, false));
    let norm = by(sums.data(), *of.count, *of.epsilon);
    run.flops(|call| {
        let rows = row_gradient(&x, &dy);
        row_backward_statistics(call, norm, rows, gamma.data(), totals.data_mut(), *of.rms)
    })
}

fn layer_norm_backward_data(
    of: LayerNormBackwardData<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (run.input(of.x), run.sums(of.sums), run.input(of.dy));
    let (gamma, gradient_sums) = (run.dense(of.gamma), run.sums(of.gradient_sums));
    let mut dx = run.result(of.dx, *of.accumulate);
    let norm = by(sums.data(), *of.count, *of.epsilon);
    run.flops(|call| {
        let known = (gamma.data(), gradient_sums.data());
        row_backward(
            call,
            norm,
            row_gradient(&x, &dy),
            known,
            dx.view(),
            *of.accumulate,
        )
    })
}

fn layer_norm_backward_parameters(
    of: LayerNormBackwardParameters<'_>,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let (x, sums, dy) = (run.input(of.x), run.sums(of.sums), run.input(of.dy));
    let result = |view| run.result(view, *of.accumulate);
    let (mut dgamma, mut dbeta) = (result(of.dgamma), result(of.dbeta));
    let norm = by(sums.data(), *of.count, *of.epsilon);
    run.flops(|call| {
        let targets = [dgamma.slice(), dbeta.slice()];
        row_backward_parameters(call, norm, row_gradient(&x, &dy), targets, *of.accumulate)
    })
}

fn row_gradient<'a>(x: &'a Input<'_>, dy: &'a Input<'_>) -> RowGradient<'a> {
    RowGradient {
        x: x.view(),
        dy: dy.view(),
    }
}

fn by(sums: &[f64], count: u64, epsilon: f64) -> RowNorm<'_> {
    RowNorm {
        sums,
        count: count as f64,
        epsilon,
    }
}

fn attention(of: AttentionForward<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let [q, k, v] = [of.q, of.k, of.v].map(|view| run.input(view));
    let mut y = run.output(of.y);
    let bias = of.bias.map(|bias| run.dense(&bias));
    run.flops(|call| {
        let bias = bias.as_ref().map(|bias| bias.data());
        let inputs = ([q.view(), k.view(), v.view()], bias);
        attention_forward(call, heads!(of), inputs, y.view())
    })
}

fn backward(of: AttentionBackward<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let [q, k, v, dy] = [of.q, of.k, of.v, of.dy].map(|view| run.input(view));
    let bias = of.bias.map(|bias| run.dense(&bias));
    let [to_q, to_k, to_v] = *of.accumulate;
    let mut wanted = [(of.dq, to_q), (of.dk, to_k), (of.dv, to_v)]
        .map(|(view, adds)| view.map(|view| run.result(&view, adds)));
    run.flops(|call| {
        let bias = bias.as_ref().map(|bias| bias.data());
        let inputs = ([q.view(), k.view(), v.view()], bias);
        let wanted = wanted.each_mut().map(|to| to.as_mut().map(Output::view));
        attention_backward(call, heads!(of), inputs, dy.view(), wanted, *of.accumulate)
    })
}

fn bias_backward(of: AttentionBackwardBias<'_>, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let [q, k, v, dy] = [of.q, of.k, of.v, of.dy].map(|view| run.input(view));
    let bias = of.bias.map(|bias| run.dense(&bias));
    let mut dbias = run.result(of.dbias, *of.accumulate);
    run.flops(|call| {
        let bias = bias.as_ref().map(|bias| bias.data());
        let inputs = ([q.view(), k.view(), v.view()], bias);
        let to = (dbias.slice(), *of.accumulate);
        attention_backward_bias(call, heads!(of), inputs, dy.view(), to)
    })
}
