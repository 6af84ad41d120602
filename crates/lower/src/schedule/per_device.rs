//! The published list of slots of each device.

use super::{Pass, Schedule, Slot};

/// The slots of each device.
pub(super) fn lists(schedule: Schedule, devices: usize, micro: usize) -> Vec<Vec<Slot>> {
    let list = |device| match schedule {
        Schedule::Sequential => turns(devices, device, micro, 1, 1),
        Schedule::GPipe => turns(devices, device, micro, micro, 1),
        Schedule::Gems { repetitions } => {
            turns(devices, device, micro, micro / (2 * repetitions), 2)
        }
        Schedule::OneForwardOneBackward => alternate(devices, device, micro, None),
        Schedule::ZeroBubble => alternate(devices, device, micro, Some(device)),
        Schedule::Interleaved { chunks } => interleaved(devices, chunks, device, micro),
        Schedule::Chimera => chimera(devices, device, micro),
    };
    (0..devices).map(list).collect()
}

/// Turns of `each` micro-batches, all forward and then all backward, alternating between replicas.
fn turns(devices: usize, device: usize, micro: usize, each: usize, replicas: usize) -> Vec<Slot> {
    let turn = |turn: usize| {
        let replica = turn % replicas;
        let slot = move |micro, pass| Slot {
            replica,
            stage: stage(devices, replica, device),
            micro,
            pass,
        };
        let micros = turn * each..(turn + 1) * each;
        let forward = micros.clone().map(move |micro| slot(micro, Pass::Forward));
        forward.chain(micros.map(move |micro| slot(micro, Pass::Backward)))
    };
    (0..micro / each).flat_map(turn).collect()
}

/// The first stage of a replica on a device.
fn stage(devices: usize, replica: usize, device: usize) -> usize {
    match replica {
        0 => device,
        _ => devices - 1 - device,
    }
}

/// Warm-up, one forward and one backward in turn, cool-down. A separate pass for gradients of weights follows
/// `delay` backward passes later, as many as there are stages before this one, so that no device has more
/// micro-batches in flight than the first.
fn alternate(devices: usize, device: usize, micro: usize, delay: Option<usize>) -> Vec<Slot> {
    let slot = |micro, pass| Slot {
        replica: 0,
        stage: device,
        micro,
        pass,
    };
    let ahead = (devices - 1 - device).min(micro);
    let mut slots: Vec<Slot> = (0..ahead).map(|at| slot(at, Pass::Forward)).collect();
    for at in 0..micro {
        if at + ahead < micro {
            slots.push(slot(at + ahead, Pass::Forward));
        }
        slots.push(slot(at, Pass::Backward));
        if let Some(late) = delay.and_then(|delay| at.checked_sub(delay)) {
            slots.push(slot(late, Pass::Weights));
        }
    }
    if let Some(delay) = delay {
        let left = micro.saturating_sub(delay)..micro;
        slots.extend(left.map(|at| slot(at, Pass::Weights)));
    }
    slots
}

/// As [`alternate`], with the stages of a device in turn: `devices` micro-batches through the first, then the
/// same through the next.
fn interleaved(devices: usize, chunks: usize, device: usize, micro: usize) -> Vec<Slot> {
    let slot = |at: usize, pass| {
        let (unit, within) = (at / (devices * chunks), at % (devices * chunks));
        let chunk = match pass {
            Pass::Forward => within / devices,
            Pass::Backward | Pass::Weights => chunks - 1 - within / devices,
        };
        Slot {
            replica: 0,
            stage: chunk * devices + device,
            micro: unit * devices + within % devices,
            pass,
        }
    };
    let all = micro * chunks;
    let ahead = (2 * (devices - 1 - device) + (chunks - 1) * devices).min(all);
    let mut slots: Vec<Slot> = (0..ahead).map(|at| slot(at, Pass::Forward)).collect();
    for at in 0..all {
        if at + ahead < all {
            slots.push(slot(at + ahead, Pass::Forward));
        }
        slots.push(slot(at, Pass::Backward));
    }
    slots
}

/// Both replicas at once, by the times at which a forward and a backward pass of equal length start if
/// each stage has a forward pass in every other slot and then a backward pass in every other slot.
///
/// A unit of `devices` micro-batches, half of them on each replica, has `2 * devices` slots on each
/// device. On the device of stage s, forward passes of the first replica lie in slots of the parity of s,
/// of the second in those of the other parity, and backward passes the other way round and later; so no
/// two fall together, and the next unit follows without a gap.
fn chimera(devices: usize, device: usize, micro: usize) -> Vec<Slot> {
    let slots = |replica: usize, micro: usize| {
        let stage = stage(devices, replica, device);
        let (unit, within) = (micro / devices, micro % devices / 2);
        let begin = 2 * (devices * unit + within);
        let slot = |pass| Slot {
            replica,
            stage,
            micro,
            pass,
        };
        [
            (begin + stage, slot(Pass::Forward)),
            (begin + 2 * devices - 1 - stage, slot(Pass::Backward)),
        ]
    };
    let mut timed: Vec<(usize, Slot)> = (0..micro).flat_map(|at| slots(at % 2, at)).collect();
    timed.sort();
    timed.into_iter().map(|(_, slot)| slot).collect()
}
