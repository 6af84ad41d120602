//! Division of one workspace among kernels, by an integer programme.
//!
//! Source: Oyama, Ben-Nun, Hoefler and Matsuoka, "Accelerating Deep Learning Frameworks with Micro-batches",
//! CLUSTER 2018: one binary variable for each configuration on the frontier of each kernel, one configuration for
//! each kernel, the least sum of times under a limit of the sum of workspaces.

use crate::frontier::{Frontier, FrontierPoint};
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

/// Kernels with equal frontiers.
struct Class<'f> {
    frontier: &'f Frontier,
    /// Their numbers.
    members: Vec<usize>,
    /// Indices of the points that an optimum may have.
    kept: Vec<usize>,
}

/// Time of a point, plus the price of its workspace.
fn priced(point: &FrontierPoint, price: f64) -> f64 {
    point.seconds.0 + price * point.workspace.0 as f64
}

impl Class<'_> {
    /// The point with the least priced time, of equals the one with the least workspace.
    fn cheapest(&self, price: f64) -> usize {
        let points = self.frontier.points();
        let all = (0..points.len()).map(|at| (priced(&points[at], price), at));
        let least = all.min_by(|a, b| a.0.total_cmp(&b.0));
        least.map_or(0, |(_, at)| at)
    }
}

/// By Lagrangian relaxation points are found that no optimum has; the solver gets the others.
fn solve(frontiers: &[&Frontier], total: Bytes) -> Option<Vec<Option<usize>>> {
    let mut classes = classes(frontiers);
    let bytes = |price: f64| -> f64 {
        let of_class = |class: &Class<'_>| {
            let point = &class.frontier.points()[class.cheapest(price)];
            class.members.len() as f64 * point.workspace.0 as f64
        };
        classes.iter().map(of_class).sum()
    };
    // The least price of a byte at which the cheapest points fit.
    let (mut low, mut high) = (0.0, 1.0);
    while bytes(high) > total.0 as f64 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if bytes(middle) > total.0 as f64 {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut chosen: Vec<Option<usize>> = vec![None; frontiers.len()];
    let mut bound = -high * total.0 as f64;
    for class in &classes {
        let point = class.cheapest(high);
        let least = priced(&class.frontier.points()[point], high);
        bound += class.members.len() as f64 * least;
        class
            .members
            .iter()
            .for_each(|&member| chosen[member] = Some(point));
    }
    fill(frontiers, total, &mut chosen);
    let gap = seconds_of(frontiers, &chosen) - bound;
    for class in &mut classes {
        let points = class.frontier.points();
        let least = priced(&points[class.cheapest(high)], high);
        // Rounding must not drop a point of the optimum.
        let slack = gap + 1e-9 * (gap.abs() + least.abs());
        class
            .kept
            .retain(|&at| priced(&points[at], high) - least <= slack);
    }
    Some(exact(&classes, (frontiers.len(), total), &chosen).unwrap_or(chosen))
}

fn classes<'f>(frontiers: &[&'f Frontier]) -> Vec<Class<'f>> {
    let mut classes: Vec<Class<'f>> = Vec::new();
    for (number, &frontier) in frontiers.iter().enumerate() {
        let points = frontier.points();
        let is_equal = |class: &Class<'_>| {
            let others = class.frontier.points();
            let pair = |point: &FrontierPoint| (point.seconds, point.workspace);
            others.len() == points.len() && others.iter().map(pair).eq(points.iter().map(pair))
        };
        if points.is_empty() {
            continue;
        }
        match classes.iter_mut().find(|class| is_equal(class)) {
            Some(class) => class.members.push(number),
            None => classes.push(Class {
                frontier,
                members: vec![number],
                kept: (0..points.len()).collect(),
            }),
        }
    }
    classes
}

fn seconds_of(frontiers: &[&Frontier], chosen: &[Option<usize>]) -> f64 {
    let all = frontiers.iter().zip(chosen);
    let seconds = all.map(|(frontier, at)| at.map_or(0.0, |at| frontier.points()[at].seconds.0));
    seconds.sum()
}

/// Gives what is left of the total to the kernels that gain most, one after the other.
fn fill(frontiers: &[&Frontier], total: Bytes, chosen: &mut [Option<usize>]) {
    let workspace = |kernel: usize, at: usize| frontiers[kernel].points()[at].workspace.0;
    let held = chosen.iter().enumerate();
    let held: u64 = held
        .map(|(kernel, at)| at.map_or(0, |at| workspace(kernel, at)))
        .sum();
    let mut left = total.0.saturating_sub(held);
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (kernel, at) in chosen.iter().enumerate() {
            let Some(at) = *at else {
                continue;
            };
            let points = frontiers[kernel].points();
            let fits = |&next: &usize| workspace(kernel, next) - workspace(kernel, at) <= left;
            let Some(next) = (at + 1..points.len()).rev().find(fits) else {
                continue;
            };
            let gain = points[at].seconds.0 - points[next].seconds.0;
            if best.is_none_or(|(most, ..)| gain > most) {
                best = Some((gain, kernel, next));
            }
        }
        let Some((_, kernel, next)) = best else {
            return;
        };
        let before = chosen[kernel].map_or(0, |at| workspace(kernel, at));
        left -= workspace(kernel, next) - before;
        chosen[kernel] = Some(next);
    }
}

