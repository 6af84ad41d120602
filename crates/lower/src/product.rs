//! Products of two tensors, forward and backward.

use crate::backward::BACKWARD;
use crate::emit::Emit;
use crate::network::{LayerId, is_gate};
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
    /// the sum over them.
    pub(crate) fn multiply_backward(&mut self, id: LayerId, layer: &str) {
        let dy = self.computed_gradient(id);
        if dy.is_empty() {
            return;
        }
        let gate = self.layer(id).inputs[1];
        let [first, second] = [0, 1].map(|index| self.read_value(id, index));
        self.pass_back(id, 0, layer, |a, y, accumulate| Kernel::Multiply {
            a,
            b: second,
            y,
            accumulate,
        });
        if !is_gate(self.network, id, gate) {
            return self.pass_back(id, 1, layer, |a, y, accumulate| Kernel::Multiply {
                a,
                b: first,
                y,
                accumulate,
            });
        }
        if self.storages.of(gate).has_gradient {
            let (y, accumulate) = self.contribute(gate, &self.owned(gate));
            let kernel = Kernel::MultiplySum {
                a: dy,
                b: first,
                y,
                accumulate,
            };
            self.builder.kernel(layer, BACKWARD, kernel);
        }
    }
}
