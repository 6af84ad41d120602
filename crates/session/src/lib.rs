//! The training loop: steps of several programs, epoch after epoch, each followed by an evaluation.
//!
//! Does: orders the steps, initializes persistent buffers, reports losses, errors and median times, and
//! returns the trained tensors. Starts at any position between two steps, and calls a hook after each step.
//! Knows: programs, and the runner of one rank, which runs a step of each.
//! Must not know: models, strategies, how programs were made, or which world they run on.

mod durations;
mod loads;
mod loss_scale;
mod origin;
mod persistent;
mod position;
mod resume;
mod run;
mod schedule;
mod session;
mod shards;
mod snapshot;
mod steps;
mod validation;

pub use loads::{LoadSequence, PlannedLoad, SharedOrder};
pub use loss_scale::{LOSS_SCALES, LossScale, LossScaling};
pub use persistent::{InitialValues, OwnedShard, PersistentTensor, ValuesError};
pub use position::{EpochReport, Position, is_number, number_fault};
pub use resume::{Boundary, Failed, Next, Repeat, StepHook};
pub use run::{Outcome, Progress, RunEnd};
pub use schedule::{LearningRateSchedule, Milestones, SchedulePoint, ScheduleState, WarmupLength};
pub use session::{Plan, Programs, Session, SessionError, batch_sizes, persists_over_programs};
pub use shards::{model_name, persistent_name, put_shard, shard_of};
pub use snapshot::{Snapshot, Validators, snapshot_bytes};
pub use validation::{ClassCount, Evaluated, EvaluatedBatch, JoinOutputs, Validation};
