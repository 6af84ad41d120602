//! Owned and held intervals of a tensor along each dim, for every coordinate, and the transfers between them.

use partita_program::Distribution;
use partita_space::{AxisList, Coord, Interval, Mesh, Region, Submesh};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// An interval that a coordinate holds, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    /// Coordinate of the owner.
    pub source: usize,
    /// At the holder; outside of the extent for periodic padding.
    pub at: Interval,
    /// The same elements at their owner.
    pub from: Interval,
}

/// Intervals of one coordinate along one dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    /// The owned interval.
    pub owned: Interval,
    /// The held interval, with halo and padding; contains `owned.start` even where nothing is owned.
    pub held: Interval,
    /// All held elements inside the tensor, ascending, the owned interval included.
    pub pieces: Vec<Piece>,
}

impl Line {
    fn is_own(&self, coordinate: usize, piece: &Piece) -> bool {
        piece.source == coordinate && piece.at == self.owned
    }
}

/// The lines of all coordinates along one dim, with an index of holders.
#[derive(Debug)]
pub(crate) struct Row {
    lines: Vec<Line>,
    /// For each coordinate the start of its entries in `held_by`.
    first: Vec<u32>,
    /// Holder and index of the piece in its line, ascending.
    held_by: Vec<(u32, u32)>,
}

impl Row {
    fn new(lines: Vec<Line>) -> Self {
        let mut first = vec![0; lines.len() + 1];
        let pieces = || lines.iter().flat_map(|line| &line.pieces);
        pieces().for_each(|piece| first[piece.source + 1] += 1);
        for source in 0..lines.len() {
            first[source + 1] += first[source];
        }
        let mut next = first.clone();
        let mut held_by = vec![(0, 0); pieces().count()];
        for (holder, line) in lines.iter().enumerate() {
            for (number, piece) in line.pieces.iter().enumerate() {
                held_by[next[piece.source] as usize] = (holder as u32, number as u32);
                next[piece.source] += 1;
            }
        }
        Self {
            lines,
            first,
            held_by,
        }
    }

    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Every piece that a coordinate owns, with its holder, ascending by holder.
    pub fn pieces_of(&self, source: usize) -> impl Iterator<Item = (usize, &Piece)> {
        let range = self.first[source] as usize..self.first[source + 1] as usize;
        self.held_by[range].iter().map(|&(holder, number)| {
            let holder = holder as usize;
            (holder, &self.lines[holder].pieces[number as usize])
        })
    }
}

/// Key of a row; many tensors share rows.
#[derive(PartialEq, Eq, Hash)]
struct RowKey {
    submesh: Option<Submesh>,
    axes: AxisList,
    shared: Interval,
    extent: usize,
    periodic: bool,
    /// Held intervals; empty where all hold just what they own.
    held: Vec<Interval>,
}

/// Key of parts: submesh, axes and the range that they split.
type PartsKey = (Option<Submesh>, AxisList, Interval);

/// The owned interval of each part of a dim.
pub(crate) type Parts = Arc<Vec<Interval>>;

/// Interned rows and parts of the tensors of a program.
#[derive(Default)]
pub(crate) struct Rows {
    rows: RefCell<HashMap<RowKey, Arc<Row>>>,
    parts: RefCell<HashMap<PartsKey, Parts>>,
}

/// Rows of a tensor by dim.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub distribution: Distribution,
    mesh: Mesh,
    rows: [Arc<Row>; 5],
}

/// A transfer between the halo of one rank and the owned region of another.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// Coordinates of the other rank.
    pub peer: Coord,
    /// Region at the holder.
    pub at: Region,
    /// The same elements at the owner.
    pub from: Region,
}

impl Geometry {
    /// `needs(dim, coordinate)` is the interval that a coordinate of the tensor's mesh reads along depth, height or width;
    /// it may be empty. Nothing reads other samples or channels than its own.
    pub fn new(
        distribution: Distribution,
        (world, rows): (&Mesh, &Rows),
        periodic: bool,
        needs: impl Fn(usize, usize) -> Interval,
    ) -> Self {
        let mesh = &distribution.mesh(world);
        let rows = std::array::from_fn(|dim| {
            let split = Shares {
                mesh,
                distribution: &distribution,
                dim,
                parts: rows.parts(&distribution, mesh, dim),
            };
            if (1..4).contains(&dim) {
                rows.row(&split, periodic, |i| needs(dim, i))
            } else {
                rows.plain_row(&split)
            }
        });
        Self {
            distribution,
            mesh: *mesh,
            rows,
        }
    }

    /// The same of other samples, as many, which `distribution` has.
    pub fn with_samples_of(
        &self,
        distribution: Distribution,
        (world, rows): (&Mesh, &Rows),
    ) -> Self {
        let mesh = &distribution.mesh(world);
        let split = Shares {
            mesh,
            distribution: &distribution,
            dim: 0,
            parts: rows.parts(&distribution, mesh, 0),
        };
        let mut all = self.rows.clone();
        all[0] = rows.plain_row(&split);
        Self {
            distribution,
            mesh: *mesh,
            rows: all,
        }
    }

