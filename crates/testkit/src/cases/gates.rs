//! Group norms and gates in random models.

use super::Sketch;
use crate::Draws;
use partita_graph::{Activation, Convolution, NodeId, Pool, PoolKind};
use partita_space::Window;

impl Sketch {
    /// A group norm, or an instance norm.
    pub(super) fn group_norm(&mut self, draws: &mut Draws) {
        let name = self.name("groups");
        let channels = self.builder.shape(self.head).channels;
        let groups = draws.pick(&[None, None, Some(1), Some(2)]);
        let groups = groups.filter(|&groups| channels.is_multiple_of(groups));
        let norm = self.builder.group_norm(&name, self.head, groups, 0.1);
        self.head = norm.expect("a group norm fits anywhere");
    }

    /// A product of a tensor with a function of it: at each position, or of the mean over them as in
    /// squeeze-and-excitation.
    pub(super) fn gate(&mut self, draws: &mut Draws) {
        let (value, shape) = (self.head, self.builder.shape(self.head));
        let squeezed = if draws.one_in(2) {
            self.mean(value)
        } else {
            value
        };
        let name = self.name("score");
        let convolution = Convolution {
            filters: shape.channels,
            window: [Window::ONE; 3],
            periodic: false,
            groups: 1,
            bias: true,
        };
        let score = self.builder.convolution(&name, squeezed, convolution);
        let score = score.expect("a convolution of one tap fits");
        let name = self.name("open");
        let open = self.builder.activation(&name, Activation::Sigmoid, score);
        let open = open.expect("an activation fits anywhere");
        let name = self.name("gated");
        let gated = self.builder.multiply(&name, value, open);
        self.head = gated.expect("shapes fit");
    }

    /// The mean over all positions.
    fn mean(&mut self, of: NodeId) -> NodeId {
        let name = self.name("mean");
        let window = self.builder.shape(of).extent.map(|extent| Window {
            kernel: extent,
            stride: extent,
            ..Window::ONE
        });
        let kind = PoolKind::Average {
            count_padding: false,
        };
        let pool = self.builder.pool(&name, of, Pool { kind, window });
        pool.expect("the window is the tensor")
    }
}
