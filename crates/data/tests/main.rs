//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod made;

mod checkpoint;
mod convert;
mod damage;
mod data_check;
mod extents;
mod fixtures;
mod foreign_formats;
mod foreign_hdf5;
mod formats;
mod formats_damage;
mod geometry;
mod labels;
mod loads;
mod names;
mod preprocessing;
mod slab_bytes;
mod source;
mod statistics;
mod store;
mod tasks;
mod weights;
mod writing;
