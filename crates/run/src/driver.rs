//! Dependency tracking of tasks, shared by real ranks and the simulator.

use partita_program::{Body, Lane, TaskId};

/// Tells which task of a body may start next. It has no clock, transport or memory, so the simulator and
/// real ranks use the same one.
///
/// Tasks of a lane start in order; the compute and io lanes run one task at a time. A task may start when
/// all tasks in its `after` have completed.
pub struct Driver<'p> {
    body: &'p Body,
    lanes: [LaneState; 4],
    waits: Vec<u32>,
    dependents: Vec<Vec<TaskId>>,
    open: usize,
}

struct LaneState {
    tasks: Vec<TaskId>,
    next: usize,
    in_flight: usize,
}

impl<'p> Driver<'p> {
    /// At the start of a step.
    pub fn new(body: &'p Body) -> Self {
        let lane = |lane: Lane| LaneState {
            tasks: (0..body.tasks.len())
                .filter(|&id| body.tasks[id].work.lane() == lane)
                .map(|id| TaskId(id as u32))
                .collect(),
            next: 0,
            in_flight: 0,
        };
        let mut dependents = vec![Vec::new(); body.tasks.len()];
        for (id, task) in body.tasks.iter().enumerate() {
            for before in &task.after {
                dependents[before.0 as usize].push(TaskId(id as u32));
            }
        }
        let waits = body
            .tasks
            .iter()
            .map(|task| task.after.len() as u32)
            .collect();
        Self {
            body,
            lanes: Lane::ALL.map(lane),
            waits,
            dependents,
            open: body.tasks.len(),
        }
    }

    /// Back to the start of a step.
    pub fn reset(&mut self) {
        for lane in &mut self.lanes {
            lane.next = 0;
            lane.in_flight = 0;
        }
        for (waits, task) in self.waits.iter_mut().zip(&self.body.tasks) {
            *waits = task.after.len() as u32;
        }
        self.open = self.body.tasks.len();
    }

    /// The next task to start, now considered in flight; `None` until a task completes.
    ///
    /// Exchanges and collectives come before kernels, so that they overlap with them.
    pub fn next_ready(&mut self) -> Option<TaskId> {
        [Lane::Exchange, Lane::Collective, Lane::Io, Lane::Compute]
            .into_iter()
            .find_map(|lane| self.next_of(lane))
    }

    fn next_of(&mut self, lane: Lane) -> Option<TaskId> {
        let state = &mut self.lanes[lane as usize];
        let task = *state.tasks.get(state.next)?;
        let free = !lane.is_serial() || state.in_flight == 0;
        (free && self.waits[task.0 as usize] == 0).then(|| {
            state.next += 1;
            state.in_flight += 1;
            task
        })
    }

    /// Marks a task in flight as completed.
    pub fn complete(&mut self, task: TaskId) {
        let lane = self.body.tasks[task.0 as usize].work.lane();
        self.lanes[lane as usize].in_flight -= 1;
        self.open -= 1;
        for dependent in &self.dependents[task.0 as usize] {
            self.waits[dependent.0 as usize] -= 1;
        }
    }

    /// Whether every task has completed.
    pub fn is_finished(&self) -> bool {
        self.open == 0
    }

    /// Number of tasks that have not completed.
    pub fn open(&self) -> usize {
        self.open
    }
}
