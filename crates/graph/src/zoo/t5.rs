//! An encoder-decoder transformer in the dimensions of T5.

use super::ModelError;
use crate::{
    Convolution, Graph, GraphBuilder, GraphError, Loss, NodeId, Op, ParameterRole, ParameterSource,
};
use partita_space::Window;

/// Lengths of the sequences that are listed; others are possible.
pub(super) const SIZES: [usize; 3] = [16, 64, 256];
/// The dimensions that are listed; others are possible.
pub(super) const LISTED: Dimensions = Dimensions {
    layers: 2,
    channels: 64,
    heads: 4,
};
pub(super) const LISTED_NAME: &str = "t5-2-64-4";

/// Class numbers of tokens, and scores per position.
const CLASSES: usize = 16;
const EPSILON: f64 = 1e-6;
const SMOOTHING: f64 = 0.1;
/// Channels of the feed-forward layers, in units of the others.
const WIDENING: usize = 4;
/// The most that a name may ask for of anything.
const MOST: usize = 1 << 20;

/// Most layers of the encoder, and of the decoder.
const LAYERS_MAX: usize = 999;

/// What a name `t5-LAYERS-CHANNELS-HEADS` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimensions {
    layers: usize,
    channels: usize,
    heads: usize,
}

impl Dimensions {
    fn name(&self, length: usize) -> String {
        let Self {
            layers,
            channels,
            heads,
        } = self;
        format!("t5-{layers}-{channels}-{heads}@{length}")
    }
}

/// The model of a name `t5-LAYERS-CHANNELS-HEADS@LENGTH`; nothing if the name is of another family.
///
/// Errors: numbers that are none, or out of range, and heads that do not divide the channels.
pub(super) fn of_name(name: &str) -> Option<Result<Graph, ModelError>> {
    let rest = name.strip_prefix("t5")?;
    if !rest.is_empty() && !rest.starts_with(['-', '@', '+']) {
        return None;
    }
    let (dimensions, length) = rest.split_once('@').unwrap_or((rest, ""));
    let words: Vec<&str> = dimensions.split('-').skip(1).collect();
    let number = |word: Option<&&str>| -> Option<usize> {
        let word = word?;
        let number: usize = word.parse().ok()?;
        (number.to_string() == **word).then_some(number)
    };
    let asked = [
        number(words.first()),
        number(words.get(1)),
        number(words.get(2)),
        number(Some(&length)),
    ];
    let most = [LAYERS_MAX, MOST, MOST, MOST];
    let usual = [LISTED.layers, LISTED.channels, LISTED.heads, SIZES[0]];
    let [layers, channels, heads, length] =
        std::array::from_fn(|i| asked[i].unwrap_or(usual[i]).clamp(1, most[i]));
    let divides = |heads: &usize| channels.is_multiple_of(*heads);
    let nearest = Dimensions {
        layers,
        channels,
        heads: (1..=heads.min(channels)).rev().find(divides).unwrap_or(1),
    };
    if nearest.name(length) != name {
        return Some(Err(ModelError::BadDimensions {
            asked: name.to_owned(),
            form: "t5-LAYERS-CHANNELS-HEADS@LENGTH with up to 999 layers, heads dividing the channels",
            most: MOST,
            nearest: nearest.name(length),
        }));
    }
    let built = build(name, length, nearest);
    Some(built.map_err(|source| ModelError::Graph {
        asked: name.to_owned(),
        source: Box::new(source),
    }))
}

