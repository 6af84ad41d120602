//! The functions of a library, with handles of its own size.

use super::{Buffer, Completed, Functions, Parts, Question, Raw};
use crate::abi::Constants;
use libloading::os::unix::Library as Object;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

/// A handle in the representation of the library: `int` or a pointer.
pub(super) trait Handle: Copy {
    fn of(raw: Raw) -> Self;
    fn raw(self) -> Raw;
}

impl Handle for c_int {
    fn of(raw: Raw) -> Self {
        raw.0 as u32 as c_int
    }

    fn raw(self) -> Raw {
        Raw(u64::from(self as u32))
    }
}

impl Handle for *mut c_void {
    fn of(raw: Raw) -> Self {
        raw.0 as usize as *mut c_void
    }

    fn raw(self) -> Raw {
        Raw(self as usize as u64)
    }
}

macro_rules! table {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of a library whose handles are `H`.
        pub(super) struct Table<H> {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            status_bytes: usize,
            scratch: Mutex<Scratch<H>>,
        }

        impl<H: Handle> Table<H> {
            /// Errors: the name of a missing function.
            ///
            /// # Safety
            /// The library must be an MPI whose handles are `H`.
            pub(super) unsafe fn load(object: &Object, status_bytes: usize) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signatures are those of the standard, with `H` for handles.
                    $($field: unsafe {
                        *object
                            .get::<unsafe extern "C" fn($($argument),*) -> c_int>($symbol.as_bytes())
                            .map_err(|_| $symbol)?
                    },)*
                    status_bytes,
                    scratch: Mutex::new(Scratch::default()),
                })
            }
        }
    };
}

