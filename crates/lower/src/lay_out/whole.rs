//! What the whole network allows, where an error says what one layer does.

use super::shared::fits;
use crate::{Strategy, StrategyError};
use partita_graph::Graph;
use partita_space::{AXES, Axis};

/// Rounds of a search: one for each layer that refuses a split.
const ROUNDS: usize = 64;

/// Layers that are left out of a split by name; more of them would be hard to read.
const LEFT_OUT_MAX: usize = 6;

impl Strategy {
    /// Its error with the nearest choice that is possible for the whole network, where the error gives that of one
    /// layer, whose correction another layer would refuse.
    pub fn explain(&self, graph: &Graph, batch: usize, error: StrategyError) -> StrategyError {
        if !self.stages.is_empty() {
            return error;
        }
        let mut error = error;
        match &mut error {
            StrategyError::TooFine {
                nearest,
                extent,
                parts,
                layer: Some(layer),
                ..
            } => {
                let less = self.fewer(graph, batch, *parts, *extent);
                let less = less.map(|(axis, parts)| match parts {
                    _ if parts < *extent => format!("{}={parts} for all layers", axis.name()),
                    _ => format!("{}={parts}", axis.name()),
                });
                let others = self.without(graph, batch, layer);
                let others = others.map(|words| match words.matches(';').count() {
                    1 => format!("`{words}` to leave this layer out"),
                    _ => format!("`{words}` to leave these layers out"),
                });
                let both: Vec<String> = less.into_iter().chain(others).collect();
                if !both.is_empty() {
                    *nearest = both.join(", or ");
                }
            }
            StrategyError::Groups { parts, nearest, .. }
            | StrategyError::NormGroups { parts, nearest, .. } => {
                if let Some((_, fewer)) = self.fewer(graph, batch, *parts, *nearest) {
                    *nearest = fewer;
                }
            }
            _ => {}
        }
        error
    }

    /// The axis of as many parts, and the most parts of it, up to `most`, that all layers allow.
    fn fewer(
        &self,
        graph: &Graph,
        batch: usize,
        parts: usize,
        most: usize,
    ) -> Option<(Axis, usize)> {
        let axes = AXES.into_iter();
        let mut axes = axes.filter(|axis| parts > 1 && self.extent(*axis) == parts);
        axes.find_map(|axis| {
            let mut parts = most;
            for _ in 0..ROUNDS {
                let mut other = self.clone();
                other.extents[axis.index()] = parts;
                parts = match fits(graph, &other, batch) {
                    Ok(()) => return Some((axis, parts)),
                    Err(StrategyError::TooFine { extent, .. }) if extent < parts => extent,
                    Err(_) => parts.checked_sub(1).filter(|&parts| parts > 0)?,
                };
            }
            None
        })
    }

    /// Entries that leave layers out of a split, that of one and of all others that then refuse theirs.
    fn without(
        &self,
        graph: &Graph,
        batch: usize,
        layer: &(String, &'static str),
    ) -> Option<String> {
        let (layer, dim) = layer;
        let mut words = format!("; {layer}: {dim}=-");
        for _ in 0..LEFT_OUT_MAX {
            let other: Strategy = format!("{self}{words}").parse().ok()?;
            match fits(graph, &other, batch) {
                Ok(()) => return Some(words),
                Err(StrategyError::TooFine {
                    layer: Some(other), ..
                }) => words += &format!("; {}: {}=-", other.0, other.1),
                Err(_) => return None,
            }
        }
        None
    }
}
