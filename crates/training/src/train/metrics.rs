//! Metrics of a run in the output folder, written while it trains: JSON lines, CSV, event files of TensorBoard and
//! log lines of MLPerf.

mod classes;
mod events;
mod format;
mod mlperf;

use super::error::OutputError;
use super::run::Run;
use super::utilization::{ComputeTimes, UtilizationScale};
pub use classes::ClassNames;
use events::{EventFile, kept_events};
pub use format::MetricsFormat;
use mlperf::MlperfLog;
use partita_files::RECORD_BYTES_MAX;
use partita_input::{EpochLoads, LoadTally};
use partita_session::{EpochReport, LossScale, Position, Progress, Validation};
use partita_space::Seconds;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Files of metrics that a folder may hold.
pub const METRICS_FILES: [&str; 4] = [
    MetricsFormat::JsonLines.file(),
    MetricsFormat::Csv.file(),
    MetricsFormat::TensorBoard.file(),
    MetricsFormat::Mlperf.file(),
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
    scale: UtilizationScale,
    tally: Arc<LoadTally>,
    classes: ClassNames,
}

/// What is known of a run besides its progress.
#[derive(Clone, Copy)]
struct Known<'m> {
    scale: &'m UtilizationScale,
    tally: &'m LoadTally,
    classes: &'m ClassNames,
}

enum Writer {
    JsonLines(File),
    Csv(File),
    TensorBoard(EventFile<File>),
    Mlperf(MlperfLog<File>),
}

impl Metrics {
    /// Creates the files that the run asks for, and removes those of an earlier run, which it may replace. A run that
    /// resumes goes on with its files: rows of steps and epochs that it repeats are cut, logs and events stay.
    ///
    /// `samples` are those of an epoch, to train on and to validate; `classes` are named in tables and events. Errors: a file that cannot be created.
    pub fn open(
        (run, samples, classes): (&Run, [usize; 2], ClassNames),
        folder: &Path,
        resumed: Option<&Position>,
        scale: UtilizationScale,
        tally: Arc<LoadTally>,
    ) -> Result<Self, OutputError> {
        let mut writers = Vec::new();
        if resumed.is_none() {
            for path in earlier_files(folder) {
                // One that cannot be removed cannot be created, either, or is none of ours.
                let _ = fs::remove_file(path);
            }
        }
        if let Some(position) = resumed {
            cut_events(folder, position);
        }
        for &format in &run.metrics {
            let path = folder.join(match resumed {
                Some(position) if format == MetricsFormat::TensorBoard => {
                    format!("{}.step-{}", format.file(), position.updates)
                }
                Some(_) | None => format.file().to_owned(),
            });
            let made = kept_rows(format, &path, resumed).and_then(|kept| {
                let file = open_file(&path, format == MetricsFormat::Mlperf && resumed.is_some())?;
                Writer::start(format, file, (run, samples, &classes), &kept)
            });
            match made {
                Ok(mut writer) => {
                    if let (Writer::Mlperf(log), Some(position)) = (&mut writer, resumed) {
                        log.resume(&position.epochs);
                    }
                    writers.push((path, writer));
                }
                Err(source) => return Err(OutputError::Metrics { file: path, source }),
            }
        }
        Ok(Self {
            writers: Mutex::new(writers),
            fault: Mutex::new(None),
            scale,
            tally,
            classes,
        })
    }

    /// Writes what is new.
    pub fn add(&self, progress: &Progress) {
        let known = Known {
            scale: &self.scale,
            tally: &self.tally,
            classes: &self.classes,
        };
        self.write(|writer| writer.add(progress, known));
    }

    /// Writes what is known of the whole run. Returns the first failure.
    pub fn finish(&self, compute: Option<&ComputeTimes>) -> Option<String> {
        self.write(|writer| writer.finish(compute));
        self.fault.lock().ok().and_then(|fault| fault.clone())
    }

