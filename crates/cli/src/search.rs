use crate::args::{KernelSet, KindName, TrainingArgs};
use crate::error::CliError;
use crate::lowered::lower_verified;
use crate::plan::Candidate;
use crate::predict::cost_error;
use partita_graph::Graph;
use partita_lower::Strategy;
use partita_oracle::{Costs, Mode, Prediction, predict};
use partita_space::Bytes;

/// Every way to lay the ranks on the data axis and the spatial axes of the model: those that fit
/// `memory` by the time of a step, shortest first, then those refused.
///
/// Errors: a cost that is not known, a program that does not pass `verify`.
pub fn search(
    graph: &Graph,
    costs: &dyn Costs,
    training: &TrainingArgs,
    memory: Bytes,
) -> Result<Vec<Candidate>, CliError> {
    let mut candidates = Vec::new();
    for strategy in hybrids(training.ranks, graph.spatial_rank) {
        candidates.push(candidate(graph, strategy, costs, training, memory)?);
    }
    candidates.sort_by(|a, b| {
        let key = |candidate: &Candidate| {
            let seconds = candidate.prediction.as_ref().map(seconds);
            (candidate.reason.is_some(), seconds.unwrap_or(f64::INFINITY))
        };
        let ((a_refused, a_seconds), (b_refused, b_seconds)) = (key(a), key(b));
        a_refused
            .cmp(&b_refused)
            .then(a_seconds.total_cmp(&b_seconds))
    });
    Ok(candidates)
}

fn seconds(prediction: &Prediction) -> f64 {
    prediction.iteration_seconds.0
}

fn candidate(
    graph: &Graph,
    strategy: Strategy,
    costs: &dyn Costs,
    training: &TrainingArgs,
    memory: Bytes,
) -> Result<Candidate, CliError> {
    let refused = |reason: String| Candidate {
        strategy: strategy.to_string(),
        prediction: None,
        reason: Some(reason),
    };
    let program = match lower_verified(
        graph,
        strategy,
        training,
        KernelSet::Unpinned,
        KindName::Train,
    ) {
        Ok(program) => program,
        Err(CliError::User(reason)) => return Ok(refused(reason)),
        Err(error) => return Err(error),
    };
    let prediction =
        predict(&program, costs, Mode::Classes, 1, false).map_err(|error| cost_error(&error))?;
    let needed = prediction.memory_bytes_max;
    let reason =
        (needed > memory).then(|| format!("the largest rank needs {needed}, it may fill {memory}"));
    Ok(Candidate {
        strategy: strategy.to_string(),
        prediction: Some(prediction),
        reason,
    })
}

/// All ordered factorizations of `ranks` over data and the last `spatial_rank` of D, H, W.
fn hybrids(ranks: usize, spatial_rank: usize) -> Vec<Strategy> {
    let first = 3 - spatial_rank;
    let mut partial = vec![(ranks, [1; 3])];
    for axis in first..3 {
        partial = partial
            .into_iter()
            .flat_map(|(rest, spatial)| {
                divisors(rest).map(move |parts| {
                    let mut spatial = spatial;
                    spatial[axis] = parts;
                    (rest / parts, spatial)
                })
            })
            .collect();
    }
    partial
        .into_iter()
        .map(|(data, spatial)| Strategy::hybrid(data, spatial))
        .collect()
}

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |&part| number.is_multiple_of(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrids_have_the_ranks_and_the_axes() {
        let all = hybrids(8, 3);
        assert_eq!(all.len(), 20);
        assert!(all.iter().all(|strategy| strategy.ranks() == 8));
        let flat: Vec<String> = hybrids(4, 1).iter().map(Strategy::to_string).collect();
        assert_eq!(flat, ["data=4", "data=2,width=2", "width=4"]);
    }
}
