use crate::error::CliError;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C a request that [`asked`] tells of, for verbs that must leave things in order.
///
/// May be called again. Errors: the system refuses a handler.
pub fn listen() -> Result<(), CliError> {
    static LISTENS: AtomicBool = AtomicBool::new(false);
    if LISTENS.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    ctrlc::set_handler(|| ASKED.store(true, Ordering::Relaxed))
        .map_err(|error| CliError::Run(format!("Ctrl-C cannot be listened to: {error}")))
}

/// Whether the user asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The request itself, for those who look at it without knowing this module.
pub fn flag() -> &'static AtomicBool {
    &ASKED
}
