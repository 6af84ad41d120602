//! Convolutions tried in place: a menu for each turn, which pins another of their most promising implementations.
//!
//! What a kernel takes depends on what its neighbors leave in the caches and on what the other ranks do, which no
//! measurement of it alone has. So a training may run some steps with each of these menus, and keep the times.

use crate::{CatalogMenu, KernelKey, KernelTime, Measurements};
use partita_oracle::Features;
use partita_program::{Body, Choice, Configuration, KernelShape, Menu, MenuError, Program, Work};
use partita_space::{Bytes, Rank, Seconds, median};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Most implementations of a convolution that are tried, of those that a model expects to be fast.
const MODELED_MAX: usize = 3;

/// Implementations are tried if their expected time is at most this factor of the fastest one's.
const NEAR: f64 = 2.0;

/// A menu that pins for each convolution one of the implementations that are expected to be about as fast as the
/// fastest one, and of those of libraries, of which there is no model. Convolutions that were measured, and those without
/// such a choice, are as in a [`CatalogMenu`].
///
/// Weights are not packed beforehand where implementations are compared, as each of them then does the same work.
pub struct TrialMenu<'m> {
    menu: CatalogMenu<'m>,
    turn: usize,
    /// By signature: what is tried, the most promising one first; fewer than two where nothing is.
    known: Mutex<BTreeMap<String, Arc<Vec<Choice>>>>,
}

impl<'m> TrialMenu<'m> {
    /// The menu of a turn, from 0.
    pub fn new(menu: CatalogMenu<'m>, turn: usize) -> Self {
        Self {
            menu,
            turn,
            known: Mutex::default(),
        }
    }

    /// The turns after which each convolution of a program has been tried by all its candidates; 0 where none has a choice.
    pub fn turns(&self, program: &Program) -> usize {
        let of_body = |body: &Body| {
            let shapes = body.tasks.iter().filter_map(|task| body.kernel_shape(task));
            let counts = shapes.map(|shape| self.candidates(&shape).len());
            counts.max().unwrap_or(0)
        };
        let most = program.bodies.iter().map(of_body).max().unwrap_or(0);
        if most < 2 { 0 } else { most }
    }

    /// The expected time of the convolutions of the body that has most to do.
    pub fn expected_seconds(&self, program: &Program) -> Seconds {
        let of_body = |body: &Body| {
            let tasks = body.tasks.iter();
            let times = tasks.filter_map(|task| {
                let Work::Compute { algorithm, .. } = &task.work else {
                    return None;
                };
                self.expected(&body.kernel_shape(task)?, &algorithm.0)
            });
            Seconds(times.map(|time| time.0).sum())
        };
        let all = program.bodies.iter().map(of_body);
        all.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    }

    /// Whether a kernel is one of those that are tried.
    fn tries(&self, shape: &KernelShape<'_>) -> bool {
        self.candidates(shape).len() > 1
    }

    fn candidates(&self, shape: &KernelShape<'_>) -> Arc<Vec<Choice>> {
        if shape.cut_extents().is_none() {
            return Arc::default();
        }
        let signature = shape.signature();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.entry(signature).or_insert_with_key(|signature| {
            if self.menu.is_measured(signature) {
                return Arc::default();
            }
            Arc::new(self.promising(shape))
        });
        Arc::clone(found)
    }

