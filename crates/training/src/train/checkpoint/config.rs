//! The table `[checkpoint]` of a run file.

use super::super::section::{RunFileError, Section};
use partita_session::{ClassCount, EpochReport, Validation};
use partita_space::Seconds;
use std::path::PathBuf;

const KEYS: [&str; 5] = ["every_epochs", "every_steps", "every", "best", "keep"];
/// Checkpoints that are kept besides the best one (default).
const KEEP: u64 = 2;

/// When checkpoints are written, and which are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointConfig {
    /// At the end of every n-th epoch; 0 for none. Not given: at the end of an epoch, at most every ten seconds.
    pub every_epochs: Option<u64>,
    /// After every n-th training step.
    pub every_steps: Option<u64>,
    /// After so much time.
    pub every: Option<Seconds>,
    /// At the end of an epoch with the best value of this metric so far.
    pub best: Option<BestMetric>,
    /// The last ones that are kept, besides the best one; 0 for no checkpoints.
    pub keep: usize,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            every_epochs: None,
            every_steps: None,
            every: None,
            best: None,
            keep: KEEP as usize,
        }
    }
}

impl CheckpointConfig {
    /// No checkpoints.
    pub const NONE: Self = Self {
        every_epochs: None,
        every_steps: None,
        every: None,
        best: None,
        keep: 0,
    };

    /// Whether checkpoints are written at all.
    pub fn is_on(&self) -> bool {
        self.keep > 0
    }

    /// Most checkpoints on the disk at once, one that is being written included.
    pub fn stored_max(&self) -> u64 {
        match self.keep as u64 {
            0 => 0,
            keep => keep + 1 + u64::from(self.best.is_some()),
        }
    }
}

/// Which checkpoint a training resumes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResumeFrom {
    /// None: it starts from the beginning.
    #[default]
    Start,
    /// The newest one of the output folder.
    Newest,
    /// The newest one of the output folder, or none if there is none.
    Auto,
    /// This one, or the newest one of this folder.
    Path(PathBuf),
}

/// A metric by which the best checkpoint is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BestMetric {
    /// The lowest mean loss of training.
    TrainingLoss,
    /// The lowest mean loss of the validation.
    ValidationLoss,
    /// The lowest mean absolute error over all targets of the validation.
    MeanAbsoluteError,
    /// The highest fraction of positions predicted correctly.
    Accuracy,
    /// The highest mean Dice coefficient of the classes.
    MeanDice,
    /// The highest mean intersection over union of the classes.
    MeanOverlap,
    /// The highest mean over samples of the mean Dice coefficient of their foreground.
    SampleDice,
}

impl BestMetric {
    /// All metrics with their names.
    pub const CHOICES: [(&'static str, Self); 7] = [
        ("training_loss", Self::TrainingLoss),
        ("validation_loss", Self::ValidationLoss),
        ("mean_absolute_error", Self::MeanAbsoluteError),
        ("accuracy", Self::Accuracy),
        ("mean_dice", Self::MeanDice),
        ("mean_overlap", Self::MeanOverlap),
        ("sample_dice", Self::SampleDice),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = Self::CHOICES.iter().find(|(_, metric)| *metric == self);
        found.map_or("", |(name, _)| name)
    }

    /// Its value after an epoch; `None` if the run does not have it.
    pub fn value(self, epoch: &EpochReport) -> Option<f64> {
        let validation = epoch.validation.as_ref();
        match self {
            Self::TrainingLoss => Some(epoch.training_loss),
            Self::ValidationLoss => validation.map(|it| it.loss),
            Self::MeanAbsoluteError => validation.and_then(mean_absolute_error),
            Self::Accuracy => validation.and_then(Validation::accuracy),
            Self::MeanDice => validation.and_then(|it| mean(it, ClassCount::dice)),
            Self::MeanOverlap => validation.and_then(|it| mean(it, ClassCount::iou)),
            Self::SampleDice => validation.and_then(Validation::sample_dice),
        }
    }

    /// Whether a value is better than another.
    pub fn is_better(self, value: f64, than: f64) -> bool {
        self.is_better_by(value, than, 0.0)
    }

    /// Whether a value is better than another by more than a difference of at least 0.
    pub fn is_better_by(self, value: f64, than: f64, by: f64) -> bool {
        match self {
            Self::TrainingLoss | Self::ValidationLoss | Self::MeanAbsoluteError => {
                value < than - by
            }
            Self::Accuracy | Self::MeanDice | Self::MeanOverlap | Self::SampleDice => {
                value > than + by
            }
        }
    }

    /// Whether it is a fraction from 0 to 1.
    pub fn is_fraction(self) -> bool {
        match self {
            Self::Accuracy | Self::MeanDice | Self::MeanOverlap | Self::SampleDice => true,
            Self::TrainingLoss | Self::ValidationLoss | Self::MeanAbsoluteError => false,
        }
    }

    /// What a run must have for it: validation samples, and whether the model classifies.
    pub fn needs(self) -> (bool, Option<bool>) {
        match self {
            Self::TrainingLoss => (false, None),
            Self::ValidationLoss => (true, None),
            Self::MeanAbsoluteError => (true, Some(false)),
            Self::Accuracy | Self::MeanDice | Self::MeanOverlap | Self::SampleDice => {
                (true, Some(true))
            }
        }
    }
}

fn mean_absolute_error(validation: &Validation) -> Option<f64> {
    let count = validation.absolute.len() * validation.samples;
    (count > 0).then(|| validation.absolute.iter().sum::<f64>() / count as f64)
}

/// Mean over the classes that have the figure; `None` if none has.
fn mean(validation: &Validation, figure: fn(&ClassCount) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = validation.classes.iter().filter_map(figure).collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// The table `[checkpoint]`, or its defaults.
pub fn section(top: &Section<'_>) -> Result<CheckpointConfig, RunFileError> {
    let Some(section) = top.section("checkpoint")? else {
        return Ok(CheckpointConfig::default());
    };
    section.check(&KEYS)?;
    let keep = section.natural("keep")?.unwrap_or(KEEP);
    let best = section.choice("best", &BestMetric::CHOICES)?;
    if keep == 0 && best.is_some() {
        return Err(section.refuse(
            "keep",
            "1 or more with `best`, whose weights are those of a checkpoint",
        ));
    }
    Ok(CheckpointConfig {
        every_epochs: section.natural("every_epochs")?,
        every_steps: section.count("every_steps")?.map(|steps| steps as u64),
        every: section.time("every", "10 min")?,
        best,
        keep: usize::try_from(keep)
            .unwrap_or(usize::MAX >> 8)
            .min(1 << 24),
    })
}
