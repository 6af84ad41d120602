//! Handling of failed allocations: which callers handle them, and what the process was doing.

use std::cell::Cell;
use std::sync::Mutex;

thread_local! {
    static IS_HANDLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs an allocation whose caller handles its failure: a global allocator that ends the process when out of
/// memory must return null here.
pub fn handling_failure<R>(allocate: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_HANDLED.set(self.0);
        }
    }
    let _restore = Restore(IS_HANDLED.replace(true));
    allocate()
}

/// A description of what this process is doing; may be empty.
static WORK: Mutex<String> = Mutex::new(String::new());

/// Describes what the process does from now on, for the out-of-memory message.
pub fn name_work(what: &str) {
    if let Ok(mut work) = WORK.lock() {
        work.clear();
        work.push_str(what);
    }
}

/// Calls `report` with the last description; neither allocates nor blocks.
pub fn with_named_work(report: impl FnOnce(&str)) {
    match WORK.try_lock() {
        Ok(work) => report(&work),
        Err(_) => report(""),
    }
}

/// Whether the current allocation of this thread is inside [`handling_failure`].
pub fn is_failure_handled() -> bool {
    // The thread-local is gone while a thread ends.
    IS_HANDLED.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_work_is_reported() {
        name_work("measuring");
        let mut reported = String::new();
        with_named_work(|work| reported.push_str(work));
        name_work("");
        with_named_work(|work| assert_eq!(work, ""));
        assert_eq!(reported, "measuring");
    }

    #[test]
    fn failures_are_handled_inside_only() {
        assert!(!is_failure_handled());
        handling_failure(|| {
            assert!(is_failure_handled());
            handling_failure(|| assert!(is_failure_handled()));
            assert!(is_failure_handled());
        });
        let panics = || handling_failure(|| panic!("inside"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!is_failure_handled());
    }
}
