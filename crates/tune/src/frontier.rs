//! Configurations of micro-batches that are worth having, by dynamic programming.
//!
//! Source: Oyama, Ben-Nun, Hoefler and Matsuoka, "Accelerating Deep Learning Frameworks with Micro-batches",
//! CLUSTER 2018. A configuration takes the sum of the times of its micro-batches and the largest of their
//! workspaces.

use partita_program::{Configuration, MicroBatches};
use partita_space::{Bytes, Seconds};

/// The measured time of a micro-batch by one implementation.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroTime {
    /// The implementation.
    pub method: String,
    /// Extent along the dim.
    pub extent: usize,
    /// Its time.
    pub seconds: Seconds,
    /// Its workspace.
    pub workspace: Bytes,
}

/// Which extents of micro-batches are candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DivisionPolicy {
    /// Every extent.
    All,
    /// Powers of two, and the whole.
    #[default]
    PowerOfTwo,
    /// The whole alone.
    Undivided,
}

impl DivisionPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::All, Self::PowerOfTwo, Self::Undivided];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::PowerOfTwo => "power-of-two",
            Self::Undivided => "undivided",
        }
    }

    /// The candidates for a dim, largest first.
    pub fn extents(self, whole: usize) -> Vec<usize> {
        let mut extents = vec![whole];
        match self {
            Self::All => extents.extend((1..whole).rev()),
            Self::PowerOfTwo => {
                let powers = (0..usize::BITS).map(|power| 1 << power);
                let mut smaller: Vec<usize> = powers.take_while(|&power| power < whole).collect();
                smaller.reverse();
                extents.extend(smaller);
            }
            Self::Undivided => {}
        }
        extents
    }
}

/// A configuration that no other one beats in both time and workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontierPoint {
    /// Time of all its micro-batches.
    pub seconds: Seconds,
    /// The largest of their workspaces.
    pub workspace: Bytes,
    /// The configuration.
    pub configuration: Configuration,
}

/// Points by ascending workspace and descending time, none of which beats another in both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frontier(Vec<FrontierPoint>);

impl Frontier {
    /// The points, by ascending workspace.
    pub fn points(&self) -> &[FrontierPoint] {
        &self.0
    }

    /// The fastest with at most this workspace, which is what a limit for each kernel gives.
    pub fn fastest_within(&self, limit: Bytes) -> Option<&FrontierPoint> {
        let fits = self.0.partition_point(|point| point.workspace <= limit);
        self.0[..fits].last()
    }

    /// Adds a point unless another one is as good; removes those that it beats.
    pub fn add(&mut self, point: FrontierPoint) {
        let at = self
            .0
            .partition_point(|other| other.workspace <= point.workspace);
        if at > 0 && self.0[at - 1].seconds <= point.seconds {
            return;
        }
        // Those of equal workspace are slower, as are later ones up to the first that is faster.
        let start = self
            .0
            .partition_point(|other| other.workspace < point.workspace);
        let slower = self.0[start..].partition_point(|other| other.seconds >= point.seconds);
        self.0.splice(start..start + slower, [point]);
    }
}

/// A way to cover some positions: a micro-batch, and a way to cover the others.
#[derive(Clone, Copy)]
struct Cover {
    seconds: f64,
    workspace: Bytes,
    /// Index of the micro-batch.
    last: usize,
    /// Number of the others, and the index among the ways to cover those.
    rest: (usize, usize),
}

/// The frontier of all ways to cover `extent` positions of a dim by measured micro-batches. Empty if none does.
pub fn frontier(dim: usize, extent: usize, times: &[MicroTime]) -> Frontier {
    let mut covers: Vec<Vec<Cover>> = vec![Vec::new(); extent + 1];
    for end in 1..=extent {
        let mut found: Vec<Cover> = Vec::new();
        for (last, time) in times.iter().enumerate() {
            let rest = end.wrapping_sub(time.extent);
            if rest == 0 {
                found.push(Cover {
                    seconds: time.seconds.0,
                    workspace: time.workspace,
                    last,
                    rest: (0, 0),
                });
            } else if 2 * time.extent <= end {
                // Any division has a part of at most half.
                let others = covers[rest].iter().enumerate();
                found.extend(others.map(|(at, other)| Cover {
                    seconds: other.seconds + time.seconds.0,
                    workspace: other.workspace.max(time.workspace),
                    last,
                    rest: (rest, at),
                }));
            }
        }
        covers[end] = undominated(found);
    }
    let mut frontier = Frontier::default();
    for cover in &covers[extent] {
        let (mut micro, mut at) = (vec![&times[cover.last]], cover.rest);
        while at.0 > 0 {
            let other = covers[at.0][at.1];
            micro.push(&times[other.last]);
            at = other.rest;
        }
        frontier.add(FrontierPoint {
            seconds: Seconds(cover.seconds),
            workspace: cover.workspace,
            configuration: configuration(dim, micro),
        });
    }
    frontier
}

/// Those that no other one beats.
fn undominated(mut all: Vec<Cover>) -> Vec<Cover> {
    all.sort_by(|a, b| {
        let order = a.workspace.cmp(&b.workspace);
        order.then(a.seconds.total_cmp(&b.seconds))
    });
    let mut best = f64::INFINITY;
    all.retain(|cover| {
        let is_faster = cover.seconds < best;
        best = best.min(cover.seconds);
        is_faster
    });
    all
}

