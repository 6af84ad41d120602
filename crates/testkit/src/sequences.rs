//! Random models that work on sequences.

use crate::cases::or_short;
use crate::cases::random_layer_strategy;
use crate::losses::draw_loss;
use crate::{Case, Draws};
use partita_graph::{
    Activation, Convolution, DropoutMask, Graph, GraphBuilder, NodeId, Op, ParameterRole,
    ParameterSource, ScoreBias,
};
use partita_space::{AttentionWindow, Window};

/// Class numbers of every embedding.
const ROWS: usize = 5;

/// Draws a model of one or two sequences of class numbers or of values, with embeddings that share
/// weights, positions, layer norms, attention to themselves and to each other, and a strategy over all
/// axes.
pub fn random_sequence_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let graph = Sketch::new(&mut draws).finish(&mut draws);
        let batch = draws.between(1, 5);
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

/// For each channel of the sample how many class numbers there are, if an embedding reads it.
pub(crate) fn embedded_rows(graph: &Graph) -> Vec<Option<usize>> {
    let mut all = vec![None; graph.nodes[0].shape.channels];
    for node in &graph.nodes {
        let Op::Embedding { rows, .. } = node.op else {
            continue;
        };
        let (mut channel, mut at) = (0, node.inputs[0]);
        while let Op::Slice { start, .. } = graph.node(at).op {
            channel += start;
            at = graph.node(at).inputs[0];
        }
        assert_eq!(at, NodeId(0), "an embedding reads the sample");
        let known = all[channel].get_or_insert(rows);
        *known = (*known).min(rows);
    }
    all
}

struct Sketch {
    builder: GraphBuilder,
    layers: usize,
    channels: usize,
    /// The sequence at hand, and what it may attend to.
    head: NodeId,
    other: NodeId,
}

impl Sketch {
    fn new(draws: &mut Draws) -> Self {
        let mut builder = GraphBuilder::new("sequences").expect("the name is valid");
        let extent = draws.between(3, 9);
        let input = builder.input("x", &[extent], 3);
        let head = input.expect("the input is valid");
        let mut sketch = Self {
            builder,
            layers: 0,
            channels: draws.pick(&[4, 6, 8, 12]),
            head,
            other: head,
        };
        sketch.begin(draws);
        for _ in 0..draws.between(1, 4) {
            sketch.layer(draws);
        }
        sketch
    }

    fn name(&mut self, kind: &str) -> String {
        self.layers += 1;
        format!("{kind}{}", self.layers)
    }

    fn node(&mut self, kind: &str, op: Op, inputs: &[NodeId]) -> NodeId {
        let name = self.name(kind);
        let node = self.builder.node(&name, op, inputs, &[]);
        node.expect("the operation fits")
    }

    /// Two sequences of as many channels: both of class numbers, or one made from values.
    fn begin(&mut self, draws: &mut Draws) {
        let input = self.head;
        let channels = self.channels;
        let tokens = [0, 1].map(|start| {
            let slice = Op::Slice { start, channels: 1 };
            self.node("tokens", slice, &[input])
        });
        let op = Op::Embedding {
            rows: ROWS,
            channels,
        };
        self.head = self.node("embedding", op.clone(), &tokens[..1]);
        self.other = if draws.one_in(3) {
            let values = Op::Slice {
                start: 1,
                channels: 2,
            };
            let values = self.node("values", values, &[input]);
            // A class number is read as a value, too.
            let again = self.embed(op, tokens[1]);
            let values = self.convolution(values, channels, draws.between(1, 3), 1);
            self.node("sum", Op::Add, &[values, again])
        } else {
            self.embed(op, tokens[1])
        };
        if draws.one_in(2) {
            self.head = self.node("positions", Op::Positions, &[self.head]);
            self.other = self.node("positions", Op::Positions, &[self.other]);
        }
        if draws.one_in(3) {
            self.other = self.convolution(self.other, channels, 2, 2);
        }
    }

    /// With the weights of the first one.
    fn embed(&mut self, op: Op, input: NodeId) -> NodeId {
        let name = self.name("embedding");
        let weight = self
            .builder
            .parameters()
            .iter()
            .map(|parameter| &*parameter.name);
        let first = weight
            .clone()
            .find(|name| name.starts_with("embedding"))
            .expect("there is one")
            .to_owned();
        let shared = self.builder.find_parameter(&first);
        let source = ParameterSource::Shared(shared.expect("there is one"));
        let sources = [(ParameterRole::Weight, source)];
        let node = self.builder.node(&name, op, &[input], &sources);
        node.expect("an embedding fits")
    }

    fn convolution(
        &mut self,
        input: NodeId,
        filters: usize,
        kernel: usize,
        stride: usize,
    ) -> NodeId {
        let mut window = [Window::ONE; 3];
        window[2] = Window {
            kernel,
            stride,
            dilation: 1,
            pad_low: (kernel - 1) / 2,
            pad_high: kernel / 2,
        };
        let op = Op::Convolution(Convolution {
            filters,
            window,
            periodic: false,
            groups: 1,
            bias: self.layers.is_multiple_of(2),
        });
        self.node("conv", op, &[input])
    }

