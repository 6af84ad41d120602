//! When a training ends before its last epoch: without an improvement for some epochs, or once a target is reached.

use super::checkpoint::BestMetric;
use super::record::{EndReason, EndedEarly, TargetResult};
use super::section::{RunFileError, Section, float, short};
use partita_session::EpochReport;
use partita_space::Seconds;
use partita_space::help::Expected;

/// What a target of accuracy, Dice or overlap may be.
const FRACTION: &str = "a number above 0 and at most 1";
const KEYS: [&str; 3] = ["metric", "patience", "min_delta"];

/// A training ends after a number of epochs in a row without an improvement of a metric.
///
/// Source: `EarlyStopping` of PyTorch Lightning and of Keras, which count alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// The metric.
    pub metric: BestMetric,
    /// Epochs without an improvement after which the training ends, at least 1.
    pub patience: u64,
    /// A value is an improvement if it is better than the best one before by more than this.
    pub min_delta: f64,
}

/// A value of a metric with which a training ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The metric.
    pub metric: BestMetric,
    /// The value.
    pub value: f64,
}

/// `[early_stopping]` and `target` of a run file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndRules {
    /// The end without an improvement (default: none).
    pub stopping: Option<EarlyStopping>,
    /// The end by a target (default: none).
    pub target: Option<Target>,
}

/// The best epoch by a metric, and the epochs since then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Progress {
    /// Number of the epoch, from 1, and its value.
    best: Option<(u64, f64)>,
    waited: u64,
}

impl EarlyStopping {
    fn progress(&self, epochs: &[EpochReport]) -> Progress {
        let mut progress = Progress::default();
        for epoch in epochs {
            let improves = |value: &f64| {
                let best = progress.best;
                best.is_none_or(|(_, best)| self.metric.is_better_by(*value, best, self.min_delta))
            };
            match self.metric.value(epoch).filter(improves) {
                Some(value) => {
                    progress = Progress {
                        best: Some((epoch.epoch + 1, value)),
                        waited: 0,
                    }
                }
                None => progress.waited += 1,
            }
        }
        progress
    }
}

impl Target {
    /// Whether an epoch reaches it.
    pub fn is_reached(&self, epoch: &EpochReport) -> bool {
        let value = self.metric.value(epoch);
        value.is_some_and(|value| {
            value == self.value || self.metric.is_better_by(value, self.value, 0.0)
        })
    }

    /// What came of it. `ended` is the time of the end, if it was early.
    pub fn result(&self, epochs: &[EpochReport], ended: Option<Seconds>) -> TargetResult {
        let last = epochs.last().filter(|last| self.is_reached(last));
        TargetResult {
            metric: self.metric.name(),
            value: self.value,
            epoch: last.map(|last| last.epoch + 1),
            seconds: ended.filter(|_| last.is_some()),
        }
    }
}

impl EndRules {
    /// Both keys. `best` is the metric of the best checkpoint, by which a training without another metric ends, too.
    pub fn read(top: &Section<'_>, best: Option<BestMetric>) -> Result<Self, RunFileError> {
        Ok(Self {
            stopping: stopping(top, best)?,
            target: target(top)?,
        })
    }

    /// Why the training ends after the last of these epochs, if it does.
    ///
    /// A function of the reports alone, so that all ranks and a resumed run decide alike.
    pub fn end(&self, epochs: &[EpochReport]) -> Option<EndedEarly> {
        let last = epochs.last()?;
        let ended = |metric: BestMetric, reason, best: Option<(u64, f64)>| EndedEarly {
            epoch: last.epoch + 1,
            reason,
            metric: metric.name(),
            value: metric.value(last),
            best_epoch: best.map(|(epoch, _)| epoch),
            best_value: best.map(|(_, value)| value),
        };
        if let Some(target) = self.target.filter(|target| target.is_reached(last)) {
            return Some(ended(target.metric, EndReason::Target, None));
        }
        let stopping = self.stopping?;
        let Progress { best, waited } = stopping.progress(epochs);
        (waited >= stopping.patience)
            .then(|| ended(stopping.metric, EndReason::NoImprovement, best))
    }

    /// The metrics that it needs, as they stand in a run file.
    pub fn metrics(&self) -> Vec<(String, BestMetric)> {
        let stopping = self.stopping.map(|it| {
            let name = it.metric.name();
            (format!("[early_stopping] metric = \"{name}\""), it.metric)
        });
        let target = self.target.map(|it| {
            let (name, value) = (it.metric.name(), it.value);
            (format!("target = {{ {name} = {value} }}"), it.metric)
        });
        stopping.into_iter().chain(target).collect()
    }
}

