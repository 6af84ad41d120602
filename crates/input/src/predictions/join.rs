//! Predictions of volumes, joined of those of their tiles.

use std::ops::Range;
use std::path::PathBuf;

use partita_formats::DataError;
use partita_space::Bytes;

use super::{Band, PIECE_BYTES, PredictionScratch, PredictionShape};
use crate::augment::{Sampling, Tile, TileWeights, Variants};

/// The tiles of volumes, in groups. The outputs of a group are written to a scratch file of tiles, for each variant of the
/// samples anew, and added to the sums of a [`Band`] before those of the next variant or group replace them. Positions that no
/// tile to come reaches are then complete.
#[derive(Clone, Debug)]
pub struct TilePlan {
    tiles: Vec<Tile>,
    weights: TileWeights,
    groups: Vec<Range<usize>>,
    volumes: PredictionShape,
    /// The tiles of each volume.
    of_volumes: Vec<Range<usize>>,
    /// D, H, W of a tile.
    extent: [usize; 3],
    /// Factors of the weights along each dim of a tile.
    profiles: [Vec<f64>; 3],
    variants: Variants,
    /// Number of samples of all splits.
    all_samples: usize,
}

/// Rows of a plane of a volume that are joined at once.
struct Piece {
    volume: usize,
    plane: usize,
    rows: Range<usize>,
    width: usize,
}

impl TilePlan {
    /// The plan of these tiles, which are in order of their volumes and have these extents. The outputs of a group take
    /// at most `group` bytes, or those of one mini-batch; all groups but the last are of whole mini-batches.
    pub fn new(
        tiles: Vec<Tile>,
        extent: [usize; 3],
        weights: TileWeights,
        volumes: PredictionShape,
        (batch, group): (usize, Bytes),
    ) -> Self {
        let of_tile = volumes.channels * extent.iter().product::<usize>() * size_of::<f32>();
        let most = (group.0 as usize) / of_tile.max(1);
        let at_once = (most / batch).max(1) * batch;
        let groups = (0..tiles.len()).step_by(at_once);
        let groups = groups.map(|first| first..tiles.len().min(first + at_once));
        let mut of_volumes: Vec<Range<usize>> = Vec::new();
        for volume in tiles.chunk_by(|one, next| one.volume == next.volume) {
            let first = of_volumes.last().map_or(0, |before| before.end);
            of_volumes.push(first..first + volume.len());
        }
        Self {
            groups: groups.collect(),
            tiles,
            weights,
            volumes,
            of_volumes,
            extent,
            profiles: weights.profiles(extent),
            variants: Variants::default(),
            all_samples: 0,
        }
    }

    /// The plan of samples that are joined to no volumes, only the variants of each to its prediction.
    pub fn of_samples(samples: PredictionShape, by: (usize, Bytes)) -> Self {
        let whole = samples.extent.map(|extent| 0..extent);
        let tile = |volume| Tile {
            volume,
            origin: [0; 3],
            padding: [0; 3],
            inside: whole.clone(),
            part: whole.clone(),
        };
        let tiles = (0..samples.samples).map(tile).collect();
        Self::new(tiles, samples.extent, TileWeights::Constant, samples, by)
    }

    /// The same, where samples have the variants of a sampling.
    #[must_use]
    pub fn with_variants_of(self, sampling: &Sampling) -> Self {
        Self {
            variants: sampling.variants().clone(),
            all_samples: sampling.all_samples(),
            ..self
        }
    }

    /// Tiles of each group.
    pub fn groups(&self) -> &[Range<usize>] {
        &self.groups
    }

