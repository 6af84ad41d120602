//! Control messages between ranks, beside the messages of programs: heartbeats, data, failures, shutdown.

use crate::call::{Buffer, Completed, Mpi, MpiError, Raw};
use partita_run::SampleMessages;
use partita_space::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const HEADER_TAG: c_int = 1;
const BODY_TAG: c_int = 2;
/// A control message's kind and length.
const HEADER_BYTES: usize = 16;
/// Longer bodies are sent in chunks, because MPI counts are of type `int`.
const CHUNK_BYTES: usize = 1 << 30;

/// The kind of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// Sent periodically by a rank that works long.
    Heartbeat,
    /// The payload of a broadcast or gather.
    Data,
    /// The sender failed; the body is the reason.
    Failure,
    /// The answer to a failure by a rank that has not failed.
    Alive,
    /// The sender will send no more control messages.
    Shutdown,
}

impl ControlKind {
    const ALL: [ControlKind; 5] = [
        ControlKind::Heartbeat,
        ControlKind::Data,
        ControlKind::Failure,
        ControlKind::Alive,
        ControlKind::Shutdown,
    ];
}

/// Sends and receives control messages over a communicator of its own. Nothing here blocks.
///
/// A message is a header of fixed size, for which a receive from any source is always posted, and a body.
pub(crate) struct Control {
    mpi: Arc<Mpi>,
    comm: Raw,
    /// The posted receive of the next header.
    receive: Option<Receive>,
    bodies: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    completed: Vec<Completed>,
    /// Control messages received from each rank.
    received: Vec<u64>,
    data: HashMap<Rank, VecDeque<Vec<u8>>>,
    failures: BTreeMap<Rank, Vec<u8>>,
    /// Whether this rank has sent its own failure, which also answers those of others.
    has_failed: bool,
    answered: BTreeSet<Rank>,
    shut_down: BTreeSet<Rank>,
    /// Messages of the sample store, which are carried wherever control messages are.
    samples: Option<SampleTraffic>,
}

/// Messages between sample stores, on a communicator of their own so that they never delay control messages.
struct SampleTraffic {
    control: Box<Control>,
    messages: Box<dyn SampleMessages>,
}

impl SampleTraffic {
    fn progress(&mut self) -> Result<(), MpiError> {
        while let Some((to, message)) = self.messages.next() {
            self.control.send(to, ControlKind::Data, message)?;
        }
        self.control.progress()?;
        for (from, messages) in &mut self.control.data {
            for message in messages.drain(..) {
                self.messages.deliver(*from, message);
            }
        }
        Ok(())
    }
}

/// A posted receive of a header.
struct Receive {
    header: RequestBuffer,
    request: Raw,
}

/// A body that is being received.
struct Incoming {
    from: Rank,
    kind: ControlKind,
    body: RequestBuffer,
    requests: Vec<Raw>,
}

/// A message that is being sent.
struct Outgoing {
    header: RequestBuffer,
    body: RequestBuffer,
    requests: Vec<Raw>,
}

/// Bytes that requests of MPI read or write. They are held by a raw pointer: moving a `Box` would assert
/// unique access to them. They leak unless they are taken back.
struct RequestBuffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: whoever holds the pointer owns the bytes, as a box does.
unsafe impl Send for RequestBuffer {}

impl RequestBuffer {
    fn new(bytes: Vec<u8>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        Self {
            start: bytes.cast(),
            length: bytes.len(),
        }
    }

    /// The chunk that starts at byte `at`.
    fn chunk(&self, mpi: &Mpi, at: usize) -> Buffer {
        Buffer {
            start: self.start.wrapping_add(at).cast(),
            count: CHUNK_BYTES.min(self.length - at) as c_int,
            datatype: mpi.byte,
        }
    }

    fn chunks(&self, mpi: &Mpi) -> impl Iterator<Item = Buffer> {
        let starts = (0..self.length).step_by(CHUNK_BYTES);
        starts.map(|at| self.chunk(mpi, at))
    }

