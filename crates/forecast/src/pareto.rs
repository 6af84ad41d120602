//! Pareto front of time and memory.

use partita_space::{Bytes, Seconds};

/// The items that are not dominated in both, ordered by memory. Of equal ones the first is kept.
pub fn pareto<T>(items: &[T], of: impl Fn(&T) -> (Bytes, Seconds)) -> Vec<&T> {
    let mut sorted: Vec<&T> = items.iter().collect();
    sorted.sort_by(|a, b| {
        let ((a_memory, a_seconds), (b_memory, b_seconds)) = (of(a), of(b));
        let by_memory = a_memory.cmp(&b_memory);
        by_memory.then(a_seconds.0.total_cmp(&b_seconds.0))
    });
    let mut least = f64::INFINITY;
    sorted.retain(|item| {
        let seconds = of(item).1.0;
        let is_better = seconds < least;
        least = least.min(seconds);
        is_better
    });
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_falls() {
        let points = [(5, 1.0), (1, 4.0), (2, 5.0), (2, 3.0), (6, 1.0)];
        let front = pareto(&points, |point| (Bytes(point.0), Seconds(point.1)));
        let memory: Vec<u64> = front.iter().map(|point| point.0).collect();
        assert_eq!(memory, [1, 2, 5]);
    }
}
