//! The nearest valid choices to a refused strategy: changes of it that the same checks accept.

mod entries;
mod numbers;
mod stages;
mod text;

use crate::{Halo, LayerChoice, Strategy, StrategyError};
use partita_graph::Graph;
use partita_space::Axis;
use text::text_of;

/// Most strategies that are tried for one choice.
const TRIES: usize = 64;

/// Choices that are named at most.
const CHOICES_MAX: usize = 2;

/// What a command asks of its strategy.
pub struct StrategyChecks<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Ranks that are asked for.
    pub ranks: usize,
    /// Samples of the mini-batch that is asked for.
    pub batch: usize,
    /// Checks a strategy with a mini-batch, on as many ranks as it is for.
    pub check: &'a dyn Fn(&Strategy, usize) -> Result<(), StrategyError>,
    /// Whether a strategy and a mini-batch that pass may be suggested.
    pub suits: &'a dyn Fn(&Strategy, usize) -> bool,
}

/// A strategy with a mini-batch.
#[derive(Clone, PartialEq)]
struct Choice {
    strategy: Strategy,
    batch: usize,
}

impl StrategyChecks<'_> {
    /// Checks a strategy.
    ///
    /// Errors: why it is refused, with the nearest choices that are accepted, or that there are none.
    pub fn check(&self, strategy: &Strategy) -> Result<(), StrategyError> {
        let error = match (self.check)(strategy, self.batch) {
            Ok(()) if strategy.ranks() == self.ranks => return Ok(()),
            Ok(()) => StrategyError::Ranks {
                strategy: strategy.to_string(),
                product: strategy.ranks(),
                ranks: self.ranks,
            },
            // Its nearest name is all that is known.
            Err(error @ StrategyError::UnknownLayer { .. }) => return Err(error),
            Err(error) => error,
        };
        let search = Search {
            checks: self,
            strategy,
        };
        let choices = match error {
            StrategyError::Ranks { .. } => search.other_ranks(),
            _ => search.others(&error),
        };
        Err(StrategyError::Nearest {
            error: Box::new(error),
            choices,
        })
    }
}

/// The search for choices near a refused strategy.
struct Search<'a> {
    checks: &'a StrategyChecks<'a>,
    strategy: &'a Strategy,
}

