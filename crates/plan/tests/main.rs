//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod requests;

mod balance;
mod levels;
mod network;
mod per_layer;
mod plan;
mod repeats;
mod savings;
