use partita_lower::Strategy;

/// Every hybrid of data and spatial parallelism for a number of ranks: all ordered factorizations over
/// data and the last `spatial_rank` of depth, height and width. Where a sample is split, each comes
/// with and without overlap of exchanges and convolutions.
///
/// Shapes: `spatial_rank` is 1 to 3. Order: most ranks on the data axis first.
pub fn hybrids(ranks: usize, spatial_rank: usize) -> Vec<Strategy> {
    let mut splits = vec![(ranks, [1; 3])];
    for axis in 3 - spatial_rank.min(3)..3 {
        let extend = |(rest, spatial): (usize, [usize; 3])| {
            divisors(rest).into_iter().map(move |parts| {
                let mut spatial = spatial;
                spatial[axis] = parts;
                (rest / parts, spatial)
            })
        };
        splits = splits.into_iter().flat_map(extend).collect();
    }
    splits.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)));
    let with_overlap = |(data, spatial): (usize, [usize; 3])| {
        let on = Strategy::hybrid(data, spatial);
        let is_split = spatial.iter().any(|&parts| parts > 1);
        let off = is_split.then(|| {
            let mut off = on.clone();
            off.overlap = false;
            off
        });
        [Some(on), off].into_iter().flatten()
    };
    splits.into_iter().flat_map(with_overlap).collect()
}

fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..)
        .take_while(|part| part * part <= number)
        .filter(|&part| number.is_multiple_of(part))
        .collect();
    let large = small.iter().rev().map(|part| number / part);
    let mut all: Vec<usize> = small.iter().copied().chain(large).collect();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_space::Axis;
    use std::collections::HashSet;

    #[test]
    fn every_factorization_comes_once() {
        for ranks in [1, 2, 6, 8, 12, 1024] {
            for spatial_rank in 1..=3 {
                let all = hybrids(ranks, spatial_rank);
                assert!(all.iter().all(|strategy| strategy.ranks() == ranks));
                let different: HashSet<_> = all.iter().collect();
                assert_eq!(different.len(), all.len());
                let first = [Axis::Depth, Axis::Height, Axis::Width];
                let unused = &first[..3 - spatial_rank];
                let is_flat = |axis: &Axis| all.iter().all(|s| s.extent(*axis) == 1);
                assert!(unused.iter().all(is_flat));
                // The pure data split has nothing to overlap, every other one comes twice.
                assert_eq!(all.iter().filter(|s| !s.overlap).count() * 2 + 1, all.len());
            }
        }
        // 2^10 over four axes: 13 over 3.
        assert_eq!(hybrids(1024, 3).len(), 2 * 286 - 1);
        let flat: Vec<String> = hybrids(4, 1).iter().map(Strategy::to_string).collect();
        let expected = [
            "data=4",
            "data=2,width=2",
            "data=2,width=2,overlap=off",
            "width=4",
            "width=4,overlap=off",
        ];
        assert_eq!(flat, expected);
    }

    #[test]
    fn divisors_are_all_and_ascending() {
        assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(divisors(16), [1, 2, 4, 8, 16]);
        assert_eq!(divisors(7), [1, 7]);
    }
}