fn stopping(
    top: &Section<'_>,
    best: Option<BestMetric>,
) -> Result<Option<EarlyStopping>, RunFileError> {
    let Some(section) = top.section("early_stopping")? else {
        return Ok(None);
    };
    section.check(&KEYS)?;
    let patience = section.count("patience")?;
    let epochs =
        "the number of epochs without an improvement after which the training ends, like 10";
    let metric = section.choice("metric", &BestMetric::CHOICES)?.or(best);
    let least = "a number of at least 0, like 0.001";
    Ok(Some(EarlyStopping {
        metric: metric.unwrap_or(BestMetric::ValidationLoss),
        patience: section.need("patience", patience, epochs)? as u64,
        min_delta: section
            .number("min_delta", least, |number| number >= 0.0)?
            .unwrap_or(0.0),
    }))
}

fn target(top: &Section<'_>) -> Result<Option<Target>, RunFileError> {
    let Some(section) = top.section("target")? else {
        return Ok(None);
    };
    // As users call it.
    let dice = [("dice", BestMetric::MeanDice)];
    let choices: Vec<_> = BestMetric::CHOICES.into_iter().chain(dice).collect();
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    section.check(&names)?;
    let mut found = Vec::new();
    for (name, metric) in choices {
        let is_fraction = metric.is_fraction();
        let fits = |value: f64| !is_fraction || value > 0.0 && value <= 1.0;
        let given = section.get(name).and_then(|value| float(value.get_ref()));
        let expected = match given.filter(|_| is_fraction) {
            // In percent.
            Some(percent) if (1.0..=100.0).contains(&percent) => {
                Expected::from(FRACTION).nearest(short(percent / 100.0))
            }
            Some(_) => format!("{FRACTION}, like 0.95").into(),
            None => "a number, like 0.95".into(),
        };
        let value = section.number(name, expected, fits)?;
        found.extend(value.map(|value| Target { metric, value }));
    }
    match found.as_slice() {
        [target] => Ok(Some(*target)),
        _ => {
            let expected = "a table of one metric, like { mean_dice = 0.95 }";
            Err(top.refuse("target", expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_session::Validation;

    fn reports(losses: &[f64]) -> Vec<EpochReport> {
        let report = |(epoch, &loss): (usize, &f64)| EpochReport {
            epoch: epoch as u64,
            validation: Some(Validation {
                loss,
                samples: 1,
                ..Validation::default()
            }),
            ..EpochReport::default()
        };
        losses.iter().enumerate().map(report).collect()
    }

    /// The epoch after which a training with these validation losses ends, and its best one.
    fn end(rules: &EndRules, losses: &[f64]) -> Option<(u64, Option<u64>)> {
        let reports = reports(losses);
        let found = (1..=reports.len()).find_map(|count| rules.end(&reports[..count]));
        found.map(|end| (end.epoch, end.best_epoch))
    }

    #[test]
    fn a_training_ends_after_so_many_epochs_without_improvement() {
        let stopping = |patience, min_delta| EndRules {
            stopping: Some(EarlyStopping {
                metric: BestMetric::ValidationLoss,
                patience,
                min_delta,
            }),
            target: None,
        };
        let losses = [1.0, 0.5, 0.5, 0.45, 0.6, 0.44, 0.7, 0.7, 0.7, 0.1];
        for (patience, min_delta, expected) in [
            (1, 0.0, Some((3, Some(2)))),
            (2, 0.0, Some((9 - 1, Some(6)))),
            (3, 0.0, Some((9, Some(6)))),
            (4, 0.0, None),
            // 0.45 and 0.44 are no improvement by more than a tenth.
            (4, 0.1, Some((6, Some(2)))),
            (1, 0.5, Some((2, Some(1)))),
        ] {
            let found = end(&stopping(patience, min_delta), &losses);
            assert_eq!(found, expected, "patience {patience}, by {min_delta}");
        }
    }

    #[test]
    fn a_training_ends_with_its_target_and_knows_the_time() {
        let target = Target {
            metric: BestMetric::ValidationLoss,
            value: 0.5,
        };
        let rules = EndRules {
            stopping: None,
            target: Some(target),
        };
        assert_eq!(end(&rules, &[1.0, 0.6, 0.5, 0.4]), Some((3, None)));
        assert_eq!(end(&rules, &[1.0, 0.6]), None);
        let time = Some(Seconds(2.5));
        let reached = target.result(&reports(&[1.0, 0.4]), time);
        assert_eq!((reached.epoch, reached.seconds), (Some(2), time));
        let missed = target.result(&reports(&[1.0, 0.6]), time);
        assert_eq!((missed.epoch, missed.seconds), (None, None));
        // The other way round for a score.
        let accuracy = BestMetric::Accuracy;
        assert!(accuracy.is_better_by(0.96, 0.95, 0.005) && !accuracy.is_better_by(0.9, 0.95, 0.0));
    }
}
