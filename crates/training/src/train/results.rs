//! The result of a finished run, and its files.

use super::checkpoint::BestMetric;
use super::curve::LossCurve;
use super::error::TrainError;
use super::output::{Output, PREDICTION, RESULT, TRACE, WEIGHTS, rescue_folders};
use super::record::{
    BestResult, ClassResult, Classification, EndReason, EndedEarly, EpochResult, MemoryResult,
    PhysicalError, ResultFiles, RunResult, TargetError, TaskResult, ValidationResult,
};
use super::run::Run;
use super::store;
use super::tiling::TilesResult;
use super::trials::PinnedKernels;
use super::utilization::{ComputeTimes, UtilizationScale};
use super::weights::SavedWeights;
use partita_data::TargetRecord;
use partita_forecast::machine::is_local;
use partita_forecast::trace;
use partita_input::{LoadTally, Loading, Preparation};
use partita_oracle::{Comparison, Prediction, compare};
use partita_program::Program;
use partita_run::{Footprint, Trace};
use partita_session::{ClassCount, EpochReport, Outcome, Validation};
use partita_site::Environment;
use partita_site::launch::{MemoryUsage, PEAK_METHOD};
use partita_space::{Bytes, Seconds};
use std::fs;
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf};

/// A finished run.
pub struct Finished<'r> {
    /// The run.
    pub run: &'r Run,
    /// Flops of a sample, and the peak.
    pub scale: UtilizationScale,
    /// For alternative folders.
    pub environment: &'r Environment,
    /// Its strategy.
    pub strategy: String,
    /// Steps between the stored values and the network.
    pub preparation: Preparation,
    /// Names of the targets.
    pub targets: &'r [String],
    /// What they stand for, if it is known.
    pub record: Option<&'r TargetRecord>,
    /// The training program of full batch size.
    pub program: &'r Program,
    /// By what its convolutions run.
    pub kernels: &'r PinnedKernels,
    /// Predicted memory of each rank, without its snapshot.
    pub footprints: Vec<Footprint>,
    /// Snapshots of all ranks for checkpoints.
    pub snapshots: Bytes,
    /// Samples in memory, and what was loaded for each epoch.
    pub loading: &'r Loading,
    /// Measured memory.
    pub usage: MemoryUsage,
    /// Outcomes in rank order.
    pub outcomes: Vec<Outcome>,
    /// Losses of steps.
    pub curve: LossCurve,
    /// Parameters and states.
    pub weights: SavedWeights,
    /// The prediction, made before the run.
    pub prediction: Option<Prediction>,
    /// Warnings about the numbers.
    pub warnings: Vec<String>,
    /// The checkpoint from which it resumed.
    pub resumed_from: Option<PathBuf>,
    /// How volumes of the validation were joined of tiles, if they were.
    pub tiles: Option<TilesResult>,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// The best epoch, if the run looks for it.
    pub best: Option<BestResult>,
}

/// Paths of the files of a run.
pub struct Files {
    /// None where they are in memory.
    weights: Option<PathBuf>,
    /// The folder of all other files; `None` if no folder could be written.
    records: Option<PathBuf>,
}

impl Files {
    fn record(&self, name: &str) -> Option<PathBuf> {
        self.records.as_ref().map(|folder| folder.join(name))
    }
}

/// Result of [`Finished::save`].
pub struct Saved {
    /// The written result.
    pub result: RunResult,
    files: Files,
    /// Failures on the way.
    faults: Vec<String>,
}

impl Saved {
    /// The error if files are not in the output folder.
    pub fn misplaced(self) -> Option<TrainError> {
        if self.faults.is_empty() {
            return None;
        }
        let records = match &self.files.records {
            Some(folder) => format!("the other files in {}", folder.display()),
            None => "the result could not be written anywhere, but was printed".to_owned(),
        };
        Some(TrainError::Elsewhere {
            faults: self.faults,
            weights: self.files.weights.unwrap_or_default(),
            records,
        })
    }
}

/// Fraction of the positions with each label.
fn fractions(validation: &Validation) -> Vec<f64> {
    let all: f64 = validation.classes.iter().map(|class| class.actual).sum();
    // Where no label counts, each is a fraction of nothing.
    let fraction = |class: &ClassCount| class.actual / all.max(1.0);
    validation.classes.iter().map(fraction).collect()
}

/// Mean over the classes that have the figure; `None` if none has.
fn mean(validation: &Validation, figure: fn(&ClassCount) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = validation.classes.iter().filter_map(figure).collect();
    let count = figures.len();
    (count > 0).then(|| figures.iter().sum::<f64>() / count as f64)
}

