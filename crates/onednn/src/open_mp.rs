//! The threads of the OpenMP runtime that a library brings.

use libloading::os::unix::Library as Object;
use std::ffi::c_int;

/// Functions of the runtime; each concerns the calling thread alone.
pub(crate) struct OpenMp {
    set_threads: unsafe extern "C" fn(c_int),
    threads: unsafe extern "C" fn() -> c_int,
    /// Of the LLVM and Intel runtimes: how long threads spin after their work, in milliseconds.
    set_block_time: Option<unsafe extern "C" fn(c_int)>,
}

impl OpenMp {
    /// None if neither the object nor what it depends on has the functions.
    ///
    /// # Safety
    /// The object stays loaded.
    pub(crate) unsafe fn of(object: &Object) -> Option<Self> {
        type Set = unsafe extern "C" fn(c_int);
        type Get = unsafe extern "C" fn() -> c_int;
        // SAFETY: the signatures are those of the OpenMP standard (5.2, sections 18.2.1 and 18.2.3) and of the LLVM
        // runtime.
        unsafe {
            let set_block_time = object.get::<Set>(b"kmp_set_blocktime").ok();
            Some(Self {
                set_threads: *object.get::<Set>(b"omp_set_num_threads").ok()?,
                threads: *object.get::<Get>(b"omp_get_max_threads").ok()?,
                set_block_time: set_block_time.map(|found| *found),
            })
        }
    }

    /// Runs work whose parallel regions have this many threads.
    pub(crate) fn with_threads<R>(&self, threads: usize, work: impl FnOnce() -> R) -> R {
        /// Sets the earlier number again, after a panic too.
        struct Restore<'o>(&'o OpenMp, c_int);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                // SAFETY: the runtime gave this number.
                unsafe { (self.0.set_threads)(self.1) };
            }
        }
        // SAFETY: asks for a number.
        let before = unsafe { (self.threads)() };
        let _restore = Restore(self, before);
        // SAFETY: any positive number of threads is valid.
        unsafe { (self.set_threads)(c_int::try_from(threads.max(1)).unwrap_or(c_int::MAX)) };
        work()
    }

    /// Lets threads sleep as soon as their work ends, so that others may use their cores.
    pub(crate) fn sleep_at_once(&self) {
        if let Some(set) = self.set_block_time {
            // SAFETY: zero milliseconds are valid.
            unsafe { set(0) };
        }
    }
}
