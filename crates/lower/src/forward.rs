//! The forward pass.

use crate::emit::Emit;
use crate::exchange::{gather_halo, zero_outside};
use crate::network::{LayerId, Step, positions};
use crate::redistribute::{Destination, MovedTensor};
use crate::resharding::Resharding;
use crate::schedule::Pass;
use crate::windows::{contributors, transposed_window, window};
use partita_graph::{Convolution, Op, ParameterId, Pool, TransposedConvolution};
use partita_program::{
    Distribution, DropoutMask, Item, Kernel, Phase, ProgramKind, Role, Taps, Transform, View,
};
use partita_space::{AxisList, AxisSet, Interval, Region, Window};

pub(crate) fn taps(windows: &[Window; 3]) -> Taps {
    Taps {
        kernel: windows.map(|window| window.kernel),
        stride: windows.map(|window| window.stride),
        dilation: windows.map(|window| window.dilation),
    }
}

/// The inputs that windows read for some outputs, with these channels.
pub(crate) fn inputs_of(outputs: &Region, windows: &[Window; 3], channels: Interval) -> Region {
    let mut inputs = *outputs;
    for (dim, window) in windows.iter().enumerate() {
        inputs.0[dim + 1] = window.inputs_of(&outputs.0[dim + 1]);
    }
    inputs.0[4] = channels;
    inputs
}

/// Offset of the first of `inputs` from the first input that the first of `outputs` reads.
pub(crate) fn shift(inputs: &Region, outputs: &Region, windows: &[Window; 3]) -> [i64; 3] {
    std::array::from_fn(|dim| {
        let window = &windows[dim];
        inputs.0[dim + 1].start + window.pad_low as i64
            - outputs.0[dim + 1].start * window.stride as i64
    })
}

