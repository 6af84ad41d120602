//! Arguments on the input of a predicted step, and on the processes that share an epoch.

use super::IoName;
use crate::number::{self, Cores};
use clap::Args;
use partita::{parse_bytes, parse_seconds};
use partita_space::{Bytes, Seconds};

/// Where the samples of a predicted step come from.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// Ignore input time (samples are already in memory)
    #[arg(long, conflicts_with = "io")]
    pub no_io: bool,
    /// Where samples come from after the first epoch (default: `store` where the software keeps samples and the host
    /// memory of the nodes holds the dataset, else `files`)
    #[arg(long, value_enum)]
    pub io: Option<IoName>,
    /// Samples of the dataset (default: those of the dataset that the model was published with)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::dataset_samples)]
    pub dataset_samples: Option<usize>,
}

/// The memory of readers of files.
#[derive(Debug, Args)]
pub struct DecodingArgs {
    /// Memory that decoding of files may take, all readers of a process together, such as `4GiB` (default: that of the run
    /// file, else half of what is free)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub decode_memory: Option<Bytes>,
}

/// The cores of a run or a measurement.
#[derive(Debug, Args)]
pub struct CoresArgs {
    /// Cores that this process may use, such as `0,4-7` (default: those of the run file, or all that it was started on)
    #[arg(long, value_name = "CORES", value_parser = number::cores)]
    pub cores: Option<Cores>,
}

/// Loaders and validators of a predicted epoch.
#[derive(Debug, Args)]
pub struct OffloadArgs {
    /// Loaders: processes that read, prepare and augment samples; an epoch is predicted, too
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count, conflicts_with_all = ["io", "no_io"])]
    pub loaders: Option<usize>,
    /// Time that a loader takes for a whole sample, such as `20ms`
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_hyphen_values = true, requires = "loaders")]
    pub seconds_per_load: Option<Seconds>,
    /// Validators: processes that validate an epoch while the next one trains; an epoch is predicted, too
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub validators: Option<usize>,
    /// Time that a validator takes for a sample (default: a validator is as fast as the ranks)
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_hyphen_values = true, requires = "validators")]
    pub seconds_per_validation: Option<Seconds>,
    /// Samples of the dataset that are validated, not trained on; an epoch is predicted, too
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::dataset_samples)]
    pub validation_samples: Option<usize>,
}
