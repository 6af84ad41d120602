//! Layers with the defaults of a framework: names, initialization, windows.

use crate::{
    Convolution, Graph, GraphBuilder, GraphError, Initialization, Loss, NodeId, Op, ParameterRole,
    ParameterSource, Pool, PoolKind, TransposedConvolution,
};
use partita_space::Window;

/// Largest window of one pooling in [`Network::global_average`].
const POOL_MAX: usize = 8;

/// Builds a network with the defaults of the original framework.
pub(super) struct Network {
    builder: GraphBuilder,
    defaults: Defaults,
}

/// Defaults of all layers of a network.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// Weights of convolutions.
    pub(super) weights: Start,
    /// Biases of convolutions, if they have them.
    pub(super) biases: Option<Start>,
    /// Epsilon of batch norms.
    pub(super) epsilon: f64,
    /// Momentum of batch norms, the weight of the new value.
    pub(super) momentum: f64,
}

/// Initialization of a parameter.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// Uniform within `1 / sqrt(fan_in)` of the layer, the default of PyTorch.
    FanIn,
    /// A given initialization.
    As(Initialization),
}

impl Start {
    /// All zero.
    pub(super) const ZERO: Start = Start::As(Initialization::Constant(0.0));

    fn initialization(self, fan_in: usize) -> Initialization {
        match self {
            Self::FanIn => Initialization::Uniform(1.0 / (fan_in as f64).sqrt()),
            Self::As(initialization) => initialization,
        }
    }
}

/// A window of undilated taps with the same padding on both sides.
pub(super) fn window(kernel: usize, stride: usize, pad: usize) -> Window {
    Window {
        kernel,
        stride,
        dilation: 1,
        pad_low: pad,
        pad_high: pad,
    }
}

impl Network {
    /// A network of this name and its input, of as many dims as `extent` has.
    pub(super) fn new(
        name: &str,
        extent: &[usize],
        channels: usize,
        defaults: Defaults,
    ) -> Result<(Self, NodeId), GraphError> {
        let mut builder = GraphBuilder::new(name)?;
        let input = builder.input("x", extent, channels)?;
        Ok((Self { builder, defaults }, input))
    }

    /// Sets the initialization of convolution weights from here on.
    pub(super) fn set_weights(&mut self, weights: Start) {
        self.defaults.weights = weights;
    }

    /// Sets the initialization of biases from here on; convolutions have none without it.
    pub(super) fn set_biases(&mut self, biases: Option<Start>) {
        self.defaults.biases = biases;
    }

    /// A convolution with one window for all dims.
    pub(super) fn conv(
        &mut self,
        name: &str,
        input: NodeId,
        filters: usize,
        window: Window,
    ) -> Result<NodeId, GraphError> {
        let windows = self.builder.windows(window);
        self.conv_of(name, input, filters, windows)
    }

    /// A convolution with a window per dim D, H, W.
    pub(super) fn conv_of(
        &mut self,
        name: &str,
        input: NodeId,
        filters: usize,
        window: [Window; 3],
    ) -> Result<NodeId, GraphError> {
        let taps: usize = window.iter().map(|window| window.kernel).product();
        let fan_in = taps * self.builder.shape(input).channels;
        let Defaults {
            weights, biases, ..
        } = self.defaults;
        let op = Op::Convolution(Convolution {
            filters,
            window,
            periodic: false,
            groups: 1,
            bias: biases.is_some(),
        });
        self.weighted(name, op, input, fan_in, weights, biases)
    }

    /// A transposed convolution that doubles every extent.
    pub(super) fn upsampling(
        &mut self,
        name: &str,
        input: NodeId,
        filters: usize,
    ) -> Result<NodeId, GraphError> {
        let window = self.builder.windows(window(2, 2, 0));
        let Defaults {
            weights, biases, ..
        } = self.defaults;
        let op = Op::TransposedConvolution(TransposedConvolution {
            filters,
            window,
            output_padding: [0; 3],
            groups: 1,
            bias: biases.is_some(),
        });
        // PyTorch reads the fan-in of its weights, whose second dim has the filters.
        let taps: usize = window.iter().map(|window| window.kernel).product();
        self.weighted(name, op, input, taps * filters, weights, biases)
    }

    /// A linear layer with bias.
    pub(super) fn linear(
        &mut self,
        name: &str,
        input: NodeId,
        features: usize,
        weights: Start,
        biases: Start,
    ) -> Result<NodeId, GraphError> {
        let op = Op::Linear {
            features,
            bias: true,
        };
        let fan_in = self.builder.shape(input).channels;
        self.weighted(name, op, input, fan_in, weights, Some(biases))
    }

    fn weighted(
        &mut self,
        name: &str,
        op: Op,
        input: NodeId,
        fan_in: usize,
        weights: Start,
        biases: Option<Start>,
    ) -> Result<NodeId, GraphError> {
        let own = |start: Start| ParameterSource::Own(start.initialization(fan_in));
        let mut sources = vec![(ParameterRole::Weight, own(weights))];
        sources.extend(biases.map(|start| (ParameterRole::Bias, own(start))));
        self.builder.node(name, op, &[input], &sources)
    }

