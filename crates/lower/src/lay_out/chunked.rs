//! Blocks of layers that are computed in chunks.
//!
//! A block is a run of layers in the order of the model, all with one split: a redistribution inside it would need all
//! of a tensor. Whoever reads one of its tensors from outside reads a copy, which is whole.

use super::Layout;
use super::check::kind;
use super::choices::layers;
use crate::network::{Chunks, Step};
use crate::{LayerChoice, Strategy, StrategyError};
use partita_graph::{Graph, Node, NodeId, Op};
use partita_program::ProgramKind;

/// Most chunks of a block, each of which is a part of the program.
const CHUNKS_MAX: usize = 256;

/// The block in chunks of each layer, if it is in one.
pub(super) fn chunks_of(
    graph: &Graph,
    strategy: &Strategy,
) -> Result<Vec<Option<Chunks>>, StrategyError> {
    // The entry of each layer, and the number of chunks.
    let mut all: Vec<Option<(usize, usize)>> = vec![None; graph.nodes.len()];
    for (entry, choice) in strategy.layers.iter().enumerate() {
        let Some(count) = choice.chunks else { continue };
        let ids = layers(graph, strategy, choice)?;
        let is_read = |id: usize| matches!(graph.nodes[id].op, Op::Input | Op::Features);
        if let Some(&id) = ids.first()
            && ids.iter().all(|&id| is_read(id))
        {
            return Err(refusal(
                strategy,
                &graph.nodes[id],
                "as it is read from files",
            ));
        }
        for id in ids {
            if count > 1 && all[id].is_some() {
                return Err(StrategyError::TwoBlocks {
                    strategy: strategy.to_string(),
                    layer: graph.layer_name(id).to_owned(),
                });
            }
            all[id] = (count > 1 && !is_read(id)).then_some((entry, count));
        }
    }
    let mut chunks: Vec<Option<Chunks>> = vec![None; graph.nodes.len()];
    let mut block = 0;
    let mut start = 0;
    for run in all.chunk_by(|one, other| one == other) {
        let ids = start..start + run.len();
        start = ids.end;
        let Some((_, count)) = run[0] else { continue };
        for id in ids.clone() {
            if let Some(reason) = refused(graph, id) {
                return Err(refusal(strategy, &graph.nodes[id], reason));
            }
        }
        let last = graph.node(NodeId(ids.end - 1));
        let spatial = (0..3).find(|&dim| last.shape.extent[dim] > 1);
        let of_block = Chunks {
            block,
            count,
            dim: 1 + spatial.unwrap_or(0),
        };
        chunks[ids].fill(Some(of_block));
        block += 1;
    }
    Ok(chunks)
}

/// Makes each block in chunks a halo group, as no rank exchanges anything inside.
///
/// Errors: a layer that is in another block or group, too.
pub(super) fn join(
    graph: &Graph,
    strategy: &Strategy,
    chunks: &[Option<Chunks>],
    (blocks, groups): (&[Option<usize>], &mut [Option<usize>]),
) -> Result<(), StrategyError> {
    for (id, chunks) in chunks.iter().enumerate() {
        let Some(chunks) = chunks else { continue };
        if blocks[id].is_some() {
            return Err(StrategyError::TwoBlocks {
                strategy: strategy.to_string(),
                layer: graph.layer_name(id).to_owned(),
            });
        }
        groups[id] = Some(strategy.layers.len() + chunks.block);
    }
    Ok(())
}

/// Whether a layer can be part of a block that is computed in chunks in training, as far as that does not depend on how it
/// is split.
pub fn can_be_chunked(graph: &Graph, id: usize) -> bool {
    refused(graph, id).is_none() && !takes_statistics(graph, &graph.nodes[id])
}

impl Strategy {
    /// By layer of a model, in how many chunks it is computed; none where it is computed whole.
    ///
    /// Errors: unknown layers, a layer that cannot be computed in chunks.
    pub fn chunks_of_layers(&self, graph: &Graph) -> Result<Vec<Option<usize>>, StrategyError> {
        let all = chunks_of(graph, self)?.into_iter();
        Ok(all.map(|chunks| Some(chunks?.count)).collect())
    }
}

