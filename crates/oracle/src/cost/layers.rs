//! Factors by which the times of kernels are multiplied, by layer.

use partita_program::{Origin, Phase};
use std::collections::BTreeMap;

/// Factors of a layer's kernels; 1 leaves them as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassFactors {
    /// Of the forward pass.
    pub forward: f64,
    /// Of the backward pass.
    pub backward: f64,
}

/// Factors by the name of a layer. Layers that have none keep their times, as do kernels outside of the two passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerFactors(pub BTreeMap<String, PassFactors>);

impl LayerFactors {
    /// The factor of a task.
    pub fn of(&self, origin: &Origin) -> f64 {
        let factors = self.0.get(&origin.layer);
        factors.map_or(1.0, |factors| match origin.phase {
            Phase::Forward => factors.forward,
            Phase::Backward => factors.backward,
            Phase::Load | Phase::Reduce | Phase::Update | Phase::Report => 1.0,
        })
    }
}
