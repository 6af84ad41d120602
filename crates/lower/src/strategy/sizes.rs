//! Limits on the sizes of a model, a mini-batch and a strategy together.

use super::{Strategy, StrategyError};
use partita_graph::Graph;
use partita_space::limits::{ELEMENTS_MAX, FLOPS_MAX, MICRO_BATCHES_MAX, SAMPLES_MAX};
use partita_space::{AXES, Axis, Mesh, MeshError};

/// Largest number of forward passes of all stages over all micro-batches of a step.
pub(crate) const PASSES_MAX: usize = 1 << 20;

/// Largest number of passes of layers over the micro-batches of a step, in all kinds of ranks: a program with that number takes
/// 2 GiB of memory, and seconds to lower.
const LAYER_PASSES_MAX: usize = 1 << 16;

impl Strategy {
    /// Checks the limits, so that no product of extents, samples and ranks overflows.
    pub(crate) fn check_sizes(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        if !(1..=SAMPLES_MAX).contains(&batch) {
            return Err(StrategyError::Batch {
                batch,
                most: SAMPLES_MAX,
                nearest: batch.clamp(1, SAMPLES_MAX),
            });
        }
        self.check_mesh()?;
        check_micro(&|| self.to_string(), self.micro)?;
        let stages = self.stage_count().max(1);
        if stages.saturating_mul(self.micro_batches(batch)) > PASSES_MAX {
            return Err(StrategyError::Passes {
                strategy: self.to_string(),
                stages,
                micro: self.micro,
                most: PASSES_MAX,
            });
        }
        self.check_layer_passes(graph, batch)?;
        let held = graph.padded_volumes().into_iter();
        for (id, (elements, flops)) in held.zip(graph.work()).enumerate() {
            for (what, one, limit) in [
                ("elements, padding included", elements, ELEMENTS_MAX),
                ("flops in the forward pass", flops, FLOPS_MAX),
            ] {
                if one * batch as u128 > u128::from(limit) {
                    let most = u128::from(limit) / one.max(1);
                    return Err(StrategyError::LargeLayer {
                        layer: graph.layer_name(id).to_owned(),
                        batch,
                        asked: (one * batch as u128).to_string(),
                        what,
                        limit,
                        nearest: usize::try_from(most).unwrap_or(SAMPLES_MAX).max(1),
                    });
                }
            }
        }
        Ok(())
    }
}

impl Strategy {
    /// Checks that programs stay small: each pass of a layer over a micro-batch takes up to 30 KiB of memory.
    fn check_layer_passes(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        let micro = self.micro_batches(batch);
        let layers = graph.nodes.len();
        let parts = |axis: Axis| {
            let inner = self.stages.iter().map(|stage| stage.extents[axis.index()]);
            (self.extent(axis) * inner.max().unwrap_or(1)).min(3)
        };
        let spatial = [Axis::Depth, Axis::Height, Axis::Width];
        let classes: usize = spatial.into_iter().map(parts).product();
        // What one micro-batch takes, no strategy avoids.
        if micro > 1 && layers * micro * classes > LAYER_PASSES_MAX {
            return Err(StrategyError::LayerPasses {
                strategy: self.to_string(),
                layers,
                micro,
                classes,
                most: LAYER_PASSES_MAX,
            });
        }
        Ok(())
    }

