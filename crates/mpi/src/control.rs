//! Control messages between ranks, on a communicator of their own.

use crate::call::{Buffer, Completed, Mpi, MpiError, Raw};
use partita_space::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::rc::Rc;

const HEAD: c_int = 1;
const BODY: c_int = 2;
/// Kind and length.
const HEAD_BYTES: usize = 16;
/// Longer bodies come in pieces, as a count is an `int`.
const PIECE_BYTES: usize = 1 << 30;

/// What a letter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sender lives.
    Pulse,
    /// Something that the receiver waits for.
    Parcel,
    /// The sender failed, and why.
    Failure,
    /// The sender lives, though another failed.
    Alive,
    /// The sender is about to end.
    Farewell,
}

impl Kind {
    const ALL: [Kind; 5] = [
        Kind::Pulse,
        Kind::Parcel,
        Kind::Failure,
        Kind::Alive,
        Kind::Farewell,
    ];
}

/// Letters between ranks, beside the messages of programs, over a communicator of their own.
///
/// A letter is a head of fixed size, for which a receive from anyone is always posted, and its body.
/// Nothing here blocks.
pub(crate) struct Control {
    mpi: Rc<Mpi>,
    comm: Raw,
    /// Of the next head.
    receive: Option<Receive>,
    bodies: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    completed: Vec<Completed>,
    /// Letters that each rank has sent.
    heard: Vec<u64>,
    parcels: HashMap<Rank, VecDeque<Vec<u8>>>,
    failures: BTreeMap<Rank, Vec<u8>>,
    /// Whether this rank has told the others of a failure of its own, which is an answer too.
    has_failed: bool,
    answered: BTreeSet<Rank>,
    departed: BTreeSet<Rank>,
}

/// A posted receive of a head.
struct Receive {
    head: Lent,
    request: Raw,
}

/// A body under way to this rank.
struct Incoming {
    from: Rank,
    kind: Kind,
    body: Lent,
    requests: Vec<Raw>,
}

/// A letter under way from this rank.
struct Outgoing {
    head: Lent,
    body: Lent,
    requests: Vec<Raw>,
}

/// Bytes that MPI reads or writes. Nothing of Rust refers to them, not even a box, which would claim
/// them for itself whenever it moves. They are leaked unless they are taken back.
struct Lent {
    start: *mut u8,
    length: usize,
}

impl Lent {
    fn new(bytes: Vec<u8>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        Self {
            start: bytes.cast(),
            length: bytes.len(),
        }
    }

    /// What MPI takes at a time, from a byte on.
    fn piece(&self, mpi: &Mpi, at: usize) -> Buffer {
        Buffer {
            start: self.start.wrapping_add(at).cast(),
            count: PIECE_BYTES.min(self.length - at) as c_int,
            datatype: mpi.byte,
        }
    }

    fn pieces(&self, mpi: &Mpi) -> impl Iterator<Item = Buffer> {
        let starts = (0..self.length).step_by(PIECE_BYTES);
        starts.map(|at| self.piece(mpi, at))
    }

    /// # Safety
    /// All requests on the bytes have completed.
    unsafe fn take(self) -> Vec<u8> {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.start, self.length);
        // SAFETY: they were a box of this length, and nobody else uses them any more.
        unsafe { Box::from_raw(bytes) }.into_vec()
    }
}

impl Control {
    pub(crate) fn new(mpi: Rc<Mpi>, comm: Raw, size: usize) -> Result<Self, MpiError> {
        let mut control = Self {
            mpi,
            comm,
            receive: None,
            bodies: Vec::new(),
            outgoing: Vec::new(),
            completed: Vec::new(),
            heard: vec![0; size],
            parcels: HashMap::new(),
            failures: BTreeMap::new(),
            has_failed: false,
            answered: BTreeSet::new(),
            departed: BTreeSet::new(),
        };
        control.listen()?;
        Ok(control)
    }

    fn listen(&mut self) -> Result<(), MpiError> {
        let head = Lent::new(vec![0; HEAD_BYTES]);
        let (buffer, any) = (head.piece(&self.mpi, 0), self.mpi.constants.any_source);
        // SAFETY: the head is lent until the request has completed.
        let request = unsafe { self.mpi.irecv(buffer, any, HEAD, self.comm)? };
        self.receive = Some(Receive { head, request });
        Ok(())
    }

