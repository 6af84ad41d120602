use crate::mailbox::{Mailbox, ThreadMail};
use partita_run::MessageTransport;
use partita_space::Mesh;
use std::sync::Arc;

/// Messages and collectives between ranks that are threads of one process.
///
/// Packets are moved through one mailbox per rank. When a transport is dropped, peers that still wait for
/// it get [`RunError::Lost`](partita_run::RunError::Lost).
pub type ThreadTransport = MessageTransport<ThreadMail>;

/// The transports of all ranks of a mesh, in rank order. Each moves to the thread of its rank.
pub fn connect(mesh: Mesh) -> Vec<ThreadTransport> {
    let mailboxes: Arc<[Mailbox]> = (0..mesh.ranks()).map(|_| Mailbox::default()).collect();
    (0..mesh.ranks())
        .map(|rank| MessageTransport::new(mesh, ThreadMail::new(rank, Arc::clone(&mailboxes))))
        .collect()
}
