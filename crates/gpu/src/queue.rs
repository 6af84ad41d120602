//! The queue of a rank on a device: commands run in the order in which they are given.

use crate::api::{Api, Handle, ObjectKind};
use crate::device::{Device, DeviceError};
use crate::launch::{Arg, KernelError};
use partita_program::Dtype;
use partita_run::KernelSpan;
use partita_space::{Bytes, Seconds};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

/// Memory on a device.
pub(crate) struct DeviceBuffer {
    api: &'static Api,
    raw: Handle,
    bytes: Bytes,
}

// SAFETY: OpenCL may be called from any thread.
unsafe impl Send for DeviceBuffer {}

/// A command that was given to a device.
pub(crate) struct Command {
    api: &'static Api,
    event: Handle,
}

// SAFETY: OpenCL may be called from any thread.
unsafe impl Send for Command {}

impl Command {
    /// When it was given, began and ended, once it has, in nanoseconds of the device's clock; none where a driver does
    /// not say.
    fn times(&self) -> Option<[u64; 3]> {
        self.api.times(self.event).ok()
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        // SAFETY: owned. The command itself goes on.
        unsafe { self.api.release(ObjectKind::Event, self.event) };
    }
}

/// The first and the last command of a kernel of a program.
#[derive(Default)]
struct Commands {
    first: Option<Command>,
    last: Option<Command>,
}

/// Says what is wrong with a number that is no class.
pub(crate) type Message = Box<dyn Fn(f64) -> String + Send>;

/// The commands of a rank.
pub(crate) struct Queue {
    device: Arc<Device>,
    raw: Handle,
    /// By name and type of activations. Their arguments are set before each launch.
    kernels: HashMap<(&'static str, Dtype), Handle>,
    /// Constants, by their contents.
    tables: HashMap<Vec<u8>, DeviceBuffer>,
    /// Through which messages pass.
    staging: Option<DeviceBuffer>,
    counters: Option<DeviceBuffer>,
    /// The number, from 1, of the check that found a number that is no class, and that number, in f64.
    invalid_class: DeviceBuffer,
    /// Checks since the last wait.
    checks: Vec<Message>,
    /// Kernels of the program since the last wait.
    given: Vec<Commands>,
    /// The first failure of an access to memory that was not reported yet.
    fault: Option<DeviceError>,
}

// SAFETY: OpenCL may be called from any thread, but for the arguments of one kernel object, which this queue owns.
unsafe impl Send for Queue {}

impl DeviceBuffer {
    pub(crate) fn new(device: &Device, bytes: Bytes) -> Result<Self, DeviceError> {
        let api = device.api();
        // A buffer of no bytes is refused, and zeros are written by fours.
        let size = bytes.0.max(8).next_multiple_of(4) as usize;
        let raw = api.create_buffer(device.context(), size);
        let raw = raw.map_err(|error| device.refusal(error))?;
        Ok(Self { api, raw, bytes })
    }

    pub(crate) fn raw(&self) -> Handle {
        self.raw
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: owned. Commands under way keep it until they end.
        unsafe { self.api.release(ObjectKind::Buffer, self.raw) };
    }
}

impl Queue {
    pub(crate) fn new(device: Arc<Device>) -> Result<Self, DeviceError> {
        let raw = device.api().create_queue(device.context(), device.id());
        let raw = raw.map_err(|error| device.refusal(error))?;
        let invalid_class = DeviceBuffer::new(&device, Bytes(16))?;
        let mut queue = Self {
            device,
            raw,
            kernels: HashMap::new(),
            tables: HashMap::new(),
            staging: None,
            counters: None,
            invalid_class,
            checks: Vec::new(),
            given: Vec::new(),
            fault: None,
        };
        let invalid_class = queue.invalid_class.raw;
        queue.fill_zeros(invalid_class, Bytes(16))?;
        Ok(queue)
    }

