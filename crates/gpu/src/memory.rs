//! The memory of a rank on a device.

use crate::api::Handle;
use crate::device::DeviceError;
use crate::launch::Arg;
use crate::queue::{DeviceBuffer, Queue};
use crate::tensor::{GROUP, Tensor, collapse};
use partita_program::Dtype;
use partita_run::{DeviceMemory, DeviceView};
use partita_space::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The arena of a rank on a device, and the queue whose kernels work on it.
pub(crate) struct GpuMemory {
    queue: Arc<Mutex<Queue>>,
    buffer: DeviceBuffer,
}

impl GpuMemory {
    /// So many bytes, set to zero.
    pub(crate) fn new(queue: Arc<Mutex<Queue>>, bytes: Bytes) -> Result<Self, DeviceError> {
        let buffer = {
            let mut queue = lock(&queue);
            let buffer = DeviceBuffer::new(queue.device(), bytes)?;
            let whole = Bytes(bytes.0.max(8).next_multiple_of(4));
            queue.fill_zeros(buffer.raw(), whole)?;
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

/// Runs a kernel that moves a box.
fn launch(
    queue: &mut Queue,
    name: &'static str,
    arena: Handle,
    args: &[Arg],
    of: &Tensor,
) -> Result<(), DeviceError> {
    let mut all = vec![Arg::Memory(arena)];
    all.extend_from_slice(args);
    // Boxes are moved as elements of any type; either set of kernels does.
    let command = queue.launch((name, Dtype::F32), &all, of.groups(), GROUP);
    command.map(drop)
}

impl DeviceMemory for GpuMemory {
    fn bytes(&self) -> Bytes {
        self.buffer.bytes()
    }

    fn handle(&self) -> usize {
        self.buffer.raw() as usize
    }

    fn pack(&self, view: &DeviceView, packed: &mut [u8]) {
        let whole = tensor(view);
        let mut queue = lock(&self.queue);
        let done = if whole.is_dense_from(0) {
            queue.read(self.buffer.raw(), view.first, packed)
        } else {
            let [x] = collapse([whole], 0);
            queue
                .staging(Bytes(packed.len() as u64))
                .and_then(|staging| {
                    let args = [
                        Arg::from(&x),
                        Arg::Extent(x.raw_extent()),
                        Arg::dtype(&x),
                        Arg::Memory(staging),
                    ];
                    launch(&mut queue, "pack_box", self.buffer.raw(), &args, &x)?;
                    queue.read(staging, 0, packed)
                })
        };
        queue.note(done);
    }

    fn unpack(&self, view: &DeviceView, packed: &[u8], accumulate: bool) {
        let whole = tensor(view);
        let mut queue = lock(&self.queue);
        let done = if whole.is_dense_from(0) && !accumulate {
            queue.write(self.buffer.raw(), view.first, packed)
        } else {
            let [y] = collapse([whole], 0);
            queue
                .staging(Bytes(packed.len() as u64))
                .and_then(|staging| {
                    queue.write(staging, 0, packed)?;
                    let args = [
                        Arg::from(&y),
                        Arg::Extent(y.raw_extent()),
                        Arg::dtype(&y),
                        Arg::Memory(staging),
                        Arg::flag(accumulate),
                    ];
                    launch(&mut queue, "unpack_box", self.buffer.raw(), &args, &y)
                })
        };
        queue.note(done);
    }

    fn clear(&self, view: &DeviceView) {
        let [y] = collapse([tensor(view)], 0);
        let args = [
            Arg::from(&y),
            Arg::Extent(y.raw_extent()),
            Arg::dtype(&y),
            Arg::Double(0.0),
        ];
        let mut queue = lock(&self.queue);
        let done = launch(&mut queue, "fill", self.buffer.raw(), &args, &y);
        queue.note(done);
    }
}
