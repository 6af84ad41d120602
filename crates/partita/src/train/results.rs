use super::output::{PREDICTION, RESULT, TRACE, WEIGHTS, rescue_folders};
use super::run_file::RunFile;
use super::weights::SavedWeights;
use crate::compare::accuracy;
use crate::error::CliError;
use crate::launch::Taken;
use crate::launch::memory;
use crate::table::{Side, Table, write_pairs};
use crate::trace;
use partita_oracle::compare::Pair;
use partita_oracle::{Comparison, Prediction, compare};
use partita_program::Program;
use partita_run::{ClassCount, Footprint, Outcome, Trace, Validation};
use partita_space::{Bytes, Seconds};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Write};
use std::iter::once;
use std::path::{Path, PathBuf};

/// Classes of which the report has a row each.
const CLASSES_SHOWN_MAX: usize = 20;

/// A run that came to its end.
pub struct Finished<'r> {
    /// As it was asked for, with what the command line overrode.
    pub run: &'r RunFile,
    /// As `auto` was resolved.
    pub strategy: String,
    /// Names of the targets.
    pub targets: &'r [String],
    /// The training program of full size.
    pub program: &'r Program,
    /// Memory of each rank, said before the run.
    pub footprints: Vec<Footprint>,
    /// Memory that the run took.
    pub taken: Taken,
    /// In rank order.
    pub outcomes: Vec<Outcome>,
    /// Parameters and states.
    pub weights: SavedWeights,
    /// Said before the run.
    pub prediction: Option<Prediction>,
    /// Things worth knowing about the numbers.
    pub warnings: Vec<String>,
}

/// Where the files of a run are.
pub struct Files {
    weights: PathBuf,
    /// The folder of all others; none where no folder could take them.
    records: Option<PathBuf>,
}

impl Files {
    fn record(&self, name: &str) -> Option<PathBuf> {
        self.records.as_ref().map(|folder| folder.join(name))
    }
}

/// What [`Finished::save`] did.
pub struct Saved {
    /// As it was written.
    pub result: Value,
    files: Files,
    /// What did not go as it was asked for.
    faults: Vec<String>,
}

impl Saved {
    /// What the user has to know and do where files are not where they were asked for.
    pub fn check(&self) -> Result<(), CliError> {
        if self.faults.is_empty() {
            return Ok(());
        }
        let records = match &self.files.records {
            Some(folder) => format!("the other files in {}", folder.display()),
            None => "the result could not be written anywhere, but was printed".to_owned(),
        };
        Err(CliError::Run(format!(
            "{}; the run is complete, its weights are {}, {records}: move them to where they belong",
            self.faults.join("; "),
            self.files.weights.display()
        )))
    }
}

/// Writes a file as a whole, for good.
pub fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let written = partita_files::write_whole(path, text.as_bytes());
    written.map_err(|error| CliError::Run(format!("{} cannot be written: {error}", path.display())))
}

/// Share of the positions that are of each class.
fn shares(validation: &Validation) -> Vec<f64> {
    let all: f64 = validation.classes.iter().map(|class| class.actual).sum();
    let share = |class: &ClassCount| class.actual / all;
    validation.classes.iter().map(share).collect()
}

/// Over the classes that have it; `None` if none has.
fn mean(validation: &Validation, figure: fn(&ClassCount) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = validation.classes.iter().filter_map(figure).collect();
    let count = figures.len();
    (count > 0).then(|| figures.iter().sum::<f64>() / count as f64)
}

/// As files hold it.
pub fn pretty(value: &impl serde::Serialize) -> Result<String, CliError> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

