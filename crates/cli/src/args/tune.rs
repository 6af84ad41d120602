//! Arguments of `tune`.

use super::{CoresArgs, DeviceName, KindName, TrainingArgs};
use crate::number;
use clap::{Args, ValueEnum};
use partita::{DivisionPolicy, KernelSet, parse_bytes};
use partita_space::Bytes;
use std::path::PathBuf;

/// `partita tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Strategy, such as `depth=2` (default: `data=P`)
    #[arg(long, value_name = "S")]
    pub strategy: Option<String>,
    /// Kind of program
    #[arg(long, value_enum, default_value_t)]
    pub kind: KindName,
    /// Threads per rank
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = number::count)]
    pub threads: usize,
    #[command(flatten)]
    pub on: CoresArgs,
    /// Where kernels compute
    #[arg(long, value_enum, default_value_t = DeviceName(KernelSet::CPU))]
    pub device: DeviceName,
    /// Extents of micro-batches that are measured
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyName,
    /// Limits of the workspace of each kernel under which the step is shown, such as `8MiB,64MiB`
    #[arg(long, value_name = "SIZES", value_parser = parse_bytes, value_delimiter = ',', allow_hyphen_values = true)]
    pub limits: Vec<Bytes>,
    /// Limits of the workspaces of all kernels together under which the step is shown
    #[arg(long, value_name = "SIZES", value_parser = parse_bytes, value_delimiter = ',', allow_hyphen_values = true)]
    pub totals: Vec<Bytes>,
    /// Write a page with time against workspace of every convolution
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// Policies of micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// Every extent
    All,
    /// Powers of two
    #[default]
    PowerOfTwo,
    /// No micro-batches
    Undivided,
}

impl PolicyName {
    /// The policy.
    pub fn policy(self) -> DivisionPolicy {
        match self {
            Self::All => DivisionPolicy::All,
            Self::PowerOfTwo => DivisionPolicy::PowerOfTwo,
            Self::Undivided => DivisionPolicy::Undivided,
        }
    }
}
