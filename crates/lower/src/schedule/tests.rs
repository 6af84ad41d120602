//! Orders against published makespans, and against memory.

use super::*;
use std::collections::HashMap;

const SHARED: [Schedule; 5] = [
    Schedule::Sequential,
    Schedule::GPipe,
    Schedule::OneForwardOneBackward,
    Schedule::ZeroBubble,
    Schedule::Chimera,
];

/// Seconds of a forward pass, a backward pass and gradients of weights on a stage.
type Costs = [usize; 3];

/// The order played on devices that do one thing at a time: when the last one is done.
fn makespan(schedule: Schedule, devices: usize, micro: usize, costs: Costs) -> usize {
    let stages = devices * schedule.chunks();
    let mut free = vec![0; devices];
    let mut ends: HashMap<Slot, usize> = HashMap::new();
    for slot in slots(schedule, devices, micro) {
        let device = schedule.device(devices, slot.replica, slot.stage);
        let end_of = |pass, stage| {
            ends[&Slot {
                stage,
                pass,
                ..slot
            }]
        };
        let start = match slot.pass {
            Pass::Forward if slot.stage == 0 => 0,
            Pass::Forward => end_of(Pass::Forward, slot.stage - 1),
            Pass::Backward if slot.stage + 1 == stages => end_of(Pass::Forward, slot.stage),
            Pass::Backward => end_of(Pass::Backward, slot.stage + 1),
            Pass::Weights => end_of(Pass::Backward, slot.stage),
        };
        free[device] = start.max(free[device]) + costs[slot.pass as usize];
        ends.insert(slot, free[device]);
    }
    free.into_iter().max().unwrap_or_default()
}

/// Most micro-batches that are alive on each device: forward is done, the last backward work not.
fn peaks(schedule: Schedule, devices: usize, micro: usize) -> Vec<usize> {
    let mut alive = vec![0_usize; devices];
    let mut peaks = vec![0; devices];
    let frees = if schedule.splits_weights() {
        Pass::Weights
    } else {
        Pass::Backward
    };
    for slot in slots(schedule, devices, micro) {
        let device = schedule.device(devices, slot.replica, slot.stage);
        if slot.pass == Pass::Forward {
            alive[device] += 1;
        } else if slot.pass == frees {
            alive[device] -= 1;
        }
        peaks[device] = peaks[device].max(alive[device]);
    }
    assert_eq!(alive, vec![0; devices]);
    peaks
}

fn all_schedules() -> Vec<Schedule> {
    let more = (1..4).flat_map(|count| {
        let chunks = count + 1;
        [
            Schedule::Interleaved { chunks },
            Schedule::Gems { repetitions: count },
        ]
    });
    SHARED.into_iter().chain(more).collect()
}

#[test]
fn every_slot_stands_once_behind_what_it_needs() {
    let mut orders = 0;
    for schedule in all_schedules() {
        for (devices, micro) in (1..=9).flat_map(|d| (1..=12).map(move |m| (d, m))) {
            if fitting_micro(schedule, devices, micro, micro) != Some(micro) {
                continue;
            }
            orders += 1;
            let stages = devices * schedule.chunks();
            let order = slots(schedule, devices, micro);
            let at: HashMap<Slot, usize> = order.iter().copied().zip(0..).collect();
            assert_eq!(at.len(), order.len(), "{schedule} repeats a slot");
            let passes = 2 + usize::from(schedule.splits_weights());
            assert_eq!(order.len(), passes * stages * micro, "{schedule}");
            let mut replica_of = vec![None; micro];
            for slot in &order {
                let replica = *replica_of[slot.micro].get_or_insert(slot.replica);
                assert_eq!(replica, slot.replica);
                assert!(replica < schedule.replicas() && slot.stage < stages);
                let of = |pass, stage| {
                    at[&Slot {
                        stage,
                        pass,
                        ..*slot
                    }]
                };
                let here = at[slot];
                match slot.pass {
                    Pass::Forward => {
                        assert!(slot.stage == 0 || of(Pass::Forward, slot.stage - 1) < here);
                    }
                    Pass::Backward => {
                        assert!(of(Pass::Forward, slot.stage) < here);
                        let is_last = slot.stage + 1 == stages;
                        assert!(is_last || of(Pass::Backward, slot.stage + 1) < here);
                    }
                    Pass::Weights => assert!(of(Pass::Backward, slot.stage) < here),
                }
            }
            for replica in 0..schedule.replicas() {
                let has = replica_of.iter().filter(|of| **of == Some(replica)).count();
                assert_eq!(has * schedule.replicas(), micro, "{schedule}");
            }
        }
    }
    assert!(orders > 500, "only {orders} orders looked at");
}

