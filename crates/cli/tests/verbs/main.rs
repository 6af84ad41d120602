//! The built binary, verb by verb, as a user calls it.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod command;

mod cache;
mod calibrating;
#[cfg(unix)]
mod checkpoints;
mod comparing;
#[cfg(target_os = "linux")]
mod cores;
mod data;
mod devices;
mod digits;
mod doctor;
#[cfg(target_os = "linux")]
mod doors;
#[cfg(unix)]
mod endings;
mod epochs;
#[cfg(unix)]
mod extents;
mod here;
#[cfg(unix)]
mod hostile;
mod intervals;
#[cfg(unix)]
mod metrics;
mod models;
#[cfg(unix)]
mod offload;
#[cfg(unix)]
mod output;
mod planning;
mod predicting;
mod programs;
mod published;
mod refusals;
mod report;
mod shapes;
#[cfg(unix)]
mod signals;
mod software;
mod stages;
mod streams;
mod tasks;
#[cfg(unix)]
mod trainee;
#[cfg(unix)]
mod tuning;
#[cfg(unix)]
mod validators;
