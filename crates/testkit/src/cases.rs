//! Random small models with random strategies.

mod borders;

mod chunked;

mod gates;

mod resampling;

mod tokens;

mod wide;

pub use chunked::random_chunked_case;
pub use tokens::random_token_case;
pub use wide::random_wide_case;

use crate::Draws;
use crate::losses::{LossOf, draw_loss};
use partita_graph::{
    Activation, Convolution, Graph, GraphBuilder, Loss, NodeId, Op, Pool, PoolKind, PreluSlopes,
    TransposedConvolution,
};
use partita_lower::{Halo, LayerChoice, Recompute, Shard, Strategy};
use partita_space::{AXES, Axis, AxisList, Window};

/// A window that keeps the extent.
const SAME: Window = Window {
    kernel: 3,
    stride: 1,
    dilation: 1,
    pad_low: 1,
    pad_high: 1,
};

/// A random small model with a random strategy.
pub struct Case {
    /// The model.
    pub graph: Graph,
    /// Its strategy, over 2 to 8 ranks; one in four without kernel fusion.
    pub strategy: Strategy,
    /// Samples per step.
    pub batch: usize,
    /// Its seed.
    pub seed: u64,
}

/// Draws a case: 1 to 3 spatial dims, uneven extents, convolutions, transposed ones and poolings of any
/// window, resamplings, batch and layer norm, activations, dropout, residual sums, concatenations, slices, encoders
/// and decoders, with and without a linear end, both losses, alone and with auxiliary ones.
pub fn random_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let graph = Sketch::new(&mut draws).finish(&mut draws);
        if let Some(case) = split(&mut draws, graph, seed) {
            return case;
        }
    }
}

/// Draws an encoder and a decoder as of a U-Net, of two or three levels, that classifies positions.
pub fn random_encoder_decoder(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    let mut sketch = Sketch::empty(&mut draws, [20, 13, 9]);
    let levels = draws.between(1, 2);
    sketch.encode_and_decode(&mut draws, levels);
    let graph = sketch.end_with_positions();
    split(&mut draws, graph, seed).expect("there is no batch norm")
}

/// Draws a model with more channels and a strategy over all axes, some layers apart from the rest.
pub fn random_layer_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let mut sketch = Sketch::empty(&mut draws, [13, 8, 6]);
        sketch.most_filters = 6;
        for _ in 0..draws.between(2, 6) {
            sketch.layer(&mut draws);
        }
        let graph = sketch.finish(&mut draws);
        let batch = draws.between(1, 5);
        // A model that is too narrow for the drawn strategy is redrawn.
        for _ in 0..20 {
            let strategy = random_layer_strategy(&mut draws, &graph, batch);
            if strategy.check(&graph, batch).is_ok() {
                return Case {
                    batch: or_short(&mut draws, &graph, &strategy, batch),
                    graph,
                    strategy,
                    seed,
                };
            }
        }
    }
}

/// Draws a model and a strategy over tiles in which some ranges of layers share their halo exchanges.
pub fn random_grouped_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let mut sketch = Sketch::empty(&mut draws, [24, 12, 7]);
        for _ in 0..draws.between(3, 8) {
            sketch.layer(&mut draws);
        }
        let graph = sketch.finish(&mut draws);
        // A norm of a normalized tensor amplifies rounding in its gradient, however it is split.
        let is_norm = |id: &NodeId| matches!(graph.node(*id).op, Op::BatchNorm { .. });
        let ids = (0..graph.nodes.len()).map(NodeId);
        let mut norms = ids.filter(is_norm);
        if norms.any(|id| graph.node(id).inputs.iter().any(is_norm)) {
            continue;
        }
        let batch = draws.between(1, 3);
        for _ in 0..20 {
            let mut strategy = random_strategy(&mut draws, &graph, batch.min(2));
            group(&mut draws, &graph, &mut strategy);
            strategy.micro = draws.pick(&[1, 1, 2]);
            if draws.one_in(3) {
                strategy.layers.push(random_block(&mut draws, &graph));
            }
            let split: usize = (1..4).map(|axis| strategy.extent(AXES[axis])).product();
            if split > 1 && strategy.check(&graph, batch).is_ok() {
                return Case {
                    graph,
                    strategy,
                    batch,
                    seed,
                };
            }
        }
    }
}