#[test]
fn what_a_schedule_asks_is_refused_otherwise() {
    let interleaved = Schedule::Interleaved { chunks: 2 };
    let gems = Schedule::Gems { repetitions: 2 };
    assert_eq!(fitting_micro(Schedule::GPipe, 3, 5, 12), Some(4));
    assert_eq!(fitting_micro(interleaved, 3, 5, 12), Some(6));
    assert_eq!(fitting_micro(interleaved, 5, 5, 12), None);
    assert_eq!(fitting_micro(gems, 3, 1, 24), Some(4));
    assert_eq!(fitting_micro(gems, 3, 10, 24), Some(8));
    assert_eq!(fitting_micro(Schedule::Chimera, 4, 3, 8), Some(2));
    assert_eq!(fitting_micro(Schedule::Chimera, 3, 2, 8), None);
    assert_eq!(fitting_micro(Schedule::GPipe, 3, 0, 8), Some(1));
}

#[test]
fn texts_are_read_back() {
    for schedule in all_schedules() {
        assert_eq!(Schedule::parse(&schedule.to_string()), Some(schedule));
    }
    assert_eq!(Schedule::parse("gems*1"), Schedule::parse("gems"));
    let refused = [
        "",
        "1F1B",
        "gems*0",
        "interleaved",
        "interleaved*1",
        "gpipe*2",
        "gems*x",
    ];
    for text in refused {
        assert_eq!(Schedule::parse(text), None, "{text}");
    }
}

/// Huang et al. 2019, section 2.2; Narayanan et al. 2021, section 2.2.1.
#[test]
fn one_replica_takes_what_is_published() {
    for (devices, micro) in [(1, 3), (2, 1), (3, 7), (4, 4), (4, 8), (8, 24)] {
        for [forward, backward] in [[1, 1], [1, 2], [3, 4]] {
            let both = forward + backward;
            let makespan = |schedule| makespan(schedule, devices, micro, [forward, backward, 0]);
            assert_eq!(makespan(Schedule::Sequential), devices * micro * both);
            let filled = (micro + devices - 1) * both;
            assert_eq!(makespan(Schedule::GPipe), filled);
            assert_eq!(makespan(Schedule::OneForwardOneBackward), filled);
            for chunks in [2, 3, 5] {
                if micro % devices == 0 {
                    let filled = (micro * chunks + devices - 1) * both;
                    assert_eq!(makespan(Schedule::Interleaved { chunks }), filled);
                }
            }
        }
    }
}

/// Qi et al. 2023: of `(p - 1)(T_F + T_B + T_W)` that devices wait with one forward, one
/// backward, ZB-H1 leaves `(p - 1)(T_F + T_B - T_W)`, in the same memory.
#[test]
fn weights_apart_fill_two_thirds_of_the_bubble() {
    for (devices, micro) in [(1, 2), (2, 3), (4, 4), (4, 12), (8, 8), (8, 24)] {
        let apart = makespan(Schedule::ZeroBubble, devices, micro, [1, 1, 1]);
        assert_eq!(apart, 3 * micro + devices - 1);
        let peaks = peaks(Schedule::ZeroBubble, devices, micro);
        assert_eq!(peaks.into_iter().max(), Some(devices.min(micro)));
    }
    for (devices, micro) in (2..9).flat_map(|d| (1..13).map(move |m| (d, m))) {
        let apart = makespan(Schedule::ZeroBubble, devices, micro, [1, 1, 1]);
        let together = makespan(Schedule::OneForwardOneBackward, devices, micro, [1, 2, 0]);
        assert!(apart < together, "{devices} devices, {micro} micro-batches");
    }
}

