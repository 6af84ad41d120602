//! Embeddings and positional encoding; dispatches attention.

use super::loss::is_class;
use super::{Call, attention};
use crate::values::{cell, each_element, each_position};
use partita_program::fields::{
    EmbeddingBackward, EmbeddingForward, PositionEmbeddingBackward, PositionEmbeddingForward,
    Positions,
};
use partita_program::{Fields, Kernel};
use partita_run::RunError;
use partita_space::{Coord, Mesh, Rank};

pub(super) fn execute(
    kernel: &Kernel,
    (mesh, rank, coord): (&Mesh, Rank, &Coord),
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::EmbeddingForward(of) => embedding_forward(of, rank, call),
        Fields::EmbeddingBackward(of) => embedding_backward(of, rank, call),
        Fields::Positions(of) => {
            let corner = of.distribution.corner(of.halo_low, mesh, coord);
            positions(of, corner, call)
        }
        Fields::PositionEmbeddingForward(of) => {
            let corner = of.distribution.corner(of.halo_low, mesh, coord);
            position_embedding(of, corner, call)
        }
        Fields::PositionEmbeddingBackward(of) => {
            let corner = of.distribution.corner(of.halo_low, mesh, coord);
            position_embedding_backward(of, corner, call)
        }
        Fields::AttentionForward(_)
        | Fields::AttentionBackward(_)
        | Fields::AttentionBackwardBias(_) => attention::execute(kernel, call),
        _ => panic!("{} does not work on sequences", kernel.name()),
    }
}

/// Fails if an embedding index is out of range.
fn check_row(wrong: Option<f64>, rows: usize, rank: Rank) -> Result<(), RunError> {
    let Some(number) = wrong else {
        return Ok(());
    };
    let reason = format!(
        "an embedding reads class number {number}; its rows are 0 to {}",
        rows - 1
    );
    Err(RunError::Source { rank, reason })
}

fn embedding_forward(
    of: EmbeddingForward<'_>,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let [x, w, y] = [of.x, of.w, of.y].map(|view| call.values(view));
    let (rows, channels) = (w.extent()[3], w.extent()[4]);
    let mut wrong = None;
    each_position(y.extent(), call.progress, |[n, d, h, wide]| {
        let row = x.get([n, d, h, wide, 0]);
        if !is_class(row, rows) {
            wrong.get_or_insert(row);
            return;
        }
        for c in 0..channels {
            y.set([n, d, h, wide, c], w.get(cell(row as usize, c)));
        }
    })?;
    check_row(wrong, rows, rank)?;
    Ok(0)
}

fn embedding_backward(
    of: EmbeddingBackward<'_>,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, dy) = (call.values(of.x), call.values(of.dy));
    let dw = call.result(of.dw, *of.accumulate);
    let (rows, channels) = (dw.extent()[3], dw.extent()[4]);
    let mut sums = vec![0.0; rows * channels];
    let mut wrong = None;
    let flops = each_element(dy.extent(), call.progress, |i| {
        let row = x.get([i[0], i[1], i[2], i[3], 0]);
        if is_class(row, rows) {
            sums[row as usize * channels + i[4]] += dy.get(i);
        } else {
            wrong.get_or_insert(row);
        }
    })?;
    check_row(wrong, rows, rank)?;
    for (i, &sum) in sums.iter().enumerate() {
        dw.put(cell(i / channels, i % channels), sum, *of.accumulate);
    }
    Ok(flops)
}

fn positions(
    of: Positions<'_>,
    corner: [usize; 5],
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(
        of.x.extent, of.y.extent,
        "{} and {} have one shape",
        of.x, of.y
    );
    let (x, y) = (call.values(of.x), call.values(of.y));
    let channels = of.distribution.shape[4];
    let flops = each_element(y.extent(), call.progress, |i| {
        let (position, c) = (corner[3] + i[3], corner[4] + i[4]);
        let pair = c - c % 2;
        let angle = position as f64 / 10_000_f64.powf(pair as f64 / channels as f64);
        let value = if c == pair { angle.sin() } else { angle.cos() };
        y.set(i, x.get(i) + value);
    })?;
    Ok(flops)
}

/// The number of a position in its whole tensor, of an index in a view that begins at `corner`.
fn row_of(i: [usize; 5], (corner, whole): ([usize; 5], [usize; 5])) -> usize {
    (1..4).fold(0, |row, dim| row * whole[dim] + corner[dim] + i[dim])
}

fn position_embedding(
    of: PositionEmbeddingForward<'_>,
    corner: [usize; 5],
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(
        of.x.extent, of.y.extent,
        "{} and {} have one shape",
        of.x, of.y
    );
    let [x, w, y] = [of.x, of.w, of.y].map(|view| call.values(view));
    let placed = (corner, of.distribution.shape);
    let rows = w.extent()[3];
    let flops = each_element(y.extent(), call.progress, |i| {
        let row = row_of(i, placed);
        let added = if row < rows {
            w.get(cell(row, i[4]))
        } else {
            0.0
        };
        y.set(i, x.get(i) + added);
    })?;
    Ok(flops)
}

fn position_embedding_backward(
    of: PositionEmbeddingBackward<'_>,
    corner: [usize; 5],
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (dy, dw) = (call.values(of.dy), call.result(of.dw, *of.accumulate));
    let placed = (corner, of.distribution.shape);
    let (rows, channels) = (dw.extent()[3], dw.extent()[4]);
    let mut sums = vec![0.0; rows * channels];
    let flops = each_element(dy.extent(), call.progress, |i| {
        let row = row_of(i, placed);
        if row < rows {
            sums[row * channels + i[4]] += dy.get(i);
        }
    })?;
    for (i, &sum) in sums.iter().enumerate() {
        dw.put(cell(i / channels, i % channels), sum, *of.accumulate);
    }
    Ok(flops)
}
