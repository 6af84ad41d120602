//! Inception v3 as torchvision has it.

use super::network::{Defaults, Network, Start, window};
use crate::{Graph, GraphError, Initialization, NodeId};
use partita_space::Window;

/// Sides of the image; any from 75 on would do.
pub(super) const SIZES: [usize; 5] = [128, 256, 299, 512, 1024];
/// Those at which the 5x5 convolution of the auxiliary classifier fits: any from 267 on would do.
pub(super) const AUXILIARY_SIZES: [usize; 3] = [299, 512, 1024];
/// Weight of the auxiliary loss. Source: TensorFlow-Slim, `train_image_classifier.py`, which PyTorch's
/// tutorial on fine-tuning follows.
const AUXILIARY_WEIGHT: f64 = 0.4;

const DEFAULTS: Defaults = Defaults {
    weights: WEIGHTS,
    biases: None,
    epsilon: 1e-3,
    momentum: 0.1,
};
/// The original cuts the normal distribution at twenty deviations, which no draw reaches.
const WEIGHTS: Start = Start::As(Initialization::Normal(0.1));

/// Inception v3 for 1000 classes of RGB images, as torchvision has it: plain with `aux_logits=False`,
/// 23 834 568 parameters, and with the auxiliary classifier and its loss 27 161 264. Layers have its
/// names.
///
/// Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016;
/// torchvision 0.29.2, `inception.py`.
pub(super) fn build(name: &str, size: usize, auxiliary: bool) -> Result<Graph, GraphError> {
    let (net, input) = Network::new(name, &[size; 2], 3, DEFAULTS)?;
    let mut net = Inception { net };
    let mut last = net.stem(input)?;
    for (module, pooled) in [("5b", 32), ("5c", 64), ("5d", 64)] {
        last = net.module_a(&format!("Mixed_{module}"), last, pooled)?;
    }
    last = net.module_b("Mixed_6a", last)?;
    for (module, width) in [("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)] {
        last = net.module_c(&format!("Mixed_{module}"), last, width)?;
    }
    if auxiliary {
        net.classify_early("AuxLogits", last)?;
    }
    last = net.module_d("Mixed_7a", last)?;
    for module in ["Mixed_7b", "Mixed_7c"] {
        last = net.module_e(module, last)?;
    }
    let Inception { mut net } = net;
    last = net.global_average("avgpool", last)?;
    last = net.dropout("dropout", last, 0.5)?;
    last = net.flatten("flatten", last)?;
    last = net.linear("fc", last, 1000, WEIGHTS, Start::FanIn)?;
    net.classify(last)
}

/// A window along H and W.
type Shape = [Window; 2];

/// Filters and shapes of convolutions one after the other, and their names in a module.
type Chain<'a> = &'a [(&'a str, usize, Shape)];

/// Kernel, stride and padding of both dims.
fn square(kernel: usize, stride: usize, pad: usize) -> Shape {
    [window(kernel, stride, pad); 2]
}

const POINT: Shape = [Window::ONE; 2];

/// One row of this many taps.
fn row(kernel: usize) -> Shape {
    [Window::ONE, window(kernel, 1, kernel / 2)]
}

/// One column of this many taps.
fn column(kernel: usize) -> Shape {
    [window(kernel, 1, kernel / 2), Window::ONE]
}

struct Inception {
    net: Network,
}

impl Inception {
    /// Convolution, batch norm and ReLU.
    fn conv(
        &mut self,
        name: &str,
        input: NodeId,
        filters: usize,
        [height, width]: Shape,
    ) -> Result<NodeId, GraphError> {
        let windows = [Window::ONE, height, width];
        let name = |what: &str| format!("{name}.{what}");
        let last = self.net.conv_of(&name("conv"), input, filters, windows)?;
        self.net.norm_relu(&name("bn"), &name("relu"), last)
    }

    fn chain(
        &mut self,
        module: &str,
        mut last: NodeId,
        chain: Chain,
    ) -> Result<NodeId, GraphError> {
        for &(name, filters, shape) in chain {
            last = self.conv(&format!("{module}.{name}"), last, filters, shape)?;
        }
        Ok(last)
    }

    fn stem(&mut self, mut last: NodeId) -> Result<NodeId, GraphError> {
        last = self.conv("Conv2d_1a_3x3", last, 32, square(3, 2, 0))?;
        last = self.conv("Conv2d_2a_3x3", last, 32, square(3, 1, 0))?;
        last = self.conv("Conv2d_2b_3x3", last, 64, square(3, 1, 1))?;
        last = self.net.max_pool("maxpool1", last, window(3, 2, 0))?;
        last = self.conv("Conv2d_3b_1x1", last, 80, POINT)?;
        last = self.conv("Conv2d_4a_3x3", last, 192, square(3, 1, 0))?;
        self.net.max_pool("maxpool2", last, window(3, 2, 0))
    }

    /// A 3x3 average and a 1x1 convolution.
    fn pooled(
        &mut self,
        module: &str,
        input: NodeId,
        filters: usize,
    ) -> Result<NodeId, GraphError> {
        let name = format!("{module}.pool");
        let pool = self.net.average_pool(&name, input, window(3, 1, 1))?;
        self.conv(&format!("{module}.branch_pool"), pool, filters, POINT)
    }

    /// The branches in this order, after them the 3x3 maximum of stride 2 where asked for.
    fn join(
        &mut self,
        module: &str,
        input: NodeId,
        mut branches: Vec<NodeId>,
        is_reduced: bool,
    ) -> Result<NodeId, GraphError> {
        if is_reduced {
            let name = format!("{module}.pool");
            branches.push(self.net.max_pool(&name, input, window(3, 2, 0))?);
        }
        self.net.concat(&format!("{module}.concat"), &branches)
    }

    fn module_a(
        &mut self,
        module: &str,
        input: NodeId,
        pooled: usize,
    ) -> Result<NodeId, GraphError> {
        let chains: [Chain; 3] = [
            &[("branch1x1", 64, POINT)],
            &[
                ("branch5x5_1", 48, POINT),
                ("branch5x5_2", 64, square(5, 1, 2)),
            ],
            &[
                ("branch3x3dbl_1", 64, POINT),
                ("branch3x3dbl_2", 96, square(3, 1, 1)),
                ("branch3x3dbl_3", 96, square(3, 1, 1)),
            ],
        ];
        let mut branches = self.chains(module, input, &chains)?;
        branches.push(self.pooled(module, input, pooled)?);
        self.join(module, input, branches, false)
    }

    fn module_b(&mut self, module: &str, input: NodeId) -> Result<NodeId, GraphError> {
        let chains: [Chain; 2] = [
            &[("branch3x3", 384, square(3, 2, 0))],
            &[
                ("branch3x3dbl_1", 64, POINT),
                ("branch3x3dbl_2", 96, square(3, 1, 1)),
                ("branch3x3dbl_3", 96, square(3, 2, 0)),
            ],
        ];
        let branches = self.chains(module, input, &chains)?;
        self.join(module, input, branches, true)
    }

    fn module_c(
        &mut self,
        module: &str,
        input: NodeId,
        width: usize,
    ) -> Result<NodeId, GraphError> {
        let chains: [Chain; 3] = [
            &[("branch1x1", 192, POINT)],
            &[
                ("branch7x7_1", width, POINT),
                ("branch7x7_2", width, row(7)),
                ("branch7x7_3", 192, column(7)),
            ],
            &[
                ("branch7x7dbl_1", width, POINT),
                ("branch7x7dbl_2", width, column(7)),
                ("branch7x7dbl_3", width, row(7)),
                ("branch7x7dbl_4", width, column(7)),
                ("branch7x7dbl_5", 192, row(7)),
            ],
        ];
        let mut branches = self.chains(module, input, &chains)?;
        branches.push(self.pooled(module, input, 192)?);
        self.join(module, input, branches, false)
    }

    fn module_d(&mut self, module: &str, input: NodeId) -> Result<NodeId, GraphError> {
        let chains: [Chain; 2] = [
            &[
                ("branch3x3_1", 192, POINT),
                ("branch3x3_2", 320, square(3, 2, 0)),
            ],
            &[
                ("branch7x7x3_1", 192, POINT),
                ("branch7x7x3_2", 192, row(7)),
                ("branch7x7x3_3", 192, column(7)),
                ("branch7x7x3_4", 192, square(3, 2, 0)),
            ],
        ];
        let branches = self.chains(module, input, &chains)?;
        self.join(module, input, branches, true)
    }

    /// A classifier of its own, whose loss helps to train the layers before it.
    fn classify_early(&mut self, module: &str, input: NodeId) -> Result<(), GraphError> {
        let name = |what: &str| format!("{module}.{what}");
        let mut last = self
            .net
            .average_pool(&name("pool"), input, window(5, 3, 0))?;
        last = self.conv(&name("conv0"), last, 128, POINT)?;
        self.net
            .set_weights(Start::As(Initialization::Normal(0.01)));
        last = self.conv(&name("conv1"), last, 768, square(5, 1, 0))?;
        self.net.set_weights(WEIGHTS);
        last = self.net.global_average(&name("avgpool"), last)?;
        last = self.net.flatten(&name("flatten"), last)?;
        let scores = Start::As(Initialization::Normal(0.001));
        last = self
            .net
            .linear(&name("fc"), last, 1000, scores, Start::FanIn)?;
        self.net.auxiliary(&name("loss"), last, AUXILIARY_WEIGHT)?;
        Ok(())
    }

    fn module_e(&mut self, module: &str, input: NodeId) -> Result<NodeId, GraphError> {
        let chains: [Chain; 3] = [
            &[("branch1x1", 320, POINT)],
            &[("branch3x3_1", 384, POINT)],
            &[
                ("branch3x3dbl_1", 448, POINT),
                ("branch3x3dbl_2", 384, square(3, 1, 1)),
            ],
        ];
        let mut branches = self.chains(module, input, &chains)?;
        for (branch, name) in [(1, "branch3x3_2"), (2, "branch3x3dbl_3")] {
            branches[branch] = self.fork(&format!("{module}.{name}"), branches[branch])?;
        }
        branches.push(self.pooled(module, input, 192)?);
        self.join(module, input, branches, false)
    }

    fn chains(
        &mut self,
        module: &str,
        input: NodeId,
        chains: &[Chain],
    ) -> Result<Vec<NodeId>, GraphError> {
        let ends = chains.iter().map(|chain| self.chain(module, input, chain));
        ends.collect()
    }

    /// A row and a column of three taps side by side.
    fn fork(&mut self, name: &str, input: NodeId) -> Result<NodeId, GraphError> {
        let a = self.conv(&format!("{name}a"), input, 384, row(3))?;
        let b = self.conv(&format!("{name}b"), input, 384, column(3))?;
        self.net.concat(&format!("{name}.concat"), &[a, b])
    }
}
