//! Parameters shared by several layers, which must split them alike on the same ranks.
//!
//! Example: under `filter=2,channel=2` the first of two convolutions splits channels by `channel` and filters by
//! `filter`. The second one, which shares its weights, does so as well, even if swapped axes would move less.

use super::{Layout, rows_and_columns};
use crate::strategy::LayerDim;
use crate::{SharedParameter, Sharer, StrategyError};
use partita_graph::{Graph, NodeId, ParameterId, ParameterRole};
use partita_program::Distribution;
use partita_space::AxisList;

impl Layout<'_> {
    /// Whether a layer must swap the axes of filters and channels to split its weights as another layer on the
    /// same ranks does; none where there is no such layer, or neither assignment agrees.
    pub(super) fn swaps_as_shared(
        &self,
        id: NodeId,
        filters: AxisList,
        channels: AxisList,
    ) -> Option<bool> {
        let node = self.graph.node(id);
        let is_weight =
            |one: &&ParameterId| self.graph.parameter(**one).role == ParameterRole::Weight;
        let weight = node.parameters.iter().find(is_weight)?;
        let [own, mirrored] = self.placement.rank_sets[self.rank_set].submeshes;
        let has_replicas = self.strategy.schedule.replicas() > 1;
        let mut distributions = self.parameters[weight.0]
            .iter()
            .map(|(distribution, _)| distribution);
        let known = distributions
            .find(|known| known.submesh == own || has_replicas && known.submesh == mirrored)?;
        let is_known = |channels, filters| {
            let [rows, columns] = rows_and_columns(&node.op, channels, filters);
            known.axes[3] == rows && known.axes[4] == columns
        };
        match (is_known(channels, filters), is_known(filters, channels)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    /// The error of two layers that split a parameter differently.
    pub(super) fn shared(
        &self,
        parameter: ParameterId,
        known: (Distribution, NodeId),
        other: (Distribution, NodeId),
    ) -> StrategyError {
        StrategyError::Shared(Box::new(SharedParameter {
            strategy: self.strategy.to_string(),
            layers: [known, other]
                .map(|(distribution, id)| self.sharer(parameter, &distribution, id)),
            parameter: self.graph.parameter(parameter).name.clone(),
        }))
    }

    fn sharer(&self, parameter: ParameterId, distribution: &Distribution, id: NodeId) -> Sharer {
        let (node, [rows, columns]) = (
            self.graph.node(id),
            [distribution.axes[3], distribution.axes[4]],
        );
        let is_weight = self.graph.parameter(parameter).role == ParameterRole::Weight;
        // Rows and columns change places where channels and filters do.
        let [channels, filters] = rows_and_columns(&node.op, rows, columns);
        let split = match (node.op.has_weights(), is_weight) {
            (true, true) => vec![(LayerDim::C, channels), (LayerDim::F, filters)],
            (true, false) => vec![(LayerDim::F, columns)],
            (false, _) => vec![(LayerDim::C, columns)],
        };
        let choices = self.strategy.layers.iter().rev();
        let specifies = |choice: &&crate::LayerChoice| {
            let is_specified =
                |(dim, _): &(LayerDim, AxisList)| choice.dims[*dim as usize].is_some();
            let ids = super::layers(self.graph, self.strategy, choice).unwrap_or_default();
            split.iter().any(is_specified) && ids.contains(&id.0)
        };
        Sharer {
            name: node.name.clone(),
            origin: match choices.into_iter().find(specifies) {
                Some(choice) => format!("`{choice}`"),
                None => "by default".to_owned(),
            },
            split: words(&split),
        }
    }
}

/// Axes of dims in the text form of a strategy.
fn words(split: &[(LayerDim, AxisList)]) -> String {
    let word = |(dim, axes): &(LayerDim, AxisList)| {
        if axes.is_empty() {
            format!("{}=-", dim.name())
        } else {
            format!("{}={axes}", dim.name())
        }
    };
    split.iter().map(word).collect::<Vec<_>>().join(",")
}

/// Changes after which layers split a parameter alike, the smallest first.
#[derive(Clone, Copy)]
pub(crate) enum Remedy {
    /// The second layer as the first one.
    SecondAsFirst,
    /// The first layer as the second one.
    FirstAsSecond,
    /// All that share the parameter as the first one.
    AllAsFirst,
    /// All that share the parameter as the second one.
    AllAsSecond,
    /// None splits it.
    Whole,
}

impl Remedy {
    pub const ALL: [Self; 5] = [
        Self::SecondAsFirst,
        Self::FirstAsSecond,
        Self::AllAsFirst,
        Self::AllAsSecond,
        Self::Whole,
    ];

    /// The entries of the strategy that change it so.
    pub fn words(self, graph: &Graph, shared: &SharedParameter) -> String {
        let [first, second] = &shared.layers;
        let of = |layer: &str, split: &str| format!("; {layer}: {split}");
        let of_all = |split: &str| -> String {
            let sharing = graph.nodes.iter().filter(|node| {
                let mut ids = node.parameters.iter();
                ids.any(|&id| graph.parameter(id).name == shared.parameter)
            });
            sharing.map(|node| of(&node.name, split)).collect()
        };
        match self {
            Self::SecondAsFirst => of(&second.name, &first.split),
            Self::FirstAsSecond => of(&first.name, &second.split),
            Self::AllAsFirst => of_all(&first.split),
            Self::AllAsSecond => of_all(&second.split),
            Self::Whole => {
                let dims = first
                    .split
                    .split(',')
                    .filter_map(|word| word.split_once('='));
                let words: Vec<String> = dims.map(|(dim, _)| format!("{dim}=-")).collect();
                of_all(&words.join(","))
            }
        }
    }
}
