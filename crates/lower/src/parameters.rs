//! Parameters, and the accumulation and reduction of their gradients.
//!
//! With `shard`, gradients are reduce-scattered, each rank updates its shard, and shards are gathered: after the
//! update, or for each use.
//!
//! Where gradients are summed in buckets, an allreduce has several views. A bucket is full on all ranks at the same
//! time, since it is measured by the largest part of each parameter; so message numbers agree.
//!
//! Batch norms with local statistics read sums that are partial over the axis `data` (`Program::local_statistics`):
//! the one place where a kernel may. Gradients of their scales and shifts are partial sums as those of weights are.
//! Running statistics are updated at the end of the step from a copy of the sums, which is reduced behind the
//! forward pass.

use crate::arena;
use crate::body::{NUMBERS, TensorBuffer};
use crate::emit::Emit;
use crate::network::{LayerId, Network, gradient_axes};
use crate::parameter_gradient::{Deferred, Key, ParameterGradient};
use crate::redistribute::Destination;
use crate::strategy::Shard;
use partita_graph::{ParameterId, ParameterRole};
use partita_program::{AVERAGE, Distribution, Kernel, Phase, ProgramKind, Role, View};
use partita_space::{AxisSet, Submesh};
use std::collections::{BTreeMap, BTreeSet};

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
            let is_share = match role {
                Role::Optimizer | Role::Average => true,
                _ => self.request.strategy.shard == Shard::Parameters,
            };
            let distribution = if is_share {
                self.share_of(id, whole)
            } else {
                whole
            };
            let held = self.parameter_buffer(&name, role, id, distribution);
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

    /// Distribution of a parameter for the layers of a submesh.
    pub(crate) fn whole_on(&self, id: ParameterId, submesh: Option<Submesh>) -> Distribution {
        let distributions = &self.plan.holders[id.0];
        let distribution = distributions
            .iter()
            .find(|distribution| distribution.submesh == submesh);
        *distribution.expect("layers use parameters that lie with them")
    }

    /// Distribution of the shards of a parameter.
    pub(crate) fn share_of(&self, id: ParameterId, whole: Distribution) -> Distribution {
        match &self.network.shares[id.0][..] {
            [share] => Distribution {
                submesh: whole.submesh,
                ..*share
            },
            _ => whole,
        }
    }

    /// Distribution of the shards and of the whole of a parameter on the current submesh.
    fn share_and_whole(&self, id: ParameterId) -> (Distribution, Distribution) {
        let whole = self.whole_on(id, self.builder.submesh);
        (self.share_of(id, whole), whole)
    }

    /// Whether several submeshes have a parameter.
    pub(crate) fn is_on_several_submeshes(&self, id: ParameterId) -> bool {
        self.plan.holders[id.0].len() > 1
    }

    /// A buffer for a parameter, or for its gradient or moments.
    pub(crate) fn parameter_buffer(
        &mut self,
        name: &str,
        role: Role,
        id: ParameterId,
        distribution: Distribution,
    ) -> TensorBuffer {
        let region = self.builder.owned(&distribution);
        if self.is_whole() && self.share_of(id, distribution).split_axes().is_empty() {
            let dtype = self.builder.dtype.of_role(role);
            let id = self.builder.buffer(name, role, dtype, distribution.shape);
            return TensorBuffer { id, region };
        }
        let tensor = self.parameter_tensor(id, role);
        self.builder
            .tensor_buffer(name, role, tensor, distribution, region)
    }

    /// Tensor number of a parameter; the same in training and evaluation, which has fewer tensors.
    pub(crate) fn parameter_tensor(&self, id: ParameterId, role: Role) -> u32 {
        2 * id.0 as u32 + u32::from(role == Role::Gradient)
    }

    /// Tensor number of a value or its gradient; after those of parameters.
    pub(crate) fn tensor(&self, id: LayerId, is_gradient: bool) -> u32 {
        let parameters = self.graph.parameters.len() as u32;
        2 * (parameters + self.storages.of(id).tensor) + u32::from(is_gradient)
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

    /// Gathers the sharded parameters of a layer.
    pub(crate) fn gather_parameters(&mut self, id: LayerId, phase: Phase) {
        self.gathered.clear();
        for parameter in self.layer(id).parameters.clone() {
            let (share, whole) = self.share_and_whole(parameter);
            let (source, is_shared) = self.source(parameter, whole.submesh);
            if !is_shared || share == whole {
                continue;
            }
            let name = format!("{}.gathered", self.graph.parameter(parameter).name);
            let held = self.parameter_buffer(&name, Role::Gathered, parameter, whole);
            let to = Destination {
                held,
                distribution: whole,
                accumulate: false,
            };
            let from = (source, share, AxisSet::NONE);
            self.move_parameter((parameter, Role::Gathered), phase, from, to);
            self.gathered.insert(parameter, held);
        }
    }

    /// Counts the contributions to each gradient, so that its reduction starts after the last.
    pub(crate) fn open_parameter_gradients(&mut self) {
        let mut total: BTreeMap<Key, usize> = BTreeMap::new();
        let plan = self.plan;
        for (network, _) in &plan.networks {
            let mut uses: BTreeMap<Key, usize> = BTreeMap::new();
            for layer in &network.layers {
                if !self.builder.is_in(layer.distribution.submesh) {
                    continue;
                }
                let axes = gradient_axes(layer, plan.local_statistics);
                for &parameter in &layer.parameters {
                    if self.graph.parameter(parameter).is_trained() {
                        *uses
                            .entry((parameter, layer.distribution.submesh, axes))
                            .or_default() += 1;
                    }
                }
            }
            for (key, uses) in uses {
                *total.entry(key).or_default() += uses;
                if !self.parameter_gradients.contains_key(&key) {
                    let gradient = self.open_gradient(key, network, uses);
                    self.parameter_gradients.insert(key, gradient);
                }
            }
        }
        let is_summed_each_time = match self.request.strategy.shard {
            Shard::Off | Shard::Optimizer => false,
            Shard::Gradients | Shard::Parameters => true,
        };
        for (key, gradient) in &mut self.parameter_gradients {
            gradient.open = if gradient.share.is_some() && is_summed_each_time {
                gradient.uses
            } else {
                total[key]
            };
        }
    }

    fn open_gradient(
        &mut self,
        (parameter, submesh, _): Key,
        network: &Network,
        uses: usize,
    ) -> ParameterGradient {
        let name = format!("d.{}", self.graph.parameter(parameter).name);
        let whole = *network.parameters[parameter.0]
            .iter()
            .find(|distribution| distribution.submesh == submesh)
            .expect("layers use parameters that lie with them");
        let share = self.share_of(parameter, whole);
        let held = self.parameter_buffer(&name, Role::Gradient, parameter, whole);
        let share = (share != whole).then(|| {
            let name = format!("{name}.share");
            let held = self.parameter_buffer(&name, Role::Gradient, parameter, share);
            (held, false)
        });
        ParameterGradient {
            held,
            written: false,
            open: 0,
            uses,
            share,
        }
    }

    /// Adds a contribution to the gradient of a parameter, now or in a later slot. A frozen one has none.
    pub(crate) fn parameter_gradient(
        &mut self,
        parameter: ParameterId,
        axes: AxisSet,
        layer: &str,
        kernel: impl FnOnce(View, bool) -> Option<Kernel>,
    ) {
        if !self.graph.parameter(parameter).is_trained() {
            return;
        }
        if !self.defers {
            return self.add_gradient(parameter, axes, layer, kernel);
        }
        let key = (parameter, self.builder.submesh, axes);
        let view = self.parameter_gradients[&key].view();
        self.deferred.push(Deferred {
            key,
            layer: self.layer_id,
            name: layer.to_owned(),
            kernel: kernel(view, false),
        });
    }

    /// Adds the deferred contributions of the current micro-batch, last layers first.
    pub(crate) fn deferred_gradients(&mut self) {
        let layers = self.network.layers.len();
        let number = self.take_numbers(layers + 1);
        let mut last = None;
        for one in std::mem::take(&mut self.deferred) {
            let (parameter, submesh, axes) = one.key;
            if last.replace(one.layer) != Some(one.layer) {
                let at = (layers - one.layer.0) as u32;
                self.builder.number_from(number + NUMBERS * at);
            }
            self.builder.turn = self.turn_of(self.slot, one.layer);
            self.builder.enter(submesh);
            self.add_gradient(parameter, axes, &one.name, |_, accumulate| {
                let mut kernel = one.kernel?;
                set_accumulate(&mut kernel, accumulate);
                Some(kernel)
            });
        }
    }

    /// Adds a contribution to the gradient of a parameter; after the last, reduces it over ranks, unless several
    /// submeshes have the parameter.
    pub(crate) fn add_gradient(
        &mut self,
        parameter: ParameterId,
        axes: AxisSet,
        layer: &str,
        kernel: impl FnOnce(View, bool) -> Option<Kernel>,
    ) {
        let key = (parameter, self.builder.submesh, axes);
        let mut state = self.parameter_gradients[&key];
        if let Some(kernel) = kernel(state.view(), state.written) {
            self.builder.kernel(layer, Phase::Backward, kernel);
            state.written = true;
        } else if self.graph.parameter(parameter).role == ParameterRole::Beta {
            // Its kernel is that of gamma.
            state.written = true;
        }
        state.open -= 1;
        if state.open == 0 {
            if !state.written {
                self.builder.fill(layer, Phase::Backward, state.view(), 0.0);
            }
            if !self.is_on_several_submeshes(parameter) {
                self.sum_gradient(parameter, axes, &mut state);
            }
        }
        self.parameter_gradients.insert(key, state);
    }

    pub(crate) fn sum_gradient(
        &mut self,
        parameter: ParameterId,
        axes: AxisSet,
        state: &mut ParameterGradient,
    ) {
        let (share_distribution, whole) = self.share_and_whole(parameter);
        let Some((share, has_sum)) = &mut state.share else {
            return self.sum_in_bucket(parameter, &whole, axes, state.view());
        };
        let to = Destination {
            held: *share,
            distribution: share_distribution,
            accumulate: *has_sum,
        };
        let from = whole;
        *has_sum = true;
        // The next micro-batch starts a new sum.
        state.open = state.uses;
        state.written = false;
        let (what, from) = ((parameter, Role::Gradient), (state.held, from, axes));
        self.move_parameter(what, Phase::Reduce, from, to);
    }

    /// Sums a gradient over ranks, together with others if there are buckets. A bucket is full on all ranks at the
    /// same time, whatever their parts.
    fn sum_in_bucket(
        &mut self,
        parameter: ParameterId,
        whole: &Distribution,
        axes: AxisSet,
        view: View,
    ) {
        let name = self.graph.parameter(parameter).name.clone();
        let full = self.request.strategy.bucket.0;
        let is_alone = self.builder.mesh.group_size(axes) == 1;
        if full == 0 || is_alone || self.is_on_several_submeshes(parameter) {
            return self.allreduce(&name, Phase::Reduce, axes, view);
        }
        let mesh = &self.builder.mesh;
        let parts = (0..5).map(|dim| whole.shape[dim].div_ceil(mesh.parts(whole.axes[dim])) as u64);
        let elements = parts.fold(1, u64::saturating_mul);
        let bytes = elements.saturating_mul(self.request.dtype.arithmetic().size() as u64);
        let key = (self.builder.submesh, axes);
        let bucket = self.buckets.entry(key).or_default();
        bucket.add(&name, view, bytes);
        if bucket.bytes >= full {
            self.sum_bucket(axes);
        }
    }

    /// Sums the gradients that wait in a bucket of the current submesh.
    fn sum_bucket(&mut self, axes: AxisSet) {
        if let Some(bucket) = self.buckets.remove(&(self.builder.submesh, axes)) {
            let (name, views) = (bucket.name(), bucket.views);
            self.builder
                .allreduce_all(&name, Phase::Reduce, axes, views);
        }
    }

    /// Sums the gradients that wait in buckets, however few.
    pub(crate) fn sum_buckets(&mut self) {
        if self.request.strategy.bucket.0 == 0 {
            return;
        }
        let plan = self.plan;
        let layers = plan
            .networks
            .iter()
            .flat_map(|(network, _)| &network.layers);
        let layers = layers.filter(|layer| !layer.parameters.is_empty());
        // The same on all ranks.
        let keys: BTreeSet<(Option<Submesh>, AxisSet)> = layers
            .map(|layer| {
                let axes = gradient_axes(layer, plan.local_statistics);
                (layer.distribution.submesh, axes)
            })
            .collect();
        for (submesh, axes) in keys {
            self.reserve_numbers();
            if self.builder.enter(submesh) {
                self.sum_bucket(axes);
            }
        }
    }

    /// Views of the gradients of scale and shift of a normalization, and whether to accumulate. One kernel
    /// writes both, so where only one of them has been written the other is cleared first. A frozen one has a view
    /// that nothing reads.
    pub(crate) fn scale_and_shift(
        &mut self,
        ids: [ParameterId; 2],
        axes: AxisSet,
        layer: &str,
    ) -> ([View; 2], bool) {
        let views = ids.map(|id| {
            let key = (id, self.builder.submesh, axes);
            match self.parameter_gradients.get(&key) {
                Some(state) => (state.view(), state.written),
                None => (self.unread_gradient(id), false),
            }
        });
        let accumulate = views.iter().any(|&(_, written)| written);
        for &(view, _) in views.iter().filter(|&&(_, written)| accumulate && !written) {
            self.builder.fill(layer, Phase::Backward, view, 0.0);
        }
        (views.map(|(view, _)| view), accumulate)
    }

    /// Scratch for the gradient of a frozen parameter.
    fn unread_gradient(&mut self, id: ParameterId) -> View {
        let whole = self.whole_on(id, self.builder.submesh);
        let dims = self.builder.owned(&whole).shape();
        let name = format!("d.{}.unread", self.graph.parameter(id).name);
        let dtype = self.builder.dtype.arithmetic();
        let scratch = self.builder.buffer(&name, Role::Workspace, dtype, dims);
        self.builder.whole(scratch)
    }

    /// Whether any of these parameters is trained.
    pub(crate) fn trains_any(&self, ids: &[ParameterId]) -> bool {
        ids.iter().any(|&id| self.graph.parameter(id).is_trained())
    }

    /// Adds contributions to the gradients of scale and shift of a normalization, which one kernel writes; where
    /// there is none, the caller has cleared that of the shift.
    pub(crate) fn add_scale_and_shift(
        &mut self,
        [gamma, beta]: [ParameterId; 2],
        axes: AxisSet,
        layer: &str,
        kernel: Option<Kernel>,
    ) {
        if self.trains_any(&[gamma]) {
            self.add_gradient(gamma, axes, layer, |_, _| kernel);
        } else if let Some(kernel) = kernel {
            self.builder.kernel(layer, Phase::Backward, kernel);
        }
        if self.trains_any(&[beta]) {
            self.add_gradient(beta, axes, layer, |_, _| None);
        }
    }
}

/// Sets `accumulate` of the gradient of a weight, a bias or slopes.
fn set_accumulate(kernel: &mut Kernel, adds: bool) {
    match kernel {
        Kernel::ConvolutionBackwardWeight { accumulate, .. }
        | Kernel::BiasBackward { accumulate, .. }
        | Kernel::EmbeddingBackward { accumulate, .. }
        | Kernel::PreluBackwardSlopes { accumulate, .. }
        | Kernel::LinearBackwardWeight { accumulate, .. } => *accumulate = adds,
        other => panic!("{} is no gradient of a weight", other.name()),
    }
}