    /// The samples that a network sees, of a split with this first sample; and the parts of them after each of which
    /// [`join`](Self::join) is called, with the weights that see it.
    pub fn samples(&self, first: usize) -> (Vec<usize>, Vec<(Range<usize>, usize)>) {
        let (mut samples, mut parts) = (Vec::new(), Vec::new());
        for group in &self.groups {
            for variant in 0..self.variants.count() {
                let start = samples.len();
                let before = first + variant * self.all_samples;
                samples.extend(group.clone().map(|tile| before + tile));
                parts.push((start..samples.len(), self.variants.weights_of(variant)));
            }
        }
        (samples, parts)
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

    /// The tile of a sample that the network sees, of a split with this first sample, and which of D, H, W are reversed.
    pub(crate) fn seen(&self, sample: usize, first: usize) -> (usize, [bool; 3]) {
        match self.variants.count() {
            1 => (sample - first, [false; 3]),
            _ => {
                let (variant, sample) = (sample / self.all_samples, sample % self.all_samples);
                (sample - first, self.variants.flip(variant))
            }
        }
    }

    /// Where the prediction of a tile is among those of its group.
    pub(crate) fn slot(&self, tile: usize) -> usize {
        let group = self.groups.partition_point(|group| group.end <= tile);
        tile - self.groups[group].start
    }

    /// The empty band of a rank, in a file whose name begins so.
    pub fn band(&self, path: PathBuf) -> Band {
        let [_, height, width] = self.volumes.extent;
        let piece = self.volumes.channels * self.rows_at_once(height, width) * width;
        Band::new(path, piece)
    }

    /// Rows of a piece.
    fn rows_at_once(&self, height: usize, width: usize) -> usize {
        let row = self.volumes.channels * width * size_of::<f64>();
        (PIECE_BYTES / row.max(1)).clamp(1, height)
    }

    /// Adds the predictions of a part, in double precision and in the order of the variants and tiles, and writes those
    /// positions to the volumes that no tile to come reaches: the averages by the weights. Of `shares` ranks this is one; each
    /// has other rows, so that all together join all.
    ///
    /// Errors: `Unwritable`.
    pub fn join(
        &self,
        part: usize,
        band: &mut Band,
        [tiles, volumes]: [&PredictionScratch; 2],
        (share, shares): (usize, usize),
    ) -> Result<(), DataError> {
        let own = self.groups[part / self.variants.count()].clone();
        let variant = part % self.variants.count();
        for (volume, of_volume) in self.of_volumes.iter().enumerate() {
            let new = own.start.max(of_volume.start)..own.end.min(of_volume.end);
            if new.is_empty() {
                continue;
            }
            let [_, height, width] = self.extent_of(of_volume);
            let at_once = self.rows_at_once(height, width);
            let pieces = height.div_ceil(at_once);
            let planes = self.covered(new.start, 0).start..self.covered(new.end - 1, 0).end;
            for plane in planes {
                for number in (0..pieces).filter(|of| (plane * pieces + of) % shares == share) {
                    let row = number * at_once;
                    let piece = Piece {
                        volume,
                        plane,
                        rows: row..height.min(row + at_once),
                        width,
                    };
                    self.join_piece(&piece, (&new, variant), band, [tiles, volumes])?;
                }
            }
        }
        Ok(())
    }

    /// The same for a piece, with the new tiles of its volume.
    fn join_piece(
        &self,
        piece: &Piece,
        (new, variant): (&Range<usize>, usize),
        band: &mut Band,
        [tiles, volumes]: [&PredictionScratch; 2],
    ) -> Result<(), DataError> {
        let all = self.tiles_of(piece);
        let (Some(&first), Some(&last)) = (all.first(), all.last()) else {
            return Ok(());
        };
        let added: Vec<usize> = all.iter().copied().filter(|of| new.contains(of)).collect();
        if added.is_empty() {
            return Ok(());
        }
        let is_new = variant == 0 && new.contains(&first);
        let is_last = variant + 1 == self.variants.count() && new.contains(&last);
        let key = [piece.volume, piece.plane, piece.rows.start];
        let positions = piece.rows.len() * piece.width;
        let elements = self.volumes.channels * positions;
        let mut sums = if is_new {
            vec![0.0; elements]
        } else {
            band.take(key, elements)?
        };
        for tile in added {
            self.add(tile, piece, tiles, &mut sums)?;
        }
        if !is_last {
            return band.put(key, &sums);
        }
        let mut totals = vec![0.0; positions];
        for tile in all {
            self.each_weight(tile, piece, |to, _, weight| totals[to] += weight);
        }
        let variants = self.variants.count() as f64;
        let joined = sums.iter().zip(totals.iter().cycle());
        let joined: Vec<f32> = joined
            .map(|(sum, total)| (sum / (total * variants)) as f32)
            .collect();
        let part = [0..self.volumes.channels, piece.rows.clone(), 0..piece.width];
        volumes.write_rows([piece.volume, piece.plane], part, &joined)
    }

    /// The tiles that have voxels of a piece, in order.
    fn tiles_of(&self, piece: &Piece) -> Vec<usize> {
        let of_volume = self.of_volumes[piece.volume].clone();
        let tiles = &self.tiles[of_volume.clone()];
        // Tiles are in order of where they begin along D, and so of where they end.
        let plane = |tile: &Tile| tile.moved(0, &self.weights.covered(tile)[0]);
        let first = tiles.partition_point(|tile| plane(tile).end <= piece.plane);
        let end = tiles.partition_point(|tile| plane(tile).start <= piece.plane);
        let has_rows = |tile: &usize| {
            let rows = self.covered(*tile, 1);
            rows.start < piece.rows.end && piece.rows.start < rows.end
        };
        let all = of_volume.start + first..of_volume.start + end.max(first);
        all.filter(has_rows).collect()
    }

    /// Which positions of its volume a tile counts for, along a dim.
    fn covered(&self, tile: usize, dim: usize) -> Range<usize> {
        let tile = &self.tiles[tile];
        tile.moved(dim, &self.weights.covered(tile)[dim])
    }

    /// Rows of a tile that lie in a piece, and where the first of them is in the piece.
    fn rows_in(&self, tile: usize, piece: &Piece) -> (Range<usize>, usize) {
        let in_volume = self.covered(tile, 1);
        let start = piece.rows.start.max(in_volume.start);
        let end = piece.rows.end.min(in_volume.end).max(start);
        let first = self.weights.covered(&self.tiles[tile])[1].start + start - in_volume.start;
        (first..first + end - start, start - piece.rows.start)
    }

    /// Plane of a tile that lies in a piece.
    fn plane_in(&self, tile: usize, piece: &Piece) -> usize {
        let covered = &self.weights.covered(&self.tiles[tile])[0];
        covered.start + piece.plane - self.covered(tile, 0).start
    }

    /// Calls `visit` for the positions that a tile has of a piece: the position in the piece, that among the rows of the
    /// tile that lie in it, and the weight.
    fn each_weight(&self, tile: usize, piece: &Piece, mut visit: impl FnMut(usize, usize, f64)) {
        let profiles = &self.profiles;
        let ((rows, first), plane) = (self.rows_in(tile, piece), self.plane_in(tile, piece));
        let columns = &self.weights.covered(&self.tiles[tile])[2];
        let start = self.covered(tile, 2).start;
        for (line, row) in rows.enumerate() {
            let to = (first + line) * piece.width + start;
            for (to, column) in (to..).zip(columns.clone()) {
                let factors = [profiles[0][plane], profiles[1][row], profiles[2][column]];
                visit(
                    to,
                    line * self.extent[2] + column,
                    TileWeights::weight(factors),
                );
            }
        }
    }

    /// Adds the weighted values that a tile has of a piece to the sums, (C, H, W).
    fn add(
        &self,
        tile: usize,
        piece: &Piece,
        scratch: &PredictionScratch,
        sums: &mut [f64],
    ) -> Result<(), DataError> {
        let (rows, _) = self.rows_in(tile, piece);
        let mut weights = Vec::with_capacity(rows.len() * self.extent[2]);
        self.each_weight(tile, piece, |to, from, weight| {
            weights.push((to, from, weight));
        });
        let (slot, plane) = (self.slot(tile), self.plane_in(tile, piece));
        let positions = piece.rows.len() * piece.width;
        let mut values = Vec::new();
        for (channel, sums) in sums.chunks_exact_mut(positions).enumerate() {
            let part = [rows.clone(), 0..self.extent[2]];
            scratch.read_rows([slot, channel, plane], part, &mut values)?;
            for &(to, from, weight) in &weights {
                sums[to] += weight * f64::from(values[from]);
            }
        }
        Ok(())
    }

    /// D, H, W of a volume of these tiles, which cover it.
    fn extent_of(&self, of_volume: &Range<usize>) -> [usize; 3] {
        std::array::from_fn(|dim| {
            let tiles = self.tiles[of_volume.clone()].iter();
            let ends = tiles.map(|tile| tile.moved(dim, &tile.inside[dim]).end);
            ends.max().unwrap_or(0)
        })
    }
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

    /// The outputs of 3 volumes, joined in groups of `group` bytes by `ranks` ranks; and the most bytes of a band.
    fn joined(weights: TileWeights, group: u64, ranks: usize) -> (Vec<f32>, u64) {
        let folder = tempfile::tempdir().unwrap();
        let plan = TilePlan::new(tiles(3), TILE, weights, shape(3), (2, Bytes(group)));
        let temporary = |name: &str, shape| {
            PredictionScratch::temporary(&folder.path().join(name), shape).unwrap()
        };
        let of_tiles = temporary("tiles", plan.tiles());
        let volumes = temporary("volumes", plan.volumes());
        let of_tile = 2 * TILE.iter().product::<usize>();
        let band = |rank: usize| plan.band(folder.path().join(format!("band-{rank}")));
        let mut bands: Vec<Band> = (0..ranks).map(band).collect();
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
            for (rank, band) in bands.iter_mut().enumerate() {
                plan.join(group, band, [&of_tiles, &volumes], (rank, ranks))
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
        (all, bands.iter().map(|band| band.bytes_max().0).sum())
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
            let (found, band) = joined(weights, 1 << 20, 1);
            assert_eq!(band, 0, "all tiles are added at once");
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-6,
                    "{found} {expected}"
                );
            }
            // Neither ranks nor groups change a bit.
            assert_eq!(joined(weights, 1 << 20, 3).0, found);
            for (group, ranks) in [(1, 1), (1, 2), (3000, 3)] {
                let (all, band) = joined(weights, group, ranks);
                assert_eq!(all, found);
                // Never more than the planes of a tile, each on its rank.
                let plane = 2 * VOLUME[1] * VOLUME[2] * size_of::<f64>();
                assert!(band > 0, "{group}");
                assert!(ranks > 1 || band <= (TILE[0] * plane) as u64, "{band}");
            }
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
            let plan = TilePlan::new(all.clone(), TILE, weights, shape(2), (1, Bytes(1 << 20)));
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
                let mut band = plan.band(folder.path().join("band"));
                plan.join(0, &mut band, scratch.each_ref(), (rank, 2))
                    .unwrap();
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
    fn groups_are_of_whole_batches() {
        let of_tile = 2 * 4 * TILE.iter().product::<usize>();
        let groups = |tiles_at_once: usize, batch: usize| {
            let bytes = Bytes((of_tile * tiles_at_once) as u64);
            let by = (batch, bytes);
            let plan = TilePlan::new(tiles(3), TILE, TileWeights::Gaussian, shape(3), by);
            plan.groups().to_vec()
        };
        assert_eq!(groups(1, 20), [0..20, 20..40, 40..48]);
        assert_eq!(groups(33, 4), [0..32, 32..48]);
        assert_eq!(groups(100, 5), [std::ops::Range { start: 0, end: 48 }]);
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