impl Finished<'_> {
    /// Writes result and trace beside the weights, which are safe already. Where that folder has no room
    /// for them, they go to another one.
    ///
    /// Errors: a result that JSON cannot hold.
    pub fn save(&mut self) -> Result<Saved, CliError> {
        let mut faults = self.weights.faults.clone();
        let weights = self.weights.folder().join(WEIGHTS);
        let folders = once(self.weights.folder().to_owned())
            .chain(rescue_folders(self.weights.output.path()));
        let mut saved = None;
        for folder in folders {
            match self.save_result(&weights, &folder)? {
                Ok(result) => {
                    saved = Some((folder, result));
                    break;
                }
                Err(error) => faults.push(format!(
                    "{} cannot hold the result ({error})",
                    folder.display()
                )),
            }
        }
        let Some((folder, mut result)) = saved else {
            let files = Files {
                weights,
                records: None,
            };
            let result = self.result(&files)?;
            return Ok(Saved {
                result,
                files,
                faults,
            });
        };
        // The trace is the largest of these and the easiest to do without.
        let record = trace::record(self.program, &self.traces()).to_string();
        if let Err(error) = partita_files::write_whole(&folder.join(TRACE), record.as_bytes()) {
            faults.push(format!(
                "the trace cannot be written to {} ({error})",
                folder.display()
            ));
            result["files"]["trace"] = Value::Null;
            // The old text stands where the new one has no room either.
            let _ = partita_files::write_whole(&folder.join(RESULT), pretty(&result)?.as_bytes());
        }
        let files = Files {
            weights,
            records: Some(folder),
        };
        Ok(Saved {
            result,
            files,
            faults,
        })
    }

    /// Writes prediction and result to a folder, which is made if there is none.
    fn save_result(
        &mut self,
        weights: &Path,
        folder: &Path,
    ) -> Result<io::Result<Value>, CliError> {
        let files = Files {
            weights: weights.to_owned(),
            records: Some(folder.to_owned()),
        };
        let result = self.result(&files)?;
        let prediction = self.prediction.as_ref().map(pretty).transpose()?;
        let text = pretty(&result)?;
        let is_asked_for = folder == self.weights.output.path();
        let write = || {
            if !folder.is_dir() {
                fs::create_dir(folder)?;
            }
            match prediction {
                // What was written before the run.
                Some(_) if is_asked_for => self.weights.output.place_prediction()?,
                Some(text) => {
                    partita_files::write_whole(&folder.join(PREDICTION), text.as_bytes())?
                }
                None => {}
            }
            partita_files::write_whole(&folder.join(RESULT), text.as_bytes())
        };
        let written = write();
        if written.is_err() && !is_asked_for {
            // Whatever is in it is worth keeping.
            let _ = fs::remove_dir(folder);
        }
        Ok(written.map(|()| result))
    }

    fn traces(&self) -> Vec<Trace> {
        self.outcomes
            .iter()
            .flat_map(|outcome| outcome.traces.clone())
            .collect()
    }

    fn first(&self) -> &Outcome {
        &self.outcomes[0]
    }

    fn validation(&self) -> Option<&Validation> {
        self.first().epochs.last()?.validation.as_ref()
    }

    fn comparison(&self) -> Option<Comparison> {
        let prediction = self.prediction.as_ref()?;
        compare(
            prediction,
            self.program,
            &self.program.digest(),
            &self.traces(),
        )
        .ok()
    }

    fn samples_per_second(&self) -> f64 {
        let samples: usize = self.first().epochs.iter().map(|epoch| epoch.samples).sum();
        let seconds: Seconds = self
            .first()
            .epochs
            .iter()
            .map(|epoch| epoch.training_seconds)
            .sum();
        samples as f64 / seconds.0
    }

    fn result(&self, files: &Files) -> Result<Value, CliError> {
        let run = self.run;
        let first = self.first();
        let epochs: Vec<Value> = first
            .epochs
            .iter()
            .map(|epoch| {
                json!({
                    "epoch": epoch.epoch + 1,
                    "training_loss": epoch.training_loss,
                    "samples": epoch.samples,
                    "seconds": epoch.training_seconds,
                    "validation": epoch.validation.as_ref().map(|v| self.validation_record(v)),
                })
            })
            .collect();
        let record = |name: &str| files.record(name).map(|path| path.display().to_string());
        Ok(json!({
            "model": run.model,
            "data": run.data.display().to_string(),
            "strategy": self.strategy,
            "ranks": run.ranks,
            "threads": run.threads,
            "kernels": run.kernels.name(),
            "precision": run.precision.name(),
            "batch": run.batch,
            "seed": run.seed,
            "digest": self.program.digest(),
            "steps": first.steps,
            "seconds": first.seconds,
            "samples_per_second": self.samples_per_second(),
            "step_seconds_median": first.step_seconds,
            "steps_measured": first.measured_steps,
            "epochs": epochs,
            "memory": self.memory_record(),
            "comparison": self.comparison().map(serde_json::to_value).transpose()?,
            "tasks": self.task_records(),
            "files": {
                "trace": record(TRACE),
                "weights": files.weights.display().to_string(),
                "result": record(RESULT),
                "prediction": self.prediction.as_ref().and_then(|_| record(PREDICTION)),
            },
            "warnings": self.warnings,
        }))
    }

    fn validation_record(&self, validation: &Validation) -> Value {
        let errors: Vec<Value> = self
            .errors(validation)
            .map(|(target, mean_absolute, rms)| {
                json!({ "target": target, "mean_absolute": mean_absolute, "rms": rms })
            })
            .collect();
        json!({
            "loss": validation.loss,
            "samples": validation.samples,
            "seconds": validation.seconds,
            "errors": errors,
            "classification": self.classification_record(validation),
        })
    }

    /// `None` of a regression.
    fn classification_record(&self, validation: &Validation) -> Option<Value> {
        let accuracy = validation.accuracy()?;
        let share = shares(validation);
        let classes = self.named_classes(validation).zip(&share);
        let classes = classes.map(|((class, count), share)| {
            json!({
                "class": class,
                "share": share,
                "dice": count.dice(),
                "overlap": count.overlap(),
            })
        });
        Some(json!({
            "accuracy": accuracy,
            "largest_share": share.iter().copied().fold(0.0, f64::max),
            "mean_dice": mean(validation, ClassCount::dice),
            "mean_overlap": mean(validation, ClassCount::overlap),
            "classes": classes.collect::<Vec<Value>>(),
        }))
    }

    /// Classes that the dataset names, or all where it names none.
    fn named_classes<'v>(
        &'v self,
        validation: &'v Validation,
    ) -> impl Iterator<Item = (String, &'v ClassCount)> {
        let named = match self.targets.len() {
            0 => validation.classes.len(),
            named => named,
        };
        let name = |class: usize| match self.targets.get(class) {
            Some(name) => name.clone(),
            None => format!("class {class}"),
        };
        let counts = validation.classes.iter().take(named).enumerate();
        counts.map(move |(class, count)| (name(class), count))
    }

    /// Per target its name, the mean absolute error and the root of the mean squared error.
    fn errors<'v>(
        &'v self,
        validation: &'v Validation,
    ) -> impl Iterator<Item = (&'v str, f64, f64)> {
        let count = validation.samples as f64;
        let sums = validation.absolute.iter().zip(&validation.squared);
        let targets = self.targets.iter().zip(sums);
        targets.map(move |(target, (absolute, squared))| {
            (target.as_str(), absolute / count, (squared / count).sqrt())
        })
    }

    fn memory_record(&self) -> Value {
        let arenas = self.footprints.iter().map(Footprint::arena);
        let all: Footprint = self.footprints.iter().copied().sum();
        json!({
            "predicted_arena_bytes_max": arenas.max(),
            "predicted_arena_bytes": all.arena(),
            "allocated_arena_bytes": self.taken.arenas.iter().copied().sum::<Bytes>(),
            "predicted_bytes": all.total(),
            "predicted": all,
            "measured_peak_bytes": self.taken.peak,
            "measured_peak_saving_bytes": self.taken.peak_saving,
            "method": memory::METHOD,
        })
    }

    /// Median seconds of every task of the first rank of each class.
    fn task_records(&self) -> Vec<Value> {
        let representatives = self.program.representatives();
        let of_class = |(class, rank): (usize, usize)| {
            let tasks = &self.program.bodies[class].tasks;
            let seconds = &self.outcomes[rank].task_seconds;
            let rows = tasks.iter().zip(seconds).enumerate();
            rows.map(move |(task, (body, seconds))| {
                json!({
                    "class": class,
                    "task": task,
                    "layer": body.origin.layer,
                    "kind": body.work.name(),
                    "phase": body.origin.phase.name(),
                    "seconds_median": seconds,
                })
            })
            .collect::<Vec<_>>()
        };
        representatives
            .into_iter()
            .enumerate()
            .flat_map(of_class)
            .collect()
    }

    /// Writes what people want to know.
    pub fn write_report(&self, files: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        let first = self.first();
        let arenas = self.footprints.iter().map(Footprint::arena);
        let largest = arenas.max().unwrap_or_default();
        let all: Footprint = self.footprints.iter().copied().sum();
        let peak = self
            .taken
            .peak
            .map_or_else(|| "not told".to_owned(), |peak| peak.to_string());
        write_pairs(
            out,
            &[
                ("program", self.program.title.clone()),
                ("steps", format!("{} in {}", first.steps, first.seconds)),
                (
                    "throughput",
                    format!("{:.1} samples/s", self.samples_per_second()),
                ),
                (
                    "step",
                    format!(
                        "{} (median of {})",
                        first.step_seconds, first.measured_steps
                    ),
                ),
                (
                    "memory predicted",
                    format!(
                        "{}: {} in all arenas, {largest} in the largest, and {} of buffers",
                        all.total(),
                        all.arena(),
                        all.beside_arena()
                    ),
                ),
                (
                    "memory measured",
                    format!("{peak} at the peak of the steps, above that before the arenas"),
                ),
            ],
        )?;
        writeln!(out)?;
        self.write_seconds(out)?;
        if let Some(validation) = self.validation() {
            writeln!(out)?;
            self.write_errors(validation, out)?;
        }
        writeln!(out)?;
        for name in ["trace", "weights", "result"] {
            writeln!(
                out,
                "{name:8} {}",
                files[name].as_str().unwrap_or("not written")
            )?;
        }
        Ok(())
    }

    fn write_errors(&self, validation: &Validation, out: &mut dyn Write) -> Result<(), CliError> {
        if let Some(accuracy) = validation.accuracy() {
            return self.write_classes(validation, accuracy, out);
        }
        let mut table = Table::new(&[
            ("validation error", Side::Left),
            ("mean absolute", Side::Right),
            ("rms", Side::Right),
        ]);
        for (target, mean_absolute, rms) in self.errors(validation) {
            table.row(vec![
                target.to_owned(),
                format!("{mean_absolute:.4}"),
                format!("{rms:.4}"),
            ]);
        }
        table.write(out)
    }

    fn write_classes(
        &self,
        validation: &Validation,
        accuracy: f64,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let share = shares(validation);
        let largest = share.iter().copied().fold(0.0, f64::max);
        let or_none = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
        };
        write_pairs(
            out,
            &[
                (
                    "accuracy",
                    format!(
                        "{} ({} by always answering the most frequent class)",
                        percent(accuracy),
                        percent(largest)
                    ),
                ),
                ("mean Dice", or_none(mean(validation, ClassCount::dice))),
                (
                    "mean overlap",
                    or_none(mean(validation, ClassCount::overlap)),
                ),
            ],
        )?;
        if self.named_classes(validation).count() > CLASSES_SHOWN_MAX {
            return Ok(());
        }
        writeln!(out)?;
        let mut table = Table::new(&[
            ("validation", Side::Left),
            ("share", Side::Right),
            ("Dice", Side::Right),
            ("overlap", Side::Right),
        ]);
        for ((class, count), share) in self.named_classes(validation).zip(share) {
            let (dice, overlap) = (or_none(count.dice()), or_none(count.overlap()));
            table.row(vec![class, percent(share), dice, overlap]);
        }
        table.write(out)
    }

    fn write_seconds(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let Some(comparison) = self.comparison() else {
            writeln!(
                out,
                "Nothing was predicted for this machine, so there is nothing to compare."
            )?;
            return Ok(());
        };
        let mut table = Table::new(&[
            ("seconds of a step", Side::Left),
            ("predicted", Side::Right),
            ("measured", Side::Right),
            ("accuracy", Side::Right),
        ]);
        let mut row = |name: &str, pair: &Pair| {
            let accuracy = accuracy(pair);
            let (predicted, measured) = (pair.predicted.to_string(), pair.measured.to_string());
            table.row(vec![name.to_owned(), predicted, measured, accuracy]);
        };
        row("iteration", &comparison.iteration);
        row("all kernels", &comparison.compute);
        for (kind, pair) in &comparison.by_kind {
            row(kind, pair);
        }
        table.write(out)
    }
}
