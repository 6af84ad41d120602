//! `inspect`: layers, shapes and counts of a model.

use partita_forecast::model;
use partita_forecast::model::ModelError;
use partita_graph::{Graph, count, text};
use partita_space::{Bytes, Flops};
use serde::Serialize;

/// A model with its counts; work and memory are per sample.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Name of the model.
    pub model: String,
    /// Number of spatial dims of the input, 1 to 3.
    pub spatial_rank: usize,
    /// Number of parameters.
    pub parameters: u64,
    /// Flops of the forward pass, without linear layers and attention.
    pub forward_flops: Flops,
    /// Flops of linear layers in the forward pass.
    pub linear_flops: Flops,
    /// Flops of attention in the forward pass.
    pub attention_flops: Flops,
    /// Three times the forward pass, as published tables count a training step.
    pub training_flops: Flops,
    /// Flops of forward and backward pass as a step computes them.
    pub executed_flops: Flops,
    /// Memory of activations and their gradients.
    pub memory_bytes_per_sample: Bytes,
    /// Layers in the order of the model.
    pub layers: Vec<LayerSummary>,
    /// The model itself.
    #[serde(skip)]
    pub graph: Graph,
}

/// A layer of a model; work and memory are per sample.
#[derive(Clone, Debug, Serialize)]
pub struct LayerSummary {
    /// Name of the layer.
    pub name: String,
    /// Name of its operation.
    pub operation: &'static str,
    /// Channels of its output.
    pub channels: usize,
    /// Depth, height and width of its output.
    pub extent: [usize; 3],
    /// Number of parameters.
    pub parameters: u64,
    /// Flops of the forward pass.
    pub forward_flops: Flops,
    /// Flops of forward and backward pass as a step computes them.
    pub executed_flops: Flops,
    /// Memory of its output and the gradient of it.
    pub memory_bytes: Bytes,
}

impl Inspection {
    /// The model in the text form of model files.
    pub fn text(&self) -> String {
        text::print(&self.graph)
    }
}

/// Shows a model: of the zoo, or of a model file.
///
/// Errors: no such model.
///
/// ```
/// let model = partita::inspect("cosmoflow@64")?;
/// assert_eq!(model.spatial_rank, 3);
/// assert!(model.text().starts_with("model cosmoflow"));
/// assert_eq!(model.layers.iter().map(|layer| layer.parameters).sum::<u64>(), model.parameters);
/// # Ok::<(), partita::ModelError>(())
/// ```
pub fn inspect(model: &str) -> Result<Inspection, ModelError> {
    let graph = model::resolve(model)?;
    let counts = count(&graph);
    let layers = counts.layers.iter().map(|layer| LayerSummary {
        name: layer.name.clone(),
        operation: layer.operation,
        channels: layer.shape.channels,
        extent: layer.shape.extent,
        parameters: layer.parameters,
        forward_flops: layer.forward_flops,
        executed_flops: layer.executed_flops,
        memory_bytes: layer.memory_bytes,
    });
    Ok(Inspection {
        model: graph.name.clone(),
        spatial_rank: graph.spatial_rank,
        parameters: counts.parameters,
        forward_flops: counts.forward_flops,
        linear_flops: counts.linear_flops,
        attention_flops: counts.attention_flops,
        training_flops: counts.training_flops,
        executed_flops: counts.executed_flops,
        memory_bytes_per_sample: counts.memory_bytes_per_sample,
        layers: layers.collect(),
        graph,
    })
}
