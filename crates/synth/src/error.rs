//! What can go wrong when data are made or the baseline is fitted.

use partita_space::Help;
use thiserror::Error;

/// A specification that cannot be met, or data that do not fit it.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SynthError {
    /// A field of a specification lies outside what is possible.
    #[error("{field}: expected {expected}, got {got}")]
    InvalidSpec {
        /// Name of the field.
        field: &'static str,
        /// What would be accepted.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// Samples do not fit the positions that they are given.
    #[error(
        "length: {length} positions do not hold every sample{}",
        Help::possible(format_args!("{needed} or more")).nearest(needed)
    )]
    TooShort {
        /// Positions given.
        length: usize,
        /// Positions of the longest sample.
        needed: usize,
    },
    /// More different samples are wanted than there are.
    #[error(
        "samples: {asked} different strings are asked for, and there are {possible}{}",
        Help::possible(format_args!("1 to {possible}")).nearest(possible)
    )]
    TooMany {
        /// Samples asked for.
        asked: u64,
        /// Samples that there are.
        possible: u64,
    },
    /// A voxel holds more particles than a 16-bit integer can count.
    #[error(
        "universe {index}, channel {channel}: a voxel holds more than 32767 particles; \
         lower particles_per_dim or enlarge the voxels"
    )]
    CountOverflow {
        /// Index of the universe.
        index: u64,
        /// Channel (redshift) in which it happened.
        channel: usize,
    },
    /// An array has another length than its companions require.
    #[error("{what}: expected {expected} values, got {got}")]
    Length {
        /// Name of the array.
        what: &'static str,
        /// Number of values required.
        expected: usize,
        /// Number of values given.
        got: usize,
    },
    /// The normal equations have no unique solution at any regularization that was tried.
    #[error("ridge regression: the normal equations are singular (features not finite?)")]
    Singular,
}
