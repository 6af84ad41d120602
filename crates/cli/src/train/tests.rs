//! Tests of training within the process.

mod classes;
mod command;
mod finite;
mod run_file;
mod session;