    /// # Safety
    /// All requests on the bytes have completed.
    unsafe fn take(self) -> Vec<u8> {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.start, self.length);
        // SAFETY: they were a box of this length, and nobody else uses them any more.
        unsafe { Box::from_raw(bytes) }.into_vec()
    }
}

/// The control messages, which the world and its transports share. They are on one thread at a time.
pub(crate) fn lock<T>(control: &Mutex<T>) -> MutexGuard<'_, T> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    pub(crate) fn new(mpi: Arc<Mpi>, comm: Raw, size: usize) -> Result<Self, MpiError> {
        let mut control = Self {
            mpi,
            comm,
            receive: None,
            bodies: Vec::new(),
            outgoing: Vec::new(),
            completed: Vec::new(),
            received: vec![0; size],
            data: HashMap::new(),
            failures: BTreeMap::new(),
            has_failed: false,
            answered: BTreeSet::new(),
            shut_down: BTreeSet::new(),
            samples: None,
        };
        control.post_header_receive()?;
        Ok(control)
    }

    /// Carries the messages of a sample store from now on, over a communicator that all ranks made for it.
    pub(crate) fn carry(
        &mut self,
        comm: Raw,
        messages: Box<dyn SampleMessages>,
    ) -> Result<(), MpiError> {
        let control = Self::new(Arc::clone(&self.mpi), comm, self.received.len())?;
        self.samples = Some(SampleTraffic {
            control: Box::new(control),
            messages,
        });
        Ok(())
    }

    /// Progresses the messages of the sample store.
    pub(crate) fn progress_samples(&mut self) -> Result<(), MpiError> {
        match &mut self.samples {
            Some(samples) => samples.progress(),
            None => Ok(()),
        }
    }

    fn post_header_receive(&mut self) -> Result<(), MpiError> {
        let header = RequestBuffer::new(vec![0; HEADER_BYTES]);
        let (buffer, any) = (header.chunk(&self.mpi, 0), self.mpi.constants.any_source);
        // SAFETY: the header is lent until the request has completed.
        let request = unsafe { self.mpi.irecv(buffer, any, HEADER_TAG, self.comm)? };
        self.receive = Some(Receive { header, request });
        Ok(())
    }

    /// Sends a message, whether or not it is read.
    pub(crate) fn send(
        &mut self,
        to: Rank,
        kind: ControlKind,
        body: impl Into<Vec<u8>>,
    ) -> Result<(), MpiError> {
        let body = body.into();
        self.has_failed |= kind == ControlKind::Failure;
        let mut header = vec![0; HEADER_BYTES];
        header[0] = kind as u8;
        header[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let (header, body) = (RequestBuffer::new(header), RequestBuffer::new(body));
        let headers = header.chunks(&self.mpi).map(|chunk| (HEADER_TAG, chunk));
        let bodies = body.chunks(&self.mpi).map(|chunk| (BODY_TAG, chunk));
        let mut requests = Vec::new();
        for (tag, chunk) in headers.chain(bodies) {
            // SAFETY: header and body are lent until all requests have completed.
            requests.push(unsafe { self.mpi.isend(chunk, to, tag, self.comm)? });
        }
        self.outgoing.push(Outgoing {
            header,
            body,
            requests,
        });
        Ok(())
    }

    /// Progresses all sends and receives, and answers failures of others.
    pub(crate) fn progress(&mut self) -> Result<(), MpiError> {
        // Control messages move on where those of the sample store cannot.
        let samples = self.progress_samples();
        self.progress_control()?;
        samples
    }

    fn progress_control(&mut self) -> Result<(), MpiError> {
        while let Some((from, header)) = self.take_header()? {
            self.post_body_receive(from, &header)?;
            self.post_header_receive()?;
        }
        self.take_bodies()?;
        for mut message in std::mem::take(&mut self.outgoing) {
            // After an error the receiver is gone; ranks that wait for it will notice.
            if self.finish(&mut message.requests).unwrap_or(true) {
                self.outgoing.push(message);
            } else {
                // SAFETY: no request is left.
                unsafe {
                    message.header.take();
                    message.body.take();
                }
            }
        }
        Ok(())
    }

    /// Tests the requests of a message; whether some are still pending.
    fn finish(&mut self, requests: &mut Vec<Raw>) -> Result<bool, MpiError> {
        self.completed.clear();
        // SAFETY: completed requests are removed below, so those in the list are alive.
        unsafe { self.mpi.test_some(requests, &mut self.completed)? };
        for done in sorted_backwards(&mut self.completed) {
            requests.swap_remove(done.index);
        }
        Ok(!requests.is_empty())
    }

    /// A received header and its sender.
    fn take_header(&mut self) -> Result<Option<(Rank, Vec<u8>)>, MpiError> {
        let Some(receive) = &self.receive else {
            return Ok(None);
        };
        self.completed.clear();
        let mut request = [receive.request];
        // SAFETY: a receive that has completed is taken below, so that this one is alive.
        unsafe { self.mpi.test_some(&mut request, &mut self.completed)? };
        let Some(source) = self.completed.first().map(|done| done.source as usize) else {
            return Ok(None);
        };
        // SAFETY: its only request has completed.
        let header = self
            .receive
            .take()
            .map(|receive| unsafe { receive.header.take() });
        Ok(header.map(|header| (source, header)))
    }

    fn post_body_receive(&mut self, from: Rank, header: &[u8]) -> Result<(), MpiError> {
        self.received[from] += 1;
        let kind = ControlKind::ALL[usize::from(header[0]).min(ControlKind::ALL.len() - 1)];
        let mut length = [0; 8];
        length.copy_from_slice(&header[8..]);
        let body = RequestBuffer::new(vec![0; u64::from_le_bytes(length) as usize]);
        let mut requests = Vec::new();
        for chunk in body.chunks(&self.mpi) {
            // SAFETY: the body is lent until all requests have completed.
            requests.push(unsafe { self.mpi.irecv(chunk, from as c_int, BODY_TAG, self.comm)? });
        }
        self.bodies.push(Incoming {
            from,
            kind,
            body,
            requests,
        });
        Ok(())
    }

    fn take_bodies(&mut self) -> Result<(), MpiError> {
        let mut waiting = BTreeSet::new();
        for mut incoming in std::mem::take(&mut self.bodies) {
            let is_complete = !self.finish(&mut incoming.requests)?;
            // Messages of one sender are delivered in order.
            if is_complete && !waiting.contains(&incoming.from) {
                self.deliver(incoming)?;
            } else {
                waiting.insert(incoming.from);
                self.bodies.push(incoming);
            }
        }
        Ok(())
    }

    /// Handles a message whose requests have completed.
    fn deliver(&mut self, message: Incoming) -> Result<(), MpiError> {
        let from = message.from;
        assert!(
            message.requests.is_empty(),
            "a message with pending requests"
        );
        // SAFETY: no request is left.
        let body = unsafe { message.body.take() };
        match message.kind {
            ControlKind::Heartbeat => {}
            ControlKind::Data => self.data.entry(from).or_default().push_back(body),
            ControlKind::Failure => {
                self.failures.insert(from, body);
                self.answered.insert(from);
                if !self.has_failed {
                    // A rank may be gone once it has sent its failure.
                    let _ = self.send(from, ControlKind::Alive, []);
                }
            }
            ControlKind::Alive => {
                self.answered.insert(from);
            }
            ControlKind::Shutdown => {
                self.shut_down.insert(from);
            }
        }
        Ok(())
    }

    /// Takes the oldest data message of a rank.
    pub(crate) fn take_data(&mut self, from: Rank) -> Option<Vec<u8>> {
        self.data.get_mut(&from)?.pop_front()
    }

    /// The reasons of the ranks that have failed.
    pub(crate) fn failures(&self) -> &BTreeMap<Rank, Vec<u8>> {
        &self.failures
    }

    /// Number of control messages received from a rank; an increase shows that it lives.
    pub(crate) fn received(&self, rank: Rank) -> u64 {
        self.received[rank]
    }

    /// Ranks that have answered a failure.
    pub(crate) fn answered(&self) -> &BTreeSet<Rank> {
        &self.answered
    }

    /// Ranks that have sent their shutdown message.
    pub(crate) fn shut_down(&self) -> &BTreeSet<Rank> {
        &self.shut_down
    }

    /// Whether sends of this rank are pending.
    pub(crate) fn is_sending(&self) -> bool {
        let samples = self.samples.as_ref();
        !self.outgoing.is_empty() || samples.is_some_and(|it| it.control.is_sending())
    }

    /// Its communicators.
    pub(crate) fn comms(&self) -> Vec<Raw> {
        let of_samples = self.samples.as_ref().map(|samples| samples.control.comm);
        of_samples.into_iter().chain([self.comm]).collect()
    }

    /// Cancels the posted receives.
    pub(crate) fn close(&mut self) -> Result<(), MpiError> {
        if let Some(samples) = &mut self.samples {
            samples.control.close()?;
        }
        let Some(receive) = &self.receive else {
            return Ok(());
        };
        // SAFETY: a receive that has completed is taken, so that this one is alive.
        unsafe { self.mpi.cancel(receive.request) }
    }

    /// Whether the cancelled receives have completed.
    pub(crate) fn is_closed(&mut self) -> Result<bool, MpiError> {
        let samples_closed = match &mut self.samples {
            Some(samples) => samples.control.is_closed()?,
            None => true,
        };
        Ok((self.receive.is_none() || self.take_header()?.is_some()) && samples_closed)
    }
}

