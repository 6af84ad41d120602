//! The losses of the steps of a run, in bounded memory.

use super::record::RunResult;
use partita_session::{EpochReport, Progress, is_number, number_fault};
use partita_site::{CurvePoint, LossHistory};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most points that are kept; beyond that, neighbors are joined.
const POINTS_MAX: usize = 512;

/// Most steps of a point.
const STRIDE_MAX: u64 = 1 << 56;

/// Collects the losses of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossCurve {
    steps_per_epoch: u64,
    /// Steps of a point.
    stride: u64,
    points: Vec<CurvePoint>,
    /// The sum of the losses of the next point, and how many there are.
    next: (f64, u64),
}

impl RunResult {
    /// Its losses, with the folder that it is in.
    pub fn losses(&self, folder: PathBuf) -> LossHistory {
        let epochs = self.epochs.iter().map(|one| {
            let validation = one.validation.as_ref().map(|found| found.loss);
            (one.epoch, one.training_loss, validation)
        });
        LossHistory {
            model: self.model.clone(),
            folder,
            curve: self.curve.clone(),
            epochs: epochs.collect(),
        }
    }
}

impl LossCurve {
    /// An empty curve of a training with that many steps in an epoch.
    pub fn new(steps_per_epoch: u64) -> Self {
        Self {
            steps_per_epoch: steps_per_epoch.max(1),
            stride: 1,
            points: Vec::new(),
            next: (0.0, 0),
        }
    }

    /// The losses of a run with these epochs.
    pub fn history(&self, (model, folder): (&str, PathBuf), epochs: &[EpochReport]) -> LossHistory {
        let epoch = |one: &EpochReport| {
            let validation = one.validation.as_ref().map(|found| found.loss);
            (one.epoch + 1, one.training_loss, validation)
        };
        LossHistory {
            model: model.to_owned(),
            folder,
            curve: self.points().to_vec(),
            epochs: epochs.iter().map(epoch).collect(),
        }
    }

    /// Adds a training step.
    pub fn add(&mut self, progress: &Progress) {
        let &Progress::Step {
            step,
            loss,
            learning_rate,
            ..
        } = progress
        else {
            return;
        };
        self.next = (self.next.0 + loss, self.next.1 + 1);
        if self.next.1 < self.stride {
            return;
        }
        let (sum, count) = std::mem::take(&mut self.next);
        self.points.push(CurvePoint {
            step,
            epochs: step as f64 / self.steps_per_epoch as f64,
            loss: sum / count as f64,
            learning_rate,
        });
        if self.points.len() == POINTS_MAX {
            let (pairs, _) = self.points.as_chunks::<2>();
            let joined = pairs.iter().map(|[first, second]| CurvePoint {
                loss: (first.loss + second.loss) / 2.0,
                ..*second
            });
            self.points = joined.collect();
            self.stride *= 2;
        }
    }

    /// What is wrong with a curve that was read from a file; `None` if it can be of a training.
    pub fn fault(&self) -> Option<String> {
        if self.steps_per_epoch == 0 {
            return Some("the curve of its losses has 0 steps an epoch".to_owned());
        }
        let (strides, points) = (1..=STRIDE_MAX, self.points.len());
        if !strides.contains(&self.stride) || self.next.1 >= self.stride || points >= POINTS_MAX {
            return Some(format!(
                "the curve of its losses has {points} points of {} steps, and {} steps more; fewer than {POINTS_MAX} \
                 points of 1 to {STRIDE_MAX} steps are possible",
                self.stride, self.next.1
            ));
        }
        let of_points = self.points.iter().flat_map(|point| {
            [
                ("a loss of the curve", point.loss),
                ("an epoch of the curve", point.epochs),
                ("a learning rate of the curve", point.learning_rate),
            ]
        });
        let mut all = of_points.chain([("a sum of losses of the curve", self.next.0)]);
        let found = all.find(|(_, number)| !is_number(*number));
        found.map(|(what, number)| number_fault(what, number))
    }

    /// The points so far. Steps after the last whole point are left out.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::Seconds;

    #[test]
    fn curves_of_no_training_are_named() {
        let fault = |change: fn(&mut LossCurve)| {
            let mut curve = LossCurve::new(3);
            change(&mut curve);
            curve.fault().unwrap_or_default()
        };
        assert_eq!(fault(|_| {}), "");
        assert!(fault(|it| it.steps_per_epoch = 0).contains("0 steps an epoch"));
        assert!(fault(|it| it.stride = 0).contains("of 0 steps"));
        assert!(fault(|it| it.next = (1e308, 0)).contains("1e308"));
        let many = |it: &mut LossCurve| {
            let point = CurvePoint {
                step: 1,
                epochs: 1.0,
                loss: 1.0,
                learning_rate: 1.0,
            };
            it.points = vec![point; 600];
        };
        assert!(fault(many).contains("600 points"));
    }

    #[test]
    fn many_steps_are_joined_to_few_points_with_the_same_mean() {
        let mut curve = LossCurve::new(100);
        for step in 1..=8192_u64 {
            curve.add(&Progress::Step {
                epoch: (step - 1) / 100,
                step,
                loss: step as f64,
                learning_rate: 0.5,
                samples: 1,
                loss_scale: None,
                seconds: Seconds(1.0),
            });
        }
        let points = curve.points();
        assert!(
            (POINTS_MAX / 2..POINTS_MAX).contains(&points.len()),
            "{}",
            points.len()
        );
        let last = points[points.len() - 1];
        assert_eq!((last.step, last.epochs), (8192, 81.92));
        let mean: f64 = points.iter().map(|point| point.loss).sum::<f64>() / points.len() as f64;
        assert_eq!(mean, 8193.0 / 2.0);
    }
}
