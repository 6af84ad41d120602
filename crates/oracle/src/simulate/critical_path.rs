//! The critical path, and the breakdown of its seconds.

use super::category::{Breakdown, Category};
use super::costed_program::CostedProgram;
use super::engine::Timeline;
use super::network::Instance;
use partita_program::{Lane, TaskId};
use partita_space::{Rank, Seconds};

/// A piece of the critical path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Index of the participant.
    pub participant: usize,
    /// Its rank.
    pub rank: Rank,
    /// Index of its body.
    pub body: u32,
    /// Step of the simulation, from 0.
    pub step: usize,
    /// The task that ran.
    pub task: TaskId,
    /// What the time was spent on.
    pub category: Category,
    /// Whether it is host overhead of communication, by which the task was delayed.
    pub is_overhead: bool,
    /// Length.
    pub seconds: Seconds,
    /// Latency of messages and collectives in it.
    pub latency: Seconds,
}

/// The critical path, and the latency in it.
pub(super) struct CriticalPath {
    pub segments: Vec<Segment>,
    pub latency: Seconds,
}

pub(super) fn breakdown(segments: &[Segment]) -> Breakdown {
    let mut breakdown = Breakdown::default();
    for segment in segments {
        *breakdown.of_mut(segment.category) += segment.seconds;
    }
    breakdown
}

/// The path to the completion of the last task.
pub(super) fn critical_path(costed: &CostedProgram<'_>, timeline: &Timeline) -> CriticalPath {
    let last = (0..timeline.records.len())
        .max_by(|&a, &b| timeline.records[a].end.total_cmp(&timeline.records[b].end));
    path_to(costed, timeline, last)
}

/// Walks from a completion back to the start: over each task's time since the last start that it needed, then to
/// the task whose completion made that start possible.
fn path_to(
    costed: &CostedProgram<'_>,
    timeline: &Timeline,
    last: Option<Instance>,
) -> CriticalPath {
    let mut path = CriticalPath {
        segments: Vec::new(),
        latency: Seconds(0.0),
    };
    let mut cursor = last;
    while let Some(found) = cursor {
        // A completion that was deferred to the end of a kernel is due to that kernel.
        let instance = timeline.records[found]
            .deferred_by
            .map_or(found, |kernel| kernel as Instance);
        let record = &timeline.records[instance];
        let last_start = &timeline.records[record.last_start as usize];
        let (begin, before) = match record.queued_behind {
            Some((other, end)) => (end, Some(other)),
            None => (last_start.start, last_start.trigger),
        };
        let seconds = record.end - begin;
        push(costed, timeline, instance, seconds, &mut path.segments);
        path.latency += Seconds(record.latency);
        cursor = before.map(|before| before as Instance);
    }
    path
}

/// Other paths that may become the longest if some tasks take longer: to the last completion in each lane of
/// communication and input, with the weight update after it.
pub(super) fn other_paths(
    costed: &CostedProgram<'_>,
    timeline: &Timeline,
    critical: &[Segment],
) -> Vec<Vec<Segment>> {
    let mut last: [Option<Instance>; Lane::ALL.len()] = [None; Lane::ALL.len()];
    let end = |instance: Option<Instance>| instance.map(|at| timeline.records[at].end);
    for (program, &base) in costed.participants.iter().zip(&timeline.base) {
        for (at, task) in program.body.tasks.iter().enumerate() {
            let of_lane = &mut last[task.work.lane() as usize];
            if end(*of_lane) < end(Some(base + at)) {
                *of_lane = Some(base + at);
            }
        }
    }
    let is_update = |segment: &&Segment| segment.category == Category::Update;
    let update: Vec<Segment> = critical.iter().filter(is_update).copied().collect();
    let others = [Lane::Exchange, Lane::Collective, Lane::Io].map(|lane| last[lane as usize]);
    let path = |instance| {
        let to = path_to(costed, timeline, Some(instance)).segments;
        let before = to.into_iter().filter(|one| !is_update(&one));
        before.chain(update.iter().copied()).collect()
    };
    others.into_iter().flatten().map(path).collect()
}

fn push(
    costed: &CostedProgram<'_>,
    timeline: &Timeline,
    instance: Instance,
    seconds: f64,
    segments: &mut Vec<Segment>,
) {
    let (participant, step, task) = timeline.locate(costed, instance);
    let program = &costed.participants[participant];
    let segment = |category, seconds| Segment {
        participant,
        rank: program.participant.rank,
        body: program.participant.body,
        step,
        task: TaskId(task as u32),
        category,
        is_overhead: false,
        seconds: Seconds(seconds),
        latency: Seconds(0.0),
    };
    let mut rest = seconds;
    for &(category, stall) in timeline.stalls.get(&instance).into_iter().flatten() {
        segments.push(Segment {
            is_overhead: true,
            ..segment(category, stall)
        });
        rest -= stall;
    }
    let latency = timeline.records[instance].latency.min(rest.max(0.0));
    segments.push(Segment {
        latency: Seconds(latency),
        ..segment(Category::of(&program.body.tasks[task]), rest)
    });
}