    fn write(&self, write: impl Fn(&mut Writer) -> io::Result<()>) {
        let Ok(mut writers) = self.writers.lock() else {
            return;
        };
        writers.retain_mut(|(path, writer)| match write(writer) {
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
}

impl Writer {
    fn start(
        format: MetricsFormat,
        mut file: File,
        (run, samples, classes): (&Run, [usize; 2], &ClassNames),
        kept: &str,
    ) -> io::Result<Self> {
        Ok(match format {
            MetricsFormat::JsonLines => {
                file.write_all(kept.as_bytes())?;
                Self::JsonLines(file)
            }
            MetricsFormat::Csv => {
                writeln!(
                    file,
                    "epoch,training_loss,samples,seconds,samples_per_second,validation_loss,\
                     validation_samples,accuracy,flops_per_second,mfu,{}{}",
                    LOAD_COLUMNS.join(","),
                    classes.columns()
                )?;
                file.write_all(kept.as_bytes())?;
                Self::Csv(file)
            }
            MetricsFormat::TensorBoard => Self::TensorBoard(EventFile::start(file, now())?),
            MetricsFormat::Mlperf => Self::Mlperf(MlperfLog::start(file, run, samples)?),
        })
    }

    fn add(&mut self, progress: &Progress, known: Known<'_>) -> io::Result<()> {
        match self {
            Self::JsonLines(file) => match line(progress, known) {
                None => Ok(()),
                Some(line) => write_line(file, &line),
            },
            Self::Csv(file) => match progress {
                Progress::Epoch(epoch) => file.write_all(row(epoch, known).as_bytes()),
                Progress::Step { .. } | Progress::Evaluated { .. } | Progress::Done { .. } => {
                    Ok(())
                }
            },
            Self::TensorBoard(file) => add_scalars(file, progress, known),
            Self::Mlperf(log) => log.add(progress, known.scale),
        }
    }

    fn finish(&mut self, compute: Option<&ComputeTimes>) -> io::Result<()> {
        match (self, compute) {
            (Self::JsonLines(file), Some(compute)) => write_line(file, &Line::Ranks { compute }),
            (Self::Mlperf(log), Some(compute)) => log.add_ranks(compute),
            (Self::JsonLines(_) | Self::Csv(_) | Self::TensorBoard(_) | Self::Mlperf(_), _) => {
                Ok(())
            }
        }
    }
}

fn write_line(file: &mut File, line: &Line<'_>) -> io::Result<()> {
    let text = serde_json::to_string(line)? + "\n";
    file.write_all(text.as_bytes())
}

/// Files of metrics in a folder, those of resumed runs included.
fn earlier_files(folder: &Path) -> Vec<PathBuf> {
    let events = format!("{}.step-", MetricsFormat::TensorBoard.file());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let resumed = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&events))
    });
    let files = METRICS_FILES.iter().map(|name| folder.join(name));
    files.chain(resumed).collect()
}

/// Cuts the events of steps and epochs that a resumed run repeats. A file that cannot be written stays as it is.
fn cut_events(folder: &Path, position: &Position) {
    let epochs = position.epochs.len() as u64;
    let keeps = |tag: &str, step: u64| {
        let is_of_epoch = tag.starts_with("epoch/");
        step <= if is_of_epoch {
            epochs
        } else {
            position.updates
        }
    };
    let is_event = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(MetricsFormat::TensorBoard.file()))
    };
    for path in earlier_files(folder).into_iter().filter(is_event) {
        let Ok(bytes) = partita_files::read(&path, RECORD_BYTES_MAX) else {
            continue;
        };
        let kept = kept_events(&bytes, keeps);
        if kept != bytes {
            let _ = partita_files::write_whole(&path, &kept);
        }
    }
}

fn open_file(path: &Path, appends: bool) -> io::Result<File> {
    if appends {
        OpenOptions::new().create(true).append(true).open(path)
    } else {
        File::create(path)
    }
}

