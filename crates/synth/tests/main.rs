//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod digits;
mod fractals;
mod labeled;
mod universe;