/// Groups ranges of layers.
fn group(draws: &mut Draws, graph: &Graph, strategy: &mut Strategy) {
    let mut first = draws.between(0, 2);
    while first + 1 < graph.nodes.len() {
        let last = draws.between(first + 1, (first + 8).min(graph.nodes.len() - 1));
        strategy.layers.push(LayerChoice {
            from: graph.nodes[first].name.clone(),
            to: graph.nodes[last].name.clone(),
            halo: Some(Halo::Grouped),
            ..LayerChoice::default()
        });
        first = last + 1 + draws.pick(&[0, 0, 1, 2]);
    }
    if draws.one_in(4) {
        let alone = &graph.nodes[draws.between(1, graph.nodes.len() - 1)].name;
        strategy.layers.push(LayerChoice {
            from: alone.clone(),
            to: alone.clone(),
            halo: Some(Halo::Own),
            ..LayerChoice::default()
        });
    }
}

pub(crate) fn random_layer_strategy(draws: &mut Draws, graph: &Graph, batch: usize) -> Strategy {
    let extent = graph.nodes[0].shape.extent;
    let mut extents = [1; 7];
    while !(2..=8).contains(&extents.iter().product::<usize>()) {
        extents[0] = draws.between(1, batch.min(2));
        for dim in 0..3 {
            extents[dim + 1] = draws.between(1, extent[dim].min(2));
        }
        extents[4] = draws.pick(&[1, 1, 2, 3, 4]);
        extents[5] = draws.pick(&[1, 1, 2, 3]);
    }
    layers_apart(draws, graph, batch, extents)
}

/// A strategy of these extents, some layers apart from the rest.
fn layers_apart(draws: &mut Draws, graph: &Graph, batch: usize, extents: [usize; 7]) -> Strategy {
    let mut strategy = Strategy::of(extents);
    let axes: Vec<Axis> = AXES
        .into_iter()
        .filter(|&axis| strategy.extent(axis) > 1)
        .collect();
    for _ in 0..draws.between(0, 2) {
        let first = draws.between(0, graph.nodes.len() - 1);
        let last = draws.between(first, graph.nodes.len() - 1);
        let mut dims = [None; 6];
        for _ in 0..draws.between(1, 3) {
            let mut list = AxisList::NONE;
            for _ in 0..draws.pick(&[0, 1, 1, 2]) {
                let axis = axes[draws.between(0, axes.len() - 1)];
                if !list.has(axis) {
                    list = list.inside(axis);
                }
            }
            dims[draws.between(0, 5)] = Some(list);
        }
        strategy.layers.push(LayerChoice {
            from: graph.nodes[first].name.clone(),
            to: graph.nodes[last].name.clone(),
            dims,
            ..LayerChoice::default()
        });
    }
    strategy.overlap = !draws.one_in(4);
    strategy.fuse = !draws.one_in(4);
    if draws.one_in(2) {
        let divides = |parts: &usize| batch.is_multiple_of(*parts);
        let most = batch / strategy.extent(Axis::Data);
        let possible: Vec<usize> = (1..=most.max(1)).filter(divides).collect();
        strategy.micro = possible[draws.between(0, possible.len() - 1)];
        strategy.shard = draws.pick(&Shard::ALL);
        for _ in 0..draws.between(0, 2) {
            strategy.layers.push(random_block(draws, graph));
        }
    }
    strategy
}

/// Layers that are computed again for the backward pass.
pub(crate) fn random_block(draws: &mut Draws, graph: &Graph) -> LayerChoice {
    let first = draws.between(0, graph.nodes.len() - 1);
    let last = draws.between(first, graph.nodes.len() - 1);
    let recompute = if (first + last).is_multiple_of(3) {
        Recompute::Selective
    } else {
        Recompute::On
    };
    LayerChoice {
        from: graph.nodes[first].name.clone(),
        to: graph.nodes[last].name.clone(),
        recompute: Some(recompute),
        ..LayerChoice::default()
    }
}

/// The batch size of a step, or of the last one of an epoch.
pub(crate) fn or_short(
    draws: &mut Draws,
    graph: &Graph,
    strategy: &Strategy,
    batch: usize,
) -> usize {
    let short = if draws.one_in(4) {
        draws.between(1, batch)
    } else {
        batch
    };
    match strategy.check_norms(graph, short) {
        Ok(()) => short,
        Err(_) => batch,
    }
}

