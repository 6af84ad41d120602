//! Teams whose threads spin before they sleep.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_cpu::{Call, Level, Team, sum_of_squares};
use std::time::Duration;

/// Sums by a team that spins are those of one thread, whether its workers still spin or already sleep.
#[test]
fn spinning_teams_compute_as_others() {
    let x: Vec<f32> = (0..300_000).map(|at| (at % 7) as f32).collect();
    let expected: f64 = x.iter().map(|&value| f64::from(value * value)).sum();
    for limit in [0, 200, 5000].map(Duration::from_micros) {
        let mut team = Team::new(3, Level::detect()).unwrap();
        team.spin_for(limit);
        for round in 0..60 {
            let mut go_on = || true;
            let mut call = Call {
                team: &mut team,
                scratch: &mut [],
                progress: &mut go_on,
            };
            let (sum, _) = sum_of_squares(&mut call, &[&x]).unwrap();
            assert_eq!(sum, expected, "round {round}, {limit:?}");
            if round % 20 == 0 {
                // Longer than the first limits.
                std::thread::sleep(Duration::from_millis(1));
                team.wake();
            }
        }
    }
}

/// Workers that spin for an hour do not hold up the end of their team, nor does a caller that waits for
/// a worker keep from calling `progress`.
#[test]
fn spinning_teams_end_and_can_be_canceled() {
    let x = vec![1.0f32; 1 << 20];
    let mut team = Team::new(2, Level::detect()).unwrap();
    team.spin_for(Duration::from_secs(3600));
    for _ in 0..10 {
        let mut was_asked = false;
        let mut stop = || {
            was_asked = true;
            false
        };
        let mut call = Call {
            team: &mut team,
            scratch: &mut [],
            progress: &mut stop,
        };
        let many = vec![&x[..]; 64];
        // On a busy machine the worker may have done all before the caller asks.
        let is_canceled = sum_of_squares(&mut call, &many).is_err();
        assert_eq!(is_canceled, was_asked);
    }
    drop(team);
}

/// Workers that may spin for an hour sleep while other work runs.
#[test]
#[cfg_attr(miri, ignore = "reads /proc")]
fn workers_sleep_while_their_team_rests() {
    // `proc(5)`: the state follows the name. No other team of this file has a worker of this number.
    let is_asleep = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats = threads.map(|one| std::fs::read_to_string(one.path().join("stat")));
        let mut stats = stats.map(Result::unwrap_or_default);
        let own = stats.find(|stat| stat.contains("(partita-cpu-7)"));
        own.unwrap().contains(") S ")
    };
    // Within a minute, or never.
    let soon = |expected: bool| {
        (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            is_asleep() == expected
        })
    };
    let mut team = Team::new(8, Level::detect()).unwrap();
    team.spin_for(Duration::from_secs(3600));
    team.wake();
    assert!(team.at_rest(|| soon(true)), "the worker spins on");
    assert!(soon(false), "the worker sleeps on");
}
