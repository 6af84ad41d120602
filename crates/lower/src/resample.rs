//! Upsampling, padding and means over unequal windows.
//!
//! A rank reads all inputs of the outputs that it computes: what it owns and a halo. Backward it computes what the
//! gradients of its own outputs contribute, and the halo is sent to its owners and added.
//!
//! Example: linear interpolation to two outputs per input, depth split in two: for its last output a rank reads the
//! first input of the other.
//!
//! Along each dim `space::Resampling` maps outputs to rational positions among the inputs. Counted from the starts
//! of what a rank computes and reads it is the same map, so inner ranks have equal programs, and the border of what
//! a rank reads acts like that of the tensor. Replicate and reflect padding of a convolution is such a layer before
//! it.

use crate::backward::BACKWARD;
use crate::emit::Emit;
use crate::network::LayerId;
use partita_graph::Resample;
use partita_program::Kernel;
use partita_space::{Region, Resampling};

impl Emit<'_> {
    pub(crate) fn resample(&mut self, id: LayerId, layer: &str, resample: &Resample) {
        let y = self.computed_value(id);
        if y.is_empty() {
            return;
        }
        let (inputs, maps) = self.resampled_inputs(id, resample);
        let x = self.value(self.layer(id).inputs[0]).view(&inputs);
        let kernel = Kernel::ResampleForward { x, y, maps };
        self.builder.kernel(layer, self.pass, kernel);
    }

    pub(crate) fn resample_backward(&mut self, id: LayerId, layer: &str, resample: &Resample) {
        let dy = self.computed_gradient(id);
        let input = self.layer(id).inputs[0];
        if dy.is_empty() || !self.storages.of(input).has_gradient {
            return;
        }
        let (inputs, maps) = self.resampled_inputs(id, resample);
        let (dx, accumulate) = self.contribute(input, &inputs);
        let kernel = Kernel::ResampleBackward {
            dy,
            dx,
            maps,
            accumulate,
        };
        self.builder.kernel(layer, BACKWARD, kernel);
    }

    /// The inputs that the computed outputs read, and the maps between the starts of both.
    fn resampled_inputs(&self, id: LayerId, resample: &Resample) -> (Region, [Resampling; 3]) {
        let outputs = self.computed(id);
        let [_, d, h, w, _] = self.distribution(self.layer(id).inputs[0]).shape;
        let extent = [d, h, w];
        let (mut inputs, mut maps) = (outputs, resample.maps(extent));
        for (dim, map) in maps.iter_mut().enumerate() {
            let at = outputs.0[dim + 1];
            let read = map.inputs_of(&at, extent[dim]);
            *map = map.local(at.start, read.start);
            inputs.0[dim + 1] = read;
        }
        (inputs, maps)
    }
}
