//! Notices when nothing moves.

use partita_space::Seconds;

/// The time between two looks counts in full up to this, whatever the limit is.
const LOOK_MIN: Seconds = Seconds(0.05);

/// Finds out that nothing has moved for longer than a limit, from looks at a clock.
///
/// Whoever waits looks many times within the limit, so a look that comes much later than the one before
/// means that the process itself was stopped (SIGSTOP, Ctrl-Z, a scheduler that suspends jobs) and now goes
/// on. Others did not move meanwhile because they were stopped too, or could not be seen to move. Of the
/// time between two looks therefore at most a tenth of the limit counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watchdog {
    limit: Seconds,
    /// The last look.
    last: Seconds,
    /// What counts since something moved.
    waited: Seconds,
}

impl Watchdog {
    /// Starts as if something had moved now.
    pub fn start(limit: Seconds, now: Seconds) -> Self {
        Self {
            limit,
            last: now,
            waited: Seconds(0.0),
        }
    }

    /// Something has moved.
    pub fn reset(&mut self, now: Seconds) {
        *self = Self::start(self.limit, now);
    }

    /// Nothing has moved since the last look; whether that is so for longer than the limit.
    pub fn look(&mut self, now: Seconds) -> bool {
        let counted_max = (self.limit.0 / 10.0).max(LOOK_MIN.0);
        self.waited += Seconds((now - self.last).0.min(counted_max));
        self.last = now;
        self.waited > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a watchdog of three seconds fires that is looked at at these moments.
    fn fires(looks: impl IntoIterator<Item = f64>) -> Option<f64> {
        let mut watchdog = Watchdog::start(Seconds(3.0), Seconds(0.0));
        looks.into_iter().find(|&now| watchdog.look(Seconds(now)))
    }

    #[test]
    fn it_fires_after_the_limit() {
        let fired = fires((1..).map(|look| 0.02 * f64::from(look))).unwrap();
        assert!((3.0..3.05).contains(&fired), "{fired}");
        let mut watchdog = Watchdog::start(Seconds(3.0), Seconds(0.0));
        for look in 1..100 {
            let now = Seconds(0.1 * f64::from(look));
            assert!(!watchdog.look(now), "{now}");
            if look % 20 == 0 {
                watchdog.reset(now);
            }
        }
    }

    #[test]
    fn a_stop_does_not_count() {
        // Stopped for an hour after a second.
        let late = |now: f64| if now > 1.0 { now + 3600.0 } else { now };
        let fired = fires((1..).map(|look| late(0.02 * f64::from(look)))).unwrap();
        let after = fired - 3600.0;
        assert!((2.69..3.05).contains(&after), "{after}");
    }

    #[test]
    fn a_process_that_gets_few_turns_fires_all_the_same() {
        assert_eq!(fires((1..).map(|look| 2.0 * f64::from(look))), Some(22.0));
    }
}
