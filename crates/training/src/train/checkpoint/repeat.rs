//! Where steps are repeated from to find the layer in which values began that are not finite.

use super::stored::StoredValues;
use partita_run::RunError;
use partita_session::{Boundary, Failed, Next, Position, Repeat, StepHook};
use partita_site::launch::{Agreement, Decision, MakeStepHook, RepeatFrom, Vote};
use partita_space::{Rank, Seconds};
use partita_weights::checkpoint::{Checkpoint, CheckpointError};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Steps are repeated if they took less time than this.
const REPEAT_MAX: Seconds = Seconds(600.0);

/// Whether steps took little enough time to be repeated.
pub fn is_short(seconds: Seconds) -> bool {
    seconds < REPEAT_MAX
}

/// A checkpoint from which no step can be repeated.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum UnreadableCheckpoint {
    Checkpoint(#[from] CheckpointError),
    Position(#[from] serde_json::Error),
}

/// The checkpoint from which steps are repeated, opened by the first rank of this process that needs it.
#[derive(Default)]
pub struct Repetition {
    opened: OnceLock<Result<(Checkpoint, Position), UnreadableCheckpoint>>,
}

impl Repetition {
    fn open(&self, path: &Path) -> Result<&(Checkpoint, Position), &UnreadableCheckpoint> {
        let open = || {
            let checkpoint = Checkpoint::open(path)?;
            // As `TrainingState` writes it.
            let position = checkpoint.manifest().training["position"].clone();
            let position = serde_json::from_value(position)?;
            Ok((checkpoint, position))
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// A checkpoint, if it can be read and the steps after it are short; `seconds` is the time of all steps.
    pub fn after(&self, path: &Path, seconds: Seconds) -> Option<RepeatFrom> {
        let (_, position) = self.open(path).ok()?;
        let since = seconds - position.seconds;
        is_short(since).then(|| RepeatFrom::Checkpoint(path.to_owned()))
    }

    /// Position and values of what was decided.
    ///
    /// Errors: a checkpoint that this rank cannot read.
    pub fn start(&self, rank: Rank, decided: RepeatFrom) -> Result<Repeat<'_>, RunError> {
        let path: PathBuf = match decided {
            RepeatFrom::Nothing => return Ok(Repeat::Nothing),
            RepeatFrom::Start => return Ok(Repeat::Start),
            RepeatFrom::Checkpoint(path) => path,
        };
        let opened = self.open(&path);
        let (checkpoint, position) = opened.map_err(|error| RunError::Initial {
            rank,
            tensor: path.display().to_string(),
            reason: error.to_string(),
        })?;
        let stored = StoredValues::of(checkpoint);
        Ok(Repeat::From(
            position.clone(),
            Box::new(move |buffer, elements| stored.read(buffer, elements).map(Some)),
        ))
    }
}

/// Makes the hooks of a run without checkpoints.
pub struct Off;

struct NoCheckpoints<'a> {
    agreement: Box<dyn Agreement + 'a>,
}

impl StepHook for NoCheckpoints<'_> {
    fn after_step(&mut self, _: &mut Boundary<'_, '_>) -> Result<Next, RunError> {
        Ok(Next::Continue)
    }

    fn repeat_from(&mut self, failed: &Failed) -> Result<Repeat<'_>, RunError> {
        let votes = self.agreement.vote(failed.steps, Vote::default())?;
        let is_short = is_short(failed.seconds_of_run);
        let decision = votes.map(|_| Decision {
            repeat: if is_short {
                RepeatFrom::Start
            } else {
                RepeatFrom::Nothing
            },
            ..Decision::default()
        });
        let decision = self.agreement.decide(failed.steps, decision)?;
        Ok(match decision.repeat {
            RepeatFrom::Start => Repeat::Start,
            RepeatFrom::Nothing | RepeatFrom::Checkpoint(_) => Repeat::Nothing,
        })
    }
}

impl MakeStepHook for Off {
    fn hook<'a>(
        &'a self,
        _: Rank,
        agreement: Box<dyn Agreement + 'a>,
    ) -> Result<Box<dyn StepHook + 'a>, RunError> {
        Ok(Box::new(NoCheckpoints { agreement }))
    }
}
