use super::Call;
use super::loss::is_class;
use super::pointwise::touched;
use crate::values::{cell, each_element, each_position};
use partita_program::{Kernel, View};
use partita_run::{RunError, Worked};
use partita_space::{Coord, Mesh, Rank};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

pub(super) fn execute(
    kernel: &Kernel,
    (mesh, rank, coord): (&Mesh, Rank, &Coord),
    call: &mut Call<'_, '_>,
) -> Result<Worked, RunError> {
    match kernel {
        Kernel::EmbeddingForward { x, w, y } => embedding_forward([x, w, y], rank, call),
        Kernel::EmbeddingBackward {
            x,
            dy,
            dw,
            accumulate,
        } => embedding_backward([x, dy, dw], *accumulate, rank, call),
        Kernel::Positions { x, y, place, low } => {
            let corner = place.corner(low, mesh, coord);
            positions([x, y], corner, place.shape[4], call)
        }
        Kernel::GeluForward { x, y } => gelu_forward([x, y], call),
        Kernel::GeluBackward {
            x,
            dy,
            dx,
            accumulate,
        } => gelu_backward([x, dy, dx], *accumulate, call),
        other => panic!("{} does not work on sequences", other.name()),
    }
}

/// Fails where a number was found that names no row.
fn refuse_row(wrong: Option<f64>, rows: usize, rank: Rank) -> Result<(), RunError> {
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
    [x, w, y]: [&View; 3],
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<Worked, RunError> {
    let (x, w, y) = (call.values(x), call.values(w), call.values(y));
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
    refuse_row(wrong, rows, rank)?;
    Ok(Worked {
        flops: 0,
        bytes: x.bytes() + w.bytes() + y.bytes(),
    })
}

fn embedding_backward(
    [x, dy, dw]: [&View; 3],
    accumulate: bool,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<Worked, RunError> {
    let (x, dy, dw) = (call.values(x), call.values(dy), call.values(dw));
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
    refuse_row(wrong, rows, rank)?;
    for (i, &sum) in sums.iter().enumerate() {
        dw.put(cell(i / channels, i % channels), sum, accumulate);
    }
    Ok(Worked {
        flops,
        bytes: x.bytes() + dy.bytes() + touched(dw.bytes(), accumulate),
    })
}

fn positions(
    [x, y]: [&View; 2],
    corner: [usize; 5],
    channels: usize,
    call: &mut Call<'_, '_>,
) -> Result<Worked, RunError> {
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let (x, y) = (call.values(x), call.values(y));
    let flops = each_element(y.extent(), call.progress, |i| {
        let (position, c) = (corner[3] + i[3], corner[4] + i[4]);
        let pair = c - c % 2;
        let angle = position as f64 / 10_000_f64.powf(pair as f64 / channels as f64);
        let value = if c == pair { angle.sin() } else { angle.cos() };
        y.set(i, x.get(i) + value);
    })?;
    Ok(Worked {
        flops,
        bytes: x.bytes() + y.bytes(),
    })
}

/// Of the standard normal distribution up to `x`, to about 2e-16.
///
/// Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.6 and 7.1.14.
fn normal_below(x: f64) -> f64 {
    let z = x.abs() * FRAC_1_SQRT_2;
    let bell = (-z * z).exp() / PI.sqrt();
    let above = if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..100 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 - bell * sum
    } else {
        let mut fraction = 0.0;
        for n in (1..200).rev() {
            fraction = 0.5 * f64::from(n) / (z + fraction);
        }
        0.5 * bell / (z + fraction)
    };
    if x > 0.0 { 1.0 - above } else { above }
}

fn gelu_forward([x, y]: [&View; 2], call: &mut Call<'_, '_>) -> Result<Worked, RunError> {
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let (x, y) = (call.values(x), call.values(y));
    let visits = each_element(y.extent(), call.progress, |i| {
        let value = x.get(i);
        y.set(i, value * normal_below(value));
    })?;
    Ok(Worked {
        flops: 20 * visits,
        bytes: x.bytes() + y.bytes(),
    })
}

fn gelu_backward(
    [x, dy, dx]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<Worked, RunError> {
    assert_eq!(x.extent, dy.extent, "{x} and {dy} have one shape");
    assert_eq!(x.extent, dx.extent, "{x} and {dx} have one shape");
    let (x, dy, dx) = (call.values(x), call.values(dy), call.values(dx));
    let visits = each_element(dy.extent(), call.progress, |i| {
        let value = x.get(i);
        let density = (-0.5 * value * value).exp() / (2.0 * PI).sqrt();
        let slope = normal_below(value) + value * density;
        dx.put(i, slope * dy.get(i), accumulate);
    })?;
    Ok(Worked {
        flops: 30 * visits,
        bytes: x.bytes() + dy.bytes() + touched(dx.bytes(), accumulate),
    })
}

#[cfg(test)]
mod tests {
    use super::normal_below;

    #[test]
    fn the_normal_distribution_is_exact() {
        // To 17 digits by mpmath 1.3, ncdf.
        for (x, expected) in NORMAL {
            let got = normal_below(x);
            assert!((got - expected).abs() < 3e-16, "{x}: {got} {expected}");
            assert!(
                (got / expected - 1.0).abs() < 4e-14,
                "{x}: {got} {expected}"
            );
        }
    }

    const NORMAL: [(f64, f64); 13] = [
        (-8.5, 9.479534822203318e-18),
        (-3.0, 0.0013498980316300946),
        (-2.8284, 0.0023390656954665975),
        (-2.8285, 0.002338335054464852),
        (-1.0, 0.15865525393145705),
        (-0.3, 0.3820885778110474),
        (0.0, 0.5),
        (0.001, 0.500398942213911),
        (0.7, 0.758036347776927),
        (1.9, 0.9712834401839981),
        (2.8284, 0.9976609343045334),
        (3.5, 0.9997673709209645),
        (6.0, 0.9999999990134123),
    ];
}
