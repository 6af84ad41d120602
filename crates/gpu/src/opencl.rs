//! OpenCL, looked for at run time.
//!
//! Source: the header of OpenCL 1.2 (`CL/cl.h`), whose numbers are the constants here.

use crate::arg::Arg;
use crate::device::{CallError, DeviceError, DeviceFacts, DeviceKind};
use crate::driver::{
    BufferHandle, Driver, EventHandle, Found, KernelHandle, ModuleHandle, Object, QueueHandle,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use partita_space::Bytes;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};

/// A platform of the library.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
struct PlatformId(usize);

/// A device of a platform.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
struct DeviceId(usize);

/// What memory and commands of a device belong to.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct Context(usize);

/// What devices are asked for.
mod device {
    use std::ffi::c_uint;

    pub(super) const TYPE: c_uint = 0x1000;
    pub(super) const UNITS: c_uint = 0x1002;
    pub(super) const LARGEST: c_uint = 0x1010;
    pub(super) const MEMORY: c_uint = 0x101F;
    pub(super) const NAME: c_uint = 0x102B;
    pub(super) const DRIVER: c_uint = 0x102D;
    pub(super) const VERSION: c_uint = 0x102F;
    /// Bits that say how f64 rounds; none where there is no f64.
    pub(super) const DOUBLES: c_uint = 0x1032;
    /// A bit of the type.
    pub(super) const PROCESSOR: u64 = 1 << 1;
}

/// What the loader of OpenCL returns where it finds no driver.
const NO_PLATFORM: c_int = -1001;

const NAME: &str = "OpenCL";
const LIBRARY: &str = "libOpenCL.so.1";
const ALL_DEVICES: u64 = 0xFFFF_FFFF;
const PLATFORM_NAME: c_uint = 0x0902;
const BUILD_LOG: c_uint = 0x1183;
const READ_AND_WRITE: u64 = 1;
const BLOCKING: c_uint = 1;
const WITH_TIMES: u64 = 2;
const LATER: c_uint = 0;
const EVENT_STATUS: c_uint = 0x11D3;
const COMMAND_QUEUED: c_uint = 0x1280;
const COMMAND_START: c_uint = 0x1282;
const COMMAND_END: c_uint = 0x1283;

