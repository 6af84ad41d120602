//! Metrics of a run in the output folder, written while it trains: JSON lines, CSV, event files of TensorBoard and
//! log lines of MLPerf.

mod events;
mod mlperf;

use super::error::OutputError;
use super::run::Run;
use events::EventFile;
use mlperf::MlperfLog;
use partita_session::{EpochReport, Progress, Validation};
use partita_space::Seconds;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// A JSON object per step and epoch.
    JsonLines,
    /// A row per epoch.
    Csv,
    /// Scalars for TensorBoard.
    TensorBoard,
    /// `:::MLLOG` lines of MLPerf HPC.
    Mlperf,
}

impl MetricsFormat {
    /// All formats, with their words in a run file.
    pub const CHOICES: [(&'static str, Self); 4] = [
        ("jsonl", Self::JsonLines),
        ("csv", Self::Csv),
        ("tensorboard", Self::TensorBoard),
        ("mlperf", Self::Mlperf),
    ];

    /// Name of its file in the output folder.
    pub fn file(self) -> &'static str {
        match self {
            Self::JsonLines => "metrics.jsonl",
            Self::Csv => "epochs.csv",
            Self::TensorBoard => "events.out.tfevents.partita",
            Self::Mlperf => "mlperf.log",
        }
    }
}

/// Files of metrics that a folder may hold.
pub const METRICS_FILES: [&str; 4] = [
    "metrics.jsonl",
    "epochs.csv",
    "events.out.tfevents.partita",
    "mlperf.log",
];

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The open files of metrics. A write error ends the writing of metrics, but not the training.
pub struct Metrics {
    writers: Mutex<Vec<(PathBuf, Writer)>>,
    fault: Mutex<Option<String>>,
}

enum Writer {
    JsonLines(File),
    Csv(File),
    TensorBoard(EventFile<File>),
    Mlperf(MlperfLog<File>),
}

impl Metrics {
    /// Creates the files that the run asks for, and removes others of an earlier run, which it may replace.
    ///
    /// Errors: a file that cannot be created.
    pub fn open(run: &Run, folder: &Path) -> Result<Self, OutputError> {
        let mut writers = Vec::new();
        for name in METRICS_FILES {
            // One that cannot be removed cannot be created, either, or is none of ours.
            let _ = fs::remove_file(folder.join(name));
        }
        for &format in &run.metrics {
            let path = folder.join(format.file());
            let made = File::create(&path).and_then(|file| Writer::start(format, file, run));
            match made {
                Ok(writer) => writers.push((path, writer)),
                Err(source) => return Err(OutputError::Metrics { file: path, source }),
            }
        }
        Ok(Self {
            writers: Mutex::new(writers),
            fault: Mutex::new(None),
        })
    }

    /// Writes what is new.
    pub fn add(&self, progress: &Progress) {
        let Ok(mut writers) = self.writers.lock() else {
            return;
        };
        writers.retain_mut(|(path, writer)| match writer.add(progress) {
            Ok(()) => true,
            Err(error) => {
                let text = format!("{} is incomplete: {error}", path.display());
                if let Ok(mut fault) = self.fault.lock() {
                    fault.get_or_insert(text);
                }
                false
            }
        });
    }

    /// The first failure.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().ok().and_then(|fault| fault.clone())
    }
}

impl Writer {
    fn start(format: MetricsFormat, mut file: File, run: &Run) -> io::Result<Self> {
        Ok(match format {
            MetricsFormat::JsonLines => Self::JsonLines(file),
            MetricsFormat::Csv => {
                writeln!(
                    file,
                    "epoch,training_loss,samples,seconds,samples_per_second,validation_loss,\
                     validation_samples,accuracy"
                )?;
                Self::Csv(file)
            }
            MetricsFormat::TensorBoard => Self::TensorBoard(EventFile::start(file, now())?),
            MetricsFormat::Mlperf => Self::Mlperf(MlperfLog::start(file, run)?),
        })
    }

