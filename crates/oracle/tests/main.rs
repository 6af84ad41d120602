//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixed_costs;

mod closed;
mod collectives;
mod coverage;
mod explanation;
mod network;
mod prediction;
mod simulation;
mod software;
mod uncertainty;
