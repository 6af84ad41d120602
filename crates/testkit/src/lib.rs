//! Cases and random programs from a printed seed, and the harness that runs and compares them.
//!
//! Does: draws graphs and strategies, runs programs on threads, compares results norm-wise.
//! Knows: every room that takes part in a run.
//! Must not know: how a user calls it; no room depends on it but for its tests.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool of developers reads their own files"
)]

mod any_case;
mod bench;
mod branched;
mod cases;
mod compare;
mod counting;
mod drawn_menu;
mod harness;
mod jitter;
mod kinks;
mod levels;
mod losses;
mod maker;
mod memory_source;
mod not_run;
mod onednn;
mod random;
mod sequences;
mod share;
mod staged;
mod suggestions;
mod tied;
mod trial;
mod two_stages;
mod watch;
mod wrap_kernels;

pub use any_case::{OPTIMIZERS, any_random_case, random_saving_case};
pub use bench::{Bench, KernelOutput};
pub use branched::random_branched_case;
pub use cases::{
    Case, random_case, random_chunked_case, random_encoder_decoder, random_grouped_case,
    random_layer_case, random_token_case, random_wide_case,
};
pub use compare::{assert_like_one_rank, distance, mismatch};
pub use counting::{CountedCase, CountingAllocator};
pub use drawn_menu::{Configured, DrawnMenu};
pub use harness::{
    KernelFactory, Outcome, Setup, reference_kernels, run, run_programs, run_within,
};
pub use jitter::jittery_kernels;
pub use kinks::kink_watch;
pub use levels::test_levels;
pub use maker::Maker;
pub use memory_source::{MemorySource, Samples, Stored};
pub use not_run::not_run;
pub use onednn::onednn_search;
pub use random::Draws;
pub use sequences::random_sequence_case;
pub use share::{Share, least_of, seeds};
pub use staged::random_staged_case;
pub use suggestions::{Typed, choices, is_of_word};
pub use tied::random_tied_case;
pub use trial::{Data, Trial, Verdict};
pub use two_stages::random_two_stage_case;
pub use wrap_kernels::{Execute, wrap_kernels};

// What a setup needs, so that rooms that may not depend on the others can be tested.
pub use partita_cluster::{LayerPrecision, Machine, Software};
pub use partita_cpu::Level;
pub use partita_graph::text::print;
pub use partita_import::read_weights;
pub use partita_lower::Strategy;
pub use partita_onednn::LibrarySearch;
pub use partita_oracle::Features;
pub use partita_reference::{Real, ReferenceKernels, ReferenceMenu};
pub use partita_synth as synth;
pub use partita_threads as threads;
pub use partita_tune::{Conditions, DivisionPolicy, Measurements};
pub use partita_verify as verify;
