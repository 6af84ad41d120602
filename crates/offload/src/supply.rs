//! The side that takes pieces: what a rank has in place of its own reading.

use crate::address::{Address, Stream};
use crate::loader::PieceHead;
use crate::message::{invalid, receive, send};
use partita_input::{PieceRequest, PieceSupply, PieceValues};
use std::collections::VecDeque;
use std::io::{self, BufReader};
use std::time::Duration;

/// The loaders of a rank among all: ranks share loaders in blocks, or each has several.
///
/// Errors: none; every rank has a loader, and every loader a rank, where there is one at all.
pub fn loaders_of(rank: usize, ranks: usize, loaders: usize) -> Vec<usize> {
    if loaders == 0 {
        return Vec::new();
    }
    if loaders <= ranks {
        return vec![rank * loaders / ranks];
    }
    (0..loaders).filter(|one| one % ranks == rank).collect()
}

/// Calls of a rank about a loader that it lost.
pub type Warn = Box<dyn Fn(String) + Send>;

/// The loaders of a rank. Pieces are requested ahead, in the order in which the rank will need them, and taken in that
/// order. At most `credits` pieces are requested of a loader and not yet taken.
///
/// A rank may ask for a piece other than the next one of that order: it then gets that one, and the others are requested
/// anew. A lost loader is reported once; the others go on in its place.
pub struct Loaders {
    rank: usize,
    connections: Vec<Connection>,
    upcoming: Box<dyn Iterator<Item = PieceRequest> + Send>,
    /// The next ones, before those of `upcoming`.
    planned: VecDeque<PieceRequest>,
    /// Requested pieces with their connection.
    requested: VecDeque<(PieceRequest, usize)>,
    credits: usize,
    /// The connection of the next request.
    turn: usize,
    /// How long a piece may take.
    patience: Duration,
    warn: Warn,
}

struct Connection {
    address: Address,
    input: BufReader<Stream>,
    output: Stream,
}

/// A connection that failed.
struct Lost {
    connection: usize,
    error: io::Error,
}

impl Loaders {
    /// The loaders of a rank, joined already. `upcoming` are the pieces that the rank will probably need, in order. A
    /// loader that needs longer than `patience` for a piece is lost.
    ///
    /// Errors: those of the connections.
    pub fn new(
        rank: usize,
        joined: Vec<(Address, Stream)>,
        (credits, patience): (usize, Duration),
        upcoming: Box<dyn Iterator<Item = PieceRequest> + Send>,
        warn: Warn,
    ) -> io::Result<Self> {
        let connection = |(address, stream): (Address, Stream)| {
            Ok::<_, io::Error>(Connection {
                address,
                output: stream.try_clone()?,
                input: BufReader::new(stream),
            })
        };
        Ok(Self {
            rank,
            connections: joined
                .into_iter()
                .map(connection)
                .collect::<Result<_, _>>()?,
            upcoming,
            planned: VecDeque::new(),
            requested: VecDeque::new(),
            credits,
            turn: 0,
            patience,
            warn,
        })
    }

    fn take(&mut self, piece: &PieceRequest, values: &mut PieceValues) -> Result<(), Lost> {
        let is_next = self
            .requested
            .front()
            .is_some_and(|(next, _)| next == piece);
        let mut is_planned = is_next;
        if !is_next {
            self.drain()?;
            is_planned = self.next_planned() == Some(piece);
            if is_planned {
                self.planned.pop_front();
            }
            self.request(piece.clone())?;
        }
        if is_planned {
            self.request_ahead()?;
        }
        let at = self.requested.front().map_or(0, |&(_, at)| at);
        let taken = self.connections[at].take(piece, values);
        taken.map_err(|error| Lost {
            connection: at,
            error,
        })?;
        self.requested.pop_front();
        // The loader goes on while the rank computes.
        if is_planned {
            self.request_ahead()
        } else {
            Ok(())
        }
    }

    /// The next piece of the order that is not requested.
    fn next_planned(&mut self) -> Option<&PieceRequest> {
        if self.planned.is_empty() {
            self.planned.extend(self.upcoming.next());
        }
        self.planned.front()
    }

    fn request(&mut self, piece: PieceRequest) -> Result<(), Lost> {
        let connection = self.turn % self.connections.len();
        self.turn = connection + 1;
        let sent = send(&mut self.connections[connection].output, &piece);
        self.requested.push_back((piece, connection));
        sent.map_err(|error| Lost { connection, error })
    }

