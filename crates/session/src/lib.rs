//! The session of a training: many steps of several programs, epoch after epoch, each followed by an
//! evaluation.
//!
//! Does: puts the steps in order, fills what persists over programs, gives losses, errors and medians of
//! times as they come, and hands out the tensors that a training leaves.
//! Knows: programs, and the runner of one rank, which plays a step of each.
//! Must not know: models, strategies, how programs were made, or which world they run on.

mod durations;
mod persistent;
mod play;
mod schedule;
mod session;
mod shares;
mod turns;

pub use persistent::{Initial, PersistentTensor};
pub use play::{ClassCount, End, EpochReport, Outcome, Progress, Validation};
pub use schedule::Schedule;
pub use session::{Plan, Programs, Session, SessionError, batch_sizes, persists_over_programs};
pub use shares::{persistent_name, put_share, share_of};
