//! The error output: warnings, and how far the work is.

mod training;

use indicatif::{ProgressBar, ProgressStyle};
use partita::{Event, Progress};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use training::TrainingScreen;

/// Time between status lines where there is no terminal.
const QUIET: Duration = Duration::from_secs(10);

/// Shows events on the error output, so that the answer stands alone on the other one.
#[derive(Default)]
pub struct Screen {
    /// When the last status line was written.
    status: Mutex<Option<Instant>>,
    training: Mutex<Option<TrainingScreen>>,
    samples: Mutex<Option<ProgressBar>>,
}

impl Progress for Screen {
    fn report(&self, event: Event<'_>) {
        match event {
            Event::Warning(text) | Event::Failure(text) => warn(text),
            Event::Status { text, is_last } => self.status(text, is_last),
            Event::Writing => crate::interrupt::hold(),
            Event::Samples { noun, made, total } => self.samples(noun, made as u64, total as u64),
            Event::SamplesStopped => {
                if let Some(bar) = lock(&self.samples).take() {
                    bar.abandon();
                }
            }
            Event::Training {
                epochs,
                steps,
                progress,
            } => {
                let mut training = lock(&self.training);
                let screen = training.get_or_insert_with(|| TrainingScreen::new(epochs, steps));
                screen.show(progress);
            }
        }
    }
}

impl Screen {
    /// Shows how far the work is: on a terminal over the line before, elsewhere in a line of its own where
    /// it takes long.
    fn status(&self, text: &str, is_last: bool) {
        let mut screen = io::stderr();
        if !screen.is_terminal() {
            let mut last = lock(&self.status);
            let since = last.get_or_insert_with(Instant::now).elapsed();
            if since >= QUIET && !text.is_empty() {
                *last = Some(Instant::now());
                warn(text);
            }
            return;
        }
        // What cannot be shown is not needed for the answer.
        let _ = write!(screen, "\r\x1b[K{text}{}", if is_last { "\n" } else { "" });
        let _ = screen.flush();
    }

    fn samples(&self, noun: &str, made: u64, total: u64) {
        let mut bar = lock(&self.samples);
        bar.get_or_insert_with(|| samples_bar(noun, total))
            .set_position(made);
        if made == total
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line to the error output.
pub fn warn(text: &str) {
    // An error output that is closed has no reader.
    let _ = writeln!(io::stderr(), "partita: {text}");
}

fn samples_bar(noun: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = format!("{{bar:32}} {{pos}}/{{len}} {noun}, {{per_sec}}, {{eta}} left");
    // The template is fixed; were it faulty, the bar's own would do.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
