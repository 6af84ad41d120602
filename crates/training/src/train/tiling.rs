//! Volumes that are joined of tiles: which, and how.

use partita_data::Split;
use partita_graph::Graph;
use partita_input::{PredictionShape, Sampling, TilePlan, TileWeights, Tiling};
use partita_space::Bytes;
use serde::Serialize;

/// Most bytes of the outputs of tiles that are on the disk at once, unless those of a mini-batch are more. Few in tests, so
/// that there are several groups.
const GROUP_BYTES: Bytes = Bytes(if cfg!(test) { 1 << 19 } else { 1 << 26 });

/// What is asked for of tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TilesAsked {
    /// Fraction of its extent that a tile shares with the next one (default: 0.5).
    pub overlap: Option<f64>,
    /// What each tile counts where several have a voxel (default: Gaussian).
    pub weights: Option<TileWeights>,
}

impl TilesAsked {
    /// The option of the first thing that is asked for, if there is one.
    pub fn option(&self) -> Option<&'static str> {
        let overlap = self.overlap.map(|_| "--overlap");
        overlap.or(self.weights.map(|_| "--tile-weights"))
    }

    /// How volumes are joined.
    pub fn tiling(&self) -> Tiling {
        let usual = Tiling::default();
        Tiling {
            overlap: self.overlap.unwrap_or(usual.overlap),
            weights: self.weights.unwrap_or(usual.weights),
        }
    }
}

/// How volumes were joined of tiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TilesResult {
    /// D, H, W of a tile.
    pub extent: [usize; 3],
    /// Fraction of its extent that a tile shares with the next one, at least.
    pub overlap: f64,
    /// What each tile counts where several have a voxel: `gaussian`, `constant` or `middle`.
    pub weights: &'static str,
    /// Why tiles are taken where nothing else was asked for: the layer that spans positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

impl TilesResult {
    /// Of tiles of these extents.
    pub fn new(extent: [usize; 3], tiling: Tiling, because: Option<String>) -> Self {
        Self {
            extent,
            overlap: tiling.overlap,
            weights: tiling.weights.name(),
            because,
        }
    }
}

/// Why the volumes of a training on crops are joined of tiles unless something else is asked for, if they are: a layer
/// that computes with all positions of a sample, which are others in whole volumes.
pub fn reason(graph: &Graph) -> Option<String> {
    let (layer, does) = graph.position_span()?;
    Some(format!("`{layer}` {does}"))
}

/// The tiles of the volumes of a split, in mini-batches of this many.
pub fn plan(
    sampling: &Sampling,
    (split, tiling): (Split, Tiling),
    volumes: PredictionShape,
    batch: usize,
) -> TilePlan {
    let [_, extent @ ..] = sampling.shape();
    let tiles = sampling.tiles(split);
    let by = (batch, GROUP_BYTES);
    TilePlan::new(tiles, extent, tiling.weights, volumes, by).with_variants_of(sampling)
}

/// Samples whose variants are joined, in mini-batches of this many.
pub fn plan_of_samples(sampling: &Sampling, samples: PredictionShape, batch: usize) -> TilePlan {
    TilePlan::of_samples(samples, (batch, GROUP_BYTES)).with_variants_of(sampling)
}
