//! AmoebaNet-D as torchgpipe has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, NodeId};
use partita_space::Window;

/// Sides of the image; any multiple of 32 would do.
pub(super) const SIZES: [usize; 10] = [64, 128, 224, 256, 512, 1024, 2048, 4096, 8192, 16384];
/// Normal cells, of which there are three groups.
pub(super) const LAYERS_MAX: usize = 999;
/// Fewer would leave a bottleneck without filters.
pub(super) const FILTERS_MIN: usize = 8;
pub(super) const FILTERS_MAX: usize = 4096;

const CLASSES: usize = 10;
const DEFAULTS: Defaults = Defaults {
    weights: Start::FanIn,
    biases: None,
    epsilon: 1e-5,
    momentum: 0.1,
};

/// AmoebaNet-D for ten classes of RGB images, with `layers` normal cells and a width of `filters`, as
/// torchgpipe's benchmarks have it, which GPipe's figures for 1000 classes are reproduced with: 81.5
/// million parameters for 18 layers and 208 filters, 319.0 for 416. Parameters have its names.
///
/// A cell reads what the cell before it and the one before that give, and is a sum of two operations
/// five times; see [`NORMAL`] and [`REDUCTION`]. Two things are not as the paper has them. As in
/// torchgpipe, all 3x3 poolings are averages, those called maximum, too. As in MPI4DL, the second half
/// of a factorized reduction reads the same positions as the first and not those one to the right and
/// below, which no window does that starts in its input. Neither changes a shape or a parameter. The
/// average pooling before the scores is over all positions at every size, as it is at 224.
///
/// Source: Real et al., "Regularized evolution for image classifier architecture search", AAAI 2019;
/// torchgpipe 0.0.7, `benchmarks/models/amoebanet`.
pub(super) fn build(
    name: &str,
    size: usize,
    layers: usize,
    filters: usize,
) -> Result<Graph, GraphError> {
    let (mut net, input) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    let channels = filters / 4;
    let mut last = net.relu("stem1.relu", input)?;
    last = net.conv("stem1.conv", last, channels, window(3, 2, 1))?;
    last = net.norm("stem1.bn", last)?;
    let mut cells = Cells {
        net,
        channels,
        last,
        before: last,
        before_is_wide: false,
    };
    cells.reduction("stem2")?;
    cells.reduction("stem3")?;
    for group in 1..=3 {
        for i in 1..=layers / 3 {
            let name = format!("cell{}_normal{i}", 2 * group - 1);
            cells.add(&name, &NORMAL, &NORMAL_KEPT)?;
        }
        if group < 3 {
            cells.reduction(&format!("cell{}_reduction", 2 * group))?;
        }
    }
    let Cells { mut net, last, .. } = cells;
    let mut last = net.global_average("classify.pool", last)?;
    last = net.flatten("classify.flat", last)?;
    last = net.linear("classify.fc", last, CLASSES, Start::FanIn, Start::FanIn)?;
    net.classify(last)
}

/// One of the two operations of a sum.
#[derive(Clone, Copy)]
enum Operation {
    Identity,
    /// An average over 3x3, padding left out.
    Average,
    /// A maximum over 2x2.
    Maximum,
    /// ReLU, convolution and batch norm, one after the other as often as there are shapes; several
    /// have a quarter of the channels in between.
    Convolutions(&'static [Shape]),
}

/// Taps along H and W.
type Shape = [usize; 2];

const POINT: Operation = Operation::Convolutions(&[[1, 1]]);
const SQUARE: Operation = Operation::Convolutions(&[[1, 1], [3, 3], [1, 1]]);
const CROSS: Operation = Operation::Convolutions(&[[1, 1], [1, 7], [7, 1], [1, 1]]);

/// Operations, two for each sum, and which state each reads: 0 is what the cell before gives and 1 what
/// the one before that gives, both brought to the channels of this cell; 2 to 6 are the sums.
type Genotype = [(usize, Operation); 10];

const NORMAL: Genotype = [
    (1, POINT),
    (1, Operation::Average),
    (1, Operation::Identity),
    (0, CROSS),
    (0, POINT),
    (0, CROSS),
    (2, Operation::Average),
    (2, Operation::Identity),
    (1, Operation::Average),
    (5, POINT),
];
/// States that a normal cell gives, of the authors' program; the paper has 4, 5 and 6.
const NORMAL_KEPT: [usize; 4] = [0, 3, 4, 6];

/// What reads state 0 or 1 does so with stride 2.
const REDUCTION: Genotype = [
    (0, Operation::Maximum),
    (0, Operation::Average),
    (2, Operation::Identity),
    (1, SQUARE),
    (2, CROSS),
    (2, Operation::Average),
    (3, Operation::Identity),
    (1, Operation::Maximum),
    (2, Operation::Average),
    (3, POINT),
];
const REDUCTION_KEPT: [usize; 3] = [4, 5, 6];

/// The network while cells are added.
struct Cells {
    net: Network,
    /// Of each state of a cell.
    channels: usize,
    /// What the last cell gives.
    last: NodeId,
    /// What the one before it gives.
    before: NodeId,
    /// Whether the last cell was a reduction, so that `before` has twice as many positions a side.
    before_is_wide: bool,
}

impl Cells {
    /// A cell that halves the extents and doubles the channels of each state.
    fn reduction(&mut self, name: &str) -> Result<(), GraphError> {
        self.channels *= 2;
        self.add(name, &REDUCTION, &REDUCTION_KEPT)
    }

