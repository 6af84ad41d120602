//! Messages of the store of a process on their way to other processes and back.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use partita_formats::{DataError, Samples};
use partita_run::SampleMessages;
use partita_space::Rank;

use super::message::Message;
use crate::plain_files::Wanted;

/// What threads of this process send to other processes, and what has come for them.
#[derive(Default)]
pub(crate) struct Link {
    mail: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    outgoing: VecDeque<(Rank, Vec<u8>)>,
    /// Replies by the number of their request.
    replies: HashMap<u64, Vec<u8>>,
    requests: u64,
    is_closed: bool,
}

/// A request of another process.
pub(crate) struct Incoming {
    pub(crate) from: Rank,
    pub(crate) id: u64,
    pub(crate) epoch: u64,
    pub(crate) wanted: Wanted,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the owner of a unit for a part of it. Returns the number of the request.
    pub(crate) fn request(&self, owner: Rank, epoch: u64, wanted: Wanted) -> u64 {
        let mut mail = self.lock();
        let id = mail.requests;
        mail.requests += 1;
        let request = Message::Request { id, epoch, wanted };
        mail.outgoing.push_back((owner, request.to_bytes()));
        id
    }

    /// Waits for the reply to a request.
    ///
    /// Errors: that of the owner; the run has ended.
    pub(crate) fn wait(&self, owner: Rank, id: u64) -> Result<Samples, DataError> {
        let refused = |reason| DataError::Store { owner, reason };
        let mut mail = self.lock();
        let bytes = loop {
            if let Some(bytes) = mail.replies.remove(&id) {
                break bytes;
            }
            if mail.is_closed {
                return Err(refused("the run has ended".to_owned()));
            }
            mail = self
                .changed
                .wait(mail)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(mail);
        match Message::from_bytes(&bytes) {
            Some(Message::Reply { answer, .. }) => answer.map_err(refused),
            Some(Message::Request { .. }) | None => {
                Err(refused("its reply cannot be read".to_owned()))
            }
        }
    }

    /// Sends the reply to a request.
    pub(crate) fn reply(&self, to: Rank, id: u64, answer: Result<Samples, String>) {
        let bytes = Message::Reply { id, answer }.to_bytes();
        self.lock().outgoing.push_back((to, bytes));
    }
}

/// The end of a [`Link`] that the world of a rank carries.
pub(crate) struct LinkMessages {
    link: Arc<Link>,
    requests: Sender<Incoming>,
}

impl LinkMessages {
    /// `requests` is where requests of other processes are answered.
    pub(crate) fn new(link: Arc<Link>, requests: Sender<Incoming>) -> Self {
        Self { link, requests }
    }
}

impl SampleMessages for LinkMessages {
    fn next(&mut self) -> Option<(Rank, Vec<u8>)> {
        self.link.lock().outgoing.pop_front()
    }

    fn deliver(&mut self, from: Rank, message: Vec<u8>) {
        if let Some(id) = Message::reply_id(&message) {
            // The thread that waits reads it.
            self.link.lock().replies.insert(id, message);
            self.link.changed.notify_all();
            return;
        }
        if let Some(Message::Request { id, epoch, wanted }) = Message::from_bytes(&message) {
            // The thread that answers lives as long as this.
            let _ = self.requests.send(Incoming {
                from,
                id,
                epoch,
                wanted,
            });
        }
    }
}

impl Drop for LinkMessages {
    fn drop(&mut self) {
        self.link.lock().is_closed = true;
        self.link.changed.notify_all();
    }
}
