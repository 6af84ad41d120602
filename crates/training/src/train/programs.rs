//! The programs of a run.

use super::error::TrainError;
use super::run::Run;
use partita_data::Split;
use partita_forecast::{StrategyChoice, accumulating};
use partita_formats::DType;
use partita_graph::{Graph, Loss};
use partita_input::Sampling;
use partita_lower::{
    Request, SampleFormat, Strategy, StrategyChecks, StrategyError, class_terms, lower,
};
use partita_program::{ClassTerms, Dtype, Menu, Program, ProgramKind};
use partita_session::{Programs, batch_sizes};
use partita_verify::verify;
use std::ops::Range;

/// Lowers and verifies every program of a run: full and partial batches of each kind with this many samples, each
/// with its fetch program.
///
/// Errors: an invalid strategy, a missing kernel, a faulty program.
pub fn programs(
    run: &Run,
    menu: &dyn Menu,
    graph: &Graph,
    strategy: &Strategy,
    stored: DType,
    kinds: &[(ProgramKind, usize)],
) -> Result<Vec<Programs>, TrainError> {
    let request = request(run, graph, strategy, stored, menu);
    let mut played = Vec::new();
    for &(kind, samples) in kinds {
        if kind == ProgramKind::Train {
            check_last(graph, strategy, samples, (run.batch, run.accumulate))?;
        }
        let is_each = kind == ProgramKind::Evaluate && run.needs_sample_dice();
        let most = if is_each { 1 } else { run.batch };
        for batch in batch_sizes(samples, most) {
            let is_same = |one: &Programs| one.step.kind == kind && one.step.batch == batch;
            if played.iter().any(is_same) {
                continue;
            }
            let one = |kind| {
                verified(&Request {
                    kind,
                    batch,
                    ..request
                })
            };
            let (step, fetch) = (one(kind)?, one(kind.fetch())?);
            played.push(Programs { step, fetch });
        }
    }
    Ok(played)
}

/// Constants of a loss that is no mean over samples.
pub fn divided(graph: &Graph) -> Option<ClassTerms> {
    match graph.nodes[graph.nodes.len() - 1].op.loss()? {
        Loss::Classes(loss) if loss.counts_targets() || loss.sums_samples() => {
            Some(class_terms(loss))
        }
        Loss::Classes(_)
        | Loss::MeanSquaredError
        | Loss::SoftmaxCrossEntropy { .. }
        | Loss::Elements(_) => None,
    }
}

/// The programs of a training, and their samples; of each group of tiles where the validation joins their outputs.
pub fn kinds(
    training: usize,
    validation: usize,
    groups: &[Range<usize>],
) -> Vec<(ProgramKind, usize)> {
    let mut kinds = vec![(ProgramKind::Train, training)];
    if groups.is_empty() {
        kinds.push((ProgramKind::Evaluate, validation));
    }
    kinds.extend(groups.iter().map(|group| (ProgramKind::Infer, group.len())));
    kinds
}

/// Checks a strategy that is given for a run, which trains on a sampling; without one it trains nothing, and takes no statistics.
///
/// Errors: an invalid strategy, with the nearest valid choice. They are of what the user wrote: of the strategy and the
/// mini-batch of one part where several are accumulated.
pub fn check_given(
    run: &Run,
    graph: &Graph,
    sampling: Option<&Sampling>,
) -> Result<(), StrategyError> {
    let StrategyChoice::Given(strategy) = &run.strategy else {
        return Ok(());
    };
    let parts = run.accumulate;
    let samples = sampling.map(|sampling| sampling.samples(Split::Train));
    let check_of = |strategy: &Strategy, batch: usize| match sampling {
        Some(_) => strategy.check(graph, batch),
        None => strategy.check_layout(graph, batch),
    };
    let check = |strategy: &Strategy, batch: usize| {
        let all = accumulating(strategy.clone(), parts);
        let checked = check_of(&all, batch.saturating_mul(parts));
        checked.map_err(|error| check_of(strategy, batch).err().unwrap_or(error))
    };
    let suits = |strategy: &Strategy, batch: usize| {
        let strategy = accumulating(strategy.clone(), parts);
        let batch = batch.saturating_mul(parts);
        let is_last = |samples| check_last(graph, &strategy, samples, (batch, parts)).is_ok();
        let fits = |samples| samples >= batch && (run.drop_last || is_last(samples));
        samples.is_none_or(fits)
    };
    let checks = StrategyChecks {
        graph,
        ranks: run.ranks,
        batch: run.batch / parts,
        check: &check,
        suits: &suits,
    };
    checks.check(&part_of(strategy, parts))
}

/// The strategy of one of the parts that are accumulated.
fn part_of(strategy: &Strategy, parts: usize) -> Strategy {
    let mut part = strategy.clone();
    part.micro = strategy.micro / parts;
    part
}

