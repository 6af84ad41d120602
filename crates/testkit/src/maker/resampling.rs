//! Random geometries of resamplings.

use super::Maker;
use partita_program::Kernel;
use partita_space::{ResampleRule, Resampling};

impl Maker {
    /// A resampling with a map of its own along each dim, and its transpose.
    pub(super) fn resamplings(&mut self, extent: [usize; 5], accumulate: bool) -> Vec<Kernel> {
        let [n, d, h, w, c] = extent;
        let mut outputs = [0; 3];
        let mut maps = [Resampling::IDENTITY; 3];
        for (dim, inputs) in [d, h, w].into_iter().enumerate() {
            (maps[dim], outputs[dim]) = self.resampling(inputs);
        }
        let x = self.view(extent);
        let dx = self.view(extent);
        let y = self.view([n, outputs[0], outputs[1], outputs[2], c]);
        vec![
            Kernel::ResampleForward { x, y, maps },
            Kernel::ResampleBackward {
                dy: y,
                dx,
                maps,
                accumulate,
            },
        ]
    }

    /// A map of these inputs, and how many outputs it has.
    fn resampling(&mut self, inputs: usize) -> (Resampling, usize) {
        let draws = &mut self.draws;
        let (factor, low, high) = (
            draws.between(1, 3),
            draws.between(0, 2),
            draws.between(0, 2),
        );
        match draws.pick(&ResampleRule::ALL) {
            ResampleRule::Nearest if draws.one_in(2) => {
                (Resampling::nearest(factor), inputs * factor)
            }
            ResampleRule::Nearest if draws.one_in(2) => {
                let (start, step) = (draws.between(0, inputs - 1), factor);
                let most = 1 + (inputs - 1 - start) / step;
                (Resampling::strided(start, step), draws.between(1, most))
            }
            ResampleRule::Nearest if draws.one_in(2) => {
                let outputs = draws.between(1, 2 * inputs);
                (Resampling::nearest_of(inputs, outputs), outputs)
            }
            ResampleRule::Linear if draws.one_in(2) => {
                let outputs = draws.between(1, 2 * inputs);
                let map = Resampling::linear_of(inputs, outputs, draws.one_in(2));
                (map, outputs)
            }
            ResampleRule::Linear => {
                let map = Resampling::linear(inputs, factor, draws.one_in(2));
                (map, inputs * factor)
            }
            ResampleRule::Average => {
                let outputs = draws.between(1, inputs + 1);
                (Resampling::average(inputs, outputs), outputs)
            }
            ResampleRule::Reflect => {
                let [low, high] = [low, high].map(|side| side.min(inputs - 1));
                let map = Resampling::pad(ResampleRule::Reflect, low);
                (map, low + inputs + high)
            }
            rule @ (ResampleRule::Nearest | ResampleRule::Zero) => {
                (Resampling::pad(rule, low), low + inputs + high)
            }
        }
    }
}
