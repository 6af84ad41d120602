//! Group and instance norm, forward and backward.

use crate::backward::BACKWARD;
use crate::emit::Emit;
use crate::network::{LayerId, positions};
use partita_program::{Dtype, Kernel, Phase, Role, View};
use partita_space::Region;

impl Emit<'_> {
    /// `groups` of channels, or one for each channel.
    pub(crate) fn group_norm(
        &mut self,
        id: LayerId,
        layer: &str,
        groups: Option<usize>,
        epsilon: f64,
    ) {
        let known = self.state().sums.get(&id).copied();
        let sums = known.unwrap_or_else(|| self.group_moments(id, layer));
        let (gamma, beta) = (self.parameter(id, 0), self.parameter(id, 1));
        let (groups, count) = self.groups_and_count(id, groups);
        self.elementwise(id, layer, |x, y| Kernel::GroupNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            groups,
            count,
            epsilon,
        });
    }

    /// Groups on this rank, and elements of a group over all ranks.
    fn groups_and_count(&self, id: LayerId, groups: Option<usize>) -> (usize, u64) {
        let distribution = self.distribution(id);
        let [_, d, h, w, channels] = distribution.shape;
        let positions = (d * h * w) as u64;
        match groups {
            None => (self.owned(id).0[4].len(), positions),
            Some(all) => {
                let parts = self.builder.mesh.parts(distribution.axes[4]);
                (all / parts, (channels / all) as u64 * positions)
            }
        }
    }

    /// Sums over the positions of each sample, reduced over the ranks that split them.
    fn group_moments(&mut self, id: LayerId, layer: &str) -> View {
        let sums = self.sample_sums(id, &format!("{layer}.sums"));
        let x = self.owned_value(self.layer(id).inputs[0]);
        if x.is_empty() {
            self.clear_sums(layer, self.pass, sums);
        } else {
            let kernel = Kernel::GroupNormStatistics { x, sums };
            self.builder.kernel(layer, self.pass, kernel);
        }
        self.add_samples(id, layer, self.pass, sums);
        self.state_mut().sums.insert(id, sums);
        sums
    }

    /// A buffer of two sums per sample and channel.
    fn sample_sums(&mut self, id: LayerId, name: &str) -> View {
        let [n, .., c] = self.owned(id).0.map(|interval| interval.len());
        let dims = [n, 1, 1, 2, c];
        let sums = self
            .builder
            .buffer(name, Role::Statistics, Dtype::F64, dims);
        self.builder.whole(sums)
    }

    fn clear_sums(&mut self, layer: &str, phase: Phase, sums: View) {
        if !sums.is_empty() {
            self.builder.fill(layer, phase, sums, 0.0);
        }
    }

    /// Allreduce over the ranks that split the positions of the same samples; these have equally many.
    fn add_samples(&mut self, id: LayerId, layer: &str, phase: Phase, sums: View) {
        let distribution = self.distribution(id);
        let axes = positions(distribution).minus(distribution.axes[0].set());
        if sums.is_empty() {
            self.builder.next_sequence();
        } else {
            self.allreduce(layer, phase, axes, sums);
        }
    }

    pub(crate) fn group_norm_backward(
        &mut self,
        id: LayerId,
        layer: &str,
        groups: Option<usize>,
        epsilon: f64,
    ) {
        let sums = self.state().sums[&id];
        let (x, dy) = (self.read_value(id, 0), self.computed_gradient(id));
        let axes = positions(self.distribution(id));
        let [of_gamma, of_beta] = [0, 1].map(|index| self.layer(id).parameters[index]);
        let is_here = !x.is_empty();
        let has_gradient = self.storages.of(self.layer(id).inputs[0]).has_gradient;
        let gradient_sums =
            has_gradient.then(|| self.sample_sums(id, &format!("{layer}.gradient_sums")));
        let ([dgamma, dbeta], accumulate) =
            self.gradients
                .scale_and_shift(&mut self.builder, [of_gamma, of_beta], axes, layer);
        if !is_here && !accumulate && self.gradients.trains_any(&[of_beta]) {
            self.builder.fill(layer, BACKWARD, dbeta, 0.0);
        }
        let (own_groups, count) = self.groups_and_count(id, groups);
        let kernel = is_here.then_some(Kernel::GroupNormBackwardStatistics {
            x,
            sums,
            dy,
            gradient_sums,
            dgamma,
            dbeta,
            groups: own_groups,
            count,
            epsilon,
            accumulate,
        });
        self.gradients.add_scale_and_shift(
            &mut self.builder,
            [of_gamma, of_beta],
            axes,
            layer,
            kernel,
        );
        let Some(gradient_sums) = gradient_sums else {
            return;
        };
        if !is_here {
            self.clear_sums(layer, BACKWARD, gradient_sums);
        }
        self.add_samples(id, layer, BACKWARD, gradient_sums);
        self.group_norm_data(id, layer, groups, epsilon, gradient_sums);
    }

    /// The statistics count owned elements only, so redundant copies treat them as constants.
    fn group_norm_data(
        &mut self,
        id: LayerId,
        layer: &str,
        groups: Option<usize>,
        epsilon: f64,
        gradient_sums: View,
    ) {
        let input = self.layer(id).inputs[0];
        let reach = self.reach(id, input);
        if reach.is_empty() {
            return;
        }
        let (_, accumulate) = self.contribute(input, &reach);
        let (value, dx) = (self.value(input), self.gradient(input));
        let (dy, owned) = (self.gradient(id), self.owned(id));
        let (sums, gamma) = (self.state().sums[&id], self.parameter(id, 0));
        let (groups, count) = self.groups_and_count(id, groups);
        let data = |part: &Region, gradient_sums| Kernel::GroupNormBackwardData {
            x: value.view(part),
            sums,
            gamma,
            dy: dy.view(part),
            gradient_sums,
            dx: dx.view(part),
            groups,
            count,
            epsilon,
            accumulate,
        };
        if !owned.is_empty() {
            let kernel = data(&owned, gradient_sums);
            self.builder.kernel(layer, BACKWARD, kernel);
        }
        let copies = reach.minus(&owned);
        if copies.is_empty() {
            return;
        }
        let none = self.sample_sums(id, &format!("{layer}.no_sums"));
        self.builder.fill(layer, BACKWARD, none, 0.0);
        for part in &copies {
            self.builder.kernel(layer, BACKWARD, data(part, none));
        }
    }
}
