//! Layers whose windows come from small sets, so that all of them can be met.

use crate::ledger::Refusal;
use partita_graph::{
    Convolution, Graph, GraphBuilder, GraphError, Loss, NodeId, Pool, PoolKind, Shape,
    TransposedConvolution,
};
use partita_space::Window;
use partita_testkit::Draws;

pub const KERNELS: [usize; 5] = [1, 2, 3, 5, 7];
pub const STRIDES: [usize; 3] = [1, 2, 3];
pub const DILATIONS: [usize; 3] = [1, 2, 3];
/// Channels, filters and groups; depthwise and odd ones among them, one wider than a vector.
pub const GROUPINGS: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 3, 1),
    (2, 4, 2),
    (3, 3, 3),
    (4, 2, 1),
    (3, 6, 3),
    (4, 4, 4),
    (2, 3, 1),
    (6, 3, 3),
    (5, 17, 1),
];
pub const OPERATIONS: [Operation; 5] = [
    Operation::Convolution,
    Operation::Transposed,
    POOLINGS[0],
    POOLINGS[1],
    POOLINGS[2],
];
pub const POOLINGS: [Operation; 3] = [
    Operation::Maximum,
    Operation::Mean {
        count_padding: true,
    },
    Operation::Mean {
        count_padding: false,
    },
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    Convolution,
    Transposed,
    Maximum,
    Mean { count_padding: bool },
}

/// How much is padded, as a part of what the window spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    None,
    Same,
    Low,
    High,
    /// More than the span: some outputs read padding alone.
    Wide,
}

impl Operation {
    pub fn is_pool(self) -> bool {
        match self {
            Operation::Maximum | Operation::Mean { .. } => true,
            Operation::Convolution | Operation::Transposed => false,
        }
    }

    /// Paddings, and whether they are periodic.
    pub fn paddings(self) -> &'static [(Padding, bool)] {
        const CONVOLUTION: [(Padding, bool); 8] = [
            (Padding::None, false),
            (Padding::Same, false),
            (Padding::Low, false),
            (Padding::High, false),
            (Padding::Wide, false),
            (Padding::Same, true),
            (Padding::Low, true),
            (Padding::Wide, true),
        ];
        match self {
            Operation::Convolution => &CONVOLUTION,
            Operation::Transposed => &CONVOLUTION[..5],
            Operation::Maximum | Operation::Mean { .. } => &CONVOLUTION[..4],
        }
    }

    pub fn dilations(self) -> &'static [usize] {
        match self {
            Operation::Convolution | Operation::Transposed => &DILATIONS,
            Operation::Maximum | Operation::Mean { .. } => &DILATIONS[..1],
        }
    }

    pub fn window(self, [kernel, stride, dilation]: [usize; 3], padding: Padding) -> Window {
        let reach = (kernel - 1) * dilation;
        let half = kernel / 2;
        let (pad_low, pad_high) = match (self.is_pool(), padding) {
            (_, Padding::None) => (0, 0),
            (false, Padding::Same) => (reach / 2, reach - reach / 2),
            (false, Padding::Low) => (reach, reach / 3),
            (false, Padding::High) => (0, reach),
            (false, Padding::Wide) => (reach + 1, reach + 2),
            (true, Padding::Same | Padding::Wide) => (half, half),
            (true, Padding::Low) => (half, 0),
            (true, Padding::High) => (0, half),
        };
        Window {
            kernel,
            stride,
            dilation,
            pad_low,
            pad_high,
        }
    }
}

/// A convolution, transposed convolution or pooling under test, a window per spatial dim of the model.
#[derive(Clone, Debug)]
pub struct Layer {
    pub operation: Operation,
    pub windows: Vec<Window>,
    /// Outputs more per dim, of a transposed convolution.
    pub extras: Vec<usize>,
    pub periodic: bool,
    pub filters: usize,
    pub groups: usize,
    pub bias: bool,
}

impl Layer {
    /// Convolution with one window for all of `rank` dims, and no groups.
    pub fn convolution(rank: usize, window: Window, filters: usize) -> Self {
        Self {
            operation: Operation::Convolution,
            windows: vec![window; rank],
            extras: vec![0; rank],
            periodic: false,
            filters,
            groups: 1,
            bias: true,
        }
    }

