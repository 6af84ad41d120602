//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod menus;
mod request;

mod branches;
mod counts;
mod golden;
mod groups;
mod nearest;
mod norms;
mod packing;
mod passes;
mod sequences;
mod shares;
mod state;
mod tied;
mod trust;
mod workspace;
