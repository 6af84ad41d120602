//! Layers of transformers, forward and backward: embeddings, positions, layer norms, activations, attention
//! and slices of channels.

use crate::backward::BACKWARD;
use crate::emit::Emit;
use crate::network::{LayerId, gradient_axes, positions};
use partita_graph::{self as graph, Op, ScoreBias};
use partita_program::{Activation, Dtype, Kernel, Phase, Role, View};
use partita_space::{AttentionWindow, AxisSet, Interval, Region};

impl Emit<'_> {
    pub(crate) fn slice(&mut self, id: LayerId, layer: &str, start: usize) {
        let input = self.layer(id).inputs[0];
        let source = self.value(input).view(&self.sliced(id, start));
        let target = self.computed_value(id);
        self.copy(layer, source, target);
    }

    pub(crate) fn embedding(&mut self, id: LayerId, layer: &str) {
        let w = self.parameter(id, 0);
        self.elementwise(id, layer, |x, y| Kernel::EmbeddingForward { x, w, y });
    }

    pub(crate) fn embedding_backward(&mut self, id: LayerId, layer: &str) {
        let (x, dy) = (self.read_value(id, 0), self.computed_gradient(id));
        let axes = positions(self.distribution(id));
        let weight = self.layer(id).parameters[0];
        self.parameter_gradient(weight, axes, layer, |dw, accumulate| {
            (!x.is_empty()).then_some(Kernel::EmbeddingBackward {
                x,
                dy,
                dw,
                accumulate,
            })
        });
    }

    pub(crate) fn positions(&mut self, id: LayerId, layer: &str) {
        let (distribution, halo_low) = (*self.distribution(id), self.halo_below(id));
        self.elementwise(id, layer, |x, y| Kernel::Positions {
            x,
            y,
            distribution,
            halo_low,
        });
    }

    /// Positions are constants, so the gradient is copied.
    pub(crate) fn positions_backward(&mut self, id: LayerId, layer: &str) {
        self.pass_back(id, 0, layer, |source, target, accumulate| Kernel::Copy {
            source,
            target,
            accumulate,
        });
    }

    pub(crate) fn position_embedding(&mut self, id: LayerId, layer: &str) {
        let (w, distribution) = (self.parameter(id, 0), *self.distribution(id));
        let halo_low = self.halo_below(id);
        self.elementwise(id, layer, |x, y| Kernel::PositionEmbeddingForward {
            x,
            w,
            y,
            distribution,
            halo_low,
        });
    }

    pub(crate) fn position_embedding_backward(&mut self, id: LayerId, layer: &str) {
        let dy = self.computed_gradient(id);
        let (distribution, halo_low) = (*self.distribution(id), self.halo_below(id));
        let axes = positions(&distribution);
        let weight = self.layer(id).parameters[0];
        self.parameter_gradient(weight, axes, layer, |dw, accumulate| {
            (!dy.is_empty()).then_some(Kernel::PositionEmbeddingBackward {
                dy,
                dw,
                distribution,
                halo_low,
                accumulate,
            })
        });
        self.positions_backward(id, layer);
    }

    pub(crate) fn activation(&mut self, id: LayerId, layer: &str, function: Activation) {
        self.elementwise(id, layer, |x, y| Kernel::ActivationForward {
            function,
            x,
            y,
        });
    }

    pub(crate) fn activation_backward(&mut self, id: LayerId, layer: &str, function: Activation) {
        let x = self.read_value(id, 0);
        self.pass_back(id, 0, layer, |dy, dx, accumulate| {
            Kernel::ActivationBackward {
                function,
                x,
                dy,
                dx,
                accumulate,
            }
        });
    }

    pub(crate) fn prelu_backward(&mut self, id: LayerId, layer: &str, slopes: graph::PreluSlopes) {
        let (x, dy) = (self.read_value(id, 0), self.computed_gradient(id));
        let axes = gradient_axes(self.layer(id), AxisSet::NONE);
        let (of_slopes, one) = (
            self.layer(id).parameters[0],
            slopes == graph::PreluSlopes::One,
        );
        self.parameter_gradient(of_slopes, axes, layer, |dslopes, accumulate| {
            (!x.is_empty()).then_some(Kernel::PreluBackwardSlopes {
                x,
                dy,
                dslopes,
                one,
                accumulate,
            })
        });
        let slopes = self.parameter(id, 0);
        self.pass_back(id, 0, layer, |dy, dx, accumulate| {
            Kernel::PreluBackwardData {
                x,
                slopes,
                dy,
                dx,
                accumulate,
            }
        });
    }

    pub(crate) fn attention(&mut self, id: LayerId, layer: &str, op: &Op) {
        let (heads, causal, window, bias) = pattern(op);
        let [k, v] = [1, 2].map(|index| self.read_value(id, index));
        let heads = self.own_heads(id, heads);
        let table = bias.and_then(ScoreBias::table);
        let bias = bias.map(|_| self.parameter(id, 0));
        self.elementwise(id, layer, |q, y| Kernel::AttentionForward {
            q,
            k,
            v,
            y,
            heads,
            causal,
            window,
            bias,
            table,
        });
    }

    /// The region of its input that a slice reads.
    fn sliced(&self, id: LayerId, start: usize) -> Region {
        let mut region = self.reach(id, self.layer(id).inputs[0]);
        let channels = self.distribution(id).shape[4];
        region.0[4] = Interval::all(channels).shift(start as i64);
        region
    }

    pub(crate) fn slice_backward(&mut self, id: LayerId, layer: &str, start: usize) {
        let input = self.layer(id).inputs[0];
        let region = self.sliced(id, start);
        if !self.storages.of(input).has_gradient || region.is_empty() {
            return;
        }
        let source = self.computed_gradient(id);
        let (target, accumulate) = self.contribute(input, &region);
        let copy = Kernel::Copy {
            source,
            target,
            accumulate,
        };
        self.builder.kernel(layer, BACKWARD, copy);
    }

    /// Attention heads on this rank.
    fn own_heads(&self, id: LayerId, all: usize) -> usize {
        all / self.builder.mesh.parts(self.distribution(id).axes[4])
    }

    pub(crate) fn layer_norm(&mut self, id: LayerId, layer: &str, (epsilon, rms): (f64, bool)) {
        let known = self.state().sums.get(&id).copied();
        let sums = known.unwrap_or_else(|| self.row_moments(id, layer, rms));
        let (gamma, beta) = (self.parameter(id, 0), self.parameter(id, 1));
        let count = self.distribution(id).shape[4] as u64;
        self.elementwise(id, layer, |x, y| Kernel::LayerNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        });
    }

    /// Sums over the channels at each computed position, reduced over the ranks that split them.
    fn row_moments(&mut self, id: LayerId, layer: &str, rms: bool) -> View {
        let sums = self.row_sums(id, &format!("{layer}.sums"));
        self.elementwise(id, layer, |x, _| Kernel::LayerNormStatistics {
            x,
            sums,
            rms,
        });
        self.add_rows(id, layer, self.pass, sums);
        self.state_mut().sums.insert(id, sums);
        sums
    }

    /// A buffer of two sums per computed position.
    fn row_sums(&mut self, id: LayerId, name: &str) -> View {
        let [n, d, h, w, _] = self.computed(id).shape();
        let dims = [n, d, h, w, 2];
        let sums = self
            .builder
            .buffer(name, Role::Statistics, Dtype::F64, dims);
        self.builder.whole(sums)
    }

    /// Allreduce over the ranks that split the channels of the same positions; these have equally many.
    fn add_rows(&mut self, id: LayerId, layer: &str, phase: Phase, sums: View) {
        let axes = self.distribution(id).axes[4].set();
        if sums.is_empty() {
            self.builder.next_sequence();
        } else {
            self.allreduce(layer, phase, axes, sums);
        }
    }

    pub(crate) fn layer_norm_backward(
        &mut self,
        id: LayerId,
        layer: &str,
        (epsilon, rms): (f64, bool),
    ) {
        let count = self.distribution(id).shape[4] as u64;
        let (sums, gamma) = (self.state().sums[&id], self.parameter(id, 0));
        let (x, dy) = (self.read_value(id, 0), self.computed_gradient(id));
        let axes = positions(self.distribution(id));
        let [of_gamma, of_beta] = [0, 1].map(|index| self.layer(id).parameters[index]);
        let is_here = !x.is_empty();
        if self.gradients.trains_any(&[of_gamma, of_beta]) {
            let (views, accumulate) =
                self.gradients
                    .scale_and_shift(&mut self.builder, [of_gamma, of_beta], axes, layer);
            let [dgamma, dbeta] = views;
            if !is_here && !accumulate && self.gradients.trains_any(&[of_beta]) {
                self.builder.fill(layer, BACKWARD, dbeta, 0.0);
            }
            let kernel = is_here.then_some(Kernel::LayerNormBackwardParameters {
                x,
                sums,
                dy,
                dgamma,
                dbeta,
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
        }
        let input = self.layer(id).inputs[0];
        if !self.storages.of(input).has_gradient {
            return;
        }
        let gradient_sums = self.row_sums(id, &format!("{layer}.gradient_sums"));
        if is_here {
            let kernel = Kernel::LayerNormBackwardStatistics {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                count,
                epsilon,
                rms,
            };
            self.builder.kernel(layer, BACKWARD, kernel);
        }
        self.add_rows(id, layer, BACKWARD, gradient_sums);
        self.pass_back(id, 0, layer, |dy, dx, accumulate| {
            Kernel::LayerNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                count,
                epsilon,
                accumulate,
            }
        });
    }

    /// One kernel for all gradients, except for those that accumulate into the same buffer.
    pub(crate) fn attention_backward(&mut self, id: LayerId, layer: &str, op: &Op) {
        let (heads, causal, window, bias) = pattern(op);
        let dy = self.computed_gradient(id);
        let heads = self.own_heads(id, heads);
        let [q, k, v] = [0, 1, 2].map(|index| self.read_value(id, index));
        let table = bias.and_then(ScoreBias::table);
        let bias = bias.map(|_| self.parameter(id, 0));
        if bias.is_some() {
            let axes = positions(self.distribution(id));
            let of_bias = self.layer(id).parameters[0];
            self.parameter_gradient(of_bias, axes, layer, |dbias, accumulate| {
                (!dy.is_empty()).then_some(Kernel::AttentionBackwardBias {
                    q,
                    k,
                    v,
                    dy,
                    dbias,
                    heads,
                    causal,
                    window,
                    bias,
                    table,
                    accumulate,
                })
            });
        }
        if dy.is_empty() {
            return;
        }
        let inputs = self.layer(id).inputs.clone();
        let storage = |index: usize| self.storages.of[inputs[index].0];
        let mut left: Vec<usize> = (0..3)
            .filter(|&index| self.storages.all[storage(index)].has_gradient)
            .collect();
        while !left.is_empty() {
            let (mut now, mut later) = (Vec::new(), Vec::new());
            for index in left {
                let is_taken = now.iter().any(|&other| storage(other) == storage(index));
                if is_taken { &mut later } else { &mut now }.push(index);
            }
            let (mut wanted, mut accumulate) = ([None; 3], [false; 3]);
            for index in now {
                let input = inputs[index];
                let target = self.contribute(input, &self.reach(id, input));
                (wanted[index], accumulate[index]) = (Some(target.0), target.1);
            }
            let [dq, dk, dv] = wanted;
            let kernel = Kernel::AttentionBackward {
                q,
                k,
                v,
                dy,
                dq,
                dk,
                dv,
                heads,
                causal,
                window,
                bias,
                table,
                accumulate,
            };
            self.builder.kernel(layer, BACKWARD, kernel);
            left = later;
        }
    }
}

/// Heads, mask, windows and bias of an attention.
fn pattern(op: &Op) -> (usize, bool, Option<AttentionWindow>, Option<ScoreBias>) {
    match *op {
        Op::Attention {
            heads,
            causal,
            window,
            bias,
        } => (heads, causal, window, bias),
        ref other => panic!("{} is no attention", other.keyword()),
    }
}