/// Lines of steps and epochs that a resumed run does not repeat.
fn kept_rows(format: MetricsFormat, path: &Path, resumed: Option<&Position>) -> io::Result<String> {
    let Some(position) = resumed else {
        return Ok(String::new());
    };
    match format {
        MetricsFormat::JsonLines | MetricsFormat::Csv => {}
        // Not of lines that are cut; the file of events may be there already where a run resumes twice from a step.
        MetricsFormat::TensorBoard | MetricsFormat::Mlperf => return Ok(String::new()),
    }
    let epochs = position.epochs.len() as u64;
    let keeps = |line: &str| match format {
        MetricsFormat::JsonLines => {
            let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            let number = |key: &str| line[key].as_u64();
            match line["kind"].as_str() {
                Some("step") => number("step").is_some_and(|step| step <= position.updates),
                Some("epoch") => number("epoch").is_some_and(|epoch| epoch <= epochs),
                Some(_) | None => false,
            }
        }
        MetricsFormat::Csv => {
            let epoch = line.split(',').next().and_then(|text| text.parse().ok());
            epoch.is_some_and(|epoch: u64| epoch <= epochs)
        }
        MetricsFormat::TensorBoard | MetricsFormat::Mlperf => false,
    };
    let text = match partita_files::read_record(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let kept = text.lines().filter(|line| keeps(line));
    Ok(kept.map(|line| format!("{line}\n")).collect())
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
        #[serde(skip_serializing_if = "Option::is_none")]
        loss_scale: Option<LossScale>,
    },
    Epoch {
        epoch: u64,
        training_loss: f64,
        samples: usize,
        seconds: Seconds,
        samples_per_second: f64,
        flops_per_second: f64,
        mfu: Option<f64>,
        validation: Option<&'p Validation>,
        accuracy: Option<f64>,
        dice: Vec<Option<f64>>,
        /// Names of the classes of `dice`.
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        classes: &'p [String],
        #[serde(flatten)]
        loads: Option<EpochLoads>,
    },
    Done {
        steps: u64,
        seconds: Seconds,
    },
    Ranks {
        #[serde(flatten)]
        compute: &'p ComputeTimes,
    },
}

/// The names of the numbers of what was loaded.
const LOAD_COLUMNS: [&str; 6] = [
    "read_bytes",
    "memory_bytes",
    "spill_bytes",
    "sent_bytes",
    "received_bytes",
    "wait_seconds",
];

/// In the order of their names.
fn load_numbers(loads: EpochLoads) -> [f64; 6] {
    [
        loads.read.0 as f64,
        loads.memory.0 as f64,
        loads.spilled.0 as f64,
        loads.sent.0 as f64,
        loads.received.0 as f64,
        loads.waited.0,
    ]
}

/// Of the training of an epoch.
fn throughput(epoch: &EpochReport) -> f64 {
    epoch.samples as f64 / epoch.training_seconds.0
}

fn line<'p>(progress: &'p Progress, known: Known<'p>) -> Option<Line<'p>> {
    let Known { scale, tally, .. } = known;
    Some(match progress {
        &Progress::Step {
            epoch,
            step,
            loss,
            learning_rate,
            samples,
            seconds,
            loss_scale,
        } => Line::Step {
            epoch: epoch + 1,
            step,
            loss,
            learning_rate,
            samples,
            seconds,
            samples_per_second: samples as f64 / seconds.0,
            loss_scale,
        },
        Progress::Evaluated { .. } => return None,
        Progress::Epoch(epoch) => Line::Epoch {
            epoch: epoch.epoch + 1,
            training_loss: epoch.training_loss,
            samples: epoch.samples,
            seconds: epoch.training_seconds,
            samples_per_second: throughput(epoch),
            flops_per_second: scale.at(throughput(epoch)).flops_per_second.0,
            mfu: scale.at(throughput(epoch)).mfu,
            validation: epoch.validation.as_ref(),
            accuracy: epoch.validation.as_ref().and_then(Validation::accuracy),
            dice: dice(epoch),
            classes: known.classes.names(),
            loads: tally.epoch(epoch.epoch),
        },
        &Progress::Done { steps, seconds } => Line::Done { steps, seconds },
    })
}

/// Of each class of a classifier.
fn dice(epoch: &EpochReport) -> Vec<Option<f64>> {
    let classes = epoch.validation.iter().flat_map(|one| &one.classes);
    classes.map(|class| class.dice()).collect()
}

fn row(epoch: &EpochReport, known: Known<'_>) -> String {
    let Known { scale, tally, .. } = known;
    let text = |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
    let validation = epoch.validation.as_ref();
    let utilization = scale.at(throughput(epoch));
    let loads = tally.epoch(epoch.epoch).map(load_numbers);
    let loads = (0..LOAD_COLUMNS.len()).map(|at| text(loads.map(|numbers| numbers[at])));
    let loads: Vec<String> = loads.collect();
    format!(
        "{},{},{},{},{},{},{},{},{},{},{}{}\n",
        epoch.epoch + 1,
        epoch.training_loss,
        epoch.samples,
        epoch.training_seconds.0,
        throughput(epoch),
        text(validation.map(|one| one.loss)),
        validation.map_or_else(String::new, |one| one.samples.to_string()),
        text(validation.and_then(Validation::accuracy)),
        utilization.flops_per_second.0,
        text(utilization.mfu),
        loads.join(","),
        known.classes.cells(epoch),
    )
}

