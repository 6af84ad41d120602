//! Median durations of steps and tasks, in bounded memory.

use partita_run::{Event, Trace};
use partita_space::{Bytes, Seconds, median};
use std::collections::VecDeque;

/// Warm-up steps, which are not measured: caches are cold and pages untouched.
const WARM_UP: u64 = 2;
/// Most steps whose durations are stored; beyond that, every second one is dropped.
const SAMPLES_MAX: usize = if cfg!(miri) { 32 } else { 512 };

/// Durations of the training steps of full batch size and of their tasks, and the last traces.
pub(crate) struct Durations {
    traces_max: usize,
    traces: VecDeque<Trace>,
    steps: u64,
    /// Every `stride`th step is stored.
    stride: u64,
    /// For each stored step: its duration, then those of its tasks.
    samples: Vec<Vec<f32>>,
}

/// Medians over the measured steps.
pub(crate) struct Medians {
    pub steps: u64,
    pub step: Seconds,
    pub tasks: Vec<Seconds>,
}

/// Bytes in use after that many steps.
pub(crate) fn bytes(steps: u64, tasks: usize, traces_max: usize) -> Bytes {
    let measured = steps.saturating_sub(WARM_UP) as usize;
    let rows = measured.min(SAMPLES_MAX) * (tasks + 1) * size_of::<f32>();
    let traces = measured.min(traces_max + 1) * tasks * size_of::<Event>();
    Bytes((rows + traces) as u64)
}

impl Durations {
    pub fn new(traces_max: usize) -> Self {
        Self {
            traces_max,
            traces: VecDeque::new(),
            steps: 0,
            stride: 1,
            samples: Vec::new(),
        }
    }

    pub fn add(&mut self, seconds: Seconds, trace: Trace) {
        self.steps += 1;
        if self.steps <= WARM_UP {
            return;
        }
        if (self.steps - WARM_UP - 1).is_multiple_of(self.stride) {
            let mut row = vec![0.0; trace.events.len() + 1];
            row[0] = seconds.0 as f32;
            for event in &trace.events {
                row[event.task.0 as usize + 1] = (event.end - event.start).0 as f32;
            }
            self.samples.push(row);
            self.thin();
        }
        self.traces.push_back(trace);
        if self.traces.len() > self.traces_max {
            self.traces.pop_front();
        }
    }

    fn thin(&mut self) {
        if self.samples.len() < SAMPLES_MAX {
            return;
        }
        let mut index = 0;
        self.samples.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        self.stride *= 2;
    }

    pub fn finish(self) -> (Medians, Vec<Trace>) {
        let columns = self.samples.first().map_or(0, Vec::len);
        let mut tasks: Vec<Seconds> = (0..columns).map(|column| self.median(column)).collect();
        let step = tasks.drain(..columns.min(1)).next().unwrap_or_default();
        let steps = self.steps.saturating_sub(WARM_UP);
        let medians = Medians { steps, step, tasks };
        (medians, self.traces.into())
    }

    fn median(&self, column: usize) -> Seconds {
        let values = self.samples.iter().map(|row| f64::from(row[column]));
        Seconds(median(&values.collect::<Vec<f64>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Durations, SAMPLES_MAX, WARM_UP};
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
        let steps = 3 * SAMPLES_MAX as u64;
        for step in 0..WARM_UP + steps {
            let seconds = step.saturating_sub(WARM_UP) as f64;
            durations.add(Seconds(seconds), trace(step, 1.0));
        }
        assert!(durations.samples.len() < SAMPLES_MAX);
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
