//! Losses, and the errors and class counts beside them.

use super::Call;
use crate::values::{cell, each_element, each_position, entry};
use partita_program::{ElementFunction, Kernel, View};
use partita_run::RunError;
use partita_space::Rank;

pub(super) fn execute(
    kernel: &Kernel,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel {
        Kernel::MeanSquaredError {
            x,
            target,
            dx,
            loss,
            count,
            weight,
        } => mean_squared_error([x, target, loss], dx.as_ref(), (*count, *weight), call),
        Kernel::SoftmaxCrossEntropy {
            x,
            target,
            dx,
            loss,
            count,
            weight,
            smoothing,
        } => softmax_cross_entropy(
            [x, target, loss],
            dx.as_ref(),
            (*count, *weight, *smoothing),
            rank,
            call,
        ),
        Kernel::ElementLoss {
            function,
            x,
            target,
            dx,
            loss,
            count,
            weight,
            weights,
        } => {
            let factor = weight / *count as f64;
            let views = [x, target, loss];
            element_loss(*function, views, dx.as_ref(), (factor, weights), call)
        }
        Kernel::OutputErrors {
            x,
            target,
            errors,
            logistic,
        } => output_errors([x, target, errors], *logistic, call),
        Kernel::ClassCounts {
            x,
            target,
            counts,
            ignore,
        } => class_counts([x, target, counts], *ignore, rank, call),
        other => panic!("{} is no loss", other.name()),
    }
}

fn mean_squared_error(
    [x, target, loss]: [&View; 3],
    dx: Option<&View>,
    (count, weight): (u64, f64),
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let (x, target, loss) = (call.values(x), call.values(target), call.values(loss));
    let (dx, factor) = (
        dx.map(|dx| call.values(dx)),
        call.inputs.gradient_factor() * weight,
    );
    let mut sum = 0.0;
    let visits = each_element(x.extent(), call.progress, |i| {
        let error = x.get(i) - target.get(i);
        sum += error * error;
        if let Some(dx) = &dx {
            dx.set(i, factor * 2.0 * error / count as f64);
        }
    })?;
    loss.set(entry(0), weight * sum / count as f64);
    Ok(4 * visits)
}

fn softmax_cross_entropy(
    [x, target, loss]: [&View; 3],
    dx: Option<&View>,
    (count, weight, smoothing): (u64, f64, f64),
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, target, loss) = (call.values(x), call.values(target), call.values(loss));
    assert_eq!(
        x.extent()[..4],
        target.extent()[..4],
        "positions of x and its target"
    );
    let dx = dx.map(|dx| call.values(dx));
    let (classes, factor) = (x.extent()[4], call.inputs.gradient_factor() * weight);
    let (mut sum, mut visits, mut wrong) = (0.0, 0, None);
    each_position(x.extent(), call.progress, |[n, d, h, w]| {
        let at = |c: usize| [n, d, h, w, c];
        let class = target.get(at(0));
        if !is_class(class, classes) {
            wrong.get_or_insert(class);
            return;
        }
        let most = (0..classes)
            .map(|c| x.get(at(c)))
            .fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = (0..classes).map(|c| (x.get(at(c)) - most).exp()).sum();
        let log_total = most + total.ln();
        for c in 0..classes {
            visits += 1;
            let hit = if c == class as usize { 1.0 } else { 0.0 };
            let expected = (1.0 - smoothing) * hit + smoothing / classes as f64;
            if expected != 0.0 {
                sum += expected * (log_total - x.get(at(c)));
            }
            if let Some(dx) = &dx {
                dx.set(
                    at(c),
                    factor * ((x.get(at(c)) - log_total).exp() - expected) / count as f64,
                );
            }
        }
    })?;
    check_class(wrong, classes, rank)?;
    loss.set(entry(0), weight * sum / count as f64);
    Ok(5 * visits)
}

