//! The side that reads pieces.

use crate::address::Stream;
use crate::message::{invalid, receive, send};
use partita_input::{PieceReader, PieceRequest, PieceValues};
use serde::{Deserialize, Serialize};
use std::io::{self, BufReader, BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// What precedes the values of a piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PieceHead {
    /// An array follows: its elements, and bytes per element.
    Values {
        elements: usize,
        element_bytes: usize,
    },
    /// It cannot be read.
    Failed(String),
}

/// What became of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Pieces that were sent.
    pub pieces: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Most pieces that were in memory at once.
    pub held_max: usize,
    /// Why it ended, unless the trainer closed it.
    pub fault: Option<String>,
}

/// Pieces that are between request and delivery.
#[derive(Default)]
struct Counts {
    requested: AtomicUsize,
    held: AtomicUsize,
}

/// Answers the requests of one trainer in their order, until it closes the connection or `stop` is set. At most
/// `credits` pieces are requested and not yet delivered, so that is the most that memory holds. Each piece is delayed by
/// `delay`.
pub fn serve_pieces(
    stream: &Stream,
    mut reader: PieceReader,
    credits: usize,
    delay: Duration,
    stop: &AtomicBool,
) -> Served {
    let mut served = Served::default();
    let counts = Counts::default();
    let over = AtomicBool::new(false);
    let (requests, requested) = sync_channel(credits);
    let (filled, pieces) = sync_channel(credits);
    let (recycler, returned) = channel();
    let ended = thread::scope(|scope| {
        let (counts, over) = (&counts, &over);
        let listening = scope.spawn(move || listen(stream, counts, credits, &requests));
        let sending = scope.spawn(move || {
            let sent = deliver(stream, counts, &pieces, &recycler);
            // Ends the thread that listens, too.
            stream.close();
            sent
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            stream.close();
        });
        let mut free = Vec::new();
        while let Ok(request) = requested.recv() {
            thread::sleep(delay);
            free.extend(returned.try_iter());
            let values = read(&mut reader, &request, &mut free);
            let held = counts.held.fetch_add(1, Ordering::Relaxed) + 1;
            served.held_max = served.held_max.max(held);
            if filled.send(values).is_err() {
                break;
            }
        }
        drop((filled, requested));
        let sent = sending.join().unwrap_or_else(|_| Err(panicked()));
        over.store(true, Ordering::Relaxed);
        let heard = listening.join().unwrap_or_else(|_| Err(panicked()));
        heard.and(sent)
    });
    match ended {
        Ok((pieces, bytes)) => (served.pieces, served.bytes) = (pieces, bytes),
        Err(error) => served.fault = Some(error.to_string()),
    }
    served
}

fn panicked() -> io::Error {
    io::Error::other("a thread of the connection ended")
}

/// Receives requests until the trainer has no more.
fn listen(
    stream: &Stream,
    counts: &Counts,
    credits: usize,
    requests: &SyncSender<PieceRequest>,
) -> io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    loop {
        let request = match receive(&mut input) {
            Err(error) if is_end(&error) => return Ok(()),
            request => request?,
        };
        if counts.requested.fetch_add(1, Ordering::Relaxed) >= credits {
            stream.close();
            return Err(invalid(&format!(
                "the trainer requests more than its {credits} credit(s)"
            )));
        }
        if requests.send(request).is_err() {
            return Ok(());
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
    )
}

fn read(
    reader: &mut PieceReader,
    request: &PieceRequest,
    free: &mut Vec<PieceValues>,
) -> Result<PieceValues, String> {
    if !reader.holds(request) {
        return Err("the request leaves the dataset".to_owned());
    }
    let empty = reader.empty(request);
    let is_alike =
        |other: &PieceValues| std::mem::discriminant(other) == std::mem::discriminant(&empty);
    let buffer = match free.iter().position(is_alike) {
        Some(at) => free.swap_remove(at),
        None => empty,
    };
    reader
        .read(request, buffer)
        .map_err(|error| error.to_string())
}

/// Sends pieces until there are no more. Gives their number and bytes.
fn deliver(
    stream: &Stream,
    counts: &Counts,
    pieces: &Receiver<Result<PieceValues, String>>,
    recycler: &Sender<PieceValues>,
) -> io::Result<(u64, u64)> {
    let mut output = BufWriter::new(stream.try_clone()?);
    let mut sent = (0, 0);
    while let Ok(piece) = pieces.recv() {
        // A piece is counted as delivered before the trainer can have all of it, and ask for another.
        counts.held.fetch_sub(1, Ordering::Relaxed);
        counts.requested.fetch_sub(1, Ordering::Relaxed);
        let written = match piece {
            Ok(values) => write_piece(&mut output, &values).map(|bytes| {
                sent = (sent.0 + 1, sent.1 + bytes);
                // Where the reading thread has ended, nobody needs the buffer.
                let _ = recycler.send(values);
            }),
            Err(reason) => send(&mut output, &PieceHead::Failed(reason)),
        };
        match written {
            Err(error) if is_end(&error) => break,
            written => written?,
        }
    }
    Ok(sent)
}

fn write_piece(output: &mut dyn Write, values: &PieceValues) -> io::Result<u64> {
    let (elements, element_bytes) = (values.len(), values.element_bytes());
    send(
        output,
        &PieceHead::Values {
            elements,
            element_bytes,
        },
    )?;
    values.write_to(output)?;
    output.flush()?;
    Ok((elements * element_bytes) as u64)
}
