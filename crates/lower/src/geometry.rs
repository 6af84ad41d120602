//! Where the parts of one storage lie along each dim, for every coordinate of the axis that splits it.

use partita_program::Place;
use partita_space::{Coord, Interval, Mesh, Region, Split};

/// A run of indices that a coordinate holds, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    /// Coordinate of the owner.
    pub source: usize,
    /// In the holder's frame; outside the extent where padding wraps.
    pub at: Interval,
    /// The same elements at their owner.
    pub from: Interval,
}

/// One coordinate along one dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    /// What it owns.
    pub owned: Interval,
    /// What it holds, its frame included; contains `owned.start` even where nothing is owned.
    pub held: Interval,
    /// Everything held that exists, in ascending order; its own part among it.
    pub pieces: Vec<Piece>,
}

impl Line {
    fn is_own(&self, coordinate: usize, piece: &Piece) -> bool {
        piece.source == coordinate && piece.at == self.owned
    }
}

/// The lines of all coordinates, per dim, of a tensor that is split by `place`.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub place: Place,
    lines: [Vec<Line>; 5],
}

/// A movement between the frame of one rank and the owned region of another.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// Coordinates of the other rank.
    pub peer: Coord,
    /// In the holder's frame.
    pub at: Region,
    /// At the owner.
    pub from: Region,
}

impl Geometry {
    /// From what each coordinate needs beyond what it owns; `needs(dim, coordinate)` may be empty.
    pub fn new(
        place: Place,
        mesh: &Mesh,
        periodic: bool,
        needs: impl Fn(usize, usize) -> Interval,
    ) -> Self {
        let lines = std::array::from_fn(|dim| {
            let parts = place.axes[dim].map_or(1, |axis| mesh.extent(axis));
            let split = Split {
                extent: place.shape[dim],
                parts,
            };
            (0..parts)
                .map(|i| line(split, i, needs(dim, i), periodic))
                .collect()
        });
        Self { place, lines }
    }

    fn index(&self, dim: usize, coord: &Coord) -> usize {
        self.place.axes[dim].map_or(0, |axis| coord[axis.index()])
    }

    /// The lines of one rank.
    pub fn lines_at(&self, coord: &Coord) -> [&Line; 5] {
        std::array::from_fn(|dim| &self.lines[dim][self.index(dim, coord)])
    }

    /// All lines of one dim, by coordinate.
    pub fn lines(&self, dim: usize) -> &[Line] {
        &self.lines[dim]
    }

    /// What a rank holds.
    pub fn held(&self, coord: &Coord) -> Region {
        Region(self.lines_at(coord).map(|line| line.held))
    }

    /// Everything that the rank at `coord` holds of others (or of itself, where padding wraps).
    pub fn incoming(&self, coord: &Coord) -> Vec<Transfer> {
        let lines = self.lines_at(coord);
        let mine: [usize; 5] = std::array::from_fn(|dim| self.index(dim, coord));
        let candidates: [Vec<(usize, Piece)>; 5] = std::array::from_fn(|dim| {
            lines[dim]
                .pieces
                .iter()
                .map(|&piece| (piece.source, piece))
                .collect()
        });
        let mut transfers = Vec::new();
        self.product(coord, &candidates, |peer, pieces| {
            let own = (0..5).all(|dim| lines[dim].is_own(mine[dim], &pieces[dim]));
            if !own {
                transfers.push(transfer(peer, pieces));
            }
        });
        transfers
    }

    /// Everything that others hold of the rank at `coord`, peer by peer, in each peer's own order.
    pub fn outgoing(&self, coord: &Coord) -> Vec<Transfer> {
        let mine: [usize; 5] = std::array::from_fn(|dim| self.index(dim, coord));
        // Per dim, the coordinates that hold something of mine.
        let peers: [Vec<usize>; 5] = std::array::from_fn(|dim| {
            let holds = |line: &Line| line.pieces.iter().any(|piece| piece.source == mine[dim]);
            (0..self.lines[dim].len())
                .filter(|&i| holds(&self.lines[dim][i]))
                .collect()
        });
        let mut transfers = Vec::new();
        for_product(&peers, |peer| {
            if *peer == mine {
                return;
            }
            let candidates: [Vec<(usize, Piece)>; 5] = std::array::from_fn(|dim| {
                let pieces = self.lines[dim][peer[dim]].pieces.iter();
                let of_mine = pieces.filter(|piece| piece.source == mine[dim]);
                of_mine.map(|&piece| (peer[dim], piece)).collect()
            });
            self.product(coord, &candidates, |peer, pieces| {
                transfers.push(transfer(peer, pieces))
            });
        });
        transfers
    }

