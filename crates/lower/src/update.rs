//! Reduction of gradients over submeshes, and the optimizer.
//!
//! Where several submeshes have a parameter, as both replicas of a bidirectional pipeline or stages that share
//! it, the first is its owner and alone keeps the optimizer state. Partial sums of the second replica are sent
//! to the same coordinates of the first before the reduction over ranks, sums of other stages after it; the
//! updated parameter is sent to all. Where parameters are sharded, each replica reduces its sums to shards first.
//!
//! A rank may be both sender and receiver, as stages of two replicas share ranks: its sends and receives form one
//! exchange. Every rank counts all exchanges and collectives, its own or not, so that message numbers agree.

use crate::body::TensorBuffer;
use crate::emit::Emit;
use crate::network::LayerId;
use crate::parameters::parameter_tensor;
use crate::redistribute::{Destination, MovedTensor};
use crate::resharding::Resharding;
use crate::strategy::Shard;
use partita_graph::{Op, ParameterId};
use partita_program::{Distribution, GRADIENT_SQUARES, Kernel, Phase, ProgramKind, Role, View};
use partita_space::{AxisSet, Submesh};
use std::collections::{BTreeMap, BTreeSet};

impl Emit<'_> {
    /// The sum of the squares of all gradients, if updates need it.
    pub(crate) fn update(&mut self) -> Option<View> {
        self.gradients.sum_buckets(&mut self.builder);
        self.update_running_statistics();
        let ids = || (0..self.graph.parameters.len()).map(ParameterId);
        let all: Vec<ParameterId> = ids().collect();
        let apart: Vec<ParameterId> = ids()
            .filter(|&id| self.plan.is_on_several_submeshes(id))
            .collect();
        let mut sums: BTreeMap<ParameterId, Option<View>> = BTreeMap::new();
        for &id in &apart {
            if self.graph.parameter(id).is_trained() {
                let sum = self.gradients.sum_over_submeshes(&mut self.builder, id);
                sums.insert(id, sum);
            }
        }
        let gradients = self.gradients.complete(&mut self.builder, &sums);
        let maximum = self.request.norm_bound();
        let clip = maximum.and_then(|maximum| Some((self.norm(&gradients)?, maximum)));
        let mut shares: BTreeMap<ParameterId, TensorBuffer> = BTreeMap::new();
        for &(id, _) in &gradients {
            let share = self.own_share(id);
            shares.insert(id, share);
        }
        let norms = self.trust_norms(&gradients, &shares, clip);
        for (id, gradient) in gradients {
            let share = shares[&id];
            let kernel = self.update_of(id, (share.view(&share.region), gradient), clip, &norms);
            let name = self.graph.parameter(id).name.clone();
            self.builder.kernel(&name, Phase::Update, kernel);
        }
        let total = clip.map(|(total, _)| total);
        self.average_own(&shares, total);
        // Last layers first.
        for &id in all.iter().rev() {
            self.builder.reserve_numbers();
            if let Some(&share) = shares.get(&id) {
                self.complete_parameter(id, share);
            }
        }
        for &id in &apart {
            if !self.graph.parameter(id).is_frozen {
                self.broadcast_parameter(id);
            }
        }
        self.average_received(total);
        total
    }

    /// Moves the averages of the parameters that the rank has updated, by its shares.
    fn average_own(&mut self, shares: &BTreeMap<ParameterId, TensorBuffer>, total: Option<View>) {
        for (id, share) in shares {
            let owner = self.plan.holders[id.0][0].submesh;
            self.average((*id, owner), share.view(&share.region), total);
        }
    }

    /// Moves the averages of parameters that other submeshes have updated and sent.
    fn average_received(&mut self, total: Option<View>) {
        let keys: Vec<_> = self.averages.keys().copied().collect();
        for (id, submesh) in keys {
            if self.plan.holders[id.0][0].submesh != submesh {
                let (held, average) = (
                    self.parameters[&(id, submesh)],
                    self.averages[&(id, submesh)],
                );
                self.average((id, submesh), held.view(&average.region), total);
            }
        }
    }

    /// Moves an average, where it is kept. Where gradients are scaled, `total` tells whether the parameter has moved.
    fn average(
        &mut self,
        key: (ParameterId, Option<Submesh>),
        parameter: View,
        total: Option<View>,
    ) {
        let kept = self.averages.get(&key).copied();
        let (Some(decay), Some(held)) = (self.request.ema, kept) else {
            return;
        };
        self.builder.enter(key.1);
        let kernel = Kernel::Average {
            parameter,
            average: held.view(&held.region),
            decay,
            total: total.filter(|_| self.request.scales_gradients()),
        };
        let name = self.graph.parameter(key.0).name.clone();
        self.builder.kernel(&name, Phase::Update, kernel);
    }

    /// Sends an updated parameter from its owner to all other submeshes.
    fn broadcast_parameter(&mut self, id: ParameterId) {
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
            tensor: parameter_tensor(id, role),
        };
        let own = self.parameters.get(&(id, holders[0].submesh)).copied();
        for other in &holders[1..] {
            let [from, to] = [&holders[0], other].map(|whole| plan.kept_of(id, *whole));
            let resharding = Resharding::new(&plan.world, &from, &to);
            let number = self.builder.number_of_movement();
            let held = self.parameters.get(&(id, other.submesh)).copied();
            let ends = (own.as_ref(), held.as_ref());
            self.builder.move_across(moved, number, &resharding, ends);
        }
    }

    /// Updates running statistics that are tracked late, by all micro-batches in their order.
    fn update_running_statistics(&mut self) {
        let plan = self.plan;
        let layers = plan.networks[0].0.layers.len();
        for index in 0..layers {
            let layer = plan.networks[0].0.layer(LayerId(index));
            let Some(&Op::BatchNorm { momentum, .. }) = layer.op() else {
                continue;
            };
            let [mean, variance] = [2, 3].map(|at| layer.parameters[at]);
            let owner = plan.holders[mean.0][0];
            if !self.is_tracked_late(mean) || self.graph.parameter(mean).is_frozen {
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

    /// Moves complete statistics to another submesh; returns their view there if the rank is a member.
    pub(crate) fn moments_at(
        &mut self,
        layer: &str,
        own: Option<View>,
        (from, to): (&Distribution, &Distribution),
    ) -> Option<View> {
        if from.submesh == to.submesh {
            return own;
        }
        let number = self.builder.number_of_movement();
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

    /// The buffer of a parameter that the rank updates: the parameter, or a copy of its shard.
    fn own_share(&mut self, id: ParameterId) -> TensorBuffer {
        let whole = self.plan.holders[id.0][0];
        let share = self.plan.share_of(id, whole);
        self.builder.enter(whole.submesh);
        let kept = self.parameters[&(id, whole.submesh)];
        if share == whole || self.request.strategy.shard == Shard::Parameters {
            return kept;
        }
        let name = self.graph.parameter(id).name.clone();
        let held = self.plan.parameter_buffer(
            &mut self.builder,
            &format!("{name}.share"),
            Role::Gathered,
            id,
            share,
        );
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

    /// Gathers the updated shards of a parameter.
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
        let from = (own, self.plan.share_of(id, whole), AxisSet::NONE);
        self.plan.move_parameter(
            &mut self.builder,
            (id, Role::Parameter),
            Phase::Update,
            from,
            to,
        );
    }

    /// The submeshes that update parameters.
    fn owners(&self) -> BTreeSet<Option<Submesh>> {
        let trained = self.graph.parameters.iter().zip(&self.plan.holders);
        let trained = trained.filter(|(parameter, _)| parameter.is_trained());
        trained.map(|(_, holders)| holders[0].submesh).collect()
    }

    /// Sum of squares of all gradients, each element counted once; none without parameters.
    fn norm(&mut self, gradients: &[(ParameterId, View)]) -> Option<View> {
        let name = GRADIENT_SQUARES;
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
        totals.first().copied()
    }

    /// Accumulates sums into the first.
    fn add_up_norms(&mut self, totals: &[View]) {
        for &source in totals.iter().skip(1) {
            let copy = Kernel::Copy {
                source,
                target: totals[0],
                accumulate: true,
            };
            self.builder.kernel(GRADIENT_SQUARES, Phase::Update, copy);
        }
    }

    /// Sum of squares of the gradients that a submesh, number `at`, updates; none on other ranks.
    fn norm_on(
        &mut self,
        (at, submesh): (usize, Option<Submesh>),
        gradients: &[(ParameterId, View)],
    ) -> Option<View> {
        let axes_of = |id: ParameterId| {
            let whole = self.plan.holders[id.0][0];
            let axes = || self.plan.share_of(id, whole).split_axes();
            (whole.submesh == submesh).then(axes)
        };
        let trained = |id: &ParameterId| self.graph.parameter(*id).is_trained();
        let ids = (0..self.graph.parameters.len()).map(ParameterId);
        // The same on all ranks.
        let sets: BTreeSet<AxisSet> = ids.filter(trained).filter_map(axes_of).collect();
        let with = |axes: AxisSet| -> Vec<View> {
            let own = gradients
                .iter()
                .filter(|(id, _)| axes_of(*id) == Some(axes));
            own.map(|&(_, view)| view).collect()
        };
        let sets: Vec<(AxisSet, Vec<View>)> =
            sets.into_iter().map(|axes| (axes, with(axes))).collect();
        let name = GRADIENT_SQUARES;
        let mut totals = Vec::new();
        for (axes, sources) in sets {
            self.builder.reserve_numbers();
            if !self.builder.enter(submesh) {
                continue;
            }
            // A rank may be a member of several submeshes, which need different names.
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

    /// Reports results where layers run on some ranks only: sums over replicas, sent to all ranks.
    pub(crate) fn report_from_submeshes(&mut self) {
        if self.is_whole() || self.request.kind == ProgramKind::Infer {
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
            self.builder.reserve_numbers();
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
