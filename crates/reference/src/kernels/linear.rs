//! Linear layers.

use super::convolution::store;
use super::{Call, Real};
use partita_program::fields::{LinearBackwardData, LinearBackwardWeight, LinearForward};
use partita_program::{Fields, Kernel};
use partita_run::{Block, RunError};

pub(super) fn execute<T: Real>(
    kernel: &Kernel,
    scratch: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::LinearForward(of) => forward::<T>(of, scratch, call),
        Fields::LinearBackwardData(of) => backward_data::<T>(of, scratch, call),
        Fields::LinearBackwardWeight(of) => backward_weight::<T>(of, scratch, call),
        _ => panic!("{} is no linear layer", kernel.name()),
    }
}

/// The elements of one sample in memory order; a flattened activation may still have D, H and W.
fn sample_row<T: Real>(block: &Block<'_, T>, n: usize) -> Vec<f64> {
    let [_, depth, height, width, channels] = block.extent;
    let mut row = Vec::with_capacity(depth * height * width * channels);
    for d in 0..depth {
        for h in 0..height {
            for w in 0..width {
                let at = block.at([n, d, h, w, 0]);
                row.extend(block.data()[at..at + channels].iter().map(|x| x.wide()));
            }
        }
    }
    row
}

fn features(extent: [usize; 5]) -> usize {
    extent[1..].iter().product()
}

fn weights<'b, T: Real>(w: &'b Block<'_, T>, c: usize) -> &'b [T] {
    let at = w.at([0, 0, 0, c, 0]);
    &w.data()[at..at + w.extent[4]]
}

fn go_on(call: &mut Call<'_, '_>) -> Result<(), RunError> {
    if (call.progress)() {
        Ok(())
    } else {
        Err(RunError::Cancelled)
    }
}

fn forward<T: Real>(
    of: LinearForward<'_>,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, w) = (call.read::<T>(of.x), call.read::<T>(of.w));
    let bias = of.bias.map(|bias| call.read::<T>(&bias));
    let mut y = call.write::<T>(of.y, false);
    let outputs = w.extent[4];
    assert_eq!(
        features(x.extent),
        w.extent[3],
        "features of x and rows of w"
    );
    assert_eq!(
        features(y.extent),
        outputs,
        "features of y and columns of w"
    );
    sums.clear();
    sums.resize(x.extent[0] * outputs, 0.0);
    let mut flops = 0;
    for (n, sums) in sums.chunks_exact_mut(outputs).enumerate() {
        go_on(call)?;
        if let Some(bias) = &bias {
            for (sum, b) in sums.iter_mut().zip(bias.data().iter()) {
                *sum = b.wide();
            }
        }
        for (c, value) in sample_row(&x, n).into_iter().enumerate() {
            for (sum, w) in sums.iter_mut().zip(weights(&w, c)) {
                *sum += value * w.wide();
            }
            flops += 2 * outputs as u64;
        }
    }
    store(sums, &mut y, false);
    Ok(flops)
}

fn backward_data<T: Real>(
    of: LinearBackwardData<'_>,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (dy, w) = (call.read::<T>(of.dy), call.read::<T>(of.w));
    let mut dx = call.write::<T>(of.dx, *of.accumulate);
    let inputs = w.extent[3];
    assert_eq!(features(dx.extent), inputs, "features of dx and rows of w");
    assert_eq!(
        features(dy.extent),
        w.extent[4],
        "features of dy and columns of w"
    );
    sums.clear();
    let mut flops = 0;
    for n in 0..dy.extent[0] {
        go_on(call)?;
        let dy_row = sample_row(&dy, n);
        for c in 0..inputs {
            let pairs = dy_row.iter().zip(weights(&w, c));
            sums.push(pairs.map(|(dy, w)| dy * w.wide()).sum());
            flops += 2 * dy_row.len() as u64;
        }
    }
    store(sums, &mut dx, *of.accumulate);
    Ok(flops)
}

fn backward_weight<T: Real>(
    of: LinearBackwardWeight<'_>,
    sums: &mut Vec<f64>,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, dy) = (call.read::<T>(of.x), call.read::<T>(of.dy));
    let mut dw = call.write::<T>(of.dw, *of.accumulate);
    let outputs = dw.extent[4];
    assert_eq!(
        features(x.extent),
        dw.extent[3],
        "features of x and rows of dw"
    );
    assert_eq!(
        features(dy.extent),
        outputs,
        "features of dy and columns of dw"
    );
    sums.clear();
    sums.resize(dw.extent.iter().product(), 0.0);
    let mut flops = 0;
    for n in 0..dy.extent[0] {
        go_on(call)?;
        let (x_row, dy_row) = (sample_row(&x, n), sample_row(&dy, n));
        for (value, sums) in x_row.iter().zip(sums.chunks_exact_mut(outputs)) {
            for (sum, dy) in sums.iter_mut().zip(&dy_row) {
                *sum += value * dy;
            }
            flops += 2 * outputs as u64;
        }
    }
    store(sums, &mut dw, *of.accumulate);
    Ok(flops)
}
