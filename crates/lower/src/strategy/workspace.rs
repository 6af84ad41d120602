//! Limits of the workspace of kernels.

use partita_space::Bytes;

/// How much workspace the measured configurations of kernels may use. What was not measured runs by the
/// implementation that needs no measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkspaceLimit {
    /// Each kernel what the arena leaves free at its moment in the program, so that the arena does not grow.
    #[default]
    Live,
    /// No measured configurations.
    Off,
    /// Each kernel this much, which several use one after the other.
    Kernel(Bytes),
    /// All kernels of a rank this much together, as if each had a workspace of its own.
    Total(Bytes),
}
