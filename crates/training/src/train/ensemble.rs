//! Variants of samples whose outputs are averaged: under several weights of one network, and mirrored.

use super::checkpoint::Off;
use super::error::ensemble::EnsembleError;
use super::error::{Mismatch, TrainError};
use super::preparation::DIMS;
use crate::weights::LoadedWeights;
use partita_data::{Dataset, TargetRecord, same_names};
use partita_formats::DataError;
use partita_graph::Graph;
use partita_input::{Sampling, Variants, Waker};
use partita_program::{Buffer, Load, TaskId, When};
use partita_run::{Inputs, Memory, RunError, Source};
use partita_session::{Boundary, Failed, Next, Repeat, StepHook, ValuesError};
use partita_site::launch::{Agreement, MakeStepHook};
use partita_space::{Rank, Seconds};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The variants of samples that are asked for.
///
/// Errors: dims that the model or its samples lack.
pub fn variants(
    graph: &Graph,
    sampling: &Sampling,
    (mirror, weights): ([bool; 3], usize),
) -> Result<Variants, Mismatch> {
    let [_, extent @ ..] = sampling.shape();
    let has = |dim: usize| dim >= 3 - graph.spatial_rank && extent[dim] > 1;
    let lacking = (0..3).find(|&dim| mirror[dim] && !has(dim));
    if let Some(dim) = lacking {
        let possible = (0..3).filter(|&dim| has(dim)).map(|dim| DIMS[dim]);
        return Err(EnsembleError::NoDim {
            model: graph.name.clone(),
            asked: DIMS[dim],
            possible: possible.collect(),
        }
        .into());
    }
    Ok(Variants::new(mirror, weights))
}

/// Checks that outputs of different weights stand for the same, and that all read samples in one order.
///
/// Errors: the first weights that keep other channels, features, classes or targets than the first ones, or that read
/// channels or features in another order.
pub fn check_alike(weights: &[LoadedWeights], dataset: &Dataset) -> Result<(), TrainError> {
    let Some((first, others)) = weights.split_first() else {
        return Ok(());
    };
    let read_first = InputOrder::of(first, dataset);
    for other in others {
        let (own, all) = (other.record(), first.record());
        let lists = [
            ("channels", &own.channels, &all.channels),
            ("features", &own.features, &all.features),
        ];
        for (what, own, all) in lists {
            if !own.is_empty() && !all.is_empty() && own != all {
                let sides = [(other, own.join(", ")), (first, all.join(", "))];
                return Err(unlike(what, sides).into());
            }
        }
        if let (Some(own), Some(all)) = (&own.targets, &all.targets)
            && are_other(own, all)
        {
            let what = if own.are_classes {
                "classes"
            } else {
                "targets"
            };
            let sides = [(other, text(own)), (first, text(all))];
            return Err(unlike(what, sides).into());
        }
        // Names that do not match the dataset are told where it is read.
        if let (Ok(first_order), Ok(order)) = (&read_first, InputOrder::of(other, dataset)) {
            order.check(other, (first_order, first))?;
        }
    }
    Ok(())
}

/// Whether outputs stand for something else. Names of classes that were made up say nothing.
fn are_other(own: &TargetRecord, all: &TargetRecord) -> bool {
    let is_unnamed = own.names.is_empty() || all.names.is_empty();
    own != all && !(own.are_classes && all.are_classes && is_unnamed)
}

/// Names of targets, with their ranges and units.
fn text(record: &TargetRecord) -> String {
    let parts = (0..record.names.len()).map(|at| {
        let unit = record.unit(at).filter(|unit| !unit.is_empty());
        let unit = unit.map_or(String::new(), |unit| format!(" {unit}"));
        let range = record.ranges.get(at).copied().flatten();
        let range = range.map_or(unit.clone(), |[low, high]| {
            format!(" {low} to {high}{unit}")
        });
        format!("{}{range}", record.names[at])
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        "without names".to_owned()
    } else {
        parts.join(", ")
    }
}

/// The channels and features of a dataset, as weights read them: by name, or in the order of the dataset.
struct InputOrder([Vec<String>; 2]);

impl InputOrder {
    fn of(weights: &LoadedWeights, dataset: &Dataset) -> Result<Self, DataError> {
        let record = weights.record();
        let (dataset, _) = dataset.clone().in_channel_order(&record.channels)?;
        let (dataset, _) = dataset.in_feature_order(&record.features)?;
        Ok(Self([dataset.channels(), dataset.features().to_vec()]))
    }

    fn check(
        &self,
        own: &LoadedWeights,
        (all, first): (&Self, &LoadedWeights),
    ) -> Result<(), Mismatch> {
        let lists = ["channels", "features"].into_iter().enumerate();
        for (at, what) in lists {
            if !same_names(&self.0[at], &all.0[at]) {
                let told = |weights: &LoadedWeights, order: &Self| {
                    let record = weights.record();
                    let named = [&record.channels, &record.features][at];
                    let names = order.0[at].join(", ");
                    if named.is_empty() {
                        format!("not named, so read in the order of the dataset, {names}")
                    } else {
                        names
                    }
                };
                return Err(unlike(
                    what,
                    [(own, told(own, self)), (first, told(first, all))],
                ));
            }
        }
        Ok(())
    }
}

/// Lines on weights of other models than the first ones. Models of one shape may compute something else.
pub fn other_models(weights: &[LoadedWeights]) -> Vec<String> {
    let Some((first, others)) = weights.split_first() else {
        return Vec::new();
    };
    let model = |one: &LoadedWeights| one.model().map(str::to_owned);
    let others = others.iter().filter_map(|one| {
        let (own, all) = (model(one)?, model(first)?);
        let (own_path, path) = (one.path().display(), first.path().display());
        (own != all).then(|| {
            format!("{own_path} was trained as model `{own}`, and {path} as `{all}`; both are run as the model of the run file")
        })
    });
    others.collect()
}

fn unlike(
    what: &'static str,
    [(other, own), (first, expected)]: [(&LoadedWeights, String); 2],
) -> Mismatch {
    let path = |weights: &LoadedWeights| weights.path().to_owned();
    let error = EnsembleError::Unlike {
        file: path(other),
        first: path(first),
        what,
        own,
        expected,
    };
    error.into()
}

/// Names of the dims that are reversed.
pub fn mirrored(mirror: [bool; 3]) -> Vec<&'static str> {
    (0..3)
        .filter(|&dim| mirror[dim])
        .map(|dim| DIMS[dim])
        .collect()
}

