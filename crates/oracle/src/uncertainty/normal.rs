//! Normally distributed numbers, the same in every run.

use partita_space::random::{SplitMix, unit};

/// The quantile function of the standard normal distribution, for `0 < p < 1`, to seven digits.
///
/// Source: Wichura, Algorithm AS 241: The Percentage Points of the Normal Distribution, Applied Statistics 37
/// (1988), PPND7.
pub fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        let above = polynomial(
            &[
                3.387_132_717_9,
                50.434_271_938,
                159.291_132_02,
                59.109_374_72,
            ],
            r,
        );
        let below = polynomial(&[1.0, 17.895_169_469, 78.757_757_664, 67.187_563_6], r);
        return q * above / below;
    }
    let r = (-p.min(1.0 - p).ln()).sqrt();
    let tail = if r <= 5.0 {
        let r = r - 1.6;
        polynomial(
            &[
                1.423_437_277_7,
                2.756_815_39,
                1.306_728_481_6,
                0.170_238_211_03,
            ],
            r,
        ) / polynomial(&[1.0, 0.737_001_642_5, 0.120_211_329_75], r)
    } else {
        let r = r - 5.0;
        polynomial(
            &[
                6.657_905_115,
                3.081_226_386,
                0.428_682_943_37,
                0.017_337_203_997,
            ],
            r,
        ) / polynomial(&[1.0, 0.241_978_942_25, 0.012_258_202_635], r)
    };
    tail.copysign(q)
}

fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients
        .iter()
        .rev()
        .fold(0.0, |sum, coefficient| sum * x + coefficient)
}

/// `draws` numbers whose quantiles are evenly spread, in a random order: a dimension of a Latin hypercube.
///
/// Source: McKay, Beckman and Conover, A Comparison of Three Methods for Selecting Values of Input Variables,
/// Technometrics 21 (1979).
pub fn stratified(draws: usize, seed: u64) -> Vec<f64> {
    let mut stream = SplitMix(seed);
    let mut numbers: Vec<f64> = (0..draws)
        .map(|at| quantile((at as f64 + 0.5) / draws as f64))
        .collect();
    for at in (1..draws).rev() {
        numbers.swap(at, stream.between(0, at));
    }
    numbers
}

/// `draws` independent numbers.
pub fn independent(draws: usize, seed: u64) -> Vec<f64> {
    let mut stream = SplitMix(seed);
    let mut next = || unit(stream.bits()).max(f64::MIN_POSITIVE);
    (0..draws).map(|_| quantile(next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        let known = [
            (0.5, 0.0),
            (0.9, 1.281_551_6),
            (0.95, 1.644_853_6),
            (0.025, -1.959_964_0),
            (0.001, -3.090_232_3),
            (1e-14, -7.650_628_1),
        ];
        for (p, z) in known {
            assert!((quantile(p) - z).abs() < 2e-6, "{p}: {} {z}", quantile(p));
        }
    }

    #[test]
    fn draws_have_mean_zero_and_variance_one() {
        for numbers in [stratified(256, 1), independent(20_000, 2)] {
            let count = numbers.len() as f64;
            let mean = numbers.iter().sum::<f64>() / count;
            let variance = numbers.iter().map(|z| z * z).sum::<f64>() / count;
            assert!(
                mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03,
                "{mean} {variance}"
            );
        }
        let product: f64 = (stratified(256, 1).iter().zip(stratified(256, 3)))
            .map(|(a, b)| a * b)
            .sum();
        assert!((product / 256.0).abs() < 0.2, "{product}");
    }
}
