//! Layers whose output at a position depends on all positions of the sample.

use crate::{Graph, Op, Resample};

impl Graph {
    /// The first layer of an evaluation whose output at a position depends on all positions of the sample, whatever its
    /// receptive field, and what it does there. On samples of other extents it computes with other statistics than in
    /// training.
    ///
    /// Batch norms are none of them: an evaluation normalizes with running statistics. Layer norms span channels.
    pub fn position_span(&self) -> Option<(&str, &'static str)> {
        let evaluated = self.is_evaluated();
        let nodes = self.nodes.iter().zip(evaluated);
        let mut spans = nodes.filter_map(|(node, is_evaluated)| {
            let does = spans_positions(&node.op).filter(|_| is_evaluated)?;
            Some((node.name.as_str(), does))
        });
        spans.next()
    }
}

fn spans_positions(op: &Op) -> Option<&'static str> {
    match op {
        Op::GroupNorm { .. } => Some("normalizes over all positions of a sample"),
        Op::Pool(pool) if pool.is_adaptive() => Some("pools over all positions of a sample"),
        Op::Resample(Resample::AdaptiveAverage { .. }) => {
            Some("averages over all positions of a sample")
        }
        Op::Resample(Resample::Resize { .. }) => Some("resizes all positions of a sample"),
        Op::Resample(Resample::Crop { .. }) => Some("takes positions out of a sample"),
        Op::Attention { .. } => Some("attends to all positions of a sample"),
        Op::Positions => Some("adds the encoding of positions in a sample"),
        Op::PositionEmbedding { .. } => Some("adds a trained row to each position of a sample"),
        Op::Reshape { .. } => Some("arranges all positions of a sample"),
        Op::Input
        | Op::Features
        | Op::Convolution(_)
        | Op::TransposedConvolution(_)
        | Op::Pool(_)
        | Op::Resample(Resample::Upsample { .. } | Resample::Pad { .. })
        | Op::BatchNorm { .. }
        | Op::LeakyRelu { .. }
        | Op::Prelu(_)
        | Op::Softmax
        | Op::Linear { .. }
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Embedding { .. }
        | Op::LayerNorm { .. }
        | Op::Activation(_)
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use crate::text::parse;

    fn span(layers: &str) -> Option<String> {
        let model = format!("model m\ninput x channels=4 extent=8x8\n{layers}\nloss = mse last\n");
        let graph = parse(&model).unwrap();
        graph.position_span().map(|(name, _)| name.to_owned())
    }

    #[test]
    fn layers_that_span_positions_are_found_and_no_others() {
        let gate = |pool: &str| {
            format!("p = {pool}\ns = conv p filters=4 kernel=1 bias=true\nlast = multiply x s")
        };
        for (layers, expected) in [
            (
                "last = instance_norm x epsilon=1e-5".to_owned(),
                Some("last"),
            ),
            (
                "last = group_norm x groups=2 epsilon=1e-5".to_owned(),
                Some("last"),
            ),
            (gate("global_average_pool x"), Some("p")),
            (gate("global_max_pool x"), Some("p")),
            (
                "p = adaptive_average_pool x output=3\nlast = upsample p factor=3".to_owned(),
                Some("p"),
            ),
            (
                "b = batch_norm x epsilon=1e-5 momentum=0.1\np = max_pool b kernel=2 stride=2\n\
                 n = layer_norm p epsilon=1e-5\nu = upsample n factor=2\nlast = relu u"
                    .to_owned(),
                None,
            ),
        ] {
            assert_eq!(span(&layers).as_deref(), expected, "{layers}");
        }
    }
}
