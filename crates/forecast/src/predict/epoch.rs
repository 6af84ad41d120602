//! `predict` of a training with loaders and validators: the time of an epoch, by what bounds it.

use super::{PredictRequest, Sources, step};
use crate::input::{InputRequest, PublishedSamples, published_samples};
use crate::planning::{EpochError, PlanningError};
use partita_cluster::LinkKind;
use partita_graph::Graph;
use partita_offload::loaders_of;
use partita_oracle::{Interval, OffloadedEpoch, Prediction, ProcessWork};
use partita_program::ProgramKind;
use partita_site::Context;
use partita_space::{Bytes, Seconds};
use serde::Serialize;

/// Loaders and validators of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadRequest {
    /// Number of loaders.
    pub loaders: usize,
    /// Time that a loader takes to read, prepare, augment and send a whole sample.
    pub seconds_per_load: Option<Seconds>,
    /// Number of validators.
    pub validators: usize,
    /// Time that a validator takes for a sample (default: a validator is as fast as the ranks of the training).
    pub seconds_per_validation: Option<Seconds>,
    /// Samples of the dataset that are validated, not trained on.
    pub validation_samples: usize,
}

impl OffloadRequest {
    /// No loaders, and the ranks validate.
    pub fn none(validation_samples: usize) -> Self {
        Self {
            loaders: 0,
            seconds_per_load: None,
            validators: 0,
            seconds_per_validation: None,
            validation_samples,
        }
    }

    /// Samples to train on.
    ///
    /// Errors: what is missing for an epoch, with the nearest valid choice.
    fn samples(self, request: &PredictRequest, graph: &Graph) -> Result<usize, EpochError> {
        let (batch, validation) = (request.training.batch, self.validation_samples);
        if request.kind != ProgramKind::Train {
            return Err(EpochError::NotTraining);
        }
        if self.loaders > 0 && self.seconds_per_load.is_none() {
            return Err(EpochError::NoLoadTime(self.loaders));
        }
        if self.validators > 0 && validation == 0 {
            return Err(EpochError::NoValidation(self.validators));
        }
        let batches = validation.div_ceil(batch);
        if self.validators > batches.max(1) {
            let validators = self.validators;
            return Err(EpochError::ManyValidators {
                validators,
                batches,
            });
        }
        let samples = request.input.dataset_samples;
        let samples =
            samples.or_else(|| published_samples(&graph.name).map(PublishedSamples::count));
        let samples = samples.ok_or(EpochError::NoDataset)?;
        match samples.checked_sub(validation) {
            Some(training) if training >= batch => Ok(training),
            Some(_) | None if samples <= batch || validation == 0 => {
                Err(EpochError::ShortDataset {
                    samples,
                    validation,
                    batch,
                })
            }
            Some(_) | None => Err(EpochError::NoTraining {
                validation,
                samples,
                batch,
                nearest: samples - batch,
            }),
        }
    }
}

/// The prediction of an epoch.
#[derive(Clone, Debug, Serialize)]
pub struct EpochPrediction {
    /// Training steps.
    pub steps: usize,
    /// Samples that are trained on.
    pub training_samples: usize,
    /// Samples that are validated.
    pub validation_samples: usize,
    /// Samples that are trained on per second, waiting for loaders included; 0 if a step takes no time.
    pub samples_per_second: f64,
    /// How sure its time is. What processes take for a sample, where it is given, counts as sure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<EpochInterval>,
    /// Its time.
    #[serde(flatten)]
    pub times: OffloadedEpoch,
}

/// An interval that holds the time of an epoch with the probability `confidence`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EpochInterval {
    /// Lower end.
    pub low_seconds: Seconds,
    /// Upper end.
    pub high_seconds: Seconds,
    /// Probability.
    pub confidence: f64,
}

/// The time of a step, and the ends of its interval, if it has one.
#[derive(Default)]
struct Times {
    seconds: Seconds,
    interval: Option<Interval>,
}

impl Times {
    fn of(prediction: &Prediction) -> Self {
        Self {
            seconds: prediction.iteration_seconds,
            interval: prediction.interval.clone(),
        }
    }

    fn low(&self) -> Seconds {
        let interval = self.interval.as_ref();
        interval.map_or(self.seconds, |it| it.low_seconds)
    }

    fn high(&self) -> Seconds {
        let interval = self.interval.as_ref();
        interval.map_or(self.seconds, |it| it.high_seconds)
    }
}

/// An epoch whose steps are predicted.
pub struct Epoch {
    batch: usize,
    ranks: usize,
    /// Samples to train on.
    samples: usize,
    offload: OffloadRequest,
}

impl Epoch {
    /// The epoch of a request, if it asks for one.
    ///
    /// Errors: what is missing for an epoch.
    pub fn new(request: &PredictRequest, graph: &Graph) -> Result<Option<Self>, EpochError> {
        let Some(offload) = request.offload else {
            return Ok(None);
        };
        Ok(Some(Self {
            batch: request.training.batch,
            ranks: request.training.ranks,
            samples: offload.samples(request, graph)?,
            offload,
        }))
    }