    /// Pooling with one window for all of `rank` dims.
    pub fn pool(operation: Operation, rank: usize, window: Window) -> Self {
        Self {
            operation,
            ..Self::convolution(rank, window, 1)
        }
    }

    /// Why it must be refused on an input of these extents.
    pub fn refusal(&self, extent: &[usize]) -> Option<Refusal> {
        let pads = |window: &Window| window.pad_low.max(window.pad_high);
        let is_pool = self.operation.is_pool();
        let any = |test: &dyn Fn(&Window, usize) -> bool| {
            (self.windows.iter().zip(extent)).any(|(window, &extent)| test(window, extent))
        };
        if is_pool && any(&|window, _| window.dilation != 1) {
            return Some(Refusal::PoolDilation);
        }
        if is_pool && any(&|window, _| pads(window) > window.kernel / 2) {
            return Some(Refusal::PoolPadding);
        }
        let is_transposed = self.operation == Operation::Transposed;
        let too_many =
            |(window, &extra): (&Window, &usize)| extra >= window.stride.max(window.dilation);
        if is_transposed && self.windows.iter().zip(&self.extras).any(too_many) {
            return Some(Refusal::OutputPadding);
        }
        if self.outputs(extent).contains(&0) {
            return Some(if is_transposed {
                Refusal::NothingLeft
            } else {
                Refusal::WindowTooLarge
            });
        }
        if !is_pool && self.periodic && any(&|window, extent| pads(window) > extent) {
            return Some(Refusal::PeriodicPadding);
        }
        None
    }

    /// The smallest extents that are at least `extent` and fit.
    pub fn fit(&self, mut extent: Vec<usize>) -> Vec<usize> {
        for (dim, extent) in extent.iter_mut().enumerate() {
            let window = &self.windows[dim];
            while self.output(dim, *extent) == 0
                || (self.periodic && window.pad_low.max(window.pad_high) > *extent)
            {
                *extent += 1;
            }
        }
        extent
    }

    /// Extents of its output over an input; 0 where it does not fit.
    pub fn outputs(&self, extent: &[usize]) -> Vec<usize> {
        let extents = extent.iter().enumerate();
        extents
            .map(|(dim, &extent)| self.output(dim, extent))
            .collect()
    }

    fn output(&self, dim: usize, extent: usize) -> usize {
        let window = &self.windows[dim];
        match self.operation {
            Operation::Transposed => {
                let full = (extent - 1) * window.stride + window.span() + self.extras[dim];
                full.saturating_sub(window.pad_low + window.pad_high)
            }
            Operation::Convolution | Operation::Maximum | Operation::Mean { .. } => {
                window.output_extent(extent)
            }
        }
    }

    /// With windows from the small sets: at most `taps` taps together.
    pub fn random(draws: &mut Draws, rank: usize, channels: usize, taps: usize) -> Self {
        let operation = draws.pick(&OPERATIONS);
        let periodic = operation == Operation::Convolution && draws.one_in(4);
        let paddings: Vec<Padding> = operation.paddings().iter().map(|pair| pair.0).collect();
        let windows: Vec<Window> = (0..rank)
            .map(|_| {
                let steps = [
                    draws.pick(&KERNELS),
                    draws.pick(&STRIDES),
                    draws.pick(operation.dilations()),
                ];
                operation.window(steps, draws.pick(&paddings))
            })
            .collect();
        if windows.iter().map(|w| w.kernel).product::<usize>() > taps {
            return Self::random(draws, rank, channels, taps);
        }
        let extras = windows.iter().map(|window| match operation {
            Operation::Transposed => draws.between(0, window.stride.max(window.dilation) - 1),
            Operation::Convolution | Operation::Maximum | Operation::Mean { .. } => 0,
        });
        let extras = extras.collect();
        let divisors = (1..=channels).filter(|&g| channels.is_multiple_of(g));
        let groups = draws.pick(&divisors.collect::<Vec<_>>());
        Self {
            operation,
            windows,
            extras,
            periodic,
            filters: groups * draws.between(1, (9 / groups).clamp(1, 3)),
            groups,
            bias: draws.one_in(2),
        }
    }
}

