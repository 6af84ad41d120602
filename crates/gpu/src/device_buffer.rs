//! Memory on a device, and the commands that use it.

use crate::device::DeviceError;
use crate::driver::{BufferHandle, EventHandle, Owned};
use crate::opened::Device;
use partita_space::Bytes;
use std::sync::Arc;

/// Memory on a device.
pub(crate) struct DeviceBuffer {
    memory: Owned<BufferHandle>,
    bytes: Bytes,
}

/// A command that was given to a device.
pub(crate) type Command = Arc<Owned<EventHandle>>;

impl DeviceBuffer {
    pub(crate) fn new(device: &Device, bytes: Bytes) -> Result<Self, DeviceError> {
        // A buffer of no bytes is refused, and zeros are written by fours.
        let size = bytes.0.max(8).next_multiple_of(4) as usize;
        let memory = device.checked(device.driver().create_buffer(size))?;
        let memory = Owned::new(device.driver(), memory);
        Ok(Self { memory, bytes })
    }

    pub(crate) fn handle(&self) -> BufferHandle {
        self.memory.get()
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }
}