table! {
    init_thread = "MPI_Init_thread" (*mut c_int, *mut c_void, c_int, *mut c_int);
    initialized = "MPI_Initialized" (*mut c_int);
    finalized = "MPI_Finalized" (*mut c_int);
    query_thread = "MPI_Query_thread" (*mut c_int);
    is_thread_main = "MPI_Is_thread_main" (*mut c_int);
    finalize = "MPI_Finalize" ();
    abort = "MPI_Abort" (H, c_int);
    error_string = "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    set_errhandler = "MPI_Comm_set_errhandler" (H, H);
    get_attr = "MPI_Comm_get_attr" (H, c_int, *mut c_void, *mut c_int);
    rank = "MPI_Comm_rank" (H, *mut c_int);
    size = "MPI_Comm_size" (H, *mut c_int);
    dup = "MPI_Comm_dup" (H, *mut H);
    split = "MPI_Comm_split" (H, c_int, c_int, *mut H);
    free = "MPI_Comm_free" (*mut H);
    isend = "MPI_Isend" (*const c_void, c_int, H, c_int, c_int, H, *mut H);
    irecv = "MPI_Irecv" (*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    testsome = "MPI_Testsome" (c_int, *mut H, *mut c_int, *mut c_int, *mut c_void);
    cancel = "MPI_Cancel" (*mut H);
    iallreduce = "MPI_Iallreduce" (*const c_void, *mut c_void, c_int, H, H, H, *mut H);
    iallgatherv = "MPI_Iallgatherv"
        (*const c_void, c_int, H, *mut c_void, *const c_int, *const c_int, H, H, *mut H);
    ireduce_scatter = "MPI_Ireduce_scatter"
        (*const c_void, *mut c_void, *const c_int, H, H, H, *mut H);
    ialltoallv = "MPI_Ialltoallv"
        (*const c_void, *const c_int, *const c_int, H, *mut c_void, *const c_int, *const c_int, H,
        H, *mut H);
}

struct Scratch<H> {
    requests: Vec<H>,
    indices: Vec<c_int>,
    /// `MPI_Status` objects, as `u64` for their alignment.
    statuses: Vec<u64>,
}

// SAFETY: handles are names of objects of the library, and nothing here reads through them.
unsafe impl<H> Send for Scratch<H> {}

impl<H> Default for Scratch<H> {
    fn default() -> Self {
        Self {
            requests: Vec::new(),
            indices: Vec::new(),
            statuses: Vec::new(),
        }
    }
}

/// Runs a call that returns a new handle.
fn with_new_handle<H: Handle>(new: &mut Raw, call: impl FnOnce(*mut H) -> c_int) -> c_int {
    let mut handle = H::of(*new);
    let code = call(&mut handle);
    *new = handle.raw();
    code
}

impl<H: Handle> Functions for Table<H> {
    unsafe fn init_thread(&self, wanted: c_int, provided: &mut c_int) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.init_thread)(null_mut(), null_mut(), wanted, provided) }
    }

    unsafe fn ask(&self, question: Question, answer: &mut c_int) -> c_int {
        let ask = match question {
            Question::IsInitialized => self.initialized,
            Question::IsFinalized => self.finalized,
            Question::ThreadLevel => self.query_thread,
            Question::IsThreadMain => self.is_thread_main,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { ask(answer) }
    }

    unsafe fn finalize(&self) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.finalize)() }
    }

    unsafe fn abort(&self, comm: Raw, code: c_int) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.abort)(H::of(comm), code) }
    }

    unsafe fn error_string(&self, code: c_int, text: &mut [u8], length: &mut c_int) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), length) }
    }

    unsafe fn set_errhandler(&self, comm: Raw, handler: Raw) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.set_errhandler)(H::of(comm), H::of(handler)) }
    }

    unsafe fn get_attr(
        &self,
        comm: Raw,
        key: c_int,
        value: &mut *mut c_int,
        flag: &mut c_int,
    ) -> c_int {
        let value: *mut *mut c_int = value;
        // SAFETY: guaranteed by the caller.
        unsafe { (self.get_attr)(H::of(comm), key, value.cast(), flag) }
    }

    unsafe fn rank(&self, comm: Raw, rank: &mut c_int) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.rank)(H::of(comm), rank) }
    }

    unsafe fn size(&self, comm: Raw, size: &mut c_int) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.size)(H::of(comm), size) }
    }

    unsafe fn dup(&self, comm: Raw, new: &mut Raw) -> c_int {
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe { (self.dup)(H::of(comm), new) })
    }

    unsafe fn split(&self, comm: Raw, color: c_int, key: c_int, new: &mut Raw) -> c_int {
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.split)(H::of(comm), color, key, new)
        })
    }

    unsafe fn free(&self, comm: Raw) -> c_int {
        let mut comm = H::of(comm);
        // SAFETY: guaranteed by the caller.
        unsafe { (self.free)(&mut comm) }
    }

    unsafe fn isend(&self, from: Buffer, to: c_int, tag: c_int, comm: Raw, new: &mut Raw) -> c_int {
        let datatype = H::of(from.datatype);
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.isend)(from.start, from.count, datatype, to, tag, H::of(comm), new)
        })
    }

    unsafe fn irecv(
        &self,
        into: Buffer,
        from: c_int,
        tag: c_int,
        comm: Raw,
        new: &mut Raw,
    ) -> c_int {
        let datatype = H::of(into.datatype);
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.irecv)(
                into.start,
                into.count,
                datatype,
                from,
                tag,
                H::of(comm),
                new,
            )
        })
    }

    unsafe fn testsome(
        &self,
        requests: &mut [Raw],
        constants: &Constants,
        completed: &mut Vec<Completed>,
    ) -> c_int {
        let scratch = &mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let words = (requests.len() * self.status_bytes).div_ceil(8);
        scratch.requests.clear();
        scratch
            .requests
            .extend(requests.iter().map(|&raw| H::of(raw)));
        scratch.indices.resize(requests.len(), 0);
        scratch
            .statuses
            .resize(words.max(scratch.statuses.len()), 0);
        let (count, mut found) = (requests.len() as c_int, 0);
        // SAFETY: guaranteed by the caller; there is room for all requests.
        let code = unsafe {
            let (indices, statuses) = (&mut scratch.indices, &mut scratch.statuses);
            let (first, statuses) = (scratch.requests.as_mut_ptr(), statuses.as_mut_ptr().cast());
            (self.testsome)(count, first, &mut found, indices.as_mut_ptr(), statuses)
        };
        if found == constants.undefined || (code != 0 && code != constants.err_in_status) {
            return code;
        }
        let field = |at: usize| {
            let bytes: &[u64] = &scratch.statuses;
            let half = (bytes[at / 8] >> (at % 8 * 8)) as u32;
            half as c_int
        };
        for entry in 0..found as usize {
            let index = scratch.indices[entry] as usize;
            let status = entry * self.status_bytes;
            let error = field(status + constants.status_error);
            requests[index] = scratch.requests[index].raw();
            completed.push(Completed {
                index,
                source: field(status + constants.status_source),
                // The field is set only where the call says so.
                error: if code == constants.err_in_status {
                    error
                } else {
                    0
                },
            });
        }
        0
    }

    unsafe fn cancel(&self, request: Raw) -> c_int {
        let mut request = H::of(request);
        // SAFETY: guaranteed by the caller.
        unsafe { (self.cancel)(&mut request) }
    }

    unsafe fn iallreduce(
        &self,
        from: *const c_void,
        into: Buffer,
        sum: Raw,
        comm: Raw,
        new: &mut Raw,
    ) -> c_int {
        let (datatype, sum, comm) = (H::of(into.datatype), H::of(sum), H::of(comm));
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.iallreduce)(from, into.start, into.count, datatype, sum, comm, new)
        })
    }

    unsafe fn iallgatherv(&self, from: Buffer, into: &Parts, comm: Raw, new: &mut Raw) -> c_int {
        let (datatype, comm) = (H::of(from.datatype), H::of(comm));
        let (counts, starts) = (into.counts.as_ptr(), into.starts.as_ptr());
        let (source, target) = (from.start, into.buffer.start);
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.iallgatherv)(
                source, from.count, datatype, target, counts, starts, datatype, comm, new,
            )
        })
    }

    unsafe fn ireduce_scatter(
        &self,
        from: &Parts,
        into: *mut c_void,
        sum: Raw,
        comm: Raw,
        new: &mut Raw,
    ) -> c_int {
        let (datatype, sum, comm) = (H::of(from.buffer.datatype), H::of(sum), H::of(comm));
        let (source, counts) = (from.buffer.start, from.counts.as_ptr());
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.ireduce_scatter)(source, into, counts, datatype, sum, comm, new)
        })
    }

    unsafe fn ialltoallv(&self, from: &Parts, into: &Parts, comm: Raw, new: &mut Raw) -> c_int {
        let (datatype, comm) = (H::of(from.buffer.datatype), H::of(comm));
        // SAFETY: guaranteed by the caller.
        with_new_handle(new, |new| unsafe {
            (self.ialltoallv)(
                from.buffer.start,
                from.counts.as_ptr(),
                from.starts.as_ptr(),
                datatype,
                into.buffer.start,
                into.counts.as_ptr(),
                into.starts.as_ptr(),
                datatype,
                comm,
                new,
            )
        })
    }
}
