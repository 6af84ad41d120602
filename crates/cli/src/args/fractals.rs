//! Arguments of `partita data fractals`.

use crate::number;
use clap::Args;
use std::path::PathBuf;

/// `partita data fractals`.
#[derive(Debug, Args)]
pub struct FractalsArgs {
    /// Output folder, new or empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Voxels per side as a power of two, 3 to 11: 7 for volumes of 128^3
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = number::within::<3, 11>)]
    pub scale: usize,
    /// Number of volumes over all splits; 241 show each instance of a fractal at most once
    #[arg(long, value_name = "N", default_value_t = partita_synth::FRACTAL_VOLUMES, allow_negative_numbers = true, value_parser = number::count)]
    pub volumes: usize,
    /// Seed; the same seed and options give the same bytes
    #[arg(long, value_name = "S", default_value_t = 42, allow_negative_numbers = true, value_parser = number::seed)]
    pub seed: u64,
    /// Validation fraction
    #[arg(long, value_name = "FRACTION", default_value = "0.3", allow_negative_numbers = true, value_parser = number::fraction)]
    pub validation: f64,
    /// Test fraction
    #[arg(long, value_name = "FRACTION", default_value = "0", allow_negative_numbers = true, value_parser = number::fraction)]
    pub test: f64,
    /// Threads (default: number of cores)
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
}
