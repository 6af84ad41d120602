//! Progress of a training.

use indicatif::{ProgressBar, ProgressStyle};
use partita_session::{EpochReport, Progress};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const STYLE: &str = "{msg} [{bar:30}] {pos}/{len} steps, {eta} left";
/// Time between lines if standard error is not a terminal.
const QUIET: Duration = Duration::from_secs(10);

/// Shows a run: a progress bar on a terminal, else a line per epoch and every ten seconds.
pub struct TrainingScreen {
    bar: Option<ProgressBar>,
    epochs: u64,
    steps: u64,
    /// Exponentially weighted samples and seconds of recent steps.
    recent: (f64, f64),
    printed: Instant,
}

impl TrainingScreen {
    /// For a run of these epochs and training steps.
    pub fn new(epochs: u64, steps: u64) -> Self {
        let style = ProgressStyle::with_template(STYLE).ok();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps);
            match style {
                Some(style) => bar.with_style(style),
                None => bar,
            }
        });
        Self {
            bar,
            epochs,
            steps,
            recent: (0.0, 0.0),
            printed: Instant::now(),
        }
    }

    /// Shows what happened.
    pub fn show(&mut self, progress: &Progress) {
        match progress {
            Progress::Step {
                epoch,
                step,
                loss,
                samples,
                seconds,
                ..
            } => {
                let rate = self.rate(*samples, seconds.0);
                let text = format!(
                    "epoch {}/{} loss {loss:.5} {rate:.1} samples/s",
                    epoch + 1,
                    self.epochs
                );
                match &self.bar {
                    Some(bar) => {
                        bar.set_message(text);
                        bar.set_position(*step);
                    }
                    None if self.printed.elapsed() > QUIET => {
                        self.print(&format!("{text}, step {step}/{}", self.steps));
                    }
                    None => {}
                }
            }
            Progress::Evaluated { epoch, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(format!("epoch {}/{} validation", epoch + 1, self.epochs));
                }
            }
            Progress::Epoch(report) => {
                let text = self.epoch_line(report);
                self.print(&text);
            }
            Progress::Done { .. } => {
                if let Some(bar) = &self.bar {
                    bar.finish_and_clear();
                }
            }
        }
    }

    fn epoch_line(&self, report: &EpochReport) -> String {
        let rate = report.samples as f64 / report.training_seconds.0;
        let validation = report
            .validation
            .as_ref()
            .map_or_else(String::new, |validation| {
                let accuracy = validation.accuracy().map_or_else(String::new, |accuracy| {
                    format!(", accuracy {:.1} %", 100.0 * accuracy)
                });
                format!(", validation loss {:.5}{accuracy}", validation.loss)
            });
        format!(
            "epoch {}/{}: loss {:.5}{validation}, {rate:.1} samples/s",
            report.epoch + 1,
            self.epochs,
            report.training_loss
        )
    }

    fn rate(&mut self, samples: usize, seconds: f64) -> f64 {
        const DECAY: f64 = 0.9;
        self.recent.0 = DECAY * self.recent.0 + samples as f64;
        self.recent.1 = DECAY * self.recent.1 + seconds;
        self.recent.0 / self.recent.1
    }

    fn print(&mut self, text: &str) {
        self.printed = Instant::now();
        match &self.bar {
            Some(bar) => bar.println(text),
            None => {
                // A closed standard error does not stop the run.
                let _ = writeln!(io::stderr(), "{text}");
            }
        }
    }
}