/// `None` if a batch norm would be over one value.
fn split(draws: &mut Draws, graph: Graph, seed: u64) -> Option<Case> {
    let batch = draws.between(1, 5);
    let strategy = random_strategy(draws, &graph, batch);
    strategy.check_norms(&graph, batch).ok()?;
    Some(Case {
        graph,
        strategy,
        batch,
        seed,
    })
}

fn random_strategy(draws: &mut Draws, graph: &Graph, batch: usize) -> Strategy {
    let extent = graph.nodes[0].shape.extent;
    loop {
        let data = draws.between(1, batch.min(4));
        let spatial = std::array::from_fn(|dim| draws.between(1, extent[dim].min(5)));
        let mut strategy = Strategy::hybrid(data, spatial);
        strategy.overlap = !draws.one_in(4);
        if (2..=8).contains(&strategy.ranks()) {
            strategy.fuse = !draws.one_in(4);
            return strategy;
        }
    }
}

pub(crate) struct Sketch {
    builder: GraphBuilder,
    head: NodeId,
    /// The input and what each layer has made.
    trunk: Vec<NodeId>,
    layers: usize,
    most_filters: usize,
}

impl Sketch {
    fn new(draws: &mut Draws) -> Self {
        let mut sketch = Self::empty(draws, [17, 10, 7]);
        for _ in 0..draws.between(2, 6) {
            sketch.layer(draws);
        }
        sketch
    }

    /// Only an input, with these largest extents in 1D, 2D and 3D.
    pub(crate) fn empty(draws: &mut Draws, most: [usize; 3]) -> Self {
        let rank = draws.between(1, 3);
        let most = most[rank - 1];
        let extent: Vec<usize> = (0..rank).map(|_| draws.between(3, most)).collect();
        let mut builder = GraphBuilder::new("random").expect("the name is valid");
        let channels = draws.between(1, 4);
        let head = builder
            .input("x", &extent, channels)
            .expect("the input is valid");
        Self {
            builder,
            head,
            trunk: vec![head],
            layers: 0,
            most_filters: 3,
        }
    }

    fn name(&mut self, kind: &str) -> String {
        self.layers += 1;
        format!("{kind}{}", self.layers)
    }

    pub(crate) fn layer(&mut self, draws: &mut Draws) {
        match draws.between(0, 16) {
            0..=3 => self.convolution(draws),
            4 | 5 => self.pool(draws),
            6 => {
                let name = self.name("norm");
                let (epsilon, momentum) = (1e-3, 0.1);
                self.norm(&name, Op::BatchNorm { epsilon, momentum });
            }
            7 => self.activation(draws),
            8 => self.residual(draws),
            9 => self.transposed(draws),
            10 => self.concat(draws),
            11 => self.encode_and_decode(draws, 1),
            12 => self.norm_and_gate(draws),
            13 => self.slice(draws),
            14 => self.two_borders(draws),
            15 => self.resample(draws),
            _ => {
                let name = self.name("drop");
                self.head = self
                    .builder
                    .dropout(&name, self.head, 0.3)
                    .expect("a dropout fits anywhere");
            }
        }
        self.trunk.push(self.head);
    }

    /// A layer or group norm, a smooth activation, or one behind the other; or a gate, or a softmax.
    fn norm_and_gate(&mut self, draws: &mut Draws) {
        if draws.one_in(3) {
            return self.gate(draws);
        }
        if draws.one_in(6) {
            let name = self.name("softmax");
            let softmax = self.builder.softmax(&name, self.head);
            self.head = softmax.expect("a softmax fits anywhere");
            return;
        }
        let which = draws.between(1, 3);
        if which & 1 != 0 && draws.one_in(2) {
            self.group_norm(draws);
        } else if which & 1 != 0 {
            let name = self.name("rows");
            self.norm(
                &name,
                Op::LayerNorm {
                    epsilon: 0.1,
                    centers: true,
                },
            );
        }
        if which & 2 != 0 {
            let name = self.name("gate");
            let activation = draws.pick(&Activation::ALL);
            let gate = self.builder.activation(&name, activation, self.head);
            self.head = gate.expect("an activation fits anywhere");
        }
    }

