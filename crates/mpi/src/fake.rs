//! A fake MPI of one rank for tests. It accesses buffers as late as a real one may: when requests are
//! tested.

use crate::abi::{Constants, Family};
use crate::call::{Buffer, Completed, Functions, Mpi, Parts, Question, Raw};
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

pub(crate) fn mpi() -> Mpi {
    mpi_that_sends(usize::MAX)
}

/// Fails after this many sends.
pub(crate) fn mpi_that_sends(sends: usize) -> Mpi {
    let fake = Fake {
        state: Mutex::new(State {
            sends,
            ..State::default()
        }),
    };
    Mpi::of_functions(Box::new(fake), Family::Standard.constants())
}

#[derive(Default)]
struct State {
    sends: usize,
    next: u64,
    sent: Vec<Message>,
    posted: Vec<Message>,
    done: Vec<u64>,
}

struct Message {
    request: u64,
    tag: c_int,
    buffer: Buffer,
}

struct Fake {
    state: Mutex<State>,
}

// SAFETY: tests use it on one thread.
unsafe impl Send for State {}

impl State {
    fn request(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Moves what is sent to what is received, in order for each tag.
    ///
    /// # Safety
    /// All buffers are in place.
    unsafe fn deliver(&mut self) {
        for into in std::mem::take(&mut self.posted) {
            let Some(at) = self.sent.iter().position(|from| from.tag == into.tag) else {
                self.posted.push(into);
                continue;
            };
            let from = self.sent.remove(at);
            assert!(from.buffer.count <= into.buffer.count, "a short receive");
            let (from_start, to) = (
                from.buffer.start.cast::<u8>(),
                into.buffer.start.cast::<u8>(),
            );
            // SAFETY: guaranteed by the caller, and the receive is long enough.
            unsafe { to.copy_from(from_start, from.buffer.count as usize) };
            self.done.extend([from.request, into.request]);
        }
    }
}

macro_rules! unsupported {
    ($($name:ident($($argument:ty),*);)*) => {
        $(unsafe fn $name(&self, $(_: $argument),*) -> c_int {
            panic!("not supported by the fake")
        })*
    };
}

impl Functions for Fake {
    unsafe fn isend(&self, from: Buffer, _: c_int, tag: c_int, _: Raw, new: &mut Raw) -> c_int {
        let mut state = self.state.lock().unwrap();
        if state.sent.len() == state.sends {
            return 1;
        }
        let request = state.request();
        *new = Raw::of_number(request);
        state.sent.push(Message {
            request,
            tag,
            buffer: from,
        });
        0
    }

    unsafe fn irecv(&self, into: Buffer, _: c_int, tag: c_int, _: Raw, new: &mut Raw) -> c_int {
        let mut state = self.state.lock().unwrap();
        let request = state.request();
        *new = Raw::of_number(request);
        state.posted.push(Message {
            request,
            tag,
            buffer: into,
        });
        0
    }

    unsafe fn testsome(
        &self,
        requests: &mut [Raw],
        _: &Constants,
        completed: &mut Vec<Completed>,
    ) -> c_int {
        let mut state = self.state.lock().unwrap();
        // SAFETY: the requests are alive, so are their buffers.
        unsafe { state.deliver() };
        for (index, request) in requests.iter().enumerate() {
            let done = |number: &u64| Raw::of_number(*number) == *request;
            if let Some(at) = state.done.iter().position(done) {
                state.done.swap_remove(at);
                completed.push(Completed {
                    index,
                    source: 0,
                    error: 0,
                });
            }
        }
        0
    }

    unsafe fn cancel(&self, request: Raw) -> c_int {
        let mut state = self.state.lock().unwrap();
        let is_it = |message: &Message| Raw::of_number(message.request) == request;
        if let Some(at) = state.posted.iter().position(is_it) {
            let number = state.posted.remove(at).request;
            state.done.push(number);
        }
        0
    }

    unsafe fn error_string(&self, _: c_int, text: &mut [u8], length: &mut c_int) -> c_int {
        let message = b"injected failure";
        text[..message.len()].copy_from_slice(message);
        *length = message.len() as c_int;
        0
    }

    unsupported! {
        init_thread(c_int, &mut c_int);
        ask(Question, &mut c_int);
        finalize();
        abort(Raw, c_int);
        set_errhandler(Raw, Raw);
        get_attr(Raw, c_int, &mut *mut c_int, &mut c_int);
        rank(Raw, &mut c_int);
        size(Raw, &mut c_int);
        dup(Raw, &mut Raw);
        split(Raw, c_int, c_int, &mut Raw);
        free(Raw);
        iallreduce(*const c_void, Buffer, Raw, Raw, &mut Raw);
        iallgatherv(Buffer, &Parts, Raw, &mut Raw);
        ireduce_scatter(&Parts, *mut c_void, Raw, Raw, &mut Raw);
        ialltoallv(&Parts, &Parts, Raw, &mut Raw);
    }
}
