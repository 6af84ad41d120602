//! The functions of a loaded library, each with its return code looked at.

mod table;

use crate::abi::Constants;
use libloading::os::unix::Library as Object;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use table::Table;

/// A failed call of MPI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} gave error {code}: {text}")]
pub struct MpiError {
    /// The MPI function.
    pub call: &'static str,
    /// Its return code.
    pub code: i32,
    /// The text of `MPI_Error_string`.
    pub text: String,
}

/// An MPI handle in 64 bits, whatever its size in the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw(u64);

#[cfg(test)]
impl Raw {
    pub(crate) fn of_number(number: u64) -> Self {
        Self(number)
    }
}

/// A request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    /// Its index among the tested requests.
    pub(crate) index: usize,
    /// `MPI_SOURCE` of its status.
    pub(crate) source: c_int,
    /// `MPI_ERROR` of its status.
    pub(crate) error: c_int,
}

/// Memory that a request reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) start: *mut c_void,
    pub(crate) count: c_int,
    pub(crate) datatype: Raw,
}

/// A buffer in parts, one for each rank of a communicator.
pub(crate) struct Parts<'p> {
    pub(crate) buffer: Buffer,
    /// Elements of each part.
    pub(crate) counts: &'p [c_int],
    /// Where each part begins, in elements.
    pub(crate) starts: &'p [c_int],
}

/// What MPI tells of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether `MPI_Init` or `MPI_Init_thread` was called.
    IsInitialized,
    /// Whether `MPI_Finalize` was called.
    IsFinalized,
    /// The provided level of threads.
    ThreadLevel,
    /// Whether this thread is the one that initialized MPI.
    IsThreadMain,
}

impl Question {
    fn call(self) -> &'static str {
        match self {
            Self::IsInitialized => "MPI_Initialized",
            Self::IsFinalized => "MPI_Finalized",
            Self::ThreadLevel => "MPI_Query_thread",
            Self::IsThreadMain => "MPI_Is_thread_main",
        }
    }
}

/// The MPI functions, independent of the size of a handle. Each returns the return code.
pub(crate) trait Functions: Send + Sync {
    /// # Safety
    /// MPI is not started yet.
    unsafe fn init_thread(&self, wanted: c_int, provided: &mut c_int) -> c_int;
    /// Asks for a flag or a level, at any time but for `ThreadLevel` and `IsThreadMain`.
    ///
    /// # Safety
    /// MPI is initialized where the standard wants it for the question.
    unsafe fn ask(&self, question: Question, answer: &mut c_int) -> c_int;
    /// # Safety
    /// No request is pending, and only version functions are called afterwards.
    unsafe fn finalize(&self) -> c_int;
    /// # Safety
    /// The communicator is of this library.
    unsafe fn abort(&self, comm: Raw, code: c_int) -> c_int;
    /// # Safety
    /// The text has room for the longest that the library gives.
    unsafe fn error_string(&self, code: c_int, text: &mut [u8], length: &mut c_int) -> c_int;
    /// # Safety
    /// Both handles are of this library.
    unsafe fn set_errhandler(&self, comm: Raw, handler: Raw) -> c_int;
    /// # Safety
    /// The communicator is one of this library, and the value of the key a pointer.
    unsafe fn get_attr(
        &self,
        comm: Raw,
        key: c_int,
        value: &mut *mut c_int,
        flag: &mut c_int,
    ) -> c_int;
    /// # Safety
    /// The communicator is of this library.
    unsafe fn rank(&self, comm: Raw, rank: &mut c_int) -> c_int;
    /// # Safety
    /// The communicator is of this library.
    unsafe fn size(&self, comm: Raw, size: &mut c_int) -> c_int;
    /// # Safety
    /// The communicator is of this library.
    unsafe fn dup(&self, comm: Raw, new: &mut Raw) -> c_int;
    /// # Safety
    /// The communicator is of this library.
    unsafe fn split(&self, comm: Raw, color: c_int, key: c_int, new: &mut Raw) -> c_int;
    /// # Safety
    /// The communicator is of this library, and not used afterwards.
    unsafe fn free(&self, comm: Raw) -> c_int;
    /// # Safety
    /// Handles are of this library; the buffer stays in place and unchanged until the request has
    /// completed.
    unsafe fn isend(&self, from: Buffer, to: c_int, tag: c_int, comm: Raw, new: &mut Raw) -> c_int;
    /// # Safety
    /// Handles are of this library; the buffer stays in place and untouched until the request has
    /// completed.
    unsafe fn irecv(
        &self,
        into: Buffer,
        from: c_int,
        tag: c_int,
        comm: Raw,
        new: &mut Raw,
    ) -> c_int;
    /// # Safety
    /// The requests are alive, and the constants those of this library.
    unsafe fn testsome(
        &self,
        requests: &mut [Raw],
        constants: &Constants,
        completed: &mut Vec<Completed>,
    ) -> c_int;
    /// # Safety
    /// The request is alive.
    unsafe fn cancel(&self, request: Raw) -> c_int;
    /// # Safety
    /// Handles are of this library; `from` is MPI_IN_PLACE, and the buffer stays in place and untouched
    /// until the request has completed.
    unsafe fn iallreduce(
        &self,
        from: *const c_void,
        into: Buffer,
        sum: Raw,
        comm: Raw,
        new: &mut Raw,
    ) -> c_int;
    /// # Safety
    /// Handles are of this library. Both buffers, counts and starts, of one entry for each member, stay in
    /// place and untouched until the request has completed.
    unsafe fn iallgatherv(&self, from: Buffer, into: &Parts, comm: Raw, new: &mut Raw) -> c_int;
    /// # Safety
    /// As for `iallgatherv`.
    unsafe fn ireduce_scatter(
        &self,
        from: &Parts,
        into: *mut c_void,
        sum: Raw,
        comm: Raw,
        new: &mut Raw,
    ) -> c_int;
    /// # Safety
    /// As for `iallgatherv`.
    unsafe fn ialltoallv(&self, from: &Parts, into: &Parts, comm: Raw, new: &mut Raw) -> c_int;
}

