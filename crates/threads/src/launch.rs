//! Starts one thread per rank, and returns the first cause of a failure.

use partita_run::RunError;
use partita_space::Rank;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The first cause of a failure, not its consequences on other ranks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LaunchError {
    /// A rank returned an error.
    #[error("{error}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// Its error.
        error: RunError,
    },
    /// A rank panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: Rank,
        /// The panic message.
        message: String,
    },
    /// The thread of a rank could not be started.
    #[error("no thread could be started for rank {rank}: {reason}")]
    NoThread {
        /// The rank.
        rank: Rank,
        /// The cause.
        reason: String,
    },
}

impl LaunchError {
    /// 0 for a cause, more for a consequence of another rank's failure.
    fn distance_from_cause(&self) -> u8 {
        match self {
            LaunchError::Panicked { .. } | LaunchError::NoThread { .. } => 0,
            LaunchError::Rank { error, .. } => error.distance_from_cause(),
        }
    }
}

/// Runs `work` once per rank, each on a thread of its own with its element of `parts`, and returns the results
/// in rank order.
///
/// The first failure, which may be a panic, sets `cancel`, which the ranks poll. Errors: of several failures,
/// a cause goes before a lost peer, and that before a cancellation.
pub fn launch<P: Send, R: Send>(
    parts: Vec<P>,
    cancel: &AtomicBool,
    work: impl Fn(Rank, P) -> Result<R, RunError> + Sync,
) -> Result<Vec<R>, LaunchError> {
    let ranks = parts.len();
    let results: Mutex<Vec<Option<R>>> = Mutex::new((0..ranks).map(|_| None).collect());
    let first: Mutex<Option<LaunchError>> = Mutex::new(None);
    let fail = |error: LaunchError| {
        cancel.store(true, Ordering::Relaxed);
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        let nearer = first
            .as_ref()
            .is_none_or(|other| error.distance_from_cause() < other.distance_from_cause());
        if nearer {
            *first = Some(error);
        }
    };
    let run = |rank: Rank, part: P| match catch_unwind(AssertUnwindSafe(|| work(rank, part))) {
        Ok(Ok(result)) => {
            results.lock().unwrap_or_else(PoisonError::into_inner)[rank] = Some(result);
        }
        Ok(Err(error)) => fail(LaunchError::Rank { rank, error }),
        Err(panic) => fail(LaunchError::Panicked {
            rank,
            message: message_of(panic.as_ref()),
        }),
    };
    std::thread::scope(|scope| {
        for (rank, part) in parts.into_iter().enumerate() {
            let run = &run;
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            if let Err(error) = thread.spawn_scoped(scope, move || run(rank, part)) {
                let reason = error.to_string();
                fail(LaunchError::NoThread { rank, reason });
                break;
            }
        }
    });
    if let Some(error) = first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(results.into_iter().flatten().collect())
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    if let Some(text) = panic.downcast_ref::<String>() {
        return text.clone();
    }
    "without a message".to_owned()
}
