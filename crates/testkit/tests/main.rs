//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod averages;
mod buckets;
mod chunks;
mod classes;
mod descriptors;
mod divisors;
mod equality;
mod features;
mod frozen;
mod groups;
mod half;
mod imported;
mod levels;
mod local_statistics;
mod memory;
mod mutation;
mod packing;
mod persistent;
mod pipelines;
mod pytorch;
mod selective;
mod sharded_replicas;
mod simulation;
mod suggestions;
mod tally;