impl Emit<'_> {
    /// The forward pass of the layers of a stage.
    pub(crate) fn forward(&mut self, layers: &[LayerId]) {
        for &id in layers {
            if let Some(chunks) = self.layer(id).chunks {
                self.forward_in_chunks(id, chunks);
                continue;
            }
            let is_here = self.enter(id);
            if self.network.reshards_within_stage(id) {
                self.reshard_value(id, is_here);
            } else if is_here {
                self.forward_layer(id);
            }
            if is_here && self.storages.of(id).members.last() == Some(&id) {
                self.complete_value(id);
                self.send_values(id);
            }
        }
    }

    /// Sends a value to other stages.
    pub(crate) fn send_values(&mut self, id: LayerId) {
        for &reader in self.network.readers(id) {
            if self.network.reshards(reader) && !self.network.reshards_within_stage(reader) {
                let (from, to) = (*self.distribution(id), *self.distribution(reader));
                let resharding = Resharding::new(&self.builder.world, &from, &to);
                let (number, value) = (self.resharding_number(reader, false), self.value(id));
                let layer = self.layer(reader).name.clone();
                let moved = self.moved_tensor(reader, &layer, self.pass, Role::Activation);
                let stage = self.layer(reader).stage;
                let turn = self.turn_of_receiver(stage, reader, Pass::Forward);
                let builder = &mut self.builder;
                builder.send_in_turn(turn, moved, number, &resharding, &value);
            }
        }
    }

    /// Reshards a value within a stage; this rank may be a sender, a receiver or both.
    fn reshard_value(&mut self, id: LayerId, is_here: bool) {
        let input = self.layer(id).inputs[0];
        let (from, to) = (*self.distribution(input), *self.distribution(id));
        let layer = self.layer(id).name.clone();
        if is_here {
            self.hold_value(id);
        }
        let moved = self.moved_tensor(id, &layer, self.pass, Role::Activation);
        let resharding = Resharding::new(&self.builder.world, &from, &to);
        let number = self.resharding_number(id, self.pass == Phase::Backward);
        let source = self.state().values[self.storages.of[input.0]];
        let target = self.state().values[self.storages.of[id.0]].filter(|_| is_here);
        let ends = (source.as_ref(), target.as_ref());
        self.builder.move_across(moved, number, &resharding, ends);
    }

    /// Description of a moved value or gradient.
    pub(crate) fn moved_tensor<'n>(
        &self,
        id: LayerId,
        layer: &'n str,
        phase: Phase,
        role: Role,
    ) -> MovedTensor<'n> {
        let is_gradient = role == Role::ActivationGradient;
        MovedTensor {
            layer,
            phase,
            role,
            tensor: self.plan.tensor(self.storages.of(id), is_gradient),
        }
    }

    /// The forward pass of a layer, and what follows the last one of its storage.
    pub(crate) fn forward_whole_layer(&mut self, id: LayerId) {
        self.forward_layer(id);
        if self.storages.of(id).members.last() == Some(&id) {
            self.complete_value(id);
        }
    }

    fn forward_layer(&mut self, id: LayerId) {
        let layer = self.layer(id).name.clone();
        if self.layer(id).loss().is_none() && self.storages.of(id).members[0] == id {
            self.hold_value(id);
        }
        match self.layer(id).step.clone() {
            Step::Move => self.move_value(id, &layer),
            Step::Layer(op) => {
                self.gather_parameters(id, self.pass);
                self.forward_operation(id, &layer, &op);
            }
        }
    }

    /// The kernels of an operation of the model.
    fn forward_operation(&mut self, id: LayerId, layer: &str, op: &Op) {
        let training = self.request.kind == ProgramKind::Train;
        match *op {
            Op::Input => self.import(id, layer, Item::Sample),
            Op::Features => self.import(id, layer, Item::Features),
            Op::Convolution(ref convolution) => self.convolution(id, layer, convolution),
            Op::TransposedConvolution(ref convolution) => {
                self.transposed_convolution(id, layer, convolution);
            }
            Op::Pool(ref pool) => self.pool(id, layer, pool),
            Op::Resample(ref resample) => self.resample(id, layer, resample),
            Op::BatchNorm { epsilon, momentum } if training && !self.keeps_statistics(id) => {
                self.batch_norm(id, layer, epsilon, momentum);
            }
            Op::BatchNorm { epsilon, .. } => self.batch_norm_inference(id, layer, epsilon),
            Op::LeakyRelu { negative_slope } => {
                self.elementwise(id, layer, |x, y| Kernel::LeakyReluForward {
                    x,
                    y,
                    negative_slope,
                })
            }
            Op::Prelu(_) => {
                let slopes = self.parameter(id, 0);
                self.elementwise(id, layer, |x, y| Kernel::PreluForward { x, slopes, y });
            }
            Op::Softmax => self.elementwise(id, layer, |x, y| Kernel::SoftmaxForward { x, y }),
            Op::Linear { bias, .. } => {
                let (w, bias) = (self.parameter(id, 0), self.bias(id, bias));
                self.elementwise(id, layer, |x, y| Kernel::LinearForward { x, w, bias, y });
            }
            Op::Dropout { rate, mask } if training => self.dropout(id, layer, (rate, mask)),
            Op::Dropout { .. } => self.elementwise(id, layer, |source, target| Kernel::Copy {
                source,
                target,
                accumulate: false,
            }),
            Op::Flatten | Op::Reshape { .. } => self.flatten(id, layer),
            Op::Add => {
                let b = self.read_value(id, 1);
                self.elementwise(id, layer, |a, y| Kernel::Add { a, b, y });
            }
            Op::Multiply => self.multiply(id, layer),
            Op::Concat => self.concat(id, layer),
            Op::Slice { start, .. } => self.slice(id, layer, start),
            Op::ChannelShuffle { groups } => {
                self.elementwise(id, layer, |x, y| Kernel::ChannelShuffle {
                    x,
                    y,
                    groups,
                    accumulate: false,
                });
            }
            Op::Embedding { .. } => self.embedding(id, layer),
            Op::Positions => self.positions(id, layer),
            Op::PositionEmbedding { .. } => self.position_embedding(id, layer),
            Op::LayerNorm { epsilon, centers } => self.layer_norm(id, layer, (epsilon, !centers)),
            Op::GroupNorm { groups, epsilon } => self.group_norm(id, layer, groups, epsilon),
            Op::Activation(activation) => self.activation(id, layer, activation),
            Op::Attention { .. } => self.attention(id, layer, op),
            Op::Loss(ref loss) => {
                self.loss(id, layer, loss, 1.0);
                self.report_loss(id, layer, loss);
            }
            Op::AuxiliaryLoss { ref loss, weight } => self.loss(id, layer, loss, weight),
        }
    }

    fn dropout(&mut self, id: LayerId, layer: &str, (rate, mask): (f64, DropoutMask)) {
        let (distribution, halo_low) = (*self.distribution(id), self.halo_below(id));
        let operation = self.layer(id).origin.0 as u32;
        self.elementwise(id, layer, |x, y| Kernel::Dropout {
            x,
            y,
            rate,
            mask,
            operation,
            distribution,
            halo_low,
            accumulate: false,
        });
    }

    /// Allocates the value of a storage.
    pub(crate) fn hold_value(&mut self, id: LayerId) {
        let index = self.storages.of[id.0];
        let storage = &self.storages.all[index];
        let part = self.slab_part(id);
        let region = part.map_or_else(
            || storage.value.held(&self.builder.coord),
            |part| part.value,
        );
        let name = self.layer(id).name.clone();
        let (tensor, distribution) = (self.plan.tensor(storage, false), storage.value.distribution);
        let held =
            self.builder
                .tensor_buffer(&name, Role::Activation, tensor, distribution, region);
        self.builder
            .set_redundant(held, storage.inner || part.is_some());
        self.state_mut().values[index] = Some(held);
    }

    /// Fills the halo and padding of a value.
    pub(crate) fn complete_value(&mut self, id: LayerId) {
        let storage = self.storages.of(id);
        let Some(held) = self.state().values[self.storages.of[id.0]] else {
            return;
        };
        let layer = self.layer(id).name.clone();
        if storage.zero_padding {
            let inside = held
                .region
                .intersect(&Region::all(storage.value.distribution.shape));
            let (builder, pass) = (&mut self.builder, self.pass);
            zero_outside(builder, &layer, pass, &held, &held.region, &inside);
        }
        if !storage.inner && self.slab_part(id).is_none() {
            gather_halo(&mut self.builder, &layer, self.pass, &held, &storage.value);
        }
    }

    fn import(&mut self, id: LayerId, layer: &str, item: Item) {
        let source = self.staged(self.micro, item);
        let target = self.owned_value(id);
        if !target.is_empty() {
            let transform = match item {
                Item::Sample => self.request.samples.transform,
                Item::Features | Item::Target => Transform::Identity,
            };
            self.builder.kernel(
                layer,
                Phase::Load,
                Kernel::Import {
                    source,
                    target,
                    transform,
                },
            );
        }
    }

    /// A kernel from the first input to the output.
    pub(crate) fn elementwise(
        &mut self,
        id: LayerId,
        layer: &str,
        kernel: impl Fn(View, View) -> Kernel,
    ) {
        let (x, y) = (self.read_value(id, 0), self.computed_value(id));
        if !y.is_empty() {
            self.builder.kernel(layer, self.pass, kernel(x, y));
        }
    }

    /// A copy of every input to its channels; copy elimination removes most of them.
    fn concat(&mut self, id: LayerId, layer: &str) {
        for index in 0..self.layer(id).inputs.len() {
            let source = self.read_value(id, index);
            let target = self.value(id).view(&self.channels_of(id, index));
            self.copy(layer, source, target);
        }
    }

    pub(crate) fn copy(&mut self, layer: &str, source: View, target: View) {
        if !target.is_empty() {
            let copy = Kernel::Copy {
                source,
                target,
                accumulate: false,
            };
            self.builder.kernel(layer, self.pass, copy);
        }
    }

    /// Width of the computed halo below the owned region.
    pub(crate) fn halo_below(&self, id: LayerId) -> [usize; 5] {
        let (owned, computed) = (self.owned(id), self.computed(id));
        std::array::from_fn(|dim| (owned.0[dim].start - computed.0[dim].start) as usize)
    }

    /// The channels of an input in the computed region of a concatenation.
    pub(crate) fn channels_of(&self, id: LayerId, input: usize) -> Region {
        let (before, from) = self.layer(id).inputs.split_at(input);
        let channels = |id: &LayerId| self.distribution(*id).shape[4] as i64;
        let start: i64 = before.iter().map(channels).sum();
        let mut region = self.computed(id);
        region.0[4] = Interval::new(start, start + channels(&from[0]));
        region
    }

    /// The bias of a layer; only the first rank of a partial sum adds it.
    fn bias(&self, id: LayerId, is_there: bool) -> Option<View> {
        let mut sum = self.layer(id).partial.iter();
        let adds = sum.all(|axis| self.builder.coord[axis.index()] == 0);
        (is_there && adds).then(|| self.parameter(id, 1))
    }

    /// Groups of channels of a convolution on this rank.
    pub(crate) fn groups(&self, id: LayerId, all: usize) -> usize {
        match all {
            1 => 1,
            _ => all / self.builder.mesh.parts(self.distribution(id).axes[4]),
        }
    }

    /// Redistributes or reshards a value.
    fn move_value(&mut self, id: LayerId, layer: &str) {
        let input = self.layer(id).inputs[0];
        let moved = self.moved_tensor(id, layer, self.pass, Role::Activation);
        if self.network.reshards(id) {
            let (from, to) = (*self.distribution(input), *self.distribution(id));
            let resharding = Resharding::new(&self.builder.world, &from, &to);
            let number = self.resharding_number(id, false);
            let (own, target) = (
                self.state().values[self.storages.of[input.0]],
                self.value(id),
            );
            let builder = &mut self.builder;
            return builder.receive_across(moved, number, &resharding, own.as_ref(), &target);
        }
        let from = (*self.distribution(input), self.layer(input).partial);
        let (source, target) = (self.value(input), self.value(id));
        let to = Destination {
            held: target,
            distribution: *self.distribution(id),
            accumulate: false,
        };
        self.builder.redistribute(moved, source, from, to);
    }

    fn convolution(&mut self, id: LayerId, layer: &str, convolution: &Convolution) {
        let input = self.layer(id).inputs[0];
        let (x, y) = (self.value(input), self.value(id));
        let w = self.parameter(id, 0);
        let bias = self.bias(id, convolution.bias);
        let channels = self.owned(input).0[4];
        for outputs in self.pieces(id) {
            let kernel = Kernel::ConvolutionForward {
                x: x.view(&inputs_of(&outputs, &convolution.window, channels)),
                w,
                bias,
                y: y.view(&outputs),
                taps: taps(&convolution.window),
                groups: self.groups(id, convolution.groups),
                accumulate: false,
            };
            self.builder.kernel(layer, self.pass, kernel);
        }
    }

    /// Computed as the data gradient of the corresponding convolution, with a bias.
    fn transposed_convolution(
        &mut self,
        id: LayerId,
        layer: &str,
        convolution: &TransposedConvolution,
    ) {
        let input = self.layer(id).inputs[0];
        let (x, y) = (self.value(input), self.value(id));
        let w = self.parameter(id, 0);
        let bias = self.bias(id, convolution.bias);
        let within = self.contributing(id);
        let all = self.contributors(&self.computed(id), convolution, &within);
        for outputs in self.pieces(id) {
            let inputs = self.contributors(&outputs, convolution, &all);
            let kernel = Kernel::ConvolutionBackwardData {
                dy: x.view(&inputs),
                w,
                bias,
                dx: y.view(&outputs),
                taps: taps(&convolution.window),
                shift: shift(&outputs, &inputs, &convolution.window),
                groups: self.groups(id, convolution.groups),
                accumulate: false,
            };
            self.builder.kernel(layer, self.pass, kernel);
        }
    }

    /// Inputs of a transposed convolution that may contribute: all, or in chunks those that are there.
    pub(crate) fn contributing(&self, id: LayerId) -> Region {
        let input = self.layer(id).inputs[0];
        let mut within = Region::all(self.distribution(input).shape);
        if self.layer(id).chunks.is_some() {
            within.0[1..4].copy_from_slice(&self.present(input).0[1..4]);
        }
        within.0[4] = self.owned(input).0[4];
        within
    }

    /// The inputs among `within` that contribute to a block of outputs of a transposed convolution.
    pub(crate) fn contributors(
        &self,
        outputs: &Region,
        convolution: &TransposedConvolution,
        within: &Region,
    ) -> Region {
        let mut inputs = *outputs;
        for (dim, window) in convolution.window.iter().enumerate() {
            let dim = dim + 1;
            inputs.0[dim] = contributors(window, &outputs.0[dim], &within.0[dim]);
        }
        inputs.0[4] = within.0[4];
        inputs
    }

    /// The computed outputs of a convolution: the interior, which overlaps with the halo exchange, and then the
    /// border; or all at once where the interior is less than half.
    fn pieces(&self, id: LayerId) -> Vec<Region> {
        let computed = self.computed(id);
        if computed.is_empty() {
            return Vec::new();
        }
        if self.slab_part(id).is_some() {
            return vec![computed];
        }
        let input = self.storages.of(self.layer(id).inputs[0]);
        let geometry = &input.value;
        let waits = geometry
            .incoming(&self.builder.coord)
            .iter()
            .any(|transfer| transfer.peer != self.builder.coord);
        if !waits || input.inner || !self.request.strategy.overlap {
            return vec![computed];
        }
        let mut interior = computed;
        for dim in 1..4 {
            let line = geometry.lines_at(&self.builder.coord)[dim];
            let remote = line.pieces.iter().any(|piece| piece.at != line.owned);
            let (slides, spreads) = (
                window(self.layer(id), dim),
                transposed_window(self.layer(id), dim),
            );
            if let (true, Some(window)) = (remote, slides.or(spreads)) {
                let inside = Interval::all(geometry.distribution.shape[dim]);
                let wraps = line.pieces.iter().any(|piece| piece.at != piece.from);
                let read = |o: i64| {
                    let output = Interval::new(o, o + 1);
                    let inputs = match spreads {
                        Some(_) => window.outputs_of(&output),
                        None => window.inputs_of(&output),
                    };
                    if wraps && spreads.is_none() {
                        inputs
                    } else {
                        inputs.intersect(&inside)
                    }
                };
                interior.0[dim] = reading_within(&line.owned, &computed.0[dim], read);
            }
        }
        if 2 * interior.volume() < computed.volume() {
            return vec![computed];
        }
        let mut pieces = vec![interior];
        pieces.extend(computed.minus(&interior));
        pieces
    }

    fn pool(&mut self, id: LayerId, layer: &str, pool: &Pool) {
        let y = self.computed_value(id);
        if y.is_empty() {
            return;
        }
        let (inputs, shift) = self.pool_inputs(id, &pool.window);
        let x = self.value(self.layer(id).inputs[0]).view(&inputs);
        let kernel = Kernel::PoolForward {
            kind: pool.kind,
            x,
            y,
            taps: taps(&pool.window),
            shift,
        };
        self.builder.kernel(layer, self.pass, kernel);
    }

    /// The inputs that the computed outputs of a pooling read, and their shift.
    pub(crate) fn pool_inputs(&self, id: LayerId, windows: &[Window; 3]) -> (Region, [i64; 3]) {
        let outputs = self.computed(id);
        let shape = self.distribution(self.layer(id).inputs[0]).shape;
        let inputs = inputs_of(&outputs, windows, outputs.0[4]).intersect(&Region::all(shape));
        let shift = std::array::from_fn(|dim| {
            let window = &windows[dim];
            inputs.0[dim + 1].start - outputs.0[dim + 1].start * window.stride as i64
                + window.pad_low as i64
        });
        (inputs, shift)
    }

    /// Elements per channel over all ranks.
    pub(crate) fn count(distribution: &Distribution) -> u64 {
        (0..4)
            .map(|dim| distribution.split_range(dim).len() as u64)
            .product()
    }

    /// Elements per channel from which the statistics of a batch norm are taken that this rank uses.
    pub(crate) fn count_of_statistics(&self, id: LayerId) -> u64 {
        let distribution = self.distribution(id);
        let local = self.plan.local_statistics;
        let apart = distribution.axes[0].iter().filter(|&axis| local.has(axis));
        let mut common = *distribution;
        common.axes = [AxisList::NONE; 5];
        common.axes[0] = AxisList::of(apart);
        let positions = distribution.shape[1..4].iter().product::<usize>() as u64;
        self.builder.owned(&common).0[0].len() as u64 * positions
    }

    fn batch_norm(&mut self, id: LayerId, layer: &str, epsilon: f64, momentum: f64) {
        let count = self.count_of_statistics(id);
        let known = self.state().sums.get(&id).copied();
        let sums = known.unwrap_or_else(|| self.moments(id, layer));
        let [gamma, beta, mean, variance] = std::array::from_fn(|i| self.parameter(id, i));
        self.elementwise(id, layer, |x, y| Kernel::BatchNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            count,
            epsilon,
        });
        if known.is_some() {
            return;
        }
        if self.is_tracked_late(self.layer(id).parameters[2]) {
            let sums = self.moments_of_all(id, layer, sums);
            self.late_moments.insert((id, self.micro), sums);
            return;
        }
        let running = Kernel::BatchNormRunning {
            sums,
            mean,
            variance,
            count,
            momentum,
        };
        self.builder.kernel(layer, self.pass, running);
    }

    /// Whether running statistics are updated at the end of the step: they are those of several replicas, or
    /// sums that the forward pass does not wait for.
    pub(crate) fn is_tracked_late(&self, mean: ParameterId) -> bool {
        self.plan.is_on_several_submeshes(mean) || !self.plan.local_statistics.is_empty()
    }

    /// Sums over all ranks with the micro-batch, from those of local statistics.
    fn moments_of_all(&mut self, id: LayerId, layer: &str, sums: View) -> View {
        let local = self.plan.local_statistics;
        if local.is_empty() {
            return sums;
        }
        let (name, channels) = (format!("{layer}.all_sums"), self.owned(id).0[4].len());
        let all = self.builder.sums(&name, 2, channels);
        self.copy(layer, sums, all);
        self.allreduce(layer, self.pass, local, all);
        all
    }

    /// Sums of values and of squares over the ranks with the samples of the statistics.
    fn moments(&mut self, id: LayerId, layer: &str) -> View {
        let sums = self
            .builder
            .sums(&format!("{layer}.sums"), 2, self.owned(id).0[4].len());
        let x = self.owned_value(self.layer(id).inputs[0]);
        if x.is_empty() {
            self.builder.fill(layer, self.pass, sums, 0.0);
        } else {
            self.builder.kernel(
                layer,
                self.pass,
                Kernel::BatchNormStatistics {
                    x,
                    sums,
                    accumulate: false,
                },
            );
        }
        let axes = positions(self.distribution(id)).minus(self.plan.local_statistics);
        self.allreduce(layer, self.pass, axes, sums);
        self.state_mut().sums.insert(id, sums);
        sums
    }

    /// Whether a batch norm normalizes with its running statistics in training, too.
    pub(crate) fn keeps_statistics(&self, id: LayerId) -> bool {
        self.graph.keeps_statistics(&self.layer(id).parameters)
    }

    fn batch_norm_inference(&mut self, id: LayerId, layer: &str, epsilon: f64) {
        let [gamma, beta, mean, variance] = std::array::from_fn(|i| self.parameter(id, i));
        self.elementwise(id, layer, |x, y| Kernel::BatchNormInference {
            x,
            mean,
            variance,
            gamma,
            beta,
            y,
            epsilon,
        });
    }

    fn flatten(&mut self, id: LayerId, layer: &str) {
        let source = self.owned_value(self.layer(id).inputs[0]);
        let target = self.owned_value(id);
        self.copy(layer, source, target);
    }

    /// Accumulates an output over losses and micro-batches.
    pub(crate) fn add_up(&mut self, name: &'static str, layer: &str, value: View) {
        let sum = *self.report.entry(name).or_insert(value);
        if sum != value {
            let copy = Kernel::Copy {
                source: value,
                target: sum,
                accumulate: true,
            };
            self.builder.kernel(layer, Phase::Report, copy);
        }
    }

    /// Reduces an output over ranks after the last micro-batch.
    pub(crate) fn report(&mut self, name: &'static str, layer: &str, axes: AxisSet) {
        if self.is_whole() && self.micro + 1 == self.plan.networks.len() {
            let sum = self.report[name];
            self.allreduce(layer, Phase::Report, axes, sum);
            self.builder.output(name, sum);
        }
    }
}

