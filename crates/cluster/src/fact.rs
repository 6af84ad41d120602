//! Facts with their sources.

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

impl ProcessorKind {
    /// All kinds.
    pub const ALL: [ProcessorKind; 2] = [ProcessorKind::Gpu, ProcessorKind::Cpu];

    /// The word used in machine files.
    pub fn name(self) -> &'static str {
        match self {
            ProcessorKind::Gpu => "gpu",
            ProcessorKind::Cpu => "cpu",
        }
    }
}
