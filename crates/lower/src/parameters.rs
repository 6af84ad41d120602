//! Parameters as ranks hold them.
//!
//! With `shard`, gradients are reduce-scattered, each rank updates its shard, and shards are gathered: after the
//! update, or for each use.
//!
//! Batch norms with local statistics read sums that are partial over the axis `data` (`Program::local_statistics`):
//! the one place where a kernel may. Gradients of their scales and shifts are partial sums as those of weights are.
//! Running statistics are updated at the end of the step from a copy of the sums, which is reduced behind the
//! forward pass.

use crate::arena;
use crate::body::{Builder, TensorBuffer};
use crate::emit::Emit;
use crate::network::LayerId;
use crate::redistribute::{Destination, MovedTensor};
use crate::step_plan::StepPlan;
use crate::storage::Storage;
use crate::strategy::Shard;
use partita_graph::{Parameter, ParameterId};
use partita_program::{AVERAGE, Distribution, Phase, ProgramKind, Role, View};
use partita_space::{AxisSet, Submesh};

impl StepPlan<'_> {
    pub(crate) fn parameter(&self, id: ParameterId) -> &Parameter {
        self.request.graph.parameter(id)
    }

    /// Tensor number of a value or its gradient; after those of parameters.
    pub(crate) fn tensor(&self, storage: &Storage, is_gradient: bool) -> u32 {
        let parameters = self.request.graph.parameters.len() as u32;
        2 * (parameters + storage.tensor) + u32::from(is_gradient)
    }

    /// Distribution of a parameter for the layers of a submesh.
    pub(crate) fn whole_on(&self, id: ParameterId, submesh: Option<Submesh>) -> Distribution {
        let distributions = &self.holders[id.0];
        let distribution = distributions
            .iter()
            .find(|distribution| distribution.submesh == submesh);
        *distribution.expect("layers use parameters that lie with them")
    }

    /// Distribution of the shards of a parameter.
    pub(crate) fn share_of(&self, id: ParameterId, whole: Distribution) -> Distribution {
        match &self.networks[0].0.shares[id.0][..] {
            [share] => Distribution {
                submesh: whole.submesh,
                ..*share
            },
            _ => whole,
        }
    }

    /// Distribution of a parameter as ranks keep it between steps.
    pub(crate) fn kept_of(&self, id: ParameterId, whole: Distribution) -> Distribution {
        match self.request.strategy.shard {
            Shard::Parameters => self.share_of(id, whole),
            Shard::Off | Shard::Optimizer | Shard::Gradients => whole,
        }
    }

    /// Whether several submeshes have a parameter.
    pub(crate) fn is_on_several_submeshes(&self, id: ParameterId) -> bool {
        self.holders[id.0].len() > 1
    }

    /// A buffer for a parameter, or for its gradient or moments.
    pub(crate) fn parameter_buffer(
        &self,
        builder: &mut Builder<'_>,
        name: &str,
        role: Role,
        id: ParameterId,
        distribution: Distribution,
    ) -> TensorBuffer {
        let region = builder.owned(&distribution);
        if builder.is_whole && self.share_of(id, distribution).split_axes().is_empty() {
            let dtype = builder.dtype.of_role(role);
            let id = builder.buffer(name, role, dtype, distribution.shape);
            return TensorBuffer { id, region };
        }
        let tensor = parameter_tensor(id, role);
        builder.tensor_buffer(name, role, tensor, distribution, region)
    }

    /// Distribution of the shards and of the whole of a parameter on the current submesh.
    pub(crate) fn share_and_whole(
        &self,
        builder: &Builder<'_>,
        id: ParameterId,
    ) -> (Distribution, Distribution) {
        let whole = self.whole_on(id, builder.submesh);
        (self.share_of(id, whole), whole)
    }

    /// Redistributes a parameter or its gradient.
    pub(crate) fn move_parameter(
        &self,
        builder: &mut Builder<'_>,
        (id, role): (ParameterId, Role),
        phase: Phase,
        (source, distribution, partial): (TensorBuffer, Distribution, AxisSet),
        to: Destination,
    ) {
        let layer = self.parameter(id).name.clone();
        let moved = MovedTensor {
            layer: &layer,
            phase,
            role,
            tensor: parameter_tensor(id, role),
        };
        builder.redistribute(moved, source, (distribution, partial), to);
    }
}

/// Tensor number of a parameter; the same in training and evaluation, which has fewer tensors.
pub(crate) fn parameter_tensor(id: ParameterId, role: Role) -> u32 {
    2 * id.0 as u32 + u32::from(role == Role::Gradient)
}