    /// `x + f(norm(x))` with attention or something pointwise for f, or parts of that.
    fn layer(&mut self, draws: &mut Draws) {
        let start = self.head;
        if !draws.one_in(3) {
            let norm = Op::LayerNorm {
                epsilon: 0.1,
                centers: true,
            };
            self.head = self.node("norm", norm, &[start]);
        }
        match draws.between(0, 3) {
            0 | 1 => self.attention(draws),
            2 => self.pointwise(draws),
            _ => {
                let parts = [self.half(0), self.half(1)];
                let gate = self.node("gelu", gate(draws), &parts[..1]);
                self.head = self.node("joint", Op::Concat, &[parts[1], gate]);
            }
        }
        if draws.one_in(4) {
            let mask = draws.pick(&DropoutMask::ALL);
            let drop = Op::Dropout { rate: 0.3, mask };
            self.head = self.node("drop", drop, &[self.head]);
        }
        if !draws.one_in(4) {
            self.head = self.node("sum", Op::Add, &[start, self.head]);
        }
        if draws.one_in(3) && self.builder.shape(self.other) == self.builder.shape(self.head) {
            std::mem::swap(&mut self.head, &mut self.other);
        }
    }

    fn half(&mut self, which: usize) -> NodeId {
        let channels = self.channels / 2;
        let start = which * channels;
        self.node("half", Op::Slice { start, channels }, &[self.head])
    }

    fn pointwise(&mut self, draws: &mut Draws) {
        let wide = self.convolution(self.head, draws.between(3, 9), 1, 1);
        let op = if draws.one_in(2) {
            gate(draws)
        } else {
            Op::LeakyRelu {
                negative_slope: 0.1,
            }
        };
        let gate = self.node("gate", op, &[wide]);
        self.head = self.convolution(gate, self.channels, 1, 1);
    }

    /// To itself or the other sequence, with projections or of the tensors as they are.
    fn attention(&mut self, draws: &mut Draws) {
        let to = if draws.one_in(2) {
            self.head
        } else {
            self.other
        };
        let mut inputs = [self.head, to, to];
        for input in &mut inputs {
            if !draws.one_in(4) {
                *input = self.convolution(*input, self.channels, 1, 1);
            }
        }
        let heads = draws.pick(&[1, 2, 2, 4, self.channels / 2]);
        let heads = if self.channels.is_multiple_of(heads) {
            heads
        } else {
            2
        };
        let [q, k] = [0, 1].map(|index| self.builder.shape(inputs[index]).extent);
        let window = (q == k && draws.one_in(2)).then(|| draw_window(draws, q));
        let bias = match draws.between(0, 2) {
            0 => None,
            1 => Some(ScoreBias::Pairs),
            _ if q != k => None,
            _ => {
                let own = window.map_or(q, |window| window.extent);
                Some(ScoreBias::Relative(
                    own.map(|extent| extent + draws.between(0, 1)),
                ))
            }
        };
        let attention = Op::Attention {
            heads,
            causal: window.is_none() && draws.one_in(2),
            window,
            bias,
        };
        self.head = self.node("attention", attention, &inputs);
        if draws.one_in(2) {
            self.head = self.convolution(self.head, self.channels, 1, 1);
        }
    }

    fn finish(mut self, draws: &mut Draws) -> Graph {
        // Both sequences count.
        let to = self.other;
        let attention = Op::Attention {
            heads: 2,
            causal: false,
            window: None,
            bias: None,
        };
        self.head = self.node("attention", attention, &[self.head, to, to]);
        let loss = draw_loss(draws);
        let answers = draws.between(2, 5);
        let loss = loss(answers);
        self.head = if draws.one_in(4) {
            let flat = self.node("flat", Op::Flatten, &[self.head]);
            let linear = Op::Linear {
                features: answers,
                bias: true,
            };
            self.node("linear", linear, &[flat])
        } else {
            self.convolution(self.head, answers, 1, 1)
        };
        if draws.one_in(5) {
            let aux = Op::AuxiliaryLoss {
                loss: loss.clone(),
                weight: 0.4,
            };
            self.node("aux", aux, &[self.head]);
            self.head = match self.builder.shape(self.head).extent {
                [1, 1, 1] => self.node("gate", gate(draws), &[self.head]),
                _ => self.convolution(self.head, answers, 1, 1),
            };
        }
        let built = self.builder.loss("loss", self.head, loss);
        built.expect("a loss fits");
        self.builder.build().expect("every node is read")
    }
}

/// Windows that tile positions of these extents, mostly shifted.
fn draw_window(draws: &mut Draws, tensor: [usize; 3]) -> AttentionWindow {
    let extent = tensor.map(|all| {
        let divisors: Vec<usize> = (1..=all).filter(|one| all.is_multiple_of(*one)).collect();
        draws.pick(&divisors)
    });
    AttentionWindow {
        extent,
        shift: extent.map(|own| draws.between(0, own - 1)),
        mask: -0.5 - draws.between(0, 2) as f64,
    }
}

/// One of the smooth activations.
fn gate(draws: &mut Draws) -> Op {
    Op::Activation(draws.pick(&Activation::ALL))
}
