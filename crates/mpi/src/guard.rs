use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

/// Writes a message and ends the process.
pub type End = fn(&str) -> !;

/// Ends the process if it still lives after a limit: some calls of MPI wait for other ranks without
/// one, and a rank that died never answers.
pub(crate) struct Guard {
    _alive: Option<Sender<()>>,
}

impl Guard {
    /// Watches over `what` until it is dropped.
    pub(crate) fn over(what: &str, limit: Duration, end: End) -> Self {
        let text = format!(
            "{what} did not come back within {:.1} s: a rank died, hangs or never started",
            limit.as_secs_f64()
        );
        let (alive, watched) = channel::<()>();
        let watch = move || {
            if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = watched.recv_timeout(limit) {
                end(&text);
            }
        };
        // A system that gives no thread leaves the call without a limit, which is all that can be done.
        let watcher = thread::Builder::new().name("guard".to_owned()).spawn(watch);
        Self {
            _alive: watcher.ok().map(|_| alive),
        }
    }
}
