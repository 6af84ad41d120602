//! From complete gradients to moved parameters, on every rank that holds them.
//!
//! Where several groups of ranks hold a parameter, as both replicas of a bidirectional pipeline do or
//! stages that share it, the first of them is its owner and alone keeps the state of the optimizer. The
//! addends of the second replica go to the same places of the first before the sum over ranks, the sums
//! of other stages after it, and what has moved comes back to all.
//!
//! A rank may be among both the ranks that give and those that get, as stages of two replicas share ranks:
//! what it sends and what it receives of one movement is one exchange. Every rank counts every movement
//! and every sum, its own or not, so that each has a number of its own that is the same on all ranks.

use crate::body::TensorBuffer;
use crate::emit::Emit;
use crate::network::LayerId;
use crate::parameter_gradient::Key;
use crate::redistribute::{Destination, MovedTensor};
use crate::resharding::Resharding;
use crate::strategy::Shard;
use partita_graph::{Op, ParameterId};
use partita_program::{Distribution, Kernel, Phase, Role, View};
use partita_space::{AxisSet, Submesh};
use std::collections::{BTreeMap, BTreeSet};

impl Emit<'_> {
    pub(crate) fn update(&mut self) {
        self.late_running();
        let ids = || (0..self.graph.parameters.len()).map(ParameterId);
        let all: Vec<ParameterId> = ids().collect();
        let apart: Vec<ParameterId> = ids().filter(|&id| self.is_held_apart(id)).collect();
        let mut sums: BTreeMap<ParameterId, Option<View>> = BTreeMap::new();
        for &id in &apart {
            if self.graph.parameter(id).role.is_trained() {
                let sum = self.sum_apart(id);
                sums.insert(id, sum);
            }
        }
        let gradients = self.own_gradients(&sums);
        let clip = self
            .request
            .clip
            .map(|maximum| (self.norm(&gradients), maximum));
        let mut shares: BTreeMap<ParameterId, TensorBuffer> = BTreeMap::new();
        for &(id, _) in &gradients {
            let share = self.own_share(id);
            shares.insert(id, share);
        }
        for (id, gradient) in gradients {
            let share = shares[&id];
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
        // Those of the last layers come first.
        for &id in all.iter().rev() {
            self.number_anew();
            if let Some(&share) = shares.get(&id) {
                self.complete_parameter(id, share);
            }
        }
        for &id in &apart {
            self.hand_out(id);
        }
    }

    /// Goes to numbers that nothing else has; on all ranks alike. Where all layers run on all ranks,
    /// numbers go on without gaps.
    fn number_anew(&mut self) {
        let number = self.take_numbers(1);
        if !self.is_whole() {
            self.builder.number_from(number);
        }
    }

    /// The number of one movement between groups of ranks; taken on all ranks alike.
    fn number_of_movement(&mut self) -> u32 {
        self.number_anew();
        self.builder.next_sequence()
    }

    /// The complete gradients of what the rank moves.
    fn own_gradients(
        &mut self,
        apart: &BTreeMap<ParameterId, Option<View>>,
    ) -> Vec<(ParameterId, View)> {
        let mut gradients: Vec<(ParameterId, View)> = Vec::new();
        // Gradients of the last layers are complete first.
        let all: Vec<(Key, View)> = self
            .parameter_gradients
            .iter()
            .rev()
            .map(|(&key, state)| (key, state.sum()))
            .collect();
        for ((parameter, _, _), source) in all {
            let known = gradients.iter().find(|(known, _)| *known == parameter);
            match (known, apart.get(&parameter)) {
                (Some(_), Some(_)) => {}
                (None, Some(sum)) => gradients.extend(sum.map(|sum| (parameter, sum))),
                (None, None) => gradients.push((parameter, source)),
                (Some(&(_, target)), None) => self.add(parameter, source, target),
            }
        }
        gradients
    }

    fn add(&mut self, parameter: ParameterId, source: View, target: View) {
        let name = self.graph.parameter(parameter).name.clone();
        let copy = Kernel::Copy {
            source,
            target,
            accumulate: true,
        };
        if !target.is_empty() {
            self.builder.kernel(&name, Phase::Update, copy);
        }
    }

    /// Adds up what all holders of a parameter have of its gradient; the sum, where the rank moves it.
    fn sum_apart(&mut self, id: ParameterId) -> Option<View> {
        let plan = self.plan;
        let (holders, keys) = (&plan.holders[id.0], &plan.keys[id.0]);
        let distribution = |submesh: Option<Submesh>| {
            let distribution = holders
                .iter()
                .find(|distribution| distribution.submesh == submesh);
            *distribution.expect("who uses a parameter holds it")
        };
        let owner = holders[0];
        for &(submesh, axes) in keys {
            let first_replica = plan.first_replica_of(submesh);
            if first_replica != submesh {
                let resharding = Resharding::of_partial_sums(
                    &plan.world,
                    &distribution(submesh),
                    &distribution(first_replica),
                );
                let ends = ((id, submesh, axes), (id, first_replica, axes));
                self.add_across(ends, &resharding);
            }
        }
        let is_own = |submesh: &Option<Submesh>| plan.first_replica_of(*submesh) == *submesh;
        let mut sums: BTreeMap<Option<Submesh>, Key> = BTreeMap::new();
        for &(submesh, axes) in keys {
            self.number_anew();
            if !is_own(&submesh) || !self.builder.enter(submesh) {
                continue;
            }
            let key = (id, submesh, axes);
            let mut state = self.parameter_gradients[&key];
            self.sum_gradient(id, axes, &mut state);
            self.parameter_gradients.insert(key, state);
            match sums.get(&submesh) {
                None => drop(sums.insert(submesh, key)),
                Some(first) => {
                    let target = self.parameter_gradients[first].view();
                    self.add(id, state.view(), target);
                }
            }
        }
        let first = |submesh: Option<Submesh>| keys.iter().find(|key| key.0 == submesh);
        for other in &holders[1..] {
            let ends = (first(other.submesh), first(owner.submesh));
            if let (true, (Some(from), Some(to))) = (is_own(&other.submesh), ends) {
                let resharding = Resharding::new(&plan.world, other, &owner);
                let ends = ((id, from.0, from.1), (id, to.0, to.1));
                self.add_across(ends, &resharding);
            }
        }
        let key = sums.get(&owner.submesh)?;
        Some(self.parameter_gradients[key].view())
    }

    /// Adds the gradient of one holder to that of another.
    fn add_across(&mut self, (from, to): (Key, Key), resharding: &Resharding) {
        let layer = self.graph.parameter(from.0).name.clone();
        let moved = MovedTensor {
            layer: &layer,
            phase: Phase::Reduce,
            role: Role::Gradient,
            tensor: self.parameter_tensor(from.0, Role::Gradient),
        };
        let number = self.number_of_movement();
        let [own, sum] = [from, to].map(|key| self.parameter_gradients.get(&key));
        let [own, sum] = [own, sum].map(|state| state.map(|state| state.held));
        let between = sum.map(|_| self.builder.between(moved, *resharding.target()));
        let ends = (own.as_ref(), between.as_ref());
        self.builder.move_across(moved, number, resharding, ends);
        if let (Some(between), Some(sum)) = (between, sum) {
            let whole = sum.view(&sum.region);
            self.add(from.0, between.view(&sum.region), whole);
        }
    }

    /// What the owner has moved goes to all others that hold it.
    fn hand_out(&mut self, id: ParameterId) {
        let plan = self.plan;
        let holders = &plan.holders[id.0];
        let (layer, role) = {
            let parameter = self.graph.parameter(id);
            let role = if parameter.role.is_trained() {
                Role::Parameter
            } else {
                Role::State
            };
            (parameter.name.clone(), role)
        };
        let moved = MovedTensor {
            layer: &layer,
            phase: Phase::Update,
            role,
            tensor: self.parameter_tensor(id, role),
        };
        let own = self.parameters.get(&(id, holders[0].submesh)).copied();
        for other in &holders[1..] {
            let resharding = Resharding::new(&plan.world, &holders[0], other);
            let number = self.number_of_movement();
            let held = self.parameters.get(&(id, other.submesh)).copied();
            let ends = (own.as_ref(), held.as_ref());
            self.builder.move_across(moved, number, &resharding, ends);
        }
    }

    /// Running statistics that several replicas move, by all micro-batches in their order.
    fn late_running(&mut self) {
        let plan = self.plan;
        let layers = plan.networks[0].0.layers.len();
        for index in 0..layers {
            let layer = plan.networks[0].0.layer(LayerId(index));
            let Some(&Op::BatchNorm { momentum, .. }) = layer.op() else {
                continue;
            };
            let [mean, variance] = [2, 3].map(|at| layer.parameters[at]);
            let owner = plan.holders[mean.0][0];
            if !self.is_held_apart(mean) {
                continue;
            }
            for (micro, (network, _)) in plan.networks.iter().enumerate() {
                let of = network.layer(LayerId(index));
                let shape = [1, 1, 1, 2, of.distribution.shape[4]];
                let mut distribution = Distribution::replicated(shape);
                (distribution.axes[4], distribution.submesh) =
                    (of.distribution.axes[4], of.distribution.submesh);
                let to = Distribution {
                    submesh: owner.submesh,
                    ..distribution
                };
                let own = self.late_moments.get(&(LayerId(index), micro)).copied();
                let Some(sums) = self.moments_at(&layer.name, own, (&distribution, &to)) else {
                    continue;
                };
                let count = Self::count(&of.distribution);
                let [mean, variance] = [mean, variance].map(|id| {
                    let held = self.parameters[&(id, owner.submesh)];
                    held.view(&held.region)
                });
                let running = Kernel::BatchNormRunning {
                    sums,
                    mean,
                    variance,
                    count,
                    momentum,
                };
                self.builder.kernel(&layer.name, Phase::Update, running);
            }
        }
    }

    /// Small complete sums from where they lie to where they are wanted; where they are then, if that is
    /// on this rank.
    fn moments_at(
        &mut self,
        layer: &str,
        own: Option<View>,
        (from, to): (&Distribution, &Distribution),
    ) -> Option<View> {
        if from.submesh == to.submesh {
            return own;
        }
        let number = self.number_of_movement();
        let resharding = Resharding::new(&self.builder.world, from, to);
        let moved = MovedTensor {
            layer,
            phase: Phase::Report,
            role: Role::Statistics,
            tensor: 0,
        };
        let held = |emit: &Self, view: View, distribution: &Distribution| TensorBuffer {
            id: view.buffer,
            region: emit.builder.owned(distribution),
        };
        let own = own.map(|view| held(self, view, from));
        let view = self.builder.is_in(to.submesh).then(|| {
            let dims = self.builder.owned(to).shape();
            let name = format!("{layer}.moved");
            self.builder.sums(&name, dims[3], dims[4])
        });
        let target = view.map(|view| held(self, view, to));
        let ends = (own.as_ref(), target.as_ref());
        self.builder.move_across(moved, number, &resharding, ends);
        view
    }

    /// What the rank moves of a parameter: all that it keeps, or a copy of its share of the whole.
    fn own_share(&mut self, id: ParameterId) -> TensorBuffer {
        let whole = self.plan.holders[id.0][0];
        let share = self.share_of(id, whole);
        self.builder.enter(whole.submesh);
        let kept = self.parameters[&(id, whole.submesh)];
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
    fn complete_parameter(&mut self, id: ParameterId, own: TensorBuffer) {
        let whole = self.plan.holders[id.0][0];
        let held = self.parameters[&(id, whole.submesh)];
        if own.id == held.id {
            return;
        }
        self.builder.enter(whole.submesh);
        let to = Destination {
            held,
            distribution: whole,
            accumulate: false,
        };
        let from = (own, self.share_of(id, whole), AxisSet::NONE);
        self.move_parameter((id, Role::Parameter), Phase::Update, from, to);
    }

    /// Brings a parameter, or what goes with it, from where it is held, as a sum still due along some
    /// axes, to its destination.
    pub(crate) fn move_parameter(
        &mut self,
        (id, role): (ParameterId, Role),
        phase: Phase,
        (source, distribution, partial): (TensorBuffer, Distribution, AxisSet),
        to: Destination,
    ) {
        let layer = self.graph.parameter(id).name.clone();
        let moved = MovedTensor {
            layer: &layer,
            phase,
            role,
            tensor: self.parameter_tensor(id, role),
        };
        self.builder
            .redistribute(moved, source, (distribution, partial), to);
    }

    /// The ranks that move parameters.
    fn owners(&self) -> BTreeSet<Option<Submesh>> {
        let trained = self.graph.parameters.iter().zip(&self.plan.holders);
        let trained = trained.filter(|(parameter, _)| parameter.role.is_trained());
        trained.map(|(_, holders)| holders[0].submesh).collect()
    }

    /// Sum of the squares of all gradients, each element counted once.
    fn norm(&mut self, gradients: &[(ParameterId, View)]) -> View {
        let name = "gradient_norm";
        let mut totals = Vec::new();
        for (at, submesh) in self.owners().into_iter().enumerate() {
            let own = self.norm_on((at, submesh), gradients);
            let scalar = Distribution {
                submesh,
                ..Distribution::replicated([1; 5])
            };
            let to = Distribution::replicated([1; 5]);
            totals.extend(self.moments_at(name, own, (&scalar, &to)));
        }
        self.add_up_norms(&totals);
        totals[0]
    }

    /// Adds to the first of some sums the others.
    fn add_up_norms(&mut self, totals: &[View]) {
        for &source in totals.iter().skip(1) {
            let copy = Kernel::Copy {
                source,
                target: totals[0],
                accumulate: true,
            };
            self.builder.kernel("gradient_norm", Phase::Update, copy);
        }
    }

    /// The part of the parameters that some ranks move, the `at`th ones that do, if this is one of them.
    fn norm_on(
        &mut self,
        (at, submesh): (usize, Option<Submesh>),
        gradients: &[(ParameterId, View)],
    ) -> Option<View> {
        let axes_of = |id: ParameterId| {
            let whole = self.plan.holders[id.0][0];
            let axes = || self.share_of(id, whole).split_axes();
            (whole.submesh == submesh).then(axes)
        };
        let trained = |id: &ParameterId| self.graph.parameter(*id).role.is_trained();
        let ids = (0..self.graph.parameters.len()).map(ParameterId);
        // All ranks know them, though they move others.
        let sets: BTreeSet<AxisSet> = ids.filter(trained).filter_map(axes_of).collect();
        let with = |axes: AxisSet| -> Vec<View> {
            let own = gradients
                .iter()
                .filter(|(id, _)| axes_of(*id) == Some(axes));
            own.map(|&(_, view)| view).collect()
        };
        let sets: Vec<(AxisSet, Vec<View>)> =
            sets.into_iter().map(|axes| (axes, with(axes))).collect();
        let name = "gradient_norm";
        let mut totals = Vec::new();
        for (axes, sources) in sets {
            self.number_anew();
            if !self.builder.enter(submesh) {
                continue;
            }
            // A rank may move parameters with several groups of ranks, and each calls it the same.
            let total = if self.is_whole() {
                self.builder.sums(name, 1, 1)
            } else {
                self.builder.sums(&format!("{name}.of{at}.{axes}"), 1, 1)
            };
            let kernel = Kernel::SumOfSquares { sources, total };
            self.builder.kernel(name, Phase::Update, kernel);
            self.allreduce(name, Phase::Update, axes, total);
            totals.push(total);
        }
        self.add_up_norms(&totals);
        totals.first().copied()
    }

    /// Reports the step where layers run on some ranks only: sums over the replicas, and brings them from
    /// their ranks to all.
    pub(crate) fn report_across(&mut self) {
        if self.is_whole() {
            return;
        }
        let plan = self.plan;
        let network = &plan.networks[0].0;
        let last = &network.layers[network.layers.len() - 1];
        let channels = network.layer(last.inputs[0]).distribution.shape[4];
        let axes = crate::network::positions(&network.layer(last.inputs[0]).distribution);
        let submeshes = plan.placement.rank_sets[last.rank_set].submeshes;
        let replicas = if plan.replica_of.contains(&1) { 2 } else { 1 };
        let outputs = self.outputs_of(channels);
        for (name, rows, columns) in outputs {
            let distribution = |submesh| Distribution {
                submesh,
                ..Distribution::replicated([1, 1, 1, rows, columns])
            };
            let own = self.report.get(name).copied();
            self.number_anew();
            if let Some(view) = own {
                let of = submeshes[..replicas]
                    .iter()
                    .find(|submesh| self.builder.is_in(**submesh));
                self.builder.enter(of.copied().flatten());
                self.allreduce(name, Phase::Report, axes, view);
            }
            let mut sum = own.filter(|_| self.builder.is_in(submeshes[0]));
            if replicas == 2 && submeshes[0] != submeshes[1] {
                let ends = (&distribution(submeshes[1]), &distribution(submeshes[0]));
                let theirs = own.filter(|_| self.builder.is_in(submeshes[1]));
                let moved = self.moments_at(name, theirs, ends);
                if let (Some(source), Some(target)) = (moved, sum) {
                    let copy = Kernel::Copy {
                        source,
                        target,
                        accumulate: true,
                    };
                    self.builder.kernel(name, Phase::Report, copy);
                }
            }
            sum = self.moments_at(
                name,
                sum,
                (&distribution(submeshes[0]), &distribution(None)),
            );
            if let Some(view) = sum {
                self.builder.output(name, view);
            }
        }
    }
}
