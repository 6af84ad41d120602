//! The checkpoint from which a training resumes.

use super::super::run::Run;
use super::config::ResumeFrom;
use super::error::ResumeError;
use super::state::TrainingState;
use super::stored::StoredValues;
use super::{CHECKPOINTS, folder};
use partita_graph::Graph;
use partita_session::Session;
use partita_site::PinningTimes;
use partita_weights::checkpoint::{Checkpoint, CheckpointFolder, MANIFEST};
use std::path::{Path, PathBuf};

/// The folder of the checkpoint from which a run resumes.
///
/// Errors: there is none, or no folder for one; a manifest that cannot be read.
pub fn find(run: &Run, from: &ResumeFrom) -> Result<Option<PathBuf>, ResumeError> {
    let (folder, is_needed) = match from {
        ResumeFrom::Start => return Ok(None),
        ResumeFrom::Newest if run.output.is_none() => return Err(ResumeError::NoFolder),
        ResumeFrom::Auto if run.output.is_none() => return Ok(None),
        ResumeFrom::Newest => (folder(run), true),
        ResumeFrom::Auto => (folder(run), false),
        ResumeFrom::Path(path) if path.join(MANIFEST).exists() => return Ok(Some(path.clone())),
        ResumeFrom::Path(path) if path.join(CHECKPOINTS).is_dir() => {
            (CheckpointFolder::new(path.join(CHECKPOINTS)), true)
        }
        ResumeFrom::Path(path) => (CheckpointFolder::new(path), true),
    };
    match folder.list()?.pop() {
        Some(newest) => Ok(Some(newest.path)),
        None if is_needed => Err(ResumeError::Nothing {
            folder: folder.path().to_owned(),
        }),
        None => Ok(None),
    }
}

/// A session, if the position of the checkpoint from which it resumes can be of it.
///
/// Errors: `Damaged`.
pub fn fitting<'s>(
    session: Session<'s>,
    from: Option<&Resume>,
) -> Result<Session<'s>, ResumeError> {
    let fault = from.and_then(|from| Some((from, session.position_fault(&from.state.position)?)));
    match fault {
        Some((from, fault)) => Err(ResumeError::of_numbers(from.path(), &fault)),
        None => Ok(session),
    }
}

/// A checkpoint from which a training resumes.
pub struct Resume {
    checkpoint: Checkpoint,
    /// Its state.
    pub state: TrainingState,
    /// What differs from the run that goes on.
    pub warnings: Vec<String>,
}

impl Resume {
    /// The times by which the kernels of the training are pinned that goes on.
    pub fn kernels(from: Option<&Self>) -> Option<&PinningTimes> {
        from?.state.kernels.as_ref()
    }

    /// Opens a checkpoint and checks that the run, which is `now`, may go on from it.
    ///
    /// Errors: a damaged checkpoint, or one of another run.
    pub fn open(path: &Path, graph: &Graph, now: &TrainingState) -> Result<Self, ResumeError> {
        let checkpoint = Checkpoint::open(path)?;
        let state = TrainingState::read(&checkpoint)?;
        let warnings = state.check(&checkpoint, graph, now)?;
        Ok(Self {
            checkpoint,
            state,
            warnings,
        })
    }

    /// The folder of the checkpoint.
    pub fn path(&self) -> &Path {
        self.checkpoint.path()
    }

    /// Readers of its tensors, for any thread.
    pub fn values(&self) -> StoredValues<'_> {
        StoredValues::of(&self.checkpoint)
    }
}
