//! The layer in which values began that are not finite, of what all ranks found.

use partita_graph::Graph;
use partita_program::Phase;
use partita_run::NotFiniteOrigin;
use partita_session::Outcome;
use std::cmp::Reverse;

/// The first in the order of steps, passes and layers. What came from another rank counts only if no rank knows more.
pub fn origin(graph: &Graph, outcomes: &[Outcome]) -> Option<NotFiniteOrigin> {
    let found = outcomes.iter().filter_map(|one| one.origin.as_ref());
    found
        .min_by_key(|origin| {
            // A parameter begins with the name of its layer.
            let layer = origin.layer.split('.').next();
            let at = graph.nodes.iter().position(|one| Some(&*one.name) == layer);
            let at = at.map_or(i64::MAX, |at| at as i64);
            let (pass, at) = match origin.phase {
                Phase::Load => (0, at),
                Phase::Forward => (1, at),
                // From the last layer to the first.
                Phase::Backward => (2, -at),
                Phase::Reduce => (3, at),
                Phase::Update => (4, at),
                Phase::Report => (5, at),
            };
            (Reverse(origin.is_first), origin.step, pass, at, origin.rank)
        })
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_graph::text;
    use partita_session::RunEnd;
    use partita_space::Seconds;

    const MODEL: &str = "model two
input x channels=1 extent=4
c1 = conv x filters=2 kernel=1 bias=true
c2 = conv c1 filters=2 kernel=1 bias=true
f = flatten c2
l = linear f features=1 bias=true
loss = mse l
";

    fn outcome(rank: usize, found: Option<(u64, Phase, &str, bool)>) -> Outcome {
        let origin = found.map(|(step, phase, layer, is_first)| NotFiniteOrigin {
            rank,
            step,
            layer: layer.to_owned(),
            phase,
            kernel: "conv".to_owned(),
            buffer: layer.to_owned(),
            value: "inf".to_owned(),
            is_first,
        });
        Outcome {
            rank,
            end: RunEnd::Finished,
            origin,
            steps: 0,
            seconds: Seconds(0.0),
            ended: None,
            epochs: Vec::new(),
            loss_scale: None,
            measured_steps: 0,
            step_seconds: Seconds(0.0),
            task_seconds: Vec::new(),
            traces: Vec::new(),
        }
    }

    #[test]
    fn passes_run_forward_then_backward_then_update() {
        let graph = text::parse(MODEL).unwrap();
        use Phase::{Backward, Forward, Update};
        // Each before the next.
        let order = [
            (1, Update, "c1.weight", true),
            (2, Forward, "c1", true),
            (2, Forward, "c2", true),
            (2, Backward, "c2", true),
            (2, Backward, "c1", true),
            (2, Update, "c2.bias", true),
            (1, Forward, "c1", false),
        ];
        for (at, first) in order.iter().enumerate() {
            for later in &order[at + 1..] {
                let outcomes = [
                    outcome(0, None),
                    outcome(1, Some(*later)),
                    outcome(2, Some(*first)),
                ];
                let found = origin(&graph, &outcomes).unwrap();
                assert_eq!(
                    (found.rank, &*found.layer),
                    (2, first.2),
                    "{first:?} {later:?}"
                );
            }
        }
        assert_eq!(origin(&graph, &[outcome(0, None)]), None);
    }
}
