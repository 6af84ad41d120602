//! Ends the process where a call of MPI never returns.

use partita_run::{Clock, SystemClock, Watchdog};
use partita_space::Seconds;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Between looks of a guard.
const LOOK: Duration = Duration::from_millis(100);

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
            let mut timeout = Timeout::start(limit);
            while let Err(RecvTimeoutError::Timeout) = watched.recv_timeout(LOOK.min(limit / 20)) {
                if timeout.is_over() {
                    end(&text);
                }
            }
        };
        // A system that gives no thread leaves the call without a limit, which is all that can be done.
        let watcher = thread::Builder::new().name("guard".to_owned()).spawn(watch);
        Self {
            _alive: watcher.ok().map(|_| alive),
        }
    }
}

/// A limit to waiting, by the clock of the machine without the time for which the process was stopped.
///
/// To be looked at again and again, at least ten times within the limit.
pub(crate) struct Timeout {
    clock: SystemClock,
    watchdog: Watchdog,
}

impl Timeout {
    pub(crate) fn start(limit: Duration) -> Self {
        let clock = SystemClock::start();
        let watchdog = Watchdog::start(Seconds(limit.as_secs_f64()), clock.now());
        Self { clock, watchdog }
    }

    pub(crate) fn reset(&mut self) {
        self.watchdog.reset(self.clock.now());
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.watchdog.look(self.clock.now())
    }
}
