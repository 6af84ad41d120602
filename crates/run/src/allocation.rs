//! Memory that the system may not give, asked for by those who can say what it was for.

use std::cell::Cell;
use std::sync::Mutex;

thread_local! {
    static IS_HANDLED: Cell<bool> = const { Cell::new(false) };
}

/// Asks for memory and looks at what comes of it, so that an allocator that would end the process where
/// there is none leaves that to `ask`.
pub fn handling_failure<R>(ask: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_HANDLED.set(self.0);
        }
    }
    let _restore = Restore(IS_HANDLED.replace(true));
    ask()
}

/// What this process does that takes memory, in words; nothing unless it says so.
static WORK: Mutex<String> = Mutex::new(String::new());

/// Says what is done from now on, for whoever has to tell that there is no memory for it.
pub fn name_work(what: &str) {
    if let Ok(mut work) = WORK.lock() {
        work.clear();
        work.push_str(what);
    }
}

/// What was named last; allocates nothing and waits for nobody.
pub fn with_named_work(tell: impl FnOnce(&str)) {
    match WORK.try_lock() {
        Ok(work) => tell(&work),
        Err(_) => tell(""),
    }
}

/// Whether who asks for memory on this thread looks at what comes of it.
pub fn is_failure_handled() -> bool {
    // While a thread ends, nobody does.
    IS_HANDLED.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_was_named_is_told() {
        name_work("measuring");
        let mut told = String::new();
        with_named_work(|work| told.push_str(work));
        name_work("");
        with_named_work(|work| assert_eq!(work, ""));
        assert_eq!(told, "measuring");
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
