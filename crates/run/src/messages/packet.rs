//! Packed elements on their way between ranks.

use crate::lines::Lines;
use crate::packed_tensor::with_type;
use crate::{Element, Memory};
use partita_program::{Dtype, View};
use std::ops::Range;
use std::sync::Arc;

/// Packed elements of one dtype in a range of the pool of a rank, which nothing else refers to while the
/// packet lives. It may go to another thread and come back.
pub struct Packet {
    /// None where it is empty.
    lines: Option<Arc<Lines>>,
    /// Bytes of the pool.
    range: Range<usize>,
    dtype: Dtype,
    elements: usize,
}

impl Packet {
    /// A range of a pool, at a multiple of 64 bytes, with whatever contents.
    ///
    /// # Safety
    /// Nothing else refers to the range until [`Self::into_range`] gives it back, or for ever.
    pub(super) unsafe fn new(lines: Arc<Lines>, range: Range<usize>) -> Self {
        assert!(
            range.end as u64 <= lines.bytes().0 && range.start.is_multiple_of(64),
            "a packet lies in its pool"
        );
        Self {
            lines: Some(lines),
            range,
            dtype: Dtype::I16,
            elements: 0,
        }
    }

    /// One that takes no memory.
    pub(super) fn empty() -> Self {
        Self {
            lines: None,
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

    pub(super) fn is_of(&self, lines: &Arc<Lines>) -> bool {
        self.lines
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, lines))
    }

    /// Whether so many elements fit.
    pub(super) fn has_room(&self, dtype: Dtype, elements: usize) -> bool {
        elements <= self.range.len() / dtype.size()
    }

    /// Becomes one of so many elements, with whatever contents, to be overwritten.
    pub(super) fn hold(&mut self, dtype: Dtype, elements: usize) {
        assert!(self.has_room(dtype, elements), "a packet has room");
        (self.dtype, self.elements) = (dtype, elements);
    }

    /// Of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Elements.
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

    /// The first of its bytes.
    pub fn start(&mut self) -> *mut u8 {
        self.first()
    }

    fn first(&self) -> *mut u8 {
        match &self.lines {
            // SAFETY: `new` has checked that the range lies inside of the allocation.
            Some(lines) => unsafe { lines.start().add(self.range.start) },
            None => std::ptr::without_provenance_mut(64),
        }
    }

    /// Its elements. Panics where they are of another type.
    pub fn elements<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "dtype of a packet");
        // SAFETY: the elements lie in the range, which is aligned to 64 bytes and which nothing else refers
        // to; every bit pattern is a `T`.
        unsafe { std::slice::from_raw_parts(self.first().cast::<T>(), self.elements) }
    }

    /// Its elements. Panics where they are of another type.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "dtype of a packet");
        // SAFETY: as of `elements`.
        unsafe { std::slice::from_raw_parts_mut(self.first().cast::<T>(), self.elements) }
    }

    /// Takes the contents of a view. Panics where they are not as many as its elements.
    pub fn pack(&mut self, memory: &Memory<'_>, view: &View) {
        with_type!(self.dtype, T => memory.pack_into(view, self.elements_mut::<T>()));
    }

    /// Takes the contents of a view into a range of its elements.
    pub fn pack_part(&mut self, memory: &Memory<'_>, view: &View, elements: Range<usize>) {
        with_type!(self.dtype, T => memory.pack_into(view, &mut self.elements_mut::<T>()[elements]));
    }

    /// Sets the contents of a view from a range of its elements.
    pub fn unpack_part(&self, memory: &Memory<'_>, view: &View, elements: Range<usize>) {
        with_type!(self.dtype, T => memory.unpack(view, &self.elements::<T>()[elements], false));
    }

    /// Sets, or adds to, the contents of a view.
    pub fn unpack(&self, memory: &Memory<'_>, view: &View, accumulate: bool) {
        with_type!(self.dtype, T => memory.unpack(view, self.elements::<T>(), accumulate));
    }
}