/// A loaded library: its functions, checked, and its predefined handles.
pub(crate) struct Mpi {
    functions: Box<dyn Functions>,
    pub(crate) constants: Constants,
    pub(crate) comm_world: Raw,
    pub(crate) byte: Raw,
    pub(crate) int16: Raw,
    pub(crate) float: Raw,
    pub(crate) double: Raw,
    pub(crate) sum: Raw,
    pub(crate) errors_return: Raw,
}

/// The resolved handles, in the order of [`Handles::named`](crate::Handles::named).
pub(crate) type Resolved = [u64; 7];

impl Mpi {
    /// Errors: the name of a missing function.
    ///
    /// # Safety
    /// The library must be an MPI with these constants and handles of this size, and stay loaded.
    pub(crate) unsafe fn load(
        object: &Object,
        constants: Constants,
        handles_are_int: bool,
        handles: Resolved,
    ) -> Result<Self, &'static str> {
        // SAFETY: guaranteed by the caller.
        let functions: Box<dyn Functions> = unsafe {
            if handles_are_int {
                Box::new(Table::<c_int>::load(object, constants.status_bytes)?)
            } else {
                Box::new(Table::<*mut c_void>::load(object, constants.status_bytes)?)
            }
        };
        let [comm_world, byte, int16, float, double, sum, errors_return] = handles.map(Raw);
        Ok(Self {
            functions,
            constants,
            comm_world,
            byte,
            int16,
            float,
            double,
            sum,
            errors_return,
        })
    }

    /// An MPI with the functions of a test.
    #[cfg(test)]
    pub(crate) fn of_functions(functions: Box<dyn Functions>, constants: Constants) -> Self {
        let handle = Raw(0);
        Self {
            functions,
            constants,
            comm_world: handle,
            byte: handle,
            int16: handle,
            float: handle,
            double: handle,
            sum: handle,
            errors_return: handle,
        }
    }

    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let text = self.error_text(code);
        Err(MpiError { call, code, text })
    }

    /// The text of `MPI_Error_string`.
    pub(crate) fn error_text(&self, code: c_int) -> String {
        let mut text = vec![0; self.constants.error_string_max + 1];
        let mut length = 0;
        // SAFETY: the text has room for the longest that the family gives.
        let failed = unsafe { self.functions.error_string(code, &mut text, &mut length) };
        if failed != 0 {
            return "without a text".to_owned();
        }
        text.truncate(length.max(0) as usize);
        one_line(&String::from_utf8_lossy(&text))
    }

    /// The answer to a question. `ThreadLevel` and `IsThreadMain` are asked between `init` and `finalize` alone.
    pub(crate) fn ask(&self, question: Question) -> Result<c_int, MpiError> {
        let mut answer = 0;
        // SAFETY: guaranteed by the caller.
        let code = unsafe { self.functions.ask(question, &mut answer) };
        self.check(question.call(), code)?;
        Ok(answer)
    }

    /// Initializes MPI, requesting `MPI_THREAD_MULTIPLE`; returns the provided level.
    pub(crate) fn init(&self) -> Result<c_int, MpiError> {
        let mut provided = 0;
        let wanted = self.constants.thread_levels[3];
        // SAFETY: the standard allows null for both arguments of `main`.
        let code = unsafe { self.functions.init_thread(wanted, &mut provided) };
        self.check("MPI_Init_thread", code)?;
        self.return_errors(self.comm_world)?;
        Ok(provided)
    }

    /// Lets calls on a communicator return their errors.
    fn return_errors(&self, comm: Raw) -> Result<(), MpiError> {
        // SAFETY: both are handles of the library.
        let code = unsafe { self.functions.set_errhandler(comm, self.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    /// Frees a communicator, which nobody uses any more.
    pub(crate) fn free(&self, comm: Raw) -> Result<(), MpiError> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { self.functions.free(comm) };
        self.check("MPI_Comm_free", code)
    }

    pub(crate) fn finalize(&self) -> Result<(), MpiError> {
        // SAFETY: it takes nothing.
        let code = unsafe { self.functions.finalize() };
        // `MPI_Error_string` may not be called after `MPI_Finalize`.
        match code {
            0 => Ok(()),
            code => Err(MpiError {
                call: "MPI_Finalize",
                code,
                text: String::new(),
            }),
        }
    }

    /// Returns only if it fails.
    pub(crate) fn abort(&self, code: c_int) -> Result<(), MpiError> {
        // SAFETY: a predefined handle.
        let code = unsafe { self.functions.abort(self.comm_world, code) };
        self.check("MPI_Abort", code)
    }

    /// This rank and the number of all.
    pub(crate) fn rank_and_size(&self) -> Result<(usize, usize), MpiError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a predefined handle.
        let codes = unsafe {
            [
                self.functions.rank(self.comm_world, &mut rank),
                self.functions.size(self.comm_world, &mut size),
            ]
        };
        self.check("MPI_Comm_rank", codes[0])?;
        self.check("MPI_Comm_size", codes[1])?;
        Ok((rank as usize, size as usize))
    }

    /// The largest tag.
    pub(crate) fn tag_max(&self) -> Result<c_int, MpiError> {
        let mut value: *mut c_int = null_mut();
        let mut flag = 0;
        // SAFETY: the attribute is predefined, and its value a pointer to an int.
        let code = unsafe {
            let key = self.constants.tag_ub;
            self.functions
                .get_attr(self.comm_world, key, &mut value, &mut flag)
        };
        self.check("MPI_Comm_get_attr", code)?;
        if flag == 0 || value.is_null() {
            // The least that section 9.1.2 of MPI 4.1 guarantees.
            return Ok(32767);
        }
        // SAFETY: as above; the pointer is not null.
        Ok(unsafe { *value })
    }

    /// The new handle that a call returns.
    fn handle(
        &self,
        call: &'static str,
        make: impl FnOnce(&mut Raw) -> c_int,
    ) -> Result<Raw, MpiError> {
        let mut new = Raw(0);
        let code = make(&mut new);
        self.check(call, code)?;
        Ok(new)
    }

    pub(crate) fn dup(&self, comm: Raw) -> Result<Raw, MpiError> {
        // SAFETY: handles come from the library, and the communicators of a world live as long as it does.
        let new = self.handle("MPI_Comm_dup", |new| unsafe {
            self.functions.dup(comm, new)
        })?;
        // Whoever initialized MPI may want errors of the other one to be fatal.
        self.return_errors(new)?;
        Ok(new)
    }

    pub(crate) fn split(&self, comm: Raw, color: usize, key: usize) -> Result<Raw, MpiError> {
        // SAFETY: as above.
        let new = self.handle("MPI_Comm_split", |new| unsafe {
            self.functions
                .split(comm, color as c_int, key as c_int, new)
        })?;
        self.return_errors(new)?;
        Ok(new)
    }

    /// # Safety
    /// The buffer stays in place and unchanged until the request has completed.
    pub(crate) unsafe fn isend(
        &self,
        from: Buffer,
        to: usize,
        tag: c_int,
        comm: Raw,
    ) -> Result<Raw, MpiError> {
        // SAFETY: guaranteed by the caller.
        self.handle("MPI_Isend", |new| unsafe {
            self.functions.isend(from, to as c_int, tag, comm, new)
        })
    }

    /// # Safety
    /// The buffer stays in place and untouched until the request has completed.
    pub(crate) unsafe fn irecv(
        &self,
        into: Buffer,
        from: c_int,
        tag: c_int,
        comm: Raw,
    ) -> Result<Raw, MpiError> {
        // SAFETY: guaranteed by the caller.
        self.handle("MPI_Irecv", |new| unsafe {
            self.functions.irecv(into, from, tag, comm, new)
        })
    }

    /// Appends the requests that have completed; their handles become null.
    ///
    /// # Safety
    /// The requests are alive: made by this library, and not yet reported as completed.
    pub(crate) unsafe fn test_some(
        &self,
        requests: &mut [Raw],
        completed: &mut Vec<Completed>,
    ) -> Result<(), MpiError> {
        if requests.is_empty() {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        let code = unsafe {
            self.functions
                .testsome(requests, &self.constants, completed)
        };
        self.check("MPI_Testsome", code)
    }

    /// # Safety
    /// The request is alive; it completes in a later test.
    pub(crate) unsafe fn cancel(&self, request: Raw) -> Result<(), MpiError> {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { self.functions.cancel(request) };
        self.check("MPI_Cancel", code)
    }

    /// Sums in place.
    ///
    /// # Safety
    /// The buffer stays in place and untouched until the request has completed.
    pub(crate) unsafe fn iallreduce(&self, buffer: Buffer, comm: Raw) -> Result<Raw, MpiError> {
        let in_place = self.constants.in_place as *const c_void;
        // SAFETY: guaranteed by the caller.
        self.handle("MPI_Iallreduce", |new| unsafe {
            self.functions
                .iallreduce(in_place, buffer, self.sum, comm, new)
        })
    }

    /// # Safety
    /// Both buffers, counts and starts stay in place and untouched until the request has completed.
    pub(crate) unsafe fn iallgatherv(
        &self,
        from: Buffer,
        into: &Parts,
        comm: Raw,
    ) -> Result<Raw, MpiError> {
        // SAFETY: guaranteed by the caller.
        self.handle("MPI_Iallgatherv", |new| unsafe {
            self.functions.iallgatherv(from, into, comm, new)
        })
    }

    /// # Safety
    /// As for `iallgatherv`.
    pub(crate) unsafe fn ireduce_scatter(
        &self,
        from: &Parts,
        into: *mut c_void,
        comm: Raw,
    ) -> Result<Raw, MpiError> {
        // SAFETY: guaranteed by the caller.
        self.handle("MPI_Ireduce_scatter", |new| unsafe {
            self.functions
                .ireduce_scatter(from, into, self.sum, comm, new)
        })
    }

    /// # Safety
    /// As for `iallgatherv`.
    pub(crate) unsafe fn ialltoallv(
        &self,
        from: &Parts,
        into: &Parts,
        comm: Raw,
    ) -> Result<Raw, MpiError> {
        // SAFETY: guaranteed by the caller.
        self.handle("MPI_Ialltoallv", |new| unsafe {
            self.functions.ialltoallv(from, into, comm, new)
        })
    }
}

/// Shortens an MPICH error stack, one call a line, to its first and last line.
fn one_line(text: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines = text.lines().map(words).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let first = first.strip_suffix(", error stack:").unwrap_or(&first);
    match lines.next_back() {
        Some(last) => format!("{first}; {last}"),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_becomes_one_line() {
        let stack = "Other MPI error, error stack:\ninternal_Isend(120): MPI_Isend(count=16) failed\n\
                     MPID_Isend(178)....: \nMPIDI_UCX_send(83).:  Endpoint timeout\n";
        assert_eq!(
            one_line(stack),
            "Other MPI error; MPIDI_UCX_send(83).: Endpoint timeout"
        );
        assert_eq!(
            one_line("MPI_ERR_RANK: invalid rank"),
            "MPI_ERR_RANK: invalid rank"
        );
        assert_eq!(one_line("\n"), "");
    }
}