    /// Keeps a failure until it can be reported.
    pub(crate) fn note(&mut self, done: Result<(), DeviceError>) {
        if let Err(error) = done {
            self.fault.get_or_insert(error);
        }
    }

    /// Fails if an access to memory failed since the last call.
    pub(crate) fn take_fault(&mut self) -> Result<(), DeviceError> {
        self.fault.take().map_or(Ok(()), Err)
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn kernel(&mut self, name: &'static str, activations: Dtype) -> Result<Handle, DeviceError> {
        if let Some(kernel) = self.kernels.get(&(name, activations)) {
            return Ok(*kernel);
        }
        let program = self.device.program(activations)?;
        let text = CString::new(name).unwrap_or_default();
        let kernel = self.device.api().create_kernel(program, &text);
        let kernel = kernel.map_err(|error| self.device.refusal_of(error, name))?;
        self.kernels.insert((name, activations), kernel);
        Ok(kernel)
    }

    /// From now on commands are of the next kernel of the program.
    pub(crate) fn next_kernel(&mut self) {
        self.given.push(Commands::default());
    }

    /// Notes a command of the kernel of the program.
    pub(crate) fn note_command(&mut self, command: Command) {
        if let Some(commands) = self.given.last_mut() {
            match commands.first {
                None => commands.first = Some(command),
                Some(_) => commands.last = Some(command),
            }
        }
    }

    /// Gives the device a kernel on so many work-groups of `group` work-items.
    pub(crate) fn launch(
        &mut self,
        (name, activations): (&'static str, Dtype),
        args: &[Arg],
        groups: usize,
        group: usize,
    ) -> Result<Command, DeviceError> {
        let (kernel, api) = (self.kernel(name, activations)?, self.device.api());
        for (number, arg) in args.iter().enumerate() {
            // SAFETY: a value is valid for its size.
            let set = unsafe { api.set_argument(kernel, number, arg.bytes()) };
            set.map_err(|error| {
                let what = format!("{name}, argument {number}");
                self.device.refusal_of(error, &what)
            })?;
        }
        // SAFETY: kernels access the ranges that the views of the program describe.
        let given = unsafe { api.run_kernel(self.raw, kernel, (groups, group)) };
        let event = given.map_err(|error| self.device.refusal_of(error, name))?;
        Ok(Command { api, event })
    }

    /// Of a number of bytes that 4 divides.
    pub(crate) fn fill_zeros(&mut self, buffer: Handle, bytes: Bytes) -> Result<(), DeviceError> {
        let done = self.device.api().fill_zeros(self.raw, buffer, bytes.0);
        done.map_err(|error| self.device.refusal(error))
    }

    /// Waits for all commands before it.
    pub(crate) fn read(
        &mut self,
        buffer: Handle,
        first: u64,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        if to.is_empty() {
            return Ok(());
        }
        let done = self.device.api().read(self.raw, (buffer, first), to);
        done.map_err(|error| self.device.refusal(error))
    }

    /// Waits for all commands before it.
    pub(crate) fn write(
        &mut self,
        buffer: Handle,
        first: u64,
        from: &[u8],
    ) -> Result<(), DeviceError> {
        if from.is_empty() {
            return Ok(());
        }
        let done = self.device.api().write(self.raw, (buffer, first), from);
        done.map_err(|error| self.device.refusal(error))
    }

    /// Waits for all commands; when the kernels of the program ran.
    ///
    /// Errors: a number that is no class, too.
    pub(crate) fn finish(&mut self) -> Result<Vec<KernelSpan>, KernelError> {
        let done = self.device.api().finish(self.raw);
        let given = std::mem::take(&mut self.given);
        done.map_err(|error| self.device.refusal(error))?;
        let checks = std::mem::take(&mut self.checks);
        if !checks.is_empty()
            && let Some((check, number)) = self.take_invalid_class()?
        {
            let message = checks.get(check - 1).map(|message| message(number));
            return Err(KernelError::Source(message.unwrap_or_default()));
        }
        Ok(spans(&given))
    }

    /// Constants on the device.
    pub(crate) fn table(&mut self, contents: Vec<u8>) -> Result<Handle, DeviceError> {
        if let Some(table) = self.tables.get(&contents) {
            return Ok(table.raw());
        }
        let table = DeviceBuffer::new(&self.device, Bytes(contents.len() as u64))?;
        self.write(table.raw(), 0, &contents)?;
        let raw = table.raw();
        self.tables.insert(contents, table);
        Ok(raw)
    }

    /// A buffer of at least so many bytes through which messages pass.
    pub(crate) fn staging(&mut self, bytes: Bytes) -> Result<Handle, DeviceError> {
        grown(&mut self.staging, &self.device, bytes)
    }

    /// So many counters of 32 bits, set to zero.
    pub(crate) fn counters(&mut self, count: usize) -> Result<Handle, DeviceError> {
        let bytes = Bytes((count * size_of::<u32>()) as u64);
        let raw = grown(&mut self.counters, &self.device, bytes)?;
        self.fill_zeros(raw, bytes)?;
        Ok(raw)
    }

    /// Where kernels note a number that is no class, and the number of this check, from 1.
    pub(crate) fn check(&mut self, message: Message) -> (Handle, usize) {
        self.checks.push(message);
        (self.invalid_class.raw, self.checks.len())
    }

    /// The check and the number that were noted since the last call.
    fn take_invalid_class(&mut self) -> Result<Option<(usize, f64)>, DeviceError> {
        let (mut bytes, invalid_class) = ([0; 16], self.invalid_class.raw);
        self.read(invalid_class, 0, &mut bytes)?;
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            f64::from_ne_bytes(eight)
        };
        if number(0) == 0.0 {
            return Ok(None);
        }
        self.fill_zeros(invalid_class, Bytes(16))?;
        Ok(Some((number(0) as usize, number(8))))
    }
}

/// When kernels ran; nothing if that of one is not known. One without commands ran when the one before it ended.
fn spans(given: &[Commands]) -> Vec<KernelSpan> {
    let mut times = Vec::with_capacity(given.len());
    for commands in given {
        let Some(first) = &commands.first else {
            times.push(None);
            continue;
        };
        let last = commands.last.as_ref().unwrap_or(first);
        let (Some([queued, begin, _]), Some([_, _, end])) = (first.times(), last.times()) else {
            return Vec::new();
        };
        times.push(Some([queued, begin, end]));
    }
    let known = times.iter().flatten();
    let latest = known.clone().map(|[_, _, end]| *end).max().unwrap_or(0);
    let mut before = known.map(|[queued, ..]| *queued).min().unwrap_or(latest);
    let seconds = |nanoseconds: u64| Seconds(nanoseconds as f64 * 1e-9);
    let span = |time: &Option<[u64; 3]>| {
        let [queued, begin, end] = time.unwrap_or([before; 3]);
        let begun = queued.max(before).min(end);
        before = end;
        KernelSpan {
            begun: seconds(latest - begun),
            ended: seconds(latest - end),
            ran: seconds(end.saturating_sub(begin)),
        }
    };
    times.iter().map(span).collect()
}

/// The buffer that is held, or a larger one in its place where it has too few bytes.
fn grown(
    held: &mut Option<DeviceBuffer>,
    device: &Device,
    bytes: Bytes,
) -> Result<Handle, DeviceError> {
    // Frees the smaller one first.
    let buffer = match held.take().filter(|held| held.bytes() >= bytes) {
        Some(buffer) => buffer,
        None => DeviceBuffer::new(device, bytes)?,
    };
    Ok(held.insert(buffer).raw())
}

impl Drop for Queue {
    fn drop(&mut self) {
        let api = self.device.api();
        for kernel in self.kernels.values() {
            // SAFETY: owned.
            unsafe { api.release(ObjectKind::Kernel, *kernel) };
        }
        // SAFETY: owned.
        unsafe { api.release(ObjectKind::Queue, self.raw) };
    }
}
