//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod errors;
mod extents;
mod faults;
mod published;
mod resample;
mod round_trip;
mod sequences;
mod shapes;
mod words;