    fn promising(&self, shape: &KernelShape<'_>) -> Vec<Choice> {
        let all = self.menu.implementations(shape).unwrap_or_default();
        let (mut modeled, mut others) = (Vec::new(), Vec::new());
        for choice in all {
            match self.menu.expected(shape, &choice.algorithm.0) {
                Some(seconds) => modeled.push((seconds.0, choice)),
                None => others.push(choice),
            }
        }
        modeled.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(fastest, _)) = modeled.first() else {
            return Vec::new();
        };
        let modeled = modeled.into_iter();
        let near = modeled.filter(|(seconds, _)| *seconds <= NEAR * fastest);
        let near = near.map(|(_, choice)| choice).take(MODELED_MAX);
        near.chain(others).collect()
    }

    /// The tasks of a body that are tried: by what they run, and their features.
    fn tried_tasks<'b>(
        &'b self,
        body: &'b Body,
    ) -> impl Iterator<Item = (usize, KernelKey, Features)> + 'b {
        let all = body.tasks.iter().enumerate();
        all.filter_map(|(id, task)| {
            let Work::Compute { algorithm, .. } = &task.work else {
                return None;
            };
            let shape = body.kernel_shape(task).filter(|shape| self.tries(shape))?;
            let key = KernelKey {
                signature: shape.signature(),
                algorithm: algorithm.0.clone(),
            };
            Some((id, key, Features::of(&shape)))
        })
    }

    /// What a kernel runs by in this turn, if it is tried. A kernel with fewer candidates than turns begins with the first again.
    fn tried(&self, shape: &KernelShape<'_>) -> Option<Choice> {
        let candidates = self.candidates(shape);
        (candidates.len() > 1).then(|| candidates[self.turn % candidates.len()].clone())
    }
}

impl Menu for TrialMenu<'_> {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let choice = self.menu.choose(shape)?;
        let packed_weights = if self.tries(shape) {
            0
        } else {
            choice.packed_weights
        };
        Ok(Choice {
            packed_weights,
            ..choice
        })
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        self.menu.implementations(shape)
    }

    fn expected(&self, shape: &KernelShape<'_>, method: &str) -> Option<Seconds> {
        let configuration = method.parse::<Configuration>().ok()?;
        match configuration {
            Configuration::Undivided { method } => self.menu.expected(shape, &method),
            Configuration::Divided { .. } => None,
        }
    }

    fn fastest_within(&self, shape: &KernelShape<'_>, limit: Bytes) -> Option<Choice> {
        let Some(tried) = self.tried(shape) else {
            return self.menu.fastest_within(shape, limit);
        };
        let usual = self.menu.choose(shape).ok()?;
        let is_usual = usual.algorithm == tried.algorithm;
        (!is_usual && tried.workspace <= limit).then_some(tried)
    }

    fn divide(&self, shapes: &[KernelShape<'_>], total: Bytes) -> Vec<Option<Choice>> {
        self.menu.divide(shapes, total)
    }

    fn fuses(&self) -> bool {
        self.menu.fuses()
    }
}