/// D forward, turns of D backward, and a forward pass of the next turn between two: what Jain et al.
/// 2020 describe, and the bubble that Li and Hoefler 2021 give for it.
#[test]
fn turns_of_two_replicas_take_what_is_published() {
    for (devices, turns) in [2, 4, 8]
        .into_iter()
        .flat_map(|d| [2, 4, 8].map(|t| (d, t)))
    {
        for [forward, backward] in [[1, 1], [1, 2]] {
            let schedule = Schedule::Gems {
                repetitions: turns / 2,
            };
            let taken = makespan(schedule, devices, turns, [forward, backward, 0]);
            let published = devices * forward + turns * devices * backward + (turns - 1) * forward;
            assert_eq!(taken, published, "{devices} devices, {turns} turns");
        }
    }
}

/// Li and Hoefler 2021, the table that compares schemes: D - 2 slots of waiting, however many units, where both
/// passes are equally long; with twice as long backward passes, D forward and 2 D - 2 backward passes
/// follow one another in a unit, and (D - 2) / (3 N / 2 + D - 2) of its time is spent waiting.
#[test]
fn two_replicas_at_once_take_what_is_published() {
    for devices in [2, 4, 6, 8, 16] {
        for units in [1, 2, 3] {
            let micro = devices * units;
            let taken = makespan(Schedule::Chimera, devices, micro, [1, 1, 0]);
            assert_eq!(
                taken,
                2 * micro + devices - 2,
                "{devices} devices, {units} units"
            );
        }
        let taken = makespan(Schedule::Chimera, devices, devices, [1, 2, 0]);
        assert_eq!(taken, devices + 2 * (2 * devices - 2), "{devices} devices");
    }
}

/// Four devices and four micro-batches: one half of the devices mirrors the other, with the even and the odd
/// micro-batches exchanged.
#[test]
fn two_replicas_at_once_mirror_each_other() {
    let order = slots(Schedule::Chimera, 4, 4);
    let text = |device| {
        let here = order
            .iter()
            .filter(|slot| Schedule::Chimera.device(4, slot.replica, slot.stage) == device);
        let word = |slot: &Slot| match slot.pass {
            Pass::Forward => format!("F{}", slot.micro),
            Pass::Backward => format!("B{}", slot.micro),
            Pass::Weights => format!("W{}", slot.micro),
        };
        here.map(word).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(text(0), "F0 F2 F1 B1 F3 B3 B0 B2");
    assert_eq!(text(1), "F0 F1 F2 F3 B1 B0 B3 B2");
    assert_eq!(text(2), "F1 F0 F3 F2 B0 B1 B2 B3");
    assert_eq!(text(3), "F1 F3 F0 B0 F2 B2 B1 B3");
}

#[test]
fn micro_batches_alive_are_as_few_as_published() {
    for (devices, micro) in [(1, 4), (3, 2), (4, 4), (4, 12), (8, 8)] {
        let peaks = |schedule| peaks(schedule, devices, micro);
        assert_eq!(peaks(Schedule::Sequential), vec![1; devices]);
        assert_eq!(peaks(Schedule::GPipe), vec![micro; devices]);
        let ahead: Vec<usize> = (0..devices)
            .map(|stage| (devices - stage).min(micro))
            .collect();
        assert_eq!(peaks(Schedule::OneForwardOneBackward), ahead);
    }
    for (repetitions, each) in [(1, 1), (4, 1), (1, 3), (4, 3)] {
        let schedule = Schedule::Gems { repetitions };
        assert_eq!(peaks(schedule, 4, 2 * repetitions * each), vec![each; 4]);
    }
    // Li and Hoefler 2021: from D / 2 + 1 to D for one unit.
    assert_eq!(peaks(Schedule::Chimera, 4, 4), vec![3, 4, 4, 3]);
}

#[test]
fn evaluation_goes_forward_through_all_stages() {
    let order = forward_slots(3, 2);
    let text: Vec<(usize, usize)> = order.iter().map(|slot| (slot.stage, slot.micro)).collect();
    assert_eq!(text, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    assert!(
        order
            .iter()
            .all(|slot| (slot.replica, slot.pass) == (0, Pass::Forward))
    );
}
