//! Bodies made by hand, and ranks of a world of threads that run them.

#[path = "../../../reference/tests/hand/mod.rs"]
pub mod bodies;
pub mod rank;
