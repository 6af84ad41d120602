use crate::call::{Completed, Mpi, Raw};
use crate::control::sorted_backwards;
use crate::mail::{MpiMail, buffer};
use partita_program::{Collective, CollectiveKind, Dtype, Exchange, TaskId, View};
use partita_run::{Memory, MessageTransport, Packet, RunError, Transport};
use partita_space::{AxisSet, Rank};
use std::collections::HashMap;
use std::ffi::c_int;
use std::rc::Rc;
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
        self.messages.mail().waker()
    }
}

impl Transport for MpiTransport<'_> {
    fn start_exchange(
        &mut self,
        task: TaskId,
        exchange: &Exchange,
        memory: &Memory<'_>,
    ) -> Result<(), RunError> {
        self.messages.start_exchange(task, exchange, memory)
    }

    fn start_collective(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<(), RunError> {
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
            tally[2] += std::mem::take(&mut library.started);
            tally[3] += std::mem::take(&mut library.bytes);
        }
        tally
    }
}

/// The non-blocking collectives of the library, on a communicator for each set of axes.
pub(crate) struct LibraryCollectives {
    mpi: Rc<Mpi>,
    rank: Rank,
    groups: HashMap<AxisSet, Group>,
    requests: Vec<Raw>,
    pending: Vec<Pending>,
    finished: Vec<Pending>,
    completed: Vec<Completed>,
    fault: Option<(Pending, String)>,
    free: Vec<Packet>,
    started: u64,
    bytes: u64,
}

struct Group {
    comm: Raw,
    members: Vec<Rank>,
}

/// A collective under way.
struct Pending {
    task: TaskId,
    sequence: u32,
    others: Vec<Rank>,
    /// What the library only reads.
    source: Option<Packet>,
    /// What the library writes.
    target: Packet,
    /// Where the parts of the target go, one after the other.
    views: Vec<View>,
    /// Lengths and starts of the parts, which the library reads until the end.
    counts: Vec<c_int>,
    starts: Vec<c_int>,
}

impl LibraryCollectives {
    pub(crate) fn new(mpi: Rc<Mpi>, rank: Rank) -> Self {
        Self {
            mpi,
            rank,
            groups: HashMap::new(),
            requests: Vec::new(),
            pending: Vec::new(),
            finished: Vec::new(),
            completed: Vec::new(),
            fault: None,
            free: Vec::new(),
            started: 0,
            bytes: 0,
        }
    }

    pub(crate) fn add(&mut self, axes: AxisSet, comm: Raw, members: Vec<Rank>) {
        self.groups.insert(axes, Group { comm, members });
    }

    fn packed(&mut self, memory: &Memory<'_>, view: &View) -> Packet {
        let dtype = memory.body().buffer(view.buffer).dtype;
        let mut packet = Packet::take_from(&mut self.free, dtype, view.volume());
        packet.pack(memory, view);
        packet
    }

    fn blank(&mut self, dtype: Dtype, elements: usize) -> Packet {
        let mut packet = Packet::take_from(&mut self.free, dtype, elements);
        packet.resize(elements);
        packet
    }

