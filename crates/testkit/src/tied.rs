//! Random models whose layers share weights over the stages of a pipeline.

use crate::cases::or_short;
use crate::staged::{Pipelines, random_stages};
use crate::{Case, Draws};
use partita_graph::{
    Convolution, Graph, GraphBuilder, Loss, NodeId, Op, Parameter, ParameterId, ParameterRole,
    ParameterSource, PreluSlopes, TransposedConvolution,
};
use partita_lower::Schedule;
use partita_space::Window;

/// Most ranks of a case.
const RANKS: usize = 12;

/// Class numbers of the embedding.
const ROWS: usize = 5;

/// Choices for random pipelines: mostly with two replicas, and stages split by weights.
const PIPELINES: Pipelines = Pipelines {
    schedules: &[
        Schedule::OneForwardOneBackward,
        Schedule::ZeroBubble,
        Schedule::Gems { repetitions: 1 },
        Schedule::Gems { repetitions: 1 },
        Schedule::Gems { repetitions: 2 },
        Schedule::Chimera,
        Schedule::Chimera,
        Schedule::Chimera,
    ],
    axes: &[0, 1, 2, 3, 4, 4, 4, 5, 5, 5],
};

/// Draws a model whose embeddings, convolutions and linear layers share weights, and a pipeline of it, in
/// most cases with two replicas.
pub fn random_tied_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let graph = Sketch::new(&mut draws).finish(&mut draws);
        for _ in 0..20 {
            let (strategy, batch) = random_stages(&mut draws, &graph, &PIPELINES);
            if strategy.ranks() <= RANKS && strategy.check(&graph, batch).is_ok() {
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

struct Sketch {
    builder: GraphBuilder,
    layers: usize,
    channels: usize,
    head: NodeId,
}

impl Sketch {
    fn new(draws: &mut Draws) -> Self {
        let mut builder = GraphBuilder::new("tied").expect("the name is valid");
        let rank = draws.between(1, 2);
        let extent: Vec<usize> = (0..rank).map(|_| draws.between(3, 7)).collect();
        let input = builder.input("x", &extent, 1);
        let head = input.expect("the input is valid");
        let mut sketch = Self {
            builder,
            layers: 0,
            channels: draws.pick(&[2, 3, 4, 6]),
            head,
        };
        sketch.head = sketch.embedding(draws);
        for _ in 0..draws.between(3, 9) {
            sketch.layer(draws);
        }
        sketch
    }

    fn layer(&mut self, draws: &mut Draws) {
        let head = [self.head];
        self.head = match draws.between(0, 9) {
            0..=2 => {
                let again = self.embedding(draws);
                self.node(draws, "sum", Op::Add, &[self.head, again])
            }
            3..=5 => {
                let window = self.window(draws);
                let op = Op::Convolution(Convolution {
                    filters: self.channels,
                    window,
                    periodic: draws.one_in(4),
                    groups: 1,
                    bias: draws.one_in(2),
                });
                self.node(draws, "conv", op, &head)
            }
            6 => {
                let window = self.window(draws);
                let op = Op::TransposedConvolution(TransposedConvolution {
                    filters: self.channels,
                    window,
                    output_padding: [0; 3],
                    groups: 1,
                    bias: draws.one_in(2),
                });
                // With the weights of a convolution, too.
                self.node(draws, "conv", op, &head)
            }
            7 if draws.one_in(2) => {
                let kind = draws.pick(&["one", "each"]);
                let slopes = match kind {
                    "one" => PreluSlopes::One,
                    _ => PreluSlopes::Channel,
                };
                self.node(draws, kind, Op::Prelu(slopes), &head)
            }
            7 => {
                let negative_slope = draws.pick(&[0.0, 0.1]);
                self.node(draws, "relu", Op::LeakyRelu { negative_slope }, &head)
            }
            8 => {
                let (epsilon, momentum) = (0.1, 0.1);
                let op = Op::BatchNorm { epsilon, momentum };
                self.node(draws, "batch", op, &head)
            }
            _ => {
                let epsilon = 0.1;
                let groups = draws.pick(&[None, Some(1)]);
                if draws.one_in(2) {
                    self.node(draws, "groups", Op::GroupNorm { groups, epsilon }, &head)
                } else {
                    let centers = true;
                    self.node(draws, "rows", Op::LayerNorm { epsilon, centers }, &head)
                }
            }
        };
    }

    fn embedding(&mut self, draws: &mut Draws) -> NodeId {
        let op = Op::Embedding {
            rows: ROWS,
            channels: self.channels,
        };
        self.node(draws, "embedding", op, &[NodeId(0)])
    }

    /// One that keeps the extents, of always as many taps.
    fn window(&self, draws: &mut Draws) -> [Window; 3] {
        let dilation = draws.pick(&[1, 1, 2]);
        self.builder.windows(Window {
            kernel: 3,
            stride: 1,
            dilation,
            pad_low: dilation,
            pad_high: dilation,
        })
    }

    /// A layer that shares each of its parameters with the first one of its kind, in most cases.
    fn node(&mut self, draws: &mut Draws, kind: &str, op: Op, inputs: &[NodeId]) -> NodeId {
        self.layers += 1;
        let name = format!("{kind}{}", self.layers);
        let mut sources: Vec<(ParameterRole, ParameterSource)> = Vec::new();
        let shares_all = draws.one_in(2);
        for role in roles(&op) {
            let known = self.builder.parameters();
            let is_like = |known: &Parameter| known.role == role && known.name.starts_with(kind);
            let first = known.iter().position(is_like);
            if let Some(first) = first.filter(|_| shares_all || draws.one_in(2)) {
                sources.push((role, ParameterSource::Shared(ParameterId(first))));
            }
        }
        let node = self.builder.node(&name, op, inputs, &sources);
        node.expect("the operation fits")
    }

    fn finish(mut self, draws: &mut Draws) -> Graph {
        let answers = draws.between(2, 4);
        if draws.one_in(3) {
            let filters = answers;
            let op = Op::Convolution(Convolution {
                filters,
                window: [Window::ONE; 3],
                periodic: false,
                groups: 1,
                bias: true,
            });
            self.head = self.node(draws, "answers", op, &[self.head]);
        } else {
            self.head = self.node(draws, "flat", Op::Flatten, &[self.head]);
            let (features, bias) = (answers, true);
            self.head = self.node(draws, "first", Op::Linear { features, bias }, &[self.head]);
            for _ in 0..draws.between(0, 2) {
                let negative_slope = 0.1;
                let relu = Op::LeakyRelu { negative_slope };
                self.head = self.node(draws, "relu", relu, &[self.head]);
                self.head = self.node(draws, "linear", Op::Linear { features, bias }, &[self.head]);
            }
        }
        let loss = if draws.one_in(2) {
            Loss::MeanSquaredError
        } else {
            Loss::CROSS_ENTROPY
        };
        let built = self.builder.loss("loss", self.head, loss);
        built.expect("a loss fits");
        self.builder.build().expect("every node is read")
    }
}

/// The roles of the parameters that these operations can share.
fn roles(op: &Op) -> Vec<ParameterRole> {
    use ParameterRole::{Beta, Bias, Gamma, Slope, Weight};
    let all = |bias: bool| {
        if bias {
            vec![Weight, Bias]
        } else {
            vec![Weight]
        }
    };
    match op {
        Op::Convolution(convolution) => all(convolution.bias),
        Op::TransposedConvolution(convolution) => all(convolution.bias),
        Op::Linear { bias, .. } => all(*bias),
        Op::Embedding { .. }
        | Op::PositionEmbedding { .. }
        | Op::Attention { bias: Some(_), .. } => vec![Weight],
        Op::Prelu(_) => vec![Slope],
        // Running statistics are of one layer.
        Op::LayerNorm { .. } | Op::GroupNorm { .. } | Op::BatchNorm { .. } => vec![Gamma, Beta],
        Op::Input
        | Op::Features
        | Op::Pool(_)
        | Op::Resample(_)
        | Op::LeakyRelu { .. }
        | Op::Softmax
        | Op::Dropout { .. }
        | Op::Flatten
        | Op::Reshape { .. }
        | Op::Add
        | Op::Multiply
        | Op::Concat
        | Op::Slice { .. }
        | Op::ChannelShuffle { .. }
        | Op::Positions
        | Op::Activation(_)
        | Op::Attention { bias: None, .. }
        | Op::Loss(_)
        | Op::AuxiliaryLoss { .. } => Vec::new(),
    }
}
