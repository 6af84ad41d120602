//! Other settings of layers.

use super::{Choice, Search};
use crate::branches::blocks;
use crate::lay_out::{Remedy, layers};
use crate::strategy::{LayerDim, Recompute};
use crate::{Branches, LayerChoice, Strategy, StrategyError};
use partita_space::{Axis, AxisList};

/// Layers that are left out of a split by name; more of them would be hard to read.
const LEFT_OUT_MAX: usize = 6;

/// Parameters for which a remedy is added.
const SHARED_MAX: usize = 4;

/// Layers by the name of one or a pattern, and the dims that are left unsplit in turn until nothing refuses them.
struct LeftOut {
    layers: String,
    dims: Vec<Vec<LayerDim>>,
}

impl Search<'_> {
    /// Entries that leave layers out of a split, that of one and of all others that then refuse theirs.
    pub fn left_out(&self, error: &StrategyError) -> Option<Choice> {
        let mut all: Vec<LeftOut> = Vec::new();
        self.repeated(error, |_, error| {
            let refused = self.refused_split(error)?;
            match all.iter_mut().find(|one| one.layers == refused.layers) {
                Some(known) => drop(known.dims.remove(0)),
                None => all.push(refused),
            }
            let mut strategy = self.strategy.clone();
            for one in &all {
                strategy
                    .layers
                    .push(unsplit(&one.layers, one.dims.first()?));
            }
            (all.len() <= LEFT_OUT_MAX).then_some(strategy)
        })
    }

    /// The layers that refuse a split.
    fn refused_split(&self, error: &StrategyError) -> Option<LeftOut> {
        let (layers, dims) = match error {
            StrategyError::TooFine { layer, .. } => (layer.as_deref()?, None),
            StrategyError::Groups { layer, .. }
            | StrategyError::NormGroups { layer, .. }
            | StrategyError::Dim { layer, .. } => (layer, None),
            StrategyError::Heads { all, .. } => (all, None),
            StrategyError::AxisTwice {
                layer,
                first,
                second,
                ..
            } => (layer, Some([*second, *first])),
            _ => return None,
        };
        let by_name = |name: &str| LayerDim::ALL.into_iter().find(|dim| dim.name() == name);
        let graph = self.checks.graph;
        let has_weights = graph
            .find(layers)
            .is_some_and(|id| graph.node(id).op.has_weights());
        let dims: Vec<LayerDim> = match dims {
            Some(names) => names.into_iter().filter_map(by_name).collect(),
            None if has_weights => vec![LayerDim::F, LayerDim::C],
            None => vec![LayerDim::C],
        };
        let alone = dims.iter().map(|&dim| vec![dim]);
        Some(LeftOut {
            layers: layers.clone(),
            dims: alone.chain([dims.clone()]).collect(),
        })
    }

    /// The strategy under which layers split what they share alike; the smallest change first.
    pub fn shared(&self, error: &StrategyError) -> Option<Choice> {
        let graph = self.checks.graph;
        let alike = |remedy: Remedy| {
            let mut done: Vec<String> = Vec::new();
            self.repeated(error, |strategy, error| {
                let StrategyError::Shared(shared) = error else {
                    return None;
                };
                let is_new = !done.contains(&shared.parameter) && done.len() < SHARED_MAX;
                done.push(shared.parameter.clone());
                let words = remedy.words(graph, shared);
                is_new.then(|| format!("{strategy}{words}").parse().ok())?
            })
        };
        let plain = Strategy {
            schedule: crate::Schedule::default(),
            ..self.strategy.clone()
        };
        let data = Strategy::of([self.strategy.ranks(), 1, 1, 1, 1, 1, 1]);
        let mut all = Remedy::ALL.into_iter();
        all.find_map(alike).or_else(|| self.first_of([plain, data]))
    }

    /// With the samples of a layer on `data` alone.
    pub fn with_samples_on_data(&self, layer: &str) -> Strategy {
        let mut strategy = self.strategy.clone();
        let mut choice = unsplit(layer, &[LayerDim::N]);
        choice.dims[LayerDim::N as usize] = Some(AxisList::of([Axis::Data]));
        strategy.layers.push(choice);
        strategy
    }

    /// Entries of some kind that have no layer in common: the later one begins after the earlier one, or the earlier
    /// one ends before it, or is gone.
    pub fn apart(
        &self,
        error: &StrategyError,
        is_one: &dyn Fn(&LayerChoice) -> bool,
    ) -> Option<Choice> {
        self.repeated(error, |strategy, error| {
            let is_meant = matches!(
                error,
                StrategyError::TwoBlocks { .. } | StrategyError::TwoGroups { .. }
            );
            let [(_, first), (at, second)] = self.overlapping(strategy, is_one)?;
            let (start, end) = (*first.last()? + 1, *second.last()?);
            let mut strategy = strategy.clone();
            if start <= end {
                self.narrow(&mut strategy.layers[at], start, end);
            } else {
                strategy.layers.remove(at);
            }
            is_meant.then_some(strategy)
        })
    }

    /// One entry of some kind in place of all that have layers in common.
    pub fn joined(&self, is_one: &dyn Fn(&LayerChoice) -> bool) -> Option<Choice> {
        let mut strategy = self.strategy.clone();
        while let Some([(one, first), (at, second)]) = self.overlapping(&strategy, is_one) {
            let start = *first.first()?.min(second.first()?);
            let end = *first.last()?.max(second.last()?);
            self.narrow(&mut strategy.layers[one], start, end);
            strategy.layers.remove(at);
        }
        self.first_of([strategy])
    }

    /// The first two entries of some kind with a layer in common, and their layers.
    fn overlapping(
        &self,
        strategy: &Strategy,
        is_one: &dyn Fn(&LayerChoice) -> bool,
    ) -> Option<[(usize, Vec<usize>); 2]> {
        let mut known: Vec<(usize, Vec<usize>)> = Vec::new();
        for (at, choice) in strategy.layers.iter().enumerate() {
            if !is_one(choice) {
                continue;
            }
            let ids = layers(self.checks.graph, strategy, choice).ok()?;
            let meets = |(_, other): &&(usize, Vec<usize>)| ids.iter().any(|id| other.contains(id));
            if let Some(other) = known.iter().find(meets) {
                return Some([other.clone(), (at, ids)]);
            }
            known.push((at, ids));
        }
        None
    }

    /// Sets the layers of an entry.
    fn narrow(&self, choice: &mut LayerChoice, start: usize, end: usize) {
        let graph = self.checks.graph;
        choice.from = graph.layer_name(start).to_owned();
        choice.to = graph.layer_name(end).to_owned();
    }

    /// A halo group cut before each layer that reads across a periodic border.
    pub fn cut_groups(&self, error: &StrategyError) -> Option<Choice> {
        let graph = self.checks.graph;
        self.repeated(error, |strategy, error| {
            let StrategyError::PeriodicInGroup { layer, group, .. } = error else {
                return None;
            };
            let start = graph.layer_start(graph.find(layer)?.0);
            let ids = layers(graph, strategy, &strategy.layers[*group]).ok()?;
            let (first, last) = (*ids.first()?, *ids.last()?);
            if start <= first {
                return None;
            }
            let mut strategy = strategy.clone();
            let mut rest = strategy.layers[*group].clone();
            self.narrow(&mut strategy.layers[*group], first, start - 1);
            self.narrow(&mut rest, start, last);
            strategy.layers.insert(group + 1, rest);
            Some(strategy)
        })
    }

    /// Each layer in one block that is recomputed. Chunks are recomputed anyway.
    pub fn one_block(&self, error: &StrategyError) -> Vec<Option<Choice>> {
        let is_one =
            |choice: &LayerChoice| choice.recompute == Some(Recompute::On) || choice.is_chunked();
        let mut chunked = self.strategy.clone();
        let both = chunked.layers.iter_mut().filter(|one| one.is_chunked());
        both.for_each(|one| one.recompute = None);
        vec![self.first_of([chunked]), self.apart(error, &is_one)]
    }

    /// Blocks in chunks cut around each layer that cannot be computed so, and in as many chunks as there are positions.
    pub fn other_chunks(&self, error: &StrategyError) -> Option<Choice> {
        let graph = self.checks.graph;
        self.repeated(error, |strategy, error| {
            let (StrategyError::Chunks { layer, .. } | StrategyError::ManyChunks { layer, .. }) =
                error
            else {
                return None;
            };
            let id = graph.find(layer)?.0;
            let ids = |choice: &LayerChoice| layers(graph, strategy, choice).ok();
            let is_meant = |choice: &LayerChoice| {
                choice.is_chunked() && ids(choice).is_some_and(|ids| ids.contains(&id))
            };
            let at = strategy.layers.iter().rposition(is_meant)?;
            let mut strategy = strategy.clone();
            let choice = strategy.layers.remove(at);
            if let StrategyError::ManyChunks { most, .. } = error {
                let chunks = Some(*most).filter(|&chunks| chunks > 1);
                let other = LayerChoice { chunks, ..choice };
                if other.is_any_set() {
                    strategy.layers.insert(at, other);
                }
                return Some(strategy);
            }
            let ids = layers(graph, &strategy, &choice).ok()?;
            let (first, last) = (*ids.first()?, *ids.last()?);
            let start = graph.layer_start(id);
            let before = (first < start).then(|| (first, start - 1));
            let after = (id < last).then_some((id + 1, last));
            for (from, to) in [after, before].into_iter().flatten() {
                let mut rest = choice.clone();
                self.narrow(&mut rest, from, to);
                strategy.layers.insert(at, rest);
            }
            (ids.len() == last + 1 - first).then_some(strategy)
        })
    }

    /// Without the axes of a dim that a layer cannot split, or that split nothing.
    pub fn unsplit(&self, error: &StrategyError) -> Option<Choice> {
        self.repeated(error, |strategy, error| {
            let mut strategy = strategy.clone();
            let graph = self.checks.graph;
            match error {
                StrategyError::Dim { layer, dim, .. } => {
                    let id = graph.find(layer)?.0;
                    let dim = LayerDim::ALL.into_iter().find(|one| one.name() == *dim)? as usize;
                    for at in (0..strategy.layers.len()).rev() {
                        let choice = &strategy.layers[at];
                        let is_set = choice.dims[dim].is_some();
                        if is_set && layers(graph, &strategy, choice).ok()?.contains(&id) {
                            strategy.layers[at].dims[dim] = None;
                        }
                    }
                    strategy.layers.retain(LayerChoice::is_any_set);
                }
                StrategyError::Unsplit { layers, axis, .. } => {
                    let axis = Axis::from_name(axis)?;
                    let mut meant = strategy.layers.iter_mut();
                    let choice = meant.find(|choice| {
                        let mut lists = choice.dims.iter().flatten();
                        choice.layers() == *layers && lists.any(|list| list.has(axis))
                    })?;
                    for list in choice.dims.iter_mut().flatten() {
                        *list = AxisList::of(list.iter().filter(|&one| one != axis));
                    }
                }
                _ => return None,
            }
            Some(strategy)
        })
    }

    /// A range in the order of the model.
    pub fn forwards(&self, from: &str, to: &str) -> Option<Choice> {
        let mut strategy = self.strategy.clone();
        for choice in &mut strategy.layers {
            if choice.from == from && choice.to == to {
                (choice.from, choice.to) = (to.to_owned(), from.to_owned());
            }
        }
        self.first_of([strategy])
    }

    /// Other branches of the last entry that places some among these layers: after inner ones, in fewer groups, on an
    /// axis for them, of other layers, or none.
    pub fn other_branches(&self, layers: &str) -> Vec<Strategy> {
        let own = self.strategy;
        let is_meant =
            |choice: &LayerChoice| choice.branches.is_some() && choice.layers() == layers;
        let Some(at) = own.layers.iter().rposition(is_meant) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        let with = |change: &dyn Fn(&mut Strategy)| {
            let mut strategy = own.clone();
            change(&mut strategy);
            strategy
        };
        all.push(with(&|strategy| {
            let choice = strategy.layers.remove(at);
            strategy.layers.push(choice);
        }));
        let asked = match &own.layers[at].branches {
            Some(Branches::Groups(groups)) => *groups,
            Some(Branches::Sizes(sizes)) => sizes.iter().sum(),
            Some(Branches::Off) | None => 1,
        };
        let extent = own.extent(Axis::Branch);
        if extent == 1 {
            all.push(with(&|strategy| {
                strategy.extents[Axis::Branch.index()] = asked
            }));
        }
        let most = asked.min(extent);
        for groups in (2..=most).rev().take(8) {
            all.push(with(&|strategy| {
                strategy.layers[at].branches = Some(Branches::Groups(groups));
            }));
        }
        let graph = self.checks.graph;
        for block in blocks(graph) {
            let mut ids: Vec<usize> = block.into_iter().flatten().collect();
            ids.sort_unstable();
            if let [first, .., last] = ids[..] {
                all.push(with(&|strategy| {
                    self.narrow(&mut strategy.layers[at], first, last)
                }));
            }
        }
        all.push(with(&|strategy| {
            strategy.layers[at].branches = Some(Branches::Off);
        }));
        all
    }
}

/// An entry that leaves dims of layers unsplit.
fn unsplit(layers: &str, dims: &[LayerDim]) -> LayerChoice {
    let mut choice = LayerChoice {
        from: layers.to_owned(),
        to: layers.to_owned(),
        ..LayerChoice::default()
    };
    for &dim in dims {
        choice.dims[dim as usize] = Some(AxisList::NONE);
    }
    choice
}
