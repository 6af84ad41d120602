//! The text form gives back what was printed.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::{
    Activation, Convolution, DropoutMask, Graph, GraphBuilder, GraphError, Initialization,
    Interpolation, Loss, NodeId, Op, PadMode, ParameterRole, ParameterSource, Pool, PoolKind,
    PreluSlopes, Resample, ScoreBias, TransposedConvolution, inverse_frequency, text,
};
use partita_space::random::SplitMix;
use partita_space::{AttentionWindow, Window};

const TINY: &str = "model tiny
input x channels=4 extent=32x32x32
c1 = conv x filters=16 kernel=3 stride=1 pad=1 bias=false
a1 = leaky_relu c1 slope=0.01
p1 = average_pool a1 kernel=3 stride=2 pad=1 count_padding=true
b1 = batch_norm p1 epsilon=1e-5 momentum=0.1 gamma=b0.gamma init_running_variance=2.0
";

/// Lines in their printed form, one of each kind.
const PRINTED: &str = "model all
input x channels=4 extent=12x8
c1 = conv x filters=4 kernel=3x1 stride=1 dilation=2x1 pad=1:3x0 padding=periodic groups=2 \
bias=true init_bias=0.1
c2 = conv c1 filters=4 kernel=3x1 stride=1 dilation=2x1 pad=2x0 groups=2 weight=c1.weight \
bias=c1.bias
s = add c2 c1
b1 = batch_norm s epsilon=1e-5 momentum=0.1 init_gamma=0.5
b2 = batch_norm b1 epsilon=0.001 momentum=0.25 gamma=b1.gamma init_running_variance=2.0
r = relu b2
l = leaky_relu r slope=0.01
p1 = max_pool l kernel=3 stride=2 pad=1
p2 = average_pool p1 kernel=2 stride=2x1 pad=0:1x1:0 count_padding=false
u1 = conv_transpose p2 filters=4 kernel=2x3 stride=2 dilation=2x1 pad=0x1 output_padding=1x0 \
groups=2 bias=true init_bias=0.5
u2 = conv_transpose u1 filters=4 kernel=2x3 stride=1 pad=1:0x1 groups=2 bias=false weight=u1.weight
k = concat u2 u2 u2
d = dropout k rate=0.2
f = flatten d
fc1 = linear f features=7 init=constant:0.01 bias=true
fc2 = linear fc1 features=4 bias=false init=he_normal
aux = softmax_cross_entropy fc2 weight=0.4
fc3 = linear fc2 features=4 bias=false
loss = softmax_cross_entropy fc3
";

#[test]
fn the_printed_form_is_stable() {
    let graph = text::parse(PRINTED).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(text::print(&graph), PRINTED);
}

