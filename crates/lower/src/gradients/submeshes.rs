//! Reduction of the gradients of parameters over submeshes.

use super::parameter_gradient::{Key, ParameterGradient};
use super::parameters::ParameterGradients;
use crate::body::Builder;
use crate::parameters::parameter_tensor;
use crate::redistribute::MovedTensor;
use crate::resharding::Resharding;
use partita_graph::ParameterId;
use partita_program::{Kernel, Phase, Role, View};
use partita_space::Submesh;
use std::collections::BTreeMap;

impl ParameterGradients<'_> {
    /// The complete gradients of the parameters that the rank updates.
    pub(crate) fn complete(
        &mut self,
        builder: &mut Builder<'_>,
        apart: &BTreeMap<ParameterId, Option<View>>,
    ) -> Vec<(ParameterId, View)> {
        let mut gradients: Vec<(ParameterId, View)> = Vec::new();
        // Gradients of the last layers are complete first.
        let all: Vec<(Key, View)> = self
            .of
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
                (Some(&(_, target)), None) => self.add_view(builder, parameter, source, target),
            }
        }
        gradients
    }

    fn add_view(
        &self,
        builder: &mut Builder<'_>,
        parameter: ParameterId,
        source: View,
        target: View,
    ) {
        let name = self.plan.parameter(parameter).name.clone();
        let copy = Kernel::Copy {
            source,
            target,
            accumulate: true,
        };
        if !target.is_empty() {
            builder.kernel(&name, Phase::Update, copy);
        }
    }

    /// Sums the gradient of a parameter over its submeshes; returns the sum where the rank updates it.
    pub(crate) fn sum_over_submeshes(
        &mut self,
        builder: &mut Builder<'_>,
        id: ParameterId,
    ) -> Option<View> {
        let plan = self.plan;
        let (holders, keys) = (&plan.holders[id.0], &plan.keys[id.0]);
        let distribution = |submesh: Option<Submesh>| {
            let distribution = holders
                .iter()
                .find(|distribution| distribution.submesh == submesh);
            *distribution.expect("who uses a parameter holds it")
        };
        let owner = holders[0];
        // Shares are sums of each replica for itself. Otherwise the second sends its partial sums to the first.
        let is_sharded = plan.share_of(id, owner) != owner;
        let is_own =
            |submesh: &Option<Submesh>| is_sharded || plan.first_replica_of(*submesh) == *submesh;
        for &(submesh, axes) in keys {
            let first_replica = plan.first_replica_of(submesh);
            if !is_own(&submesh) {
                let resharding = Resharding::of_partial_sums(
                    &plan.world,
                    &distribution(submesh),
                    &distribution(first_replica),
                );
                let ends = ((id, submesh, axes), (id, first_replica, axes));
                self.add_from_submesh(builder, ends, &resharding);
            }
        }
        let mut sums: BTreeMap<Option<Submesh>, Key> = BTreeMap::new();
        for &(submesh, axes) in keys {
            builder.reserve_numbers();
            if !is_own(&submesh) || !builder.enter(submesh) {
                continue;
            }
            let key = (id, submesh, axes);
            let mut state = self.of[&key];
            if !state.is_summed_each_time(plan.request.strategy.shard) {
                self.sum(builder, id, axes, &mut state);
            }
            self.of.insert(key, state);
            match sums.get(&submesh) {
                None => drop(sums.insert(submesh, key)),
                Some(first) => {
                    let target = self.of[first].sum();
                    self.add_view(builder, id, state.sum(), target);
                }
            }
        }
        let first = |submesh: Option<Submesh>| keys.iter().find(|key| key.0 == submesh);
        for other in &holders[1..] {
            let ends = (first(other.submesh), first(owner.submesh));
            if let (true, (Some(from), Some(to))) = (is_own(&other.submesh), ends) {
                let [other, owner] = [*other, owner].map(|whole| plan.share_of(id, whole));
                let resharding = Resharding::new(&plan.world, &other, &owner);
                let ends = ((id, from.0, from.1), (id, to.0, to.1));
                self.add_from_submesh(builder, ends, &resharding);
            }
        }
        let key = sums.get(&owner.submesh)?;
        Some(self.of[key].sum())
    }

    /// Adds the gradient of one submesh to that of another.
    fn add_from_submesh(
        &mut self,
        builder: &mut Builder<'_>,
        (from, to): (Key, Key),
        resharding: &Resharding,
    ) {
        let layer = self.plan.parameter(from.0).name.clone();
        let moved = MovedTensor {
            layer: &layer,
            phase: Phase::Reduce,
            role: Role::Gradient,
            tensor: parameter_tensor(from.0, Role::Gradient),
        };
        let number = builder.number_of_movement();
        let [own, sum] = [from, to].map(|key| self.of.get(&key));
        let [own, sum] = [own, sum].map(|state| state.map(ParameterGradient::summed));
        let between = sum.map(|_| builder.between(moved, *resharding.target()));
        let ends = (own.as_ref(), between.as_ref());
        builder.move_across(moved, number, resharding, ends);
        if let (Some(between), Some(sum)) = (between, sum) {
            let whole = sum.view(&sum.region);
            self.add_view(builder, from.0, between.view(&sum.region), whole);
        }
    }
}