/// Why a layer cannot be computed in chunks.
fn refused(graph: &Graph, id: usize) -> Option<&'static str> {
    let node = &graph.nodes[id];
    let shape = |input: &NodeId| graph.node(*input).shape.extent;
    match &node.op {
        Op::Convolution(convolution) if convolution.periodic => {
            Some("as its padding is periodic, and the other border is in another chunk")
        }
        Op::Multiply
            if node
                .inputs
                .iter()
                .any(|input| shape(input) != node.shape.extent) =>
        {
            Some("as a factor for all positions sums its gradient over them")
        }
        Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Pool(_)
        | Op::Resample(_)
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Activation(_) => None,
        Op::GroupNorm { .. } => Some("as its statistics need all positions"),
        Op::Dropout { .. } => Some("as its mask is that of whole tensors"),
        Op::Input
        | Op::Features
        | Op::Linear { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Embedding { .. }
        | Op::Positions
        | Op::PositionEmbedding { .. }
        | Op::LayerNorm { .. }
        | Op::Attention { .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Some("as it does not slide over positions"),
    }
}

/// Whether a layer takes statistics over all positions in training.
fn takes_statistics(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::BatchNorm { .. }) && !graph.keeps_statistics(&node.parameters)
}

fn refusal(strategy: &Strategy, node: &Node, reason: &'static str) -> StrategyError {
    StrategyError::Chunks {
        strategy: strategy.to_string(),
        kind: kind(&node.op),
        layer: node.name.clone(),
        reason,
    }
}

/// Checks that no batch norm in chunks takes statistics in a program of a kind.
///
/// Errors: one that does.
pub(crate) fn check_kind(
    graph: &Graph,
    strategy: &Strategy,
    kind: ProgramKind,
) -> Result<(), StrategyError> {
    if kind != ProgramKind::Train || !strategy.layers.iter().any(LayerChoice::is_chunked) {
        return Ok(());
    }
    let chunks = chunks_of(graph, strategy)?;
    let mut nodes = graph.nodes.iter().zip(chunks);
    match nodes.find(|(node, chunks)| chunks.is_some() && takes_statistics(graph, node)) {
        Some((node, _)) => Err(refusal(
            strategy,
            node,
            "as its statistics need all positions in training",
        )),
        None => Ok(()),
    }
}

impl Layout<'_> {
    /// After the last layer of a block in chunks: copies of what others read.
    pub(super) fn end_chunks(&mut self, id: NodeId) -> Result<(), StrategyError> {
        let Some(chunks) = self.chunks[id.0] else {
            return Ok(());
        };
        let is_inside = |other: usize| self.chunks.get(other) == Some(&Some(chunks));
        self.check_run(id, is_inside(id.0.wrapping_sub(1)))?;
        if is_inside(id.0 + 1) {
            return Ok(());
        }
        self.check_slabs(id, chunks)?;
        let first = (0..=id.0).rev().take_while(|&at| is_inside(at)).last();
        let is_read_outside =
            |at: &usize| self.readers[*at].iter().any(|reader| !is_inside(reader.0));
        let members = (first.unwrap_or(id.0)..=id.0).filter(is_read_outside);
        for at in members.collect::<Vec<_>>() {
            let of = self.of[at];
            let layer = &self.layers[of.0];
            let (name, axes) = (format!("{}.whole", layer.name), layer.distribution.axes);
            let partial = layer.partial_gradient;
            let copy = self.push_move(of, name, axes, partial);
            self.layers[copy.0].chunks = Some(chunks);
            self.of[at] = copy;
        }
        Ok(())
    }

    /// Checks that nothing is redistributed between the layers of a block.
    fn check_run(&self, id: NodeId, has_before: bool) -> Result<(), StrategyError> {
        let last = self.layers.len() - 1;
        let own = self.of[id.0].0;
        let is_plain = own == last && matches!(self.layers[own].step, Step::Layer(_));
        let before = last.checked_sub(1).map(|at| &self.layers[at]);
        let follows = before.is_some_and(|before| {
            let own = &self.layers[own];
            before.chunks == own.chunks && before.rank_set == own.rank_set
        });
        if is_plain && (follows || !has_before) {
            return Ok(());
        }
        Err(refusal(
            self.strategy,
            self.graph.node(id),
            "as tensors are redistributed before or after it, which needs them whole",
        ))
    }

    /// Checks that each rank has positions for all chunks.
    fn check_slabs(&self, id: NodeId, chunks: Chunks) -> Result<(), StrategyError> {
        let distribution = &self.layers[self.of[id.0].0].distribution;
        let parts = self.mesh.parts(distribution.axes[chunks.dim]);
        let positions = distribution.shape[chunks.dim] / parts;
        let most = positions.min(CHUNKS_MAX);
        if chunks.count <= most {
            return Ok(());
        }
        Err(StrategyError::ManyChunks {
            strategy: self.strategy.to_string(),
            layer: self.graph.node(id).name.clone(),
            positions,
            most,
            chunks: chunks.count,
        })
    }
}
