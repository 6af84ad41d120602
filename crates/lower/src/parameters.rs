//! What is kept of parameters, their gradients from the first contribution to the sum over ranks, and
//! their update.

use crate::arena;
use crate::body::Held;
use crate::lowering::Emit;
use crate::network::positions;
use crate::redistribute::{Cargo, Destination};
use crate::strategy::Shard;
use partita_graph::{NodeId, Op, ParameterId, ParameterRole};
use partita_program::{Kernel, Optimizer, Phase, Place, Role, View};
use partita_space::AxisSet;
use std::collections::BTreeMap;

/// Gradient of a parameter from the uses that are partial along the same axes.
#[derive(Clone, Copy)]
pub(crate) struct ParameterGradient {
    held: Held,
    written: bool,
    /// Uses whose contribution is still to come before it is summed over ranks.
    open: usize,
    /// Uses in a micro-batch.
    uses: usize,
    /// Where the own share of the sum goes, and whether a micro-batch has been there before.
    share: Option<(Held, bool)>,
}

impl ParameterGradient {
    fn view(&self) -> View {
        self.held.view(&self.held.region)
    }

    /// The sum over ranks, once it is complete.
    fn sum(&self) -> View {
        let held = self.share.map_or(self.held, |(share, _)| share);
        held.view(&held.region)
    }
}

