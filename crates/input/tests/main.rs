//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod delivery;
#[path = "../../data/tests/made/mod.rs"]
mod made;

mod data_check;
mod extents;
mod geometry;
mod labels;
mod loads;
mod names;
mod preprocessing;
mod source;
mod statistics;
mod store;
