//! Expected times of candidates: the lower bound of a candidate, times how much longer than their lower bounds the
//! simulated steps of similar candidates were.
//!
//! Example: `data=32,channel=2` took 1.07 times its lower bound. Then `data=4,height=8,channel=2`, which exchanges
//! more halos, is expected to take at least nearly 1.07 times its own.

use partita_lower::{Schedule, Strategy};
use partita_space::{AXES, Axis, Seconds};
use std::collections::HashMap;

/// What similar candidates have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Filters, channels and branches are split alike; samples and space may be split in any way.
    Shares([usize; 3], bool),
    /// The same mesh, with axes chosen by layers.
    Layers([usize; AXES.len()], bool),
    /// Pipelines under one schedule with as many stages, and as many ranks in the first and in the last of them.
    Pipeline(Schedule, usize, [usize; 2]),
}

impl Kind {
    fn of(strategy: &Strategy) -> Self {
        let extent = |axis| strategy.extent(axis);
        if let [first, .., last] = &strategy.stages[..] {
            let ranks = [first, last].map(|stage| stage.extents.iter().product());
            return Self::Pipeline(strategy.schedule, strategy.stages.len(), ranks);
        }
        let choices = strategy.layers.iter().flat_map(|choice| choice.dims);
        let moves_axes = choices.flatten().any(|axes| !axes.is_empty());
        if moves_axes {
            Self::Layers(AXES.map(extent), strategy.overlap)
        } else {
            let shares = [Axis::Filter, Axis::Channel, Axis::Branch];
            Self::Shares(shares.map(extent), strategy.overlap)
        }
    }

    /// The part of the least ratio of similar candidates that is expected of others, less where ratios differ more.
    fn fraction(&self) -> f64 {
        match self {
            Self::Shares(..) => 0.98,
            // Paths on one mesh split layers in different ways.
            Self::Layers(..) => 0.75,
            Self::Pipeline(..) => 0.9,
        }
    }
}

/// Parts into which a sample is split in space: the more, the more halos are exchanged.
fn tiles(strategy: &Strategy) -> usize {
    let spatial = [Axis::Depth, Axis::Height, Axis::Width];
    spatial.map(|axis| strategy.extent(axis)).iter().product()
}

/// Ratios of simulated steps to lower bounds.
#[derive(Default)]
pub(crate) struct Expectations {
    /// Least ratio by kind and number of tiles.
    ratios: HashMap<Kind, Vec<(usize, f64)>>,
}

impl Expectations {
    /// Adds a simulated step.
    pub fn add(&mut self, strategy: &Strategy, lower_bound: Seconds, simulated: Seconds) {
        if lower_bound.0 <= 0.0 {
            return;
        }
        let (tiles, ratio) = (tiles(strategy), simulated.0 / lower_bound.0);
        let known = self.ratios.entry(Kind::of(strategy)).or_default();
        match known.iter_mut().find(|(of, _)| *of == tiles) {
            Some((_, least)) => *least = least.min(ratio),
            None => known.push((tiles, ratio)),
        }
    }

    /// The expected time of a step: from those with the most tiles among similar candidates with at most as many.
    /// None without such candidates.
    pub fn expected(&self, strategy: &Strategy, lower_bound: Seconds) -> Option<Seconds> {
        let (kind, own) = (Kind::of(strategy), tiles(strategy));
        let known = self.ratios.get(&kind)?;
        let fewer = known.iter().filter(|(tiles, _)| *tiles <= own);
        let (_, ratio) = fewer.max_by_key(|(tiles, _)| *tiles)?;
        Some(lower_bound * (kind.fraction() * ratio).max(1.0))
    }
}

/// Moves the candidate with the fewest tiles of each kind to the front, which otherwise keep their order. It has the
/// fewest classes of ranks, and bounds what is expected of the others.
pub(crate) fn first_of_each_kind<T>(pending: &mut Vec<T>, strategy: impl Fn(&T) -> &Strategy) {
    let mut firsts: HashMap<Kind, (usize, usize)> = HashMap::new();
    for (at, one) in pending.iter().enumerate() {
        let tiles = tiles(strategy(one));
        let first = firsts.entry(Kind::of(strategy(one))).or_insert((tiles, at));
        *first = (*first).min((tiles, at));
    }
    let mut is_first = vec![false; pending.len()];
    firsts.values().for_each(|&(_, at)| is_first[at] = true);
    let mut keyed: Vec<(bool, T)> = is_first.into_iter().zip(pending.drain(..)).collect();
    // The sort is stable.
    keyed.sort_by_key(|(is_first, _)| !is_first);
    pending.extend(keyed.into_iter().map(|(_, one)| one));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Strategy {
        text.parse().unwrap()
    }

    #[test]
    fn similar_candidates_are_expected_to_take_as_much_longer() {
        let mut expectations = Expectations::default();
        let expected = |of: &Expectations, text: &str| of.expected(&asked(text), Seconds(1.0));
        assert_eq!(expected(&expectations, "data=4,channel=2"), None);
        expectations.add(&asked("data=4,channel=2"), Seconds(2.0), Seconds(4.0));
        assert_eq!(
            expected(&expectations, "height=4,channel=2"),
            Some(Seconds(1.96))
        );
        // Of those with as many tiles the least.
        expectations.add(
            &asked("data=2,height=2,channel=2"),
            Seconds(1.0),
            Seconds(4.0),
        );
        expectations.add(
            &asked("data=2,width=2,channel=2"),
            Seconds(1.0),
            Seconds(3.0),
        );
        assert_eq!(
            expected(&expectations, "height=4,channel=2"),
            Some(Seconds(2.94))
        );
        assert_eq!(
            expected(&expectations, "data=8,channel=2"),
            Some(Seconds(1.96))
        );
        // Others are not similar.
        assert_eq!(expected(&expectations, "data=4,filter=2"), None);
        assert_eq!(expected(&expectations, "data=4,channel=4"), None);
        assert_eq!(expected(&expectations, "data=8; fc..: F=data"), None);
        // Fewer tiles say nothing of it.
        let mut expectations = Expectations::default();
        expectations.add(&asked("height=4"), Seconds(1.0), Seconds(2.0));
        assert_eq!(expected(&expectations, "data=4"), None);
        // Nothing is shorter than its lower bound.
        expectations.add(&asked("data=4"), Seconds(1.0), Seconds(1.0));
        assert_eq!(expected(&expectations, "data=4"), Some(Seconds(1.0)));
    }

    #[test]
    fn the_fewest_tiles_of_each_kind_come_first() {
        let texts = [
            "height=4,filter=2",
            "height=8",
            "data=4,filter=2",
            "data=8",
            "height=2",
        ];
        let mut all: Vec<Strategy> = texts.into_iter().map(asked).collect();
        first_of_each_kind(&mut all, |one| one);
        let order = [2, 3, 0, 1, 4].map(|at| asked(texts[at]));
        assert_eq!(all, order);
    }
}
