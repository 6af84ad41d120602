//! The memory of a rank on a device.

use crate::arg::Arg;
use crate::device::DeviceError;
use crate::device_buffer::{Command, DeviceBuffer};
use crate::driver::BufferHandle;
use crate::queue::Queue;
use crate::tensor::{GROUP, Tensor, collapse};
use partita_program::Dtype;
use partita_run::{DeviceMemory, DeviceView, Prefetch};
use partita_space::{Bytes, Seconds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contiguous boxes are written in pieces of this many bytes, so that what they pass through stays small.
const PIECE: usize = 16 << 20;

/// Boxes that are packed one after the other begin at multiples of this many bytes, as every type of element may.
const ALIGNMENT: usize = 8;

/// The arena of a rank on a device, and the queue whose kernels work on it.
pub(crate) struct GpuMemory {
    queue: Arc<Mutex<Queue>>,
    buffer: DeviceBuffer,
}

impl GpuMemory {
    /// This many bytes, set to zero.
    pub(crate) fn new(queue: Arc<Mutex<Queue>>, bytes: Bytes) -> Result<Self, DeviceError> {
        let buffer = {
            let mut queue = lock(&queue);
            let buffer = DeviceBuffer::new(queue.device(), bytes)?;
            let whole = Bytes(bytes.0.max(8).next_multiple_of(4));
            queue.fill_zeros(buffer.handle(), whole)?;
            buffer
        };
        Ok(Self { queue, buffer })
    }
}

pub(crate) fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The box as kernels see it.
fn tensor(view: &DeviceView) -> Tensor {
    Tensor {
        dtype: view.dtype,
        offset: view.first / view.dtype.size() as u64,
        extent: view.extent,
        pitch: view.pitch,
    }
}

/// Runs a kernel that moves a box, whose arguments begin with it.
fn launch(
    queue: &mut Queue,
    name: &'static str,
    (arena, view): (BufferHandle, &DeviceView),
    args: &[Arg],
) -> Result<Command, DeviceError> {
    let [of] = collapse([tensor(view)], 0);
    let mut all = vec![
        Arg::Memory(arena),
        Arg::from(&of),
        Arg::Extent(of.raw_extent()),
        Arg::dtype(&of),
    ];
    all.extend_from_slice(args);
    // Boxes are moved as elements of any type; either set of kernels does.
    queue.launch((name, Dtype::F32), &all, of.groups(), GROUP)
}

fn bytes_of(view: &DeviceView) -> usize {
    view.extent.iter().product::<usize>() * view.dtype.size()
}

/// A box in pieces that are written one after the other.
fn pieces(view: &DeviceView, accumulate: bool) -> Vec<DeviceView> {
    let (elements, each) = (
        bytes_of(view) / view.dtype.size(),
        PIECE / view.dtype.size(),
    );
    if accumulate || elements <= each || !tensor(view).is_dense_from(0) {
        return vec![*view];
    }
    let piece = |start: usize| {
        let count = each.min(elements - start);
        DeviceView {
            first: view.first + (start * view.dtype.size()) as u64,
            extent: [1, 1, 1, 1, count],
            pitch: [count, count, count, count, 1],
            ..*view
        }
    };
    (0..elements).step_by(each).map(piece).collect()
}

impl GpuMemory {
    pub(crate) fn handle(&self) -> BufferHandle {
        self.buffer.handle()
    }

    fn start_fetch(&self, views: &[DeviceView]) -> Result<Prefetch, DeviceError> {
        let queue = &mut *lock(&self.queue);
        let device = Arc::clone(queue.device());
        let (mut boxes, mut end) = (Vec::with_capacity(views.len()), 0usize);
        for view in views {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes_of(view);
            boxes.push((*view, start..end));
        }
        let slot = queue.transfers.slot(&device, Bytes(end as u64))?;
        let mut commands: Option<[Command; 2]> = None;
        for (view, place) in &boxes {
            let first = (place.start / view.dtype.size()) as u64;
            let args = [Arg::Memory(slot.buffer.handle()), Arg::Ulong(first)];
            let command = launch(queue, "pack_box", (self.handle(), view), &args)?;
            let first = commands.map_or_else(|| Arc::clone(&command), |[first, _]| first);
            commands = Some([first, command]);
        }
        let Some(commands) = commands else {
            return Ok(Prefetch(0));
        };
        queue.flush()?;
        queue.transfers.fetch(&device, slot, boxes, commands)
    }

    fn read(&self, view: &DeviceView, packed: &mut [u8]) -> Result<(), DeviceError> {
        let queue = &mut *lock(&self.queue);
        if queue.transfers.copy_fetched(view, packed) {
            return Ok(());
        }
        if tensor(view).is_dense_from(0) {
            return queue.read(self.handle(), view.first, packed);
        }
        let device = Arc::clone(queue.device());
        let slot = queue.transfers.slot(&device, Bytes(packed.len() as u64))?;
        let staging = slot.buffer.handle();
        let args = [Arg::Memory(staging), Arg::Ulong(0)];
        let command = launch(queue, "pack_box", (self.handle(), view), &args)?;
        queue.transfers.put(slot, command);
        queue.read(staging, 0, packed)
    }

    fn write(&self, view: &DeviceView, packed: &[u8], accumulate: bool) -> Result<(), DeviceError> {
        let queue = &mut *lock(&self.queue);
        queue.transfers.forget(view);
        let (device, mut rest) = (Arc::clone(queue.device()), packed);
        for piece in pieces(view, accumulate) {
            let (now, later) = rest.split_at(bytes_of(&piece));
            rest = later;
            let slot = queue.transfers.slot(&device, Bytes(now.len() as u64))?;
            let staging = slot.buffer.handle();
            queue.transfers.write(&device, staging, now)?;
            let args = [Arg::Memory(staging), Arg::flag(accumulate)];
            let command = launch(queue, "unpack_box", (self.handle(), &piece), &args)?;
            queue.transfers.put(slot, command);
        }
        queue.flush()
    }
}

impl DeviceMemory for GpuMemory {
    fn bytes(&self) -> Bytes {
        self.buffer.bytes()
    }

    fn pack(&self, view: &DeviceView, packed: &mut [u8]) {
        let done = self.read(view, packed);
        lock(&self.queue).note(done);
    }

    fn unpack(&self, view: &DeviceView, packed: &[u8], accumulate: bool) {
        let done = self.write(view, packed, accumulate);
        lock(&self.queue).note(done);
    }

    fn clear(&self, view: &DeviceView) {
        let mut queue = lock(&self.queue);
        queue.transfers.forget(view);
        let filled = launch(
            &mut queue,
            "fill",
            (self.handle(), view),
            &[Arg::Double(0.0)],
        );
        queue.note(filled.map(drop));
    }

    fn prefetch(&self, views: &[DeviceView]) -> Prefetch {
        let begun = self.start_fetch(views);
        let mut queue = lock(&self.queue);
        begun.unwrap_or_else(|error| {
            queue.note(Err(error));
            Prefetch(0)
        })
    }

    fn fetched(&self, of: Prefetch, waits: bool) -> Option<Seconds> {
        let mut queue = lock(&self.queue);
        let fetched = queue.transfers.fetched(queue.device(), of, waits);
        fetched.unwrap_or_else(|error| {
            queue.note(Err(error));
            Some(Seconds(0.0))
        })
    }

    fn release(&self, of: Prefetch) {
        lock(&self.queue).transfers.release(of);
    }
}
