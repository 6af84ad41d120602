//! Why the time of an epoch cannot be predicted.

/// Why an epoch cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    /// No time for loaders.
    #[error(
        "{0} loader(s) take an unknown time for a sample; `--seconds-per-load` gives it, such as `20ms`: measure it with \
         one loader, or `bench/record_offload.py`"
    )]
    NoLoadTime(usize),
    /// Nothing to validate.
    #[error(
        "{0} validator(s) have no samples; `--validation-samples N` says how many of the dataset they validate"
    )]
    NoValidation(usize),
    /// An unknown number of samples.
    #[error(
        "an epoch of unknown length; `--dataset-samples N` says how many samples the dataset has"
    )]
    NoDataset,
    /// A dataset without a step.
    #[error(
        "a dataset of {samples} sample(s){} has too few for a step of {batch}{}",
        validated(*validation),
        Help::none().nearest(format_args!(
            "`--dataset-samples {}` or more{}",
            batch + validation,
            smaller_batch(*samples, *validation)
        ))
    )]
    ShortDataset {
        /// Of the dataset.
        samples: usize,
        /// Of them, those that are validated.
        validation: usize,
        /// Of a step.
        batch: usize,
    },
    /// No sample is left.
    #[error(
        "{validation} of {samples} samples are validated, and {batch} or more must be left for a step{}",
        Help::none().code(format_args!("--validation-samples {nearest}"))
    )]
    NoTraining {
        /// Requested.
        validation: usize,
        /// Of the dataset.
        samples: usize,
        /// Of a step.
        batch: usize,
        /// The most that is possible.
        nearest: usize,
    },
    /// More validators than mini-batches.
    #[error(
        "{validators} validators divide {batches} mini-batch(es) of validation samples{}",
        Help::none().nearest(batches)
    )]
    ManyValidators {
        /// Requested.
        validators: usize,
        /// Mini-batches.
        batches: usize,
    },
    /// Another kind of step.
    #[error(
        "loaders and validators are of a training{}",
        Help::none().nearest("`--kind train`, or neither of them")
    )]
    NotTraining,
}

use partita_space::Help;

fn validated(samples: usize) -> String {
    match samples {
        0 => String::new(),
        _ => format!(", {samples} of them validated,"),
    }
}

/// Advice on the batch where samples are left to train on.
fn smaller_batch(samples: usize, validation: usize) -> String {
    match samples.saturating_sub(validation) {
        0 => String::new(),
        left => format!(", or `--batch {left}` or less under a strategy that fits it"),
    }
}
