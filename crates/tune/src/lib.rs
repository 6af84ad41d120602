//! Tuning: how long kernels, messages and reads take on this machine, measured once and kept.
//!
//! Does: times kernels, exchanges, collectives and reads with all ranks at work; keeps a database.
//! Knows: programs, the traits of `run`, the features by which the oracle tells kernels apart, the clock of
//! this machine, one file.
//! Must not know: models, strategies, backends by name, how a time becomes a prediction.

mod contents;
mod database;
mod error;
mod gate;
mod job;
mod links;
mod load;
mod measure;
mod old_keys;
mod reuse;
mod store;
mod stream;

pub use database::{Database, Measurements, Setting};
pub use error::TuneError;
pub use job::KernelKey;
pub use links::{
    OwnTimes, RankTransportMaker, Times, TransportMaker, link_times_of_ranks, measure_links,
    measure_links_of_rank,
};
pub use load::measure_load;
pub use measure::{KernelMaker, Measured, Options, measure, middle};
pub use partita_oracle::{LinkTimes, TransferTime};
pub use store::scratch;
pub use stream::measure_memory;