    /// Checks the extents of meshes, which may be invalid in strategies that were not parsed.
    fn check_mesh(&self) -> Result<(), StrategyError> {
        // Its own text is that of a strategy with a mesh.
        let text = || {
            let axes = AXES.into_iter().zip(self.extents);
            let split = axes.filter(|(_, extent)| *extent != 1);
            let words = split.map(|(axis, extent)| format!("{}={extent}", axis.name()));
            words.collect::<Vec<_>>().join(",")
        };
        let ranks = |extents: &[usize; 7]| match Mesh::try_from(*extents) {
            Ok(mesh) => Ok(mesh.ranks()),
            Err(MeshError::Empty(axis)) => Err(StrategyError::Value {
                text: text(),
                word: format!("{}=0", axis.name()),
                possible: "a whole number, at least 1".to_owned(),
                nearest: format!("{}=1", axis.name()),
            }),
            Err(MeshError::TooMany) => Ok(usize::MAX),
        };
        let mut of_stages = 0usize;
        for stage in &self.stages {
            of_stages = of_stages.saturating_add(ranks(&stage.extents)?);
        }
        let ranks = ranks(&self.extents)?.saturating_mul(of_stages.max(1));
        if ranks > Mesh::RANKS_MAX {
            Err(StrategyError::TooMany {
                text: text(),
                most: Mesh::RANKS_MAX,
            })
        } else {
            Ok(())
        }
    }
}

/// Checks the number of micro-batches.
pub(super) fn check_micro(text: &dyn Fn() -> String, micro: usize) -> Result<(), StrategyError> {
    if (1..=MICRO_BATCHES_MAX).contains(&micro) {
        return Ok(());
    }
    Err(StrategyError::Value {
        text: text(),
        word: format!("micro={micro}"),
        possible: format!("a whole number from 1 to {MICRO_BATCHES_MAX}"),
        nearest: format!("micro={}", micro.clamp(1, MICRO_BATCHES_MAX)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_graph::text;

    fn refusal(strategy: &str, batch: usize) -> StrategyError {
        let model = "model m\ninput x channels=1 extent=2097152x2097152\n\
                     p = max_pool x kernel=1024 stride=1024\nf = flatten p\n\
                     l = linear f features=2 bias=true\nloss = mse l\n";
        let graph = text::parse(model).unwrap();
        let strategy: Strategy = strategy.parse().unwrap();
        strategy.check(&graph, batch).unwrap_err()
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused_by_name() {
        let StrategyError::LargeLayer {
            layer,
            asked,
            nearest,
            ..
        } = refusal("data=1", 65)
        else {
            panic!("a layer is too large");
        };
        assert_eq!([layer, asked], ["x", "285873023221760"]);
        assert_eq!(nearest, 64);
        for (batch, expected) in [(0, 1), (usize::MAX, SAMPLES_MAX)] {
            let error = refusal("data=1", batch);
            let is_named =
                matches!(error, StrategyError::Batch { nearest, .. } if nearest == expected);
            assert!(is_named, "{error}");
        }
        let many = "micro=16384; stages=[1|1]; schedule=interleaved*64";
        let error = refusal(many, 16384);
        assert!(
            matches!(error, StrategyError::Passes { stages: 128, .. }),
            "{error}"
        );
        let graph = partita_graph::zoo::build("cosmoflow@32").unwrap();
        let many: Strategy = "micro=16384".parse().unwrap();
        let error = many.check(&graph, 16384).unwrap_err();
        let is_named = matches!(
            error,
            StrategyError::LayerPasses {
                micro: 16384,
                classes: 1,
                ..
            }
        );
        assert!(is_named, "{error}");
        let cut: Strategy = "depth=4,height=2; micro=512".parse().unwrap();
        let error = cut.check(&graph, 512).unwrap_err();
        assert!(
            matches!(error, StrategyError::LayerPasses { classes: 6, .. }),
            "{error}"
        );
        let check = |strategy: &Strategy| strategy.check(&graph, 8).unwrap_err();
        let is_value = |error: StrategyError, choice: &str| matches!(error, StrategyError::Value { nearest, .. } if nearest == choice);
        assert!(is_value(check(&Strategy::hybrid(0, [2, 1, 1])), "data=1"));
        for data in [1572864, usize::MAX] {
            let error = check(&Strategy::hybrid(data, [2, 1, 1]));
            let mesh = format!("data={data},depth=2");
            let is_named = matches!(&error, StrategyError::TooMany { text, .. } if *text == mesh);
            assert!(is_named, "{error}");
        }
        let mut strategy = Strategy::single();
        strategy.micro = usize::MAX;
        assert!(is_value(check(&strategy), "micro=16384"));
    }
}
