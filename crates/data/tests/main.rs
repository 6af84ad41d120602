//! The tests of this crate, one binary: linking each file takes longer than most of them run.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod made;

mod convert;
mod cut;
mod damage;
#[cfg(unix)]
mod doors;
#[cfg(unix)]
mod external;
mod fixtures;
mod foreign_formats;
mod foreign_hdf5;
mod formats;
mod formats_damage;
mod slab_bytes;
mod tasks;
mod work;
mod writing;
