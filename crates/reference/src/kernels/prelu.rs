//! PReLU, and softmax over channels.

use super::Call;
use crate::values::{Values, each_element, entry};
use partita_program::{Fields, Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::PreluForward(of) => forward([of.x, of.slopes, of.y], call),
        Fields::PreluBackwardData(of) => {
            backward_data([of.x, of.slopes, of.dy, of.dx], *of.accumulate, call)
        }
        Fields::PreluBackwardSlopes(of) => {
            backward_slopes([of.x, of.dy, of.dslopes], *of.accumulate, call)
        }
        Fields::SoftmaxForward(of) => softmax([of.x, of.y], call),
        Fields::SoftmaxBackward(of) => softmax_backward([of.y, of.dy, of.dx], *of.accumulate, call),
        _ => panic!("{} is neither PReLU nor softmax", kernel.name()),
    }
}

/// The slope of a channel; the only one, if there is one.
fn slope(slopes: &Values<'_>, channel: usize) -> f64 {
    slopes.get(entry(channel.min(slopes.extent()[4] - 1)))
}

fn forward([x, slopes, y]: [&View; 3], call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let (x, slopes, y) = (call.values(x), call.values(slopes), call.values(y));
    let flops = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        let factor = if value > 0.0 {
            1.0
        } else {
            slope(&slopes, i[4])
        };
        y.set(i, factor * value);
    })?;
    Ok(flops)
}

fn backward_data(
    [x, slopes, dy, dx]: [&View; 4],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, dx.extent, "{x} and {dx} have one shape");
    let (x, slopes) = (call.values(x), call.values(slopes));
    let (dy, dx) = (call.values(dy), call.result(dx, accumulate));
    let flops = each_element(x.extent(), call.progress, |i| {
        let factor = if x.get(i) > 0.0 {
            1.0
        } else {
            slope(&slopes, i[4])
        };
        dx.put(i, factor * dy.get(i), accumulate);
    })?;
    Ok(flops)
}

fn backward_slopes(
    [x, dy, dslopes]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, dy.extent, "{x} and {dy} have one shape");
    let (x, dy, dslopes) = (
        call.values(x),
        call.values(dy),
        call.result(dslopes, accumulate),
    );
    let mut totals = vec![0.0; dslopes.extent()[4]];
    let last = totals.len() - 1;
    let visits = each_element(x.extent(), call.progress, |i| {
        let value = x.get(i);
        let product = if value > 0.0 { 0.0 } else { value * dy.get(i) };
        totals[i[4].min(last)] += product;
    })?;
    for (c, total) in totals.into_iter().enumerate() {
        dslopes.put(entry(c), total, accumulate);
    }
    Ok(2 * visits)
}

/// The values of the channels of a position.
fn row(of: &Values<'_>, mut at: [usize; 5]) -> Vec<f64> {
    let channel = |c| {
        at[4] = c;
        of.get(at)
    };
    (0..of.extent()[4]).map(channel).collect()
}

fn softmax([x, y]: [&View; 2], call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    assert_eq!(x.extent, y.extent, "{x} and {y} have one shape");
    let (x, y) = (call.values(x), call.values(y));
    let mut powers = Vec::new();
    let visits = each_element(x.extent(), call.progress, |i| {
        // Channels are innermost.
        if i[4] == 0 {
            let all = row(&x, i);
            let most = all.iter().fold(f64::NEG_INFINITY, |most, x| most.max(*x));
            powers = all.into_iter().map(|x| (x - most).exp()).collect();
        }
        y.set(i, powers[i[4]] / powers.iter().sum::<f64>());
    })?;
    Ok(20 * visits)
}

fn softmax_backward(
    [y, dy, dx]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(y.extent, dx.extent, "{y} and {dx} have one shape");
    let (y, dy, dx) = (call.values(y), call.values(dy), call.result(dx, accumulate));
    let mut sum = 0.0;
    let visits = each_element(y.extent(), call.progress, |i| {
        if i[4] == 0 {
            let products = row(&y, i).into_iter().zip(row(&dy, i));
            sum = products.map(|(y, dy)| y * dy).sum();
        }
        dx.put(i, y.get(i) * (dy.get(i) - sum), accumulate);
    })?;
    Ok(4 * visits)
}
