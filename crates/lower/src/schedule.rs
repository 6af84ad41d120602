//! In which order the stages of a pipeline take micro-batches.
//!
//! A schedule is published as what each place does one after the other. Played in virtual time, these
//! lists give every slot a start, and sorting by it gives one order of all slots, in which each stands
//! behind all it depends on. So ranks that keep this order never wait for one another in a circle,
//! whatever stages they hold.

mod per_device;

use partita_space::limits::MICRO_BATCHES_MAX;
use per_device::lists;
use std::cmp::Reverse;
use std::fmt;

/// Most turns of a replica in [`Schedule::Gems`]: in each of them both take a micro-batch.
pub const REPETITIONS_MAX: usize = MICRO_BATCHES_MAX / 2;

/// Most stages on a place in [`Schedule::Interleaved`].
pub const CHUNKS_MAX: usize = MICRO_BATCHES_MAX;

/// In which order stages take micro-batches. The text form is `sequential`, `gpipe`, `1f1b`,
/// `interleaved*2`, `zero-bubble`, `gems`, `gems*2` or `chimera`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Schedule {
    /// One micro-batch after the other through all stages, forward and back.
    Sequential,
    /// All forward, then all backward (Huang et al. 2019).
    GPipe,
    /// As few micro-batches ahead as keep the last stage busy, then one forward and one backward in turn
    /// (Narayanan et al. 2019, Fan et al. 2021).
    #[default]
    OneForwardOneBackward,
    /// The same with several stages on a place, far apart (Narayanan et al. 2021, section 2.2).
    Interleaved {
        /// Stages on a place, at least 2.
        chunks: usize,
    },
    /// As one forward, one backward, with gradients of weights apart and late, where a place would wait:
    /// ZB-H1 of Qi et al. 2023.
    ZeroBubble,
    /// Two replicas in opposite directions take turns; the forward pass of one follows the backward pass
    /// of the other into the memory that it frees (Jain et al. 2020).
    Gems {
        /// Times that each replica has a turn in a training step, at least 1.
        repetitions: usize,
    },
    /// Two replicas in opposite directions at the same time, each in the slots that the other leaves
    /// free (Li and Hoefler 2021). More micro-batches than places come in units of as many as there are
    /// places.
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
    /// Which stage, over all places.
    pub stage: usize,
    /// Which micro-batch of the mini-batch, over all replicas.
    pub micro: usize,
    /// What is done.
    pub pass: Pass,
}

impl Schedule {
    /// Copies of the model that run in a pipeline; the second has its stages in reverse order.
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

    /// Stages of a replica on a place.
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

    /// The place of a stage: stages go round the places, those of the second replica backward.
    pub fn device(self, devices: usize, replica: usize, stage: usize) -> usize {
        match replica {
            0 => stage % devices,
            _ => devices - 1 - stage % devices,
        }
    }

    /// Of what number the micro-batches are a multiple; none where the schedule cannot run on so many
    /// places: Chimera needs an even number of them.
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

    /// From the text form; none of anything else, or of numbers that no mini-batch or model allows.
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
/// `devices` places and that divides `samples`, the mini-batch over the extent of `data`; none where
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

/// All slots of a training step in one order that every rank keeps: a rank takes those of the stages it
/// holds. Stages are as in [`Schedule::device`].
///
/// Micro-batches ascend over the turns of [`Schedule::Gems`]; of [`Schedule::Chimera`], the first
/// replica has the even ones and the second the odd ones, so that they ascend in time there, too.
/// Panics unless [`fitting_micro`] gives `micro` back for `micro` samples.
pub fn slots(schedule: Schedule, devices: usize, micro: usize) -> Vec<Slot> {
    assert_eq!(
        fitting_micro(schedule, devices, micro, micro),
        Some(micro),
        "{schedule} does not take {micro} micro-batches on {devices} places"
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
    play(lists(schedule, devices, micro), stages, micro, durations)
}

/// All slots of an evaluation, forward and on the first replica, in an order that every rank keeps.
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
    play((0..stages).map(list).collect(), stages, micro, [1, 0, 0])
}

/// Merges what places do into one order, by the time at which each slot starts if it waits for nothing
/// but the slot before it on its place and those it depends on. What frees memory comes first of what
/// starts together.
fn play(lists: Vec<Vec<Slot>>, stages: usize, micro: usize, durations: [u64; 3]) -> Vec<Slot> {
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
        assert!(started.len() > before, "the places wait for one another");
    }
    started.sort_by_key(|&(start, slot)| (start, Reverse(slot.pass), slot));
    started.into_iter().map(|(_, slot)| slot).collect()
}

impl Slot {
    /// What must be done before.
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
