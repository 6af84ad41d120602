//! What each basis is worth, in standard deviations of the logarithm of a time.
//!
//! These are the only numbers of intervals. They are fitted to the residuals of two sets of measured steps: the
//! accuracy record of this kind of machine, and the tables in `published/`. Two tests print and bound how many of
//! these steps lie in their interval, and by which source the others miss it: `tests/coverage.rs` of this crate, and
//! `tests/verbs/intervals.rs` of `partita-cli`, with `--nocapture`.

use super::Skew;
use partita_cluster::Basis;

/// A peak of a device.
pub const fn peak(basis: Basis) -> f64 {
    match basis {
        Basis::Stated | Basis::Measured => 0.0,
        Basis::Fitted | Basis::Derived => 0.05,
        Basis::Assumed => 0.2,
    }
}

/// The share of a peak that kernels reach.
pub const fn rate(basis: Basis) -> f64 {
    match basis {
        Basis::Stated => 0.05,
        Basis::Measured => 0.05,
        Basis::Fitted => 0.1,
        Basis::Derived => 0.2,
        Basis::Assumed => 0.4,
    }
}

/// The bandwidth of a link under a real message or collective.
pub const fn bandwidth(basis: Basis) -> f64 {
    match basis {
        Basis::Stated => 0.2,
        Basis::Measured => 0.1,
        Basis::Fitted => 0.3,
        Basis::Derived => 0.3,
        Basis::Assumed => 0.6,
    }
}

/// The latency of a message or of a step of a collective.
pub const fn latency(basis: Basis) -> f64 {
    match basis {
        Basis::Stated => 0.4,
        Basis::Measured => 0.2,
        Basis::Fitted => 0.4,
        Basis::Derived => 0.5,
        Basis::Assumed => 0.8,
    }
}

/// The rate of a file system, which other jobs use too.
pub const fn reads(basis: Basis) -> f64 {
    bandwidth(basis) + 0.2
}

/// Messages and collectives between nodes, for each doubling of the nodes.
pub const PER_DOUBLING_OF_NODES: f64 = 0.05;

/// Kernels that were measured one by one, as a whole: what differs in a step, and from day to day.
pub const MEASURED_KERNELS: f64 = 0.03;

/// One measured kernel.
pub const MEASURED_KERNEL: f64 = 0.05;

/// Mean relative error of the estimate of one kernel, where a calibration does not state its own.
pub const ESTIMATED_KERNEL: f64 = 0.08;

/// Kernels estimated from measured ones, as a whole.
pub const ESTIMATED_KERNELS: f64 = 0.03;

/// Times the error of a kernel in cross-validation, if no kernel of similar shape was measured.
pub const EXTRAPOLATION: f64 = 4.0;

/// Kernels of a machine file, scaled to the measured time of a sample on one device.
pub const MEASURED_SAMPLE: f64 = 0.1;

/// Lines fitted to messages, collectives and reads on the machine itself.
pub const FITTED_LINE: f64 = 0.3;

/// What communication takes from kernels.
pub const HOST_OVERHEAD: f64 = 0.5;

/// What the simulation leaves out, on the machine that was measured, under all strategies alike.
pub const MODEL_HERE: Skew = Skew::even(0.035);

/// As [`MODEL_HERE`], of a strategy of its own.
pub const OWN_HERE: f64 = 0.07;

/// What the simulation leaves out, on a machine that is known from a file. Published runs are slower than their
/// models more often than faster.
pub const MODEL_BY_FILE: Skew = Skew {
    down: 0.08,
    up: 0.15,
};

/// What is added to [`MODEL_BY_FILE`] towards longer times, for each doubling of the nodes.
pub const MODEL_PER_DOUBLING_OF_NODES: f64 = 0.035;

/// As [`MODEL_BY_FILE`], of a strategy of its own.
pub const OWN_BY_FILE: f64 = 0.06;

/// Steps in which ranks exchange activations, if no message of the software was fitted: they may be staged through
/// hosts, and kernels of parts may be no faster than those of the whole.
pub const UNFITTED_SPLIT: Skew = Skew { down: 0.1, up: 0.7 };
