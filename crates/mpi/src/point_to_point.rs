//! Packets as point-to-point messages of MPI.

use crate::call::{Buffer, Completed, Mpi, MpiError, Raw};
use crate::control::{Control, lock, sorted_backwards};
use crate::guard::Timeout;
use partita_program::{BufferTransfer, Dtype, Program, Work};
use partita_run::{Key, MessageFault, MessageKind, Packet, PointToPoint};
use partita_space::Rank;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Polling interval of control messages.
const CONTROL_INTERVAL: Duration = Duration::from_millis(5);
/// Sleep between polls of a rank that has spun long enough.
const SLEEP: Duration = Duration::from_micros(50);
/// How long a rank that ends waits for its last sends to complete.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Maps messages to tags, densely so that they stay below the largest tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Exchanges and collectives are numbered below this.
    sequences: u64,
    /// Messages of an exchange between two ranks are numbered below this.
    parts: u64,
}

impl Tags {
    /// For all messages of these programs.
    pub(crate) fn of(programs: &[&Program]) -> Self {
        let mut tags = Self {
            sequences: 1,
            parts: 1,
        };
        let bodies = programs.iter().flat_map(|program| &program.bodies);
        for task in bodies.flat_map(|body| &body.tasks) {
            match &task.work {
                Work::Exchange(exchange) => {
                    tags.sequences = tags.sequences.max(u64::from(exchange.sequence) + 1);
                    let sends = exchange.sends.iter().map(|send| send.part);
                    let receives = exchange.receives.iter().map(|receive| receive.part);
                    let part = sends.chain(receives).max().unwrap_or_default();
                    tags.parts = tags.parts.max(u64::from(part) + 1);
                }
                Work::Collective(collective) => {
                    tags.sequences = tags.sequences.max(u64::from(collective.sequence) + 1);
                }
                Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {}
            }
        }
        tags
    }

    /// The largest tag in use.
    pub(crate) fn largest(self) -> u64 {
        self.sequences * (self.parts + MessageKind::ALL.len() as u64 - 1) - 1
    }

    fn tag(self, key: &Key) -> c_int {
        let (sequence, part) = (u64::from(key.sequence), u64::from(key.part));
        let kind = MessageKind::ALL.iter().position(|&kind| kind == key.kind);
        let tag = match kind.unwrap_or_default() as u64 {
            0 => sequence * self.parts + part,
            kind => self.sequences * (self.parts + kind - 1) + sequence,
        };
        tag as c_int
    }
}

/// Non-blocking sends and receives of packed elements. Receives are posted when their task starts.
pub(crate) struct MpiPointToPoint<'w> {
    mpi: Arc<Mpi>,
    comm: Raw,
    rank: Rank,
    tags: Tags,
    control: Arc<Mutex<Control>>,
    cancel: &'w AtomicBool,
    woken: Arc<AtomicBool>,
    /// How long a waiting rank polls before it sleeps.
    spin: Duration,
    /// Pending requests, and the packet of each.
    requests: Vec<Raw>,
    transfers: Vec<Transfer>,
    completed: Vec<Completed>,
    arrived: HashMap<Key, VecDeque<Packet>>,
    /// Packets of completed sends.
    sent: Vec<Packet>,
    fault: Option<MessageFault>,
    control_polled: Instant,
}

/// A packet that is being sent or received.
struct Transfer {
    key: Key,
    peer: Rank,
    packet: Packet,
    is_receive: bool,
}

impl<'w> MpiPointToPoint<'w> {
    pub(crate) fn new(
        mpi: Arc<Mpi>,
        comm: Raw,
        rank: Rank,
        tags: Tags,
        control: Arc<Mutex<Control>>,
        cancel: &'w AtomicBool,
        spin: Duration,
    ) -> Self {
        Self {
            mpi,
            comm,
            rank,
            tags,
            control,
            cancel,
            woken: Arc::default(),
            spin,
            requests: Vec::new(),
            transfers: Vec::new(),
            completed: Vec::new(),
            arrived: HashMap::new(),
            sent: Vec::new(),
            fault: None,
            control_polled: Instant::now(),
        }
    }

