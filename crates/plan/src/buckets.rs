//! Candidates that sum gradients in buckets, and programs that are too large for that.

use crate::plan::{PlanError, RankedStrategy, Refusal, Rejection};
use crate::ranking::{BUCKETED_TASKS_MAX, Ranking};
use crate::size::check_size;
use partita_lower::{StageChoice, Strategy};
use partita_oracle::Prediction;
use partita_space::{Axis, Bytes, Seconds};

/// Sizes of buckets that are tried.
const BUCKETS: [Bytes; 2] = [Bytes(4 << 20), Bytes(25 << 20)];
/// Number of the best candidates for which they are.
const BUCKETED: usize = 2;
/// After this number of programs that are too large to be simulated again, none of which was the fastest, no more such programs of
/// candidates on one mesh are evaluated. Each takes up to ten seconds of a core.
const LARGE_IN_VAIN: usize = 3;

impl Ranking<'_, '_> {
    /// Why a candidate is not evaluated after several large ones that were slower; nothing where it may be.
    pub fn check_large(&self, strategy: &Strategy) -> Result<Result<(), Rejection>, PlanError> {
        if self.large_in_vain < LARGE_IN_VAIN {
            return Ok(Ok(()));
        }
        let checked = check_size(self.request, strategy, BUCKETED_TASKS_MAX)?;
        Ok(checked.map_err(|(refusal, reason)| {
            let reason =
                format!("{reason} after {LARGE_IN_VAIN} such programs that were not the fastest");
            (refusal, reason)
        }))
    }

    /// Evaluates the best candidates and data parallelism alone with gradients in buckets, where gradients are summed.
    pub fn evaluate_buckets(&mut self) -> Result<(), PlanError> {
        if self.request.training.strategy.bucket > Bytes(0) {
            // All candidates have the buckets that are asked for.
            return Ok(());
        }
        let mut best: Vec<&RankedStrategy> = self.evaluated.iter().collect();
        let seconds =
            |one: &RankedStrategy| one.seconds().map_or(f64::INFINITY, |seconds| seconds.0);
        let hidden = |one: &RankedStrategy| {
            let exposed = |one: &Prediction| one.breakdown.gradient_allreduce_exposed.0;
            seconds(one) - one.prediction.as_ref().map_or(0.0, exposed)
        };
        best.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let data = self.asked(Strategy::hybrid(self.request.ranks, [1; 3]));
        let is_tried =
            |(at, one): &(usize, &RankedStrategy)| *at < BUCKETED || one.strategy == data;
        // Buckets shorten sums of gradients. Those of data parallelism alone are reported in any case.
        let least = best.first().map_or(f64::INFINITY, |one| seconds(one));
        let may_gain = |one: &RankedStrategy| {
            (hidden(one) < least || one.strategy == data)
                && one.strategy.ranks() > 1
                && sums_gradients(&one.strategy)
                && !self.large.contains(&one.strategy)
        };
        let tried = best.into_iter().enumerate().filter(is_tried);
        let tried: Vec<(f64, Strategy)> = tried
            .filter(|(_, one)| may_gain(one))
            .map(|(_, one)| (seconds(one), one.strategy.clone()))
            .collect();
        let total = tried.len() * BUCKETS.len();
        let all = tried
            .iter()
            .flat_map(|one| BUCKETS.map(|bucket| (one, bucket)));
        for (at, ((least, apart), bucket)) in all.enumerate() {
            let mut strategy = apart.clone();
            strategy.bucket = bucket;
            if self.is_over() {
                self.leave(strategy);
                continue;
            }
            (self.request.progress)(&strategy, total - at);
            self.evaluate(strategy.clone(), None)?;
            let is_slower =
                |one: &mut RankedStrategy| one.strategy == strategy && seconds(one) >= *least;
            if let Some(slower) = self.evaluated.pop_if(is_slower) {
                let reason = format!(
                    "not faster: a step takes {}, of `{apart}` {}",
                    Seconds(seconds(&slower)),
                    Seconds(*least)
                );
                self.refuse(slower.strategy, (Refusal::Slower, reason));
            }
        }
        Ok(())
    }
}

/// Whether several ranks have parts of the gradient of a weight. Without stages it is assumed.
fn sums_gradients(strategy: &Strategy) -> bool {
    let has_ranks = |stage: &StageChoice| stage.extents.iter().any(|&extent| extent > 1);
    strategy.stages.is_empty()
        || strategy.extent(Axis::Data) > 1
        || strategy.schedule.replicas() > 1
        || strategy.stages.iter().any(has_ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{FixedCosts, UnknownCost};
    use crate::plan::SearchRequest;
    use crate::requests;
    use partita_oracle::MachineCosts;
    use partita_testkit::{Machine, Software};

    #[test]
    fn large_programs_are_left_out_after_three_that_were_slower() {
        let graph = partita_graph::zoo::build("cosmoflow@512").unwrap();
        let single = Strategy::single();
        let costs = MachineCosts::new(
            Machine::load("frontier", &[]).unwrap(),
            Software::load("partita-cudnn", &[]).unwrap(),
        );
        let request = SearchRequest {
            training: requests::training(&graph, &single, 1),
            ranks: 4096,
            memory: Bytes(64_000_000_000),
            lower_bound: &|_, _, _| Seconds(0.0),
            prune_factor: 3.0,
            micro_statistics: false,
            front: false,
            knows_costs: true,
            cost: &|_| Err(UnknownCost("not asked for".to_owned())),
            stages: &FixedCosts(&costs),
            progress: &|_, _| {},
            is_over: &|_, _| false,
        };
        let mut ranking = Ranking::new(&request, None);
        let mut checked = |text: &str, in_vain: usize| {
            ranking.large_in_vain = in_vain;
            ranking.check_large(&text.parse().unwrap()).unwrap()
        };
        let large = "depth=16,height=8,width=8,filter=2,channel=2";
        assert_eq!(checked(large, 2), Ok(()));
        let (refusal, reason) = checked(large, 3).unwrap_err();
        assert_eq!(refusal, Refusal::Large);
        assert!(
            reason.ends_with("after 3 such programs that were not the fastest"),
            "{reason}"
        );
        assert_eq!(checked("depth=16,height=16,width=16", 3), Ok(()));
    }
}