    /// Predicts the epoch from the prediction of a step. An evaluation is predicted too, where the ranks do it, or
    /// validators that are as fast as they are.
    ///
    /// Errors: as [`predict`](super::predict()) of an evaluation.
    pub fn predict(
        &self,
        context: &Context,
        request: &PredictRequest,
        sources: &Sources<'_>,
        step: &Prediction,
    ) -> Result<EpochPrediction, PlanningError> {
        let offload = self.offload;
        let is_evaluated = offload.validation_samples > 0
            && (offload.validators == 0 || offload.seconds_per_validation.is_none());
        let evaluation = if is_evaluated {
            Times::of(&evaluation(context, request, sources)?)
        } else {
            Times::default()
        };
        let before = if offload.validators == 0 {
            Seconds(0.0)
        } else {
            sending(sources)
        };
        Ok(self.predicted(&Times::of(step), &evaluation, before))
    }

    fn predicted(&self, step: &Times, evaluation: &Times, before: Seconds) -> EpochPrediction {
        let times = self.times(step.seconds, evaluation.seconds, before);
        // Steps and evaluations are slow for the same reasons, so both are at the same end.
        let interval = step.interval.as_ref().map(|interval| EpochInterval {
            low_seconds: self.times(step.low(), evaluation.low(), before).seconds,
            high_seconds: self.times(step.high(), evaluation.high(), before).seconds,
            confidence: interval.confidence,
        });
        let training = times.training_or_loading();
        EpochPrediction {
            steps: self.steps(),
            training_samples: self.samples,
            validation_samples: self.offload.validation_samples,
            samples_per_second: if training.0 > 0.0 {
                self.samples as f64 / training.0
            } else {
                0.0
            },
            interval,
            times,
        }
    }

    fn steps(&self) -> usize {
        self.samples.div_ceil(self.batch)
    }

    /// With steps of the training and of the evaluation that take so long.
    fn times(&self, step: Seconds, evaluation: Seconds, before: Seconds) -> OffloadedEpoch {
        let (offload, batch) = (self.offload, self.batch);
        let loading = offload.seconds_per_load.filter(|_| offload.loaders > 0);
        let loading = loading.map(|seconds_per_sample| ProcessWork {
            processes: offload.loaders,
            seconds_per_sample,
            samples: self.samples as f64 * busiest(self.ranks, offload.loaders),
            before: Seconds(0.0),
        });
        let batches = offload.validation_samples.div_ceil(batch);
        let as_ranks = evaluation * (1.0 / batch as f64);
        let (validation, own_validation) = if offload.validators == 0 {
            (None, evaluation * batches as f64)
        } else {
            let work = ProcessWork {
                processes: offload.validators,
                seconds_per_sample: offload.seconds_per_validation.unwrap_or(as_ranks),
                samples: (batches.div_ceil(offload.validators) * batch) as f64,
                before,
            };
            (Some(work), Seconds(0.0))
        };
        let training = step * self.steps() as f64;
        OffloadedEpoch::new(training, own_validation, loading, validation)
    }
}

/// The share of a mini-batch that the busiest loader reads.
fn busiest(ranks: usize, loaders: usize) -> f64 {
    let mut shares = vec![0.0; loaders];
    for rank in 0..ranks {
        let own = loaders_of(rank, ranks, loaders);
        for &loader in &own {
            shares[loader] += 1.0 / (ranks * own.len()) as f64;
        }
    }
    shares.into_iter().fold(0.0, f64::max)
}

/// A step of the evaluation, as fast as the ranks do it.
fn evaluation(
    context: &Context,
    request: &PredictRequest,
    sources: &Sources<'_>,
) -> Result<Prediction, PlanningError> {
    let evaluated = PredictRequest {
        kind: ProgramKind::Evaluate,
        input: InputRequest::IGNORED,
        tasks: false,
        explain: false,
        ..request.clone()
    };
    Ok(step(context, &evaluated, sources)?.prediction)
}

/// Time that a snapshot of the parameters travels to a validator, on a machine whose links are known.
fn sending(sources: &Sources<'_>) -> Seconds {
    let elements: usize = sources
        .graph
        .stored_parameters()
        .map(|one| one.volume())
        .sum();
    let machine = sources.platform.machine.as_ref();
    machine.map_or(Seconds(0.0), |machine| {
        Bytes(4 * elements as u64) / machine.bandwidth(LinkKind::Inter)
    })
}

#[cfg(test)]
mod tests {
    use super::busiest;

    #[test]
    fn the_busiest_loader_has_the_most_ranks() {
        assert_eq!(busiest(4, 1), 1.0);
        assert_eq!(busiest(4, 4), 0.25);
        assert_eq!(busiest(4, 8), 0.125);
        // Two of three ranks share a loader.
        assert!((busiest(3, 2) - 2.0 / 3.0).abs() < 1e-12);
    }
}
