//! Predictions of volumes, joined of those of their tiles.

use std::ops::Range;

use partita_formats::DataError;
use partita_space::Bytes;

use super::{PIECE_BYTES, PredictionScratch, PredictionShape};
use crate::augment::{Tile, TileWeights};

/// The tiles of volumes, in groups of whole volumes. The outputs of a group are written to a scratch file of tiles, and
/// joined before those of the next group replace them.
#[derive(Clone, Debug)]
pub struct TilePlan {
    tiles: Vec<Tile>,
    weights: TileWeights,
    groups: Vec<Range<usize>>,
    volumes: PredictionShape,
    /// D, H, W of a tile.
    extent: [usize; 3],
}

impl TilePlan {
    /// The plan of these tiles, which are in order of their volumes and have these extents. The outputs of a group take
    /// at most `group` bytes, or those of one volume.
    pub fn new(
        tiles: Vec<Tile>,
        extent: [usize; 3],
        weights: TileWeights,
        volumes: PredictionShape,
        group: Bytes,
    ) -> Self {
        let of_tile = volumes.channels * extent.iter().product::<usize>() * size_of::<f32>();
        let most = (group.0 as usize) / of_tile.max(1);
        let mut groups: Vec<Range<usize>> = Vec::new();
        let mut first = 0;
        for volume in tiles.chunk_by(|one, next| one.volume == next.volume) {
            let end = first + volume.len();
            match groups.last_mut() {
                Some(group) if end - group.start <= most => group.end = end,
                Some(_) | None => groups.push(first..end),
            }
            first = end;
        }
        Self {
            tiles,
            weights,
            groups,
            volumes,
            extent,
        }
    }

    /// Tiles of each group.
    pub fn groups(&self) -> &[Range<usize>] {
        &self.groups
    }

    /// Shape of the predictions of volumes; where extents differ, of the largest along each dim.
    pub fn volumes(&self) -> PredictionShape {
        self.volumes
    }

    /// Shape of the predictions of the largest group of tiles.
    pub fn tiles(&self) -> PredictionShape {
        PredictionShape {
            samples: self.groups.iter().map(Range::len).max().unwrap_or(0),
            extent: self.extent,
            ..self.volumes
        }
    }

    /// A tile.
    pub(crate) fn tile(&self, tile: usize) -> &Tile {
        &self.tiles[tile]
    }

    /// Where the prediction of a tile is among those of its group.
    pub(crate) fn slot(&self, tile: usize) -> usize {
        let group = self.groups.partition_point(|group| group.end <= tile);
        tile - self.groups[group].start
    }

    /// Joins the predictions of a group: the averages by the weights, in double precision, in the order of the tiles. Of
    /// `shares` ranks this is one; each joins other rows, so that all together join all.
    ///
    /// Errors: `Unwritable`.
    pub fn join(
        &self,
        group: usize,
        [tiles, volumes]: [&PredictionScratch; 2],
        (share, shares): (usize, usize),
    ) -> Result<(), DataError> {
        let profiles = self.weights.profiles(self.extent);
        let own = self.groups[group].clone();
        let (mut pieces, mut slot) = ((0..shares).cycle(), 0);
        for of_volume in self.tiles[own].chunk_by(|one, next| one.volume == next.volume) {
            let [depth, height, width] = extent_of(of_volume);
            let at_once = PIECE_BYTES / (self.volumes.channels * width * size_of::<f64>()).max(1);
            let at_once = at_once.clamp(1, height);
            for plane in 0..depth {
                for row in (0..height).step_by(at_once) {
                    if pieces.next() == Some(share) {
                        let rows = row..height.min(row + at_once);
                        let from = (of_volume, slot);
                        let joined = self.rows(from, tiles, (plane, &rows, width), &profiles)?;
                        let at = [of_volume[0].volume, plane];
                        let part = [0..self.volumes.channels, rows, 0..width];
                        volumes.write_rows(at, part, &joined)?;
                    }
                }
            }
            slot += of_volume.len();
        }
        Ok(())
    }

    /// Joined rows of this many columns of a plane, (C, H, W), of the tiles of a volume, the first of which is in this slot.
    fn rows(
        &self,
        (of_volume, first): (&[Tile], usize),
        scratch: &PredictionScratch,
        (plane, rows, width): (usize, &Range<usize>, usize),
        profiles: &[Vec<f64>; 3],
    ) -> Result<Vec<f32>, DataError> {
        let channels = self.volumes.channels;
        let positions = rows.len() * width;
        let (mut sums, mut totals) = (vec![0.0; channels * positions], vec![0.0; positions]);
        let mut values = Vec::new();
        for (tile, slot) in of_volume.iter().zip(first..) {
            let covered = self.weights.covered(tile);
            let [planes, in_volume, columns] =
                std::array::from_fn(|dim| tile.moved(dim, &covered[dim]));
            let start = rows.start.max(in_volume.start);
            let end = rows.end.min(in_volume.end);
            if !planes.contains(&plane) || start >= end {
                continue;
            }
            let first = covered[1].start + start - in_volume.start;
            let of_tile = [first..first + end - start, 0..self.extent[2]];
            let of_plane = covered[0].start + plane - planes.start;
            for channel in 0..channels {
                let at = [slot, channel, of_plane];
                scratch.read_rows(at, of_tile.clone(), &mut values)?;
                let lines = values.chunks_exact(self.extent[2]).zip(of_tile[0].clone());
                for (line, row) in lines {
                    let to = (start + row - first - rows.start) * width;
                    for (column, to) in covered[2].clone().zip(to + columns.start..) {
                        let factors =
                            [profiles[0][of_plane], profiles[1][row], profiles[2][column]];
                        let weight = TileWeights::weight(factors);
                        sums[channel * positions + to] += weight * f64::from(line[column]);
                        if channel == 0 {
                            totals[to] += weight;
                        }
                    }
                }
            }
        }
        let joined = sums.iter().zip(totals.iter().cycle());
        Ok(joined.map(|(sum, total)| (sum / total) as f32).collect())
    }
}

