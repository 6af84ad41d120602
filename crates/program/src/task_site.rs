//! How error messages name a task.

use crate::Program;
use partita_space::Rank;
use std::fmt;

/// A task of a class of ranks, named by the class's representative, in errors and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSite {
    /// Class of ranks.
    pub class: usize,
    /// Its representative.
    pub rank: Rank,
    /// Index of the task in the body.
    pub task: usize,
    /// Kind of work.
    pub work: &'static str,
    /// Its layer.
    pub layer: String,
    /// Its phase.
    pub phase: &'static str,
}

impl TaskSite {
    /// Task number `task` of a class. The class and the task must exist.
    pub fn of(program: &Program, class: usize, rank: Rank, task: usize) -> Self {
        let origin = &program.bodies[class].tasks[task];
        Self {
            class,
            rank,
            task,
            work: origin.work.name(),
            layer: origin.origin.layer.clone(),
            phase: origin.origin.phase.name(),
        }
    }
}

impl fmt::Display for TaskSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            class,
            rank,
            task,
            work,
            layer,
            phase,
        } = self;
        write!(
            f,
            "class {class} (rank {rank}) t{task} {work} of {layer}, {phase}"
        )
    }
}
