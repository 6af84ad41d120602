//! Autotuning: microbenchmarks of kernels, messages and reads on this machine, a database of their times, and the
//! configurations of kernels that follow from them.
//!
//! Does: times kernels, exchanges, collectives and reads with all ranks running; keeps times in an SQLite
//! file; finds which implementations and micro-batches are worth their workspace, and offers them to lowering.
//! Knows: programs, the traits of `run`, the features of the oracle's kernel model, the clock of this machine,
//! one file.
//! Must not know: models, strategies, backends by name, how a time becomes a prediction.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests read what they wrote")
)]

mod barrier;
mod benchmark;
mod cache_residency;
mod catalog;
mod database;
mod division;
mod error;
mod frontier;
mod links;
mod load;
mod measure;
mod measurements;
mod operand_fill;
mod other_memory;
mod store;
mod stream;
mod tables;
mod trials;
mod variants;

pub use benchmark::KernelKey;
pub use catalog::{Catalog, CatalogMenu};
pub use database::Database;
pub use division::divide;
pub use error::TuneError;
pub use frontier::{DivisionPolicy, Frontier, FrontierPoint, MicroTime, frontier};
pub use links::{
    ArenaMaker, HostLayout, NetworkTimes, RankTimes, RankTransportMaker, RepeatTimes,
    TransportMaker, WantedLinks, link_times_of_ranks, measure_links, measure_links_of_rank,
    measure_network_of_rank, network_times_of_ranks,
};
pub use load::measure_load;
pub use measure::{KernelMaker, KernelTime, Options, measure, median_of_passes};
pub use measurements::{Conditions, Measurements};
pub use partita_oracle::{LinkSizes, LinkTimes, TransferTime};
pub use store::scratch;
pub use stream::measure_memory;
pub use trials::{TrialMenu, TrialTimes, telling};
pub use variants::{Variant, Variants};
