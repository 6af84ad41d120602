use crate::call::{Buffer, Completed, Mpi, MpiError, Raw};
use partita_space::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::rc::Rc;
use std::time::Instant;

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
    /// Stays in place while a receive is posted into it.
    head: Box<[u8; HEAD_BYTES]>,
    receive: Raw,
    bodies: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    completed: Vec<Completed>,
    /// When each rank was last heard.
    heard: Vec<Option<Instant>>,
    parcels: HashMap<Rank, VecDeque<Vec<u8>>>,
    failures: BTreeMap<Rank, Vec<u8>>,
    /// Whether this rank has told the others of a failure of its own, which is an answer too.
    has_failed: bool,
    answered: BTreeSet<Rank>,
    departed: BTreeSet<Rank>,
}

/// A body under way to this rank.
struct Incoming {
    from: Rank,
    kind: Kind,
    body: Vec<u8>,
    requests: Vec<Raw>,
}

/// A letter under way from this rank.
struct Outgoing {
    _head: Box<[u8; HEAD_BYTES]>,
    _body: Vec<u8>,
    requests: Vec<Raw>,
}

impl Control {
    pub(crate) fn new(mpi: Rc<Mpi>, comm: Raw, size: usize) -> Result<Self, MpiError> {
        let mut control = Self {
            mpi,
            comm,
            head: Box::new([0; HEAD_BYTES]),
            receive: 0,
            bodies: Vec::new(),
            outgoing: Vec::new(),
            completed: Vec::new(),
            heard: vec![None; size],
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
        let buffer = bytes(&self.mpi, &mut self.head[..]);
        let any = self.mpi.constants.any_source;
        // SAFETY: the head is boxed and read only after the request has completed; a control that is
        // dropped before leaks it.
        self.receive = unsafe { self.mpi.irecv(buffer, any, HEAD, self.comm)? };
        Ok(())
    }

    /// Sends a letter, whether or not it is read.
    pub(crate) fn send(&mut self, to: Rank, kind: Kind, body: &[u8]) -> Result<(), MpiError> {
        self.has_failed |= kind == Kind::Failure;
        let mut head = Box::new([0; HEAD_BYTES]);
        head[0] = kind as u8;
        head[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let mut body = body.to_vec();
        let mut requests = Vec::new();
        let head_buffer = bytes(&self.mpi, &mut head[..]);
        // SAFETY: head and body are kept until all requests have completed, or leaked.
        unsafe {
            requests.push(self.mpi.isend(head_buffer, to, HEAD, self.comm)?);
            for piece in body.chunks_mut(PIECE_BYTES) {
                let buffer = bytes(&self.mpi, piece);
                requests.push(self.mpi.isend(buffer, to, BODY, self.comm)?);
            }
        }
        self.outgoing.push(Outgoing {
            _head: head,
            _body: body,
            requests,
        });
        Ok(())
    }

    /// Takes over what has come, and answers who asks whether this rank lives.
    pub(crate) fn look(&mut self) -> Result<(), MpiError> {
        while let Some(from) = self.take_head()? {
            self.open(from)?;
            self.listen()?;
        }
        self.take_bodies()?;
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let mut failed = None;
        outgoing.retain_mut(|letter| {
            self.finish(&mut letter.requests).unwrap_or_else(|error| {
                // The receiver is gone, which others find out by waiting for it.
                failed.get_or_insert(error);
                true
            })
        });
        self.outgoing.append(&mut outgoing);
        Ok(())
    }

    /// Whether requests are left, after a test.
    fn finish(&mut self, requests: &mut Vec<Raw>) -> Result<bool, MpiError> {
        self.completed.clear();
        self.mpi.test_some(requests, &mut self.completed)?;
        for done in sorted_backwards(&mut self.completed) {
            requests.swap_remove(done.index);
        }
        Ok(!requests.is_empty())
    }

    fn take_head(&mut self) -> Result<Option<Rank>, MpiError> {
        self.completed.clear();
        let mut request = [self.receive];
        self.mpi.test_some(&mut request, &mut self.completed)?;
        let done = self.completed.first();
        Ok(done.map(|done| done.source as usize))
    }

    fn open(&mut self, from: Rank) -> Result<(), MpiError> {
        self.heard[from] = Some(Instant::now());
        let kind = Kind::ALL[usize::from(self.head[0]).min(Kind::ALL.len() - 1)];
        let mut length = [0; 8];
        length.copy_from_slice(&self.head[8..]);
        let mut body = vec![0; u64::from_le_bytes(length) as usize];
        let mut requests = Vec::new();
        for piece in body.chunks_mut(PIECE_BYTES) {
            let buffer = bytes(&self.mpi, piece);
            // SAFETY: the body is kept, and not read, until all requests have completed, or leaked.
            requests.push(unsafe { self.mpi.irecv(buffer, from as c_int, BODY, self.comm)? });
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

    fn deliver(&mut self, letter: Incoming) -> Result<(), MpiError> {
        let from = letter.from;
        match letter.kind {
            Kind::Pulse => {}
            Kind::Parcel => self.parcels.entry(from).or_default().push_back(letter.body),
            Kind::Failure => {
                self.failures.insert(from, letter.body);
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

    /// When a rank was last heard.
    pub(crate) fn heard(&self, rank: Rank) -> Option<Instant> {
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
        self.mpi.cancel(self.receive)
    }

    /// Whether the cancelled receive is gone.
    pub(crate) fn is_closed(&mut self) -> Result<bool, MpiError> {
        Ok(self.take_head()?.is_some())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // MPI may still write to what is under way; the process is about to end.
        std::mem::forget(std::mem::replace(&mut self.head, Box::new([0; HEAD_BYTES])));
        std::mem::forget(std::mem::take(&mut self.bodies));
        std::mem::forget(std::mem::take(&mut self.outgoing));
    }
}

fn bytes(mpi: &Mpi, bytes: &mut [u8]) -> Buffer {
    Buffer {
        start: bytes.as_mut_ptr().cast(),
        count: bytes.len() as c_int,
        datatype: mpi.byte,
    }
}

/// Completed requests from the last to the first, so that each can be swapped out of its list.
pub(crate) fn sorted_backwards(completed: &mut Vec<Completed>) -> std::vec::Drain<'_, Completed> {
    completed.sort_unstable_by_key(|done| std::cmp::Reverse(done.index));
    completed.drain(..)
}
