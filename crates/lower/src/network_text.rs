//! Text of the distributed network.

use crate::network::{Layer, Network, Step};
use partita_program::Distribution;
use std::fmt::Write;

/// A line for each layer: name, operation and inputs, shape with the axes that split each dim, properties.
pub(crate) fn text_of(network: &Network) -> String {
    let mut text = String::new();
    for layer in &network.layers {
        let step = match &layer.step {
            Step::Layer(op) => op.keyword(),
            Step::Move => "move",
        };
        let inputs = layer.inputs.iter().map(|&id| &network.layer(id).name[..]);
        let words: Vec<&str> = [step].into_iter().chain(inputs).collect();
        let made = words.join(" ");
        let _ = writeln!(
            text,
            "{} = {made}: {}{}",
            layer.name,
            distribution(&layer.distribution),
            facts(layer)
        );
    }
    text
}

fn distribution(distribution: &Distribution) -> String {
    let dims = ["N", "D", "H", "W", "C"].iter().zip(distribution.shape);
    let dims = dims.zip(&distribution.axes).map(|((name, extent), axes)| {
        let axes = if axes.is_empty() {
            String::new()
        } else {
            format!("/{axes}")
        };
        format!("{name}{extent}{axes}")
    });
    dims.collect::<Vec<_>>().join(" ")
}

fn facts(layer: &Layer) -> String {
    let mut facts = String::new();
    let mut fact = |name: &str, value: String| {
        let _ = write!(facts, ", {name} {value}");
    };
    if layer.distribution.submesh.is_some() {
        fact("on rank set", layer.rank_set.to_string());
    }
    if layer.stage > 0 {
        fact("stage", layer.stage.to_string());
    }
    if !layer.partial.is_empty() {
        fact("partial over", layer.partial.to_string());
    }
    if !layer.partial_gradient.is_empty() {
        fact("gradient partial over", layer.partial_gradient.to_string());
    }
    if let Some(group) = layer.group {
        fact("halo group", group.to_string());
    }
    if let Some(block) = layer.block {
        fact("recompute block", block.to_string());
    }
    if layer.selective {
        fact("recompute", "selective".to_owned());
    }
    facts
}
