//! Gradients of parameters: contributions of layers and micro-batches, and their sums over ranks.
//!
//! Where gradients are summed in buckets, an allreduce has several views. A bucket is full on all ranks at the same
//! time, since it is measured by the largest part of each parameter; so message numbers agree.

use super::parameter_gradient::{Bucket, Deferred, Key, ParameterGradient};
use crate::body::{Builder, NUMBERS, TensorBuffer};
use crate::network::{LayerId, Network, gradient_axes};
use crate::redistribute::Destination;
use crate::step_plan::StepPlan;
use partita_graph::{ParameterId, ParameterRole};
use partita_program::{Distribution, Kernel, Phase, Role, View};
use partita_space::{AxisSet, Submesh};
use std::collections::{BTreeMap, BTreeSet};

/// The gradients of all parameters on a rank.
pub(crate) struct ParameterGradients<'a> {
    pub(super) plan: &'a StepPlan<'a>,
    pub(super) of: BTreeMap<Key, ParameterGradient>,
    /// Gradients that wait to be summed over ranks together.
    buckets: BTreeMap<(Option<Submesh>, AxisSet), Bucket>,
    /// Contributions deferred to a slot of their own, by micro-batch.
    deferred: Vec<Vec<Deferred>>,
    /// The micro-batch whose contributions are deferred now.
    pub deferring: Option<usize>,
    /// The layer whose backward pass is emitted.
    pub layer: LayerId,
}

impl<'a> ParameterGradients<'a> {
    pub fn new(plan: &'a StepPlan<'a>) -> Self {
        let mut deferred = Vec::new();
        deferred.resize_with(plan.networks.len(), Vec::new);
        Self {
            plan,
            of: BTreeMap::new(),
            buckets: BTreeMap::new(),
            deferred,
            deferring: None,
            layer: LayerId(0),
        }
    }

    /// Counts the contributions to each gradient, so that its reduction starts after the last.
    pub(crate) fn open(&mut self, builder: &mut Builder<'_>) {
        let mut total: BTreeMap<Key, usize> = BTreeMap::new();
        let plan = self.plan;
        for (network, _) in &plan.networks {
            let mut uses: BTreeMap<Key, usize> = BTreeMap::new();
            for layer in &network.layers {
                if !builder.is_in(layer.distribution.submesh) {
                    continue;
                }
                let axes = gradient_axes(layer, plan.local_statistics);
                for &parameter in &layer.parameters {
                    if plan.parameter(parameter).is_trained() {
                        *uses
                            .entry((parameter, layer.distribution.submesh, axes))
                            .or_default() += layer.chunks.map_or(1, |chunks| chunks.count);
                    }
                }
            }
            for (key, uses) in uses {
                *total.entry(key).or_default() += uses;
                if !self.of.contains_key(&key) {
                    let gradient = self.opened(builder, key, network, uses);
                    self.of.insert(key, gradient);
                }
            }
        }
        for (key, gradient) in &mut self.of {
            let is_each_time = gradient.is_summed_each_time(plan.request.strategy.shard);
            let open = if is_each_time {
                gradient.uses
            } else {
                total[key]
            };
            (gradient.open, gradient.sums) = (open, total[key] / open);
        }
    }

    /// The buffer of the own contributions to a gradient.
    fn own_buffer(
        &self,
        builder: &mut Builder<'_>,
        parameter: ParameterId,
        whole: Distribution,
    ) -> TensorBuffer {
        let name = format!("d.{}", self.plan.parameter(parameter).name);
        self.plan
            .parameter_buffer(builder, &name, Role::Gradient, parameter, whole)
    }

    fn opened(
        &mut self,
        builder: &mut Builder<'_>,
        (parameter, submesh, _): Key,
        network: &Network,
        uses: usize,
    ) -> ParameterGradient {
        let whole = *network.parameters[parameter.0]
            .iter()
            .find(|distribution| distribution.submesh == submesh)
            .expect("layers use parameters that lie with them");
        let share = self.plan.share_of(parameter, whole);
        let held = self.own_buffer(builder, parameter, whole);
        let share = (share != whole).then(|| {
            let name = format!("d.{}.share", self.plan.parameter(parameter).name);
            let held = self
                .plan
                .parameter_buffer(builder, &name, Role::Gradient, parameter, share);
            (held, false)
        });
        ParameterGradient {
            held,
            written: false,
            open: 0,
            sums: 0,
            uses,
            share,
        }
    }

