//! Upsampling, padding and means over unequal windows.

use super::Sketch;
use crate::Draws;
use partita_graph::{Interpolation, PadMode, Resample};

/// Bounds the size of later layers.
const MOST_ELEMENTS: usize = 1500;

impl Sketch {
    /// A resampling that is drawn until it is possible and small.
    pub(super) fn resample(&mut self, draws: &mut Draws) {
        let input = self.builder.shape(self.head);
        let name = self.name("resample");
        if draws.one_in(8) && self.shuffle(draws, &name) {
            return;
        }
        for _ in 0..20 {
            let resample = self.draw_resample(draws, input.extent);
            let mut tried = self.builder.clone();
            let Ok(head) = tried.resample(&name, self.head, resample) else {
                continue;
            };
            let volume = tried.shape(head).volume();
            if volume <= MOST_ELEMENTS.max(input.volume()) {
                (self.builder, self.head) = (tried, head);
                return;
            }
        }
    }

    /// Channels as blocks of positions, where they are some.
    fn shuffle(&mut self, draws: &mut Draws, name: &str) -> bool {
        let missing = 3 - self.builder.spatial_rank();
        let factors: [usize; 3] = std::array::from_fn(|dim| match dim {
            dim if dim < missing => 1,
            _ => draws.between(1, 3),
        });
        let built = self.builder.pixel_shuffle(name, self.head, factors);
        if let Ok(head) = built {
            self.head = head;
        }
        built.is_ok()
    }

    fn draw_resample(&self, draws: &mut Draws, extent: [usize; 3]) -> Resample {
        let missing = 3 - self.builder.spatial_rank();
        let mut each = |low: usize, most: [usize; 3], without: usize| -> [usize; 3] {
            std::array::from_fn(|dim| {
                if dim < missing {
                    without
                } else {
                    draws.between(low, most[dim].max(low))
                }
            })
        };
        let low = each(0, [3; 3], 0);
        let high = each(0, [3; 3], 0);
        let factors = each(1, [3; 3], 1);
        let outputs = each(1, extent.map(|extent| extent + 1), 1);
        let start = each(0, extent.map(|extent| extent - 1), 0);
        let step = each(1, [3; 3], 1);
        match draws.between(0, 9) {
            0 => Resample::Upsample {
                factors,
                interpolation: Interpolation::Nearest,
            },
            1 | 2 => Resample::Upsample {
                factors,
                interpolation: Interpolation::Linear {
                    align_corners: draws.one_in(2),
                },
            },
            3 => Resample::AdaptiveAverage { outputs },
            4 | 5 => Resample::Resize {
                outputs,
                interpolation: draws.pick(&[
                    Interpolation::Nearest,
                    Interpolation::Linear {
                        align_corners: false,
                    },
                    Interpolation::Linear {
                        align_corners: true,
                    },
                ]),
            },
            6 | 7 => Resample::Crop {
                starts: start,
                steps: step,
                outputs: std::array::from_fn(|dim| {
                    let most = 1 + (extent[dim] - 1 - start[dim]) / step[dim];
                    outputs[dim].min(most)
                }),
            },
            _ => Resample::Pad {
                sides: std::array::from_fn(|dim| (low[dim], high[dim])),
                mode: draws.pick(&PadMode::ALL),
            },
        }
    }
}
