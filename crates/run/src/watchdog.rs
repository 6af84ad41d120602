//! Detection of stalls.

use partita_space::Seconds;

/// Time between two polls that counts in full, whatever the limit.
const POLL_GAP_MIN: Seconds = Seconds(0.05);

/// Detects that there was no progress for longer than a limit.
///
/// It is polled many times within the limit. A poll much later than the one before means that the process
/// itself was stopped (SIGSTOP, Ctrl-Z, a scheduler that suspends jobs), as other ranks may have been too.
/// Therefore at most a tenth of the limit counts between two polls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watchdog {
    limit: Seconds,
    /// The last poll.
    last: Seconds,
    /// Counted time since the last progress.
    waited: Seconds,
}

impl Watchdog {
    /// Starts with progress now.
    pub fn start(limit: Seconds, now: Seconds) -> Self {
        Self {
            limit,
            last: now,
            waited: Seconds(0.0),
        }
    }

    /// Records progress.
    pub fn reset(&mut self, now: Seconds) {
        *self = Self::start(self.limit, now);
    }

    /// Records that there was no progress since the last poll; true once the limit is exceeded.
    pub fn poll(&mut self, now: Seconds) -> bool {
        let counted_max = (self.limit.0 / 10.0).max(POLL_GAP_MIN.0);
        self.waited += Seconds((now - self.last).0.min(counted_max));
        self.last = now;
        self.waited > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a watchdog of three seconds fires that is polled at these times.
    fn fires(polls: impl IntoIterator<Item = f64>) -> Option<f64> {
        let mut watchdog = Watchdog::start(Seconds(3.0), Seconds(0.0));
        polls.into_iter().find(|&now| watchdog.poll(Seconds(now)))
    }

    #[test]
    fn it_fires_after_the_limit() {
        let fired = fires((1..).map(|poll| 0.02 * f64::from(poll))).unwrap();
        assert!((3.0..3.05).contains(&fired), "{fired}");
        let mut watchdog = Watchdog::start(Seconds(3.0), Seconds(0.0));
        for poll in 1..100 {
            let now = Seconds(0.1 * f64::from(poll));
            assert!(!watchdog.poll(now), "{now}");
            if poll % 20 == 0 {
                watchdog.reset(now);
            }
        }
    }

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        // Stopped for an hour after a second.
        let late = |now: f64| if now > 1.0 { now + 3600.0 } else { now };
        let fired = fires((1..).map(|poll| late(0.02 * f64::from(poll)))).unwrap();
        let after = fired - 3600.0;
        assert!((2.69..3.05).contains(&after), "{after}");
    }

    #[test]
    fn it_fires_in_a_process_that_is_rarely_scheduled() {
        assert_eq!(fires((1..).map(|poll| 2.0 * f64::from(poll))), Some(22.0));
    }
}