/// Paths of weights, as they are told.
pub fn paths_text(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(",")
}

/// The steps after which other weights are read, with the number of these: `parts` of the samples are seen by some weights,
/// in steps of `batch`.
pub fn switches(parts: &[(Range<usize>, usize)], batch: usize) -> BTreeMap<u64, usize> {
    let mut steps = 0;
    let mut all = BTreeMap::new();
    for pair in parts.windows(2) {
        let [(samples, weights), (_, next)] = pair else {
            continue;
        };
        steps += samples.len().div_ceil(batch) as u64;
        if next != weights {
            all.insert(steps, *next);
        }
    }
    all
}

/// Values of a range of elements of a persistent buffer under the weights of this number.
pub type ValuesOf<'v> =
    dyn Fn(usize, &Buffer, Range<usize>) -> Result<Option<Vec<f64>>, ValuesError> + Sync + 'v;

/// Makes the hooks that replace the weights of ranks between steps.
pub struct WeightSwitches<'s> {
    /// See [`switches`].
    pub after: &'s BTreeMap<u64, usize>,
    /// The weights.
    pub values: &'s ValuesOf<'s>,
}

struct Switching<'s> {
    switches: &'s WeightSwitches<'s>,
    steps: u64,
    inner: Box<dyn StepHook + 's>,
}

impl MakeStepHook for WeightSwitches<'_> {
    fn hook<'a>(
        &'a self,
        rank: Rank,
        agreement: Box<dyn Agreement + 'a>,
    ) -> Result<Box<dyn StepHook + 'a>, RunError> {
        Ok(Box::new(Switching {
            switches: self,
            steps: 0,
            inner: Off.hook(rank, agreement)?,
        }))
    }
}

impl StepHook for Switching<'_> {
    fn after_step(&mut self, boundary: &mut Boundary<'_, '_>) -> Result<Next, RunError> {
        self.steps += 1;
        if let Some(&weights) = self.switches.after.get(&self.steps) {
            let values = self.switches.values;
            boundary.set_values(&|buffer, elements| values(weights, buffer, elements))?;
        }
        self.inner.after_step(boundary)
    }

    fn repeat_from(&mut self, failed: &Failed) -> Result<Repeat<'_>, RunError> {
        self.inner.repeat_from(failed)
    }
}

/// The source of a rank whose samples are prepared for each of the weights with statistics of its own.
pub struct WeightSources {
    sources: Vec<Box<dyn Source>>,
    /// Samples of all splits, and variants of each under the same weights.
    samples: usize,
    flips: usize,
}

impl WeightSources {
    /// Of as many sources as there are different weights; `make` makes that of a number, which calls `wake` as all do.
    ///
    /// Errors: those of `make`.
    pub fn new(
        sampling: &Sampling,
        wake: Option<Waker>,
        make: impl Fn(usize, Option<Waker>) -> Result<Box<dyn Source>, RunError>,
    ) -> Result<Self, RunError> {
        let variants = sampling.variants();
        let shared = wake.map(|wake| Arc::new(Mutex::new(wake)));
        let sources = (0..variants.weights()).map(|weights| {
            let wake = shared.clone().map(|shared| {
                Box::new(move || shared.lock().unwrap_or_else(PoisonError::into_inner)()) as Waker
            });
            make(weights, wake)
        });
        Ok(Self {
            sources: sources.collect::<Result<_, _>>()?,
            samples: sampling.all_samples(),
            flips: variants.count() / variants.weights(),
        })
    }
}

impl Source for WeightSources {
    fn start(&mut self, task: TaskId, load: &Load, inputs: &Inputs) -> Result<(), RunError> {
        let samples = match load.when {
            When::Now => &inputs.samples,
            When::Next => &inputs.next_samples,
        };
        // No step mixes samples of different weights.
        let weights = samples
            .first()
            .map_or(0, |&sample| sample / self.samples / self.flips);
        self.sources[weights].start(task, load, inputs)
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        let mut sources = self.sources.iter_mut();
        sources.try_for_each(|source| source.poll(memory, done))
    }

    fn waited(&mut self, epoch: u64, time: Seconds) {
        self.sources[0].waited(epoch, time);
    }

    fn take_tally(&mut self) -> u64 {
        self.sources
            .iter_mut()
            .map(|source| source.take_tally())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_switched_between_parts_of_others() {
        let parts = [
            (0..5, 0),
            (5..10, 0),
            (10..15, 1),
            (15..20, 1),
            (20..22, 0),
            (22..24, 1),
        ];
        let found = switches(&parts, 2);
        let expected = [(6, 1), (12, 0), (13, 1)];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
        assert!(switches(&parts[..1], 2).is_empty());
    }
}