/// The interval of computed outputs that read only owned inputs.
///
/// Reads are monotonic in the outputs, so both ends are found by bisection.
fn reading_within(
    owned: &Interval,
    computed: &Interval,
    read: impl Fn(i64) -> Interval,
) -> Interval {
    let start = first(computed, |o| read(o).start >= owned.start);
    let rest = Interval::new(start, computed.end);
    Interval::new(start, first(&rest, |o| read(o).end > owned.end))
}

/// The first index at which a monotonic predicate holds; the end if it never does.
fn first(indices: &Interval, holds: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high) = (indices.start, indices.end.max(indices.start));
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle
        } else {
            low = middle + 1
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interiors_are_those_found_output_by_output() {
        let mut checked = 0;
        for (kernel, stride, dilation, pad) in (0..4 * 3 * 2 * 3).map(|case| {
            (
                case % 4 + 1,
                case / 4 % 3 + 1,
                case / 12 % 2 + 1,
                case / 24 % 3,
            )
        }) {
            let window = Window {
                kernel,
                stride,
                dilation,
                pad_low: pad,
                pad_high: pad,
            };
            let inside = Interval::all(12);
            for (start, end) in [(0, 4), (0, 12), (3, 9), (8, 12)] {
                let owned = Interval::new(start, end);
                let computed = Interval::new(
                    start / stride as i64,
                    (end + stride as i64 - 1) / stride as i64,
                );
                let read = |o| {
                    window
                        .inputs_of(&Interval::new(o, o + 1))
                        .intersect(&inside)
                };
                let found = reading_within(&owned, &computed, read);
                let within = |o: &i64| read(*o).start >= start && read(*o).end <= end;
                let expected: Vec<i64> = (computed.start..computed.end).filter(within).collect();
                let outputs: Vec<i64> = (found.start..found.end).collect();
                assert_eq!(outputs, expected, "{window:?} {owned} {computed}");
                checked += outputs.len();
            }
        }
        assert!(checked > 500, "{checked} outputs inside");
    }

    #[test]
    fn interiors_of_any_size_are_found_at_once() {
        let window = Window {
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad_low: 1,
            pad_high: 1,
        };
        let owned = Interval::new(1 << 46, 1 << 47);
        let read = |o| window.inputs_of(&Interval::new(o, o + 1));
        let found = reading_within(&owned, &owned, read);
        assert_eq!(found, Interval::new(owned.start + 1, owned.end - 1));
    }
}
