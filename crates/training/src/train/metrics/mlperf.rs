//! Log lines of MLPerf: `:::MLLOG` and a JSON object.
//!
//! Source: MLCommons, `logging/mllog` and the keys of `compliance_checker`.

use super::now;
use crate::train::early_stopping::Target;
use crate::train::run::Run;
use crate::train::utilization::{ComputeTimes, UtilizationScale};
use partita_session::{EpochReport, Progress};
use serde_json::{Value, json};
use std::io::{self, Write};

/// A log of a run.
pub struct MlperfLog<W> {
    to: W,
    epoch: Option<u64>,
    is_evaluating: bool,
    /// The target that is not reached yet.
    target: Option<Target>,
}

impl<W: Write> MlperfLog<W> {
    /// Writes the lines before the first step. `samples` are those of an epoch, to train on and to validate.
    pub fn start(to: W, run: &Run, samples: [usize; 2]) -> io::Result<Self> {
        let mut log = Self {
            to,
            epoch: None,
            is_evaluating: false,
            target: run.ends.target,
        };
        log.line("INTERVAL_START", "init_start", Value::Null, json!({}))?;
        for (key, value) in [
            ("global_batch_size", json!(run.batch)),
            ("train_samples", json!(samples[0])),
            ("eval_samples", json!(samples[1])),
            ("seed", json!(run.seed)),
            ("number_of_ranks", json!(run.ranks)),
        ] {
            log.line("POINT_IN_TIME", key, value, json!({}))?;
        }
        log.line("INTERVAL_END", "init_stop", Value::Null, json!({}))?;
        log.line("INTERVAL_START", "run_start", Value::Null, json!({}))?;
        Ok(log)
    }

    /// Takes the epochs before a resume into account.
    pub fn resume(&mut self, epochs: &[EpochReport]) {
        let is_missed = |target: &Target| !epochs.iter().any(|epoch| target.is_reached(epoch));
        self.target = self.target.filter(is_missed);
    }

    /// Writes the lines of what is done.
    pub fn add(&mut self, progress: &Progress, scale: &UtilizationScale) -> io::Result<()> {
        match progress {
            Progress::Step { epoch, .. } => self.begin(*epoch + 1),
            Progress::Evaluated { epoch, .. } => {
                if self.is_evaluating {
                    return Ok(());
                }
                self.is_evaluating = true;
                let about = json!({ "epoch_num": epoch + 1 });
                self.line("INTERVAL_START", "eval_start", Value::Null, about)
            }
            Progress::Epoch(epoch) => {
                self.target = self.target.filter(|target| !target.is_reached(epoch));
                let about = json!({ "epoch_num": epoch.epoch + 1 });
                let loss = json!(epoch.training_loss);
                self.line("POINT_IN_TIME", "train_loss", loss, about.clone())?;
                if let Some(validation) = &epoch.validation {
                    if !self.is_evaluating {
                        self.line("INTERVAL_START", "eval_start", Value::Null, about.clone())?;
                    }
                    let error = json!(validation.loss);
                    self.line("POINT_IN_TIME", "eval_error", error, about.clone())?;
                    if let Some(accuracy) = validation.accuracy() {
                        let accuracy = json!(accuracy);
                        self.line("POINT_IN_TIME", "eval_accuracy", accuracy, about.clone())?;
                    }
                    self.line("INTERVAL_END", "eval_stop", Value::Null, about.clone())?;
                }
                self.is_evaluating = false;
                // With validators, the next one has begun.
                if self.epoch == Some(epoch.epoch + 1) {
                    self.epoch = None;
                }
                let throughput = epoch.samples as f64 / epoch.training_seconds.0;
                let utilization = scale.at(throughput);
                let tracked = json!({
                    "throughput": throughput,
                    "flops_per_second": utilization.flops_per_second,
                    "mfu": utilization.mfu,
                });
                self.line("POINT_IN_TIME", "tracked_stats", tracked, about.clone())?;
                self.line("INTERVAL_END", "epoch_stop", Value::Null, about)
            }
            Progress::Done { steps, .. } => {
                let status = match self.target {
                    None => "success",
                    Some(_) => "aborted",
                };
                let about = json!({ "status": status, "steps": steps });
                self.line("INTERVAL_END", "run_stop", Value::Null, about)
            }
        }
    }

    /// Writes which rank computes longest.
    pub fn add_ranks(&mut self, compute: &ComputeTimes) -> io::Result<()> {
        let value = json!({
            "slowest_rank": compute.slowest_rank,
            "seconds_max": compute.seconds_max,
            "seconds_mean": compute.seconds_mean,
        });
        self.line("POINT_IN_TIME", "compute_of_ranks", value, json!({}))
    }

    fn begin(&mut self, epoch: u64) -> io::Result<()> {
        if self.epoch == Some(epoch) {
            return Ok(());
        }
        self.epoch = Some(epoch);
        let about = json!({ "epoch_num": epoch });
        self.line("INTERVAL_START", "epoch_start", Value::Null, about)
    }

    fn line(&mut self, event: &str, key: &str, value: Value, mut about: Value) -> io::Result<()> {
        // Checkers ask for the place of the call.
        about["file"] = json!(file!());
        about["lineno"] = json!(line!());
        let line = json!({
            "namespace": "",
            "time_ms": (now() * 1e3) as u64,
            "event_type": event,
            "key": key,
            "value": value,
            "metadata": about,
        });
        self.to.write_all(format!(":::MLLOG {line}\n").as_bytes())
    }
}
