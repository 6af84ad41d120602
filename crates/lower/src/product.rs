//! Products of two tensors, forward and backward.

use crate::emit::Emit;
use crate::network::{LayerId, is_gate, is_map};
use partita_program::Kernel;

impl Emit<'_> {
    pub(crate) fn multiply(&mut self, id: LayerId, layer: &str) {
        let b = self.read_value(id, 1);
        self.elementwise(id, layer, |a, y| Kernel::Multiply {
            a,
            b,
            y,
            accumulate: false,
        });
    }

    /// The gradient of each factor is that of the product times the other; that of a factor for all positions is
    /// the sum over them, and that of a factor for all channels the sum over these.
    pub(crate) fn multiply_backward(&mut self, id: LayerId, layer: &str) {
        let dy = self.computed_gradient(id);
        if dy.is_empty() {
            return;
        }
        let other = self.layer(id).inputs[1];
        let [first, second] = [0, 1].map(|index| self.read_value(id, index));
        self.pass_back(id, 0, layer, |a, y, accumulate| Kernel::Multiply {
            a,
            b: second,
            y,
            accumulate,
        });
        let (b, is_gate) = (first, is_gate(self.network, id, other));
        let is_map = is_map(self.network, id, other);
        self.pass_back(id, 1, layer, |a, y, accumulate| match (is_gate, is_map) {
            (true, _) => Kernel::MultiplySum {
                a,
                b,
                y,
                accumulate,
            },
            (false, true) => Kernel::MultiplyChannelSum {
                a,
                b,
                y,
                accumulate,
            },
            (false, false) => Kernel::Multiply {
                a,
                b,
                y,
                accumulate,
            },
        });
    }
}