    /// Some of the channels; sometimes the others too, in another order.
    fn slice(&mut self, draws: &mut Draws) {
        let (whole, channels) = (self.head, self.builder.shape(self.head).channels);
        let first = draws.between(0, channels - 1);
        let mut part = |start, channels| {
            let name = self.name("slice");
            let slice = self.builder.slice(&name, whole, start, channels);
            slice.expect("the range exists")
        };
        if first == 0 || draws.one_in(2) {
            self.head = part(first, draws.between(1, channels - first));
            return;
        }
        let halves = [part(first, channels - first), part(0, first)];
        let name = self.name("joint");
        let joint = self.builder.concat(&name, &halves);
        self.head = joint.expect("extents are equal");
    }

    fn activation(&mut self, draws: &mut Draws) {
        let name = self.name("relu");
        if draws.one_in(4) {
            let slopes = draws.pick(&PreluSlopes::ALL);
            let prelu = self.builder.prelu(&name, self.head, slopes);
            self.head = prelu.expect("a PReLU fits anywhere");
            return;
        }
        let slope = if draws.one_in(2) { 0.0 } else { 0.1 };
        self.head = self
            .builder
            .leaky_relu(&name, self.head, slope)
            .expect("a ReLU fits anywhere");
    }

    /// A window per dim, drawn until one fits.
    fn convolution(&mut self, draws: &mut Draws) {
        let name = self.name("conv");
        let shape = self.builder.shape(self.head);
        let rank = self.builder.spatial_rank();
        for _ in 0..20 {
            let periodic = draws.one_in(5);
            let window = std::array::from_fn(|dim| {
                if dim < 3 - rank {
                    return Window::ONE;
                }
                let (kernel, dilation) = (draws.between(1, 4), draws.between(1, 2));
                let span = (kernel - 1) * dilation;
                Window {
                    kernel,
                    stride: draws.pick(&[1, 1, 1, 2, 3]),
                    dilation,
                    pad_low: draws.between(0, span.min(3)),
                    pad_high: draws.between(0, span.min(3)),
                }
            });
            let groups = if shape.channels.is_multiple_of(2) && draws.one_in(4) {
                2
            } else {
                1
            };
            let filters = groups * draws.between(1, self.most_filters);
            let bias = draws.one_in(2);
            let convolution = Convolution {
                filters,
                window,
                periodic,
                groups,
                bias,
            };
            if let Ok(head) = self.builder.convolution(&name, self.head, convolution) {
                self.head = head;
                return;
            }
        }
    }

    fn transposed(&mut self, draws: &mut Draws) {
        let shape = self.builder.shape(self.head);
        let rank = self.builder.spatial_rank();
        // Limits the size of later layers.
        if shape.volume() > 1500 {
            return self.convolution(draws);
        }
        let name = self.name("up");
        for _ in 0..20 {
            let mut output_padding = [0; 3];
            let window = std::array::from_fn(|dim| {
                if dim < 3 - rank {
                    return Window::ONE;
                }
                let window = Window {
                    kernel: draws.between(1, 4),
                    stride: draws.between(1, 3),
                    dilation: draws.between(1, 2),
                    pad_low: draws.between(0, 3),
                    pad_high: draws.between(0, 3),
                };
                output_padding[dim] = draws.between(0, window.stride.max(window.dilation) - 1);
                window
            });
            let groups = if shape.channels.is_multiple_of(2) && draws.one_in(4) {
                2
            } else {
                1
            };
            let convolution = TransposedConvolution {
                filters: groups * draws.between(1, self.most_filters),
                window,
                output_padding,
                groups,
                bias: draws.one_in(2),
            };
            let built = self
                .builder
                .transposed_convolution(&name, self.head, convolution);
            if let Ok(head) = built {
                self.head = head;
                return;
            }
        }
    }

    /// `y = (x, f(x))`, with parts of it more than once, or `(x, x)`.
    fn concat(&mut self, draws: &mut Draws) {
        let start = self.head;
        let inputs = if draws.one_in(4) {
            vec![start; 2]
        } else {
            let inner = self.keep_extents(draws.between(1, 3));
            self.activation(draws);
            let outer = self.head;
            match draws.between(0, 2) {
                0 => vec![start, outer],
                1 => vec![outer, start, outer],
                _ => vec![inner, outer, start],
            }
        };
        let name = self.name("joint");
        self.head = self
            .builder
            .concat(&name, &inputs)
            .expect("extents are equal");
    }

