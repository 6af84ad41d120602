//! Validation of a strategy against a model and a mini-batch.

use crate::branches::blocks;
use crate::lay_out::{check_kind, lay_out, layers};
use crate::network::Network;
use crate::placement::{Placement, check_stage_count};
use crate::strategy::check_split;
use crate::{BatchNormStatistics, Strategy, StrategyError};
use partita_graph::{Graph, Node, Op};
use partita_program::ProgramKind;
use partita_space::{AXES, Axis, AxisSet};

impl Strategy {
    /// Checks it against a model and a mini-batch on which it is trained.
    ///
    /// Errors: sizes beyond [`partita_space::limits`], an axis that the model or a layer cannot use, more parts
    /// than the extent, a mini-batch smaller than the data axis, unknown layers, a batch norm over one value.
    pub fn check(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        self.check_splits(graph, batch)?;
        let placement = Placement::new(graph, self)?;
        let network = lay_out(graph, self, &placement, batch)?;
        self.check_local_statistics(graph, &network)?;
        check_kind(graph, self, ProgramKind::Train)?;
        self.check_norms(graph, batch)
    }

    /// Checks that local statistics of batch norms are those of the samples of a data coordinate, so that they
    /// do not depend on anything but its extent.
    ///
    /// Errors: samples that are split otherwise.
    pub(crate) fn check_local_statistics(
        &self,
        graph: &Graph,
        network: &Network,
    ) -> Result<(), StrategyError> {
        let fault = |split, layer| {
            Err(StrategyError::LocalStatistics {
                strategy: self.to_string(),
                split,
                layer,
            })
        };
        if self.batch_norm != BatchNormStatistics::Local {
            return Ok(());
        }
        for (number, stage) in self.stages.iter().enumerate() {
            let data = stage.extents[Axis::Data.index()];
            if data > 1 {
                let number = number + 1;
                return fault(
                    format!("stage {number} splits them by a `data` of its own"),
                    None,
                );
            }
        }
        if self.local_statistics().is_empty() {
            return Ok(());
        }
        for layer in &network.layers {
            let axes = layer.distribution.axes[0];
            let is_norm = matches!(layer.op(), Some(Op::BatchNorm { .. }))
                && !graph.keeps_statistics(&layer.parameters);
            if is_norm && axes.iter().next() != Some(Axis::Data) {
                let by = if axes.is_empty() {
                    "not split".to_owned()
                } else {
                    format!("split by `{axes}`")
                };
                let split = format!("the samples of `{}` are {by}", layer.name);
                return fault(split, Some(layer.name.clone()));
            }
        }
        Ok(())
    }

    /// Checks it against a model and a mini-batch, for a program of any kind.
    ///
    /// Errors: as [`Self::check`], except for batch norms over one value.
    pub fn check_layout(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        self.check_splits(graph, batch)?;
        let placement = Placement::new(graph, self)?;
        lay_out(graph, self, &placement, batch)?;
        Ok(())
    }

    /// Checks that batch norms take their statistics over more than one value in training: the variance of one
    /// value is 0. The values are those of a micro-batch on all ranks, or on those of a data coordinate where
    /// statistics are local.
    ///
    /// Errors: a batch norm over one value.
    pub fn check_norms(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        let micro = self.micro_batches(batch);
        let is_local = !self.local_statistics().is_empty();
        let parts = if is_local { self.extent(Axis::Data) } else { 1 };
        // The last part of the last micro-batch is the smallest; those without samples take no statistics.
        let samples = (batch / micro / parts).max(1);
        let is_single = |node: &&Node| {
            let positions: usize = node.shape.extent.iter().product();
            matches!(node.op, Op::BatchNorm { .. })
                && !graph.keeps_statistics(&node.parameters)
                && positions * samples < 2
        };
        let Some(node) = graph.nodes.iter().find(is_single) else {
            return Ok(());
        };
        Err(StrategyError::OneValue {
            strategy: self.to_string(),
            layer: node.name.clone(),
            micro,
            parts,
            batch,
        })
    }

    /// The checks that lowering does not make itself.
    ///
    /// Errors: as [`Self::check`].
    pub fn check_splits(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        self.check_axes(graph, batch)?;
        check_stage_count(graph, self)?;
        self.check_schedule()?;
        if !self.is_micro_fitting(batch) {
            return Err(StrategyError::Micro {
                strategy: self.to_string(),
                micro: self.micro,
                batch,
                data: self.data_parts(),
            });
        }
        self.check_named_axes(graph, &Placement::new(graph, self)?)
    }

    /// Checks that every axis named for layers has an extent above 1 for one of them.
    fn check_named_axes(&self, graph: &Graph, placement: &Placement) -> Result<(), StrategyError> {
        for choice in &self.layers {
            let ids = layers(graph, self, choice)?;
            let rank_sets = ids
                .iter()
                .map(|&id| &placement.rank_sets[placement.rank_set_of[id]]);
            let meshes = rank_sets.map(|rank_set| rank_set.mesh.split_axes());
            let split = meshes.fold(AxisSet::NONE, AxisSet::union);
            check_split(self, choice, split)?;
        }
        Ok(())
    }

    /// Checks the axes alone.
    pub(crate) fn check_axes(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        self.check_sizes(graph, batch)?;
        self.check_stages()?;
        if self.stages.is_empty() {
            self.check_extents(graph, batch, &self.extents)
        } else {
            self.stages.iter().try_for_each(|stage| {
                let mut extents = stage.extents;
                extents[Axis::Data.index()] *= self.extent(Axis::Data);
                self.check_extents(graph, batch, &extents)
            })
        }
    }

    /// Checks one mesh.
    fn check_extents(
        &self,
        graph: &Graph,
        batch: usize,
        extents: &[usize; 7],
    ) -> Result<(), StrategyError> {
        let unused = &[Axis::Depth, Axis::Height, Axis::Width][..3 - graph.spatial_rank];
        let has_branches = !blocks(graph).is_empty();
        let is_possible =
            |axis: &Axis| !unused.contains(axis) && (*axis != Axis::Branch || has_branches);
        for axis in AXES {
            if extents[axis.index()] > 1 && !is_possible(&axis) && !self.is_named(axis) {
                let possible = AXES.into_iter().filter(is_possible).map(Axis::name);
                return Err(StrategyError::Axis {
                    strategy: self.to_string(),
                    axis,
                    reason: match axis {
                        Axis::Branch => {
                            format!("{} has no branches between a fork and a join", graph.name)
                        }
                        _ => format!("no layer of {} can be split by {}", graph.name, axis.name()),
                    },
                    possible: possible.collect::<Vec<_>>().join(", "),
                });
            }
        }
        let input = graph.nodes[0].shape.extent;
        let splits = [
            (Axis::Data, "the mini-batch", batch),
            (Axis::Depth, "the depth of the input", input[0]),
            (Axis::Height, "the height of the input", input[1]),
            (Axis::Width, "the width of the input", input[2]),
        ];
        for (axis, what, extent) in splits {
            let parts = extents[axis.index()];
            if parts > extent && !unused.contains(&axis) {
                return Err(StrategyError::TooFine {
                    strategy: self.to_string(),
                    what: what.to_owned(),
                    extent,
                    parts,
                    layer: None,
                });
            }
        }
        Ok(())
    }

    /// Whether a layer names an axis.
    fn is_named(&self, axis: Axis) -> bool {
        let mut lists = self.layers.iter().flat_map(|choice| choice.dims);
        lists.any(|list| list.is_some_and(|list| list.has(axis)))
    }
}