    fn index(&self, dim: usize, coord: &Coord) -> usize {
        self.mesh.part_index(self.distribution.axes[dim], coord)
    }

    /// The lines of one rank.
    pub fn lines_at(&self, coord: &Coord) -> [&Line; 5] {
        std::array::from_fn(|dim| &self.rows[dim].lines[self.index(dim, coord)])
    }

    /// The row of a dim; geometries with equal rows share them.
    pub fn row(&self, dim: usize) -> &Arc<Row> {
        &self.rows[dim]
    }

    /// The region that a rank holds.
    pub fn held(&self, coord: &Coord) -> Region {
        Region(self.lines_at(coord).map(|line| line.held))
    }

    /// All transfers into the halo of the rank at `coord`, also from itself for periodic padding.
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

    /// All transfers from the rank at `coord` into the halos of others, by peer, in each peer's order.
    pub fn outgoing(&self, coord: &Coord) -> Vec<Transfer> {
        let mine: [usize; 5] = std::array::from_fn(|dim| self.index(dim, coord));
        // By dim, the coordinates that hold a part of what this rank owns.
        let peers: [Vec<usize>; 5] = std::array::from_fn(|dim| {
            let holders = self.rows[dim].pieces_of(mine[dim]);
            let mut peers: Vec<usize> = holders.map(|(holder, _)| holder).collect();
            peers.dedup();
            peers
        });
        let mut transfers = Vec::new();
        for_product(&peers, |peer| {
            if *peer == mine {
                return;
            }
            let candidates: [Vec<(usize, Piece)>; 5] = std::array::from_fn(|dim| {
                let pieces = self.rows[dim].lines[peer[dim]].pieces.iter();
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
                let axes = self.distribution.axes[dim];
                self.mesh.go_to_part(axes, choice[dim].0, &mut peer);
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

/// The split of a dim.
struct Shares<'m> {
    mesh: &'m Mesh,
    distribution: &'m Distribution,
    dim: usize,
    parts: Parts,
}

impl Rows {
    /// The owned interval of each part of a dim, on the mesh of the tensor.
    pub fn parts(&self, distribution: &Distribution, mesh: &Mesh, dim: usize) -> Parts {
        let axes = distribution.axes[dim];
        let mut known = self.parts.borrow_mut();
        let key = (distribution.submesh, axes, distribution.split_range(dim));
        let parts = known.entry(key).or_insert_with(|| {
            let parts = 0..mesh.parts(axes);
            Arc::new(parts.map(|i| distribution.part(mesh, dim, i)).collect())
        });
        parts.clone()
    }

    fn row(
        &self,
        split: &Shares<'_>,
        periodic: bool,
        need: impl Fn(usize) -> Interval,
    ) -> Arc<Row> {
        let mut is_plain = true;
        let all_held = split.parts.iter().enumerate().map(|(i, &owned)| {
            let need = need(i);
            let held = if need.is_empty() {
                owned
            } else {
                Interval::new(owned.start.min(need.start), owned.end.max(need.end))
            };
            is_plain &= held == owned;
            held
        });
        let held: Vec<Interval> = all_held.collect();
        if is_plain {
            self.plain_row(split)
        } else {
            self.known_row(split, periodic, held)
        }
    }

    /// The row of a dim of which all hold just what they own.
    fn plain_row(&self, split: &Shares<'_>) -> Arc<Row> {
        self.known_row(split, false, Vec::new())
    }

    fn known_row(&self, split: &Shares<'_>, periodic: bool, held: Vec<Interval>) -> Arc<Row> {
        let (distribution, dim) = (split.distribution, split.dim);
        let key = RowKey {
            submesh: distribution.submesh,
            axes: distribution.axes[dim],
            shared: distribution.split_range(dim),
            extent: distribution.shape[dim],
            periodic,
            held,
        };
        let mut known = self.rows.borrow_mut();
        if let Some(row) = known.get(&key) {
            return row.clone();
        }
        let lines = split.parts.iter().enumerate().map(|(i, &owned)| {
            let held = key.held.get(i).copied().unwrap_or(owned);
            line(split, owned, held, key.periodic)
        });
        let row = Arc::new(Row::new(lines.collect()));
        known.insert(key, row.clone());
        row
    }
}

fn line(split: &Shares<'_>, owned: Interval, held: Interval, periodic: bool) -> Line {
    let all = split.distribution.shape[split.dim];
    let extent = all as i64;
    let mut pieces = Vec::new();
    if extent > 0 {
        let images = if periodic {
            held.start.div_euclid(extent)..(held.end - 1).div_euclid(extent) + 1
        } else {
            0..1
        };
        for image in images {
            let inside = held.shift(-image * extent).intersect(&Interval::all(all));
            for source in split
                .distribution
                .part_range(split.mesh, split.dim, &inside)
            {
                let from = inside.intersect(&split.parts[source]);
                if from.is_empty() {
                    continue;
                }
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
    use partita_space::{Axis, AxisList, Split};

    fn ring(periodic: bool) -> (Geometry, Mesh) {
        let mesh = Mesh::new([1, 1, 1, 3, 1, 1, 1]);
        let mut distribution = Distribution::replicated([1, 1, 1, 7, 2]);
        distribution.axes[3] = AxisList::of([Axis::Width]);
        let split = Split {
            extent: 7,
            parts: 3,
        };
        let needs = move |dim: usize, i: usize| match dim {
            3 => Interval::new(split.part(i).start - 3, split.part(i).end + 3),
            _ => Interval::default(),
        };
        (
            Geometry::new(distribution, (&mesh, &Rows::default()), periodic, needs),
            mesh,
        )
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

    /// A pseudo-random number of an element.
    fn draw(seed: u64, rank: usize, index: [i64; 5]) -> i64 {
        let mut z = seed
            .wrapping_add(rank as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for at in index {
            z = (z ^ at as u64).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z ^= z >> 29;
        }
        (z % 17) as i64 - 8
    }

    fn for_each(region: &Region, mut visit: impl FnMut([i64; 5])) {
        let lists = region
            .0
            .map(|interval| (interval.start..interval.end).collect::<Vec<_>>());
        for_product(&lists, |index| visit(*index));
    }

    /// Sum of `x(from) * y(at)` over the elements of a transfer.
    fn moved(
        from: &Region,
        at: &Region,
        x: impl Fn([i64; 5]) -> i64,
        y: impl Fn([i64; 5]) -> i64,
    ) -> i64 {
        let mut sum = 0;
        for_each(from, |index| {
            let there = std::array::from_fn(|d| index[d] - from.0[d].start + at.0[d].start);
            sum += x(index) * y(there);
        });
        sum
    }

    /// <A x, y> over what ranks hold, by what comes in, against <x, A' y> over what they own, by what
    /// goes out and comes back: the halo exchange and its reverse are adjoint.
    fn check_adjoint(geometry: &Geometry, mesh: &Mesh, seed: u64) -> bool {
        let (mut held, mut owned) = (0, 0);
        for rank in 0..mesh.ranks() {
            let coord = mesh.coord(rank);
            let x = |rank: usize| move |index| draw(seed, rank, index);
            let y = |rank: usize| move |index| draw(seed + 1000, rank, index);
            let own = Region(geometry.lines_at(&coord).map(|line| line.owned));
            let kept = moved(&own, &own, x(rank), y(rank));
            held += kept;
            owned += kept;
            for transfer in geometry.incoming(&coord) {
                let peer = mesh.rank(transfer.peer);
                held += moved(&transfer.from, &transfer.at, x(peer), y(rank));
                if peer == rank {
                    owned += moved(&transfer.from, &transfer.at, x(rank), y(rank));
                }
            }
            for transfer in geometry.outgoing(&coord) {
                let peer = mesh.rank(transfer.peer);
                owned += moved(&transfer.from, &transfer.at, x(rank), y(peer));
            }
        }
        assert_eq!(held, owned, "{:?} seed {seed}", geometry.distribution);
        held != 0
    }

    #[test]
    fn a_halo_exchange_and_its_reverse_are_adjoint() {
        let mut telling = 0;
        for seed in 0..200u64 {
            let draw = |salt: u64, low: usize, high: usize| {
                let z = (seed * 31 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
                low + (z % (high - low + 1) as u64) as usize
            };
            let parts = [draw(1, 1, 2), draw(2, 1, 3), draw(3, 1, 4)];
            let mesh = Mesh::new([1, parts[0], parts[1], parts[2], 1, 1, 1]);
            let shape = [1, draw(4, 1, 5), draw(5, 2, 6), draw(6, 3, 9), 2];
            let mut distribution = Distribution::replicated(shape);
            for (dim, axis) in [(1, Axis::Depth), (2, Axis::Height), (3, Axis::Width)] {
                distribution.axes[dim] = (mesh.extent(axis) > 1).then_some(axis).into();
            }
            let periodic = seed % 3 == 0;
            let reach = |dim: usize| draw(10 + dim as u64, 0, if periodic { 1 } else { 4 }) as i64;
            let needs = |dim: usize, i: usize| {
                if dim == 0 || dim == 4 {
                    return Interval::default();
                }
                let parts = mesh.parts(distribution.axes[dim]);
                let own = Split {
                    extent: shape[dim],
                    parts,
                }
                .part(i);
                Interval::new(own.start - reach(dim), own.end + reach(dim + 3))
            };
            telling += u32::from(check_adjoint(
                &Geometry::new(distribution, (&mesh, &Rows::default()), periodic, needs),
                &mesh,
                seed,
            ));
        }
        assert!(telling > 150, "{telling} of 200 cases tell anything");
    }
}
