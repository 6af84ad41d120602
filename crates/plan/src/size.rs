//! How large the program of a candidate is, before it is lowered.

use crate::need::unsuited;
use crate::plan::{PlanError, Refusal, Rejection, SearchRequest};
use partita_lower::{Request, Shard, Strategy, class_count, lower_rank};
use partita_program::{Body, Work};

/// Most tasks of all classes of ranks in a program that a search simulates. Ten seconds of a core, and 3 GB.
pub(crate) const TASKS_MAX: usize = 1_200_000;
/// Views of members of collectives that take as long, and as much memory, as a task.
const VIEWS_PER_TASK: usize = 16;
/// Programs of fewer ranks, and of fewer classes without shared training state, are not estimated.
const RANKS_MIN: usize = 256;
const CLASSES_MIN: usize = 64;

/// Why a program has too many tasks to be simulated in a search; nothing where it has not. They are estimated from the number
/// of classes of ranks, and the body of the last rank.
pub(crate) fn check_size(
    request: &SearchRequest<'_>,
    strategy: &Strategy,
    tasks_max: usize,
) -> Result<Result<(), Rejection>, PlanError> {
    let training = Request {
        strategy,
        ..request.training
    };
    let mesh = strategy.mesh();
    if mesh.ranks() < RANKS_MIN {
        return Ok(Ok(()));
    }
    let classes = match class_count(&training) {
        Ok(Some(classes)) if classes >= CLASSES_MIN || strategy.shard > Shard::Off => classes,
        Ok(_) => return Ok(Ok(())),
        Err(error) => return unsuited(error),
    };
    let body = match lower_rank(&training, mesh.ranks() - 1) {
        Ok(body) => body,
        Err(error) => return unsuited(error),
    };
    let tasks = classes * tasks_of(&body);
    Ok(if tasks <= tasks_max {
        Ok(())
    } else {
        let reason = format!(
            "the {classes} classes of ranks of its program have about {tasks} tasks, more than the {tasks_max} that a search \
             simulates"
        );
        Err((Refusal::Large, reason))
    })
}

/// Tasks of a body, with those that the views of members of its collectives are as large as.
fn tasks_of(body: &Body) -> usize {
    let views = body.tasks.iter().map(|task| match &task.work {
        Work::Collective(collective) => {
            collective.kind.sources().len() + collective.kind.targets().len()
        }
        Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => 0,
    });
    body.tasks.len() + views.sum::<usize>() / VIEWS_PER_TASK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{FixedCosts, UnknownCost};
    use crate::requests;
    use partita_oracle::MachineCosts;
    use partita_space::{Bytes, Seconds};
    use partita_testkit::{Machine, Software};

    /// Each of 4,096 ranks has a place of its own in one of the levels.
    #[test]
    fn programs_with_many_classes_are_too_large() {
        let graph = partita_graph::zoo::build("scaffold@2048").unwrap();
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
        let checked = |text: &str| {
            let strategy: Strategy = text.parse().unwrap();
            check_size(&request, &strategy, TASKS_MAX).unwrap()
        };
        let mesh = "depth=64,height=8,width=8";
        assert_eq!(checked(mesh), Ok(()));
        assert_eq!(checked("depth=2,height=2,width=2"), Ok(()));
        let levels = "down5.conv1..up5.deconv: W=-,F=width; down7.conv1..up3.deconv: H=-,C=width,F=height; \
                      down8.conv1..up2.deconv: D=-,H=height,F=depth";
        let (refusal, reason) = checked(&format!("{mesh}; {levels}")).unwrap_err();
        assert_eq!(refusal, Refusal::Large);
        assert!(reason.contains("classes of ranks"), "{reason}");
    }
}