    fn start(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<(), RunError> {
        let group = self.groups.get(&collective.group);
        let group = group.unwrap_or_else(|| panic!("no communicator for {}", collective.group));
        let (comm, members) = (group.comm, group.members.clone());
        let mut pending = match &collective.kind {
            CollectiveKind::AllReduce { view } => Pending {
                task,
                sequence: collective.sequence,
                others: Vec::new(),
                source: None,
                target: self.packed(memory, view),
                views: vec![*view],
                counts: Vec::new(),
                starts: Vec::new(),
            },
            CollectiveKind::AllGather { source, targets } => {
                let source = self.packed(memory, source);
                let lengths = targets.iter().map(View::volume);
                let target = self.blank(source.dtype(), lengths.sum());
                Pending {
                    task,
                    sequence: collective.sequence,
                    others: Vec::new(),
                    source: Some(source),
                    target,
                    views: targets.clone(),
                    counts: Vec::new(),
                    starts: Vec::new(),
                }
            }
        };
        pending.others = members
            .into_iter()
            .filter(|&member| member != self.rank)
            .collect();
        let given = pending.source.as_ref().unwrap_or(&pending.target).bytes();
        self.started += 1;
        self.bytes += given;
        let request = self.call(&mut pending, comm);
        let request = request.map_err(|reason| self.failed(&pending, memory, reason))?;
        self.requests.push(request);
        self.pending.push(pending);
        Ok(())
    }

    fn call(&self, pending: &mut Pending, comm: Raw) -> Result<Raw, String> {
        let target = buffer(&self.mpi, &mut pending.target)?;
        let Some(source) = &mut pending.source else {
            // SAFETY: the packet is kept, and not read, until the request has completed, or leaked.
            let request = unsafe { self.mpi.iallreduce(target, comm) };
            return request.map_err(|error| error.to_string());
        };
        let source = buffer(&self.mpi, source)?;
        let mut start = 0;
        for view in &pending.views {
            pending.counts.push(view.volume() as c_int);
            pending.starts.push(start);
            start += view.volume() as c_int;
        }
        let (counts, starts) = (&pending.counts, &pending.starts);
        // SAFETY: as above; the vectors' elements stay in place when the vectors move.
        let request = unsafe {
            self.mpi
                .iallgatherv(source, target.start, counts, starts, comm)
        };
        request.map_err(|error| error.to_string())
    }

    fn advance(&mut self) {
        let tested = self.mpi.test_some(&mut self.requests, &mut self.completed);
        if let Err(error) = tested {
            // A test that fails as a whole names no request; the first one stands for all.
            self.requests.swap_remove(0);
            let first = self.pending.swap_remove(0);
            self.fault.get_or_insert((first, error.to_string()));
            return;
        }
        let mut completed = std::mem::take(&mut self.completed);
        for done in sorted_backwards(&mut completed) {
            self.requests.swap_remove(done.index);
            let pending = self.pending.swap_remove(done.index);
            if done.error == 0 {
                self.finished.push(pending);
            } else {
                let reason = self.mpi.error_text(done.error);
                self.fault.get_or_insert((pending, reason));
            }
        }
        self.completed = completed;
    }

    fn poll(&mut self, memory: &Memory<'_>, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        self.advance();
        if let Some((pending, reason)) = self.fault.take() {
            let error = self.failed(&pending, memory, reason);
            self.pending.push(pending);
            return Err(error);
        }
        for mut pending in std::mem::take(&mut self.finished) {
            let mut start = 0;
            for view in &pending.views {
                let end = start + view.volume();
                let mut part =
                    Packet::take_from(&mut self.free, pending.target.dtype(), end - start);
                part.copy_from(&pending.target, start..end);
                part.unpack(memory, view, false);
                self.free.push(part);
                start = end;
            }
            self.free.extend(pending.source.take());
            done.push(pending.task);
            self.free.push(pending.target);
        }
        Ok(())
    }

    fn failed(&self, pending: &Pending, memory: &Memory<'_>, reason: String) -> RunError {
        let task = &memory.body().tasks[pending.task.0 as usize];
        RunError::Message {
            rank: self.rank,
            // A collective does not say with whom it failed.
            peer: pending.others.first().copied().unwrap_or(self.rank),
            work: task.work.name().to_owned(),
            layer: task.origin.layer.clone(),
            sequence: pending.sequence,
            reason,
        }
    }

    fn is_busy(&self) -> bool {
        !self.requests.is_empty() || !self.finished.is_empty()
    }

    /// All other members, as the library does not tell whom it waits for.
    fn missing(&self, task: TaskId) -> Option<Vec<Rank>> {
        let pending = self.pending.iter().find(|pending| pending.task == task)?;
        Some(pending.others.clone())
    }
}

impl Drop for LibraryCollectives {
    fn drop(&mut self) {
        // MPI may still read and write what has not completed.
        std::mem::forget(std::mem::take(&mut self.pending));
        std::mem::forget(self.fault.take());
    }
}
