//! `models`: the zoo.

use partita_forecast::model::ModelError;
use partita_graph::zoo::{self, Family};
use partita_graph::{Counts, count};
use partita_space::{Bytes, Flops};
use serde::Serialize;

/// A model of the zoo; work and memory are per sample.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// Its name.
    pub model: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Flops of the forward pass.
    pub forward_flops: Flops,
    /// Three times the forward pass, as published tables count a training step.
    pub training_flops: Flops,
    /// Flops of forward and backward pass as a step computes them.
    pub executed_flops: Flops,
    /// Memory of activations and their gradients.
    pub memory_bytes_per_sample: Bytes,
}

/// A family of models in the zoo.
#[derive(Clone, Debug)]
pub struct FamilySummary {
    /// The model of the published size.
    pub published: ModelSummary,
    /// Input sizes.
    pub sizes: Vec<usize>,
    /// Suffixes of variants, like `+bn`.
    pub variants: Vec<String>,
}

/// All models of the zoo.
///
/// Errors: none, unless the zoo is broken.
pub fn models() -> Result<Vec<ModelSummary>, ModelError> {
    zoo::names().into_iter().map(summary).collect()
}

/// The families of the zoo, each with one model.
///
/// Errors: none, unless the zoo is broken.
pub fn families() -> Result<Vec<FamilySummary>, ModelError> {
    let one = |family: &Family| {
        let suffixes = family.suffixes().iter();
        let variants = suffixes.filter(|suffix| !suffix.is_empty());
        Ok(FamilySummary {
            published: summary(family.model(family.published_size(), ""))?,
            sizes: family.sizes().to_vec(),
            variants: variants.map(|suffix| format!("+{suffix}")).collect(),
        })
    };
    Family::ALL.iter().map(one).collect()
}

fn summary(model: String) -> Result<ModelSummary, ModelError> {
    let graph = zoo::build(&model)?;
    let counts: Counts = count(&graph);
    Ok(ModelSummary {
        model,
        parameters: counts.parameters,
        forward_flops: counts.forward_flops,
        training_flops: counts.training_flops,
        executed_flops: counts.executed_flops,
        memory_bytes_per_sample: counts.memory_bytes_per_sample,
    })
}
