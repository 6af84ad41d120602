//! The cores of the calling thread.

use std::mem::{size_of, zeroed};

/// The cores that a thread may use.
#[derive(Clone, Copy)]
pub(crate) struct CoreSet(libc::cpu_set_t);

impl CoreSet {
    /// Those of the calling thread, if the system tells.
    pub(crate) fn of_this_thread() -> Option<Self> {
        // SAFETY: the type is a list of bits, for which zeros are valid.
        let mut set: libc::cpu_set_t = unsafe { zeroed() };
        // SAFETY: the set is as large as stated; 0 is the calling thread.
        let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
        (status == 0).then_some(Self(set))
    }

    /// A set of cores by number; numbers that no set can hold are left out.
    pub(crate) fn of(cores: &[usize]) -> Self {
        // SAFETY: as above.
        let mut set: libc::cpu_set_t = unsafe { zeroed() };
        for &core in cores {
            if core < libc::CPU_SETSIZE as usize {
                // SAFETY: the number is below the capacity of the set.
                unsafe { libc::CPU_SET(core, &mut set) };
            }
        }
        Self(set)
    }

    /// Only the first of these cores.
    fn first(&self) -> Option<Self> {
        // SAFETY: the number is below the capacity of the set.
        let is_in = |&core: &usize| unsafe { libc::CPU_ISSET(core, &self.0) };
        let first = (0..libc::CPU_SETSIZE as usize).find(is_in)?;
        Some(Self::of(&[first]))
    }

    fn apply(&self) -> bool {
        // SAFETY: the set is as large as stated; 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) == 0 }
    }
}

/// Runs work while the calling thread may use these cores, and then only its own ones again. Threads that the work
/// starts keep them. Where the system refuses, the work runs on the cores as they are.
pub(crate) fn on_cores<R>(cores: &CoreSet, work: impl FnOnce() -> R) -> R {
    /// Gives the cores back, after a panic too.
    struct Restore(Option<CoreSet>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(own) = &self.0 {
                // What the system allowed before it allows again.
                let _restored = own.apply();
            }
        }
    }
    let own = CoreSet::of_this_thread();
    let _restore = Restore(own.filter(|_| cores.apply()));
    work()
}

/// Runs work while the calling thread sees one core only.
pub(crate) fn on_one_core<R>(work: impl FnOnce() -> R) -> R {
    match CoreSet::of_this_thread().and_then(|own| own.first()) {
        Some(first) => on_cores(&first, work),
        None => work(),
    }
}