/// An encoder and a decoder of sequences of 16 classes. Channel 0 of the sample holds the source,
/// channel 1 what the decoder reads, the target shifted by one.
///
/// Each layer normalizes what it reads and adds what it computes: attention to all of the own sequence
/// (of the decoder to what came before), in the decoder attention to the encoder, and a feed-forward
/// layer, four times as wide, with a ReLU. Encoder and decoder share their embedding, add sinusoids of
/// positions, and end with a norm; nothing but norms has a bias. The loss is the cross-entropy at each
/// position, smoothed by 0.1.
/// Source: Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
/// transformer", JMLR 2020, section 2.1, with positions and smoothing of Vaswani et al., NeurIPS 2017.
pub(super) fn build(
    name: &str,
    length: usize,
    dimensions: Dimensions,
) -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new(name)?;
    let input = builder.input("x", &[length], 2)?;
    let mut net = Transformer {
        builder,
        dimensions,
    };
    let (rows, channels) = (CLASSES, dimensions.channels);
    let embedding = Op::Embedding { rows, channels };
    let tokens = net.builder.slice("source", input, 0, 1)?;
    let mut last = net.node("embedding", embedding.clone(), &[tokens])?;
    last = net.builder.positions("encoder.positions", last)?;
    for layer in 1..=dimensions.layers {
        let block = format!("encoder.{layer}");
        last = net.attention(&format!("{block}.self"), last, None, false)?;
        last = net.feed_forward(&block, last)?;
    }
    let memory = net.norm("encoder.norm", last)?;
    let tokens = net.builder.slice("target", input, 1, 1)?;
    let weight = net.builder.find_parameter("embedding.weight")?;
    let shared = [(ParameterRole::Weight, ParameterSource::Shared(weight))];
    last = net
        .builder
        .node("decoder.embedding", embedding, &[tokens], &shared)?;
    last = net.builder.positions("decoder.positions", last)?;
    for layer in 1..=dimensions.layers {
        let block = format!("decoder.{layer}");
        last = net.attention(&format!("{block}.self"), last, None, true)?;
        last = net.attention(&format!("{block}.cross"), last, Some(memory), false)?;
        last = net.feed_forward(&block, last)?;
    }
    last = net.norm("decoder.norm", last)?;
    last = net.pointwise("scores", last, CLASSES)?;
    let loss = Loss::SoftmaxCrossEntropy {
        smoothing: SMOOTHING,
    };
    net.builder.loss("loss", last, loss)?;
    net.builder.build()
}

struct Transformer {
    builder: GraphBuilder,
    dimensions: Dimensions,
}

impl Transformer {
    fn node(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> Result<NodeId, GraphError> {
        self.builder.node(name, op, inputs, &[])
    }

    fn norm(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.builder.layer_norm(name, input, EPSILON)
    }

    /// A linear layer on each token.
    fn pointwise(
        &mut self,
        name: &str,
        input: NodeId,
        filters: usize,
    ) -> Result<NodeId, GraphError> {
        let convolution = Convolution {
            filters,
            window: [Window::ONE; 3],
            periodic: false,
            groups: 1,
            bias: false,
        };
        self.builder.convolution(name, input, convolution)
    }

    /// Attention of what is normed to itself, or to `memory`, added to the input.
    fn attention(
        &mut self,
        block: &str,
        input: NodeId,
        memory: Option<NodeId>,
        causal: bool,
    ) -> Result<NodeId, GraphError> {
        let Dimensions {
            channels, heads, ..
        } = self.dimensions;
        let normed = self.norm(&format!("{block}.norm"), input)?;
        let to = memory.unwrap_or(normed);
        let q = self.pointwise(&format!("{block}.q"), normed, channels)?;
        let k = self.pointwise(&format!("{block}.k"), to, channels)?;
        let v = self.pointwise(&format!("{block}.v"), to, channels)?;
        let name = format!("{block}.attention");
        let attended = self.builder.attention(&name, [q, k, v], heads, causal)?;
        let out = self.pointwise(&format!("{block}.out"), attended, channels)?;
        self.builder.add(&format!("{block}.sum"), input, out)
    }

    fn feed_forward(&mut self, block: &str, input: NodeId) -> Result<NodeId, GraphError> {
        let channels = self.dimensions.channels;
        let name = |what: &str| format!("{block}.forward.{what}");
        let normed = self.norm(&name("norm"), input)?;
        let wide = self.pointwise(&name("wide"), normed, WIDENING * channels)?;
        let active = self.builder.relu(&name("relu"), wide)?;
        let out = self.pointwise(&name("out"), active, channels)?;
        self.builder.add(&name("sum"), input, out)
    }
}