    /// A batch norm.
    pub(super) fn norm(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        let Defaults {
            epsilon, momentum, ..
        } = self.defaults;
        self.builder.batch_norm(name, input, epsilon, momentum)
    }

    /// A group norm.
    pub(super) fn group_norm(
        &mut self,
        name: &str,
        input: NodeId,
        groups: usize,
    ) -> Result<NodeId, GraphError> {
        let epsilon = self.defaults.epsilon;
        self.builder.group_norm(name, input, Some(groups), epsilon)
    }

    /// A ReLU.
    pub(super) fn relu(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.builder.relu(name, input)
    }

    /// A batch norm and a ReLU.
    pub(super) fn norm_relu(
        &mut self,
        norm: &str,
        relu: &str,
        input: NodeId,
    ) -> Result<NodeId, GraphError> {
        let input = self.norm(norm, input)?;
        self.relu(relu, input)
    }

    /// A maximum pooling.
    pub(super) fn max_pool(
        &mut self,
        name: &str,
        input: NodeId,
        window: Window,
    ) -> Result<NodeId, GraphError> {
        self.pool(name, input, PoolKind::Max, window)
    }

    /// An average pooling that counts padding.
    pub(super) fn average_pool(
        &mut self,
        name: &str,
        input: NodeId,
        window: Window,
    ) -> Result<NodeId, GraphError> {
        let kind = PoolKind::AverageAll;
        self.pool(name, input, kind, window)
    }

    /// An average pooling that leaves padding out.
    pub(super) fn average_pool_inside(
        &mut self,
        name: &str,
        input: NodeId,
        window: Window,
    ) -> Result<NodeId, GraphError> {
        let kind = PoolKind::AverageInside;
        self.pool(name, input, kind, window)
    }

    fn pool(
        &mut self,
        name: &str,
        input: NodeId,
        kind: PoolKind,
        window: Window,
    ) -> Result<NodeId, GraphError> {
        let window = self.builder.windows(window);
        self.builder.pool(name, input, Pool::new(kind, window))
    }

    /// The average pooling to `outputs` positions a side that an adaptive one is where that divides
    /// the extent; nothing where they are equal.
    pub(super) fn adaptive_average(
        &mut self,
        name: &str,
        input: NodeId,
        outputs: usize,
    ) -> Result<NodeId, GraphError> {
        let extent = self.builder.shape(input).extent;
        if extent[2] == outputs {
            return Ok(input);
        }
        let missing = 3 - self.builder.spatial_rank();
        let outputs = std::array::from_fn(|dim| if dim < missing { 1 } else { outputs });
        let pool = Pool::adaptive_average(extent, outputs);
        let even = pool.expect("zoo networks average over even windows");
        self.builder.pool(name, input, even)
    }

    /// The average over all positions.
    ///
    /// Wide extents are averaged in steps, by windows of eight: the mean of means over equal windows
    /// is the mean, and a rank that holds a part of the positions then averages most of them itself.
    pub(super) fn global_average(
        &mut self,
        name: &str,
        mut input: NodeId,
    ) -> Result<NodeId, GraphError> {
        let mut step = 1;
        loop {
            let extent = self.builder.shape(input).extent[2];
            if extent <= POOL_MAX || !extent.is_multiple_of(POOL_MAX) {
                return self.adaptive_average(name, input, 1);
            }
            let part = window(POOL_MAX, POOL_MAX, 0);
            input = self.average_pool(&format!("{name}.{step}"), input, part)?;
            step += 1;
        }
    }

    /// A dropout.
    pub(super) fn dropout(
        &mut self,
        name: &str,
        input: NodeId,
        rate: f64,
    ) -> Result<NodeId, GraphError> {
        self.builder.dropout(name, input, rate)
    }

    /// All positions and channels as features.
    pub(super) fn flatten(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        self.builder.flatten(name, input)
    }

    /// The sum of two tensors.
    pub(super) fn add(
        &mut self,
        name: &str,
        left: NodeId,
        right: NodeId,
    ) -> Result<NodeId, GraphError> {
        self.builder.add(name, left, right)
    }

    /// The channels of several tensors.
    pub(super) fn concat(&mut self, name: &str, inputs: &[NodeId]) -> Result<NodeId, GraphError> {
        self.builder.concat(name, inputs)
    }

    /// Channels of a tensor.
    pub(super) fn channels(&self, id: NodeId) -> usize {
        self.builder.shape(id).channels
    }

    /// The cross-entropy of these scores as an auxiliary loss.
    pub(super) fn auxiliary(
        &mut self,
        name: &str,
        scores: NodeId,
        weight: f64,
    ) -> Result<NodeId, GraphError> {
        let loss = Loss::CROSS_ENTROPY;
        self.builder.auxiliary_loss(name, scores, loss, weight)
    }

    /// The graph, with the cross-entropy of these scores as its loss.
    pub(super) fn classify(self, scores: NodeId) -> Result<Graph, GraphError> {
        self.finish(scores, Loss::CROSS_ENTROPY)
    }

    /// The graph, with its loss.
    pub(super) fn finish(mut self, output: NodeId, loss: Loss) -> Result<Graph, GraphError> {
        self.builder.loss("loss", output, loss)?;
        self.builder.build()
    }
}
