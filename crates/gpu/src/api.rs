//! The functions of the OpenCL library, with every error looked at.
//!
//! Source: the header of OpenCL 1.2 (`CL/cl.h`), whose numbers are the constants here.

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// A handle of any object of the library.
pub(crate) type Handle = *mut c_void;

/// The error of a call: what was called, and the number it gave.
pub(crate) type CallError = (&'static str, c_int);

/// What devices are asked for.
pub(crate) mod device {
    use std::ffi::c_uint;

    pub(crate) const TYPE: c_uint = 0x1000;
    pub(crate) const UNITS: c_uint = 0x1002;
    pub(crate) const LARGEST: c_uint = 0x1010;
    pub(crate) const MEMORY: c_uint = 0x101F;
    pub(crate) const NAME: c_uint = 0x102B;
    pub(crate) const DRIVER: c_uint = 0x102D;
    pub(crate) const VERSION: c_uint = 0x102F;
    /// Bits that say how f64 rounds; none where there is no f64.
    pub(crate) const DOUBLES: c_uint = 0x1032;
    /// A bit of the type.
    pub(crate) const PROCESSOR: u64 = 1 << 1;
}

/// What the loader of OpenCL returns where it finds no driver.
pub(crate) const NO_PLATFORM: c_int = -1001;

const LIBRARY: &str = "libOpenCL.so.1";
const ALL_DEVICES: u64 = 0xFFFF_FFFF;
const PLATFORM_NAME: c_uint = 0x0902;
const BUILD_LOG: c_uint = 0x1183;
const READ_AND_WRITE: u64 = 1;
const BLOCKING: c_uint = 1;
const WITH_TIMES: u64 = 2;
const COMMAND_QUEUED: c_uint = 0x1280;
const COMMAND_START: c_uint = 0x1282;
const COMMAND_END: c_uint = 0x1283;

macro_rules! table {
    ($($field:ident = $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library.
        pub(crate) struct Api {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            /// Errors: the name of a missing function.
            ///
            /// # Safety
            /// The library must be an OpenCL of version 1.2 or later, and stay loaded.
            unsafe fn of(object: &Object) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signatures are those of the header.
                    $($field: unsafe {
                        *object
                            .get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol.as_bytes())
                            .map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}

table! {
    platform_ids = "clGetPlatformIDs" (c_uint, *mut Handle, *mut c_uint) -> c_int;
    platform_info = "clGetPlatformInfo" (Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    device_ids = "clGetDeviceIDs" (Handle, u64, c_uint, *mut Handle, *mut c_uint) -> c_int;
    device_info = "clGetDeviceInfo" (Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    create_context = "clCreateContext"
        (*const isize, c_uint, *const Handle, *const c_void, *mut c_void, *mut c_int) -> Handle;
    release_context = "clReleaseContext" (Handle) -> c_int;
    create_queue = "clCreateCommandQueue" (Handle, Handle, u64, *mut c_int) -> Handle;
    release_queue = "clReleaseCommandQueue" (Handle) -> c_int;
    create_buffer = "clCreateBuffer" (Handle, u64, usize, *mut c_void, *mut c_int) -> Handle;
    release_buffer = "clReleaseMemObject" (Handle) -> c_int;
    create_program = "clCreateProgramWithSource"
        (Handle, c_uint, *const *const c_char, *const usize, *mut c_int) -> Handle;
    build_program = "clBuildProgram"
        (Handle, c_uint, *const Handle, *const c_char, *const c_void, *mut c_void) -> c_int;
    build_info = "clGetProgramBuildInfo" (Handle, Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    release_program = "clReleaseProgram" (Handle) -> c_int;
    create_kernel = "clCreateKernel" (Handle, *const c_char, *mut c_int) -> Handle;
    release_kernel = "clReleaseKernel" (Handle) -> c_int;
    set_argument = "clSetKernelArg" (Handle, c_uint, usize, *const c_void) -> c_int;
    run_kernel = "clEnqueueNDRangeKernel"
        (Handle, Handle, c_uint, *const usize, *const usize, *const usize, c_uint, *const Handle, *mut Handle) -> c_int;
    read_buffer = "clEnqueueReadBuffer"
        (Handle, Handle, c_uint, usize, usize, *mut c_void, c_uint, *const Handle, *mut Handle) -> c_int;
    write_buffer = "clEnqueueWriteBuffer"
        (Handle, Handle, c_uint, usize, usize, *const c_void, c_uint, *const Handle, *mut Handle) -> c_int;
    fill_buffer = "clEnqueueFillBuffer"
        (Handle, Handle, *const c_void, usize, usize, usize, c_uint, *const Handle, *mut Handle) -> c_int;
    finish = "clFinish" (Handle) -> c_int;
    event_times = "clGetEventProfilingInfo" (Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    release_event = "clReleaseEvent" (Handle) -> c_int;
}

/// Of a call.
fn checked(call: &'static str, status: c_int) -> Result<(), CallError> {
    if status == 0 {
        Ok(())
    } else {
        Err((call, status))
    }
}

/// A value whose size the library tells: asks twice.
fn asked(
    call: &'static str,
    ask: impl Fn(usize, *mut c_void, *mut usize) -> c_int,
) -> Result<Vec<u8>, CallError> {
    let mut size = 0;
    checked(call, ask(0, null_mut(), &raw mut size))?;
    let mut bytes = vec![0u8; size];
    checked(call, ask(size, bytes.as_mut_ptr().cast(), null_mut()))?;
    Ok(bytes)
}

impl Api {
    /// The library, loaded by the first call, and kept.
    ///
    /// Errors: why it cannot be used.
    pub(crate) fn load() -> Result<&'static Self, &'static str> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let found = API.get_or_init(|| {
            // SAFETY: the library's own initialization; it is never unloaded.
            let object = unsafe { Object::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) };
            let object = object.map_err(|error| error.to_string())?;
            // SAFETY: of this name there are libraries of OpenCL alone, which keep old functions.
            let api = unsafe { Self::of(&object) };
            let api = api.map_err(|name| format!("{LIBRARY} lacks {name}"))?;
            std::mem::forget(object);
            Ok(api)
        });
        found.as_ref().map_err(String::as_str)
    }

    pub(crate) fn platforms(&self) -> Result<Vec<Handle>, CallError> {
        let mut count = 0;
        // SAFETY: the count is written, and then as many handles as there is room for.
        let call = |room, to, count| unsafe { (self.platform_ids)(room, to, count) };
        checked("clGetPlatformIDs", call(0, null_mut(), &raw mut count))?;
        let mut all = vec![null_mut(); count as usize];
        checked(
            "clGetPlatformIDs",
            call(count, all.as_mut_ptr(), null_mut()),
        )?;
        Ok(all)
    }

    pub(crate) fn platform_name(&self, platform: Handle) -> Result<Vec<u8>, CallError> {
        asked("clGetPlatformInfo", |size, to, needed| {
            // SAFETY: `to` has room for `size` bytes.
            unsafe { (self.platform_info)(platform, PLATFORM_NAME, size, to, needed) }
        })
    }

    pub(crate) fn devices(&self, platform: Handle) -> Result<Vec<Handle>, CallError> {
        let mut count = 0;
        // SAFETY: as for platforms.
        let call =
            |room, to, count| unsafe { (self.device_ids)(platform, ALL_DEVICES, room, to, count) };
        checked("clGetDeviceIDs", call(0, null_mut(), &raw mut count))?;
        let mut all = vec![null_mut(); count as usize];
        checked("clGetDeviceIDs", call(count, all.as_mut_ptr(), null_mut()))?;
        Ok(all)
    }

    pub(crate) fn device_info(&self, device: Handle, what: c_uint) -> Result<Vec<u8>, CallError> {
        asked("clGetDeviceInfo", |size, to, needed| {
            // SAFETY: `to` has room for `size` bytes.
            unsafe { (self.device_info)(device, what, size, to, needed) }
        })
    }

    pub(crate) fn create_context(&self, device: Handle) -> Result<Handle, CallError> {
        let mut status = 0;
        // SAFETY: one device, no properties, no callback.
        let raw = unsafe {
            (self.create_context)(
                null(),
                1,
                &raw const device,
                null(),
                null_mut(),
                &raw mut status,
            )
        };
        checked("clCreateContext", status).map(|()| raw)
    }

    /// One that runs commands in order, and keeps when they ran.
    pub(crate) fn create_queue(
        &self,
        context: Handle,
        device: Handle,
    ) -> Result<Handle, CallError> {
        let mut status = 0;
        // SAFETY: the device is that of the context.
        let raw = unsafe { (self.create_queue)(context, device, WITH_TIMES, &raw mut status) };
        checked("clCreateCommandQueue", status).map(|()| raw)
    }

    pub(crate) fn create_buffer(&self, context: Handle, bytes: usize) -> Result<Handle, CallError> {
        let mut status = 0;
        // SAFETY: no memory of the host is involved.
        let raw = unsafe {
            (self.create_buffer)(context, READ_AND_WRITE, bytes, null_mut(), &raw mut status)
        };
        checked("clCreateBuffer", status).map(|()| raw)
    }

    /// Errors: also the log of the compiler.
    pub(crate) fn compile(
        &self,
        (context, device): (Handle, Handle),
        source: &str,
        options: &CStr,
    ) -> Result<Handle, (CallError, String)> {
        let (mut status, length, start) = (0, source.len(), source.as_ptr().cast());
        // SAFETY: one source of this length.
        let program = unsafe {
            (self.create_program)(
                context,
                1,
                &raw const start,
                &raw const length,
                &raw mut status,
            )
        };
        checked("clCreateProgramWithSource", status).map_err(|error| (error, String::new()))?;
        // SAFETY: no callback, so the call returns when the program is built.
        let status = unsafe {
            (self.build_program)(
                program,
                1,
                &raw const device,
                options.as_ptr(),
                null(),
                null_mut(),
            )
        };
        checked("clBuildProgram", status).map_err(|error| {
            let log = asked("clGetProgramBuildInfo", |size, to, needed| {
                // SAFETY: `to` has room for `size` bytes.
                unsafe { (self.build_info)(program, device, BUILD_LOG, size, to, needed) }
            });
            let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
            (error, log)
        })?;
        Ok(program)
    }

    pub(crate) fn create_kernel(&self, program: Handle, name: &CStr) -> Result<Handle, CallError> {
        let mut status = 0;
        // SAFETY: the name ends with a zero.
        let raw = unsafe { (self.create_kernel)(program, name.as_ptr(), &raw mut status) };
        checked("clCreateKernel", status).map(|()| raw)
    }

    /// # Safety
    /// `value` is valid for `size` bytes, or null for memory that a work-group shares.
    pub(crate) unsafe fn set_argument(
        &self,
        kernel: Handle,
        number: usize,
        (size, value): (usize, *const c_void),
    ) -> Result<(), CallError> {
        // SAFETY: guaranteed by the caller; the value is copied.
        let status = unsafe { (self.set_argument)(kernel, number as c_uint, size, value) };
        checked("clSetKernelArg", status)
    }

    /// Gives the event of the command, which the caller owns.
    ///
    /// # Safety
    /// The kernel has its arguments, and accesses memory that these describe.
    pub(crate) unsafe fn run_kernel(
        &self,
        queue: Handle,
        kernel: Handle,
        (groups, group): (usize, usize),
    ) -> Result<Handle, CallError> {
        let (all, mut event) = (groups * group, null_mut());
        // SAFETY: one dim, no offset, nothing to wait for.
        let status = unsafe {
            (self.run_kernel)(
                queue,
                kernel,
                1,
                null(),
                &raw const all,
                &raw const group,
                0,
                null(),
                &raw mut event,
            )
        };
        checked("clEnqueueNDRangeKernel", status).map(|()| event)
    }

    /// When a command that has ended was given, began and ended, in nanoseconds of the device's clock.
    pub(crate) fn times(&self, event: Handle) -> Result<[u64; 3], CallError> {
        let mut times = [0u64; 3];
        let all = [COMMAND_QUEUED, COMMAND_START, COMMAND_END];
        for (time, what) in times.iter_mut().zip(all) {
            let (size, to) = (size_of::<u64>(), (&raw mut *time).cast());
            // SAFETY: `to` has room for `size` bytes.
            let status = unsafe { (self.event_times)(event, what, size, to, null_mut()) };
            checked("clGetEventProfilingInfo", status)?;
        }
        Ok(times)
    }

    /// Returns when the bytes have been read.
    pub(crate) fn read(
        &self,
        queue: Handle,
        (buffer, first): (Handle, u64),
        to: &mut [u8],
    ) -> Result<(), CallError> {
        let (first, size, to) = (first as usize, to.len(), to.as_mut_ptr().cast());
        // SAFETY: blocks until `size` bytes are in `to`; no events.
        let status = unsafe {
            (self.read_buffer)(
                queue,
                buffer,
                BLOCKING,
                first,
                size,
                to,
                0,
                null(),
                null_mut(),
            )
        };
        checked("clEnqueueReadBuffer", status)
    }

    /// Returns when the bytes have been copied.
    pub(crate) fn write(
        &self,
        queue: Handle,
        (buffer, first): (Handle, u64),
        from: &[u8],
    ) -> Result<(), CallError> {
        let (first, size, from) = (first as usize, from.len(), from.as_ptr().cast());
        // SAFETY: blocks until `size` bytes of `from` were taken; no events.
        let status = unsafe {
            (self.write_buffer)(
                queue,
                buffer,
                BLOCKING,
                first,
                size,
                from,
                0,
                null(),
                null_mut(),
            )
        };
        checked("clEnqueueWriteBuffer", status)
    }

    /// Of a number of bytes that 4 divides.
    pub(crate) fn fill_zeros(
        &self,
        queue: Handle,
        buffer: Handle,
        bytes: u64,
    ) -> Result<(), CallError> {
        let zero = 0u32;
        let pattern = (&raw const zero).cast();
        // SAFETY: the pattern is copied before the call returns; no events.
        let status = unsafe {
            (self.fill_buffer)(
                queue,
                buffer,
                pattern,
                4,
                0,
                bytes as usize,
                0,
                null(),
                null_mut(),
            )
        };
        checked("clEnqueueFillBuffer", status)
    }

    pub(crate) fn finish(&self, queue: Handle) -> Result<(), CallError> {
        // SAFETY: a queue of this library.
        checked("clFinish", unsafe { (self.finish)(queue) })
    }

    /// Releases an object; an error changes nothing.
    ///
    /// # Safety
    /// The caller owns it, and no longer uses it.
    pub(crate) unsafe fn release(&self, what: ObjectKind, handle: Handle) {
        let release = match what {
            ObjectKind::Context => self.release_context,
            ObjectKind::Queue => self.release_queue,
            ObjectKind::Buffer => self.release_buffer,
            ObjectKind::Program => self.release_program,
            ObjectKind::Kernel => self.release_kernel,
            ObjectKind::Event => self.release_event,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { release(handle) };
    }
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ObjectKind {
    Context,
    Queue,
    Buffer,
    Program,
    Kernel,
    Event,
}