impl Emit<'_> {
    /// Memory for what outlives the step.
    pub(crate) fn persistent(&mut self) {
        let moment_names: &[&str] = match self.request.optimizer {
            Optimizer::Sgd { momentum: 0.0, .. } => &[],
            Optimizer::Sgd { .. } => &["velocity"],
            Optimizer::Adam { .. } => &["first_moment", "second_moment"],
        };
        let mut list: Vec<(Role, String, usize)> = Vec::new();
        for (index, parameter) in self.graph.parameters.iter().enumerate() {
            if parameter.role.is_trained() {
                list.push((Role::Parameter, parameter.name.clone(), index));
                for moment in moment_names {
                    let name = format!("{}.{moment}", parameter.name);
                    list.push((Role::Optimizer, name, index));
                }
            } else {
                list.push((Role::State, parameter.name.clone(), index));
            }
        }
        list.sort_by_key(|(role, ..)| arena::persistent_order(*role));
        let mut own: Vec<Option<Held>> = vec![None; self.graph.parameters.len()];
        self.moments = vec![Vec::new(); self.graph.parameters.len()];
        for (role, name, index) in list {
            let id = ParameterId(index);
            let is_share = match role {
                Role::Optimizer => true,
                _ => self.request.strategy.shard == Shard::Parameters,
            };
            let place = match is_share {
                true => self.network.shares[index],
                false => self.network.parameters[index],
            };
            let held = self.parameter_buffer(&name, role, id, place);
            match role {
                Role::Optimizer => self.moments[index].push(held.view(&held.region)),
                _ => own[index] = Some(held),
            }
        }
        self.parameters = own.into_iter().flatten().collect();
        self.stage_samples();
    }

    /// A buffer for what the rank has of a parameter, or of what goes with it.
    fn parameter_buffer(&mut self, name: &str, role: Role, id: ParameterId, place: Place) -> Held {
        let region = place.owned(self.builder.mesh, &self.builder.coord);
        if self.network.shares[id.0].split_axes().is_empty() {
            let dtype = self.builder.dtype;
            let id = self.builder.buffer(name, role, dtype, place.shape);
            return Held { id, region };
        }
        let tensor = self.parameter_tensor(id, role);
        self.builder.held(name, role, tensor, place, region)
    }

    /// Activations and their gradients have the numbers below.
    fn parameter_tensor(&self, id: ParameterId, role: Role) -> u32 {
        let first = 2 * self.storages.all.len() as u32;
        first + 2 * id.0 as u32 + u32::from(role == Role::Gradient)
    }

    /// A parameter of a layer as the layer's kernels take it.
    pub(crate) fn parameter(&self, node: NodeId, index: usize) -> View {
        let id = self.layer(node).parameters[index];
        let held = self.gathered.get(&id).unwrap_or(&self.parameters[id.0]);
        held.view(&held.region)
    }

    /// Gathers what the kernels of a layer take of parameters that are kept by shares.
    pub(crate) fn gather_parameters(&mut self, node: NodeId, phase: Phase) {
        self.gathered.clear();
        for id in self.layer(node).parameters.clone() {
            let (share, whole) = (self.network.shares[id.0], self.network.parameters[id.0]);
            if self.request.strategy.shard != Shard::Parameters || share == whole {
                continue;
            }
            let name = format!("{}.gathered", self.graph.parameter(id).name);
            let held = self.parameter_buffer(&name, Role::Gathered, id, whole);
            let to = Destination {
                held,
                place: whole,
                accumulate: false,
            };
            let from = (self.parameters[id.0], share, AxisSet::NONE);
            self.move_parameter((id, Role::Gathered), phase, from, to);
            self.gathered.insert(id, held);
        }
    }

    /// Counts how often each parameter contributes, so that its reduction starts after the last.
    pub(crate) fn open_parameter_gradients(&mut self) {
        for index in 0..self.network.layers.len() {
            let id = NodeId(index);
            let axes = match self.layer(id).op() {
                Some(Op::BatchNorm { .. }) => AxisSet::NONE,
                _ => positions(self.place(id)),
            };
            for parameter in self.layer(id).parameters.clone() {
                if !self.graph.parameter(parameter).role.is_trained() {
                    continue;
                }
                let key = (parameter, axes);
                if !self.parameter_gradients.contains_key(&key) {
                    let gradient = self.open_gradient(parameter);
                    self.parameter_gradients.insert(key, gradient);
                }
                if let Some(known) = self.parameter_gradients.get_mut(&key) {
                    known.uses += 1;
                }
            }
        }
        let sums = match self.request.strategy.shard {
            Shard::Off | Shard::Optimizer => self.micro_batches,
            Shard::Gradients | Shard::Parameters => 1,
        };
        for gradient in self.parameter_gradients.values_mut() {
            let is_shared = gradient.share.is_some();
            let uses_before_sum = if is_shared { sums } else { self.micro_batches };
            gradient.open = uses_before_sum * gradient.uses;
        }
    }

    fn open_gradient(&mut self, parameter: ParameterId) -> ParameterGradient {
        let name = format!("d.{}", self.graph.parameter(parameter).name);
        let (whole, share) = (
            self.network.parameters[parameter.0],
            self.network.shares[parameter.0],
        );
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
            uses: 0,
            share,
        }
    }

    /// One contribution to the gradient of a parameter; after the last, the sum over ranks.
    pub(crate) fn parameter_gradient(
        &mut self,
        parameter: ParameterId,
        axes: AxisSet,
        layer: &str,
        kernel: impl FnOnce(View, bool) -> Option<Kernel>,
    ) {
        let mut state = self.parameter_gradients[&(parameter, axes)];
        if let Some(kernel) = kernel(state.view(), state.written) {
            self.builder.kernel(layer, Phase::Backward, kernel);
            state.written = true;
        } else if self.graph.parameter(parameter).role == ParameterRole::Beta {
            // Written together with gamma.
            state.written = true;
        }
        state.open -= 1;
        if state.open == 0 {
            if !state.written {
                self.builder.fill(layer, Phase::Backward, state.view(), 0.0);
            }
            self.sum_gradient(parameter, axes, &mut state);
        }
        self.parameter_gradients.insert((parameter, axes), state);
    }

    fn sum_gradient(
        &mut self,
        parameter: ParameterId,
        axes: AxisSet,
        state: &mut ParameterGradient,
    ) {
        let Some((share, has_sum)) = &mut state.share else {
            let name = self.graph.parameter(parameter).name.clone();
            return self.allreduce(&name, Phase::Reduce, axes, state.view());
        };
        let to = Destination {
            held: *share,
            place: self.network.shares[parameter.0],
            accumulate: *has_sum,
        };
        let from = self.network.parameters[parameter.0];
        *has_sum = true;
        // The next micro-batch begins anew.
        state.open = state.uses;
        state.written = false;
        let (what, from) = ((parameter, Role::Gradient), (state.held, from, axes));
        self.move_parameter(what, Phase::Reduce, from, to);
    }

    /// Both gradients of a norm, from uses that are partial along these axes, as they stand: where to
    /// write, and whether to add.
    ///
    /// One kernel writes both, so where only one of them is shared the other is cleared first.
    pub(crate) fn scale_and_shift(
        &mut self,
        ids: [ParameterId; 2],
        axes: AxisSet,
        layer: &str,
    ) -> ([View; 2], bool) {
        let states = ids.map(|id| self.parameter_gradients[&(id, axes)]);
        let accumulate = states.iter().any(|state| state.written);
        for state in states.iter().filter(|state| accumulate && !state.written) {
            self.builder.fill(layer, Phase::Backward, state.view(), 0.0);
        }
        (states.map(|state| state.view()), accumulate)
    }

    pub(crate) fn update(&mut self) {
        let mut gradients: Vec<(ParameterId, View)> = Vec::new();
        // Gradients of the last layers are complete first.
        let all = self.parameter_gradients.iter().rev();
        let all: Vec<_> = all.map(|(&(id, _), state)| (id, state.sum())).collect();
        for (parameter, source) in all {
            match gradients.iter().find(|(known, _)| *known == parameter) {
                None => gradients.push((parameter, source)),
                Some(&(_, target)) => {
                    let name = self.graph.parameter(parameter).name.clone();
                    let copy = Kernel::Copy {
                        source,
                        target,
                        accumulate: true,
                    };
                    self.builder.kernel(&name, Phase::Update, copy);
                }
            }
        }
        let clip = self
            .request
            .clip
            .map(|maximum| (self.norm(&gradients), maximum));
        let shares: Vec<Held> = gradients
            .iter()
            .map(|&(id, _)| self.own_share(id))
            .collect();
        for (&(id, gradient), share) in gradients.iter().zip(&shares) {
            let kernel = Kernel::Update {
                rule: self.request.optimizer,
                parameter: share.view(&share.region),
                gradient,
                moments: self.moments[id.0].clone(),
                clip,
            };
            let name = self.graph.parameter(id).name.clone();
            self.builder.kernel(&name, Phase::Update, kernel);
        }
        for (&(id, _), share) in gradients.iter().zip(shares) {
            self.complete_parameter(id, share);
        }
    }

    /// What the rank moves of a parameter: all that it keeps, or a copy of its share of the whole.
    fn own_share(&mut self, id: ParameterId) -> Held {
        let (share, whole) = (self.network.shares[id.0], self.network.parameters[id.0]);
        let kept = self.parameters[id.0];
        if share == whole || self.request.strategy.shard == Shard::Parameters {
            return kept;
        }
        let name = self.graph.parameter(id).name.clone();
        let held = self.parameter_buffer(&format!("{name}.share"), Role::Gathered, id, share);
        let copy = Kernel::Copy {
            source: kept.view(&held.region),
            target: held.view(&held.region),
            accumulate: false,
        };
        if !held.region.is_empty() {
            self.builder.kernel(&name, Phase::Update, copy);
        }
        held
    }

    /// Each rank has moved its share; those who use the whole get what the others have moved.
    fn complete_parameter(&mut self, id: ParameterId, own: Held) {
        let held = self.parameters[id.0];
        if own.id == held.id {
            return;
        }
        let to = Destination {
            held,
            place: self.network.parameters[id.0],
            accumulate: false,
        };
        let from = (own, self.network.shares[id.0], AxisSet::NONE);
        self.move_parameter((id, Role::Parameter), Phase::Update, from, to);
    }

    /// Brings a parameter, or what goes with it, from where it is held, as a sum still due along some
    /// axes, to its destination.
    fn move_parameter(
        &mut self,
        (id, role): (ParameterId, Role),
        phase: Phase,
        (source, place, partial): (Held, Place, AxisSet),
        to: Destination,
    ) {
        let layer = self.graph.parameter(id).name.clone();
        let cargo = Cargo {
            layer: &layer,
            phase,
            role,
            tensor: self.parameter_tensor(id, role),
        };
        self.redistribute(cargo, source, (place, partial), to);
    }

    /// Sum of the squares of all gradients, each element counted once.
    fn norm(&mut self, gradients: &[(ParameterId, View)]) -> View {
        let mut shares: BTreeMap<AxisSet, Vec<View>> = BTreeMap::new();
        for &(id, view) in gradients {
            let axes = self.network.shares[id.0].split_axes();
            shares.entry(axes).or_default().push(view);
        }
        let name = "gradient_norm";
        let totals: Vec<View> = shares
            .into_iter()
            .map(|(axes, sources)| {
                let total = self.builder.sums(name, 1, 1);
                let kernel = Kernel::SumOfSquares { sources, total };
                self.builder.kernel(name, Phase::Update, kernel);
                self.allreduce(name, Phase::Update, axes, total);
                total
            })
            .collect();
        for &source in &totals[1..] {
            let copy = Kernel::Copy {
                source,
                target: totals[0],
                accumulate: true,
            };
            self.builder.kernel(name, Phase::Update, copy);
        }
        totals[0]
    }
}
