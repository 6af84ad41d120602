//! The transports of ranks that are threads.

use crate::mailbox::{Mailbox, ThreadPointToPoint};
use partita_run::MessageTransport;
use partita_space::{Mesh, Seconds};
use std::sync::Arc;
use std::time::Duration;

/// Exchanges and collectives between ranks that are threads of one process.
///
/// Packets are moved through one mailbox per rank. When a transport is dropped, peers that wait for it get
/// [`RunError::Lost`](partita_run::RunError::Lost).
pub type ThreadTransport = MessageTransport<ThreadPointToPoint>;

/// The transports of all ranks of a mesh, in rank order. Each moves to the thread of its rank.
///
/// `spin` is how long a waiting rank polls before it sleeps: zero where ranks share cores, else longer than it
/// takes to wake a thread, tens of microseconds.
pub fn connect(mesh: Mesh, spin: Seconds) -> Vec<ThreadTransport> {
    let spin = Duration::from_secs_f64(spin.0);
    let mailboxes: Arc<[Mailbox]> = (0..mesh.ranks()).map(|_| Mailbox::default()).collect();
    (0..mesh.ranks())
        .map(|rank| {
            let messages = ThreadPointToPoint::new(rank, Arc::clone(&mailboxes), spin);
            MessageTransport::new(mesh, messages)
        })
        .collect()
}
