//! The same network on samples of other extents.

use crate::text;
use crate::{ExtentError, Graph, Node, Op, PoolKind};
use partita_space::Window;

impl Graph {
    /// The same model with the same parameters on samples of other extents, D, H, W.
    ///
    /// Global poolings and adaptive means give as many outputs as before; all other windows stay.
    ///
    /// Errors: the layer that cannot read them, or the parameter that would have another shape; a pooling of a fixed
    /// window that covers the whole input, or of means whose windows cover these samples but not the others.
    pub fn with_extent(&self, extent: [usize; 3]) -> Result<Self, ExtentError> {
        if extent == self.nodes[0].shape.extent {
            return Ok(self.clone());
        }
        if let Some(node) = self.nodes.iter().find(|node| self.pools_all(node)) {
            return Err(ExtentError::FixedWindow {
                node: node.name.clone(),
                extent: self.node(node.inputs[0]).shape.extent,
            });
        }
        let mut graph = self.clone();
        graph.nodes[0].shape.extent = extent;
        // The text form holds no shape but that of the input, and its reader checks all others.
        let mut graph = text::parse(&text::print(&graph))?;
        for (now, before) in graph.parameters.iter_mut().zip(&self.parameters) {
            now.is_frozen = before.is_frozen;
        }
        if let Some(node) = graph.nodes.iter().find(|node| self.skips(&graph, node)) {
            return Err(ExtentError::LeavesOut {
                node: node.name.clone(),
                extent: graph.node(node.inputs[0]).shape.extent,
            });
        }
        let mut pairs = self.nodes.iter().zip(&graph.nodes);
        if let Some((node, _)) = pairs.find(|(node, _)| self.moves_rows(&graph, node)) {
            return Err(ExtentError::Rows {
                node: node.name.clone(),
                extent: self.node(node.inputs[0]).shape.extent,
            });
        }
        let mut pairs = self.parameters.iter().zip(&graph.parameters);
        match pairs.find(|(before, now)| before.shape != now.shape) {
            None => Ok(graph),
            Some((before, now)) => Err(ExtentError::ParameterShape {
                parameter: before.name.clone(),
                before: before.shape,
                now: now.shape,
            }),
        }
    }

    /// Whether means over tiles of all positions leave out some in the other graph, of which the node is.
    fn skips(&self, other: &Self, node: &Node) -> bool {
        let Op::Pool(pool) = &node.op else {
            return false;
        };
        let is_tiling = |graph: &Self| pool.is_tiling(graph.node(node.inputs[0]).shape.extent);
        let is_mean = matches!(pool.kind, PoolKind::AverageAll | PoolKind::AverageInside);
        is_mean && !pool.is_adaptive() && is_tiling(self) && !is_tiling(other)
    }

    /// Whether rows of a position embedding, or of a bias of scores, belong to other positions in the other graph. Those before the positions of
    /// a sequence, as class tokens, stay.
    fn moves_rows(&self, other: &Self, node: &Node) -> bool {
        let rows = match node.op {
            Op::PositionEmbedding { rows } => rows,
            Op::Attention {
                window: None,
                bias: Some(_),
                ..
            } => usize::MAX,
            _ => return false,
        };
        let extents = [self, other].map(|graph| graph.node(node.inputs[0]).shape.extent);
        let is_token = |[d, h, w]: [usize; 3]| [d, h] == [1; 2] && rows < w;
        extents[0] != extents[1] && !extents.into_iter().all(is_token)
    }

    /// Whether a pooling has one fixed window, of more than one input.
    fn pools_all(&self, node: &Node) -> bool {
        let Op::Pool(pool) = &node.op else {
            return false;
        };
        if pool.is_adaptive() {
            return false;
        }
        let input = self.node(node.inputs[0]).shape.extent;
        let covers = |(window, extent): (&Window, usize)| window.kernel >= extent;
        input.iter().product::<usize>() > 1 && pool.window.iter().zip(input).all(covers)
    }
}