    /// A convolution that keeps the extents.
    fn keep_extents(&mut self, filters: usize) -> NodeId {
        let window = self.builder.windows(SAME);
        let name = self.name("conv");
        let convolution = Convolution {
            filters,
            window,
            periodic: false,
            groups: 1,
            bias: true,
        };
        self.head = self
            .builder
            .convolution(&name, self.head, convolution)
            .expect("a convolution that keeps the extents fits");
        self.head
    }

    /// Convolutions, a coarser level of the same, and back to these extents beside what was there.
    fn encode_and_decode(&mut self, draws: &mut Draws, levels: usize) {
        let channels = draws.between(1, 3);
        self.keep_extents(channels);
        self.activation(draws);
        let fine = self.head;
        let extent = self.builder.shape(fine).extent;
        let rank = self.builder.spatial_rank();
        let (kernel, by_pool) = (draws.between(2, 3), draws.one_in(2));
        let window: [Window; 3] = std::array::from_fn(|dim| {
            if dim < 3 - rank || extent[dim] < kernel {
                return Window::ONE;
            }
            let pad = draws.between(0, kernel / 2);
            Window {
                kernel,
                stride: 2,
                dilation: 1,
                pad_low: pad,
                pad_high: pad,
            }
        });
        self.descend(window, by_pool, channels);
        if levels > 1 {
            self.encode_and_decode(draws, levels - 1);
        } else {
            self.keep_extents(channels + 1);
            self.activation(draws);
        }
        let coarse = self.builder.shape(self.head).extent;
        let output_padding = std::array::from_fn(|dim| {
            let w = &window[dim];
            extent[dim] + w.pad_low + w.pad_high - w.span() - (coarse[dim] - 1) * w.stride
        });
        let name = self.name("up");
        let convolution = TransposedConvolution {
            filters: channels,
            window,
            output_padding,
            groups: 1,
            bias: draws.one_in(2),
        };
        let back = self
            .builder
            .transposed_convolution(&name, self.head, convolution)
            .expect("a convolution can be inverted");
        let name = self.name("joint");
        self.head = self
            .builder
            .concat(&name, &[fine, back])
            .expect("extents are equal again");
        self.keep_extents(channels);
    }

    fn descend(&mut self, window: [Window; 3], by_pool: bool, channels: usize) {
        let name = self.name("down");
        let kind = PoolKind::Max;
        let convolution = Convolution {
            filters: channels,
            window,
            periodic: false,
            groups: 1,
            bias: false,
        };
        let built = if by_pool {
            self.builder.pool(&name, self.head, Pool::new(kind, window))
        } else {
            self.builder.convolution(&name, self.head, convolution)
        };
        self.head = built.expect("the window fits");
    }

    fn pool(&mut self, draws: &mut Draws) {
        let name = self.name("pool");
        let rank = self.builder.spatial_rank();
        for _ in 0..20 {
            let kind = draws.pick(&[PoolKind::Max, PoolKind::AverageAll, PoolKind::AverageInside]);
            let window = std::array::from_fn(|dim| {
                if dim < 3 - rank {
                    return Window::ONE;
                }
                let kernel = draws.between(1, 3);
                Window {
                    kernel,
                    stride: draws.between(1, 3),
                    dilation: 1,
                    pad_low: draws.between(0, kernel / 2),
                    pad_high: draws.between(0, kernel / 2),
                }
            });
            // Some means of a few become norms. The norm of one element, which padding leaves, is its absolute
            // value and has a kink wherever it changes sign; that of many is so much larger than these that
            // the training diverges.
            let volume: usize = window.iter().map(|one: &Window| one.kernel).product();
            let is_mean = matches!(kind, PoolKind::AverageInside) && (2..=4).contains(&volume);
            let is_padded = window.iter().any(|one| one.pad_low + one.pad_high > 0);
            let kind = if is_mean && !is_padded {
                PoolKind::L2
            } else {
                kind
            };
            if let Ok(head) = self.builder.pool(&name, self.head, Pool::new(kind, window)) {
                self.head = head;
                return;
            }
        }
    }

