//! Ranges of the elements of whole buffers, wherever the memory lies.

use crate::device_memory::{DeviceView, bytes_of, bytes_of_mut};
use crate::element::Element;
use crate::memory::Memory;
use partita_program::BufferId;
use std::ops::AddAssign;

impl Memory<'_> {
    /// Copies elements of a buffer from the first one on, in memory order.
    pub fn pack_range<T: Element>(&self, buffer: BufferId, first: usize, to: &mut [T]) {
        if to.is_empty() {
            return;
        }
        match self.device() {
            Some(device) => {
                device.pack(&self.range::<T>(buffer, first, to.len()), bytes_of_mut(to))
            }
            None => {
                let whole = self.body().buffer(buffer).view(buffer);
                to.copy_from_slice(&self.read::<T>(&whole).data()[first..first + to.len()]);
            }
        }
    }

    /// Sets elements of a buffer from the first one on, in memory order.
    pub fn unpack_range<T: Element + AddAssign>(&self, buffer: BufferId, first: usize, from: &[T]) {
        if from.is_empty() {
            return;
        }
        match self.device() {
            Some(device) => device.unpack(
                &self.range::<T>(buffer, first, from.len()),
                bytes_of(from),
                false,
            ),
            None => {
                let whole = self.body().buffer(buffer).view(buffer);
                let mut block = self.write::<T>(&whole);
                block.data_mut()[first..first + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Where a range lies on a device.
    fn range<T: Element>(&self, id: BufferId, first: usize, count: usize) -> DeviceView {
        let buffer = self.body().buffer(id);
        let elements: usize = buffer.dims.iter().product();
        let is_inside = first + count <= elements && buffer.dtype == T::DTYPE;
        assert!(
            is_inside,
            "elements {first} to {} of {elements} of buffer {}",
            first + count,
            buffer.name
        );
        DeviceView {
            dtype: T::DTYPE,
            first: buffer.offset.0 + (first * size_of::<T>()) as u64,
            extent: [1, 1, 1, 1, count],
            pitch: [count, count, count, count, 1],
        }
    }
}
