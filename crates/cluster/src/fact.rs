//! Facts with their sources.

mod entry;

use crate::words::words;

/// A number and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<T> {
    /// The number.
    pub value: T,
    /// How it was obtained.
    pub basis: Basis,
    /// Paper, vendor page, data file or measurement, with the arithmetic if there was any.
    pub source: String,
}

/// How a number was obtained, most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// The source states it.
    Stated,
    /// Measured on the machine itself.
    Measured,
    /// Fitted to measurements.
    Fitted,
    /// Computed from stated numbers; the source has the arithmetic.
    Derived,
    /// A guess; the source has its reason.
    Assumed,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessorKind {
    /// Graphics processor.
    Gpu,
    /// Host processor.
    Cpu,
}

words!(ProcessorKind, "All kinds." {
    Gpu = "gpu",
    Cpu = "cpu",
});

words!(Basis, "All, most reliable first." {
    Stated = "stated",
    Measured = "measured",
    Fitted = "fitted",
    Derived = "derived",
    Assumed = "assumed",
});
