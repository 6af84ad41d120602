use super::company::Taken;
use super::memory;
use super::run_file::RunFile;
use crate::error::CliError;
use crate::table::{Side, Table, write_pairs};
use crate::trace;
use partita_data::weights::{Entry, Values, Writer};
use partita_oracle::compare::Pair;
use partita_oracle::{Comparison, Prediction, compare};
use partita_program::{Dtype, Program};
use partita_run::{ClassCount, Footprint, Lasting, Outcome, Packet, Session, Trace, Validation};
use partita_space::{Bytes, Seconds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const TRACE: &str = "trace.json";
const WEIGHTS: &str = "weights.safetensors";
const RESULT: &str = "result.json";
/// The prediction, in the output folder.
pub const PREDICTION: &str = "prediction.json";

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
    pub weights: WeightFile,
    /// Said before the run.
    pub prediction: Option<Prediction>,
    /// Things worth knowing about the numbers.
    pub warnings: Vec<String>,
}

/// Writes a file as a whole: beside its place first, then by one rename.
pub fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        // The cause is reported; a partial file that cannot be removed either adds nothing.
        let _ = fs::remove_file(&partial);
        CliError::Run(format!("{} cannot be written: {error}", path.display()))
    })
}

/// Stores a prediction before the run that it is about, and says where.
pub fn write_prediction(output: &Path, prediction: &Prediction) -> Result<PathBuf, CliError> {
    let path = output.join(PREDICTION);
    write_whole(&path, &pretty(prediction)?)?;
    Ok(path)
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

fn pretty(value: &impl serde::Serialize) -> Result<String, CliError> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// The file of the weights, written tensor by tensor.
pub struct WeightFile {
    path: PathBuf,
    metadata: BTreeMap<String, String>,
    tensors: Vec<Entry>,
    /// From the first tensor on.
    writer: Option<Writer>,
}

impl WeightFile {
    /// Nothing is written yet.
    pub fn new(run: &RunFile, session: &Session<'_>) -> Self {
        let metadata = [
            ("model", run.model.clone()),
            ("dims", "Kd, Kh, Kw, C, F".to_owned()),
            ("seed", run.seed.to_string()),
            ("epochs", run.epochs.to_string()),
            ("digest", session.main_program().digest()),
        ];
        let entry = |tensor: Lasting| Entry {
            is_wide: tensor.dtype == Dtype::F64,
            name: tensor.name,
            shape: tensor.dims.to_vec(),
        };
        Self {
            path: run.output.join(WEIGHTS),
            metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
            tensors: session.lasting().into_iter().map(entry).collect(),
            writer: None,
        }
    }

    /// Writes the next tensor.
    ///
    /// Errors: what cannot be written.
    pub fn keep(&mut self, tensor: &Lasting, values: Packet) -> Result<(), CliError> {
        let values = match values {
            Packet::F32(values) => Values::F32(values),
            Packet::F64(values) => Values::F64(values),
            Packet::I16(_) => panic!("`{}` is trained in a floating-point type", tensor.name),
        };
        self.writer()?
            .push(&values)
            .map_err(|error| CliError::run(&error))
    }

    fn writer(&mut self) -> Result<&mut Writer, CliError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let tensors = std::mem::take(&mut self.tensors);
                Writer::create(&self.path, tensors, &self.metadata)
                    .map_err(|error| CliError::run(&error))?
            }
        };
        Ok(self.writer.insert(writer))
    }

    fn finish(&mut self) -> Result<(), CliError> {
        self.writer()?;
        let writer = self.writer.take().map_or(Ok(()), Writer::finish);
        writer.map_err(|error| CliError::run(&error))
    }
}

impl Finished<'_> {
    /// Writes trace, weights and result, and gives the result.
    ///
    /// Errors: a file that cannot be written; none is left half-written.
    pub fn save(&mut self) -> Result<Value, CliError> {
        let output = &self.run.output;
        let record = trace::record(self.program, &self.traces());
        write_whole(&output.join(TRACE), &record.to_string())?;
        self.weights.finish()?;
        let result = self.result()?;
        write_whole(&output.join(RESULT), &pretty(&result)?)?;
        Ok(result)
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

    fn result(&self) -> Result<Value, CliError> {
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
        let file = |name: &str| run.output.join(name).display().to_string();
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
                "trace": file(TRACE),
                "weights": file(WEIGHTS),
                "result": file(RESULT),
                "prediction": self.prediction.as_ref().map(|_| file(PREDICTION)),
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
    pub fn write_report(&self, out: &mut dyn Write) -> Result<(), CliError> {
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
        for (name, file) in [("trace", TRACE), ("weights", WEIGHTS), ("result", RESULT)] {
            writeln!(out, "{name:8} {}", self.run.output.join(file).display())?;
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
            let accuracy = format!("{:.1} %", 100.0 * pair.accuracy);
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
