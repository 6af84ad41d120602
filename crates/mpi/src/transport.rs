//! The transport of a rank over MPI.

use crate::collectives::LibraryCollectives;
use crate::point_to_point::MpiPointToPoint;
use partita_program::{Collective, Exchange, Staging, TaskId};
use partita_run::{Memory, MessageTransport, RunError, Transport};
use partita_space::{Bytes, Rank};
use std::time::Duration;

/// The implementation of collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collectives {
    /// Point-to-point messages, sums taken in rank order: bitwise equal to ranks that are threads.
    #[default]
    Ordered,
    /// Non-blocking collectives of the MPI library: sums in any order, equal up to rounding.
    Library,
}

/// Messages and collectives of a rank over MPI.
pub struct MpiTransport<'w> {
    messages: MessageTransport<MpiPointToPoint<'w>>,
    library: Option<LibraryCollectives>,
}

impl<'w> MpiTransport<'w> {
    pub(crate) fn new(
        messages: MessageTransport<MpiPointToPoint<'w>>,
        library: Option<LibraryCollectives>,
    ) -> Self {
        Self { messages, library }
    }

    /// Wakes this rank from `wait`, or its next one, from any thread: for sources that read on a thread of
    /// their own.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        self.messages.messages().waker()
    }
}

impl Transport for MpiTransport<'_> {
    fn allocate(&mut self, staging: &Staging) -> Result<(), RunError> {
        let Some(library) = &mut self.library else {
            return self.messages.allocate(staging);
        };
        self.messages.allocate(&Staging {
            collective: Bytes(0),
            ..*staging
        })?;
        library.allocate(staging)
    }

    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        self.messages.start_exchange(task, exchange, memory)
    }

    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        match &mut self.library {
            Some(library) => library.start(task, collective, memory),
            None => self.messages.start_collective(task, collective, memory),
        }
    }

    fn advance(&mut self) {
        self.messages.advance();
        if let Some(library) = &mut self.library {
            library.advance();
        }
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        self.messages.poll(memory, done)?;
        match &mut self.library {
            Some(library) => library.poll(memory, done),
            None => Ok(()),
        }
    }

    fn wait(&mut self, limit: Duration) {
        match &mut self.library {
            // A pending collective ends no sleep.
            Some(library) if library.is_busy() => self.messages.wait(Duration::from_micros(20)),
            Some(_) | None => self.messages.wait(limit),
        }
    }

    fn missing(&self, task: TaskId) -> Vec<Rank> {
        let library = self.library.as_ref();
        let members = library.and_then(|library| library.missing(task));
        members.unwrap_or_else(|| self.messages.missing(task))
    }

    fn take_tally(&mut self) -> [u64; 4] {
        let mut tally = self.messages.take_tally();
        if let Some(library) = &mut self.library {
            let [started, bytes] = library.take_tally();
            tally[2] += started;
            tally[3] += bytes;
        }
        tally
    }
}