fn configuration(dim: usize, mut micro: Vec<&MicroTime>) -> Configuration {
    if let [only] = micro[..] {
        return Configuration::undivided(&only.method);
    }
    micro.sort_by(|a, b| {
        let order = b.extent.cmp(&a.extent);
        order.then_with(|| a.method.cmp(&b.method))
    });
    let mut parts: Vec<MicroBatches> = Vec::new();
    for one in micro {
        match parts.last_mut() {
            Some(last) if last.extent == one.extent && last.method == one.method => {
                last.count += 1;
            }
            _ => parts.push(MicroBatches {
                method: one.method.clone(),
                extent: one.extent,
                count: 1,
            }),
        }
    }
    Configuration::Divided { dim, parts }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use partita_testkit::Draws;

    fn time(method: &str, extent: usize, seconds: f64, workspace: u64) -> MicroTime {
        MicroTime {
            method: method.to_owned(),
            extent,
            seconds: Seconds(seconds),
            workspace: Bytes(workspace),
        }
    }

    /// The published example: 256 samples, powers of two, less than 64 MiB.
    fn example() -> Vec<MicroTime> {
        let extents = DivisionPolicy::PowerOfTwo.extents(256).into_iter();
        let both = extents.flat_map(|b| {
            let samples = b as f64;
            [
                time("fast", b, 0.1 * samples + 0.01, (b as u64) << 20),
                time("slow", b, 10.0 * samples + 0.1, b as u64),
            ]
        });
        both.filter(|time| time.workspace < Bytes(64 << 20))
            .collect()
    }

    #[test]
    fn the_published_example_has_its_fifteen_configurations() {
        let expected = [
            (2585.60, 1, 256),
            (2572.80, 2, 128),
            (2566.40, 4, 64),
            (2563.20, 8, 32),
            (2561.60, 16, 16),
            (2560.80, 32, 8),
            (2560.40, 64, 4),
            (2560.20, 128, 2),
            (2560.10, 256, 1),
            (28.16, 1 << 20, 256),
            (26.88, 2 << 20, 128),
            (26.24, 4 << 20, 64),
            (25.92, 8 << 20, 32),
            (25.76, 16 << 20, 16),
            (25.68, 32 << 20, 8),
        ];
        let times = example();
        let found = frontier(0, 256, &times);
        assert_eq!(found.points().len(), expected.len());
        for (point, (seconds, workspace, count)) in found.points().iter().zip(expected) {
            assert!(
                (point.seconds.0 - seconds).abs() < 1e-9 * seconds,
                "{point:?}"
            );
            assert_eq!(point.workspace, Bytes(workspace), "{point:?}");
            assert_eq!(point.configuration.count(), count, "{point:?}");
            assert_eq!(found.fastest_within(Bytes(workspace)), Some(point));
        }
        let whole = &found.points()[14].configuration;
        assert_eq!(whole.to_string(), "fast:n32*8");
    }

    #[test]
    fn a_point_is_kept_unless_another_beats_it() {
        let mut draws = Draws::new(7);
        let mut front = Frontier::default();
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let (seconds, workspace) = (draws.between(0, 999) as f64, draws.between(0, 999) as u64);
            all.push((seconds, workspace));
            front.add(FrontierPoint {
                seconds: Seconds(seconds),
                workspace: Bytes(workspace),
                configuration: Configuration::undivided("a"),
            });
        }
        let has = |seconds: f64, workspace: u64| {
            let mut points = front.points().iter();
            points.any(|point| (point.seconds.0, point.workspace.0) == (seconds, workspace))
        };
        for &(seconds, workspace) in &all {
            let beats = |&(other, held): &(f64, u64)| {
                other <= seconds && held <= workspace && (other, held) != (seconds, workspace)
            };
            assert_eq!(has(seconds, workspace), !all.iter().any(beats));
        }
    }

    /// All multisets of micro-batches that cover an extent.
    fn each_cover(
        left: usize,
        from: usize,
        times: &[MicroTime],
        so_far: (f64, u64),
        visit: &mut dyn FnMut(f64, u64),
    ) {
        if left == 0 {
            return visit(so_far.0, so_far.1);
        }
        for (index, time) in times.iter().enumerate().skip(from) {
            if time.extent <= left {
                let seconds = so_far.0 + time.seconds.0;
                let workspace = so_far.1.max(time.workspace.0);
                each_cover(
                    left - time.extent,
                    index,
                    times,
                    (seconds, workspace),
                    visit,
                );
            }
        }
    }

    #[test]
    fn brute_force_finds_nothing_better() {
        let mut draws = Draws::new(3);
        for case in 0..300 {
            let extent = draws.between(1, 9);
            let policy = DivisionPolicy::ALL[case % 3];
            let mut times = Vec::new();
            for b in policy.extents(extent) {
                for method in ["a", "b", "c"] {
                    if !draws.one_in(4) {
                        let seconds = b as f64 * draws.between(1, 100) as f64;
                        times.push(time(method, b, seconds, draws.between(0, 49) as u64));
                    }
                }
            }
            let found = frontier(1, extent, &times);
            for limit in [0, 10, 25, 50] {
                let mut best = f64::INFINITY;
                each_cover(extent, 0, &times, (0.0, 0), &mut |seconds, workspace| {
                    if workspace <= limit {
                        best = best.min(seconds);
                    }
                });
                let found = found.fastest_within(Bytes(limit));
                let seconds = found.map_or(f64::INFINITY, |point| point.seconds.0);
                let is_equal = seconds == best || (seconds - best).abs() < 1e-9 * best;
                assert!(is_equal, "case {case}: {seconds} {best}");
                assert!(found.is_none_or(|point| point.workspace <= Bytes(limit)));
            }
        }
    }
}
