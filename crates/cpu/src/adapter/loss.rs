use super::operand::Wide;
use super::{Output, Run};
use partita_program::{Kernel, View};
use partita_run::{Block, RunError, Worked};
use partita_space::Rank;

pub(super) fn execute(
    kernel: &Kernel,
    rank: Rank,
    run: &mut Run<'_, '_>,
) -> Result<Worked, RunError> {
    match kernel {
        Kernel::MeanSquaredError {
            x,
            target,
            dx,
            loss,
            count,
        } => mean_squared_error([x, target, loss], dx.as_ref(), *count, run),
        Kernel::SoftmaxCrossEntropy {
            x,
            target,
            dx,
            loss,
            count,
        } => softmax_cross_entropy([x, target, loss], dx.as_ref(), *count, rank, run),
        Kernel::OutputErrors { x, target, errors } => output_errors([x, target, errors], run),
        other => panic!("{} is no loss", other.name()),
    }
}

/// Visits every position in memory order.
fn each_position(
    extent: [usize; 5],
    run: &mut Run<'_, '_>,
    mut visit: impl FnMut([usize; 5]),
) -> Result<(), RunError> {
    for n in 0..extent[0] {
        for d in 0..extent[1] {
            for h in 0..extent[2] {
                run.go_on()?;
                (0..extent[3]).for_each(|w| visit([n, d, h, w, 0]));
            }
        }
    }
    Ok(())
}

/// The channels of a position.
fn channels<'b>(x: &'b Block<'_, f32>, at: [usize; 5]) -> &'b [f32] {
    let start = x.at(at);
    &x.data[start..start + x.extent[4]]
}

fn put(dx: &mut Option<Output<'_>>, [n, d, h, w, _]: [usize; 5], c: usize, value: f64) {
    if let Some(dx) = dx {
        let block = dx.block();
        let at = block.at([n, d, h, w, c]);
        block.data[at] = value as f32;
    }
}

fn mean_squared_error(
    [x, target, loss]: [&View; 3],
    dx: Option<&View>,
    count: u64,
    run: &mut Run<'_, '_>,
) -> Result<Worked, RunError> {
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let (x, target) = (run.memory.read::<f32>(x), Wide::of(run.memory, target));
    let loss = run.memory.write::<f64>(loss);
    let mut dx = dx.map(|dx| run.output(dx));
    let (mut sum, mut visits) = (0.0, 0);
    each_position(x.extent, run, |at| {
        for (c, x) in channels(&x, at).iter().enumerate() {
            let error = f64::from(*x) - target.get([at[0], at[1], at[2], at[3], c]);
            sum += error * error;
            put(&mut dx, at, c, 2.0 * error / count as f64);
            visits += 1;
        }
    })?;
    loss.data[0] = sum / count as f64;
    let dx_bytes = dx.as_ref().map_or(0, Output::bytes);
    Ok(Worked {
        flops: 4 * visits,
        bytes: x.box_bytes() + target.bytes() + dx_bytes + loss.box_bytes(),
    })
}

fn softmax_cross_entropy(
    [x, target, loss]: [&View; 3],
    dx: Option<&View>,
    count: u64,
    rank: Rank,
    run: &mut Run<'_, '_>,
) -> Result<Worked, RunError> {
    assert_eq!(
        x.extent[..4],
        target.extent[..4],
        "positions of x and its target"
    );
    let (x, target) = (run.memory.read::<f32>(x), Wide::of(run.memory, target));
    let loss = run.memory.write::<f64>(loss);
    let mut dx = dx.map(|dx| run.output(dx));
    let classes = x.extent[4];
    let (mut sum, mut visits, mut wrong) = (0.0, 0, None);
    each_position(x.extent, run, |at| {
        let class = target.get(at);
        if !(class >= 0.0 && class < classes as f64 && class.fract() == 0.0) {
            wrong.get_or_insert(class);
            return;
        }
        let logits = channels(&x, at);
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let most = f64::from(most);
        let total: f64 = logits.iter().map(|&x| (f64::from(x) - most).exp()).sum();
        let log_total = most + total.ln();
        sum += log_total - f64::from(logits[class as usize]);
        for (c, &x) in logits.iter().enumerate() {
            let hit = if c == class as usize { 1.0 } else { 0.0 };
            let share = (f64::from(x) - log_total).exp();
            put(&mut dx, at, c, (share - hit) / count as f64);
            visits += 1;
        }
    })?;
    if let Some(class) = wrong {
        let last = classes - 1;
        let reason = format!("a target names class {class}; classes are 0 to {last}");
        return Err(RunError::Source { rank, reason });
    }
    loss.data[0] = sum / count as f64;
    let dx_bytes = dx.as_ref().map_or(0, Output::bytes);
    Ok(Worked {
        flops: 5 * visits,
        bytes: x.box_bytes() + target.bytes() + dx_bytes + loss.box_bytes(),
    })
}

fn output_errors(
    [x, target, errors]: [&View; 3],
    run: &mut Run<'_, '_>,
) -> Result<Worked, RunError> {
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let (x, target) = (run.memory.read::<f32>(x), Wide::of(run.memory, target));
    let errors = run.memory.write::<f64>(errors);
    errors.data.fill(0.0);
    let (absolute, squared) = errors.data.split_at_mut(x.extent[4]);
    let mut visits = 0;
    each_position(x.extent, run, |at| {
        for (c, x) in channels(&x, at).iter().enumerate() {
            let error = f64::from(*x) - target.get([at[0], at[1], at[2], at[3], c]);
            absolute[c] += error.abs();
            squared[c] += error * error;
            visits += 1;
        }
    })?;
    Ok(Worked {
        flops: 4 * visits,
        bytes: x.box_bytes() + target.bytes() + errors.box_bytes(),
    })
}
