//! Signals that ask the process to end.

use crate::error::{CliError, exit_code};
use partita::ErrorKind;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Signals that ask for an end. Batch systems and their clients send the last two before a time limit: Slurm by
/// `--signal=USR1`, submitit by SIGUSR2.
const SIGNALS: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// State shared with the signal handlers.
struct Request {
    /// The user asked to stop.
    is_cancelled: Arc<AtomicBool>,
    /// No cleanup is needed: a signal ends the process at once.
    ends_at_once: Arc<AtomicBool>,
}

fn request() -> &'static Request {
    static REQUEST: OnceLock<Request> = OnceLock::new();
    REQUEST.get_or_init(|| Request {
        is_cancelled: Arc::default(),
        ends_at_once: Arc::default(),
    })
}

/// Whether a caller in this process handles signals.
static IS_OF_CALLER: AtomicBool = AtomicBool::new(false);

/// Leaves all signals to a caller in this process, from now on.
pub fn leave_to_caller() {
    IS_OF_CALLER.store(true, Ordering::Relaxed);
}

/// Makes Ctrl-C set [`flag`], for work that needs cleanup.
///
/// May be called again. Errors: the system refuses a handler.
pub fn listen() -> Result<(), CliError> {
    hold();
    install()
}

/// As [`listen`], if the handlers are installed already.
pub fn hold() {
    request().ends_at_once.store(false, Ordering::Relaxed);
}

/// As [`listen`], for work that returns what it has: a second Ctrl-C ends the process at once.
pub fn listen_twice() -> Result<(), CliError> {
    listen()?;
    end_on_second(Some("ending the search; Ctrl-C again ends at once"));
    Ok(())
}

/// As [`hold`], for a training that ends with a checkpoint: a second signal ends the process at once. `tells` is whether
/// this process says so.
pub fn hold_once(tells: bool) {
    hold();
    let text = "ending after this step with a checkpoint; Ctrl-C again ends at once";
    end_on_second(tells.then_some(text));
}

fn end_on_second(text: Option<&'static str>) {
    if IS_OF_CALLER.load(Ordering::Relaxed) {
        return;
    }
    // The handlers of a signal look at one flag each; this one passes the first signal on to the second.
    thread::spawn(move || {
        while !request().is_cancelled.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        if let Some(text) = text {
            eprintln!("partita: {text}");
        }
        request().ends_at_once.store(true, Ordering::Relaxed);
    });
}

/// Makes Ctrl-C end the process at once, for work that needs no cleanup.
///
/// May be called again. Errors: the system refuses a handler.
pub fn release() -> Result<(), CliError> {
    request().ends_at_once.store(true, Ordering::Relaxed);
    install()
}

/// Installs the handlers, except for signals that this process was started to ignore, as `nohup` does with
/// SIGHUP and a shell without job control with SIGINT.
fn install() -> Result<(), CliError> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if IS_OF_CALLER.load(Ordering::Relaxed) || INSTALLED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let failed = CliError::Signals;
    let code = i32::from(exit_code(ErrorKind::Interrupted));
    for signal in SIGNALS {
        if is_ignored(signal).map_err(failed)? {
            continue;
        }
        let Request {
            is_cancelled,
            ends_at_once,
        } = request();
        flag::register_conditional_shutdown(signal, code, Arc::clone(ends_at_once))
            .map_err(failed)?;
        flag::register(signal, Arc::clone(is_cancelled)).map_err(failed)?;
    }
    // Writing a file beyond the limit of the process then fails instead of killing the process.
    flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
    Ok(())
}

/// Whether a signal is ignored.
///
/// Source: POSIX.1-2017, `sigaction`: without a new action it only returns the current one.
fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is changed, and `action` has room for what is written.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written all of it.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

/// Set once the user has asked to stop.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&request().is_cancelled)
}
