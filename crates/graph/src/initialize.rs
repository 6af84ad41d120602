//! Initial values of parameters, each keyed by seed, name and index.

use crate::{Initialization, Parameter, fans};
use partita_space::random::{absorb, unit};
use std::ops::Range;

/// Initial values of a parameter, in memory order.
///
/// Each value depends on (seed, name of the parameter, index of the element) alone, not on the rank that computes
/// it or on other parameters.
/// Source: Glorot and Bengio, AISTATS 2010, equation 16; He et al., ICCV 2015, equation 10; Box and
/// Muller, Annals of Mathematical Statistics 29(2), 1958.
pub fn initial_values(parameter: &Parameter, seed: u64) -> Vec<f64> {
    initial_part(parameter, seed, 0..parameter.volume())
}

/// The [`initial_values`] of a range of elements.
pub fn initial_part(parameter: &Parameter, seed: u64, elements: Range<usize>) -> Vec<f64> {
    let (fan_in, fan_out) = fans(parameter);
    let draws = Draws::new(seed, &parameter.name);
    let count = elements.len();
    let elements = elements.start as u64..elements.end as u64;
    match parameter.initialization {
        Initialization::GlorotUniform => {
            uniform(&draws, elements, (6.0 / (fan_in + fan_out) as f64).sqrt())
        }
        Initialization::HeNormal => normal(&draws, elements, (2.0 / fan_in as f64).sqrt()),
        Initialization::HeNormalFanOut => normal(&draws, elements, (2.0 / fan_out as f64).sqrt()),
        Initialization::Normal(deviation) => normal(&draws, elements, deviation),
        Initialization::Uniform(limit) => uniform(&draws, elements, limit),
        Initialization::Constant(value) => vec![value; count],
        Initialization::Shuffle => {
            let [d, h, w, filters, channels] = parameter.shape.map(|extent| extent as u64);
            let taps = d * h * w;
            let value = |element: u64| {
                let (tap, channel) = (element / (filters * channels), element % channels);
                f64::from(u8::from(channel % taps == tap))
            };
            elements.map(value).collect()
        }
    }
}

fn uniform(draws: &Draws, elements: Range<u64>, limit: f64) -> Vec<f64> {
    let value = |element| (2.0 * draws.unit(element, 0) - 1.0) * limit;
    elements.map(value).collect()
}

fn normal(draws: &Draws, elements: Range<u64>, deviation: f64) -> Vec<f64> {
    elements
        .map(|element| draws.normal(element) * deviation)
        .collect()
}

/// The random stream of a parameter.
struct Draws {
    key: u64,
}

impl Draws {
    fn new(seed: u64, name: &str) -> Self {
        let length = name.len() as u64;
        let start = absorb(absorb(0, seed), length);
        Self {
            key: name.bytes().map(u64::from).fold(start, absorb),
        }
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-53.
    fn unit(&self, element: u64, draw: u64) -> f64 {
        unit(absorb(absorb(self.key, element), draw))
    }

    /// Of mean 0 and variance 1.
    fn normal(&self, element: u64) -> f64 {
        // 1 - u lies in (0, 1], so that the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.unit(element, 0)).ln()).sqrt();
        let angle = 2.0 * std::f64::consts::PI * self.unit(element, 1);
        radius * angle.cos()
    }
}

#[cfg(test)]
mod tests {
    use super::initial_values;
    use crate::{Initialization, Parameter, ParameterRole};

    fn parameter(name: &str, initialization: Initialization) -> Parameter {
        Parameter {
            name: name.to_owned(),
            role: ParameterRole::Weight,
            shape: [3, 3, 3, 32, 64],
            initialization,
            is_frozen: false,
            is_constant: false,
        }
    }

    /// Mean, variance and fourth moment over the squared variance.
    fn moments(values: &[f64]) -> [f64; 3] {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let power = |p: i32| values.iter().map(|v| (v - mean).powi(p)).sum::<f64>() / count;
        let variance = power(2);
        [mean, variance, power(4) / (variance * variance)]
    }

    #[test]
    fn glorot_is_uniform_within_its_limit() {
        let values = initial_values(&parameter("c.weight", Initialization::GlorotUniform), 3);
        let limit = (6.0f64 / (27.0 * 96.0)).sqrt();
        assert!(values.iter().all(|value| value.abs() <= limit));
        let [mean, variance, kurtosis] = moments(&values);
        // 55296 draws: a standard error of the mean is limit / sqrt(3 * 55296).
        assert!(
            mean.abs() < 4.0 * limit / (3.0f64 * 55296.0).sqrt(),
            "{mean}"
        );
        assert!(
            (variance / (limit * limit / 3.0) - 1.0).abs() < 0.02,
            "{variance}"
        );
        assert!((kurtosis - 1.8).abs() < 0.02, "{kurtosis}");
    }

    #[test]
    fn he_is_normal_of_variance_two_over_fan_in() {
        let values = initial_values(&parameter("c.weight", Initialization::HeNormal), 3);
        let expected = 2.0 / (27.0 * 32.0);
        let [mean, variance, kurtosis] = moments(&values);
        assert!(mean.abs() < 4.0 * (expected / 55296.0f64).sqrt(), "{mean}");
        assert!((variance / expected - 1.0).abs() < 0.03, "{variance}");
        assert!((kurtosis - 3.0).abs() < 0.12, "{kurtosis}");
    }

    #[test]
    fn widths_that_are_given_and_the_fan_out_set_the_scale() {
        let variance_of = |initialization| {
            let [mean, variance, kurtosis] =
                moments(&initial_values(&parameter("c.weight", initialization), 3));
            assert!(mean.abs() < 4.0 * (variance / 55296.0).sqrt(), "{mean}");
            (variance, kurtosis)
        };
        for (initialization, expected, shape) in [
            (Initialization::HeNormalFanOut, 2.0 / (27.0 * 64.0), 3.0),
            (Initialization::Normal(0.01), 1e-4, 3.0),
            (Initialization::Uniform(0.3), 0.03, 1.8),
        ] {
            let (variance, kurtosis) = variance_of(initialization);
            assert!((variance / expected - 1.0).abs() < 0.03, "{initialization}");
            assert!((kurtosis - shape).abs() < 0.12, "{initialization}");
        }
    }

    #[test]
    fn draws_depend_on_seed_and_name_and_neighbors_are_uncorrelated() {
        let glorot = |name: &str, seed| {
            initial_values(&parameter(name, Initialization::GlorotUniform), seed)
        };
        let values = glorot("a.weight", 1);
        assert_eq!(values, glorot("a.weight", 1));
        let [_, variance, _] = moments(&values);
        let others = [
            glorot("a.weight", 2),
            glorot("b.weight", 1),
            values[1..].to_vec(),
        ];
        for other in others {
            let pairs = values.iter().zip(&other);
            let sum: f64 = pairs.map(|(a, b)| a * b).sum();
            let correlation = sum / other.len() as f64 / variance;
            assert!(correlation.abs() < 0.02, "{correlation}");
        }
    }

    #[test]
    fn constants_are_constant_and_draws_never_change() {
        let values = initial_values(&parameter("c.bias", Initialization::Constant(0.5)), 9);
        assert!(values.len() == 55296 && values.iter().all(|&value| value == 0.5));
        // Runs are compared across versions; a change here is a change of every training.
        let values = initial_values(&parameter("c.weight", Initialization::GlorotUniform), 1);
        assert_eq!(values[..2], FIRST);
    }

    /// Computed by an independent transcription of the definition in Python.
    const FIRST: [f64; 2] = [0.04334494960368863, 0.023871144253278482];
}
