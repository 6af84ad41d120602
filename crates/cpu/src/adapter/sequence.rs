//! Embeddings, positional encoding, layer norm and attention of programs on the kernels of this crate.

use super::Run;
use super::operand::Output;
use crate::sequence::attention::{
    Heads, attention_backward, attention_backward_bias, attention_forward, attention_scratch,
};
use crate::sequence::position_rows::{PositionNumbers, add_position_rows, position_rows_backward};
use crate::sequence::row_kernels::{
    PositionOffset, RowGradient, RowNorm, add_positions, embed, embed_backward, row_backward,
    row_backward_parameters, row_backward_statistics, row_norm, row_statistics,
};
use crate::team::TeamKind;
use partita_program::{Distribution, Kernel, View};
use partita_run::RunError;
use partita_space::{Coord, Mesh, Rank};

/// Elements of f32 that a kernel needs.
pub(super) fn scratch(team: TeamKind, kernel: &Kernel) -> usize {
    if let Kernel::AttentionForward { q, k, .. } = kernel {
        of_attention(team, [q, k], kernel, false)
    } else if let Kernel::AttentionBackward { q, k, .. }
    | Kernel::AttentionBackwardBias { q, k, .. } = kernel
    {
        of_attention(team, [q, k], kernel, true)
    } else if let Kernel::Positions { y, .. } = kernel {
        y.extent[3] * y.extent[4]
    } else {
        0
    }
}

fn of_attention(team: TeamKind, [q, k]: [&View; 2], kernel: &Kernel, backward: bool) -> usize {
    let extents = [q, k].map(|view| std::array::from_fn(|dim| view.extent[1 + dim]));
    attention_scratch(team, &heads(kernel), extents, q.extent[4], backward)
}

/// What attends to what.
fn heads(kernel: &Kernel) -> Heads {
    match kernel {
        &Kernel::AttentionForward {
            heads,
            causal,
            window,
            table,
            ..
        }
        | &Kernel::AttentionBackward {
            heads,
            causal,
            window,
            table,
            ..
        }
        | &Kernel::AttentionBackwardBias {
            heads,
            causal,
            window,
            table,
            ..
        } => Heads {
            heads,
            causal,
            window,
            table,
        },
        other => panic!("{} is no attention", other.name()),
    }
}

pub(super) fn execute(
    kernel: &Kernel,
    (mesh, rank, coord): (&Mesh, Rank, &Coord),
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    match kernel {
        Kernel::EmbeddingForward { x, w, y } => embedding([x, w, y], rank, run),
        Kernel::EmbeddingBackward {
            x,
            dy,
            dw,
            accumulate,
        } => embedding_backward([x, dy, dw], *accumulate, rank, run),
        Kernel::Positions {
            x,
            y,
            distribution,
            halo_low,
        } => {
            let offset = distribution.corner(halo_low, mesh, coord);
            let offset = PositionOffset {
                position: offset[3],
                channel: offset[4],
                channels: distribution.shape[4],
            };
            let (x, mut y) = (run.input(x), run.output(y));
            run.flops(|call| add_positions(call, offset, x.view(), y.view()))
        }
        Kernel::PositionEmbeddingForward {
            x,
            w,
            y,
            distribution,
            halo_low,
        } => {
            let numbers = numbers(distribution, distribution.corner(halo_low, mesh, coord));
            let (x, w, mut y) = (run.input(x), run.dense(w), run.output(y));
            run.flops(|call| add_position_rows(call, numbers, x.view(), w.data(), y.view()))
        }
        Kernel::PositionEmbeddingBackward {
            dy,
            dw,
            distribution,
            halo_low,
            accumulate,
        } => {
            let numbers = numbers(distribution, distribution.corner(halo_low, mesh, coord));
            let (dy, mut dw) = (run.input(dy), run.result(dw, *accumulate));
            run.flops(|call| {
                position_rows_backward(call, numbers, dy.view(), dw.slice(), *accumulate)
            })
        }
        Kernel::AttentionForward { .. }
        | Kernel::AttentionBackward { .. }
        | Kernel::AttentionBackwardBias { .. } => attention(kernel, run),
        Kernel::LayerNormStatistics { .. }
        | Kernel::LayerNormForward { .. }
        | Kernel::LayerNormBackwardStatistics { .. } => layer_norm(kernel, run),
        Kernel::LayerNormBackwardData { .. } | Kernel::LayerNormBackwardParameters { .. } => {
            layer_norm_backward(kernel, run)
        }
        other => panic!("{} does not work on sequences", other.name()),
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

fn embedding([x, w, y]: [&View; 3], rank: Rank, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let (x, w, mut y) = (run.input(x), run.dense(w), run.output(y));
    if let Some(index) = run.compute(|call| embed(call, x.view(), w.data(), y.view()))? {
        return Err(out_of_range(index, w.extent[3], rank));
    }
    Ok(0)
}

fn embedding_backward(
    [x, dy, dw]: [&View; 3],
    accumulate: bool,
    rank: Rank,
    run: &mut Run<'_, '_>,
) -> Result<u64, RunError> {
    let rows = dw.extent[3];
    let (x, dy, mut dw) = (run.input(x), run.input(dy), run.result(dw, accumulate));
    let invalid =
        run.compute(|call| embed_backward(call, x.view(), dy.view(), dw.slice(), accumulate))?;
    if let Some(index) = invalid {
        return Err(out_of_range(index, rows, rank));
    }
    Ok(dy.view().grid.elements() as u64)
}

fn layer_norm(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::LayerNormStatistics { x, sums, rms } => {
            let (x, mut sums) = (run.input(x), run.totals(sums, false));
            run.flops(|call| row_statistics(call, x.view(), sums.data_mut(), *rms))
        }
        Kernel::LayerNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        } => {
            let (x, sums, mut y) = (run.input(x), run.sums(sums), run.output(y));
            let (gamma, beta) = (run.dense(gamma), run.dense(beta));
            let norm = by(sums.data(), *count, *epsilon);
            let vectors = [gamma.data(), beta.data()];
            run.flops(|call| row_norm(call, norm, x.view(), vectors, y.view()))
        }
        Kernel::LayerNormBackwardStatistics {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            count,
            epsilon,
            rms,
        } => {
            let (x, sums, gamma, dy) = (
                run.input(x),
                run.sums(sums),
                run.dense(gamma),
                run.input(dy),
            );
            let mut gradient_sums = run.totals(gradient_sums, false);
            let norm = by(sums.data(), *count, *epsilon);
            run.flops(|call| {
                let of = RowGradient {
                    x: x.view(),
                    dy: dy.view(),
                };
                let sums = gradient_sums.data_mut();
                row_backward_statistics(call, norm, of, gamma.data(), sums, *rms)
            })
        }
        other => panic!("{} is no layer norm", other.name()),
    }
}

