//! Dropouts.

use super::Maker;
use partita_program::{Distribution, DropoutMask, Kernel};
use partita_space::{Axis, AxisList, Mesh, Rank};

impl Maker {
    pub(super) fn dropouts(&mut self, mesh: &Mesh, rank: Rank, accumulate: bool) -> Vec<Kernel> {
        let coord = mesh.coord(rank);
        let distribution = Distribution {
            shape: [4, 3, 5, 7, 3],
            axes: [Some(Axis::Data), None, Some(Axis::Height), None, None].map(AxisList::from),
            micro: None,
            submesh: None,
        };
        let extent = distribution.owned(mesh, &coord).shape();
        let [x, y] = [0; 2].map(|_| self.view(extent));
        let mask = self.draws.pick(&DropoutMask::ALL);
        let both = [(x, y), (x, x)].map(|(x, y)| Kernel::Dropout {
            x,
            y,
            rate: 0.4,
            mask,
            operation: 7,
            distribution,
            halo_low: [0; 5],
            accumulate,
        });
        both.into()
    }
}
