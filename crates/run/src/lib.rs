//! The runner: plays one rank's body of a program on a world.
//!
//! Does: starts tasks in lane order as they become ready, counts what was done, records a trace, and
//! notices when nothing moves.
//! Knows: programs, the traits of a world (kernels, transport, source, clock), the arena.
//! Must not know: models, strategies, how a program was made, or which world it runs on.
//!
//! ```
//! use partita_run::Watchdog;
//! use partita_space::Seconds;
//!
//! // Nothing moves for longer than 2 s. A gap between two looks, as of a stopped process, hardly counts.
//! let mut watchdog = Watchdog::start(Seconds(2.0), Seconds(0.0));
//! assert!(!watchdog.look(Seconds(3600.0)));
//! let looks = (1..=25).map(|look| 3600.0 + 0.1 * f64::from(look));
//! let fired = looks.into_iter().find(|&now| watchdog.look(Seconds(now)));
//! assert!(fired.is_some_and(|now| now < 3602.0));
//! ```

pub mod allocation;
mod driver;
mod error;
mod footprint;
mod lines;
mod memory;
mod messages;
mod packed_tensor;
mod rank;
mod trace;
mod watchdog;
mod world;

pub use driver::Driver;
pub use error::RunError;
pub use footprint::Footprint;
pub use memory::{Arena, Block, BlockMut, Cells, Element, Memory};
pub use messages::{
    Key, MessageFault, MessageKind, MessageTransport, Packet, PacketPool, PointToPoint,
};
pub use packed_tensor::PackedTensor;
pub use rank::{Counted, RankRunner, StepReport};
pub use trace::{Event, Trace};
pub use watchdog::Watchdog;
pub use world::{Clock, Inputs, Kernels, Source, SystemClock, Transport, Worked};
