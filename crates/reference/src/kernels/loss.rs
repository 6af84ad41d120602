//! Losses, and the errors and class counts beside them.

use super::Call;
use crate::values::{cell, each_element, each_position, entry};
use partita_program::fields::{
    ClassCounts, ElementLoss, MeanSquaredError, OutputErrors, SoftmaxCrossEntropy,
};
use partita_program::{ElementFunction, Fields, Kernel};
use partita_run::RunError;
use partita_space::Rank;

pub(super) fn execute(
    kernel: &Kernel,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    match kernel.fields() {
        Fields::MeanSquaredError(of) => mean_squared_error(of, call),
        Fields::SoftmaxCrossEntropy(of) => softmax_cross_entropy(of, rank, call),
        Fields::ElementLoss(of) => element_loss(of, call),
        Fields::OutputErrors(of) => output_errors(of, call),
        Fields::ClassCounts(of) => class_counts(of, rank, call),
        _ => panic!("{} is no loss", kernel.name()),
    }
}

fn mean_squared_error(of: MeanSquaredError<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, target, count, weight) = (of.x, of.target, *of.count, *of.weight);
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let [x, target, loss] = [x, target, of.loss].map(|view| call.values(view));
    let dx = of.dx.map(|dx| call.values(&dx));
    let factor = call.inputs.gradient_factor() * weight;
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
    of: SoftmaxCrossEntropy<'_>,
    rank: Rank,
    call: &mut Call<'_, '_>,
) -> Result<u64, RunError> {
    let (count, weight, smoothing) = (*of.count, *of.weight, *of.smoothing);
    let [x, target, loss] = [of.x, of.target, of.loss].map(|view| call.values(view));
    assert_eq!(
        x.extent()[..4],
        target.extent()[..4],
        "positions of x and its target"
    );
    let dx = of.dx.map(|dx| call.values(&dx));
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

fn element_loss(of: ElementLoss<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, target, factor) = (of.x, of.target, of.weight / *of.count as f64);
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let [x, target, loss] = [x, target, of.loss].map(|view| call.values(view));
    let (dx, scale) = (
        of.dx.map(|dx| call.values(&dx)),
        call.inputs.gradient_factor(),
    );
    let mut sum = 0.0;
    let visits = each_element(x.extent(), call.progress, |i| {
        let [value, derivative] = element(*of.function, x.get(i), target.get(i));
        let weight = of.weights.get(i[4]).copied().unwrap_or(1.0);
        sum += weight * value;
        if let Some(dx) = &dx {
            dx.set(i, scale * factor * weight * derivative);
        }
    })?;
    loss.set(entry(0), factor * sum);
    Ok(6 * visits)
}

fn output_errors(of: OutputErrors<'_>, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let (x, target) = (of.x, of.target);
    assert_eq!(x.extent, target.extent, "{x} and its target have one shape");
    let [x, target, errors] = [x, target, of.errors].map(|view| call.values(view));
    let mut totals = vec![[0.0; 2]; x.extent()[4]];
    let visits = each_element(x.extent(), call.progress, |i| {
        let given = x.get(i);
        let given = if *of.logistic { sigmoid(given) } else { given };
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

fn class_counts(of: ClassCounts<'_>, rank: Rank, call: &mut Call<'_, '_>) -> Result<u64, RunError> {
    let [x, target, counts] = [of.x, of.target, of.counts].map(|view| call.values(view));
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
        if of.ignore.is_some_and(|index| class == index as f64) {
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
