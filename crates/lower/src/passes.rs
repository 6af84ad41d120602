//! The passes of lowering, in their order, and what stands after each as a text.

use crate::network::{Layer, Network, Step};
use crate::{LowerError, Request};
use partita_program::Place;
use std::fmt::Write;
use std::str::FromStr;

/// A pass from a model to the program of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoweringPass {
    /// Every layer gets its distribution, and a step that moves the tensor stands wherever a reader
    /// wants another one.
    LayOut,
    /// Every rank gets its buffers and tasks: kernels, messages, collectives, reads.
    Emit,
    /// Kernels that only read or change what another has computed become part of it.
    Fuse,
    /// Weights that several kernels read in another order are packed once.
    Pack,
    /// Every kernel gets its algorithm and workspace from the menu.
    Select,
    /// Every buffer gets its offset in the arena, and every task the tasks that it comes after.
    Arena,
}

/// A word that names no pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{asked}` is no pass of lowering; the passes are {}", names())]
pub struct NoPass {
    asked: String,
}

fn names() -> String {
    LoweringPass::ALL.map(LoweringPass::name).join(", ")
}

impl LoweringPass {
    /// All passes, in their order.
    pub const ALL: [Self; 6] = [
        Self::LayOut,
        Self::Emit,
        Self::Fuse,
        Self::Pack,
        Self::Select,
        Self::Arena,
    ];

    /// As written.
    pub fn name(self) -> &'static str {
        match self {
            Self::LayOut => "lay-out",
            Self::Emit => "emit",
            Self::Fuse => "fuse",
            Self::Pack => "pack",
            Self::Select => "select",
            Self::Arena => "arena",
        }
    }
}

impl FromStr for LoweringPass {
    type Err = NoPass;

    fn from_str(text: &str) -> Result<Self, NoPass> {
        let found = Self::ALL.into_iter().find(|pass| pass.name() == text);
        found.ok_or_else(|| NoPass {
            asked: text.to_owned(),
        })
    }
}

/// What stands after a pass: the network with its distributions after [`LoweringPass::LayOut`], and a
/// program's text after the others. After the last it is the text of [`crate::lower`].
///
/// Errors: as [`crate::lower`].
pub fn lower_after(request: &Request<'_>, pass: LoweringPass) -> Result<String, LowerError> {
    match pass {
        LoweringPass::LayOut => Ok(text_of(&crate::lowering::network(request)?)),
        LoweringPass::Emit
        | LoweringPass::Fuse
        | LoweringPass::Pack
        | LoweringPass::Select
        | LoweringPass::Arena => Ok(crate::lowering::lower_until(request, pass)?.to_text()),
    }
}

/// A line for each layer: its name, what makes it from what, its shape with the axes that split each
/// dim, and what else is known of it.
fn text_of(network: &Network) -> String {
    let mut text = String::new();
    for layer in &network.layers {
        let inputs = layer.inputs.iter().map(|&id| &network.layer(id).name[..]);
        let inputs: Vec<&str> = inputs.collect();
        let made = match &layer.step {
            Step::Layer(op) => op.keyword(),
            Step::Move => "move",
        };
        let made = [&[made], &inputs[..]].concat().join(" ");
        let _ = writeln!(
            text,
            "{} = {made}: {}{}",
            layer.name,
            distribution(&layer.place),
            facts(layer)
        );
    }
    text
}

fn distribution(place: &Place) -> String {
    let dims = ["N", "D", "H", "W", "C"].iter().zip(place.shape);
    let dims = dims.zip(&place.axes).map(|((name, extent), axes)| {
        let axes = match axes.is_empty() {
            true => String::new(),
            false => format!("/{axes}"),
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
    if layer.place.on.is_some() {
        fact("on site", layer.site.to_string());
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
    facts
}
