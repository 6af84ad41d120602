//! Products of two tensors, and their sums over positions or channels.

use super::Call;
use crate::values::each_element;
use partita_program::{Fields, Kernel, View};
use partita_run::RunError;

pub(super) fn execute(kernel: &Kernel, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::Multiply(of) => multiply([of.a, of.b, of.y], *of.accumulate, call),
        Fields::MultiplySum(of) => multiply_sum([of.a, of.b, of.y], *of.accumulate, call),
        Fields::MultiplyChannelSum(of) => {
            multiply_channel_sum([of.a, of.b, of.y], *of.accumulate, call)
        }
        _ => panic!("{} is no product", kernel.name()),
    }
}

/// Where extents are 1, the index is 0.
fn clipped(extent: [usize; 5], i: [usize; 5]) -> [usize; 5] {
    std::array::from_fn(|dim| i[dim].min(extent[dim] - 1))
}

fn multiply(
    [a, b, y]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(a.extent, y.extent, "{a} and {y} have one shape");
    let (a, b, y) = (call.values(a), call.values(b), call.result(y, accumulate));
    let flops = each_element(y.extent(), call.progress, |i| {
        y.put(i, a.get(i) * b.get(clipped(b.extent(), i)), accumulate);
    })?;
    Ok(flops)
}

fn multiply_sum(
    [a, b, y]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(a.extent, b.extent, "{a} and {b} have one shape");
    let (a, b, y) = (call.values(a), call.values(b), call.result(y, accumulate));
    let [samples, .., channels] = a.extent();
    let mut totals = vec![0.0; samples * channels];
    let visits = each_element(a.extent(), call.progress, |i| {
        totals[i[0] * channels + i[4]] += a.get(i) * b.get(i);
    })?;
    for (at, total) in totals.into_iter().enumerate() {
        y.put([at / channels, 0, 0, 0, at % channels], total, accumulate);
    }
    Ok(2 * visits)
}

fn multiply_channel_sum(
    [a, b, y]: [&View; 3],
    accumulate: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(a.extent, b.extent, "{a} and {b} have one shape");
    let (a, b, y) = (call.values(a), call.values(b), call.result(y, accumulate));
    let channels = a.extent()[4];
    let mut total = 0.0;
    let visits = each_element(a.extent(), call.progress, |i| {
        // Channels are innermost.
        let before = if i[4] == 0 { 0.0 } else { total };
        total = before + a.get(i) * b.get(i);
        if i[4] + 1 == channels {
            y.put(clipped(y.extent(), i), total, accumulate);
        }
    })?;
    Ok(2 * visits)
}
