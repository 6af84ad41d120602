use crate::Draws;
use partita_graph::{Convolution, Graph, GraphBuilder, Loss, NodeId, Pool, PoolKind};
use partita_lower::Strategy;
use partita_space::Window;

/// A random small model with a random strategy.
pub struct Case {
    /// The model.
    pub graph: Graph,
    /// Its split, over 2 to 8 ranks; one in four keeps its kernels apart.
    pub strategy: Strategy,
    /// Samples per step.
    pub batch: usize,
    /// What it was drawn from.
    pub seed: u64,
}

/// Draws a case: 1 to 3 spatial dims, uneven extents, convolutions and poolings of any window, batch
/// norm, activations, dropout, residual sums, with and without a linear end, both losses.
pub fn random_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    let graph = Sketch::new(&mut draws).finish(&mut draws);
    let batch = draws.between(1, 5);
    let strategy = random_strategy(&mut draws, &graph, batch);
    Case {
        graph,
        strategy,
        batch,
        seed,
    }
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

struct Sketch {
    builder: GraphBuilder,
    head: NodeId,
    layers: usize,
}

impl Sketch {
    fn new(draws: &mut Draws) -> Self {
        let rank = draws.between(1, 3);
        let most = [17, 10, 7][rank - 1];
        let extent: Vec<usize> = (0..rank).map(|_| draws.between(3, most)).collect();
        let mut builder = GraphBuilder::new("random").expect("the name is valid");
        let channels = draws.between(1, 4);
        let head = builder
            .input("x", &extent, channels)
            .expect("the input is valid");
        let mut sketch = Self {
            builder,
            head,
            layers: 0,
        };
        for _ in 0..draws.between(2, 6) {
            sketch.layer(draws);
        }
        sketch
    }

    fn name(&mut self, kind: &str) -> String {
        self.layers += 1;
        format!("{kind}{}", self.layers)
    }

    fn layer(&mut self, draws: &mut Draws) {
        match draws.between(0, 9) {
            0..=3 => self.convolution(draws),
            4 | 5 => self.pool(draws),
            6 => {
                let name = self.name("norm");
                let momentum = 0.1;
                self.head = self
                    .builder
                    .batch_norm(&name, self.head, 1e-3, momentum)
                    .expect("a batch norm fits anywhere");
            }
            7 => self.activation(draws),
            8 => self.residual(draws),
            _ => {
                let name = self.name("drop");
                self.head = self
                    .builder
                    .dropout(&name, self.head, 0.3)
                    .expect("a dropout fits anywhere");
            }
        }
    }

    fn activation(&mut self, draws: &mut Draws) {
        let name = self.name("relu");
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
            let filters = groups * draws.between(1, 3);
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

    fn pool(&mut self, draws: &mut Draws) {
        let name = self.name("pool");
        let rank = self.builder.spatial_rank();
        for _ in 0..20 {
            let kind = draws.pick(&[
                PoolKind::Max,
                PoolKind::Average {
                    count_padding: true,
                },
                PoolKind::Average {
                    count_padding: false,
                },
            ]);
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
            if let Ok(head) = self.builder.pool(&name, self.head, Pool { kind, window }) {
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
        let side = Window {
            kernel: 3,
            stride: 1,
            dilation: 1,
            pad_low: 1,
            pad_high: 1,
        };
        let window = self.builder.windows(side);
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

    fn finish(mut self, draws: &mut Draws) -> Graph {
        if !draws.one_in(4) {
            let name = self.name("flat");
            self.head = self
                .builder
                .flatten(&name, self.head)
                .expect("a flatten fits");
            if draws.one_in(2) {
                let name = self.name("linear");
                self.head = self
                    .builder
                    .linear(&name, self.head, draws.between(2, 6), draws.one_in(2))
                    .expect("a linear layer fits");
                self.activation(draws);
            }
            let name = self.name("linear");
            self.head = self
                .builder
                .linear(&name, self.head, draws.between(2, 4), true)
                .expect("a linear layer fits");
        } else {
            // Something trained is needed.
            let side = Window {
                kernel: 1,
                stride: 1,
                dilation: 1,
                pad_low: 0,
                pad_high: 0,
            };
            let window = self.builder.windows(side);
            let name = self.name("conv");
            let convolution = Convolution {
                filters: 2,
                window,
                periodic: false,
                groups: 1,
                bias: true,
            };
            self.head = self
                .builder
                .convolution(&name, self.head, convolution)
                .expect("a pointwise convolution fits");
        }
        let loss = if draws.one_in(2) {
            Loss::MeanSquaredError
        } else {
            Loss::SoftmaxCrossEntropy
        };
        self.builder
            .loss("loss", self.head, loss)
            .expect("a loss fits");
        self.builder.build().expect("every node is read")
    }
}