impl Emit<'_> {
    /// Allocates the persistent buffers.
    pub(crate) fn persistent(&mut self) {
        let moment_names = self.request.optimizer.moments();
        let mut list: Vec<(Role, String, usize, Distribution)> = Vec::new();
        for (index, parameter) in self.graph.parameters.iter().enumerate() {
            for (holder, distribution) in self.plan.holders[index].iter().enumerate() {
                if !self.builder.is_in(distribution.submesh) {
                    continue;
                }
                let name = match holder {
                    0 => parameter.name.clone(),
                    _ => format!("{}@{holder}", parameter.name),
                };
                if !parameter.role.is_trained() || parameter.is_constant {
                    let role = if parameter.is_constant {
                        Role::Constant
                    } else {
                        Role::State
                    };
                    list.push((role, name, index, *distribution));
                    continue;
                }
                list.push((Role::Parameter, name, index, *distribution));
                // One replica updates it for all.
                let has_moments = holder == 0 && parameter.is_trained();
                for moment in moment_names.iter().filter(|_| has_moments) {
                    let name = format!("{}.{moment}", parameter.name);
                    list.push((Role::Optimizer, name, index, *distribution));
                }
                if self.request.ema.is_some() && parameter.is_trained() {
                    let name = match holder {
                        0 => format!("{}{AVERAGE}", parameter.name),
                        _ => format!("{}{AVERAGE}@{holder}", parameter.name),
                    };
                    list.push((Role::Average, name, index, *distribution));
                }
            }
        }
        list.sort_by_key(|(role, ..)| arena::persistent_order(*role));
        self.moments = vec![Vec::new(); self.graph.parameters.len()];
        for (role, name, index, whole) in list {
            let id = ParameterId(index);
            let distribution = match role {
                Role::Optimizer | Role::Average => self.plan.share_of(id, whole),
                _ => self.plan.kept_of(id, whole),
            };
            let held = self
                .plan
                .parameter_buffer(&mut self.builder, &name, role, id, distribution);
            match role {
                Role::Optimizer => self.moments[index].push(held.view(&held.region)),
                Role::Average => {
                    self.averages.insert((id, whole.submesh), held);
                }
                _ => {
                    self.parameters.insert((id, whole.submesh), held);
                }
            }
        }
        self.stage_samples();
    }

    /// The view of a parameter for the kernels of a layer.
    pub(crate) fn parameter(&self, id: LayerId, index: usize) -> View {
        let parameter = self.layer(id).parameters[index];
        let kept = || self.source(parameter, self.builder.submesh).0;
        let held = self.gathered.get(&parameter).copied().unwrap_or_else(kept);
        held.view(&held.region)
    }

    /// The buffer from which layers read a parameter, and whether ranks hold shares of it: in an evaluation its average,
    /// where it has one.
    fn source(&self, id: ParameterId, submesh: Option<Submesh>) -> (TensorBuffer, bool) {
        let key = (id, submesh);
        match self.averages.get(&key) {
            Some(&average) if self.request.kind != ProgramKind::Train => (average, true),
            Some(_) | None => {
                let is_shared = self.request.strategy.shard == Shard::Parameters;
                (self.parameters[&key], is_shared)
            }
        }
    }

    /// Gathers the sharded parameters of a layer; those of a block in chunks are gathered before.
    pub(crate) fn gather_parameters(&mut self, id: LayerId, phase: Phase) {
        if self.layer(id).chunks.is_none() {
            self.gathered.clear();
            self.gather_more(id, phase);
        }
    }

    /// Gathers the sharded parameters of a layer, too.
    pub(crate) fn gather_more(&mut self, id: LayerId, phase: Phase) {
        for parameter in self.layer(id).parameters.clone() {
            let (share, whole) = self.plan.share_and_whole(&self.builder, parameter);
            let (source, is_shared) = self.source(parameter, whole.submesh);
            if !is_shared || share == whole {
                continue;
            }
            let name = format!("{}.gathered", self.graph.parameter(parameter).name);
            let held = self.plan.parameter_buffer(
                &mut self.builder,
                &name,
                Role::Gathered,
                parameter,
                whole,
            );
            let to = Destination {
                held,
                distribution: whole,
                accumulate: false,
            };
            let from = (source, share, AxisSet::NONE);
            self.plan.move_parameter(
                &mut self.builder,
                (parameter, Role::Gathered),
                phase,
                from,
                to,
            );
            self.gathered.insert(parameter, held);
        }
    }
}