/// The optimum over the points that are kept: how many kernels of each class have each. None if the solver fails.
fn exact(
    classes: &[Class<'_>],
    (kernels, total): (usize, Bytes),
    known: &[Option<usize>],
) -> Option<Vec<Option<usize>>> {
    if classes.iter().all(|class| class.kept.len() == 1) {
        return None;
    }
    // Numbers near one suit the solver.
    let longest = classes
        .iter()
        .map(|class| class.frontier.points()[0].seconds.0);
    let second = longest.fold(f64::MIN_POSITIVE, f64::max);
    let byte = total.0.max(1) as f64;
    let mut variables = ProblemVariables::new();
    let (mut seconds, mut bytes) = (Expression::from(0.0), Expression::from(0.0));
    let mut counts: Vec<Vec<Variable>> = Vec::with_capacity(classes.len());
    for class in classes {
        let points = class.frontier.points();
        let most = class.members.len() as f64;
        let of_class = class.kept.iter().map(|&at| {
            let count = variables.add(variable().integer().min(0.0).max(most));
            seconds += points[at].seconds.0 / second * count;
            bytes += points[at].workspace.0 as f64 / byte * count;
            count
        });
        counts.push(of_class.collect());
    }
    let mut problem = variables.minimise(seconds).using(microlp);
    for (class, own) in classes.iter().zip(&counts) {
        let sum: Expression = own.iter().sum();
        problem = problem.with(sum.eq(class.members.len() as f64));
    }
    problem = problem.with(bytes.leq(1.0));
    let solution = problem.solve().ok()?;
    let mut found = vec![None; kernels];
    for (class, own) in classes.iter().zip(&counts) {
        let mut members = class.members.iter();
        for (&at, &count) in class.kept.iter().zip(own) {
            let count = solution.value(count).round() as usize;
            members
                .by_ref()
                .take(count)
                .for_each(|&member| found[member] = Some(at));
        }
    }
    let sum = |chosen: &[Option<usize>]| -> (f64, u64) {
        let each = classes
            .iter()
            .flat_map(|class| class.members.iter().map(move |&one| (class, one)));
        each.fold((0.0, 0), |(seconds, bytes), (class, member)| {
            match chosen[member] {
                Some(at) => {
                    let point = &class.frontier.points()[at];
                    (seconds + point.seconds.0, bytes + point.workspace.0)
                }
                None => (f64::INFINITY, bytes),
            }
        })
    };
    let (seconds, bytes) = sum(&found);
    (bytes <= total.0 && seconds <= sum(known).0).then_some(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use partita_program::Configuration;
    use partita_space::Seconds;
    use partita_testkit::Draws;

    fn drawn(draws: &mut Draws, points: usize) -> Frontier {
        let mut frontier = Frontier::default();
        for _ in 0..points {
            frontier.add(FrontierPoint {
                seconds: Seconds(1e-3 * draws.between(1, 1000) as f64),
                workspace: Bytes((draws.between(0, 63) as u64) << 20),
                configuration: Configuration::undivided("a"),
            });
        }
        frontier
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
        let mut draws = Draws::new(11);
        let mut refused = 0;
        for case in 0..200 {
            let kernels = draws.between(1, 6);
            let frontiers: Vec<Frontier> = (0..kernels).map(|_| drawn(&mut draws, 6)).collect();
            let all: Vec<&Frontier> = frontiers.iter().collect();
            let total = Bytes((draws.between(0, 199) as u64) << 20);
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

    /// As in deep networks, most kernels are equal to others.
    #[test]
    fn hundreds_of_kernels_are_divided() {
        let mut draws = Draws::new(5);
        let mut frontiers: Vec<Frontier> = (0..60).map(|_| drawn(&mut draws, 12)).collect();
        for _ in 0..400 {
            let other = draws.between(0, 59);
            frontiers.push(frontiers[other].clone());
        }
        let mut all: Vec<&Frontier> = frontiers.iter().collect();
        let nothing = Frontier::default();
        all.push(&nothing);
        let mut before = f64::INFINITY;
        for total in [1 << 29, 1 << 30, 2 << 30, 4 << 30, 8 << 30] {
            let Some(found) = divide(&all, Bytes(total)) else {
                continue;
            };
            assert_eq!(found[460], None);
            let points = all.iter().zip(&found);
            let bytes =
                points.map(|(frontier, at)| at.map_or(0, |at| frontier.points()[at].workspace.0));
            assert!(bytes.sum::<u64>() <= total);
            let seconds = seconds_of(&all, &found);
            assert!(
                seconds <= before,
                "{seconds} with {total}, {before} with less"
            );
            before = seconds;
        }
        assert!(before.is_finite());
    }
}