    /// Sends a letter, whether or not it is read.
    pub(crate) fn send(&mut self, to: Rank, kind: Kind, body: &[u8]) -> Result<(), MpiError> {
        self.has_failed |= kind == Kind::Failure;
        let mut head = vec![0; HEAD_BYTES];
        head[0] = kind as u8;
        head[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let (head, body) = (Lent::new(head), Lent::new(body.to_vec()));
        let heads = head.pieces(&self.mpi).map(|piece| (HEAD, piece));
        let bodies = body.pieces(&self.mpi).map(|piece| (BODY, piece));
        let mut requests = Vec::new();
        for (tag, piece) in heads.chain(bodies) {
            // SAFETY: head and body are lent until all requests have completed.
            requests.push(unsafe { self.mpi.isend(piece, to, tag, self.comm)? });
        }
        self.outgoing.push(Outgoing {
            head,
            body,
            requests,
        });
        Ok(())
    }

    /// Takes over what has come, and answers who asks whether this rank lives.
    pub(crate) fn look(&mut self) -> Result<(), MpiError> {
        while let Some((from, head)) = self.take_head()? {
            self.open(from, &head)?;
            self.listen()?;
        }
        self.take_bodies()?;
        for mut letter in std::mem::take(&mut self.outgoing) {
            // After an error the receiver is gone, which others find out by waiting for it.
            if self.finish(&mut letter.requests).unwrap_or(true) {
                self.outgoing.push(letter);
            } else {
                // SAFETY: no request is left.
                unsafe {
                    letter.head.take();
                    letter.body.take();
                }
            }
        }
        Ok(())
    }

    /// Whether requests of a letter are left, after a test.
    fn finish(&mut self, requests: &mut Vec<Raw>) -> Result<bool, MpiError> {
        self.completed.clear();
        // SAFETY: what has completed is taken off the list below, so that the others are alive.
        unsafe { self.mpi.test_some(requests, &mut self.completed)? };
        for done in sorted_backwards(&mut self.completed) {
            requests.swap_remove(done.index);
        }
        Ok(!requests.is_empty())
    }

    /// A head that has come, and who sent it.
    fn take_head(&mut self) -> Result<Option<(Rank, Vec<u8>)>, MpiError> {
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
        let head = self
            .receive
            .take()
            .map(|receive| unsafe { receive.head.take() });
        Ok(head.map(|head| (source, head)))
    }

    fn open(&mut self, from: Rank, head: &[u8]) -> Result<(), MpiError> {
        self.heard[from] += 1;
        let kind = Kind::ALL[usize::from(head[0]).min(Kind::ALL.len() - 1)];
        let mut length = [0; 8];
        length.copy_from_slice(&head[8..]);
        let body = Lent::new(vec![0; u64::from_le_bytes(length) as usize]);
        let mut requests = Vec::new();
        for piece in body.pieces(&self.mpi) {
            // SAFETY: the body is lent until all requests have completed.
            requests.push(unsafe { self.mpi.irecv(piece, from as c_int, BODY, self.comm)? });
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
            let has_come = !self.finish(&mut incoming.requests)?;
            // Letters of one sender are delivered in their order.
            if has_come && !waiting.contains(&incoming.from) {
                self.deliver(incoming)?;
            } else {
                waiting.insert(incoming.from);
                self.bodies.push(incoming);
            }
        }
        Ok(())
    }

    /// Takes note of a letter whose requests have completed.
    fn deliver(&mut self, letter: Incoming) -> Result<(), MpiError> {
        let from = letter.from;
        assert!(letter.requests.is_empty(), "a letter that has not come");
        // SAFETY: no request is left.
        let body = unsafe { letter.body.take() };
        match letter.kind {
            Kind::Pulse => {}
            Kind::Parcel => self.parcels.entry(from).or_default().push_back(body),
            Kind::Failure => {
                self.failures.insert(from, body);
                self.answered.insert(from);
                if !self.has_failed {
                    // An error here is that of a rank that went away after it said why.
                    let _ = self.send(from, Kind::Alive, &[]);
                }
            }
            Kind::Alive => {
                self.answered.insert(from);
            }
            Kind::Farewell => {
                self.departed.insert(from);
            }
        }
        Ok(())
    }

    /// The oldest parcel of a rank.
    pub(crate) fn parcel(&mut self, from: Rank) -> Option<Vec<u8>> {
        self.parcels.get_mut(&from)?.pop_front()
    }

    /// What failed ranks say.
    pub(crate) fn failures(&self) -> &BTreeMap<Rank, Vec<u8>> {
        &self.failures
    }

    /// How many letters of a rank have come; one more is a sign of life.
    pub(crate) fn heard(&self, rank: Rank) -> u64 {
        self.heard[rank]
    }

    /// Ranks that answered since the first failure.
    pub(crate) fn answered(&self) -> &BTreeSet<Rank> {
        &self.answered
    }

    /// Ranks that said farewell.
    pub(crate) fn departed(&self) -> &BTreeSet<Rank> {
        &self.departed
    }

    /// Whether letters of this rank are still under way.
    pub(crate) fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Ends the receive that is always posted. True when it is gone.
    pub(crate) fn close(&mut self) -> Result<(), MpiError> {
        let Some(receive) = &self.receive else {
            return Ok(());
        };
        // SAFETY: a receive that has completed is taken, so that this one is alive.
        unsafe { self.mpi.cancel(receive.request) }
    }

    /// Whether the cancelled receive is gone.
    pub(crate) fn is_closed(&mut self) -> Result<bool, MpiError> {
        Ok(self.receive.is_none() || self.take_head()?.is_some())
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

    /// Under Miri this shows that MPI's pointers stay good while letters and the control move.
    #[test]
    fn letters_arrive_while_everything_moves() {
        let mpi = Rc::new(fake::mpi());
        let mut control = Control::new(Rc::clone(&mpi), mpi.comm_world, 1).unwrap();
        for body in [&b"first"[..], b"", b"third"] {
            control.send(0, Kind::Parcel, body).unwrap();
            control = *Box::new(control);
        }
        control.send(0, Kind::Failure, b"why").unwrap();
        assert!(control.is_sending());
        for _ in 0..12 {
            control.look().unwrap();
        }
        assert!(!control.is_sending());
        let parcels: Vec<_> = std::iter::from_fn(|| control.parcel(0)).collect();
        assert_eq!(parcels, [&b"first"[..], b"", b"third"]);
        assert_eq!(control.failures()[&0], b"why");
        control.close().unwrap();
        assert!(control.is_closed().unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "what stays under way is leaked, which Miri reports")]
    fn what_a_failed_call_leaves_under_way_is_not_freed() {
        let mpi = Rc::new(fake::mpi_that_sends(1));
        let mut control = Control::new(Rc::clone(&mpi), mpi.comm_world, 1).unwrap();
        // The head goes, the body does not.
        let error = control.send(0, Kind::Parcel, b"lost").unwrap_err();
        assert_eq!(error.call, "MPI_Isend");
        // The head is read by the receive that matches it now.
        let error = control.look();
        assert!(error.is_ok(), "{error:?}");
        assert_ne!(control.heard(0), 0);
        drop(control);
    }
}