    /// Wakes this rank from `wait`, or its next one, from any thread.
    pub(crate) fn waker(&self) -> impl Fn() + Send + 'static {
        let woken = Arc::clone(&self.woken);
        move || woken.store(true, Ordering::Release)
    }

    fn start(&mut self, mut transfer: Transfer) {
        let tag = self.tags.tag(&transfer.key);
        let started = buffer(&self.mpi, &mut transfer.packet).and_then(|buffer| {
            // SAFETY: the packet's elements stay where they are and are not touched until the request
            // is removed from its list; dropping `self` before leaks them.
            let request = unsafe {
                if transfer.is_receive {
                    let from = transfer.peer as c_int;
                    self.mpi.irecv(buffer, from, tag, self.comm)
                } else {
                    self.mpi.isend(buffer, transfer.peer, tag, self.comm)
                }
            };
            Ok(request?)
        });
        match started {
            Ok(request) => {
                self.requests.push(request);
                self.transfers.push(transfer);
            }
            Err(error) => self.fail(&transfer, error.to_string()),
        }
    }

    fn fail(&mut self, transfer: &Transfer, reason: String) {
        self.fault.get_or_insert(MessageFault {
            key: transfer.key,
            peer: transfer.peer,
            reason,
        });
    }

    /// Progresses all requests; whether a message arrived or failed.
    fn progress(&mut self) -> bool {
        if self.control_polled.elapsed() > CONTROL_INTERVAL {
            self.poll_control();
        } else {
            // An error here is of a rank that is gone; ranks that wait for it will notice.
            let _ = lock(&self.control).progress_samples();
        }
        // SAFETY: completed requests are removed from the list, so those in it are alive.
        let tested = unsafe { self.mpi.test_some(&mut self.requests, &mut self.completed) };
        if let Err(error) = tested {
            self.fail_first(&error);
            return true;
        }
        let mut has_come = false;
        let mut completed = std::mem::take(&mut self.completed);
        // The reverse order is safe, although messages of one key must keep theirs: at most one message of
        // a key is pending.
        for done in sorted_backwards(&mut completed) {
            self.requests.swap_remove(done.index);
            let transfer = self.transfers.swap_remove(done.index);
            if done.error != 0 {
                let reason = self.mpi.error_text(done.error);
                self.fail(&transfer, reason);
                has_come = true;
            } else if transfer.is_receive {
                let queue = self.arrived.entry(transfer.key).or_default();
                queue.push_back(transfer.packet);
                has_come = true;
            } else {
                self.sent.push(transfer.packet);
            }
        }
        self.completed = completed;
        has_come
    }

    /// Blames the first receive: `MPI_Testsome` names no request when it fails as a whole.
    fn fail_first(&mut self, error: &MpiError) {
        let awaited = self.transfers.iter().find(|transfer| transfer.is_receive);
        if let Some(transfer) = awaited.or(self.transfers.first()) {
            let (key, peer, reason) = (transfer.key, transfer.peer, error.to_string());
            self.fault.get_or_insert(MessageFault { key, peer, reason });
        }
    }

    fn poll_control(&mut self) {
        self.control_polled = Instant::now();
        let mut control = lock(&self.control);
        // An error here is of a rank that is gone; ranks that wait for it will notice.
        let _ = control.progress();
        if !control.failures().is_empty() {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
}

/// A message that could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "{length} elements in a message; MPI counts up to {} of them",
        c_int::MAX
    )]
    TooLong { length: usize },
    #[error(transparent)]
    Mpi(#[from] MpiError),
}

pub(crate) fn buffer(mpi: &Mpi, packet: &mut Packet) -> Result<Buffer, StartError> {
    let (start, length) = (packet.start().cast(), packet.len());
    let datatype = match packet.dtype() {
        Dtype::F32 => mpi.float,
        Dtype::F64 => mpi.double,
        // Bytes that no operation of the library reads.
        Dtype::Bf16 | Dtype::F16 | Dtype::I16 => mpi.int16,
    };
    let count = c_int::try_from(length).map_err(|_| StartError::TooLong { length })?;
    Ok(Buffer {
        start,
        count,
        datatype,
    })
}

impl PointToPoint for MpiPointToPoint<'_> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn transfer(&self) -> BufferTransfer {
        BufferTransfer::Copied
    }

    fn expect(&mut self, key: Key, packet: Packet) {
        self.start(Transfer {
            key,
            peer: key.from,
            packet,
            is_receive: true,
        });
    }

    fn post(&mut self, to: Rank, key: Key, packet: Packet) {
        self.start(Transfer {
            key,
            peer: to,
            packet,
            is_receive: false,
        });
    }

    fn fetch(&mut self, returned: &mut Vec<Packet>) {
        self.progress();
        returned.append(&mut self.sent);
    }

    fn has(&self, key: &Key) -> bool {
        self.arrived.get(key).is_some_and(|queue| !queue.is_empty())
    }

    fn take(&mut self, key: &Key) -> Option<Packet> {
        self.arrived.get_mut(key)?.pop_front()
    }

    fn give_back(&mut self, owner: Rank, _packet: Packet) {
        panic!("a packet of rank {owner} was moved here");
    }

    /// MPI does not tell.
    fn closed(&self) -> &[Rank] {
        &[]
    }

    fn fault(&self) -> Option<&MessageFault> {
        self.fault.as_ref()
    }

    fn wait(&mut self, limit: Duration, for_packets: bool) {
        let start = Instant::now();
        loop {
            let has_come = self.progress() || self.woken.swap(false, Ordering::Acquire);
            let has_come = has_come || for_packets && !self.sent.is_empty();
            let waited = start.elapsed();
            if has_come || waited > limit || self.cancel.load(Ordering::Relaxed) {
                return;
            }
            if waited < self.spin {
                thread::yield_now();
            } else {
                thread::sleep(SLEEP);
            }
        }
    }
}

impl Drop for MpiPointToPoint<'_> {
    fn drop(&mut self) {
        // The last sends of a run may still be pending; a rank with a pending receive has failed.
        let mut draining = Timeout::start(DRAIN_LIMIT);
        let is_well = |it: &Self| {
            let waits = it.transfers.iter().any(|transfer| transfer.is_receive);
            !waits && it.fault.is_none() && !it.cancel.load(Ordering::Relaxed)
        };
        while !self.requests.is_empty() && is_well(self) && !draining.is_over() {
            self.progress();
            thread::yield_now();
        }
        // MPI may still read and write what has not completed.
        std::mem::forget(std::mem::take(&mut self.transfers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_dense_and_distinct() {
        let tags = Tags {
            sequences: 5,
            parts: 3,
        };
        let mut seen: Vec<c_int> = Vec::new();
        for kind in MessageKind::ALL {
            let parts = if kind == MessageKind::Exchange { 3 } else { 1 };
            for (sequence, part) in (0..5).flat_map(|s| (0..parts).map(move |p| (s, p))) {
                let from = 0;
                seen.push(tags.tag(&Key {
                    kind,
                    sequence,
                    from,
                    part,
                }));
            }
        }
        seen.sort_unstable();
        let all: Vec<c_int> = (0..=tags.largest() as c_int).collect();
        assert_eq!(seen, all);
    }
}
