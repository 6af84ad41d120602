//! Timeouts; a guard tells when a call of MPI does not return.

use partita_run::{Clock, SystemClock, Watchdog};
use partita_space::Seconds;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Polling interval of a guard.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Called with a message, on another thread, when a call of MPI does not return. It may end the process; where it
/// returns, the call goes on waiting.
pub type OnTimeout = Arc<dyn Fn(&str) + Send + Sync>;

/// Tells of a call that takes longer than a limit: some calls of MPI wait for other ranks without one, and a rank
/// that died never answers.
pub(crate) struct Guard {
    _alive: Option<Sender<()>>,
}

impl Guard {
    /// Watches over `what` until it is dropped.
    pub(crate) fn over(what: &str, limit: Duration, on_timeout: &OnTimeout) -> Self {
        let text = format!(
            "{what} did not return within {:.1} s: a rank died, hangs or never started",
            limit.as_secs_f64()
        );
        let on_timeout = Arc::clone(on_timeout);
        let (alive, watched) = channel::<()>();
        let watch = move || {
            let mut timeout = Timeout::start(limit);
            while let Err(RecvTimeoutError::Timeout) =
                watched.recv_timeout(POLL_INTERVAL.min(limit / 20))
            {
                if timeout.is_over() {
                    return on_timeout(&text);
                }
            }
        };
        // Without a thread, the call has no limit.
        let watcher = thread::Builder::new().name("guard".to_owned()).spawn(watch);
        Self {
            _alive: watcher.ok().map(|_| alive),
        }
    }
}

/// A timeout that does not count the time for which the process was stopped (SIGSTOP).
///
/// Poll it at least ten times within the limit.
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
        self.watchdog.poll(self.clock.now())
    }
}
