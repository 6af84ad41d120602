//! Which strategies are within prediction error of each other.

use partita_oracle::{Prediction, probabilities_fastest};

/// A strategy that the first beats with less than this probability is within prediction error of it.
const SURE: f64 = 0.75;

/// How sure the place of a strategy is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sureness {
    /// Probability with which it is the fastest.
    pub probability_fastest: f64,
    /// Whether it is within prediction error of the first.
    pub is_tie: bool,
}

/// Of strategies on one machine, best first.
pub fn sureness<'p>(predictions: impl Iterator<Item = &'p Prediction>) -> Vec<Sureness> {
    let steps: Vec<_> = predictions
        .map(|one| (one.iteration_seconds, &one.uncertainty))
        .collect();
    let probabilities = probabilities_fastest(&steps).into_iter().enumerate();
    let sure = |(place, one): (usize, partita_oracle::Probability)| Sureness {
        probability_fastest: one.fastest,
        is_tie: place == 0 || one.slower_than_first < SURE,
    };
    probabilities.map(sure).collect()
}
