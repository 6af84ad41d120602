//! What can go wrong when data are made or the baseline is fitted.

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
