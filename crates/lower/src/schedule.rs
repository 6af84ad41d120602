//! Pipeline schedules: the order in which stages process micro-batches.
//!
//! A schedule is published as a list of slots per device. Simulating these lists gives every slot a start time,
//! and sorting by it gives one topological order of all slots. Ranks that keep this order cannot deadlock,
//! whatever stages they run. A device here is the ranks of a stage, which may be several.

mod per_device;

use partita_space::limits::MICRO_BATCHES_MAX;
use per_device::lists;
use std::cmp::Reverse;
use std::fmt;

/// Most turns of a replica in [`Schedule::Gems`], each with a micro-batch of both replicas.
pub const REPETITIONS_MAX: usize = MICRO_BATCHES_MAX / 2;

/// Most stages on a device in [`Schedule::Interleaved`].
pub const CHUNKS_MAX: usize = MICRO_BATCHES_MAX;

/// In which order stages take micro-batches. The text form is `sequential`, `gpipe`, `1f1b`,
/// `interleaved*2`, `zero-bubble`, `gems`, `gems*2` or `chimera`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Schedule {
    /// One micro-batch after the other, forward and backward through all stages.
    Sequential,
    /// All forward, then all backward (Huang et al. 2019).
    GPipe,
    /// A warm-up of forward passes, then one forward and one backward pass in turn
    /// (Narayanan et al. 2019, Fan et al. 2021).
    #[default]
    OneForwardOneBackward,
    /// 1F1B with several stages (virtual stages, chunks) per device (Narayanan et al. 2021, section 2.2).
    Interleaved {
        /// Stages per device, at least 2.
        chunks: usize,
    },
    /// 1F1B with a separate pass for gradients of weights, which fills the bubbles: ZB-H1 of Qi et al. 2023.
    ZeroBubble,
    /// Two replicas in opposite directions take turns; the forward pass of one follows the backward pass
    /// of the other into the memory that it frees (Jain et al. 2020).
    Gems {
        /// Turns of each replica in a training step, at least 1.
        repetitions: usize,
    },
    /// Two replicas in opposite directions at the same time, each in the bubbles of the other (Li and Hoefler
    /// 2021). More micro-batches than devices are scheduled in units of as many as there are devices.
    Chimera,
}

/// What a stage does with a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// The backward pass, with gradients of weights unless the schedule has [`Pass::Weights`].
    Backward,
    /// Gradients of weights alone.
    Weights,
}

/// One stage's work on one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Which copy of the model.
    pub replica: usize,
    /// Which stage of the replica.
    pub stage: usize,
    /// Which micro-batch of the mini-batch, over all replicas.
    pub micro: usize,
    /// Which pass.
    pub pass: Pass,
}

impl Schedule {
    /// Replicas of the model in a pipeline; the second has its stages in reverse order.
    pub fn replicas(self) -> usize {
        match self {
            Self::Gems { .. } | Self::Chimera => 2,
            Self::Sequential
            | Self::GPipe
            | Self::OneForwardOneBackward
            | Self::Interleaved { .. }
            | Self::ZeroBubble => 1,
        }
    }

    /// Stages of a replica per device.
    pub fn chunks(self) -> usize {
        match self {
            Self::Interleaved { chunks } => chunks,
            Self::Sequential
            | Self::GPipe
            | Self::OneForwardOneBackward
            | Self::ZeroBubble
            | Self::Gems { .. }
            | Self::Chimera => 1,
        }
    }

    /// Whether gradients of weights are a pass of their own.
    pub fn splits_weights(self) -> bool {
        self == Self::ZeroBubble
    }

    /// The device of a stage: stages are assigned round-robin, for the second replica in reverse order.
    pub fn device(self, devices: usize, replica: usize, stage: usize) -> usize {
        match replica {
            0 => stage % devices,
            _ => devices - 1 - stage % devices,
        }
    }

    /// The number of micro-batches must be a multiple of this; none where the schedule cannot run on this number
    /// of devices: Chimera needs an even one.
    pub fn micro_multiple(self, devices: usize) -> Option<usize> {
        match self {
            Self::Sequential | Self::GPipe | Self::OneForwardOneBackward | Self::ZeroBubble => {
                Some(1)
            }
            Self::Interleaved { .. } => Some(devices),
            Self::Gems { repetitions } => Some(2 * repetitions),
            Self::Chimera => devices.is_multiple_of(2).then_some(2),
        }
    }