    /// Adds a contribution to the gradient of a parameter, now or in a later slot. A frozen one has none.
    pub(crate) fn contribute(
        &mut self,
        builder: &mut Builder<'_>,
        parameter: ParameterId,
        axes: AxisSet,
        layer: &str,
        kernel: impl FnOnce(View, bool) -> Option<Kernel>,
    ) {
        if !self.plan.parameter(parameter).is_trained() {
            return;
        }
        let Some(micro) = self.deferring else {
            return self.add(builder, parameter, axes, layer, kernel);
        };
        let key = (parameter, builder.submesh, axes);
        let view = self.of[&key].view();
        self.deferred[micro].push(Deferred {
            key,
            layer: self.layer,
            name: layer.to_owned(),
            kernel: kernel(view, false),
        });
    }

    /// Adds the deferred contributions of the micro-batch of a slot, last layers first.
    pub(crate) fn add_deferred(&mut self, builder: &mut Builder<'_>, slot: usize) {
        let layers = self.plan.networks[0].0.layers.len();
        let number = builder.take_numbers(layers + 1);
        let mut last = None;
        for one in std::mem::take(&mut self.deferred[self.plan.slots[slot].micro]) {
            let (parameter, submesh, axes) = one.key;
            if last.replace(one.layer) != Some(one.layer) {
                let at = (layers - one.layer.0) as u32;
                builder.number_from(number + NUMBERS * at);
            }
            builder.turn = self.plan.turn_of(slot, one.layer);
            builder.enter(submesh);
            self.add(builder, parameter, axes, &one.name, |view, accumulate| {
                let mut kernel = one.kernel?;
                set_gradient(&mut kernel, view, accumulate);
                Some(kernel)
            });
        }
    }

    /// Adds a contribution to the gradient of a parameter; after the last, reduces it over ranks, unless several
    /// submeshes have the whole parameter.
    pub(crate) fn add(
        &mut self,
        builder: &mut Builder<'_>,
        parameter: ParameterId,
        axes: AxisSet,
        layer: &str,
        kernel: impl FnOnce(View, bool) -> Option<Kernel>,
    ) {
        let key = (parameter, builder.submesh, axes);
        let mut state = self.of[&key];
        if let Some(kernel) = kernel(state.view(), state.written) {
            builder.kernel(layer, Phase::Backward, kernel);
            state.written = true;
        } else if self.plan.parameter(parameter).role == ParameterRole::Beta {
            // Its kernel is that of gamma.
            state.written = true;
        }
        state.open -= 1;
        if state.open == 0 {
            if !state.written {
                builder.fill(layer, Phase::Backward, state.view(), 0.0);
            }
            let is_apart = self.plan.is_on_several_submeshes(parameter);
            if !is_apart || state.is_summed_each_time(self.plan.request.strategy.shard) {
                self.sum(builder, parameter, axes, &mut state);
            }
        }
        self.of.insert(key, state);
    }

    pub(super) fn sum(
        &mut self,
        builder: &mut Builder<'_>,
        parameter: ParameterId,
        axes: AxisSet,
        state: &mut ParameterGradient,
    ) {
        let (share_distribution, whole) = self.plan.share_and_whole(builder, parameter);
        let Some((share, has_sum)) = &mut state.share else {
            return self.sum_in_bucket(builder, parameter, &whole, axes, state.view());
        };
        let to = Destination {
            held: *share,
            distribution: share_distribution,
            accumulate: *has_sum,
        };
        let from = whole;
        *has_sum = true;
        let (what, own) = ((parameter, Role::Gradient), (state.held, from, axes));
        self.plan
            .move_parameter(builder, what, Phase::Reduce, own, to);
        state.sums -= 1;
        if state.sums > 0 {
            // The next micro-batch starts a new sum in a buffer of its own, so that none lives between them.
            state.held = self.own_buffer(builder, parameter, from);
            state.open = state.uses;
            state.written = false;
        }
    }

    /// Sums a gradient over ranks, together with others if there are buckets. A bucket is full on all ranks at the
    /// same time, whatever their parts.
    fn sum_in_bucket(
        &mut self,
        builder: &mut Builder<'_>,
        parameter: ParameterId,
        whole: &Distribution,
        axes: AxisSet,
        view: View,
    ) {
        let name = self.plan.parameter(parameter).name.clone();
        let full = self.plan.request.strategy.bucket.0;
        let is_alone = builder.mesh.group_size(axes) == 1;
        if full == 0 || is_alone || self.plan.is_on_several_submeshes(parameter) {
            return builder.allreduce(&name, Phase::Reduce, axes, view);
        }
        let mesh = &builder.mesh;
        let parts = (0..5).map(|dim| whole.shape[dim].div_ceil(mesh.parts(whole.axes[dim])) as u64);
        let elements = parts.fold(1, u64::saturating_mul);
        let bytes = elements.saturating_mul(self.plan.request.dtype.arithmetic().size() as u64);
        let key = (builder.submesh, axes);
        let bucket = self.buckets.entry(key).or_default();
        bucket.add(&name, view, bytes);
        if bucket.bytes >= full {
            self.sum_bucket(builder, axes);
        }
    }

