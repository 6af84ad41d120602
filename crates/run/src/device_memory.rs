//! Memory of a rank that lies on a device.
//!
//! [`Arena`](crate::Arena) lies in the memory of the host or is a `DeviceMemory`. On a device, views have no
//! addresses on the host, and messages, samples and checkpoints pack and unpack boxes through it. `Kernels::arena`
//! makes the arena where the kernels work. `Kernels::finish` waits for the device, and reports when each kernel ran
//! and what failed.

use crate::element::Element;
use partita_program::Dtype;
use partita_space::{Bytes, Seconds};
use std::any::Any;

/// A box of elements in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Their type.
    pub dtype: Dtype,
    /// The first byte, from the start of the arena.
    pub first: u64,
    /// Extents; none is 0.
    pub extent: [usize; 5],
    /// Elements between neighbors along each dim; the last is 1.
    pub pitch: [usize; 5],
}

/// The memory of a rank on a device, which the host cannot address.
///
/// Accesses take place after all kernels that were given to the device before. What fails is reported by the kernels
/// of the device, when they are next asked to do something.
pub trait DeviceMemory: Any + Send {
    /// Size.
    fn bytes(&self) -> Bytes;

    /// Contents of a box, packed in memory order.
    fn pack(&self, view: &DeviceView, packed: &mut [u8]);

    /// Sets, or adds to, the contents of a box from packed elements.
    fn unpack(&self, view: &DeviceView, packed: &[u8], accumulate: bool);

    /// Sets the contents of a box to zeros.
    fn clear(&self, view: &DeviceView);

    /// Begins to pack boxes, behind the kernels that were given before, and to copy them to the host. Until they are released,
    /// no kernel may change them; `pack` gives these contents.
    fn prefetch(&self, views: &[DeviceView]) -> Prefetch;

    /// How long ago the device began to pack, once all boxes are on the host; waits for them if told to.
    fn fetched(&self, of: Prefetch, waits: bool) -> Option<Seconds>;

    /// Forgets boxes.
    fn release(&self, of: Prefetch);
}

/// Boxes that a device packs before they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch(pub u64);

/// Elements as bytes.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an element has no padding, and any bytes are valid u8.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Elements as bytes that may be changed.
pub(crate) fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a value of the type.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}
