//! The scratch files of a run over tiles, and what joins them.

use super::error::TrainError;
use partita_formats::DataError;
use partita_input::{Band, PredictionScratch, PredictionSink, Stored, TilePlan};
use partita_run::{RunError, Sink};
use partita_session::{JoinOutputs, Validation};
use partita_site::launch::{Agreement, InnerRun, Launch, MakeJoins};
use partita_space::{Mesh, Rank};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the scratch file of tiles.
const TILES: &str = "tiles";
/// How those of sums begin, one for each rank.
const SUMS: &str = "sums";

/// Computes the loss of volumes in a training, after the tiles of an epoch are joined.
pub trait VolumeLoss: Sync {
    /// Loss and metrics on a rank, the same on all ranks; with the loss that ended it, if one is infinite or NaN.
    ///
    /// Errors: that of the rank.
    fn evaluate(
        &self,
        inner: &mut dyn InnerRun,
        volumes: &PredictionScratch,
    ) -> Result<Validation, RunError>;
}

/// The scratch files of a run over tiles.
pub struct TileFiles {
    plan: Arc<TilePlan>,
    /// Where the outputs of tiles and of volumes are.
    paths: [PathBuf; 2],
    /// What is stored of volumes.
    stored: Stored,
    /// The file of tiles, on the rank that removes it.
    _tiles: Option<PredictionScratch>,
}

impl TileFiles {
    /// Creates that of tiles in the folder of `name`, beside that of volumes, whose path rank 0 knows; `stored` is what that
    /// has.
    ///
    /// Errors: no room, no write permission.
    pub fn create(
        launch: &Launch<'_>,
        plan: &Arc<TilePlan>,
        name: &Path,
        (volumes, stored): (Option<&PredictionScratch>, Stored),
    ) -> Result<Self, TrainError> {
        let tiles = launch.prepare(|| {
            let create = || PredictionScratch::temporary(&name.with_file_name(TILES), plan.tiles());
            let created = volumes.map(|_| create());
            created.transpose().map_err(TrainError::from)
        })?;
        let paths = launch.choose(|| {
            let path = |scratch: Option<&PredictionScratch>| {
                scratch.map(|scratch| scratch.path().to_owned())
            };
            let all = [path(tiles.as_ref()), path(volumes)];
            Ok::<_, TrainError>(all.map(Option::unwrap_or_default))
        })?;
        Ok(Self {
            plan: Arc::clone(plan),
            paths,
            stored,
            _tiles: tiles,
        })
    }

    /// Creates both, with names that begin as `name`. That of volumes is there until the second value is dropped.
    ///
    /// Errors: no room, no write permission.
    pub fn temporary(
        launch: &Launch<'_>,
        plan: &Arc<TilePlan>,
        name: &Path,
    ) -> Result<(Self, Option<PredictionScratch>), TrainError> {
        let is_first = launch.is_first();
        let volumes = launch.prepare(|| {
            let create = || PredictionScratch::temporary(name, plan.volumes());
            is_first.then(create).transpose().map_err(TrainError::from)
        })?;
        let of_volumes = (volumes.as_ref(), Stored::Scores);
        Ok((Self::create(launch, plan, name, of_volumes)?, volumes))
    }

    /// Opens the file of volumes on a rank.
    ///
    /// Errors: as for a sink.
    pub fn volumes(&self, rank: Rank) -> Result<PredictionScratch, RunError> {
        let opened = PredictionScratch::open_at(&self.paths[1], (self.plan.volumes(), self.stored));
        opened.map_err(|error| failed(rank, &error))
    }

    fn tiles(&self, rank: Rank) -> Result<PredictionScratch, RunError> {
        let opened =
            PredictionScratch::open_at(&self.paths[0], (self.plan.tiles(), Stored::Scores));
        opened.map_err(|error| failed(rank, &error))
    }

    /// The sink of a rank, which writes its part of the outputs of tiles.
    ///
    /// Errors: the file cannot be opened.
    pub fn sink(
        &self,
        first_sample: usize,
        mesh: Mesh,
        rank: Rank,
    ) -> Result<Box<dyn Sink>, RunError> {
        let sink = PredictionSink::new(self.tiles(rank)?, first_sample, mesh, rank);
        Ok(Box::new(sink.of_tiles(Arc::clone(&self.plan))))
    }

    /// What joins the outputs on one of several ranks.
    ///
    /// Errors: a file cannot be opened.
    pub fn join<'a>(
        &'a self,
        (rank, ranks): (Rank, usize),
        agreement: Box<dyn Agreement + 'a>,
    ) -> Result<TileJoin<'a>, RunError> {
        Ok(TileJoin {
            plan: &self.plan,
            tiles: self.tiles(rank)?,
            volumes: self.volumes(rank)?,
            band: self
                .plan
                .band(self.paths[0].with_file_name(format!("{SUMS}-{rank}"))),
            share: (rank, ranks),
            agreement,
            loss: None,
        })
    }
}

impl MakeJoins for TileFiles {
    fn joins<'a>(
        &'a self,
        of: (Rank, usize),
        agreement: Box<dyn Agreement + 'a>,
        _: Box<dyn InnerRun + 'a>,
    ) -> Result<Box<dyn JoinOutputs + 'a>, RunError> {
        Ok(Box::new(self.join(of, agreement)?))
    }
}

/// Joins the outputs of tiles on a rank.
pub struct TileJoin<'a> {
    plan: &'a TilePlan,
    tiles: PredictionScratch,
    volumes: PredictionScratch,
    /// Sums of the voxels that tiles to come reach.
    band: Band,
    share: (Rank, usize),
    agreement: Box<dyn Agreement + 'a>,
    /// In a training, computes the loss of volumes.
    loss: Option<(Box<dyn InnerRun + 'a>, &'a dyn VolumeLoss)>,
}

impl<'a> TileJoin<'a> {
    /// The same in a training, whose epochs this evaluates.
    #[must_use]
    pub fn evaluating(self, inner: Box<dyn InnerRun + 'a>, loss: &'a dyn VolumeLoss) -> Self {
        Self {
            loss: Some((inner, loss)),
            ..self
        }
    }
}

impl JoinOutputs for TileJoin<'_> {
    fn join(&mut self, part: usize) -> Result<(), RunError> {
        // No rank reads before all have written, and none writes before all have read.
        self.agreement.meet(part as u64)?;
        let files = [&self.tiles, &self.volumes];
        let (plan, band, share) = (self.plan, &mut self.band, self.share);
        let mut joined = Ok(());
        self.agreement.while_others_wait(Box::new(|| {
            joined = plan.join(part, band, files, share);
        }));
        joined.map_err(|error| failed(self.share.0, &error))?;
        self.agreement.meet(part as u64)
    }

    fn evaluate(&mut self) -> Result<Validation, RunError> {
        let Some((inner, loss)) = &mut self.loss else {
            panic!("a run without training evaluates no epoch");
        };
        loss.evaluate(&mut **inner, &self.volumes)
    }
}

/// The error of a rank whose scratch file fails.
pub fn failed(rank: Rank, error: &DataError) -> RunError {
    RunError::Sink {
        rank,
        reason: error.to_string(),
    }
}