    /// From the text form; none of other texts and of numbers beyond the limits.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, count) = match text.split_once('*') {
            Some((name, count)) => (name, Some(count.parse::<usize>().ok()?)),
            None => (text, None),
        };
        Some(match (name, count) {
            ("sequential", None) => Self::Sequential,
            ("gpipe", None) => Self::GPipe,
            ("1f1b", None) => Self::OneForwardOneBackward,
            ("interleaved", Some(chunks @ 2..=CHUNKS_MAX)) => Self::Interleaved { chunks },
            ("zero-bubble", None) => Self::ZeroBubble,
            ("gems", None) => Self::Gems { repetitions: 1 },
            ("gems", Some(repetitions @ 1..=REPETITIONS_MAX)) => Self::Gems { repetitions },
            ("chimera", None) => Self::Chimera,
            _ => return None,
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Sequential => f.write_str("sequential"),
            Self::GPipe => f.write_str("gpipe"),
            Self::OneForwardOneBackward => f.write_str("1f1b"),
            Self::Interleaved { chunks } => write!(f, "interleaved*{chunks}"),
            Self::ZeroBubble => f.write_str("zero-bubble"),
            Self::Gems { repetitions: 1 } => f.write_str("gems"),
            Self::Gems { repetitions } => write!(f, "gems*{repetitions}"),
            Self::Chimera => f.write_str("chimera"),
        }
    }
}

/// The number of micro-batches nearest to `micro`, the smaller of two, that the schedule takes on
/// `devices` devices and that divides `samples`, the mini-batch over the extent of `data`; none where
/// there is no such number.
pub fn fitting_micro(
    schedule: Schedule,
    devices: usize,
    micro: usize,
    samples: usize,
) -> Option<usize> {
    let multiple = schedule.micro_multiple(devices)?;
    (1..=samples / multiple)
        .map(|times| times * multiple)
        .filter(|count| samples.is_multiple_of(*count))
        .min_by_key(|&count| (count.abs_diff(micro), count))
}

/// All slots of a training step in the global order; a rank runs those of its stages. Stages are numbered as in
/// [`Schedule::device`].
///
/// Micro-batches ascend over the turns of [`Schedule::Gems`]; in [`Schedule::Chimera`] the first replica has
/// the even ones and the second the odd ones, so that they ascend in time as well.
/// Panics unless [`fitting_micro`] gives `micro` back for `micro` samples.
pub fn slots(schedule: Schedule, devices: usize, micro: usize) -> Vec<Slot> {
    assert_eq!(
        fitting_micro(schedule, devices, micro, micro),
        Some(micro),
        "{schedule} does not take {micro} micro-batches on {devices} devices"
    );
    let stages = devices * schedule.chunks();
    let durations = match schedule {
        Schedule::ZeroBubble | Schedule::Chimera => [1, 1, 1],
        Schedule::Sequential
        | Schedule::GPipe
        | Schedule::OneForwardOneBackward
        | Schedule::Interleaved { .. }
        | Schedule::Gems { .. } => [1, 2, 0],
    };
    merge(lists(schedule, devices, micro), stages, micro, durations)
}

/// All slots of an evaluation, on the first replica, in the global order.
pub fn forward_slots(stages: usize, micro: usize) -> Vec<Slot> {
    let list = |stage| {
        let slot = |micro| Slot {
            replica: 0,
            stage,
            micro,
            pass: Pass::Forward,
        };
        (0..micro).map(slot).collect()
    };
    merge((0..stages).map(list).collect(), stages, micro, [1, 0, 0])
}

/// Merges the lists of devices into one order by simulated start times. Of slots that start at the same time,
/// those that free memory come first.
fn merge(lists: Vec<Vec<Slot>>, stages: usize, micro: usize, durations: [u64; 3]) -> Vec<Slot> {
    let index = |slot: &Slot| {
        ((slot.replica * stages + slot.stage) * micro + slot.micro) * 3 + slot.pass as usize
    };
    let mut ends: Vec<Option<u64>> = vec![None; 2 * stages * micro * 3];
    let mut started = Vec::new();
    let mut devices: Vec<(u64, usize)> = vec![(0, 0); lists.len()];
    while started.len() < lists.iter().map(Vec::len).sum() {
        let before = started.len();
        for ((free, next), list) in devices.iter_mut().zip(&lists) {
            while let Some(slot) = list.get(*next) {
                let needs = slot.needs(stages).into_iter().flatten();
                let Some(ready) = needs
                    .map(|need| ends[index(&need)])
                    .collect::<Option<Vec<_>>>()
                else {
                    break;
                };
                let start = ready.into_iter().fold(*free, u64::max);
                *free = start + durations[slot.pass as usize];
                *next += 1;
                ends[index(slot)] = Some(*free);
                started.push((start, *slot));
            }
        }
        assert!(started.len() > before, "the devices wait for one another");
    }
    started.sort_by_key(|&(start, slot)| (start, Reverse(slot.pass), slot));
    started.into_iter().map(|(_, slot)| slot).collect()
}

impl Slot {
    /// Slots on which it depends.
    pub fn needs(self, stages: usize) -> [Option<Slot>; 2] {
        let of = |pass, stage| Slot {
            stage,
            pass,
            ..self
        };
        match self.pass {
            Pass::Forward if self.stage == 0 => [None, None],
            Pass::Forward => [Some(of(Pass::Forward, self.stage - 1)), None],
            Pass::Backward => [
                Some(of(Pass::Forward, self.stage)),
                (self.stage + 1 < stages).then(|| of(Pass::Backward, self.stage + 1)),
            ],
            Pass::Weights => [Some(of(Pass::Backward, self.stage)), None],
        }
    }
}

#[cfg(test)]
mod tests;