fn layer_norm_backward(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    match kernel {
        Kernel::LayerNormBackwardData {
            x,
            sums,
            gamma,
            dy,
            gradient_sums,
            dx,
            count,
            epsilon,
            accumulate,
        } => {
            let (x, sums, gamma, dy) = (
                run.input(x),
                run.sums(sums),
                run.dense(gamma),
                run.input(dy),
            );
            let (gradient_sums, mut dx) = (run.sums(gradient_sums), run.result(dx, *accumulate));
            let norm = by(sums.data(), *count, *epsilon);
            run.flops(|call| {
                let of = RowGradient {
                    x: x.view(),
                    dy: dy.view(),
                };
                let known = (gamma.data(), gradient_sums.data());
                row_backward(call, norm, of, known, dx.view(), *accumulate)
            })
        }
        Kernel::LayerNormBackwardParameters {
            x,
            sums,
            dy,
            dgamma,
            dbeta,
            count,
            epsilon,
            accumulate,
        } => {
            let (x, sums, dy) = (run.input(x), run.sums(sums), run.input(dy));
            let [mut dgamma, mut dbeta] = [dgamma, dbeta].map(|view| run.result(view, *accumulate));
            let norm = by(sums.data(), *count, *epsilon);
            run.flops(|call| {
                let of = RowGradient {
                    x: x.view(),
                    dy: dy.view(),
                };
                let targets = [dgamma.slice(), dbeta.slice()];
                row_backward_parameters(call, norm, of, targets, *accumulate)
            })
        }
        other => panic!("{} is no gradient of a layer norm", other.name()),
    }
}

fn by(sums: &[f64], count: u64, epsilon: f64) -> RowNorm<'_> {
    RowNorm {
        sums,
        count: count as f64,
        epsilon,
    }
}

fn attention(kernel: &Kernel, run: &mut Run<'_, '_>) -> Result<u64, RunError> {
    let heads = heads(kernel);
    match kernel {
        Kernel::AttentionForward {
            q, k, v, y, bias, ..
        } => {
            let (q, k, v, mut y) = (run.input(q), run.input(k), run.input(v), run.output(y));
            let bias = bias.as_ref().map(|bias| run.dense(bias));
            run.flops(|call| {
                let bias = bias.as_ref().map(|bias| bias.data());
                let inputs = ([q.view(), k.view(), v.view()], bias);
                attention_forward(call, heads, inputs, y.view())
            })
        }
        Kernel::AttentionBackward {
            q,
            k,
            v,
            dy,
            dq,
            dk,
            dv,
            bias,
            accumulate,
            ..
        } => {
            let (q, k, v, dy) = (run.input(q), run.input(k), run.input(v), run.input(dy));
            let bias = bias.as_ref().map(|bias| run.dense(bias));
            let mut wanted = [(dq, 0), (dk, 1), (dv, 2)].map(|(view, at): (_, usize)| {
                view.as_ref().map(|view| run.result(view, accumulate[at]))
            });
            run.flops(|call| {
                let bias = bias.as_ref().map(|bias| bias.data());
                let inputs = ([q.view(), k.view(), v.view()], bias);
                let wanted = wanted.each_mut().map(|to| to.as_mut().map(Output::view));
                attention_backward(call, heads, inputs, dy.view(), wanted, *accumulate)
            })
        }
        Kernel::AttentionBackwardBias {
            q,
            k,
            v,
            dy,
            dbias,
            bias,
            accumulate,
            ..
        } => {
            let (q, k, v, dy) = (run.input(q), run.input(k), run.input(v), run.input(dy));
            let bias = bias.as_ref().map(|bias| run.dense(bias));
            let mut dbias = run.result(dbias, *accumulate);
            run.flops(|call| {
                let known = bias.as_ref().map(|bias| bias.data());
                let inputs = ([q.view(), k.view(), v.view()], known);
                let to = (dbias.slice(), *accumulate);
                attention_backward_bias(call, heads, inputs, dy.view(), to)
            })
        }
        other => panic!("{} is no attention", other.name()),
    }
}
