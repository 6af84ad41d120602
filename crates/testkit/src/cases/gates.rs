//! Norms and gates in random models.

use super::Sketch;
use crate::Draws;
use partita_graph::{
    Activation, Convolution, NodeId, Op, ParameterRole, ParameterSource, Pool, PoolKind,
};
use partita_space::Window;

impl Sketch {
    /// A group norm, or an instance norm.
    pub(super) fn group_norm(&mut self, draws: &mut Draws) {
        let name = self.name("groups");
        let channels = self.builder.shape(self.head).channels;
        let groups = draws.pick(&[None, None, Some(1), Some(2)]);
        let groups = groups.filter(|&groups| channels.is_multiple_of(groups));
        let epsilon = 0.1;
        self.norm(&name, Op::GroupNorm { groups, epsilon });
    }

    /// A norm; one in three has neither scale nor offset, a layer norm of two of these no offset.
    pub(super) fn norm(&mut self, name: &str, op: Op) {
        let constant = |role| (role, ParameterSource::Constant);
        let (scale, offset) = (
            constant(ParameterRole::Gamma),
            constant(ParameterRole::Beta),
        );
        let sources = match (&op, self.layers % 3) {
            (Op::LayerNorm { .. }, 1) => vec![offset],
            (_, 0) => vec![scale, offset],
            _ => Vec::new(),
        };
        let norm = self.builder.node(name, op, &[self.head], &sources);
        self.head = norm.expect("a norm fits anywhere");
    }

    /// A product of a tensor with a function of it: at each position, of the mean over them as in
    /// squeeze-and-excitation, or one factor for all channels as in an attention gate.
    pub(super) fn gate(&mut self, draws: &mut Draws) {
        let (value, channels) = (self.head, self.builder.shape(self.head).channels);
        let open = match draws.between(0, 3) {
            0 => self.open(value, channels),
            1 => {
                let mean = self.mean(value);
                self.open(mean, channels)
            }
            2 => self.open(value, 1),
            // Layers with one filter are not split by filters, others are.
            _ => {
                let all = self.open(value, channels);
                let name = self.name("map");
                let map = self.builder.slice(&name, all, channels - 1, 1);
                map.expect("there is a last channel")
            }
        };
        let name = self.name("gated");
        let gated = self.builder.multiply(&name, value, open);
        self.head = gated.expect("shapes fit");
    }

    /// The sigmoid of a function of each position.
    fn open(&mut self, of: NodeId, filters: usize) -> NodeId {
        let name = self.name("score");
        let convolution = Convolution {
            filters,
            window: [Window::ONE; 3],
            periodic: false,
            groups: 1,
            bias: true,
        };
        let score = self.builder.convolution(&name, of, convolution);
        let score = score.expect("a convolution of one tap fits");
        let name = self.name("open");
        let open = self.builder.activation(&name, Activation::Sigmoid, score);
        open.expect("an activation fits anywhere")
    }

    /// The mean over all positions.
    fn mean(&mut self, of: NodeId) -> NodeId {
        let name = self.name("mean");
        let kind = PoolKind::AverageInside;
        let pool = Pool::global(kind, self.builder.shape(of).extent);
        let pool = self.builder.pool(&name, of, pool);
        pool.expect("the window is the tensor")
    }
}
