//! Standard error: warnings and progress.

mod training;

use indicatif::{ProgressBar, ProgressStyle};
use partita::{Event, Progress};
use partita_space::printable;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use training::TrainingScreen;

/// Time between status lines if standard error is not a terminal.
const QUIET: Duration = Duration::from_secs(10);

/// Shows events on standard error; results go to standard output.
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
            Event::Warning(text) | Event::Failure(text) | Event::Note(text) => warn(text),
            Event::Status { text, is_last } => self.status(text, is_last),
            Event::Writing => crate::interrupt::hold(),
            Event::Checkpoints { is_first } => crate::interrupt::hold_once(is_first),
            Event::EndedEarly(history) => {
                crate::work::write_curves(history);
            }
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
    /// Shows the status: on a terminal it replaces the line before, elsewhere it is printed every
    /// [`QUIET`] seconds, with dots at its end that tell it from a warning.
    fn status(&self, text: &str, is_last: bool) {
        let mut screen = io::stderr();
        if !screen.is_terminal() {
            let mut last = lock(&self.status);
            let since = last.get_or_insert_with(Instant::now).elapsed();
            if since >= QUIET && !text.is_empty() {
                *last = Some(Instant::now());
                warn(&format!("{text} ..."));
            }
            return;
        }
        // Errors of the status line are ignored.
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

/// Writes a line to standard error.
pub fn warn(text: &str) {
    // Errors of a closed standard error are ignored.
    let _ = writeln!(io::stderr(), "partita: {}", printable::message(text));
}

fn samples_bar(noun: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = format!("{{bar:32}} {{pos}}/{{len}} {noun}, {{per_sec}}, {{eta}} left");
    // The template is constant; if it were invalid, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