    fn add(&mut self, cell: &str, genotype: &Genotype, kept: &[usize]) -> Result<(), GraphError> {
        let is_reduction = kept == REDUCTION_KEPT;
        let mut states = States {
            cell,
            nodes: self.entries(cell)?,
            rectified: [None; 7],
        };
        for (sum, pair) in genotype.chunks_exact(2).enumerate() {
            let mut terms = Vec::new();
            for (side, &(state, operation)) in pair.iter().enumerate() {
                let stride = if is_reduction && state < 2 { 2 } else { 1 };
                let name = format!("{cell}.operations.{}.module", 2 * sum + side);
                terms.push(self.operation(&name, &mut states, state, operation, stride)?);
            }
            let name = format!("{cell}.state{}", sum + 2);
            let node = self.net.add(&name, terms[0], terms[1])?;
            states.nodes.push(node);
        }
        let kept: Vec<NodeId> = kept.iter().map(|&state| states.nodes[state]).collect();
        let joined = self.net.concat(&format!("{cell}.concat"), &kept)?;
        self.before = std::mem::replace(&mut self.last, joined);
        self.before_is_wide = is_reduction;
        Ok(())
    }

    /// States 0 and 1.
    fn entries(&mut self, cell: &str) -> Result<Vec<NodeId>, GraphError> {
        let (channels, last, before) = (self.channels, self.last, self.before);
        let first = self.net.relu(&format!("{cell}.reduce1.0"), last)?;
        let first = self.point(&format!("{cell}.reduce1"), first, channels)?;
        let name = |what: &str| format!("{cell}.reduce2.{what}");
        let second = if self.before_is_wide {
            let relu = self.net.relu(&name("relu"), before)?;
            let halves = ["conv1", "conv2"].map(|half| {
                let window = window(1, 2, 0);
                self.net.conv(&name(half), relu, channels / 2, window)
            });
            let [even, odd] = halves;
            let joined = self.net.concat(&name("concat"), &[even?, odd?])?;
            self.net.norm(&name("bn"), joined)?
        } else if self.net.channels(before) == channels {
            before
        } else {
            let relu = self.net.relu(&name("0"), before)?;
            self.point(&format!("{cell}.reduce2"), relu, channels)?
        };
        Ok(vec![first, second])
    }

    /// A 1x1 convolution and a batch norm, the second and third module of these.
    fn point(&mut self, name: &str, relu: NodeId, channels: usize) -> Result<NodeId, GraphError> {
        let conv = format!("{name}.1");
        let last = self.net.conv(&conv, relu, channels, Window::ONE)?;
        self.net.norm(&format!("{name}.2"), last)
    }

    fn operation(
        &mut self,
        name: &str,
        states: &mut States,
        state: usize,
        operation: Operation,
        stride: usize,
    ) -> Result<NodeId, GraphError> {
        let input = states.nodes[state];
        match operation {
            Operation::Identity => {
                assert_eq!(stride, 1, "{name} leaves the extent as it is");
                Ok(input)
            }
            Operation::Average => {
                let window = window(3, stride, 1);
                self.net.average_pool_inside(name, input, window)
            }
            Operation::Maximum => self.net.max_pool(name, input, window(2, stride, 0)),
            Operation::Convolutions(shapes) => {
                let relu = states.rectified(&mut self.net, state)?;
                self.convolutions(name, relu, shapes, stride)
            }
        }
    }

    /// The stride is of the taps: of a row along W, of a column along H, of a lone point along both.
    fn convolutions(
        &mut self,
        name: &str,
        relu: NodeId,
        shapes: &[Shape],
        stride: usize,
    ) -> Result<NodeId, GraphError> {
        let mut last = relu;
        for (i, &taps) in shapes.iter().enumerate() {
            let module = |what: usize| format!("{name}.{}", 3 * i + what);
            if i > 0 {
                last = self.net.relu(&module(0), last)?;
            }
            let is_last = i + 1 == shapes.len();
            let filters = self.channels / if is_last { 1 } else { 4 };
            let of = |taps: usize| {
                let strides = taps > 1 || shapes.len() == 1;
                window(taps, if strides { stride } else { 1 }, taps / 2)
            };
            let windows = [Window::ONE, of(taps[0]), of(taps[1])];
            last = self.net.conv_of(&module(1), last, filters, windows)?;
            last = self.net.norm(&module(2), last)?;
        }
        Ok(last)
    }
}

/// States of a cell so far, each with its ReLU once something has asked for it: the original computes
/// that anew for each that asks.
struct States<'a> {
    cell: &'a str,
    nodes: Vec<NodeId>,
    rectified: [Option<NodeId>; 7],
}

impl States<'_> {
    fn rectified(&mut self, net: &mut Network, state: usize) -> Result<NodeId, GraphError> {
        if let Some(relu) = self.rectified[state] {
            return Ok(relu);
        }
        let relu = net.relu(&format!("{}.relu{state}", self.cell), self.nodes[state])?;
        self.rectified[state] = Some(relu);
        Ok(relu)
    }
}
