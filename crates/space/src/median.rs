//! Medians.

/// The median, the mean of the two middle values of an even number; 0 for no value.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// The upper median, which is one of the values; 0 for no value.
pub fn upper_median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_lists() {
        assert_eq!([median(&[]), upper_median(&[])], [0.0; 2]);
        assert_eq!(
            [median(&[3.0, 1.0, 2.0]), upper_median(&[3.0, 1.0, 2.0])],
            [2.0; 2]
        );
        assert_eq!([median(&[1.0, 4.0]), upper_median(&[1.0, 4.0])], [2.5, 4.0]);
    }
}