macro_rules! table {
    ($($field:ident = $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library.
        struct Api {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            /// Errors: the name of a missing function.
            ///
            /// # Safety
            /// The library must be an OpenCL of version 1.2 or later, and stay loaded.
            unsafe fn of(object: &Library) -> Result<Self, &'static str> {
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
    platform_ids = "clGetPlatformIDs" (c_uint, *mut PlatformId, *mut c_uint) -> c_int;
    platform_info = "clGetPlatformInfo" (PlatformId, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    device_ids = "clGetDeviceIDs" (PlatformId, u64, c_uint, *mut DeviceId, *mut c_uint) -> c_int;
    device_info = "clGetDeviceInfo" (DeviceId, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    create_context = "clCreateContext"
        (*const isize, c_uint, *const DeviceId, *const c_void, *mut c_void, *mut c_int) -> Context;
    release_context = "clReleaseContext" (Context) -> c_int;
    create_queue = "clCreateCommandQueue" (Context, DeviceId, u64, *mut c_int) -> QueueHandle;
    release_queue = "clReleaseCommandQueue" (QueueHandle) -> c_int;
    create_buffer = "clCreateBuffer" (Context, u64, usize, *mut c_void, *mut c_int) -> BufferHandle;
    release_buffer = "clReleaseMemObject" (BufferHandle) -> c_int;
    create_program = "clCreateProgramWithSource"
        (Context, c_uint, *const *const c_char, *const usize, *mut c_int) -> ModuleHandle;
    build_program = "clBuildProgram"
        (ModuleHandle, c_uint, *const DeviceId, *const c_char, *const c_void, *mut c_void) -> c_int;
    build_info = "clGetProgramBuildInfo" (ModuleHandle, DeviceId, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    release_program = "clReleaseProgram" (ModuleHandle) -> c_int;
    create_kernel = "clCreateKernel" (ModuleHandle, *const c_char, *mut c_int) -> KernelHandle;
    release_kernel = "clReleaseKernel" (KernelHandle) -> c_int;
    set_argument = "clSetKernelArg" (KernelHandle, c_uint, usize, *const c_void) -> c_int;
    run_kernel = "clEnqueueNDRangeKernel"
        (QueueHandle, KernelHandle, c_uint, *const usize, *const usize, *const usize, c_uint, *const EventHandle,
         *mut EventHandle) -> c_int;
    read_buffer = "clEnqueueReadBuffer"
        (QueueHandle, BufferHandle, c_uint, usize, usize, *mut c_void, c_uint, *const EventHandle, *mut EventHandle)
        -> c_int;
    write_buffer = "clEnqueueWriteBuffer"
        (QueueHandle, BufferHandle, c_uint, usize, usize, *const c_void, c_uint, *const EventHandle, *mut EventHandle)
        -> c_int;
    fill_buffer = "clEnqueueFillBuffer"
        (QueueHandle, BufferHandle, *const c_void, usize, usize, usize, c_uint, *const EventHandle, *mut EventHandle)
        -> c_int;
    flush = "clFlush" (QueueHandle) -> c_int;
    finish = "clFinish" (QueueHandle) -> c_int;
    wait_for_events = "clWaitForEvents" (c_uint, *const EventHandle) -> c_int;
    event_info = "clGetEventInfo" (EventHandle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    event_times = "clGetEventProfilingInfo" (EventHandle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
    release_event = "clReleaseEvent" (EventHandle) -> c_int;
}

/// Of a call.
fn checked(call: &'static str, code: c_int) -> Result<(), CallError> {
    if code == 0 {
        return Ok(());
    }
    Err(CallError {
        library: NAME,
        call,
        code,
        detail: String::new(),
    })
}

/// What a call made that writes its status.
fn made<H>(call: &'static str, make: impl FnOnce(*mut c_int) -> H) -> Result<H, CallError> {
    let mut status = 0;
    let handle = make(&raw mut status);
    checked(call, status).map(|()| handle)
}

/// The command that a call gave to a queue.
fn given(
    call: &'static str,
    give: impl FnOnce(*mut EventHandle) -> c_int,
) -> Result<EventHandle, CallError> {
    let mut event = EventHandle::default();
    checked(call, give(&raw mut event)).map(|()| event)
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

/// All objects of a kind: asks for their number first.
fn listed<T: Clone + Default>(
    call: &'static str,
    ask: impl Fn(c_uint, *mut T, *mut c_uint) -> c_int,
) -> Result<Vec<T>, CallError> {
    let mut count = 0;
    checked(call, ask(0, null_mut(), &raw mut count))?;
    let mut all = vec![T::default(); count as usize];
    checked(call, ask(count, all.as_mut_ptr(), null_mut()))?;
    Ok(all)
}

impl Api {
    /// The library, loaded by the first call, and kept.
    ///
    /// Errors: `Library`.
    fn load() -> Result<&'static Self, DeviceError> {
        static API: OnceLock<Result<Api, DeviceError>> = OnceLock::new();
        let failed = |reason| DeviceError::Library { reason };
        let found = API.get_or_init(|| {
            // SAFETY: the library's own initialization; it is never unloaded.
            let object = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) };
            let object = object.map_err(|error| failed(error.to_string()))?;
            // SAFETY: of this name there are libraries of OpenCL alone, which keep old functions.
            let api = unsafe { Self::of(&object) };
            let api = api.map_err(|name| failed(format!("{LIBRARY} lacks {name}")))?;
            std::mem::forget(object);
            Ok(api)
        });
        found.as_ref().map_err(Clone::clone)
    }

    fn platforms(&self) -> Result<Vec<PlatformId>, CallError> {
        listed("clGetPlatformIDs", |room, to, count| {
            // SAFETY: the count is written, and then as many handles as there is room for.
            unsafe { (self.platform_ids)(room, to, count) }
        })
    }

    fn platform_name(&self, platform: PlatformId) -> Result<Vec<u8>, CallError> {
        asked("clGetPlatformInfo", |size, to, needed| {
            // SAFETY: `to` has room for `size` bytes.
            unsafe { (self.platform_info)(platform, PLATFORM_NAME, size, to, needed) }
        })
    }

    fn devices(&self, platform: PlatformId) -> Result<Vec<DeviceId>, CallError> {
        listed("clGetDeviceIDs", |room, to, count| {
            // SAFETY: as for platforms.
            unsafe { (self.device_ids)(platform, ALL_DEVICES, room, to, count) }
        })
    }

    fn facts(&self, id: DeviceId, platform: String) -> DeviceFacts {
        let data = |what| {
            let data = asked("clGetDeviceInfo", |size, to, needed| {
                // SAFETY: `to` has room for `size` bytes.
                unsafe { (self.device_info)(id, what, size, to, needed) }
            });
            data.unwrap_or_default()
        };
        // Little-endian, of 4 or 8 bytes.
        let number = |what| {
            let mut bytes = [0; 8];
            for (to, from) in bytes.iter_mut().zip(data(what)) {
                *to = from;
            }
            u64::from_le_bytes(bytes)
        };
        let kind = if number(device::TYPE) & device::PROCESSOR == 0 {
            DeviceKind::Gpu
        } else {
            DeviceKind::Software
        };
        let versions = [device::VERSION, device::DRIVER].map(|what| text(data(what)));
        DeviceFacts {
            name: text(data(device::NAME)),
            platform,
            version: versions.join(", driver "),
            kind,
            memory: Bytes(number(device::MEMORY)),
            largest: Bytes(number(device::LARGEST)),
            units: number(device::UNITS) as usize,
            has_f64: number(device::DOUBLES) != 0,
        }
    }
}

/// A string of the library, which ends with a zero.
fn text(mut bytes: Vec<u8>) -> String {
    bytes.retain(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// All devices, platform by platform, and those of a platform in its order.
///
/// Errors: there is no OpenCL, or it has no driver.
pub(crate) fn find() -> Result<Vec<Found>, DeviceError> {
    let api = Api::load()?;
    let platforms = api.platforms().map_err(|error| match error.code {
        NO_PLATFORM => DeviceError::Driver,
        _ => DeviceError::of_call(NAME, error),
    })?;
    let mut all = Vec::new();
    for platform in platforms {
        let name = text(api.platform_name(platform).unwrap_or_default());
        // A platform without devices refuses.
        let ids = api.devices(platform).unwrap_or_default();
        all.extend(ids.into_iter().map(|id| Found {
            facts: api.facts(id, name.clone()),
            open: Box::new(move || OpenCl::open(api, id)),
        }));
    }
    if all.is_empty() {
        return Err(DeviceError::Driver);
    }
    Ok(all)
}

/// A device of OpenCL, with a context.
struct OpenCl {
    api: &'static Api,
    device: DeviceId,
    context: Context,
}

impl OpenCl {
    fn open(api: &'static Api, device: DeviceId) -> Result<Arc<dyn Driver>, CallError> {
        let context = made("clCreateContext", |status| {
            // SAFETY: one device, no properties, no callback.
            unsafe {
                (api.create_context)(null(), 1, &raw const device, null(), null_mut(), status)
            }
        })?;
        Ok(Arc::new(Self {
            api,
            device,
            context,
        }))
    }
}

impl Drop for OpenCl {
    fn drop(&mut self) {
        // SAFETY: owned; what was made in it is gone.
        unsafe { (self.api.release_context)(self.context) };
    }
}

impl Driver for OpenCl {
    fn create_queue(&self) -> Result<QueueHandle, CallError> {
        made("clCreateCommandQueue", |status| {
            // SAFETY: the device is that of the context.
            unsafe { (self.api.create_queue)(self.context, self.device, WITH_TIMES, status) }
        })
    }

    fn create_buffer(&self, bytes: usize) -> Result<BufferHandle, CallError> {
        made("clCreateBuffer", |status| {
            // SAFETY: no memory of the host is involved.
            unsafe {
                (self.api.create_buffer)(self.context, READ_AND_WRITE, bytes, null_mut(), status)
            }
        })
    }

    fn compile(&self, source: &str, defined: Option<&str>) -> Result<ModuleHandle, CallError> {
        let (length, start) = (source.len(), source.as_ptr().cast());
        let module = made("clCreateProgramWithSource", |status| {
            // SAFETY: one source of this length.
            unsafe {
                (self.api.create_program)(
                    self.context,
                    1,
                    &raw const start,
                    &raw const length,
                    status,
                )
            }
        })?;
        let defined = defined.map_or(String::new(), |word| format!(" -D{word}"));
        let options = CString::new(format!("-cl-std=CL1.2{defined}")).unwrap_or_default();
        let (device, options) = (&raw const self.device, options.as_ptr());
        // SAFETY: no callback, so the call returns when the program is built.
        let status =
            unsafe { (self.api.build_program)(module, 1, device, options, null(), null_mut()) };
        checked("clBuildProgram", status).map_err(|error| {
            let log = asked("clGetProgramBuildInfo", |size, to, needed| {
                // SAFETY: `to` has room for `size` bytes.
                unsafe { (self.api.build_info)(module, self.device, BUILD_LOG, size, to, needed) }
            });
            let log = log.unwrap_or_default();
            let detail = match String::from_utf8_lossy(&log) {
                log if log.is_empty() => String::new(),
                log => format!(":\n{log}"),
            };
            CallError { detail, ..error }
        })?;
        Ok(module)
    }

    fn create_kernel(
        &self,
        module: ModuleHandle,
        name: &'static str,
    ) -> Result<KernelHandle, CallError> {
        let name = CString::new(name).unwrap_or_default();
        made("clCreateKernel", |status| {
            // SAFETY: the name ends with a zero.
            unsafe { (self.api.create_kernel)(module, name.as_ptr(), status) }
        })
    }

    unsafe fn launch(
        &self,
        queue: QueueHandle,
        kernel: KernelHandle,
        args: &[Arg],
        (groups, group): (usize, usize),
    ) -> Result<EventHandle, CallError> {
        for (number, arg) in args.iter().enumerate() {
            let (size, value) = arg.bytes();
            // SAFETY: a value is valid for its size, and copied; memory that a work-group shares has none.
            let status = unsafe { (self.api.set_argument)(kernel, number as c_uint, size, value) };
            checked("clSetKernelArg", status).map_err(|error| CallError {
                detail: format!(", argument {number}"),
                ..error
            })?;
        }
        let all = groups * group;
        let (all, group) = (&raw const all, &raw const group);
        given("clEnqueueNDRangeKernel", |event| {
            // SAFETY: one dim, no offset, nothing to wait for; the caller answers for what the kernel accesses.
            unsafe { (self.api.run_kernel)(queue, kernel, 1, null(), all, group, 0, null(), event) }
        })
    }

    fn times(&self, event: EventHandle) -> Result<[u64; 3], CallError> {
        let mut times = [0u64; 3];
        let all = [COMMAND_QUEUED, COMMAND_START, COMMAND_END];
        for (time, what) in times.iter_mut().zip(all) {
            let (size, to) = (size_of::<u64>(), (&raw mut *time).cast());
            // SAFETY: `to` has room for `size` bytes.
            let status = unsafe { (self.api.event_times)(event, what, size, to, null_mut()) };
            checked("clGetEventProfilingInfo", status)?;
        }
        Ok(times)
    }

    fn has_ended(&self, event: EventHandle) -> Result<bool, CallError> {
        let mut status: c_int = 0;
        let (size, to) = (size_of::<c_int>(), (&raw mut status).cast());
        // SAFETY: `to` has room for `size` bytes.
        let asked = unsafe { (self.api.event_info)(event, EVENT_STATUS, size, to, null_mut()) };
        checked("clGetEventInfo", asked)?;
        // Negative after an error.
        checked("a command", status.min(0)).map(|()| status == 0)
    }

    fn wait_for(&self, event: EventHandle) -> Result<(), CallError> {
        // SAFETY: one event.
        let status = unsafe { (self.api.wait_for_events)(1, &raw const event) };
        checked("clWaitForEvents", status)
    }

    fn read(
        &self,
        queue: QueueHandle,
        (from, first): (BufferHandle, u64),
        to: &mut [u8],
    ) -> Result<(), CallError> {
        let (first, size, to) = (first as usize, to.len(), to.as_mut_ptr().cast());
        // SAFETY: blocks until `size` bytes are in `to`; no events.
        let status = unsafe {
            (self.api.read_buffer)(
                queue,
                from,
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

    unsafe fn start_read(
        &self,
        queue: QueueHandle,
        from: BufferHandle,
        to: &mut [u8],
        after: EventHandle,
    ) -> Result<EventHandle, CallError> {
        let (size, to, after) = (to.len(), to.as_mut_ptr().cast(), &raw const after);
        given("clEnqueueReadBuffer", |event| {
            // SAFETY: the caller keeps `to` until the command has ended; one event to wait for.
            unsafe { (self.api.read_buffer)(queue, from, LATER, 0, size, to, 1, after, event) }
        })
    }

    fn write(
        &self,
        queue: QueueHandle,
        (to, first): (BufferHandle, u64),
        from: &[u8],
    ) -> Result<(), CallError> {
        let (first, size, from) = (first as usize, from.len(), from.as_ptr().cast());
        // SAFETY: blocks until `size` bytes have been copied; no events.
        let status = unsafe {
            (self.api.write_buffer)(
                queue,
                to,
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

    fn fill_zeros(
        &self,
        queue: QueueHandle,
        buffer: BufferHandle,
        bytes: u64,
    ) -> Result<(), CallError> {
        let (zero, size) = (0u32, bytes as usize);
        let pattern = (&raw const zero).cast();
        // SAFETY: the pattern of 4 bytes is copied; no events.
        let status = unsafe {
            (self.api.fill_buffer)(queue, buffer, pattern, 4, 0, size, 0, null(), null_mut())
        };
        checked("clEnqueueFillBuffer", status)
    }

    fn flush(&self, queue: QueueHandle) -> Result<(), CallError> {
        // SAFETY: a queue of this library.
        checked("clFlush", unsafe { (self.api.flush)(queue) })
    }

    fn finish(&self, queue: QueueHandle) -> Result<(), CallError> {
        // SAFETY: a queue of this library.
        checked("clFinish", unsafe { (self.api.finish)(queue) })
    }

    unsafe fn release(&self, object: Object) {
        let api = self.api;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match object {
                Object::Buffer(buffer) => (api.release_buffer)(buffer),
                Object::Queue(queue) => (api.release_queue)(queue),
                Object::Event(event) => (api.release_event)(event),
                Object::Module(module) => (api.release_program)(module),
                Object::Kernel(kernel) => (api.release_kernel)(kernel),
            }
        };
    }
}
