//! Tests of trainings as a whole.

mod chosen;
mod classes;
mod command;
mod divisors;
mod extents;
mod finite;
mod half;
mod meaning;
mod per_sample;
mod preparation;
mod run_file;
mod sample_dice;
mod session;
mod slips;
mod statistics;
mod store;
mod trainer;
mod trials;
mod tuned;

use crate::train::{RunFile, TrainError, TrainRequest, Trained, Trainer, train_with};
use partita_site::launch::Launch;
use partita_site::{Context, Environment, Progress};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Trains on threads; times that are measured are kept for the next test.
fn train(
    request: &TrainRequest,
    progress: impl Progress + 'static,
    cancel: &Arc<AtomicBool>,
) -> Result<Trained, TrainError> {
    let mut environment = Environment::default();
    let times = environment.temporary.join("partita-tests/measured.sqlite");
    environment.measured_times = Some(times);
    let context = Context::watched(environment, Arc::new(progress), Arc::clone(cancel));
    let trainer = Trainer::of_run_file(RunFile::read(&request.run_file)?, request);
    let trained = train_with(&Launch::threads(&context), &trainer)?;
    Ok(trained.expect("ranks are threads"))
}
