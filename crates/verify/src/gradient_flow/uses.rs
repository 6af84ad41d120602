//! Sets of micro-batches and submeshes, stored as intervals of micro-batch numbers.

use partita_program::{Body, Work};
use partita_space::Submesh;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Numbers of the micro-batches of a program, which are identified by their first samples. Those loaded by one
/// submesh have consecutive numbers, so that its sums stay one interval if two replicas alternate.
pub(super) struct Numbers {
    of: HashMap<usize, u32>,
    samples: Vec<usize>,
}

impl Numbers {
    pub fn new<'p>(bodies: impl Iterator<Item = &'p Body>) -> Self {
        let mut meshes: BTreeMap<usize, Option<Submesh>> = BTreeMap::new();
        let mut others = BTreeSet::from([0]);
        for body in bodies {
            for task in &body.tasks {
                if let Work::Load(load) = &task.work {
                    let sample = load.distribution.micro.map_or(0, |(first, _)| first);
                    meshes.entry(sample).or_insert(load.distribution.submesh);
                }
            }
            let tensors = body.buffers.iter().filter_map(|buffer| buffer.tensor);
            others.extend(
                tensors.map(|tensor| tensor.distribution.micro.map_or(0, |(first, _)| first)),
            );
        }
        for sample in others {
            meshes.entry(sample).or_insert(None);
        }
        let ordered: BTreeSet<_> = meshes
            .into_iter()
            .map(|(first, submesh)| (submesh, first))
            .collect();
        let samples: Vec<usize> = ordered.into_iter().map(|(_, sample)| sample).collect();
        let of = samples.iter().zip(0..).map(|(&sample, at)| (sample, at));
        Self {
            of: of.collect(),
            samples,
        }
    }

    /// The number of the micro-batch from a sample on.
    pub fn of(&self, sample: usize) -> u32 {
        self.of[&sample]
    }

    /// The first sample of a micro-batch.
    pub fn sample(&self, number: u32) -> usize {
        self.samples[number as usize]
    }
}

/// Consecutive micro-batches with one submesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    submesh: Option<Submesh>,
    first: u32,
    end: u32,
}

/// Pairs of submesh and micro-batch, as disjoint, not adjacent runs, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses(Vec<Run>);

impl Uses {
    pub fn of(submesh: Option<Submesh>, number: u32) -> Self {
        let (first, end) = (number, number + 1);
        Self(vec![Run {
            submesh,
            first,
            end,
        }])
    }

    pub fn join(&mut self, other: &Self) {
        other.0.iter().for_each(|run| self.insert(*run));
    }

    fn insert(&mut self, mut run: Run) {
        let from = self
            .0
            .partition_point(|known| (known.submesh, known.end) < (run.submesh, run.first));
        let mut to = from;
        while let Some(known) = self.0.get(to)
            && known.submesh == run.submesh
            && known.first <= run.end
        {
            run.first = run.first.min(known.first);
            run.end = run.end.max(known.end);
            to += 1;
        }
        self.0.splice(from..to, [run]);
    }

    /// The same micro-batches, all with this submesh.
    pub fn with_mesh(&self, submesh: Option<Submesh>) -> Self {
        let mut all = Self::default();
        self.0
            .iter()
            .for_each(|run| all.insert(Run { submesh, ..*run }));
        all
    }

    pub fn contains(&self, submesh: Option<Submesh>, number: u32) -> bool {
        self.holds(&Run {
            submesh,
            first: number,
            end: number + 1,
        })
    }

    fn holds(&self, run: &Run) -> bool {
        let at = self
            .0
            .partition_point(|known| (known.submesh, known.end) < (run.submesh, run.end));
        let known = self.0.get(at);
        known.is_some_and(|known| known.submesh == run.submesh && known.first <= run.first)
    }

    /// Members of `of` that are missing here.
    pub fn missing(&self, of: &Self) -> Vec<(Option<Submesh>, u32)> {
        let open = of.0.iter().filter(|run| !self.holds(run));
        let all = open.flat_map(|run| (run.first..run.end).map(|number| (run.submesh, number)));
        all.filter(|&(submesh, number)| !self.contains(submesh, number))
            .collect()
    }

    /// The micro-batches.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|run| run.first..run.end)
    }

    /// How many runs there are.
    #[cfg(test)]
    fn runs(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_micro_batches_add_to_is_one_run_and_gaps_are_known() {
        let mut all = Uses::default();
        for number in 0..1000 {
            all.join(&Uses::of(None, number));
            assert_eq!(all.runs(), 1);
        }
        let mut some = Uses::default();
        for number in (0..1000).filter(|number| number % 100 != 7).rev() {
            some.join(&Uses::of(None, number));
        }
        assert_eq!(some.runs(), 11);
        let missing: Vec<u32> = some.missing(&all).iter().map(|&(_, n)| n).collect();
        assert_eq!(missing, (0..10).map(|i| 100 * i + 7).collect::<Vec<u32>>());
        assert_eq!(all.missing(&some), []);
        assert!(all.contains(None, 999) && !all.contains(None, 1000));
        assert!(some.contains(None, 8) && !some.contains(None, 7));
        some.join(&all);
        assert_eq!(some, all);
        assert_eq!(all.numbers().count(), 1000);
    }
}