/// The end of a training that no rule ended: its callback did.
fn asked_end(outcome: &Outcome) -> Option<EndedEarly> {
    let last = outcome.epochs.last()?;
    Some(EndedEarly {
        epoch: last.epoch + 1,
        reason: EndReason::Callback,
        metric: BestMetric::TrainingLoss.name(),
        value: Some(last.training_loss),
        best_epoch: None,
        best_value: None,
    })
}

/// Indented JSON.
pub fn pretty(value: &impl serde::Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

impl Finished<'_> {
    /// Writes result and trace beside the weights, which are saved already, or else to another folder.
    ///
    /// Errors: a result that is not valid JSON.
    pub fn save(&mut self) -> Result<Saved, TrainError> {
        let mut faults = self.weights.faults.clone();
        let Some(own) = self.weights.folder().map(Path::to_owned) else {
            let files = Files {
                weights: None,
                records: None,
            };
            let result = self.result(&files);
            return Ok(Saved {
                result,
                files,
                faults,
            });
        };
        let weights = own.join(WEIGHTS);
        let rescue = rescue_folders(self.run.output_folder(), self.environment);
        let folders = once(own).chain(rescue);
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
                weights: Some(weights),
                records: None,
            };
            let result = self.result(&files);
            return Ok(Saved {
                result,
                files,
                faults,
            });
        };
        // The trace is the largest of these and the least important.
        let record = trace::record(self.program, &self.traces()).to_string();
        if let Err(error) = partita_files::write_whole(&folder.join(TRACE), record.as_bytes()) {
            faults.push(format!(
                "the trace cannot be written to {} ({error})",
                folder.display()
            ));
            result.files.trace = None;
            // The old text remains if the new one does not fit either.
            let _ = partita_files::write_whole(&folder.join(RESULT), pretty(&result)?.as_bytes());
        }
        let files = Files {
            weights: Some(weights),
            records: Some(folder),
        };
        Ok(Saved {
            result,
            files,
            faults,
        })
    }

    /// Writes prediction and result to a folder, which is created if needed.
    fn save_result(
        &mut self,
        weights: &Path,
        folder: &Path,
    ) -> Result<io::Result<RunResult>, TrainError> {
        let files = Files {
            weights: Some(weights.to_owned()),
            records: Some(folder.to_owned()),
        };
        let result = self.result(&files);
        let prediction = self.prediction.as_ref().map(pretty).transpose()?;
        let text = pretty(&result)?;
        let is_asked_for = folder == self.run.output_folder();
        let write = || {
            if !folder.is_dir() {
                partita_files::create_private(folder)?;
            }
            match prediction {
                // Written before the run.
                Some(_) if is_asked_for => {
                    let output = self.weights.output.as_mut();
                    output.map_or(Ok(()), Output::place_prediction)?;
                }
                Some(text) => {
                    partita_files::write_whole(&folder.join(PREDICTION), text.as_bytes())?
                }
                None => {}
            }
            partita_files::write_whole(&folder.join(RESULT), text.as_bytes())
        };
        let written = write();
        if written.is_err() && !is_asked_for {
            // Its contents are worth keeping.
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

    fn result(&self, files: &Files) -> RunResult {
        let run = self.run;
        let first = self.first();
        let record = |name: &str| files.record(name).map(|path| path.display().to_string());
        RunResult {
            model: run.model.name().to_owned(),
            data: run.data.display().to_string(),
            strategy: self.strategy.clone(),
            machine: run.machine.clone().filter(|name| !is_local(name)),
            ranks: run.ranks,
            threads: run.threads,
            kernels: run.kernels.name(),
            precision: run.precision.name(),
            loss_scale: first.loss_scale,
            batch: run.batch,
            seed: run.seed,
            preparation: self.preparation.clone(),
            digest: self.program.digest(),
            convolutions: self.kernels.convolutions.clone(),
            trials: self.kernels.trials,
            steps: first.steps,
            seconds: first.seconds,
            samples_per_second: self.samples_per_second(),
            utilization: self.scale.at(self.samples_per_second()),
            compute: ComputeTimes::of(self.program, &self.outcomes),
            step_seconds_median: first.step_seconds,
            steps_measured: first.measured_steps,
            epochs: self.epochs(),
            best: self.best.clone(),
            ended_early: (first.epochs.len() < run.epochs)
                .then(|| run.ends.end(&first.epochs).or_else(|| asked_end(first)))
                .flatten(),
            target: run
                .ends
                .target
                .map(|it| it.result(&first.epochs, first.ended)),
            curve: self.curve.points().to_vec(),
            memory: self.memory(),
            predicted_input: self.prediction.as_ref().map(|_| self.run.store.input()),
            comparison: self.comparison(),
            tasks: self.tasks(),
            files: ResultFiles {
                trace: record(TRACE),
                weights: files.weights.as_ref().map(|it| it.display().to_string()),
                result: record(RESULT),
                prediction: self.prediction.as_ref().and_then(|_| record(PREDICTION)),
                checkpoint: self
                    .checkpoint
                    .as_ref()
                    .map(|path| path.display().to_string()),
            },
            warnings: self.warnings.clone(),
            validation_tiles: self.tiles.clone(),
            resumed_from: self
                .resumed_from
                .as_ref()
                .map(|path| path.display().to_string()),
        }
    }

    fn epochs(&self) -> Vec<EpochResult> {
        let metrics = Metrics {
            targets: self.targets,
            record: self.record,
        };
        let result = |epoch| metrics.epoch(epoch, &self.loading.tally);
        self.first().epochs.iter().map(result).collect()
    }

    fn memory(&self) -> MemoryResult {
        let arenas = self.footprints.iter().map(Footprint::arena);
        let all: Footprint = self.footprints.iter().copied().sum();
        let store = store::total(self.loading);
        MemoryResult {
            predicted_arena_bytes_max: arenas.max(),
            predicted_arena_bytes: all.arena(),
            allocated_arena_bytes: self.usage.arenas.iter().copied().sum(),
            predicted_bytes: all.total() + self.snapshots + store,
            predicted: all,
            predicted_snapshot_bytes: self.snapshots,
            predicted_store_bytes: store,
            spill_bytes: store::spilled(self.loading),
            measured_peak_bytes: self.usage.peak,
            measured_peak_saving_bytes: self.usage.peak_saving,
            method: PEAK_METHOD,
        }
    }

    /// Median seconds of every task of the first rank of each class.
    fn tasks(&self) -> Vec<TaskResult> {
        let representatives = self.program.representatives().into_iter().enumerate();
        let of_class = |(class, rank): (usize, usize)| {
            let tasks = &self.program.bodies[class].tasks;
            let seconds = &self.outcomes[rank].task_seconds;
            let rows = tasks.iter().zip(seconds).enumerate();
            rows.map(move |(task, (body, &seconds))| TaskResult {
                class,
                task,
                layer: body.origin.layer.clone(),
                kind: body.work.name(),
                phase: body.origin.phase.name(),
                seconds_median: seconds,
            })
        };
        representatives.flat_map(of_class).collect()
    }
}

/// Metrics of evaluations, named by what a dataset holds.
pub struct Metrics<'t> {
    /// Names of the targets or of the classes.
    pub targets: &'t [String],
    /// What they stand for, if it is known.
    pub record: Option<&'t TargetRecord>,
}

