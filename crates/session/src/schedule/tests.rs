//! Rates against those of `torch.optim.lr_scheduler`, made by `fixtures/updates.py`.

use super::{LearningRateSchedule, Milestones, SchedulePoint, ScheduleState, WarmupLength};
use std::collections::BTreeMap;

const TABLE: &str = include_str!("../../../../fixtures/schedules.txt");
const RATE: f64 = 0.4;
const EPOCHS: f64 = 12.0;
const STEPS: u64 = 4;

fn table() -> BTreeMap<&'static str, Vec<f64>> {
    let rows = TABLE.lines().map(|line| {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let values = words.filter_map(|word| word.parse().ok());
        (name, values.collect())
    });
    rows.collect()
}

/// The rates of all updates of a run with these validation losses.
fn rates(schedule: &LearningRateSchedule, losses: &[f64]) -> Vec<f64> {
    let mut state = ScheduleState::default();
    let mut all = Vec::new();
    for (epoch, &loss) in losses.iter().enumerate() {
        for step in 0..STEPS {
            all.push(schedule.rate(&SchedulePoint {
                epochs_done: epoch as f64 + step as f64 / STEPS as f64,
                steps_per_epoch: STEPS,
                state,
            }));
        }
        schedule.observe(&mut state, loss);
    }
    all
}

fn step() -> LearningRateSchedule {
    LearningRateSchedule::Step {
        rate: RATE,
        gamma: 0.2,
        milestones: Milestones::At(vec![3.0, 5.0, 10.0]),
    }
}

fn cosine() -> LearningRateSchedule {
    LearningRateSchedule::Cosine {
        rate: RATE,
        final_factor: 0.1,
        epochs: EPOCHS,
    }
}

fn restarts(period: f64, multiplier: f64) -> LearningRateSchedule {
    LearningRateSchedule::CosineRestarts {
        rate: RATE,
        final_factor: 0.1,
        period,
        multiplier,
    }
}

fn exponential() -> LearningRateSchedule {
    LearningRateSchedule::Exponential {
        rate: RATE,
        gamma: 0.8,
    }
}

/// Six updates, an epoch and a half.
fn warmup(length: WarmupLength, then: LearningRateSchedule) -> LearningRateSchedule {
    LearningRateSchedule::Warmup {
        length,
        factor: 0.1,
        then: Box::new(then),
    }
}

#[test]
fn rates_equal_those_of_pytorch() {
    let table = table();
    let losses = &table["losses"];
    let steps = WarmupLength::Steps(6);
    let cases = [
        (
            "linear",
            LearningRateSchedule::Linear {
                rate: RATE,
                final_factor: 0.1,
                epochs: EPOCHS,
            },
        ),
        ("cosine", cosine()),
        (
            "polynomial",
            LearningRateSchedule::Polynomial {
                rate: RATE,
                final_factor: 0.0,
                epochs: EPOCHS,
                power: 2.0,
            },
        ),
        ("exponential", exponential()),
        ("milestones", step()),
        (
            "every",
            LearningRateSchedule::Step {
                rate: RATE,
                gamma: 0.5,
                milestones: Milestones::Every(2.0),
            },
        ),
        ("restarts", restarts(2.0, 1.0)),
        ("restarts_2", restarts(1.0, 2.0)),
        (
            "plateau",
            LearningRateSchedule::Plateau {
                rate: RATE,
                factor: 0.5,
                patience: 2,
                cooldown: 0,
                final_factor: 0.375,
            },
        ),
        (
            "plateau_cooldown",
            LearningRateSchedule::Plateau {
                rate: RATE,
                factor: 0.5,
                patience: 0,
                cooldown: 2,
                final_factor: 0.0,
            },
        ),
        ("warmup_cosine", warmup(steps, cosine())),
        ("warmup_exponential", warmup(steps, exponential())),
        ("warmup_milestones", warmup(steps, step())),
    ];
    assert_eq!(cases.len() + 1, table.len(), "all rows are compared");
    for (name, schedule) in cases {
        let (found, expected) = (rates(&schedule, losses), &table[name]);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (step, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!((a - b).abs() < 1e-12, "{name}, update {step}: {a} {b}");
        }
    }
}

#[test]
fn a_warm_up_in_epochs_is_one_in_updates() {
    let [steps, epochs] = [WarmupLength::Steps(6), WarmupLength::Epochs(1.5)]
        .map(|length| rates(&warmup(length, cosine()), &[1.0; 12]));
    assert_eq!(steps, epochs);
}

#[test]
fn rates_stay_at_the_final_factor() {
    let schedule = cosine();
    let at = |epochs_done| {
        schedule.rate(&SchedulePoint {
            epochs_done,
            steps_per_epoch: STEPS,
            state: ScheduleState::default(),
        })
    };
    assert_eq!(at(0.0), RATE);
    assert!((at(12.0) - 0.04).abs() < 1e-15);
    assert_eq!(at(15.0), at(12.0));
}

/// A warm-up as long as the run, or longer, never divides by zero.
#[test]
fn a_warm_up_may_take_the_whole_run() {
    for epochs in [12.0, 40.0] {
        let all = rates(&warmup(WarmupLength::Epochs(epochs), cosine()), &[1.0; 12]);
        assert!(all.iter().all(|rate| rate.is_finite()), "{all:?}");
        assert!(all.is_sorted(), "{all:?}");
    }
}

#[test]
fn a_rate_of_zero_stays_zero() {
    let schedule = LearningRateSchedule::Constant { rate: 0.0 };
    let all = rates(&warmup(WarmupLength::Steps(6), schedule), &[1.0; 12]);
    assert_eq!(all, [0.0; 48]);
}

/// A state that was stored goes on as if the run had not been interrupted.
#[test]
fn the_state_of_a_plateau_is_all_that_a_resumed_run_needs() {
    let schedule = LearningRateSchedule::Plateau {
        rate: RATE,
        factor: 0.5,
        patience: 1,
        cooldown: 1,
        final_factor: 0.0,
    };
    let losses = &table()["losses"];
    let (mut whole, mut first) = (ScheduleState::default(), ScheduleState::default());
    for &loss in losses {
        schedule.observe(&mut whole, loss);
    }
    for &loss in &losses[..5] {
        schedule.observe(&mut first, loss);
    }
    let mut resumed = first;
    for &loss in &losses[5..] {
        schedule.observe(&mut resumed, loss);
    }
    assert_eq!(resumed, whole);
    assert!(whole.reductions > first.reductions && first.reductions > 0);
}