    /// Uses all credits.
    fn request_ahead(&mut self) -> Result<(), Lost> {
        while self.requested.len() < self.credits * self.connections.len()
            && let Some(next) = self.next_planned().cloned()
        {
            self.planned.pop_front();
            self.request(next)?;
        }
        Ok(())
    }

    /// Takes all that is requested and forgets it, so that it is requested again.
    fn drain(&mut self) -> Result<(), Lost> {
        let mut again = VecDeque::new();
        let mut failed = Ok(());
        while let Some((piece, at)) = self.requested.pop_front() {
            if failed.is_ok() {
                let skipped = self.connections[at].skip();
                failed = skipped.map_err(|error| Lost {
                    connection: at,
                    error,
                });
            }
            again.push_back(piece);
        }
        again.append(&mut self.planned);
        self.planned = again;
        failed
    }

    /// Goes on without a connection.
    fn lose(&mut self, lost: &Lost, step: u64) {
        let gone = self.connections.remove(lost.connection);
        let waiting = std::mem::take(&mut self.requested);
        let mut others: Vec<usize> = vec![0; self.connections.len() + 1];
        for &(_, at) in &waiting {
            others[at] += 1;
        }
        others.remove(lost.connection);
        let mut again: VecDeque<PieceRequest> = waiting.into_iter().map(|(one, _)| one).collect();
        again.append(&mut self.planned);
        self.planned = again;
        let mut counts = others.into_iter();
        // One that fails here, too, is not needed to say so.
        self.connections.retain_mut(|one| {
            let count = counts.next().unwrap_or_default();
            (0..count).all(|_| one.skip().is_ok())
        });
        let rank = self.rank;
        let then = match self.connections.len() {
            0 => "the rank reads its samples itself from here on".to_owned(),
            left => format!("its {left} other loader(s) go on"),
        };
        (self.warn)(format!(
            "rank {rank} lost the loader at {} before step {step}: {}; {then}",
            gone.address,
            lost_reason(&lost.error)
        ));
    }
}

/// Why a connection is lost, in words.
pub fn lost_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "it closed the connection".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it did not answer in time".to_owned()
        }
        _ => error.to_string(),
    }
}

impl PieceSupply for Loaders {
    fn deliver(&mut self, piece: &PieceRequest, step: u64, values: &mut PieceValues) -> bool {
        // All attempts together take at most a third longer than the first.
        let mut patience = self.patience;
        while !self.connections.is_empty() {
            for connection in &mut self.connections {
                connection.input.get_mut().set_deadline(patience);
                connection.output.set_deadline(patience);
            }
            patience /= 4;
            match self.take(piece, values) {
                Ok(()) => return true,
                Err(lost) => self.lose(&lost, step),
            }
        }
        false
    }
}

impl Connection {
    fn take(&mut self, piece: &PieceRequest, values: &mut PieceValues) -> io::Result<()> {
        match receive(&mut self.input)? {
            PieceHead::Values {
                elements,
                element_bytes,
            } if elements == piece.elements() && element_bytes == values.element_bytes() => {
                values.read_from(elements, &mut self.input)
            }
            PieceHead::Values { elements, .. } => {
                let expected = piece.elements();
                Err(invalid(&format!(
                    "it sent {elements} elements where {expected} were requested"
                )))
            }
            PieceHead::Failed(reason) => Err(io::Error::other(format!("it cannot read: {reason}"))),
        }
    }

    /// Takes the next piece and forgets it.
    fn skip(&mut self) -> io::Result<()> {
        match receive(&mut self.input)? {
            PieceHead::Values {
                elements,
                element_bytes,
            } => {
                let bytes = elements.saturating_mul(element_bytes) as u64;
                let mut rest = io::Read::take(&mut self.input, bytes);
                let skipped = io::copy(&mut rest, &mut io::sink())?;
                if skipped < bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(())
            }
            PieceHead::Failed(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::loaders_of;
    use std::collections::BTreeSet;

    #[test]
    fn every_rank_has_a_loader_and_every_loader_a_rank() {
        assert!(loaders_of(0, 4, 0).is_empty());
        for ranks in 1..9 {
            for loaders in 1..9 {
                let mut used = BTreeSet::new();
                for rank in 0..ranks {
                    let own = loaders_of(rank, ranks, loaders);
                    assert!(!own.is_empty() && own.len() <= loaders.div_ceil(ranks));
                    used.extend(own);
                }
                assert_eq!(used, (0..loaders).collect(), "{ranks} ranks");
            }
        }
    }
}
