//! The queue of a rank on a device: commands run in the order in which they are given.

use crate::arg::Arg;
use crate::device::{DeviceError, DeviceTraffic, KernelError};
use crate::device_buffer::{Command, DeviceBuffer};
use crate::driver::{BufferHandle, KernelHandle, Owned, QueueHandle};
use crate::opened::Device;
use crate::transfer::Transfers;
use partita_program::Dtype;
use partita_run::KernelSpan;
use partita_space::{Bytes, Seconds};
use std::collections::HashMap;
use std::sync::Arc;

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
    /// What it moves beside the kernels.
    pub transfers: Transfers,
    device: Arc<Device>,
    /// By name and type of activations. Their arguments are set before each launch.
    kernels: HashMap<(&'static str, Dtype), Owned<KernelHandle>>,
    /// Constants, by their contents.
    tables: HashMap<Vec<u8>, DeviceBuffer>,
    counters: Option<DeviceBuffer>,
    /// The number, from 1, of the check that found a number that is no class, and that number, in f64.
    invalid_class: DeviceBuffer,
    /// Checks since the last wait.
    checks: Vec<Message>,
    /// Kernels of the program since the last wait.
    given: Vec<Commands>,
    /// The first failure of an access to memory that was not reported yet.
    fault: Option<DeviceError>,
    raw: Owned<QueueHandle>,
}

impl Queue {
    pub(crate) fn new(device: Arc<Device>) -> Result<Self, DeviceError> {
        let transfers = Transfers::new(&device)?;
        let raw = device.checked(device.driver().create_queue())?;
        let invalid_class = DeviceBuffer::new(&device, Bytes(16))?;
        let mut queue = Self {
            transfers,
            raw: Owned::new(device.driver(), raw),
            device,
            kernels: HashMap::new(),
            tables: HashMap::new(),
            counters: None,
            invalid_class,
            checks: Vec::new(),
            given: Vec::new(),
            fault: None,
        };
        let invalid_class = queue.invalid_class.handle();
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

    fn kernel(
        &mut self,
        name: &'static str,
        activations: Dtype,
    ) -> Result<KernelHandle, DeviceError> {
        if let Some(kernel) = self.kernels.get(&(name, activations)) {
            return Ok(kernel.get());
        }
        let module = self.device.module(activations)?;
        let kernel = self.device.driver().create_kernel(module, name);
        let kernel = self.device.checked_of(kernel, name)?;
        let owned = Owned::new(self.device.driver(), kernel);
        self.kernels.insert((name, activations), owned);
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

    /// Gives the device a kernel on this many work-groups of `group` work-items.
    pub(crate) fn launch(
        &mut self,
        (name, activations): (&'static str, Dtype),
        args: &[Arg],
        groups: usize,
        group: usize,
    ) -> Result<Command, DeviceError> {
        let (kernel, driver) = (self.kernel(name, activations)?, self.device.driver());
        // SAFETY: kernels access the ranges that the views of the program describe.
        let given = unsafe { driver.launch(self.raw.get(), kernel, args, (groups, group)) };
        let event = self.device.checked_of(given, name)?;
        Ok(Arc::new(Owned::new(driver, event)))
    }

    /// Of a number of bytes that 4 divides.
    pub(crate) fn fill_zeros(
        &mut self,
        buffer: BufferHandle,
        bytes: Bytes,
    ) -> Result<(), DeviceError> {
        let driver = self.device.driver();
        self.device
            .checked(driver.fill_zeros(self.raw.get(), buffer, bytes.0))
    }

    /// Waits for all commands before it.
    pub(crate) fn read(
        &mut self,
        buffer: BufferHandle,
        first: u64,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        if to.is_empty() {
            return Ok(());
        }
        self.device.count(DeviceTraffic {
            read: Bytes(to.len() as u64),
            waits: 1,
            ..DeviceTraffic::default()
        });
        let driver = self.device.driver();
        self.device
            .checked(driver.read(self.raw.get(), (buffer, first), to))
    }

    /// Sees to it that what was given begins though nobody waits for it.
    pub(crate) fn flush(&self) -> Result<(), DeviceError> {
        self.device
            .checked(self.device.driver().flush(self.raw.get()))
    }

    /// Waits for all commands; when the kernels of the program ran.
    ///
    /// Errors: a number that is no class, too.
    pub(crate) fn finish(&mut self) -> Result<Vec<KernelSpan>, KernelError> {
        self.device.count(DeviceTraffic {
            waits: 1,
            ..DeviceTraffic::default()
        });
        let given = std::mem::take(&mut self.given);
        self.device
            .checked(self.device.driver().finish(self.raw.get()))?;
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
    pub(crate) fn table(&mut self, contents: Vec<u8>) -> Result<BufferHandle, DeviceError> {
        if let Some(table) = self.tables.get(&contents) {
            return Ok(table.handle());
        }
        let table = DeviceBuffer::new(&self.device, Bytes(contents.len() as u64))?;
        let handle = table.handle();
        self.transfers.write(&self.device, handle, &contents)?;
        self.tables.insert(contents, table);
        Ok(handle)
    }

    /// This many counters of 32 bits, set to zero.
    pub(crate) fn counters(&mut self, count: usize) -> Result<BufferHandle, DeviceError> {
        let bytes = Bytes((count * size_of::<u32>()) as u64);
        // Frees a smaller one first.
        let held = self.counters.take().filter(|held| held.bytes() >= bytes);
        let held = held.map_or_else(|| DeviceBuffer::new(&self.device, bytes), Ok)?;
        let handle = self.counters.insert(held).handle();
        self.fill_zeros(handle, bytes)?;
        Ok(handle)
    }

    /// Where kernels note a number that is no class, and the number of this check, from 1.
    pub(crate) fn check(&mut self, message: Message) -> (BufferHandle, usize) {
        self.checks.push(message);
        (self.invalid_class.handle(), self.checks.len())
    }

    /// The check and the number that were noted since the last call.
    fn take_invalid_class(&mut self) -> Result<Option<(usize, f64)>, DeviceError> {
        let (mut bytes, invalid_class) = ([0; 16], self.invalid_class.handle());
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
        let times_of = |command: &Command| command.driver().times(command.get());
        let (Ok([queued, begin, _]), Ok([_, _, end])) = (times_of(first), times_of(last)) else {
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
