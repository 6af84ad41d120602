//! Packets: message buffers of a pool.

use crate::aligned_memory::AlignedMemory;
use crate::element::with_type;
use crate::{Element, Memory};
use partita_program::{Dtype, View};
use std::ops::Range;
use std::sync::Arc;

/// Packed elements of one dtype in a range of a rank's pool, which nothing else refers to while the packet
/// lives. It may be moved to another thread and back.
pub struct Packet {
    /// None if it is empty.
    memory: Option<Arc<AlignedMemory>>,
    /// Byte range in the pool.
    range: Range<usize>,
    dtype: Dtype,
    elements: usize,
}

impl Packet {
    /// A range of a pool, at a multiple of 64 bytes; the contents are unspecified.
    ///
    /// # Safety
    /// Nothing else refers to the range until [`Self::into_range`] returns it.
    pub(super) unsafe fn new(memory: Arc<AlignedMemory>, range: Range<usize>) -> Self {
        assert!(
            range.end as u64 <= memory.bytes().0 && range.start.is_multiple_of(64),
            "a packet lies in its pool"
        );
        Self {
            memory: Some(memory),
            range,
            dtype: Dtype::I16,
            elements: 0,
        }
    }

    /// A packet without memory.
    pub(super) fn empty() -> Self {
        Self {
            memory: None,
            range: 0..0,
            dtype: Dtype::I16,
            elements: 0,
        }
    }

    /// Its range of the pool.
    pub(super) fn into_range(self) -> Range<usize> {
        self.range
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub(super) fn is_of(&self, memory: &Arc<AlignedMemory>) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, memory))
    }

    /// Whether that many elements fit.
    pub(super) fn has_room(&self, dtype: Dtype, elements: usize) -> bool {
        elements <= self.range.len() / dtype.size()
    }

    /// Sets dtype and length; the contents are unspecified.
    pub(super) fn set_layout(&mut self, dtype: Dtype, elements: usize) {
        assert!(self.has_room(dtype, elements), "a packet has room");
        (self.dtype, self.elements) = (dtype, elements);
    }

    /// The dtype of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        (self.elements * self.dtype.size()) as u64
    }

    /// Its first byte.
    pub fn start(&mut self) -> *mut u8 {
        self.first()
    }

    fn first(&self) -> *mut u8 {
        match &self.memory {
            // SAFETY: `new` has checked that the range lies inside the allocation.
            Some(memory) => unsafe { memory.start().add(self.range.start) },
            None => std::ptr::without_provenance_mut(64),
        }
    }

    /// Its elements. Panics if they are of another dtype.
    pub fn elements<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "dtype of a packet");
        // SAFETY: the elements lie in the range, which is aligned to 64 bytes and which nothing else refers
        // to; every bit pattern is a `T`.
        unsafe { std::slice::from_raw_parts(self.first().cast::<T>(), self.elements) }
    }

    /// Its elements. Panics if they are of another dtype.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "dtype of a packet");
        // SAFETY: as of `elements`.
        unsafe { std::slice::from_raw_parts_mut(self.first().cast::<T>(), self.elements) }
    }

    /// Whether it holds in f32 what a view has in two bytes.
    fn is_wider(&self, memory: &Memory<'_>, view: &View) -> bool {
        let stored = memory.body().buffer(view.buffer).dtype;
        self.dtype == Dtype::F32 && stored.is_half()
    }

    /// Copies the contents of a view into the packet. Panics if the lengths differ.
    pub fn pack(&mut self, memory: &Memory<'_>, view: &View) {
        with_type!(self.dtype, T => memory.pack_into(view, self.elements_mut::<T>()));
    }

    /// Copies the contents of a view into a range of the packet's elements. A packet of f32 takes floats of two
    /// bytes, too.
    pub fn pack_part(&mut self, memory: &Memory<'_>, view: &View, elements: Range<usize>) {
        if self.is_wider(memory, view) {
            return memory.pack_f32(view, &mut self.elements_mut::<f32>()[elements]);
        }
        with_type!(self.dtype, T => memory.pack_into(view, &mut self.elements_mut::<T>()[elements]));
    }

    /// Copies a range of the packet's elements into a view, of which one of two bytes takes f32 rounded.
    pub fn unpack_part(&self, memory: &Memory<'_>, view: &View, elements: Range<usize>) {
        if self.is_wider(memory, view) {
            return memory.unpack_f32(view, &self.elements::<f32>()[elements]);
        }
        with_type!(self.dtype, T => memory.unpack(view, &self.elements::<T>()[elements], false));
    }

    /// Copies the elements into a view, or adds them to it.
    pub fn unpack(&self, memory: &Memory<'_>, view: &View, accumulate: bool) {
        with_type!(self.dtype, T => memory.unpack(view, self.elements::<T>(), accumulate));
    }
}