/// A model that grows by one layer after the other.
pub struct Tower {
    builder: GraphBuilder,
    head: NodeId,
    layers: usize,
}

impl Tower {
    pub fn new(name: &str, extent: &[usize], channels: usize) -> Self {
        let mut builder = GraphBuilder::new(name).unwrap();
        let head = builder.input("x", extent, channels).unwrap();
        Self {
            builder,
            head,
            layers: 0,
        }
    }

    pub fn shape(&self) -> Shape {
        self.builder.shape(self.head)
    }

    /// Extents of the dims that the model has.
    pub fn extent(&self) -> Vec<usize> {
        self.shape().extent[3 - self.builder.spatial_rank()..].to_vec()
    }

    fn name(&mut self, kind: &str) -> String {
        self.layers += 1;
        format!("{kind}{}", self.layers)
    }

    /// Adds the layer under this name.
    pub fn layer(&mut self, name: &str, layer: &Layer) -> Result<(), Box<GraphError>> {
        let missing = 3 - self.builder.spatial_rank();
        let mut window = [Window::ONE; 3];
        window[missing..].copy_from_slice(&layer.windows);
        let pool = |kind| Pool::new(kind, window);
        self.head = match layer.operation {
            Operation::Convolution => {
                let convolution = Convolution {
                    filters: layer.filters,
                    window,
                    periodic: layer.periodic,
                    groups: layer.groups,
                    bias: layer.bias,
                };
                self.builder.convolution(name, self.head, convolution)?
            }
            Operation::Transposed => {
                let mut output_padding = [0; 3];
                output_padding[missing..].copy_from_slice(&layer.extras);
                let convolution = TransposedConvolution {
                    filters: layer.filters,
                    window,
                    output_padding,
                    groups: layer.groups,
                    bias: layer.bias,
                };
                self.builder
                    .transposed_convolution(name, self.head, convolution)?
            }
            Operation::Maximum => self.builder.pool(name, self.head, pool(PoolKind::Max))?,
            Operation::Mean { count_padding } => {
                let kind = PoolKind::average(count_padding);
                self.builder.pool(name, self.head, pool(kind))?
            }
        };
        Ok(())
    }

    /// Adds a layer that must fit.
    pub fn then(mut self, layer: Layer) -> Self {
        let name = self.name("layer");
        self.layer(&name, &layer).unwrap();
        self
    }

    /// A 1x1x1 convolution: its weights feel which position a gradient comes from.
    pub fn pointwise(self, filters: usize, bias: bool) -> Self {
        let rank = self.builder.spatial_rank();
        self.then(Layer {
            bias,
            ..Layer::convolution(rank, Window::ONE, filters)
        })
    }

    pub fn norm(mut self) -> Self {
        let name = self.name("norm");
        self.head = self
            .builder
            .batch_norm(&name, self.head, 1e-3, 0.1)
            .unwrap();
        self
    }

    pub fn relu(mut self, slope: f64) -> Self {
        let name = self.name("relu");
        self.head = self.builder.leaky_relu(&name, self.head, slope).unwrap();
        self
    }

    /// Flattens, and this many features.
    pub fn linear(mut self, features: usize) -> Self {
        let name = self.name("flat");
        self.head = self.builder.flatten(&name, self.head).unwrap();
        let name = self.name("linear");
        self.head = self
            .builder
            .linear(&name, self.head, features, true)
            .unwrap();
        self
    }

    /// An auxiliary loss of what is there, and a layer of as many channels behind it.
    pub fn early(mut self, loss: Loss, weight: f64) -> Self {
        let name = self.name("early");
        let channels = self.shape().channels;
        self.builder
            .auxiliary_loss(&name, self.head, loss, weight)
            .unwrap();
        self.pointwise(channels, true)
    }

    pub fn finish(mut self, loss: Loss) -> Graph {
        self.builder.loss("loss", self.head, loss).unwrap();
        self.builder.build().unwrap()
    }
}
