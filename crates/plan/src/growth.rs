//! Scaling of a strategy to more ranks.

use partita_graph::Graph;
use partita_lower::{Strategy, StrategyError};
use partita_space::help::Message;
use partita_space::{AXES, Axis, Mesh};

/// No axis of a strategy can grow.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", .0.iter().map(|reason| Message::of(reason).inline()).collect::<Vec<_>>().join("; "))]
pub struct CannotGrow(pub Vec<StrategyError>);

/// The strategy for twice the ranks: with twice the extent of the first of its axes for which it is valid, data
/// first.
///
/// Errors: why each axis that it has cannot grow.
pub fn doubled(strategy: &Strategy, graph: &Graph, batch: usize) -> Result<Strategy, CannotGrow> {
    let is_own = |axis: &Axis| *axis == Axis::Data || strategy.extent(*axis) > 1;
    let mut reasons = Vec::new();
    for axis in AXES.into_iter().filter(is_own) {
        let grown = grown(strategy, axis);
        match grown.check(graph, batch) {
            Ok(()) => return Ok(grown),
            Err(error) => reasons.push(error),
        }
    }
    Err(CannotGrow(reasons))
}

/// The largest number of ranks to which a strategy can be doubled along its own axes, and why not to more.
pub fn ranks_max(strategy: &Strategy, graph: &Graph, batch: usize) -> (usize, String) {
    let mut grown = strategy.clone();
    while grown.ranks() < Mesh::RANKS_MAX {
        match doubled(&grown, graph, batch) {
            Ok(more) => grown = more,
            Err(error) => return (grown.ranks(), error.to_string()),
        }
    }
    (grown.ranks(), "a mesh has no more ranks".to_owned())
}

fn grown(strategy: &Strategy, axis: Axis) -> Strategy {
    let mut extents = AXES.map(|axis| strategy.extent(axis));
    extents[axis.index()] *= 2;
    strategy.with_extents(extents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Strategy {
        text.parse().unwrap()
    }

    #[test]
    fn data_grows_before_all_else_and_then_what_is_split() {
        let graph = partita_graph::zoo::build("cosmoflow@32").unwrap();
        let next = |text: &str| doubled(&asked(text), &graph, 4);
        assert_eq!(next("data=2,depth=2"), Ok(asked("data=4,depth=2")));
        assert_eq!(next("data=4,depth=2"), Ok(asked("data=4,depth=4")));
        assert_eq!(
            next("data=4,depth=2,overlap=off; fc1..: F=depth"),
            Ok(asked("data=4,depth=4,overlap=off; fc1..: F=depth"))
        );
        let reason = next("data=4").unwrap_err().to_string();
        assert!(reason.contains("data=8"), "{reason}");
    }

    #[test]
    fn no_mesh_grows_beyond_the_largest() {
        let graph = partita_graph::zoo::build("cosmoflow@32").unwrap();
        let reason = doubled(&asked("data=786432"), &graph, 1 << 24)
            .unwrap_err()
            .to_string();
        assert!(reason.contains("1048576"), "{reason}");
    }

    #[test]
    fn the_extents_of_the_input_bound_the_ranks() {
        let graph = partita_graph::zoo::build("cosmoflow@32").unwrap();
        let (ranks, reason) = ranks_max(&asked("data=2,depth=2"), &graph, 4);
        assert_eq!(ranks, 4 * 32);
        assert!(
            reason.contains("data=8") && reason.contains("depth=64"),
            "{reason}"
        );
        assert_eq!(ranks_max(&asked("data=1"), &graph, 4).0, 4);
    }
}