impl Metrics<'_> {
    /// The result of an epoch, with what was loaded for it.
    pub fn epoch(&self, epoch: &EpochReport, tally: &LoadTally) -> EpochResult {
        let validation = epoch.validation.as_ref();
        EpochResult {
            epoch: epoch.epoch + 1,
            training_loss: epoch.training_loss,
            samples: epoch.samples,
            seconds: epoch.training_seconds,
            loads: tally.epoch(epoch.epoch),
            validation: validation.map(|validation| self.validation(validation)),
        }
    }

    /// The metrics of an evaluation.
    pub fn validation(&self, validation: &Validation) -> ValidationResult {
        let count = validation.samples as f64;
        let sums = validation.absolute.iter().zip(&validation.squared);
        let targets = self.targets.iter().zip(sums);
        let errors = targets.enumerate();
        let errors = errors.map(|(index, (target, (absolute, squared)))| {
            let (mean_absolute, rms) = (absolute / count, (squared / count).sqrt());
            TargetError {
                target: target.clone(),
                mean_absolute,
                rms,
                physical: self.record.and_then(|record| {
                    let (factor, _) = record.physical(index)?;
                    Some(PhysicalError {
                        mean_absolute: mean_absolute * factor.abs(),
                        rms: rms * factor.abs(),
                        unit: record.unit(index).map(str::to_owned),
                    })
                }),
            }
        });
        ValidationResult {
            loss: validation.loss,
            samples: validation.samples,
            seconds: validation.seconds,
            errors: errors.collect(),
            classification: self.classification(validation),
        }
    }

    /// `None` for a regression.
    fn classification(&self, validation: &Validation) -> Option<Classification> {
        let accuracy = validation.accuracy()?;
        let fraction = fractions(validation);
        let classes = self.named_classes(validation).zip(&fraction);
        let classes = classes.map(|((class, count), &fraction)| ClassResult {
            class,
            share: fraction,
            dice: count.dice(),
            overlap: count.iou(),
        });
        Some(Classification {
            accuracy,
            largest_share: fraction.iter().copied().fold(0.0, f64::max),
            mean_dice: mean(validation, ClassCount::dice),
            mean_overlap: mean(validation, ClassCount::iou),
            sample_dice: validation.sample_dice(),
            classes: classes.collect(),
        })
    }

    /// The classes named by the dataset, or all if it names none.
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
}
