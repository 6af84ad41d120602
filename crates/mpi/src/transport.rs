//! The transport of a rank over MPI.

use crate::collectives::LibraryCollectives;
use crate::mail::MpiMail;
use partita_program::{Collective, Exchange, Staging, TaskId};
use partita_run::{Memory, MessageTransport, RunError, Transport};
use partita_space::{Bytes, Rank};
use std::time::Duration;

/// Who does the collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collectives {
    /// Messages between ranks, sums taken in rank order: the bits are those of ranks that are threads.
    #[default]
    Ordered,
    /// Those of the MPI library: sums in whatever order it likes, equal up to rounding.
    Library,
}

/// Messages and collectives of a rank over MPI.
pub struct MpiTransport<'w> {
    messages: MessageTransport<MpiMail<'w>>,
    library: Option<LibraryCollectives>,
}

impl<'w> MpiTransport<'w> {
    pub(crate) fn new(
        messages: MessageTransport<MpiMail<'w>>,
        library: Option<LibraryCollectives>,
    ) -> Self {
        Self { messages, library }
    }

    /// Ends the sleep of this rank in `wait`, or its next one, from any thread: for sources that read
    /// behind the rank's back.
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
            // Messages are not alone in what may come.
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