    /// `y = x + f(x)`, or `x + x`.
    fn residual(&mut self, draws: &mut Draws) {
        let start = self.head;
        if draws.one_in(3) {
            let name = self.name("twice");
            self.head = self
                .builder
                .add(&name, start, start)
                .expect("shapes are equal");
            return;
        }
        let channels = self.builder.shape(start).channels;
        let window = self.builder.windows(SAME);
        let name = self.name("conv");
        let convolution = Convolution {
            filters: channels,
            window,
            periodic: false,
            groups: 1,
            bias: false,
        };
        let inner = self
            .builder
            .convolution(&name, start, convolution)
            .expect("a convolution that keeps the shape fits");
        self.head = inner;
        self.activation(draws);
        let name = self.name("sum");
        self.head = self
            .builder
            .add(&name, start, self.head)
            .expect("shapes are equal");
    }

    fn pointwise(&mut self) {
        self.pointwise_to(2);
    }

    fn pointwise_to(&mut self, filters: usize) {
        let name = self.name("conv");
        let convolution = Convolution {
            filters,
            window: [Window::ONE; 3],
            periodic: false,
            groups: 1,
            bias: true,
        };
        self.head = self
            .builder
            .convolution(&name, self.head, convolution)
            .expect("a pointwise convolution fits");
    }

    fn end_with_positions(mut self) -> Graph {
        self.pointwise();
        self.builder
            .loss("loss", self.head, Loss::CROSS_ENTROPY)
            .expect("a loss fits");
        self.builder.build().expect("every node is read")
    }

    pub(crate) fn finish(mut self, draws: &mut Draws) -> Graph {
        let loss = draw_loss(draws);
        let features = draws.between(2, 4);
        let is_flat = !draws.one_in(4);
        let (is_early, is_late) = (draws.one_in(5), draws.one_in(5));
        if is_early && is_flat {
            self.auxiliary_head(draws, features, loss);
        }
        if is_flat {
            self.flat();
            if draws.one_in(2) {
                self.linear(draws.between(2, 6), draws.one_in(2));
                self.activation(draws);
            }
            self.linear(features, true);
        } else {
            // Something trained is needed.
            self.pointwise();
        }
        if is_late && is_flat && draws.one_in(2) {
            self.auxiliary_head(draws, features, loss);
        } else if is_late {
            // Of what the way to the loss reads too.
            self.auxiliary_loss(draws, loss);
            self.activation(draws);
            self.pointwise_to(self.builder.shape(self.head).channels);
        }
        let loss = loss(self.builder.shape(self.head).channels);
        self.builder
            .loss("loss", self.head, loss)
            .expect("a loss fits");
        self.builder.build().expect("every node is read")
    }

    /// A linear end of its own, with an auxiliary loss, behind any tensor so far.
    fn auxiliary_head(&mut self, draws: &mut Draws, features: usize, loss: LossOf) {
        let trunk = self.head;
        self.head = draws.pick(&self.trunk);
        if draws.one_in(2) {
            self.keep_extents(2);
            let name = self.name("norm");
            let head = self.builder.batch_norm(&name, self.head, 1e-3, 0.1);
            self.head = head.expect("a batch norm fits anywhere");
            self.activation(draws);
        }
        self.flat();
        self.linear(features, draws.one_in(2));
        self.auxiliary_loss(draws, loss);
        self.head = trunk;
    }

    fn auxiliary_loss(&mut self, draws: &mut Draws, loss: LossOf) {
        let (name, weight) = (self.name("aux"), draws.pick(&[0.25, 0.4, 1.0, 2.5]));
        let loss = loss(self.builder.shape(self.head).channels);
        self.builder
            .auxiliary_loss(&name, self.head, loss, weight)
            .expect("losses are of one shape");
    }

    fn flat(&mut self) {
        let name = self.name("flat");
        self.head = self
            .builder
            .flatten(&name, self.head)
            .expect("a flatten fits");
    }

    fn linear(&mut self, features: usize, bias: bool) {
        let name = self.name("linear");
        self.head = self
            .builder
            .linear(&name, self.head, features, bias)
            .expect("a linear layer fits");
    }
}
