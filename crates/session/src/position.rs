//! Where a training stands between two steps.

use crate::loss_scale::LossScale;
use crate::validation::Validation;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};

/// Greater numbers are of no training; sums of these and of their squares are finite.
const NUMBER_MAX: f64 = 1e100;

/// Where a training stands between two steps. A run that starts here with the persistent buffers of that moment goes
/// on as if it had not ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Steps of that epoch that are done: training steps, then those of its evaluation.
    pub done: u64,
    /// Training steps done in all.
    pub updates: u64,
    /// Time of all steps.
    pub seconds: Seconds,
    /// Epochs that are done.
    pub epochs: Vec<EpochReport>,
    /// Sums over the steps of the current epoch that are done: losses are not yet divided by their samples.
    pub current: EpochReport,
    /// The loss scale, where gradients are scaled or were so before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

/// Results of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Mean loss over its samples, each before the update to which it contributed.
    pub training_loss: f64,
    /// Training samples.
    pub samples: usize,
    /// Time of its training steps, fetches included.
    pub training_seconds: Seconds,
    /// Evaluation with the parameters at its end, or with the averages of them that are kept.
    pub validation: Option<Validation>,
}

impl Position {
    /// What is wrong with the numbers of a position that was read from a file; `None` if it can be of a training.
    pub fn fault(&self) -> Option<String> {
        if self.epochs.len() as u64 != self.epoch {
            let (epoch, known) = (self.epoch, self.epochs.len());
            return Some(format!(
                "{epoch} epochs are done, with the results of {known}"
            ));
        }
        if let Some((report, epoch)) = self.epochs.iter().zip(0..).find(|it| it.0.epoch != it.1) {
            let found = report.epoch;
            return Some(format!("the results of epoch {epoch} are of epoch {found}"));
        }
        if self.loss_scale.is_some_and(|it| it.scale <= 0.0) {
            return Some("the loss scale is not above 0".to_owned());
        }
        let own = [
            ("the time of all steps", self.seconds.0),
            ("the loss scale", self.loss_scale.map_or(1.0, |it| it.scale)),
        ];
        let reports = self.epochs.iter().chain([&self.current]);
        let own = own
            .into_iter()
            .chain(reports.flat_map(EpochReport::numbers));
        own.filter(|(_, number)| !is_number(*number))
            .map(|(what, number)| number_fault(what, number))
            .next()
    }
}

/// Whether a number can be of a training: neither infinite nor NaN, and its square is neither.
pub fn is_number(number: f64) -> bool {
    number.abs() <= NUMBER_MAX
}

/// Says that a number is none of a training.
pub fn number_fault(what: &str, number: f64) -> String {
    format!(
        "{what} is {number:e}, and can be from {:e} to {NUMBER_MAX:e}",
        -NUMBER_MAX
    )
}

impl EpochReport {
    fn numbers(&self) -> Vec<(&'static str, f64)> {
        let mut all = vec![
            ("a training loss", self.training_loss),
            ("the time of an epoch", self.training_seconds.0),
        ];
        if let Some(of) = &self.validation {
            all.extend([
                ("a validation loss", of.loss),
                ("the time of a validation", of.seconds.0),
            ]);
            let errors = of.absolute.iter().chain(&of.squared).chain(&of.entropy);
            let counts = of.classes.iter();
            let counts = counts.flat_map(|class| [class.hits, class.predicted, class.actual]);
            let sums = errors.chain(&of.dice_sums).copied().chain(counts);
            all.extend(sums.map(|sum| ("a sum of a validation", sum)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_an_epoch() -> Position {
        Position {
            epoch: 1,
            updates: 4,
            epochs: vec![EpochReport {
                training_loss: 0.5,
                ..EpochReport::default()
            }],
            ..Position::default()
        }
    }

    #[test]
    fn numbers_of_no_training_are_named() {
        assert_eq!(after_an_epoch().fault(), None);
        let mut far = after_an_epoch();
        far.epoch = 1 << 40;
        let text = far.fault().unwrap();
        assert!(
            text.contains("1099511627776 epochs are done, with the results of 1"),
            "{text}"
        );
        let mut huge = after_an_epoch();
        huge.epochs[0].training_loss = 1e308;
        let text = huge.fault().unwrap();
        assert!(text.contains("a training loss is 1e308"), "{text}");
        let mut other = after_an_epoch();
        other.epochs[0].epoch = 7;
        assert!(other.fault().is_some());
        let mut sums = after_an_epoch();
        sums.epochs[0].validation = Some(crate::Validation {
            squared: vec![f64::NAN],
            ..crate::Validation::default()
        });
        assert!(sums.fault().unwrap().contains("a sum of a validation"));
    }
}