/// Which of the trials with these menus tell something: in their programs a convolution runs by an implementation that no earlier
/// trial runs it by, and not by the same in all of them.
pub fn telling(trials: &[(&TrialMenu<'_>, &Program)]) -> Vec<bool> {
    let keys = |(menu, program): &(&TrialMenu<'_>, &Program)| -> BTreeSet<KernelKey> {
        let bodies = program.bodies.iter();
        let tried = bodies.flat_map(|body| menu.tried_tasks(body));
        tried.map(|(_, key, _)| key).collect()
    };
    let all: Vec<BTreeSet<KernelKey>> = trials.iter().map(keys).collect();
    let mut implementations: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for key in all.iter().flatten() {
        let own = implementations.entry(&key.signature).or_default();
        own.insert(&key.algorithm);
    }
    let mut seen = BTreeSet::new();
    let tells = |keys: &BTreeSet<KernelKey>| {
        let several = |key: &&KernelKey| implementations[key.signature.as_str()].len() > 1;
        let new = keys.iter().filter(several);
        let new = new.filter(|key| seen.insert((*key).clone())).count();
        new > 0
    };
    all.iter().map(tells).collect()
}

/// What convolutions took in the steps of trials.
#[derive(Default)]
pub struct TrialTimes {
    kernels: BTreeMap<KernelKey, (Features, Vec<f64>)>,
}

impl TrialTimes {
    /// Adds what the tasks of a rank took, in the order of its body, under the menu of a turn.
    pub fn add(
        &mut self,
        menu: &TrialMenu<'_>,
        program: &Program,
        rank: Rank,
        seconds: &[Seconds],
    ) {
        for (task, key, features) in menu.tried_tasks(program.body(rank)) {
            if let Some(seconds) = seconds.get(task) {
                let times = self.kernels.entry(key);
                times
                    .or_insert_with(|| (features, Vec::new()))
                    .1
                    .push(seconds.0);
            }
        }
    }

    /// The medians, of kernels that ran by several implementations.
    pub fn finish(self) -> Measurements {
        let mut implementations: BTreeMap<String, usize> = BTreeMap::new();
        for key in self.kernels.keys() {
            *implementations.entry(key.signature.clone()).or_default() += 1;
        }
        let all = self.kernels.into_iter();
        let all = all.filter(|(key, _)| implementations[&key.signature] > 1);
        let mut measurements = Measurements::default();
        measurements.add(all.map(|(key, (features, times))| KernelTime {
            key,
            features,
            seconds: Seconds(median(&times)),
            workspace: None,
        }));
        measurements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalog;
    use crate::catalog::fixtures::{Fixed, NAMES, convolution};

    /// What a convolution runs by in each turn, by these expected times of the implementations beside the usual one, of 10 ms.
    fn tried(expected: [f64; 2], limit: u64, catalog: &Catalog) -> Vec<Option<String>> {
        let (kernel, buffers) = convolution();
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &buffers,
        };
        let turn = |turn| {
            let menu = CatalogMenu::new(Box::new(Fixed { expected }), catalog.clone());
            TrialMenu::new(menu, turn)
        };
        let names = (0..3).map(|at| {
            let menu = turn(at);
            let choice = menu.fastest_within(&shape, Bytes(limit));
            choice.map(|choice| choice.algorithm.0)
        });
        names.collect()
    }

    fn names(all: [Option<&str>; 3]) -> Vec<Option<String>> {
        all.map(|name| name.map(str::to_owned)).to_vec()
    }

    #[test]
    fn each_turn_runs_another_of_those_that_are_expected_to_be_nearly_the_fastest() {
        let none = Catalog::default();
        let [usual, small, large] = NAMES;
        assert_eq!(usual, "usual");
        // The most promising one first; the usual one is told by none.
        let all = names([Some(large), Some(small), None]);
        assert_eq!(tried([9e-3, 8e-3], u64::MAX, &none), all);
        // The usual one is too slow, and the third turn begins anew.
        let two = names([Some(small), Some(large), Some(small)]);
        assert_eq!(tried([4e-3, 5e-3], u64::MAX, &none), two);
        // What has no room leaves the usual one.
        let room = names([Some(small), None, Some(small)]);
        assert_eq!(tried([4e-3, 5e-3], 1 << 10, &none), room);
        // One that is far ahead needs no trial.
        assert_eq!(
            tried([4e-3, 40e-3], u64::MAX, &none),
            names([Some(small); 3])
        );
    }

    #[test]
    fn what_was_measured_is_not_tried() {
        let (kernel, buffers) = convolution();
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &buffers,
        };
        let measured = |times: &[(&str, f64)]| {
            let mut all = Measurements::default();
            all.add(times.iter().map(|(name, seconds)| KernelTime {
                key: KernelKey {
                    signature: shape.signature(),
                    algorithm: (*name).to_owned(),
                },
                features: Features::of(&shape),
                seconds: Seconds(*seconds),
                workspace: None,
            }));
            Catalog::of(&all)
        };
        let both = measured(&[("usual", 10e-3), ("small", 2e-3)]);
        let small = names([Some("small"); 3]);
        assert_eq!(tried([9e-3, 8e-3], u64::MAX, &both), small);
        // A single time has nothing to be compared with.
        let one = measured(&[("small", 2e-3)]);
        let all = names([Some("large"), Some("small"), None]);
        assert_eq!(tried([9e-3, 8e-3], u64::MAX, &one), all);
        let mut completed = one.clone();
        completed.complete(&both);
        assert_eq!(completed, both);
        completed.complete(&one);
        assert_eq!(completed, both);
        // A checkpoint's times replace others, and forget those of kernels that had none.
        let signatures = BTreeSet::from([shape.signature()]);
        completed.replace(&Catalog::default().of_signatures(&signatures));
        assert_eq!(tried([9e-3, 8e-3], u64::MAX, &completed), all);
    }
}
