//! The runner: executes one rank's body of a program.
//!
//! Does: starts tasks in lane order as they become ready, tallies the work done, records a trace, and
//! detects stalls.
//! Knows: programs, the traits of a world (kernels, transport, source, clock), the arena.
//! Must not know: models, strategies, how a program was made, or which world it runs on.
//!
//! ```
//! use partita_run::Watchdog;
//! use partita_space::Seconds;
//!
//! // It fires after 2 s without progress. A long gap between polls, as of a stopped process, hardly counts.
//! let mut watchdog = Watchdog::start(Seconds(2.0), Seconds(0.0));
//! assert!(!watchdog.poll(Seconds(3600.0)));
//! let polls = (1..=25).map(|poll| 3600.0 + 0.1 * f64::from(poll));
//! let fired = polls.into_iter().find(|&now| watchdog.poll(Seconds(now)));
//! assert!(fired.is_some_and(|now| now < 3602.0));
//! ```

mod aligned_memory;
pub mod allocation;
mod buffer_ranges;
mod device_memory;
mod driver;
mod element;
mod error;
mod finite;
mod footprint;
mod memory;
mod messages;
mod packed_tensor;
mod rank;
mod trace;
mod watchdog;
mod widened;
mod world;

pub use device_memory::{DeviceMemory, DeviceView, Prefetch};
pub use driver::Driver;
pub use element::Element;
pub use error::RunError;
pub use finite::{FiniteCheck, NotFiniteOrigin};
pub use footprint::Footprint;
pub use memory::{Arena, Block, BlockMut, Cells, Memory};
pub use messages::{
    Key, MessageFault, MessageKind, MessageTransport, Packet, PacketPool, PointToPoint,
};
pub use packed_tensor::PackedTensor;
pub use rank::{CountedBody, RankRunner, StepReport};
pub use trace::{Event, Trace};
pub use watchdog::Watchdog;
pub use widened::{WideExecutor, execute_widened};
pub use world::{
    Clock, Inputs, KernelSpan, KernelTally, Kernels, NoSink, SampleMessages, Sink, Source,
    SystemClock, Transport,
};
