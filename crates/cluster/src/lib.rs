//! The machine on which a training runs: nodes, devices, memories, links, storage; and its software.
//!
//! Does: reads, checks and writes machine files and software profiles; knows which link joins two ranks.
//! Knows: facts, each with its source and basis.
//! Must not know: models, programs, strategies, or cost models. No number of a machine is in the code.
//!
//! ```
//! use partita_cluster::{LinkKind, Machine};
//!
//! let lassen = Machine::load("lassen", &[])?;
//! assert_eq!(lassen.devices(), 512 * 4);
//! assert_eq!(lassen.link(3, 4), LinkKind::Inter); // the last device of a node, the first of the next
//! # Ok::<(), partita_cluster::MachineError>(())
//! ```

mod calibration;
mod entry;
mod error;
mod fact;
mod files;
mod load;
mod machine;
mod network;
mod quantity;
mod software;
mod words;

pub use calibration::{
    Calibration, CalibrationError, HostGroup, LinkFit, MeasuredKernel, NetworkCalibration,
    TransferTime,
};
pub use error::{MachineError, SoftwareError};
pub use fact::{Basis, Fact, ProcessorKind};
pub use machine::{
    Allreduce, AllreduceLink, ConvEfficiency, ConvPass, ConvSaturation, Device, Efficiency,
    Exchange, HalfSaturation, InterLink, IntraLink, Io, LayerPrecision, LinkKind, Links, Machine,
    PrecisionEfficiency, Rates, Share, Tiles,
};
pub use network::{
    CollectiveLibrary, Dragonfly, IntraKind, Network, NetworkLevel, Ratio, Reduction, SwitchLevel,
    Torus,
};
pub use software::{
    AdaptersUsed, Exponent, Factor, GpuKernels, GpuMemory, KernelSplit, NeighborExchange,
    Redistribution, Software, SoftwareKernels, SoftwareSums, SumFit,
};
