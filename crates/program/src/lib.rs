//! The program: what each rank does, task by task, in one explicit form.
//!
//! Does: defines tasks, kernels, buffers and views; bounds and counts them exactly; prints, parses and
//! digests a program.
//! Knows: local shapes, peers as mesh offsets, the order of each lane, and the menu type.
//! Must not know: the model a program came from, machines, seconds, threads or devices.

mod access;
mod buffer;
mod configuration;
mod constants;
mod count;
pub mod descriptor;
mod each_view;
pub mod fused;
mod kernel;
mod key;
mod loss;
mod member_views;
mod memory_breakdown;
mod menu;
mod optimizer;
mod piece;
pub mod prefetch;
mod program;
pub mod random;
mod sizes;
mod slabs;
mod staging;
mod task;
mod task_set;
mod task_site;
mod text;
mod widened;

pub use access::Access;
pub use buffer::{
    AVERAGE, Buffer, BufferId, Distribution, Dtype, Role, TensorRegion, View, ViewError,
};
pub use configuration::{Algorithm, Configuration, ConfigurationError, MicroBatches};
pub use constants::{Direction, Taps, Transform};
pub use count::Count;
pub use descriptor::Family;
pub use kernel::{Fields, Kernel, fields};
pub use loss::ClassTerms;
pub use member_views::{MemberViews, SplitView, SplitViewError, Views};
pub use memory_breakdown::{MemoryBreakdown, MemoryCategory, live_at_peak, memory_breakdown};
pub use menu::{Choice, KernelShape, Menu, MenuError, UnpinnedMenu};
pub use optimizer::Optimizer;
pub use partita_space::{Activation, DropoutMask, ElementFunction, PoolKind};
pub use piece::{restricted, set_accumulate};
pub use program::{Body, DICE_SUMS, ENTROPY, GRADIENT_SQUARES, Output, Program, ProgramKind};
pub use sizes::{SizeFault, SizeFaults};
pub use staging::{BufferTransfer, PacketSize, Packets, SMALL_SUM, Staging, packet_bytes};
pub use task::{
    Collective, CollectiveKind, Exchange, Group, Item, Lane, Load, Origin, Phase, Receive, Send,
    Store, Task, TaskId, When, Work,
};
pub use task_set::TaskSet;
pub use task_site::TaskSite;
pub use text::ParseError;
pub use widened::{WideCopy, Widened};
