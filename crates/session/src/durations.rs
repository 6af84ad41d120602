//! How long steps and their tasks take: medians over a run, in bounded memory.

use partita_run::{Event, Trace};
use partita_space::{Bytes, Seconds, median};
use std::collections::VecDeque;

/// Steps of a run that are not measured: caches are cold and pages untouched.
const WARM_UP: u64 = 2;
/// Steps whose durations are held; beyond, every second one is dropped.
const HELD_MAX: usize = if cfg!(miri) { 32 } else { 512 };

/// Durations of the training steps of full size and of their tasks, and the last traces.
pub(crate) struct Durations {
    kept: usize,
    traces: VecDeque<Trace>,
    seen: u64,
    /// One in so many steps is held.
    stride: u64,
    /// Of each held step: the whole, then its tasks.
    held: Vec<Vec<f32>>,
}

/// Medians over the measured steps.
pub(crate) struct Medians {
    pub steps: u64,
    pub step: Seconds,
    pub tasks: Vec<Seconds>,
}

/// Bytes held after so many steps of so many tasks, of which the traces of some are kept.
pub(crate) fn bytes(steps: u64, tasks: usize, kept: usize) -> Bytes {
    let measured = steps.saturating_sub(WARM_UP) as usize;
    let rows = measured.min(HELD_MAX) * (tasks + 1) * size_of::<f32>();
    let traces = measured.min(kept + 1) * tasks * size_of::<Event>();
    Bytes((rows + traces) as u64)
}

impl Durations {
    pub fn new(kept: usize) -> Self {
        Self {
            kept,
            traces: VecDeque::new(),
            seen: 0,
            stride: 1,
            held: Vec::new(),
        }
    }

    pub fn add(&mut self, seconds: Seconds, trace: Trace) {
        self.seen += 1;
        if self.seen <= WARM_UP {
            return;
        }
        if (self.seen - WARM_UP - 1).is_multiple_of(self.stride) {
            let mut row = vec![0.0; trace.events.len() + 1];
            row[0] = seconds.0 as f32;
            for event in &trace.events {
                row[event.task.0 as usize + 1] = (event.end - event.start).0 as f32;
            }
            self.held.push(row);
            self.thin();
        }
        self.traces.push_back(trace);
        if self.traces.len() > self.kept {
            self.traces.pop_front();
        }
    }

    fn thin(&mut self) {
        if self.held.len() < HELD_MAX {
            return;
        }
        let mut index = 0;
        self.held.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        self.stride *= 2;
    }

    pub fn finish(self) -> (Medians, Vec<Trace>) {
        let columns = self.held.first().map_or(0, Vec::len);
        let mut tasks: Vec<Seconds> = (0..columns).map(|column| self.median(column)).collect();
        let step = tasks.drain(..columns.min(1)).next().unwrap_or_default();
        let steps = self.seen.saturating_sub(WARM_UP);
        let medians = Medians { steps, step, tasks };
        (medians, self.traces.into())
    }

    fn median(&self, column: usize) -> Seconds {
        let values = self.held.iter().map(|row| f64::from(row[column]));
        Seconds(median(&values.collect::<Vec<f64>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Durations, HELD_MAX, WARM_UP};
    use partita_program::TaskId;
    use partita_run::{Event, Trace};
    use partita_space::Seconds;

    fn trace(step: u64, seconds: f64) -> Trace {
        let event = |task, seconds| Event {
            task: TaskId(task),
            start: Seconds(1.0),
            end: Seconds(1.0 + seconds),
        };
        Trace {
            rank: 0,
            step,
            events: vec![event(1, 2.0 * seconds), event(0, seconds)],
        }
    }

    #[test]
    fn medians_leave_the_warm_up_out_and_the_last_traces_stay() {
        let mut durations = Durations::new(2);
        for (step, seconds) in [100.0, 100.0, 1.0, 8.0, 2.0, 4.0].into_iter().enumerate() {
            durations.add(Seconds(3.0 * seconds), trace(step as u64, seconds));
        }
        let (medians, traces) = durations.finish();
        assert_eq!((medians.steps, medians.step), (4, Seconds(9.0)));
        assert_eq!(medians.tasks, [Seconds(3.0), Seconds(6.0)]);
        assert_eq!(
            traces.iter().map(|trace| trace.step).collect::<Vec<_>>(),
            [4, 5]
        );
    }

    #[test]
    fn long_runs_are_thinned_evenly() {
        let mut durations = Durations::new(0);
        let steps = 3 * HELD_MAX as u64;
        for step in 0..WARM_UP + steps {
            let seconds = step.saturating_sub(WARM_UP) as f64;
            durations.add(Seconds(seconds), trace(step, 1.0));
        }
        assert!(durations.held.len() < HELD_MAX);
        let (medians, traces) = durations.finish();
        assert!(traces.is_empty());
        let expected = steps as f64 / 2.0;
        assert!((medians.step.0 - expected).abs() < 8.0, "{}", medians.step);
    }

    #[test]
    fn a_run_shorter_than_the_warm_up_measures_nothing() {
        let mut durations = Durations::new(2);
        durations.add(Seconds(1.0), trace(0, 1.0));
        let (medians, traces) = durations.finish();
        assert!(medians.tasks.is_empty() && traces.is_empty());
        assert_eq!((medians.steps, medians.step), (0, Seconds(0.0)));
    }
}