/// Completed requests from the last to the first, so that each can be swapped out of its list.
pub(crate) fn sorted_backwards(completed: &mut Vec<Completed>) -> std::vec::Drain<'_, Completed> {
    completed.sort_unstable_by_key(|done| std::cmp::Reverse(done.index));
    completed.drain(..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    /// Under Miri this shows that MPI's pointers stay valid while `Control` moves.
    #[test]
    fn messages_arrive_while_the_control_moves() {
        let mpi = Arc::new(fake::mpi());
        let mut control = Control::new(Arc::clone(&mpi), mpi.comm_world, 1).unwrap();
        for body in [&b"first"[..], b"", b"third"] {
            control.send(0, ControlKind::Data, body).unwrap();
            control = *Box::new(control);
        }
        control.send(0, ControlKind::Failure, b"why").unwrap();
        assert!(control.is_sending());
        for _ in 0..12 {
            control.progress().unwrap();
        }
        assert!(!control.is_sending());
        let data: Vec<_> = std::iter::from_fn(|| control.take_data(0)).collect();
        assert_eq!(data, [&b"first"[..], b"", b"third"]);
        assert_eq!(control.failures()[&0], b"why");
        control.close().unwrap();
        assert!(control.is_closed().unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "pending buffers are leaked, which Miri reports")]
    fn pending_buffers_are_not_freed_after_a_failed_call() {
        let mpi = Arc::new(fake::mpi_that_sends(1));
        let mut control = Control::new(Arc::clone(&mpi), mpi.comm_world, 1).unwrap();
        // The header goes, the body does not.
        let error = control.send(0, ControlKind::Data, b"lost").unwrap_err();
        assert_eq!(error.call, "MPI_Isend");
        // The header is read by the receive that matches it now.
        let error = control.progress();
        assert!(error.is_ok(), "{error:?}");
        assert_ne!(control.received(0), 0);
        drop(control);
    }
}
