//! Loss and metrics of each sample of an evaluation, which then takes one sample a step.

use super::record::{Classification, TargetError};
use super::results::Metrics;
use partita_program::ProgramKind;
use partita_session::{EvaluatedBatch, Progress, Session};
use partita_site::launch::Listener;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Loss and metrics of a sample.
#[derive(Clone, Debug, Serialize)]
pub struct SampleResult {
    /// Its name.
    pub name: String,
    /// Its number in the split.
    pub sample: usize,
    /// Its loss.
    pub loss: f64,
    /// Errors of each target.
    pub errors: Vec<TargetError>,
    /// Accuracy and overlap; absent for a regression.
    pub classification: Option<Classification>,
}

/// What an evaluation finds of each sample, by its number among all samples; all clones share it.
#[derive(Clone, Debug, Default)]
pub struct PerSample(Arc<Mutex<BTreeMap<usize, EvaluatedBatch>>>);

impl PerSample {
    /// A listener that takes the results of the steps of an evaluation, and tells `listener` of them.
    pub fn listen<'l>(&self, session: &Session<'_>, mut listener: Listener<'l>) -> Listener<'l> {
        if session.main_program().kind != ProgramKind::Evaluate {
            return listener;
        }
        let found = Arc::clone(&self.0);
        let steps: Vec<Vec<usize>> = session
            .samples_of_epoch(0)
            .map(|(_, samples)| samples)
            .collect();
        let mut steps = steps.into_iter();
        Box::new(move |progress| {
            if let Progress::Evaluated { batch, .. } = &progress
                && let Some(&[sample]) = steps.next().as_deref()
            {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.insert(sample, batch.clone());
            }
            listener(progress);
        })
    }

    /// The results of the samples with these names, the first of which has the number `first`.
    pub fn results(
        &self,
        first: usize,
        names: Vec<String>,
        metrics: &Metrics<'_>,
    ) -> Vec<SampleResult> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = |(sample, name): (usize, String)| {
            let one = metrics.validation(&found.get(&(first + sample))?.validation());
            Some(SampleResult {
                name,
                sample,
                loss: one.loss,
                errors: one.errors,
                classification: one.classification,
            })
        };
        names.into_iter().enumerate().filter_map(result).collect()
    }
}