    /// Sums the gradients that wait in a bucket of the current submesh.
    fn sum_bucket(&mut self, builder: &mut Builder<'_>, axes: AxisSet) {
        if let Some(bucket) = self.buckets.remove(&(builder.submesh, axes)) {
            let (name, views) = (bucket.name(), bucket.views);
            builder.allreduce_all(&name, Phase::Reduce, axes, views);
        }
    }

    /// Sums the gradients that wait in buckets, however few.
    pub(crate) fn sum_buckets(&mut self, builder: &mut Builder<'_>) {
        if self.plan.request.strategy.bucket.0 == 0 {
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
            builder.reserve_numbers();
            if builder.enter(submesh) {
                self.sum_bucket(builder, axes);
            }
        }
    }

    /// Views of the gradients of scale and shift of a normalization, and whether to accumulate. One kernel
    /// writes both, so where only one of them has been written the other is cleared first. A frozen one has a view
    /// that nothing reads.
    pub(crate) fn scale_and_shift(
        &mut self,
        builder: &mut Builder<'_>,
        ids: [ParameterId; 2],
        axes: AxisSet,
        layer: &str,
    ) -> ([View; 2], bool) {
        let views = ids.map(|id| {
            let key = (id, builder.submesh, axes);
            match self.of.get(&key) {
                Some(state) => (state.view(), state.written),
                None => (self.unread_gradient(builder, id), false),
            }
        });
        let accumulate = views.iter().any(|&(_, written)| written);
        for &(view, _) in views.iter().filter(|&&(_, written)| accumulate && !written) {
            builder.fill(layer, Phase::Backward, view, 0.0);
        }
        (views.map(|(view, _)| view), accumulate)
    }

    /// Scratch for the gradient of a frozen parameter.
    fn unread_gradient(&mut self, builder: &mut Builder<'_>, id: ParameterId) -> View {
        let whole = self.plan.whole_on(id, builder.submesh);
        let dims = builder.owned(&whole).shape();
        let name = format!("d.{}.unread", self.plan.parameter(id).name);
        let dtype = builder.dtype.arithmetic();
        let scratch = builder.buffer(&name, Role::Workspace, dtype, dims);
        builder.whole(scratch)
    }

    /// Whether any of these parameters is trained.
    pub(crate) fn trains_any(&self, ids: &[ParameterId]) -> bool {
        ids.iter().any(|&id| self.plan.parameter(id).is_trained())
    }

    /// Adds contributions to the gradients of scale and shift of a normalization, which one kernel writes; where
    /// there is none, the caller has cleared that of the shift.
    pub(crate) fn add_scale_and_shift(
        &mut self,
        builder: &mut Builder<'_>,
        [gamma, beta]: [ParameterId; 2],
        axes: AxisSet,
        layer: &str,
        kernel: Option<Kernel>,
    ) {
        if self.trains_any(&[gamma]) {
            self.add(builder, gamma, axes, layer, |_, _| kernel);
        } else if let Some(kernel) = kernel {
            builder.kernel(layer, Phase::Backward, kernel);
        }
        if self.trains_any(&[beta]) {
            self.add(builder, beta, axes, layer, |_, _| None);
        }
    }
}

/// Sets where the kernel of the gradient of a weight, a bias or slopes writes, and whether it adds there.
fn set_gradient(kernel: &mut Kernel, view: View, adds: bool) {
    let (gradient, accumulate) = match kernel {
        Kernel::ConvolutionBackwardWeight { dw, accumulate, .. }
        | Kernel::EmbeddingBackward { dw, accumulate, .. }
        | Kernel::LinearBackwardWeight { dw, accumulate, .. } => (dw, accumulate),
        Kernel::BiasBackward { db, accumulate, .. } => (db, accumulate),
        Kernel::AttentionBackwardBias {
            dbias, accumulate, ..
        } => (dbias, accumulate),
        Kernel::PreluBackwardSlopes {
            dslopes,
            accumulate,
            ..
        } => (dslopes, accumulate),
        other => panic!("{} is no gradient of a weight", other.name()),
    };
    (*gradient, *accumulate) = (view, adds);
}