/// Checks that a smaller last mini-batch of an epoch can be trained on. A mini-batch accumulates `parts` parts.
///
/// Errors: a batch norm over a single value, with the nearest valid strategy and batch size, those of a part.
fn check_last(
    graph: &Graph,
    strategy: &Strategy,
    samples: usize,
    (batch, parts): (usize, usize),
) -> Result<(), TrainError> {
    let is_trained = |batch: usize| match samples % batch {
        0 => Ok(()),
        _ if samples < batch => Ok(()),
        rest => strategy.check_norms(graph, rest),
    };
    let Err(error) = is_trained(batch) else {
        return Ok(());
    };
    let StrategyError::OneValue { layer, micro, .. } = &error else {
        return Err(error.into());
    };
    let rest = samples % batch;
    let suits = |other: &usize| {
        (1..=samples).contains(other)
            && is_trained(*other).is_ok()
            && strategy.check(graph, *other).is_ok()
    };
    let part = batch / parts;
    let others = (1..part).flat_map(|by| [part - by, part + by]);
    let size = others.into_iter().find(|part| suits(&(part * parts)));
    let with_fewer = |&fewer: &usize| {
        let mut other = strategy.clone();
        other.micro = fewer * parts;
        other.check(graph, batch).is_ok() && other.check_norms(graph, rest).is_ok()
    };
    let fewer = (1..strategy.micro / parts).rev().find(with_fewer);
    let choices = [
        fewer.map(|micro| format!("micro={micro} in the strategy")),
        size.map(|batch| format!("batch = {batch}")),
        (samples > batch).then(|| "drop_last = true".to_owned()),
    ];
    let choices: Vec<String> = choices.into_iter().flatten().collect();
    let nearest = if choices.is_empty() {
        format!("batch = {part} with a number of samples that it divides")
    } else {
        choices.join(", or ")
    };
    Err(TrainError::LastBatch {
        rest,
        samples,
        strategy: Box::new(part_of(strategy, parts)),
        layer: layer.clone(),
        micro: *micro,
        nearest,
    })
}

/// The request for the training step of a run.
pub fn request<'r>(
    run: &Run,
    graph: &'r Graph,
    strategy: &'r Strategy,
    stored: DType,
    menu: &'r dyn Menu,
) -> Request<'r> {
    Request {
        graph,
        strategy,
        batch: run.batch,
        kind: ProgramKind::Train,
        dtype: run.precision.dtype(),
        optimizer: run.optimizer,
        decay_norms: run.decay_norms,
        ema: run.ema,
        clip: run.clip,
        samples: SampleFormat {
            dtype: staging_dtype(stored),
            transform: run.samples.transform,
        },
        menu,
    }
}

fn staging_dtype(stored: DType) -> Dtype {
    match stored {
        DType::Int16 => Dtype::I16,
        DType::Float32 => Dtype::F32,
    }
}

fn verified(request: &Request<'_>) -> Result<Program, TrainError> {
    let program = lower(request)?;
    match verify(&program) {
        Ok(()) => Ok(program),
        Err(faults) => Err(TrainError::Unsound {
            program: program.title,
            faults,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_last_mini_batch_of_one_sample_is_refused_before_training() {
        let model = "model norm\ninput x channels=2 extent=4\n\
                     c = conv x filters=4 kernel=4 bias=false\n\
                     n = batch_norm c epsilon=1e-5 momentum=0.1\nloss = mse n\n";
        let graph = partita_graph::text::parse(model).unwrap();
        let check = |strategy: &str, samples: usize, batch: usize| {
            let strategy: Strategy = strategy.parse().unwrap();
            strategy.check(&graph, batch).unwrap();
            let checked = check_last(&graph, &strategy, samples, (batch, 1));
            checked.err().map(|error| error.to_string())
        };
        for (strategy, samples, batch) in [("data=1", 16, 4), ("data=1", 18, 4), ("data=2", 3, 8)] {
            assert_eq!(check(strategy, samples, batch), None);
        }
        for (strategy, samples, batch, parts) in [
            ("data=1", 17, 4, ["1 of 17", "`n`", "batch = 3"]),
            ("data=1,micro=1", 3, 2, ["1 of 3", "`n`", "batch = 3"]),
            (
                "data=2,micro=2",
                11,
                8,
                [
                    "3 of 11",
                    "2 micro-batch(es)",
                    "micro=1 in the strategy, or batch = 6",
                ],
            ),
        ] {
            let error = check(strategy, samples, batch).unwrap();
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
            // What is suggested is accepted.
            let (_, nearest) = error.split_once("help: try ").unwrap();
            for choice in nearest.split(", or ") {
                if choice == "drop_last = true" {
                    let kept = samples - samples % batch;
                    assert_eq!(check(strategy, kept, batch), None, "{error}");
                    continue;
                }
                let (other, size) = match choice.strip_suffix(" in the strategy") {
                    Some(micro) => (format!("data=2,{micro}"), batch),
                    None => {
                        let size = choice.strip_prefix("batch = ").unwrap().parse().unwrap();
                        (strategy.to_owned(), size)
                    }
                };
                assert_eq!(check(&other, samples, size), None, "{error}");
            }
        }
    }
}