/// Value and derivative by x.
fn element(function: ElementFunction, x: f64, target: f64) -> [f64; 2] {
    let error = x - target;
    let huber = |delta: f64| {
        if error.abs() < delta {
            [error * error / 2.0, error]
        } else {
            [delta * (error.abs() - delta / 2.0), delta * error.signum()]
        }
    };
    match function {
        ElementFunction::Squared => [error * error, 2.0 * error],
        ElementFunction::Absolute if error == 0.0 => [0.0; 2],
        ElementFunction::Absolute => [error.abs(), error.signum()],
        ElementFunction::Huber { delta } => huber(delta),
        ElementFunction::SmoothL1 { beta } => huber(beta).map(|number| number / beta),
        ElementFunction::LogisticEntropy => {
            let value = x.max(0.0) - x * target + (-x.abs()).exp().ln_1p();
            [value, sigmoid(x) - target]
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn element_loss(
    function: ElementFunction,
    [x, target, loss]: [&View; 3],
    dx: Option<&View>,
    (factor, weights): (f64, &[f64]),
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let (x, target, loss) = (call.values(x), call.values(target), call.values(loss));
    let (dx, scale) = (dx.map(|dx| call.values(dx)), call.inputs.gradient_factor());
    let mut sum = 0.0;
    let visits = each_element(x.extent(), call.progress, |i| {
        let [value, derivative] = element(function, x.get(i), target.get(i));
        let weight = weights.get(i[4]).copied().unwrap_or(1.0);
        sum += weight * value;
        if let Some(dx) = &dx {
            dx.set(i, scale * factor * weight * derivative);
        }
    })?;
    loss.set(entry(0), factor * sum);
    Ok(6 * visits)
}

fn output_errors(
    [x, target, errors]: [&View; 3],
    logistic: bool,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let (x, target, errors) = (call.values(x), call.values(target), call.values(errors));
    let mut totals = vec![[0.0; 2]; x.extent()[4]];
    let visits = each_element(x.extent(), call.progress, |i| {
        let given = x.get(i);
        let given = if logistic { sigmoid(given) } else { given };
        let error = given - target.get(i);
        totals[i[4]][0] += error.abs();
        totals[i[4]][1] += error * error;
    })?;
    for (c, total) in totals.iter().enumerate() {
        errors.set(cell(0, c), total[0]);
        errors.set(cell(1, c), total[1]);
    }
    Ok(4 * visits)
}

pub(super) fn is_class(class: f64, classes: usize) -> bool {
    class >= 0.0 && class < classes as f64 && class.fract() == 0.0
}

/// Fails if a target class is out of range.
pub(super) fn check_class(wrong: Option<f64>, classes: usize, rank: Rank) -> Result<(), RunError> {
    let Some(class) = wrong else {
        return Ok(());
    };
    let reason = format!(
        "a target names class {class}; classes are 0 to {}",
        classes - 1
    );
    Err(RunError::Source { rank, reason })
}

fn class_counts(
    [x, target, counts]: [&View; 3],
    ignore: Option<i64>,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (x, target, counts) = (call.values(x), call.values(target), call.values(counts));
    assert_eq!(
        x.extent()[..4],
        target.extent()[..4],
        "positions of x and its target"
    );
    let classes = x.extent()[4];
    let mut totals = vec![[0.0; 3]; classes];
    let (mut visits, mut wrong) = (0, None);
    each_position(x.extent(), call.progress, |[n, d, h, w]| {
        let at = |c: usize| [n, d, h, w, c];
        let class = target.get(at(0));
        visits += classes as u64;
        if ignore.is_some_and(|index| class == index as f64) {
            return;
        }
        if !is_class(class, classes) {
            wrong.get_or_insert(class);
            return;
        }
        let greater = |best: usize, c: usize| {
            if x.get(at(c)) > x.get(at(best)) {
                c
            } else {
                best
            }
        };
        let (given, class) = ((1..classes).fold(0, greater), class as usize);
        totals[class][0] += if given == class { 1.0 } else { 0.0 };
        totals[given][1] += 1.0;
        totals[class][2] += 1.0;
    })?;
    check_class(wrong, classes, rank)?;
    for (c, total) in totals.iter().enumerate() {
        for (row, count) in total.iter().enumerate() {
            counts.set(cell(row, c), *count);
        }
    }
    Ok(visits)
}
