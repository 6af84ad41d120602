//! The runner: plays one rank's body of a program on a world.
//!
//! Does: starts tasks in lane order as they become ready, counts what was done, records a trace, and
//! notices when nothing moves.
//! Knows: programs, the traits of a world (kernels, transport, source, clock), the arena.
//! Must not know: models, strategies, how a program was made, or which world it runs on.

pub mod allocation;
mod driver;
mod error;
mod footprint;
mod lines;
mod memory;
mod messages;
mod packed_tensor;
mod rank;
mod session;
mod shares;
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
pub use session::{
    ClassCount, End, EpochReport, Initial, Lasting, Outcome, Plan, Played, Progress, Schedule,
    Session, SessionError, Validation, batch_sizes, outlives_programs,
};
pub use shares::{kept_name, put_share, share_of};
pub use trace::{Event, Trace};
pub use watchdog::Watchdog;
pub use world::{Clock, Inputs, Kernels, Source, SystemClock, Transport, Worked};
