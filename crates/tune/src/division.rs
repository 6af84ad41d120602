//! Division of one workspace among kernels, by an integer programme.
//!
//! Source: Oyama, Ben-Nun, Hoefler and Matsuoka, "Accelerating Deep Learning Frameworks with Micro-batches",
//! CLUSTER 2018: one binary variable for each configuration on the frontier of each kernel, one configuration for
//! each kernel, the least sum of times under a limit of the sum of workspaces.

use crate::frontier::Frontier;
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use partita_space::Bytes;

/// For each frontier the index of a point, so that workspaces together have at most `total` and times the least
/// sum. A frontier without points has none, and takes no part.
///
/// None if the smallest workspaces have more, or the solver fails.
pub fn divide(frontiers: &[&Frontier], total: Bytes) -> Option<Vec<Option<usize>>> {
    let smallest = |frontier: &&Frontier| frontier.points().first().map(|point| point.workspace.0);
    let least: u64 = frontiers.iter().filter_map(smallest).sum();
    if least > total.0 {
        return None;
    }
    let fastest = |frontier: &Frontier| frontier.points().len().checked_sub(1);
    let most = |frontier: &&Frontier| frontier.points().last().map(|point| point.workspace.0);
    if frontiers.iter().filter_map(most).sum::<u64>() <= total.0 {
        return Some(frontiers.iter().map(|frontier| fastest(frontier)).collect());
    }
    solve(frontiers, total)
}

fn solve(frontiers: &[&Frontier], total: Bytes) -> Option<Vec<Option<usize>>> {
    let points = || frontiers.iter().flat_map(|frontier| frontier.points());
    // Numbers near one suit the solver.
    let longest = points().map(|point| point.seconds.0).fold(0.0, f64::max);
    let second = longest.max(f64::MIN_POSITIVE);
    let byte = total.0.max(1) as f64;
    let mut variables = ProblemVariables::new();
    let mut chosen: Vec<Vec<Variable>> = Vec::with_capacity(frontiers.len());
    let (mut seconds, mut bytes) = (Expression::from(0.0), Expression::from(0.0));
    for frontier in frontiers {
        let of_frontier = frontier.points().iter().map(|point| {
            let one = variables.add(variable().binary());
            seconds += point.seconds.0 / second * one;
            bytes += point.workspace.0 as f64 / byte * one;
            one
        });
        chosen.push(of_frontier.collect());
    }
    let mut problem = variables.minimise(seconds).using(microlp);
    for own in chosen.iter().filter(|own| !own.is_empty()) {
        let sum: Expression = own.iter().sum();
        problem = problem.with(sum.eq(1.0));
    }
    // Bytes are whole, so what rounding lets pass is found below.
    problem = problem.with(bytes.leq(1.0 + 1e-12));
    let solution = problem.solve().ok()?;
    let of_frontier = |own: &Vec<Variable>| own.iter().position(|&one| solution.value(one) > 0.5);
    let found: Vec<Option<usize>> = chosen.iter().map(of_frontier).collect();
    let workspace = |(frontier, point): (&&Frontier, &Option<usize>)| {
        point.map_or(0, |at| frontier.points()[at].workspace.0)
    };
    let sum: u64 = frontiers.iter().zip(&found).map(workspace).sum();
    (sum <= total.0).then_some(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::frontier::FrontierPoint;
    use partita_program::Configuration;
    use partita_space::Seconds;

    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
            self.0 = next.wrapping_add(1);
            (self.0 >> 33) % limit
        }

        fn frontier(&mut self, points: u64) -> Frontier {
            let mut frontier = Frontier::default();
            for _ in 0..points {
                frontier.add(FrontierPoint {
                    seconds: Seconds(1e-3 * (1 + self.below(1000)) as f64),
                    workspace: Bytes(self.below(64) << 20),
                    configuration: Configuration::undivided("a"),
                });
            }
            frontier
        }
    }

    /// The least sum of times, by trying all.
    fn brute(frontiers: &[&Frontier], left: u64) -> f64 {
        let Some((first, rest)) = frontiers.split_first() else {
            return 0.0;
        };
        if first.points().is_empty() {
            return brute(rest, left);
        }
        let fitting = first
            .points()
            .iter()
            .filter(|point| point.workspace.0 <= left);
        let all = fitting.map(|point| point.seconds.0 + brute(rest, left - point.workspace.0));
        all.fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn the_division_is_the_best_of_all() {
        let mut numbers = Numbers(11);
        let mut refused = 0;
        for case in 0..200 {
            let kernels = 1 + numbers.below(6);
            let frontiers: Vec<Frontier> = (0..kernels).map(|_| numbers.frontier(6)).collect();
            let all: Vec<&Frontier> = frontiers.iter().collect();
            let total = Bytes(numbers.below(200) << 20);
            let best = brute(&all, total.0);
            let Some(found) = divide(&all, total) else {
                assert!(best.is_infinite(), "case {case}");
                refused += 1;
                continue;
            };
            let points = all.iter().zip(&found);
            let chosen = points.map(|(frontier, point)| &frontier.points()[point.unwrap()]);
            let (seconds, bytes) = chosen.fold((0.0, 0), |(seconds, bytes), point| {
                (seconds + point.seconds.0, bytes + point.workspace.0)
            });
            assert!(bytes <= total.0, "case {case}");
            assert!(
                (seconds - best).abs() < 1e-9,
                "case {case}: {seconds} {best}"
            );
        }
        assert!((1..150).contains(&refused), "{refused}");
    }

    #[test]
    fn hundreds_of_kernels_are_divided() {
        let mut numbers = Numbers(5);
        let frontiers: Vec<Frontier> = (0..465).map(|_| numbers.frontier(12)).collect();
        let mut all: Vec<&Frontier> = frontiers.iter().collect();
        let nothing = Frontier::default();
        all.push(&nothing);
        let total = Bytes(4 << 30);
        let found = divide(&all, total).unwrap();
        assert_eq!(found[465], None);
        let points = all.iter().zip(&found);
        let bytes =
            points.map(|(frontier, point)| point.map_or(0, |at| frontier.points()[at].workspace.0));
        assert!(bytes.sum::<u64>() <= total.0);
    }
}
