//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod naive;

mod adapter;
mod bf16;
mod convolution;
mod elementwise;
mod equality;
mod expected;
mod fourier;
mod fusion;
mod grid;
mod pool;
mod winograd;
