//! What is taken of volumes that are larger than the samples of a training.

use crate::train::check;
use crate::train::error::Mismatch;
use crate::train::tiling::{self, TilesAsked};
use partita_data::Dataset;
use partita_graph::{ExtentError, Graph};
use partita_input::Sampling;
use partita_site::Event;
use partita_site::launch::Launch;
use partita_space::help::Message;

/// What is taken of volumes that are larger than the samples of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// Whole volumes: the network is lowered at their extents.
    Whole,
    /// Overlapping crops, whose predictions are joined to that of the volume.
    Tiles,
    /// Crops, each with a prediction of its own.
    Crops,
}

impl VolumeMode {
    /// The word used in results and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Tiles => "tiles",
            Self::Crops => "crops",
        }
    }
}

/// The model and the samples with which volumes are read, and how.
pub struct Volumes {
    /// The model.
    pub graph: Graph,
    /// The samples.
    pub sampling: Sampling,
    /// What is taken of volumes.
    pub mode: VolumeMode,
    /// Why tiles are taken by default, if they are.
    pub because: Option<String>,
}

impl Volumes {
    fn whole(graph: Graph, sampling: Sampling) -> Self {
        Self {
            graph,
            sampling,
            mode: VolumeMode::Whole,
            because: None,
        }
    }
}

/// Chooses how volumes are read.
///
/// Errors: a mode that the model does not allow.
pub fn read_volumes(
    launch: &Launch<'_>,
    graph: Graph,
    dataset: &Dataset,
    sampling: &Sampling,
    (asked, settings): (Option<VolumeMode>, TilesAsked),
) -> Result<Volumes, Mismatch> {
    let refuse = |asked: VolumeMode, reason: String, nearest: VolumeMode| Mismatch::Volumes {
        model: graph.name.clone(),
        asked: asked.name(),
        reason,
        nearest: nearest.name(),
    };
    let Some(crops) = sampling.crops() else {
        if let Some(option) = settings.option() {
            let reason = format!("it was trained on whole samples, which `{option}` does not cut");
            return Err(refuse(VolumeMode::Tiles, reason, VolumeMode::Whole));
        }
        return Ok(Volumes::whole(graph, sampling.for_evaluation()));
    };
    let (answer, _) = check::answer(&graph);
    // Tiles are joined position by position.
    let has_positions = answer.extent == crops.extent;
    let fallback = if has_positions {
        VolumeMode::Tiles
    } else {
        VolumeMode::Crops
    };
    let asked = asked.or(settings.option().map(|_| VolumeMode::Tiles));
    let other = asked.filter(|asked| *asked != VolumeMode::Tiles);
    if let (Some(other), Some(option)) = (other, settings.option()) {
        let reason = format!("`{option}` is of tiles");
        return Err(refuse(other, reason, VolumeMode::Tiles));
    }
    let because = tiling::reason(&graph).filter(|_| asked.is_none() && has_positions);
    let mode = match asked {
        None if because.is_some() => VolumeMode::Tiles,
        Some(VolumeMode::Crops) => VolumeMode::Crops,
        Some(VolumeMode::Tiles) if !has_positions => {
            let reason = format!(
                "its output of {answer} has no value for each position of a crop, so that crops have nothing to join"
            );
            return Err(refuse(VolumeMode::Tiles, reason, VolumeMode::Crops));
        }
        Some(VolumeMode::Tiles) => VolumeMode::Tiles,
        Some(VolumeMode::Whole) | None => match (whole(&graph, dataset), asked) {
            (Ok(whole), _) => return Ok(Volumes::whole(whole, sampling.whole())),
            (Err(not_whole), Some(asked)) => {
                return Err(refuse(asked, not_whole.to_string(), fallback));
            }
            (Err(not_whole), None) => {
                note_fallback(launch, &not_whole, fallback);
                fallback
            }
        },
    };
    let sampling = match mode {
        VolumeMode::Tiles => sampling.tiled(settings.tiling()),
        VolumeMode::Whole | VolumeMode::Crops => sampling.for_evaluation(),
    };
    Ok(Volumes {
        graph,
        sampling,
        mode,
        because,
    })
}

fn note_fallback(launch: &Launch<'_>, not_whole: &NotWhole, fallback: VolumeMode) {
    let name = fallback.name();
    let reason = Message::of(not_whole).inline();
    let text = format!("the model does not read whole volumes: {reason}; so samples are {name}");
    if launch.is_first() {
        launch.context().report(Event::Note(&text));
    }
}

/// Why a model does not read whole volumes. Extents are (D, H, W).
#[derive(Debug, thiserror::Error)]
enum NotWhole {
    #[error("volumes have different extents, from {smallest:?} to {largest:?} (D, H, W)")]
    Unequal {
        smallest: [usize; 3],
        largest: [usize; 3],
    },
    #[error("it cannot read {}x{}x{}: {error}", extent[0], extent[1], extent[2])]
    Unfit {
        extent: [usize; 3],
        error: Box<ExtentError>,
    },
}

/// The model at the extents of volumes.
fn whole(graph: &Graph, dataset: &Dataset) -> Result<Graph, NotWhole> {
    let [_, extent @ ..] = dataset.shape();
    if let Some(smallest) = dataset.smallest_extent() {
        let largest = extent;
        return Err(NotWhole::Unequal { smallest, largest });
    }
    let whole = graph.with_extent(extent);
    whole.map_err(|error| NotWhole::Unfit {
        extent,
        error: Box::new(error),
    })
}