    fn add(&mut self, progress: &Progress) -> io::Result<()> {
        match self {
            Self::JsonLines(file) => match line(progress) {
                None => Ok(()),
                Some(line) => {
                    let text = serde_json::to_string(&line)? + "\n";
                    file.write_all(text.as_bytes())
                }
            },
            Self::Csv(file) => match progress {
                Progress::Epoch(epoch) => file.write_all(row(epoch).as_bytes()),
                Progress::Step { .. } | Progress::Evaluated { .. } | Progress::Done { .. } => {
                    Ok(())
                }
            },
            Self::TensorBoard(file) => add_scalars(file, progress),
            Self::Mlperf(log) => log.add(progress),
        }
    }
}

/// An object of the JSON lines.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line<'p> {
    Step {
        epoch: u64,
        step: u64,
        loss: f64,
        learning_rate: f64,
        samples: usize,
        seconds: Seconds,
        samples_per_second: f64,
    },
    Epoch {
        epoch: u64,
        training_loss: f64,
        samples: usize,
        seconds: Seconds,
        samples_per_second: f64,
        validation: Option<&'p Validation>,
        accuracy: Option<f64>,
        dice: Vec<Option<f64>>,
    },
    Done {
        steps: u64,
        seconds: Seconds,
    },
}

fn line(progress: &Progress) -> Option<Line<'_>> {
    Some(match progress {
        &Progress::Step {
            epoch,
            step,
            loss,
            learning_rate,
            samples,
            seconds,
        } => Line::Step {
            epoch: epoch + 1,
            step,
            loss,
            learning_rate,
            samples,
            seconds,
            samples_per_second: samples as f64 / seconds.0,
        },
        Progress::Evaluated { .. } => return None,
        Progress::Epoch(epoch) => Line::Epoch {
            epoch: epoch.epoch + 1,
            training_loss: epoch.training_loss,
            samples: epoch.samples,
            seconds: epoch.training_seconds,
            samples_per_second: epoch.samples as f64 / epoch.training_seconds.0,
            validation: epoch.validation.as_ref(),
            accuracy: epoch.validation.as_ref().and_then(Validation::accuracy),
            dice: dice(epoch),
        },
        &Progress::Done { steps, seconds } => Line::Done { steps, seconds },
    })
}

/// Of each class of a classifier.
fn dice(epoch: &EpochReport) -> Vec<Option<f64>> {
    let classes = epoch.validation.iter().flat_map(|one| &one.classes);
    classes.map(|class| class.dice()).collect()
}

fn row(epoch: &EpochReport) -> String {
    let text = |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
    let validation = epoch.validation.as_ref();
    format!(
        "{},{},{},{},{},{},{},{}\n",
        epoch.epoch + 1,
        epoch.training_loss,
        epoch.samples,
        epoch.training_seconds.0,
        epoch.samples as f64 / epoch.training_seconds.0,
        text(validation.map(|one| one.loss)),
        validation.map_or_else(String::new, |one| one.samples.to_string()),
        text(validation.and_then(Validation::accuracy)),
    )
}

fn add_scalars(file: &mut EventFile<File>, progress: &Progress) -> io::Result<()> {
    match progress {
        Progress::Step {
            step,
            loss,
            learning_rate,
            samples,
            seconds,
            ..
        } => {
            let rate = *samples as f64 / seconds.0;
            let scalars = [
                ("train/loss", *loss),
                ("train/learning_rate", *learning_rate),
                ("train/samples_per_second", rate),
            ];
            file.scalars(now(), *step, &scalars)
        }
        Progress::Epoch(epoch) => {
            let mut scalars = vec![("epoch/training_loss".to_owned(), epoch.training_loss)];
            if let Some(validation) = &epoch.validation {
                scalars.push(("epoch/validation_loss".to_owned(), validation.loss));
                let accuracy = validation.accuracy();
                scalars.extend(accuracy.map(|share| ("epoch/accuracy".to_owned(), share)));
            }
            for (class, dice) in dice(epoch).into_iter().enumerate() {
                scalars.extend(dice.map(|dice| (format!("epoch/dice/{class}"), dice)));
            }
            let scalars: Vec<_> = scalars
                .iter()
                .map(|(tag, value)| (&**tag, *value))
                .collect();
            file.scalars(now(), epoch.epoch + 1, &scalars)
        }
        Progress::Evaluated { .. } | Progress::Done { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_file() {
        let files = MetricsFormat::CHOICES.map(|(_, format)| format.file());
        assert_eq!(files, METRICS_FILES);
    }
}