impl Search<'_> {
    /// The strategy as it will be read, if the checks accept it.
    fn accepted(&self, strategy: &Strategy, batch: usize) -> Result<Choice, StrategyError> {
        let strategy: Strategy = strategy.to_string().parse()?;
        (self.checks.check)(&strategy, batch)?;
        Ok(Choice { strategy, batch })
    }

    /// The first of some strategies that is accepted.
    fn first(&self, all: impl IntoIterator<Item = (Strategy, usize)>) -> Option<Choice> {
        let own = (self.strategy, self.checks.batch);
        let others = all
            .into_iter()
            .filter(|(strategy, batch)| (strategy, *batch) != own);
        let mut accepted = others
            .take(TRIES)
            .filter_map(|(strategy, batch)| self.accepted(&strategy, batch).ok());
        accepted.find(|one| (self.checks.suits)(&one.strategy, one.batch))
    }

    /// The same with the mini-batch that is asked for.
    fn first_of(&self, all: impl IntoIterator<Item = Strategy>) -> Option<Choice> {
        let batch = self.checks.batch;
        self.first(all.into_iter().map(|strategy| (strategy, batch)))
    }

    /// The strategy after a change for its error, and for each that comes then.
    fn repeated(
        &self,
        error: &StrategyError,
        mut change: impl FnMut(&Strategy, &StrategyError) -> Option<Strategy>,
    ) -> Option<Choice> {
        let (mut strategy, mut error) = (self.strategy.clone(), error.clone());
        for _ in 0..TRIES {
            strategy = change(&strategy, &error)?;
            error = match self.accepted(&strategy, self.checks.batch) {
                Ok(one) => return (self.checks.suits)(&one.strategy, one.batch).then_some(one),
                Err(error) => error,
            };
        }
        None
    }

    /// Other ranks, or a strategy for those that are asked for.
    fn other_ranks(&self) -> Option<String> {
        let (product, ranks) = (self.strategy.ranks(), self.checks.ranks);
        let own = (self.checks.suits)(self.strategy, self.checks.batch)
            .then(|| format!("ranks = {product}"));
        let data = self.with_ranks(self.strategy);
        let plain = Strategy {
            layers: Vec::new(),
            stages: Vec::new(),
            ..self.strategy.with_extents([ranks, 1, 1, 1, 1, 1, 1])
        };
        let fitted = self.first_of(data.into_iter().chain([plain]));
        let fitted = fitted.map(|one| format!("`{}` for {ranks}", one.strategy));
        let all: Vec<String> = own.into_iter().chain(fitted).collect();
        (!all.is_empty()).then(|| all.join(", or "))
    }

    /// With the ranks that are asked for, by more or fewer parts of the mini-batch.
    fn with_ranks(&self, strategy: &Strategy) -> Option<Strategy> {
        let mut fitted = strategy.clone();
        let data = strategy.extent(Axis::Data);
        let others = strategy.ranks() / data;
        let ranks = self.checks.ranks;
        fitted.extents[Axis::Data.index()] = ranks / others;
        (ranks.is_multiple_of(others) && fitted != *strategy).then_some(fitted)
    }

    /// The choices nearest to what is refused.
    fn others(&self, error: &StrategyError) -> Option<String> {
        let mut choices: Vec<String> = Vec::new();
        for choice in self.choices(error).into_iter().flatten() {
            let text = text_of(self, &choice);
            if choices.len() < CHOICES_MAX && !choices.contains(&text) {
                choices.push(text);
            }
        }
        (!choices.is_empty()).then(|| choices.join(", or "))
    }

    /// The nearest first.
    fn choices(&self, error: &StrategyError) -> Vec<Option<Choice>> {
        match error {
            StrategyError::LargeLayer { nearest, .. } => vec![self.batches(1..=*nearest)],
            StrategyError::Passes { .. }
            | StrategyError::LayerPasses { .. }
            | StrategyError::Micro { .. }
            | StrategyError::Scheduled { .. } => vec![self.micro_batches()],
            StrategyError::OneValue { .. } => vec![
                self.fewer_micro_batches(),
                self.synchronized(),
                self.batches(self.checks.batch + 1..=usize::MAX),
            ],
            StrategyError::LocalStatistics { layer, .. } => vec![
                match layer {
                    Some(layer) => self.first_of([self.with_samples_on_data(layer)]),
                    None => self.first_of([self.with_data_outside()]),
                },
                self.synchronized(),
            ],
            StrategyError::TooFine { extent, parts, .. } => {
                vec![self.fewer_parts(*parts, *extent), self.left_out(error)]
            }
            StrategyError::Groups { groups, parts, .. }
            | StrategyError::NormGroups { groups, parts, .. } => {
                vec![self.fewer_parts(*parts, *groups), self.left_out(error)]
            }
            StrategyError::Heads { heads, parts, .. } => {
                vec![self.fewer_parts(*parts, *heads), self.left_out(error)]
            }
            StrategyError::AxisTwice { .. } => vec![self.left_out(error)],
            StrategyError::Axis { axis, .. } => vec![self.fewer_parts_of(*axis, 1)],
            StrategyError::Shared(_) => vec![self.shared(error)],
            StrategyError::TooManyStages { layers, .. } => {
                vec![self.first_of(self.fewer_stages(*layers))]
            }
            StrategyError::StageLayers { .. } => vec![self.first_of(self.other_stages())],
            StrategyError::StageCount { .. } | StrategyError::ReplicasMeet { .. } => {
                vec![self.other_schedule()]
            }
            StrategyError::NoBranches { layers, .. } => {
                vec![self.first_of(self.other_branches(layers))]
            }
            StrategyError::TwoBlocks { .. } => self.one_block(error),
            StrategyError::Chunks { .. } | StrategyError::ManyChunks { .. } => {
                vec![self.other_chunks(error)]
            }
            StrategyError::TwoGroups { .. } => {
                let is_one = |choice: &LayerChoice| choice.halo == Some(Halo::Grouped);
                vec![self.joined(&is_one), self.apart(error, &is_one)]
            }
            StrategyError::PeriodicInGroup { .. } => vec![self.cut_groups(error)],
            StrategyError::Dim { .. } | StrategyError::Unsplit { .. } => {
                vec![self.unsplit(error)]
            }
            StrategyError::Backwards { from, to, .. } => vec![self.forwards(from, to)],
            _ => Vec::new(),
        }
    }
}
