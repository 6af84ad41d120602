//! An epoch of which processes beside the ranks do a part: loaders that read, prepare and augment samples, and validators
//! that evaluate the end of an epoch while the next one trains.

use partita_space::Seconds;
use serde::Serialize;

/// What one part of an epoch asks of other processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessWork {
    /// Number of processes.
    pub processes: usize,
    /// Time that one of them takes for a sample.
    pub seconds_per_sample: Seconds,
    /// Samples of the busiest of them.
    pub samples: f64,
    /// Time before its first sample, in which it receives a snapshot.
    pub before: Seconds,
}

impl ProcessWork {
    fn seconds(&self) -> Seconds {
        self.before + self.seconds_per_sample * self.samples
    }

    fn beside(self, others: Seconds) -> OffloadedWork {
        OffloadedWork {
            processes: self.processes,
            seconds_per_sample: self.seconds_per_sample,
            seconds: self.seconds(),
            seconds_per_sample_max: Seconds((others - self.before).0.max(0.0) / self.samples),
        }
    }
}

/// Work of an epoch that other processes do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffloadedWork {
    /// Number of processes.
    pub processes: usize,
    /// Time that one of them takes for a sample.
    pub seconds_per_sample: Seconds,
    /// Time that the busiest of them works for an epoch.
    pub seconds: Seconds,
    /// The most that a sample may take for the ranks not to wait.
    pub seconds_per_sample_max: Seconds,
}

/// The time of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffloadedEpoch {
    /// Training steps of the ranks, without waiting for loaders.
    pub training_seconds: Seconds,
    /// What loaders do, if there are some.
    pub loading: Option<OffloadedWork>,
    /// What validators do, if there are some.
    pub validation: Option<OffloadedWork>,
    /// Evaluation by the ranks themselves, where there are no validators.
    pub own_validation_seconds: Seconds,
    /// The longest of training, loading and validation, which run at the same time, and after it the ranks' own validation.
    pub seconds: Seconds,
}

impl OffloadedEpoch {
    /// Time of the training steps, with waiting for loaders.
    pub fn training_or_loading(&self) -> Seconds {
        let loading = self.loading.as_ref().map_or(Seconds(0.0), |it| it.seconds);
        self.training_seconds.max(loading)
    }

    /// Of an epoch whose ranks train and validate so long, beside the work of others.
    ///
    /// All but the last epoch take this long: validators work while the next epoch trains.
    /// Source: Jain et al., HotI 2021, on offloading to DPUs: an epoch takes the maximum of its parts, not their sum.
    pub fn new(
        training: Seconds,
        own_validation: Seconds,
        loading: Option<ProcessWork>,
        validation: Option<ProcessWork>,
    ) -> Self {
        let busy = |work: &Option<ProcessWork>| work.map_or(Seconds(0.0), |it| it.seconds());
        // A part is hidden as long as it takes no longer than the others.
        let in_training = training.max(busy(&loading));
        Self {
            training_seconds: training,
            loading: loading.map(|work| work.beside(training)),
            validation: validation.map(|work| work.beside(in_training)),
            own_validation_seconds: own_validation,
            seconds: in_training.max(busy(&validation)) + own_validation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_takes_as_long_as_its_longest_part() {
        let seconds = |loading: f64, validation: f64| {
            let work = |seconds: f64| {
                Some(ProcessWork {
                    processes: 2,
                    seconds_per_sample: Seconds(0.5),
                    samples: 2.0 * (seconds - 1.0),
                    before: Seconds(1.0),
                })
            };
            let (loading, validation) = (work(loading), work(validation));
            OffloadedEpoch::new(Seconds(10.0), Seconds(0.0), loading, validation)
        };
        assert_eq!(seconds(4.0, 5.0).seconds, Seconds(10.0));
        assert_eq!(seconds(12.0, 5.0).seconds, Seconds(12.0));
        assert_eq!(seconds(4.0, 11.0).seconds, Seconds(11.0));
        // At the break-even a part takes as long as the others: 6 samples in 9 s, 8 samples in 19 s.
        let found = seconds(4.0, 5.0);
        let loading = found.loading.map(|work| work.seconds_per_sample_max);
        assert_eq!(loading, Some(Seconds(1.5)));
        let validation = seconds(20.0, 5.0).validation;
        let most = validation.map(|work| work.seconds_per_sample_max);
        assert_eq!(most, Some(Seconds(2.375)));
        // Without validators the ranks validate themselves, when they have trained.
        let own = OffloadedEpoch::new(Seconds(10.0), Seconds(3.0), None, None);
        assert_eq!(own.seconds, Seconds(13.0));
    }
}
