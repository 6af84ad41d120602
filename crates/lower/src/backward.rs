//! The backward pass.

use crate::body::TensorBuffer;
use crate::emit::Emit;
use crate::exchange::{gather_halo, zero_outside};
use crate::forward::{inputs_of, shift, taps};
use crate::network::{LayerId, Step, positions};
use crate::redistribute::Destination;
use crate::resharding::Resharding;
use crate::schedule::Pass;
use crate::storage::DataGradient;
use crate::windows::window;
use partita_graph::{Convolution, Op, ParameterId, Pool, TransposedConvolution};
use partita_program::{DropoutMask, Kernel, Phase, Role, View};
use partita_space::{AxisSet, Region};

pub(crate) const BACKWARD: Phase = Phase::Backward;

impl Emit<'_> {
    /// The backward pass of the layers of a stage.
    pub(crate) fn backward(&mut self, layers: &[LayerId]) {
        let mut last_block = None;
        for &id in layers.iter().rev() {
            if let Some(chunks) = self.layer(id).chunks {
                self.backward_in_chunks(id, chunks);
                continue;
            }
            let storage = self.storages.of(id);
            if let Some(block) = self.layer(id).block
                && last_block.replace(block) != Some(block)
            {
                // In the turn of the first layer that needs it.
                self.enter(id);
                self.recompute(block, layers);
            }
            self.restore_for(id);
            let is_wanted = storage.has_gradient && self.layer(id).loss().is_none();
            if is_wanted && self.network.reshards_within_stage(id) {
                self.reshard_gradient(id);
            } else if is_wanted && self.enter(id) {
                if storage.members.last() == Some(&id) {
                    self.receive_gradients(id);
                    self.complete_gradient(id);
                }
                self.backward_layer(id);
            }
            self.release_after(id);
        }
    }

    /// Receives contributions to the gradient from other stages.
    pub(crate) fn receive_gradients(&mut self, id: LayerId) {
        for &reader in self.network.readers(id).iter().rev() {
            if !self.network.reshards(reader) || self.network.reshards_within_stage(reader) {
                continue;
            }
            let layer = self.layer(reader).name.clone();
            let (view, accumulate) = self.contribute(id, &self.owned(id));
            let held = self.gradient(id);
            assert_eq!(view.buffer, held.id, "a gradient has one buffer");
            let (from, to) = (*self.distribution(reader), *self.distribution(id));
            let resharding = Resharding::new(&self.builder.world, &from, &to);
            let number = self.resharding_number(reader, true);
            let own = self.state().gradients.held(reader);
            let moved = self.moved_tensor(reader, &layer, BACKWARD, Role::ActivationGradient);
            let builder = &mut self.builder;
            let target = if accumulate {
                builder.between(moved, to)
            } else {
                held
            };
            builder.receive_across(moved, number, &resharding, own.as_ref(), &target);
            let own = builder.owned(&to);
            if accumulate && !own.is_empty() {
                let copy = Kernel::Copy {
                    source: target.view(&own),
                    target: held.view(&own),
                    accumulate,
                };
                builder.kernel(&layer, BACKWARD, copy);
            }
        }
    }

    pub(crate) fn contribute(&mut self, id: LayerId, region: &Region) -> (View, bool) {
        let gradients = &mut self.states[self.micro].gradients;
        gradients.contribute(&mut self.builder, id, region)
    }

    /// The buffer of the gradient of a value.
    pub(crate) fn gradient(&mut self, id: LayerId) -> TensorBuffer {
        let gradients = &mut self.states[self.micro].gradients;
        gradients.of_layer(&mut self.builder, id).held
    }

    /// Adds a contribution to the gradient of a parameter.
    pub(crate) fn parameter_gradient(
        &mut self,
        parameter: ParameterId,
        axes: AxisSet,
        layer: &str,
        kernel: impl FnOnce(View, bool) -> Option<Kernel>,
    ) {
        let builder = &mut self.builder;
        self.gradients
            .contribute(builder, parameter, axes, layer, kernel);
    }

    pub(crate) fn complete_gradient(&mut self, id: LayerId) {
        let gradients = &mut self.states[self.micro].gradients;
        gradients.complete(&mut self.builder, id);
    }

    /// What the data gradient of a layer reads of the gradient of its output.
    fn gradient_around(&self, id: LayerId) -> Region {
        let whole = || self.storages.of(id).around.held(&self.builder.coord);
        self.slab_part(id).map_or_else(whole, |part| part.around)
    }

    /// The view of the gradient of the computed region.
    pub(crate) fn computed_gradient(&mut self, id: LayerId) -> View {
        let held = self.gradient(id);
        held.view(&self.computed(id))
    }

    pub(crate) fn backward_layer(&mut self, id: LayerId) {
        let layer = self.layer(id).name.clone();
        match self.layer(id).step.clone() {
            Step::Move => self.move_gradient(id, &layer),
            Step::Layer(op) => {
                let mut inputs = self.layer(id).inputs.iter();
                if inputs.any(|&input| self.storages.of(input).has_gradient) {
                    self.gather_parameters(id, BACKWARD);
                }
                self.backward_operation(id, &layer, &op);
            }
        }
    }

    /// The kernels of the gradients of an operation of the model.
    fn backward_operation(&mut self, id: LayerId, layer: &str, op: &Op) {
        match *op {
            Op::Input | Op::Features | Op::Loss(_) | Op::AuxiliaryLoss { .. } => {}
            Op::Convolution(ref convolution) => {
                self.convolution_backward(id, layer, convolution);
            }
            Op::TransposedConvolution(ref convolution) => {
                self.transposed_backward(id, layer, convolution);
            }
            Op::Pool(ref pool) => self.pool_backward(id, layer, pool),
            Op::Resample(ref resample) => self.resample_backward(id, layer, resample),
            Op::BatchNorm { epsilon, .. } if self.keeps_statistics(id) => {
                self.frozen_norm_backward(id, layer, epsilon);
            }
            Op::BatchNorm { epsilon, .. } => self.batch_norm_backward(id, layer, epsilon),
            Op::LeakyRelu { negative_slope } => self.relu_backward(id, layer, negative_slope),
            Op::Prelu(slopes) => self.prelu_backward(id, layer, slopes),
            Op::Softmax => {
                let y = self.computed_value(id);
                self.pass_back(id, 0, layer, |dy, dx, accumulate| Kernel::SoftmaxBackward {
                    y,
                    dy,
                    dx,
                    accumulate,
                });
            }
            Op::Linear { bias, .. } => self.linear_backward(id, layer, bias),
            Op::Dropout { rate, mask } => self.dropout_backward(id, layer, (rate, mask)),
            Op::Flatten | Op::Reshape { .. } => {
                self.pass_back(id, 0, layer, |source, target, accumulate| Kernel::Copy {
                    source,
                    target,
                    accumulate,
                });
            }
            Op::Add => {
                for input in 0..2 {
                    self.copy_back(id, input, layer, self.computed(id));
                }
            }
            Op::Slice { start, .. } => self.slice_backward(id, layer, start),
            Op::ChannelShuffle { groups } => self.shuffle_backward(id, layer, groups),
            Op::Embedding { .. } => self.embedding_backward(id, layer),
            Op::Positions => self.positions_backward(id, layer),
            Op::PositionEmbedding { .. } => self.position_embedding_backward(id, layer),
            Op::LayerNorm { epsilon, centers } => {
                self.layer_norm_backward(id, layer, (epsilon, !centers));
            }
            Op::GroupNorm { groups, epsilon } => {
                self.group_norm_backward(id, layer, groups, epsilon);
            }
            Op::Multiply => self.multiply_backward(id, layer),
            Op::Activation(activation) => self.activation_backward(id, layer, activation),
            Op::Attention { .. } => self.attention_backward(id, layer, op),
            Op::Concat => {
                for input in 0..self.layer(id).inputs.len() {
                    self.copy_back(id, input, layer, self.channels_of(id, input));
                }
            }
        }
    }

    fn dropout_backward(&mut self, id: LayerId, layer: &str, (rate, mask): (f64, DropoutMask)) {
        let (operation, distribution) = (self.layer(id).origin.0 as u32, *self.distribution(id));
        let halo_low = self.halo_below(id);
        self.pass_back(id, 0, layer, |dy, dx, accumulate| Kernel::Dropout {
            x: dy,
            y: dx,
            rate,
            mask,
            operation,
            distribution,
            halo_low,
            accumulate,
        });
    }

    /// The order of channels is undone by a shuffle with as many groups as the other's groups have channels.
    fn shuffle_backward(&mut self, id: LayerId, layer: &str, groups: usize) {
        let groups = self.distribution(id).shape[4] / groups;
        self.pass_back(id, 0, layer, |dy, dx, accumulate| Kernel::ChannelShuffle {
            x: dy,
            y: dx,
            groups,
            accumulate,
        });
    }

    /// The gradient of a batch norm that normalizes with its running statistics.
    fn frozen_norm_backward(&mut self, id: LayerId, layer: &str, epsilon: f64) {
        let [gamma, variance] = [0, 3].map(|at| self.parameter(id, at));
        self.pass_back(id, 0, layer, |dy, dx, accumulate| {
            Kernel::BatchNormInferenceBackward {
                dy,
                variance,
                gamma,
                dx,
                epsilon,
                accumulate,
            }
        });
    }

    /// A kernel from the gradient of the output to that of one input.
    pub(crate) fn pass_back(
        &mut self,
        id: LayerId,
        input: usize,
        layer: &str,
        kernel: impl Fn(View, View, bool) -> Kernel,
    ) {
        let input = self.layer(id).inputs[input];
        let reach = self.reach(id, input);
        if !self.storages.of(input).has_gradient || reach.is_empty() {
            return;
        }
        let dy = self.computed_gradient(id);
        let (dx, accumulate) = self.contribute(input, &reach);
        self.builder
            .kernel(layer, BACKWARD, kernel(dy, dx, accumulate));
    }

    /// Copies a part of the output's gradient to that of one input.
    fn copy_back(&mut self, id: LayerId, input: usize, layer: &str, part: Region) {
        let source = self.gradient(id).view(&part);
        self.pass_back(id, input, layer, |_, target, accumulate| Kernel::Copy {
            source,
            target,
            accumulate,
        });
    }

    fn relu_backward(&mut self, id: LayerId, layer: &str, negative_slope: f64) {
        let y = self.computed_value(id);
        let input = self.layer(id).inputs[0];
        if self.storages.of[id.0] == self.storages.of[input.0] {
            let dy = self.computed_gradient(id);
            if !dy.is_empty() {
                let kernel = Kernel::LeakyReluBackward {
                    y,
                    dy,
                    dx: dy,
                    negative_slope,
                    accumulate: false,
                };
                self.builder.kernel(layer, BACKWARD, kernel);
            }
            return;
        }
        self.pass_back(id, 0, layer, |dy, dx, accumulate| {
            Kernel::LeakyReluBackward {
                y,
                dy,
                dx,
                negative_slope,
                accumulate,
            }
        });
    }

    fn convolution_backward(&mut self, id: LayerId, layer: &str, convolution: &Convolution) {
        let storage = self.storages.of(id);
        let held = self.gradient(id);
        let computed = self.computed(id);
        match storage.rule {
            Some(DataGradient::Halo) => {
                let halo = storage.around.held(&self.builder.coord);
                let inside = halo.intersect(&Region::all(storage.around.distribution.shape));
                let builder = &mut self.builder;
                zero_outside(builder, layer, BACKWARD, &held, &halo, &inside);
                gather_halo(builder, layer, BACKWARD, &held, &storage.around);
                self.convolution_weights(id, layer, convolution);
                self.convolution_data(id, layer, convolution, &held);
            }
            Some(DataGradient::Reverse) => {
                let halo = self.gradient_around(id);
                zero_outside(&mut self.builder, layer, BACKWARD, &held, &halo, &computed);
                self.convolution_data(id, layer, convolution, &held);
                self.convolution_weights(id, layer, convolution);
            }
            None => self.convolution_weights(id, layer, convolution),
        }
    }

    fn convolution_weights(&mut self, id: LayerId, layer: &str, convolution: &Convolution) {
        let input = self.layer(id).inputs[0];
        let axes = positions(self.distribution(id));
        let computed = self.computed(id);
        let dy = self.computed_gradient(id);
        let channels = self.owned(input).0[4];
        let weight = self.layer(id).parameters[0];
        let x = (!computed.is_empty()).then(|| {
            self.value(input)
                .view(&inputs_of(&computed, &convolution.window, channels))
        });
        let groups = self.groups(id, convolution.groups);
        self.parameter_gradient(weight, axes, layer, |dw, accumulate| {
            Some(Kernel::ConvolutionBackwardWeight {
                x: x?,
                dy,
                dw,
                taps: taps(&convolution.window),
                groups,
                accumulate,
            })
        });
        if convolution.bias {
            let bias = self.layer(id).parameters[1];
            self.parameter_gradient(bias, axes, layer, |db, accumulate| {
                (!dy.is_empty()).then_some(Kernel::BiasBackward { dy, db, accumulate })
            });
        }
    }

    fn convolution_data(
        &mut self,
        id: LayerId,
        layer: &str,
        convolution: &Convolution,
        held: &TensorBuffer,
    ) {
        let input = self.layer(id).inputs[0];
        let computed = self.computed(id);
        let shape = self.distribution(input).shape;
        let target = if self.storages.of(id).rule == Some(DataGradient::Halo) {
            self.owned(input)
        } else {
            let channels = self.owned(input).0[4];
            let inputs = inputs_of(&computed, &convolution.window, channels);
            if convolution.periodic {
                inputs
            } else {
                inputs.intersect(&Region::all(shape))
            }
        };
        let mut source = computed;
        for dim in 1..4 {
            let window = window(self.layer(id), dim).expect("a convolution has a window");
            source.0[dim] = window.outputs_of(&target.0[dim]);
        }
        if target.is_empty() || source.is_empty() {
            return;
        }
        let (dx, accumulate) = self.contribute(input, &target);
        let kernel = Kernel::ConvolutionBackwardData {
            dy: held.view(&source),
            w: self.parameter(id, 0),
            bias: None,
            dx,
            taps: taps(&convolution.window),
            shift: shift(&target, &source, &convolution.window),
            groups: self.groups(id, convolution.groups),
            accumulate,
        };
        self.builder.kernel(layer, BACKWARD, kernel);
    }

    /// Computed as the forward pass of the corresponding convolution, on the gradient of the output with its
    /// halo; the gradient of the weights reads the same region.
    fn transposed_backward(
        &mut self,
        id: LayerId,
        layer: &str,
        convolution: &TransposedConvolution,
    ) {
        let storage = self.storages.of(id);
        let around = &storage.around;
        let held = self.gradient(id);
        let halo = self.gradient_around(id);
        let input = self.layer(id).inputs[0];
        let mut inputs = self.owned(input);
        if storage.rule == Some(DataGradient::Reverse) {
            let computed = self.computed(id);
            let within = self.contributing(id);
            inputs = self.contributors(&computed, convolution, &within);
            let builder = &mut self.builder;
            zero_outside(builder, layer, BACKWARD, &held, &halo, &computed);
        } else {
            let inside = halo.intersect(&Region::all(around.distribution.shape));
            let builder = &mut self.builder;
            zero_outside(builder, layer, BACKWARD, &held, &halo, &inside);
            gather_halo(builder, layer, BACKWARD, &held, around);
        }
        let channels = self.owned(id).0[4];
        let dy = (!inputs.is_empty())
            .then(|| held.view(&inputs_of(&inputs, &convolution.window, channels)));
        let value = self.value(input);
        let axes = positions(self.distribution(id));
        let weight = self.layer(id).parameters[0];
        let groups = self.groups(id, convolution.groups);
        self.parameter_gradient(weight, axes, layer, |dw, accumulate| {
            Some(Kernel::ConvolutionBackwardWeight {
                x: dy?,
                dy: value.view(&inputs),
                dw,
                taps: taps(&convolution.window),
                groups,
                accumulate,
            })
        });
        if convolution.bias {
            let (bias, dy) = (self.layer(id).parameters[1], self.computed_gradient(id));
            self.parameter_gradient(bias, axes, layer, |db, accumulate| {
                (!dy.is_empty()).then_some(Kernel::BiasBackward { dy, db, accumulate })
            });
        }
        let (Some(dy), true) = (dy, self.storages.of(input).has_gradient) else {
            return;
        };
        let (dx, accumulate) = self.contribute(input, &inputs);
        let kernel = Kernel::ConvolutionForward {
            x: dy,
            w: self.parameter(id, 0),
            bias: None,
            y: dx,
            taps: taps(&convolution.window),
            groups: self.groups(id, convolution.groups),
            accumulate,
        };
        self.builder.kernel(layer, BACKWARD, kernel);
    }

    fn pool_backward(&mut self, id: LayerId, layer: &str, pool: &Pool) {
        let dy = self.computed_gradient(id);
        let input = self.layer(id).inputs[0];
        if dy.is_empty() || !self.storages.of(input).has_gradient {
            return;
        }
        let (inputs, shift) = self.pool_inputs(id, &pool.window);
        let reads_input = pool.kind.backward_reads_input();
        let x = reads_input.then(|| self.value(input).view(&inputs));
        let (dx, accumulate) = self.contribute(input, &inputs);
        let kernel = Kernel::PoolBackward {
            kind: pool.kind,
            x,
            dy,
            dx,
            taps: taps(&pool.window),
            shift,
            accumulate,
        };
        self.builder.kernel(layer, BACKWARD, kernel);
    }

    fn batch_norm_backward(&mut self, id: LayerId, layer: &str, epsilon: f64) {
        let count = self.count_of_statistics(id);
        let sums = self.state().sums[&id];
        let gradient_sums = self.builder.sums(
            &format!("{layer}.gradient_sums"),
            2,
            self.owned(id).0[4].len(),
        );
        let (x, dy) = (self.read_value(id, 0), self.computed_gradient(id));
        if x.is_empty() {
            self.builder.fill(layer, BACKWARD, gradient_sums, 0.0);
        } else {
            let kernel = Kernel::BatchNormBackwardStatistics {
                x,
                sums,
                dy,
                gradient_sums,
                count,
                epsilon,
                accumulate: false,
            };
            self.builder.kernel(layer, BACKWARD, kernel);
        }
        let axes = positions(self.distribution(id)).minus(self.plan.local_statistics);
        self.allreduce(layer, BACKWARD, axes, gradient_sums);
        self.batch_norm_data(id, layer, epsilon, gradient_sums);
        let (gamma, beta) = (self.layer(id).parameters[0], self.layer(id).parameters[1]);
        self.scale_and_shift_backward(gamma, beta, layer, gradient_sums);
    }

    /// The statistics count owned elements only, so redundant copies treat them as constants.
    fn batch_norm_data(&mut self, id: LayerId, layer: &str, epsilon: f64, gradient_sums: View) {
        let input = self.layer(id).inputs[0];
        let reach = self.reach(id, input);
        if !self.storages.of(input).has_gradient || reach.is_empty() {
            return;
        }
        let (_, accumulate) = self.contribute(input, &reach);
        let (value, dx) = (self.value(input), self.gradient(input));
        let (dy, owned) = (self.gradient(id), self.owned(id));
        let (sums, gamma) = (self.state().sums[&id], self.parameter(id, 0));
        let count = self.count_of_statistics(id);
        let data = |part: &Region, gradient_sums| Kernel::BatchNormBackwardData {
            x: value.view(part),
            sums,
            gamma,
            dy: dy.view(part),
            gradient_sums,
            dx: dx.view(part),
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
        let name = format!("{layer}.no_sums");
        let none = self.builder.sums(&name, 2, owned.0[4].len());
        self.builder.fill(layer, BACKWARD, none, 0.0);
        for part in &copies {
            self.builder.kernel(layer, BACKWARD, data(part, none));
        }
    }

    /// The sums are complete but for the axes of local statistics, over which these gradients are reduced.
    fn scale_and_shift_backward(
        &mut self,
        gamma: ParameterId,
        beta: ParameterId,
        layer: &str,
        sums: View,
    ) {
        if !self.gradients.trains_any(&[gamma, beta]) {
            return;
        }
        let axes = self.plan.local_statistics;
        let ([dgamma, dbeta], accumulate) =
            self.gradients
                .scale_and_shift(&mut self.builder, [gamma, beta], axes, layer);
        let kernel = Kernel::BatchNormBackwardParameters {
            gradient_sums: sums,
            dgamma,
            dbeta,
            accumulate,
        };
        self.gradients.add_scale_and_shift(
            &mut self.builder,
            [gamma, beta],
            axes,
            layer,
            Some(kernel),
        );
    }

    fn linear_backward(&mut self, id: LayerId, layer: &str, bias: bool) {
        let (x, dy) = (self.read_value(id, 0), self.computed_gradient(id));
        let axes = positions(self.distribution(id));
        let weight = self.layer(id).parameters[0];
        self.parameter_gradient(weight, axes, layer, |dw, accumulate| {
            (!x.is_empty()).then_some(Kernel::LinearBackwardWeight {
                x,
                dy,
                dw,
                accumulate,
            })
        });
        if bias {
            let bias = self.layer(id).parameters[1];
            self.parameter_gradient(bias, axes, layer, |db, accumulate| {
                (!dy.is_empty()).then_some(Kernel::BiasBackward { dy, db, accumulate })
            });
        }
        let w = self.parameter(id, 0);
        self.pass_back(id, 0, layer, |dy, dx, accumulate| {
            Kernel::LinearBackwardData {
                dy,
                w,
                dx,
                accumulate,
            }
        });
    }

    /// The adjoint of the redistribution of the value.
    fn move_gradient(&mut self, id: LayerId, layer: &str) {
        let input = self.layer(id).inputs[0];
        if !self.storages.of(input).has_gradient {
            return;
        }
        let source = self.gradient(id);
        if self.network.reshards(id) {
            return self.send_gradient(id, layer, &source);
        }
        let (view, accumulate) = self.contribute(input, &self.owned(input));
        let held = self.gradient(input);
        assert_eq!(view.buffer, held.id, "a gradient has one buffer");
        let moved = self.moved_tensor(id, layer, BACKWARD, Role::ActivationGradient);
        let from = (*self.distribution(id), self.layer(id).partial_gradient);
        let to = Destination {
            held,
            distribution: *self.distribution(input),
            accumulate,
        };
        self.builder.redistribute(moved, source, from, to);
    }

    /// Reshards a gradient within a stage; this rank may be a sender, a receiver or both.
    fn reshard_gradient(&mut self, id: LayerId) {
        let input = self.layer(id).inputs[0];
        let (from, to) = (*self.distribution(id), *self.distribution(input));
        let layer = self.layer(id).name.clone();
        let moved = self.moved_tensor(id, &layer, BACKWARD, Role::ActivationGradient);
        let resharding = Resharding::new(&self.builder.world, &from, &to);
        let number = self.resharding_number(id, true);
        let mut source = None;
        if self.enter(id) {
            if self.storages.of(id).members.last() == Some(&id) {
                self.complete_gradient(id);
            }
            let held = self.gradient(id);
            let partial = self.layer(id).partial_gradient;
            if !partial.is_empty() {
                let view = held.view(&self.owned(id));
                self.builder.allreduce_of(moved, partial, view);
            }
            source = Some(held);
        }
        if !self.storages.of(input).has_gradient || !self.builder.enter(to.submesh) {
            let ends = (source.as_ref(), None);
            return self.builder.move_across(moved, number, &resharding, ends);
        }
        let own = self.owned(input);
        let (view, accumulate) = self.contribute(input, &own);
        let held = self.gradient(input);
        assert_eq!(view.buffer, held.id, "a gradient has one buffer");
        let target = if accumulate {
            self.builder.between(moved, to)
        } else {
            held
        };
        let ends = (source.as_ref(), Some(&target));
        self.builder.move_across(moved, number, &resharding, ends);
        if accumulate && !own.is_empty() {
            let copy = Kernel::Copy {
                source: target.view(&own),
                target: held.view(&own),
                accumulate,
            };
            self.builder.kernel(&layer, BACKWARD, copy);
        }
    }

    /// Sends the gradient of a value back to the stage that it came from.
    fn send_gradient(&mut self, id: LayerId, layer: &str, source: &TensorBuffer) {
        let input = self.layer(id).inputs[0];
        let (from, to) = (*self.distribution(id), *self.distribution(input));
        let moved = self.moved_tensor(id, layer, BACKWARD, Role::ActivationGradient);
        let partial = self.layer(id).partial_gradient;
        let view = source.view(&self.owned(id));
        let resharding = Resharding::new(&self.builder.world, &from, &to);
        let number = self.resharding_number(id, true);
        if !partial.is_empty() {
            self.builder.allreduce_of(moved, partial, view);
        }
        let members = &self.storages.of(input).members;
        let last = members[members.len() - 1];
        let turn = self.turn_of_receiver(self.layer(input).stage, last, Pass::Backward);
        let builder = &mut self.builder;
        builder.send_in_turn(turn, moved, number, &resharding, source);
    }
}