#[test]
fn the_example_of_the_documentation_is_a_model() {
    let source = include_str!("../src/text.rs");
    let lines = source.lines().filter_map(|line| line.strip_prefix("//! "));
    let lines = lines.skip_while(|line| *line != "```text").skip(1);
    let example: Vec<&str> = lines.take_while(|line| *line != "```").collect();
    let graph = text::parse(&example.join("\n")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(graph.nodes.len(), example.len() - 1);
}

#[test]
fn comments_blanks_and_defaults_do_not_matter() {
    let long = "model m\ninput x channels=2 extent=6x6x6\n\
        c = conv x filters=2 kernel=3x3x3 stride=1x1x1 dilation=1 pad=0:0x0x0 padding=zero groups=1 bias=false\n\
        loss = mse c\n";
    let short = "# a model\r\n\r\n  model m # its name\r\ninput x   extent=6x6x6\tchannels=2\r\n\
        c = conv x bias=false kernel=3 filters=2 #stride=2\r\nloss = mse c";
    assert_eq!(text::parse(long).unwrap(), text::parse(short).unwrap());
}

#[test]
fn the_line_of_a_fault_is_named() {
    let Err(text::TextError::Graph { line, error }) = text::parse(TINY) else {
        panic!("no layer has this parameter");
    };
    let GraphError::UnknownName { asked, nearest, .. } = &*error else {
        panic!("{error}");
    };
    let found = (line, asked.as_str(), nearest.as_deref());
    assert_eq!(found, (6, "b0.gamma", Some("c1.weight")));
}

#[test]
fn random_graphs_come_back_from_their_text() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..1000 {
        let graph = random_graph(seed);
        let printed = text::print(&graph);
        let back = text::parse(&printed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{printed}"));
        assert_eq!(back, graph, "seed {seed}\n{printed}");
        kinds.extend(graph.nodes.iter().map(|node| node.op.keyword()));
    }
    assert_eq!(kinds.len(), 29 + Activation::ALL.len(), "{kinds:?}");
}

struct Random(SplitMix);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.between(0, bound - 1)
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// In `[0, 1)`, with all digits.
    fn real(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    fn window(&mut self, pool: bool) -> Window {
        let kernel = 1 + self.below(4);
        let pads = if pool { kernel / 2 + 1 } else { 3 };
        Window {
            kernel,
            stride: 1 + self.below(3),
            dilation: if pool { 1 } else { 1 + self.below(2) },
            pad_low: self.below(pads),
            pad_high: self.below(pads),
        }
    }

    fn windows(&mut self, rank: usize, pool: bool) -> [Window; 3] {
        let same = self.coin().then(|| self.window(pool));
        std::array::from_fn(|i| match same {
            _ if i + rank < 3 => Window::ONE,
            Some(window) => window,
            None => self.window(pool),
        })
    }

    fn activation(&mut self) -> Activation {
        match Activation::ALL[self.below(Activation::ALL.len())] {
            Activation::Elu { .. } => Activation::Elu {
                alpha: self.real() + 1e-9,
            },
            other => other,
        }
    }

    fn op(&mut self, rank: usize, channels: usize) -> Op {
        match self.below(13) {
            7 => {
                let groups = 1 + self.below(2) * (channels - 1);
                let window = self.windows(rank, false);
                let extra = self.below(2);
                Op::TransposedConvolution(TransposedConvolution {
                    filters: groups * (1 + self.below(3)),
                    output_padding: window.map(|w| extra.min(w.stride.max(w.dilation) - 1)),
                    window,
                    groups,
                    bias: self.coin(),
                })
            }
            0 => {
                let groups = 1 + self.below(2) * (channels - 1);
                Op::Convolution(Convolution {
                    filters: groups * (1 + self.below(3)),
                    window: self.windows(rank, false),
                    periodic: self.coin(),
                    groups,
                    bias: self.coin(),
                })
            }
            1 => {
                let kind = match self.below(3) {
                    0 => PoolKind::Max,
                    n => PoolKind::average(n == 1),
                };
                Op::Pool(Pool::new(kind, self.windows(rank, true)))
            }
            2 => Op::BatchNorm {
                epsilon: self.real() + 1e-9,
                momentum: self.real(),
            },
            3 => self.slopes_or_softmax(),
            4 => Op::Dropout {
                rate: self.real(),
                mask: DropoutMask::ALL[self.below(3)],
            },
            5 if self.coin() => Op::Multiply,
            5 => Op::Add,
            8 => Op::Concat,
            9 if self.coin() => Op::GroupNorm {
                groups: self.coin().then(|| 1 + self.below(channels)),
                epsilon: self.real() + 1e-9,
            },
            9 => Op::LayerNorm {
                epsilon: self.real() + 1e-9,
                centers: true,
            },
            10 => Op::Activation(self.activation()),
            12 => Op::Resample(self.resample(rank)),
            11 => match self.below(3) {
                0 => Op::Positions,
                1 => Op::Slice {
                    start: self.below(channels),
                    channels: 1 + self.below(channels),
                },
                _ => self.attention(rank, channels),
            },
            _ => Op::Linear {
                features: 1 + self.below(9),
                bias: self.coin(),
            },
        }
    }

    fn attention(&mut self, rank: usize, channels: usize) -> Op {
        Op::Attention {
            heads: 1 + self.below(channels),
            causal: self.coin(),
            window: self.coin().then(|| self.attention_window(rank)),
            bias: self.coin().then(|| self.score_bias(rank)),
        }
    }

    /// Of small windows, for few extents are divided by others.
    fn attention_window(&mut self, rank: usize) -> AttentionWindow {
        let mut each = |least: usize, missing: usize| -> [usize; 3] {
            std::array::from_fn(|dim| {
                if dim < 3 - rank {
                    missing
                } else {
                    least + self.below(2)
                }
            })
        };
        AttentionWindow {
            extent: each(1, 1),
            shift: each(0, 0),
            mask: -100.0 * self.below(3) as f64,
        }
    }

    fn score_bias(&mut self, rank: usize) -> ScoreBias {
        if self.coin() {
            return ScoreBias::Pairs;
        }
        let extent = |dim| {
            if dim < 3 - rank {
                1
            } else {
                1 + self.below(12)
            }
        };
        ScoreBias::Relative([0, 1, 2].map(extent))
    }

    fn resample(&mut self, rank: usize) -> Resample {
        let mut each = |least: usize, missing: usize| -> [usize; 3] {
            std::array::from_fn(|dim| {
                if dim < 3 - rank {
                    missing
                } else {
                    least + self.below(4)
                }
            })
        };
        let (factors, low, high) = (each(1, 1), each(0, 0), each(0, 0));
        match self.below(6) {
            4 => Resample::Resize {
                outputs: factors,
                interpolation: Interpolation::Nearest,
            },
            5 => Resample::Crop {
                starts: low,
                steps: factors,
                outputs: high.map(|outputs| outputs.max(1)),
            },
            0 => Resample::Upsample {
                factors,
                interpolation: Interpolation::Nearest,
            },
            1 => Resample::Upsample {
                factors,
                interpolation: Interpolation::Linear {
                    align_corners: self.coin(),
                },
            },
            2 => Resample::AdaptiveAverage { outputs: factors },
            _ => Resample::Pad {
                sides: std::array::from_fn(|dim| (low[dim], high[dim])),
                mode: PadMode::ALL[self.below(3)],
            },
        }
    }

    fn slopes_or_softmax(&mut self) -> Op {
        match self.below(4) {
            0 => Op::Softmax,
            1 => Op::Prelu(PreluSlopes::ALL[self.below(2)]),
            _ => Op::LeakyRelu {
                negative_slope: self.below(2) as f64 * self.real(),
            },
        }
    }

    /// Shares what happens to fit and starts the rest anyhow.
    fn sources(&mut self, parameters: usize) -> Vec<(ParameterRole, ParameterSource)> {
        let mut sources = Vec::new();
        for role in [
            ParameterRole::Weight,
            ParameterRole::Bias,
            ParameterRole::Gamma,
            ParameterRole::Slope,
        ] {
            let start = match (role, self.below(3)) {
                (ParameterRole::Weight, 0) => Initialization::HeNormal,
                _ => Initialization::Constant(self.real() - 0.5),
            };
            match self.below(3) {
                0 => {}
                1 if parameters > 0 => {
                    let id = partita_graph::ParameterId(self.below(parameters));
                    sources.push((role, ParameterSource::Shared(id)));
                }
                _ => sources.push((role, ParameterSource::Own(start))),
            }
        }
        if self.below(3) == 0 {
            sources.retain(|(role, _)| *role != ParameterRole::Gamma);
            sources.push((ParameterRole::Gamma, ParameterSource::Constant));
            sources.push((ParameterRole::Beta, ParameterSource::Constant));
        }
        sources
    }
}

/// Tries random steps; those that the builder refuses are left out.
fn random_graph(seed: u64) -> Graph {
    let mut random = Random(SplitMix(seed));
    let rank = 1 + random.below(3);
    let extent: Vec<usize> = (0..rank).map(|_| 1 + random.below(12)).collect();
    let mut builder = GraphBuilder::new(&format!("random-{seed}")).unwrap();
    let mut last = builder.input("in", &extent, 1 + random.below(4)).unwrap();
    for step in 0..30 {
        let op = random.op(rank, builder.shape(last).channels);
        let inputs: Vec<NodeId> = match op {
            Op::Add | Op::Multiply => vec![last, last],
            Op::Concat => vec![last; 2 + random.below(2)],
            Op::Attention { .. } => vec![last; 3],
            _ => vec![last],
        };
        let wanted: &[ParameterRole] = match &op {
            Op::Convolution(Convolution { bias, .. })
            | Op::TransposedConvolution(TransposedConvolution { bias, .. })
            | Op::Linear { bias, .. } => {
                if *bias {
                    &[ParameterRole::Weight, ParameterRole::Bias]
                } else {
                    &[ParameterRole::Weight]
                }
            }
            Op::Attention { bias: Some(_), .. } => &[ParameterRole::Weight],
            Op::BatchNorm { .. } | Op::LayerNorm { .. } | Op::GroupNorm { .. } => {
                &[ParameterRole::Gamma, ParameterRole::Beta]
            }
            Op::Prelu(_) => &[ParameterRole::Slope],
            _ => &[],
        };
        let mut sources = random.sources(builder.parameters().len());
        sources.retain(|(role, _)| wanted.contains(role));
        if let Ok(id) = builder.node(&format!("n{step}"), op, &inputs, &sources) {
            last = id;
        }
        if step == 20 {
            last = builder.flatten("f", last).unwrap();
        }
    }
    let loss = if random.coin() {
        Loss::MeanSquaredError
    } else {
        Loss::CROSS_ENTROPY
    };
    if random.coin() {
        let weight = random.real() + 0.1;
        builder
            .auxiliary_loss("aux", last, loss.clone(), weight)
            .unwrap();
        last = builder.leaky_relu("end", last, 0.5).unwrap();
    }
    builder.loss("loss", last, loss).unwrap();
    builder.build().unwrap()
}

#[test]
fn weights_of_the_parts_of_a_loss_are_printed_as_they_count() {
    for (read, printed) in [
        ("weights=0.5,1.5", "weights=0.5,1.5"),
        ("weights=0.5,1.5 dice_weights=0.5,1.5", "weights=0.5,1.5"),
        (
            "weights=0.5,1.5 dice_weights=2.5,0.25",
            "cross_entropy_weights=0.5,1.5 dice_weights=2.5,0.25",
        ),
        (
            "weights=0.5,1.5 cross_entropy_weights=2.5,0.25",
            "cross_entropy_weights=2.5,0.25 dice_weights=0.5,1.5",
        ),
        (
            "cross_entropy_weights=2.5,0.25",
            "cross_entropy_weights=2.5,0.25",
        ),
        ("dice_weights=2.5,0.25", "dice_weights=2.5,0.25"),
    ] {
        let model = |keys: &str| {
            format!("model m\ninput x channels=2 extent=4x4\nl = dice_cross_entropy x {keys}\n")
        };
        let graph = text::parse(&model(read)).unwrap();
        let expected = text::parse(&model(printed)).unwrap();
        let shown = text::print(&graph);
        assert!(
            graph == expected && shown.contains(&format!("x {printed}\n")),
            "{shown}"
        );
    }
}

#[test]
fn weights_that_follow_the_labels_stay_a_word() {
    let model = |keys: &str| {
        format!("model m\ninput x channels=3 extent=4x4\nl = dice_cross_entropy x {keys}\n")
    };
    for keys in [
        "weights=inverse_frequency",
        "cross_entropy_weights=inverse_frequency dice_weights=1.5,2.5,3.5",
        "cross_entropy_weights=1.5,2.5,3.5 dice_weights=inverse_frequency",
        "dice_weights=inverse_frequency",
    ] {
        let graph = text::parse(&model(keys)).unwrap();
        assert!(graph.follows_labels(), "{keys}");
        let counted = graph.with_inverse_frequency(&[0.5, 0.0, 2.5]).unwrap();
        assert!(counted != graph && counted.follows_labels(), "{keys}");
        for graph in [&graph, &counted] {
            let shown = text::print(graph);
            assert!(shown.contains(&format!("x {keys}\n")), "{shown}");
        }
        assert!(graph.with_inverse_frequency(&[1.0]).is_err());
    }
    let listed = text::parse(&model("weights=1,2,3")).unwrap();
    assert!(!listed.follows_labels());
    let same = listed.with_inverse_frequency(&[0.5, 0.0, 2.5]).unwrap();
    assert_eq!(same, listed);
    for (line, said) in [
        ("mse x weights=inverse_frequency", "of losses of classes"),
        (
            "dice x weights=inverse_freq",
            "help: try `weights=inverse_frequency`",
        ),
        (
            "softmax_cross_entropy x weights=balanced",
            "or inverse_frequency",
        ),
    ] {
        let text = format!("model m\ninput x channels=3 extent=4x4\nl = {line}\n");
        let error = text::parse(&text).unwrap_err().to_string();
        assert!(error.contains(said), "{line}: {error}");
    }
}

#[test]
fn weights_of_classes_are_balanced_over_those_that_occur() {
    // 12 labels of 3 classes: 12 / (3 * count).
    assert_eq!(inverse_frequency(&[8, 0, 2, 2]), [0.5, 0.0, 2.0, 2.0]);
    assert_eq!(inverse_frequency(&[1, 2]), [1.5, 0.75]);
    // Six significant digits of 22 / 42.
    assert_eq!(inverse_frequency(&[21, 1]), [0.52381, 11.0]);
    assert_eq!(inverse_frequency(&[0, 0]), [0.0, 0.0]);
}