    fn product(
        &self,
        coord: &Coord,
        candidates: &[Vec<(usize, Piece)>; 5],
        mut visit: impl FnMut(Coord, [Piece; 5]),
    ) {
        for_product(candidates, |choice| {
            let mut peer = *coord;
            for dim in 0..5 {
                if let Some(axis) = self.place.axes[dim] {
                    peer[axis.index()] = choice[dim].0;
                }
            }
            visit(peer, choice.map(|(_, piece)| piece));
        });
    }
}

fn transfer(peer: Coord, pieces: [Piece; 5]) -> Transfer {
    Transfer {
        peer,
        at: Region(pieces.map(|piece| piece.at)),
        from: Region(pieces.map(|piece| piece.from)),
    }
}

/// Calls `visit` for every choice of one item per list, the last list fastest.
fn for_product<T: Copy>(lists: &[Vec<T>; 5], mut visit: impl FnMut(&[T; 5])) {
    if lists.iter().any(Vec::is_empty) {
        return;
    }
    let mut index = [0; 5];
    loop {
        visit(&std::array::from_fn(|dim| lists[dim][index[dim]]));
        let mut dim = 5;
        loop {
            if dim == 0 {
                return;
            }
            dim -= 1;
            index[dim] += 1;
            if index[dim] < lists[dim].len() {
                break;
            }
            index[dim] = 0;
        }
    }
}

fn line(split: Split, i: usize, need: Interval, periodic: bool) -> Line {
    let owned = split.part(i);
    let held = if need.is_empty() {
        owned
    } else {
        Interval::new(owned.start.min(need.start), owned.end.max(need.end))
    };
    let extent = split.extent as i64;
    let mut pieces = Vec::new();
    if extent > 0 {
        let images = if periodic {
            held.start.div_euclid(extent)..(held.end - 1).div_euclid(extent) + 1
        } else {
            0..1
        };
        for image in images {
            let inside = held
                .shift(-image * extent)
                .intersect(&Interval::all(split.extent));
            for source in split.owners(&inside) {
                let from = inside.intersect(&split.part(source));
                pieces.push(Piece {
                    source,
                    at: from.shift(image * extent),
                    from,
                });
            }
        }
    }
    Line {
        owned,
        held,
        pieces,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::Axis;

    fn ring(periodic: bool) -> (Geometry, Mesh) {
        let mesh = Mesh::new([1, 1, 1, 3, 1, 1, 1]);
        let mut place = Place::replicated([1, 1, 1, 7, 2]);
        place.axes[3] = Some(Axis::Width);
        let split = Split {
            extent: 7,
            parts: 3,
        };
        let needs = move |dim: usize, i: usize| match dim {
            3 => Interval::new(split.part(i).start - 3, split.part(i).end + 3),
            _ => Interval::default(),
        };
        (Geometry::new(place, &mesh, periodic, needs), mesh)
    }

    #[test]
    fn what_one_sends_another_receives_in_the_same_order() {
        for periodic in [false, true] {
            let (geometry, mesh) = ring(periodic);
            let mut received = 0;
            for rank in 0..3 {
                let coord = mesh.coord(rank);
                for other in (0..3).filter(|&other| other != rank) {
                    let peer = mesh.coord(other);
                    let sent: Vec<_> = geometry
                        .outgoing(&coord)
                        .into_iter()
                        .filter(|transfer| transfer.peer == peer)
                        .map(|transfer| (transfer.at, transfer.from))
                        .collect();
                    let got: Vec<_> = geometry
                        .incoming(&peer)
                        .into_iter()
                        .filter(|transfer| transfer.peer == coord)
                        .map(|transfer| (transfer.at, transfer.from))
                        .collect();
                    assert_eq!(sent, got);
                    received += got.len();
                }
            }
            assert!(received > 0);
        }
    }

    #[test]
    fn a_shard_narrower_than_the_halo_hears_from_ranks_further_away() {
        let (geometry, mesh) = ring(false);
        let first = geometry.incoming(&mesh.coord(0));
        let peers: Vec<_> = first
            .iter()
            .map(|transfer| mesh.rank(transfer.peer))
            .collect();
        assert_eq!(peers, [1, 2]);
    }
}
