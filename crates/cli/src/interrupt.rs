use crate::error::CliError;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
static WAITS: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C a request that [`asked`] tells of, for work that must leave things in order.
///
/// May be called again. Errors: the system refuses a handler.
pub fn listen() -> Result<(), CliError> {
    install()?;
    WAITS.store(true, Ordering::Relaxed);
    Ok(())
}

/// Makes Ctrl-C end the process at once, for work that leaves nothing behind.
///
/// May be called again. Errors: the system refuses a handler.
pub fn release() -> Result<(), CliError> {
    WAITS.store(false, Ordering::Relaxed);
    install()
}

fn install() -> Result<(), CliError> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let answer = || {
        ASKED.store(true, Ordering::Relaxed);
        if !WAITS.load(Ordering::Relaxed) {
            crate::end_interrupted();
        }
    };
    ctrlc::set_handler(answer)
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
