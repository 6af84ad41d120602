//! Accumulation of gradients of parameters.

use crate::body::TensorBuffer;
use crate::network::LayerId;
use crate::strategy::Shard;
use partita_graph::ParameterId;
use partita_program::{Kernel, View};
use partita_space::{AxisSet, Submesh};

/// A parameter on one of its submeshes, with the axes over which the contributions are partial sums.
pub(crate) type Key = (ParameterId, Option<Submesh>, AxisSet);

/// Gradients that are summed over the same ranks in one message.
#[derive(Default)]
pub(crate) struct Bucket {
    /// Names of the first and of the last parameter.
    pub names: Option<(String, String)>,
    pub views: Vec<View>,
    /// Bytes of the largest part on a rank, the same on all ranks.
    pub bytes: u64,
}

impl Bucket {
    pub fn add(&mut self, name: &str, view: View, bytes: u64) {
        let first = self.names.take().map_or(name.to_owned(), |names| names.0);
        self.names = Some((first, name.to_owned()));
        self.views.push(view);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The range of parameters.
    pub fn name(&self) -> String {
        match &self.names {
            Some((first, last)) if first != last => format!("{first}..{last}"),
            Some((only, _)) => only.clone(),
            None => String::new(),
        }
    }
}

/// A contribution to the gradient of a parameter that is deferred to a later slot.
pub(crate) struct Deferred {
    pub key: Key,
    pub layer: LayerId,
    pub name: String,
    pub kernel: Option<Kernel>,
}

/// Gradient of a parameter from contributions that are partial over the same axes.
#[derive(Clone, Copy)]
pub(crate) struct ParameterGradient {
    pub held: TensorBuffer,
    pub written: bool,
    /// Contributions that are missing before it is reduced over ranks.
    pub open: usize,
    /// Sums over ranks that are missing.
    pub sums: usize,
    /// Contributions per micro-batch.
    pub uses: usize,
    /// Buffer of the own shard of the sum, and whether it has the sum of an earlier micro-batch.
    pub share: Option<(TensorBuffer, bool)>,
}

impl ParameterGradient {
    pub fn view(&self) -> View {
        self.held.view(&self.held.region)
    }

    /// Whether it is reduced to shares after each micro-batch.
    pub fn is_summed_each_time(&self, shard: Shard) -> bool {
        let sums_each_time = match shard {
            Shard::Off | Shard::Optimizer => false,
            Shard::Gradients | Shard::Parameters => true,
        };
        self.share.is_some() && sums_each_time
    }

    /// The buffer of the sum over ranks.
    pub fn summed(&self) -> TensorBuffer {
        self.share.map_or(self.held, |(share, _)| share)
    }

    /// The view of the sum over ranks.
    pub fn sum(&self) -> View {
        let held = self.summed();
        held.view(&held.region)
    }
}