fn add_scalars(
    file: &mut EventFile<File>,
    progress: &Progress,
    Known {
        scale,
        tally,
        classes,
    }: Known<'_>,
) -> io::Result<()> {
    match progress {
        Progress::Step {
            step,
            loss,
            learning_rate,
            samples,
            seconds,
            loss_scale,
            ..
        } => {
            let rate = *samples as f64 / seconds.0;
            let mut scalars = vec![
                ("train/loss", *loss),
                ("train/learning_rate", *learning_rate),
                ("train/samples_per_second", rate),
            ];
            if let Some(LossScale { scale, skipped, .. }) = loss_scale {
                let skipped = *skipped as f64;
                scalars.extend([("train/loss_scale", *scale), ("train/skipped", skipped)]);
            }
            file.scalars(now(), *step, &scalars)
        }
        Progress::Epoch(epoch) => {
            let utilization = scale.at(throughput(epoch));
            let mut scalars = vec![
                ("epoch/training_loss".to_owned(), epoch.training_loss),
                ("epoch/samples_per_second".to_owned(), throughput(epoch)),
                (
                    "epoch/flops_per_second".to_owned(),
                    utilization.flops_per_second.0,
                ),
            ];
            scalars.extend(utilization.mfu.map(|mfu| ("epoch/mfu".to_owned(), mfu)));
            if let Some(validation) = &epoch.validation {
                scalars.push(("epoch/validation_loss".to_owned(), validation.loss));
                let accuracy = validation.accuracy();
                scalars.extend(accuracy.map(|share| ("epoch/accuracy".to_owned(), share)));
            }
            for (name, figure) in classes.figures(epoch) {
                scalars.extend(figure.map(|figure| (format!("epoch/{name}"), figure)));
            }
            let loads = tally.epoch(epoch.epoch).map(load_numbers);
            for (name, number) in LOAD_COLUMNS.into_iter().zip(loads.into_iter().flatten()) {
                scalars.push((format!("epoch/{name}"), number));
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

    #[test]
    fn a_resumed_run_keeps_rows_before_its_checkpoint() {
        let folder = tempfile::tempdir().expect("a folder");
        let position = Position {
            epoch: 1,
            done: 1,
            updates: 3,
            epochs: vec![EpochReport::default()],
            ..Position::default()
        };
        let cases = [
            (
                MetricsFormat::JsonLines,
                "{\"kind\":\"step\",\"step\":3}\n{\"kind\":\"epoch\",\"epoch\":1}\n",
                "{\"kind\":\"step\",\"step\":4}\n{\"kind\":\"done\"}\n{\"kind\":\"step\",\"st",
            ),
            (MetricsFormat::Csv, "1,0.5\n", "2,0.25\n"),
        ];
        for (format, kept, cut) in cases {
            let path = folder.path().join(format.file());
            fs::write(&path, format!("{kept}{cut}")).expect("a file of metrics");
            let found = kept_rows(format, &path, Some(&position)).expect("it can be read");
            assert_eq!(found, kept);
        }
        let events = folder.path().join("events.out.tfevents.partita.step-3");
        let mut file =
            EventFile::start(File::create(&events).expect("a file"), 2.5).expect("a start");
        let length = || fs::metadata(&events).expect("a file").len();
        let mut kept = 0;
        for (tag, step) in [
            ("train/loss", 3),
            ("epoch/loss", 1),
            ("train/loss", 4),
            ("epoch/loss", 2),
        ] {
            file.scalars(2.5, step, &[(tag, 0.5)]).expect("room");
            if step != 4 && (tag, step) != ("epoch/loss", 2) {
                kept = length();
            }
        }
        assert!(earlier_files(folder.path()).contains(&events));
        let found = kept_rows(MetricsFormat::TensorBoard, &events, Some(&position));
        assert_eq!(found.expect("events are no lines"), "");
        cut_events(folder.path(), &position);
        assert_eq!(length(), kept);
    }
}