/// D, H, W of a volume of these tiles, which cover it.
fn extent_of(tiles: &[Tile]) -> [usize; 3] {
    std::array::from_fn(|dim| {
        let ends = tiles
            .iter()
            .map(|tile| tile.moved(dim, &tile.inside[dim]).end);
        ends.max().unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::augment::Tiling;

    const VOLUME: [usize; 3] = [5, 9, 7];
    const TILE: [usize; 3] = [4, 4, 6];

    /// Tiles of a grid whose neighbors share half of their extents along each dim, or more.
    fn tiles(volumes: usize) -> Vec<Tile> {
        let origins: [&[usize]; 3] = [&[0, 1], &[0, 1, 3, 5], &[0, 1]];
        let mut all = Vec::new();
        for volume in 0..volumes {
            for &d in origins[0] {
                for &h in origins[1] {
                    for &w in origins[2] {
                        all.push(Tile {
                            volume,
                            origin: [d, h, w],
                            padding: [0; 3],
                            inside: TILE.map(|extent| 0..extent),
                            part: TILE.map(|extent| 0..extent),
                        });
                    }
                }
            }
        }
        all
    }

    fn score(element: usize) -> f32 {
        ((element * 7919) % 1013) as f32 / 100.0 - 5.0
    }

    fn shape(volumes: usize) -> PredictionShape {
        PredictionShape {
            samples: volumes,
            channels: 2,
            extent: VOLUME,
            spatial_rank: 3,
        }
    }

    /// The outputs of 3 volumes, joined in groups of `bytes` by `ranks` ranks.
    fn joined(weights: TileWeights, group: u64, ranks: usize) -> Vec<f32> {
        let folder = tempfile::tempdir().unwrap();
        let plan = TilePlan::new(tiles(3), TILE, weights, shape(3), Bytes(group));
        let temporary = |name: &str, shape| {
            PredictionScratch::temporary(&folder.path().join(name), shape).unwrap()
        };
        let of_tiles = temporary("tiles", plan.tiles());
        let volumes = temporary("volumes", plan.volumes());
        let of_tile = 2 * TILE.iter().product::<usize>();
        for (group, range) in plan.groups().iter().enumerate() {
            for tile in range.clone() {
                for plane in 0..TILE[0] {
                    let values = (0..2).flat_map(|channel| {
                        let first =
                            of_tile * tile + (channel * TILE[0] + plane) * TILE[1] * TILE[2];
                        (first..first + TILE[1] * TILE[2]).map(score)
                    });
                    let values: Vec<f32> = values.collect();
                    let at = [plan.slot(tile), plane];
                    let part = [0..2, 0..TILE[1], 0..TILE[2]];
                    of_tiles.write_rows(at, part, &values).unwrap();
                }
            }
            for rank in 0..ranks {
                plan.join(group, [&of_tiles, &volumes], (rank, ranks))
                    .unwrap();
            }
        }
        let mut all = Vec::new();
        for sample in 0..3 {
            for channel in 0..2 {
                for plane in 0..VOLUME[0] {
                    let mut values = Vec::new();
                    let part = [0..VOLUME[1], 0..VOLUME[2]];
                    volumes
                        .read_rows([sample, channel, plane], part, &mut values)
                        .unwrap();
                    all.extend(values);
                }
            }
        }
        all
    }

    /// The same by a loop over all voxels.
    fn expected(weight: &dyn Fn([usize; 3]) -> f64) -> Vec<f64> {
        let tiles = tiles(3);
        let mut all = Vec::new();
        for sample in 0..3 {
            for channel in 0..2 {
                for d in 0..VOLUME[0] {
                    for h in 0..VOLUME[1] {
                        for w in 0..VOLUME[2] {
                            let (mut sum, mut total) = (0.0, 0.0);
                            for (number, tile) in tiles.iter().enumerate() {
                                let [z, y, x] = tile.origin;
                                let inside = (z..z + 4).contains(&d)
                                    && (y..y + 4).contains(&h)
                                    && (x..x + 6).contains(&w);
                                if tile.volume != sample || !inside {
                                    continue;
                                }
                                let at = [d - z, h - y, w - x];
                                let element =
                                    (((number * 2 + channel) * 4 + at[0]) * 4 + at[1]) * 6 + at[2];
                                sum += weight(at) * f64::from(score(element));
                                total += weight(at);
                            }
                            assert!(total > 0.0, "a voxel without a weight");
                            all.push(sum / total);
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn joined_values_are_weighted_means() {
        let gaussian = |[d, h, w]: [usize; 3]| {
            let of = |at: usize, extent: f64| {
                let distance = at as f64 - (extent - 1.0) / 2.0;
                (-distance * distance / (2.0 * (extent / 8.0).powi(2))).exp()
            };
            (of(d, 4.0) * of(h, 4.0) * of(w, 6.0)).max(1e-3)
        };
        for (weights, expected) in [
            (TileWeights::Gaussian, expected(&gaussian)),
            (TileWeights::Constant, expected(&|_| 1.0)),
        ] {
            let found = joined(weights, 1 << 20, 1);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-6,
                    "{found} {expected}"
                );
            }
            // Neither ranks nor groups change a bit.
            assert_eq!(joined(weights, 1 << 20, 3), found);
            assert_eq!(joined(weights, 1, 2), found);
        }
    }

    /// The second volume is smaller, and padded to a tile along two dims; its padding is infinite.
    #[test]
    fn volumes_have_their_own_extents_and_no_padding() {
        const SMALL: [usize; 3] = [2, 9, 3];
        let mut all = tiles(1);
        let inside = [1..3, 0..4, 1..4];
        all.extend([0, 1, 3, 5].map(|row| Tile {
            volume: 1,
            origin: [0, row, 0],
            padding: [1, 0, 1],
            part: inside.clone(),
            inside: inside.clone(),
        }));
        let value = |[volume, channel, d, h, w]: [usize; 5]| {
            score((((volume * 2 + channel) * 5 + d) * 9 + h) * 7 + w)
        };
        for weights in [TileWeights::Gaussian, TileWeights::Constant] {
            let folder = tempfile::tempdir().unwrap();
            let plan = TilePlan::new(all.clone(), TILE, weights, shape(2), Bytes(1 << 20));
            let temporary = |name: &str, shape| {
                PredictionScratch::temporary(&folder.path().join(name), shape).unwrap()
            };
            let scratch = [
                temporary("tiles", plan.tiles()),
                temporary("volumes", plan.volumes()),
            ];
            for (number, tile) in all.iter().enumerate() {
                for plane in 0..TILE[0] {
                    let at = |element: usize| {
                        let [channel, row, column] = [element / 24, element / 6 % 4, element % 6];
                        let Some([d, h, w]) = tile.in_volume([plane, row, column]) else {
                            return f32::INFINITY;
                        };
                        value([tile.volume, channel, d, h, w])
                    };
                    let values: Vec<f32> = (0..2 * 24).map(at).collect();
                    let part = [0..2, 0..TILE[1], 0..TILE[2]];
                    scratch[0]
                        .write_rows([plan.slot(number), plane], part, &values)
                        .unwrap();
                }
            }
            for rank in 0..2 {
                plan.join(0, scratch.each_ref(), (rank, 2)).unwrap();
            }
            for (volume, extent) in [VOLUME, SMALL].into_iter().enumerate() {
                let positions =
                    (0..2 * 5 * 9 * 7).map(|at| [at / 315, at / 63 % 5, at / 7 % 9, at % 7]);
                for [channel, d, h, w] in positions {
                    let mut found = Vec::new();
                    let part = [h..h + 1, w..w + 1];
                    scratch[1]
                        .read_rows([volume, channel, d], part, &mut found)
                        .unwrap();
                    let is_there = d < extent[0] && h < extent[1] && w < extent[2];
                    let expected = if is_there {
                        value([volume, channel, d, h, w])
                    } else {
                        0.0
                    };
                    assert!(
                        (found[0] - expected).abs() < 1e-5,
                        "{} {expected}",
                        found[0]
                    );
                }
            }
        }
    }

    #[test]
    fn groups_are_of_whole_volumes() {
        let of_tile = 2 * 4 * TILE.iter().product::<usize>();
        let groups = |tiles_at_once: usize| {
            let bytes = Bytes((of_tile * tiles_at_once) as u64);
            let plan = TilePlan::new(tiles(3), TILE, TileWeights::Gaussian, shape(3), bytes);
            plan.groups().to_vec()
        };
        assert_eq!(groups(1), [0..16, 16..32, 32..48]);
        assert_eq!(groups(32), [0..32, 32..48]);
        assert_eq!(groups(100), [std::ops::Range { start: 0, end: 48 }]);
    }

    #[test]
    fn neighbors_share_at_least_the_overlap() {
        let tiling = |overlap| Tiling {
            overlap,
            ..Tiling::default()
        };
        assert_eq!(Tiling::default(), tiling(0.5));
        assert_eq!(tiling(0.5).shared(8), 4);
        assert_eq!(tiling(0.5).shared(7), 4);
        assert_eq!(tiling(0.99).shared(4), 3);
        assert_eq!(tiling(0.5).shared(1), 0);
        assert_eq!(tiling(0.0).shared(8), 0);
    }
}
