//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../program/tests/hand/mod.rs"]
mod hand;

mod packed;
mod partial;
mod shares;
mod sizes;
mod staging;
mod verify;
