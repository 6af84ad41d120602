//! The arena of a rank and the views into it.

use crate::RunError;
use crate::aligned_memory::AlignedMemory;
use crate::device_memory::{DeviceMemory, DeviceView, Prefetch, bytes_of, bytes_of_mut};
use crate::element::{Element, with_type};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use partita_program::{Body, Buffer, Dtype, View};
use partita_space::{Bytes, Rank};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

/// The memory of a rank: one allocation, zeroed, aligned to 64 bytes.
pub struct Arena(Backing);

/// Where the memory of a rank lies.
enum Backing {
    Host(AlignedMemory),
    Device(Box<dyn DeviceMemory>),
}

impl Arena {
    /// An arena of at least `bytes`.
    ///
    /// Panics if out of memory; [`Self::of_rank`] returns an error.
    pub fn new(bytes: Bytes) -> Self {
        let arena = Self::try_allocate(bytes);
        arena.unwrap_or_else(|| panic!("out of memory: an arena of {bytes}"))
    }

    /// The arena of a rank.
    ///
    /// Errors: out of memory.
    pub fn of_rank(rank: Rank, bytes: Bytes) -> Result<Self, RunError> {
        Self::try_allocate(bytes).ok_or_else(|| RunError::Memory {
            rank,
            what: "arena".to_owned(),
            bytes,
        })
    }

    fn try_allocate(bytes: Bytes) -> Option<Self> {
        AlignedMemory::try_allocate(bytes).map(|memory| Self(Backing::Host(memory)))
    }

    /// An arena in the memory of a device, which is zeroed.
    pub fn on_device(memory: Box<dyn DeviceMemory>) -> Self {
        Self(Backing::Device(memory))
    }

    /// Size.
    pub fn bytes(&self) -> Bytes {
        match &self.0 {
            Backing::Host(memory) => memory.bytes(),
            Backing::Device(memory) => memory.bytes(),
        }
    }

    /// Whether it lies in the memory of a device.
    pub fn is_on_device(&self) -> bool {
        match &self.0 {
            Backing::Host(_) => false,
            Backing::Device(_) => true,
        }
    }

    /// Touches every page, so that all are resident before the first step.
    pub fn touch(&mut self) {
        match &mut self.0 {
            Backing::Host(memory) => memory.touch(),
            Backing::Device(_) => {}
        }
    }

    /// The arena as the buffers of a body.
    pub fn memory<'a>(&'a mut self, body: &'a Body) -> Memory<'a> {
        assert!(
            body.arena <= self.bytes(),
            "the arena is smaller than the body needs"
        );
        let (start, device) = match &self.0 {
            Backing::Host(memory) => (memory.start(), None),
            Backing::Device(memory) => (std::ptr::null_mut(), Some(&**memory)),
        };
        Memory {
            start,
            device,
            body,
            half: check_places(body),
            claims: Rc::default(),
            arena: PhantomData,
        }
    }
}

/// The type of two bytes that a buffer has, if one does: a body has one at most. Panics where a buffer does not lie in
/// the arena of its body.
fn check_places(body: &Body) -> Option<Dtype> {
    let mut half = None;
    for buffer in &body.buffers {
        let (start, size) = (buffer.offset.0, buffer.dtype.size() as u64);
        let end = checked_bytes(buffer).and_then(|bytes| start.checked_add(bytes));
        assert!(
            start.is_multiple_of(size) && end.is_some_and(|end| end <= body.arena.0),
            "buffer {} of {:?} at byte {start} does not lie in the arena of {} bytes",
            buffer.name,
            buffer.dims,
            body.arena.0
        );
        if buffer.dtype.is_half() {
            half = Some(buffer.dtype);
        }
    }
    half
}

/// Size of a buffer; `None` on overflow.
fn checked_bytes(buffer: &Buffer) -> Option<u64> {
    if buffer.dims.contains(&0) {
        return Some(0);
    }
    let factors = buffer.dims.into_iter().chain([buffer.dtype.size()]);
    factors
        .into_iter()
        .try_fold(1u64, |bytes, factor| bytes.checked_mul(factor as u64))
}

/// The buffers of a body while it runs.
///
/// Every [`Block`], [`BlockMut`] and [`Cells`] claims its range of memory until it is dropped. Claims are
/// checked at run time like the borrows of a `RefCell`: overlapping ranges have any number of readers, or
/// any number of cells, or one writer.
pub struct Memory<'a> {
    /// Null on a device.
    start: *mut u8,
    device: Option<&'a (dyn DeviceMemory + 'static)>,
    body: &'a Body,
    half: Option<Dtype>,
    claims: Rc<RefCell<Vec<Claim>>>,
    arena: PhantomData<&'a mut Arena>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    bytes: Range<usize>,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Cells,
}

impl Claim {
    /// Whether the two may not be held at the same time.
    fn excludes(&self, other: &Claim) -> bool {
        let overlap = self.bytes.start.max(other.bytes.start) < self.bytes.end.min(other.bytes.end);
        let share = self.access == other.access && self.access != Access::Write;
        overlap && !share
    }
}

/// A box of elements to read; its data are the slice from the first to the last element.
///
/// The data are borrowed from the block, so that they cannot outlive its claim:
///
/// ```compile_fail,E0716
/// # use partita_program::View;
/// fn keep<'m>(memory: &'m partita_run::Memory<'_>, view: &View) -> &'m [f32] {
///     let data = memory.read::<f32>(view).data();
///     data
/// }
/// ```
///
/// While the block lives, they are a slice like any other:
///
/// ```
/// # use partita_program::View;
/// fn sum(memory: &partita_run::Memory<'_>, view: &View) -> f32 {
///     let block = memory.read::<f32>(view);
///     block.data().iter().sum()
/// }
/// ```
pub struct Block<'m, T> {
    start: *const T,
    length: usize,
    /// Extents.
    pub extent: [usize; 5],
    /// Elements between neighbors along each dim; the last is 1.
    pub pitch: [usize; 5],
    _claim: ClaimGuard<'m>,
}

/// A box of elements to write.
///
/// The data are borrowed from the block, so that they cannot outlive its claim:
///
/// ```compile_fail,E0716
/// # use partita_program::View;
/// fn twice(memory: &partita_run::Memory<'_>, view: &View) {
///     let first = memory.write::<f32>(view).data_mut();
///     let second = memory.write::<f32>(view).data_mut();
///     first[0] = second[0];
/// }
/// ```
///
/// While the block lives, they are a slice like any other:
///
/// ```
/// # use partita_program::View;
/// fn clear(memory: &partita_run::Memory<'_>, view: &View) {
///     let mut block = memory.write::<f32>(view);
///     block.data_mut().fill(0.0);
/// }
/// ```
pub struct BlockMut<'m, T> {
    start: *mut T,
    length: usize,
    /// Extents.
    pub extent: [usize; 5],
    /// Elements between neighbors along each dim; the last is 1.
    pub pitch: [usize; 5],
    _claim: ClaimGuard<'m>,
}

/// A box of elements, accessed one by one, whose range of memory may overlap that of other cells.
pub struct Cells<'m, T> {
    start: *mut T,
    extent: [usize; 5],
    pitch: [usize; 5],
    _claim: ClaimGuard<'m>,
}

struct ClaimGuard<'m> {
    claims: &'m RefCell<Vec<Claim>>,
    claim: Claim,
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        let mut claims = self.claims.borrow_mut();
        let mine = claims.iter().position(|claim| *claim == self.claim);
        claims.swap_remove(mine.expect("a claim is listed while its block lives"));
    }
}

impl<'a> Memory<'a> {
    /// The body whose buffers these are.
    pub fn body(&self) -> &'a Body {
        self.body
    }

    /// The type of two bytes that the body has its activations in, if it has: bf16 or f16.
    pub fn half(&self) -> Option<Dtype> {
        self.half
    }

    /// The same memory as the buffers of another body. Blocks of both exclude each other.
    ///
    /// Panics if that body has a larger arena, or a buffer outside of it.
    pub fn of_body<'b>(&'b self, body: &'b Body) -> Memory<'b> {
        assert!(
            body.arena <= self.body.arena,
            "the arena is smaller than the other body needs"
        );
        Memory {
            start: self.start,
            device: self.device,
            body,
            half: check_places(body),
            claims: Rc::clone(&self.claims),
            arena: PhantomData,
        }
    }

    /// The device on which the memory lies, unless it is the host.
    pub fn device(&self) -> Option<&'a (dyn DeviceMemory + 'static)> {
        self.device
    }

    /// A view on the device, unless it is empty or the memory lies on the host.
    fn on_device<T: Element>(&self, view: &View) -> Option<(&'a dyn DeviceMemory, DeviceView)> {
        let device = self.device?;
        let (bytes, pitch) = self.locate::<T>(view);
        let place = DeviceView {
            dtype: T::DTYPE,
            first: bytes.start as u64,
            extent: view.extent,
            pitch,
        };
        (!view.is_empty()).then_some((device, place))
    }

    /// Begins to pack on a device what a message is about to send; none where there is nothing to wait for.
    pub fn prefetch(&self, views: &[View]) -> Option<Prefetch> {
        let device = self.device?;
        let place = |view: &View| {
            let dtype = self.body.buffer(view.buffer).dtype;
            with_type!(dtype, T => self.on_device::<T>(view).map(|(_, place)| place))
        };
        let places: Vec<DeviceView> = views.iter().filter_map(place).collect();
        (!places.is_empty()).then(|| device.prefetch(&places))
    }

    /// Whether the elements of a view are contiguous.
    pub fn is_dense(&self, view: &View) -> bool {
        self.body.is_dense(view)
    }

    fn locate<T: Element>(&self, view: &View) -> (Range<usize>, [usize; 5]) {
        let buffer = self.body.buffer(view.buffer);
        assert_eq!(buffer.dtype, T::DTYPE, "dtype of buffer {}", buffer.name);
        let inside = (0..5).all(|dim| {
            let end = view.start[dim].checked_add(view.extent[dim]);
            end.is_some_and(|end| end <= buffer.dims[dim])
        });
        assert!(
            inside,
            "a view of {:?} elements at {:?} leaves buffer {} of {:?}",
            view.extent, view.start, buffer.name, buffer.dims
        );
        let pitch = buffer.pitches();
        let base = buffer.offset.0 as usize;
        if view.is_empty() {
            // The computed range could lie in another buffer.
            return (base..base, pitch);
        }
        // No product exceeds the buffer, whose size `Arena::memory` has checked.
        let (mut first, mut last) = (0, 0);
        for dim in 0..5 {
            first += view.start[dim] * pitch[dim];
            last += (view.start[dim] + view.extent[dim] - 1) * pitch[dim];
        }
        let size = T::DTYPE.size();
        (base + first * size..base + (last + 1) * size, pitch)
    }

    fn claim(&self, bytes: Range<usize>, access: Access) -> ClaimGuard<'_> {
        let mut claims = self.claims.borrow_mut();
        let claim = Claim { bytes, access };
        if let Some(held) = claims.iter().find(|held| held.excludes(&claim)) {
            let (a, b) = (&held.bytes, &claim.bytes);
            panic!(
                "two blocks of one task overlap in memory: bytes {} to {} are held ({:?}), \
                 bytes {} to {} are asked for ({access:?})",
                a.start, a.end, held.access, b.start, b.end
            );
        }
        claims.push(claim.clone());
        ClaimGuard {
            claims: &self.claims,
            claim,
        }
    }

    /// First element and number of elements of a byte range of `locate`.
    fn elements<T: Element>(&self, bytes: &Range<usize>) -> (*mut T, usize) {
        assert!(
            self.device.is_none(),
            "the host addresses no memory of a device"
        );
        // SAFETY: `locate` keeps the range inside a buffer, and `Arena::memory` every buffer inside
        // the arena.
        let first = unsafe { self.start.add(bytes.start) };
        (first.cast(), bytes.len() / size_of::<T>())
    }

    /// The elements of a view, to read. Panics if a writer or cells claim part of the range.
    pub fn read<T: Element>(&self, view: &View) -> Block<'_, T> {
        let (bytes, pitch) = self.locate::<T>(view);
        let (start, length) = self.elements(&bytes);
        Block {
            start,
            length,
            extent: view.extent,
            pitch,
            _claim: self.claim(bytes, Access::Read),
        }
    }

    /// The elements of a view, to write. Panics if any other claim overlaps the range.
    pub fn write<T: Element>(&self, view: &View) -> BlockMut<'_, T> {
        let (bytes, pitch) = self.locate::<T>(view);
        let (start, length) = self.elements(&bytes);
        BlockMut {
            start,
            length,
            extent: view.extent,
            pitch,
            _claim: self.claim(bytes, Access::Write),
        }
    }

    /// The elements of a view, for kernels that may work in place or between boxes of one buffer.
    /// Panics if a block claims part of the range.
    pub fn cells<T: Element>(&self, view: &View) -> Cells<'_, T> {
        let (bytes, pitch) = self.locate::<T>(view);
        Cells {
            start: self.elements(&bytes).0,
            extent: view.extent,
            pitch,
            _claim: self.claim(bytes, Access::Cells),
        }
    }

    /// Contents of a view, packed in memory order.
    pub fn pack<T: Element>(&self, view: &View, packed: &mut Vec<T>) {
        if self.device.is_some() {
            packed.clear();
            packed.resize(view.volume(), T::default());
            return self.pack_into(view, packed);
        }
        let block = self.read::<T>(view);
        packed.clear();
        packed.reserve(view.volume());
        for_rows(view.extent, block.pitch, |at, length| {
            packed.extend_from_slice(&block.data()[at..at + length]);
        });
    }

    /// Contents of a view, packed in memory order. Panics if the lengths differ.
    pub fn pack_into<T: Element>(&self, view: &View, packed: &mut [T]) {
        assert_eq!(packed.len(), view.volume(), "length of {view}");
        if self.device.is_some() {
            if let Some((device, place)) = self.on_device::<T>(view) {
                device.pack(&place, bytes_of_mut(packed));
            }
            return;
        }
        let block = self.read::<T>(view);
        let mut rest = packed;
        for_rows(view.extent, block.pitch, |at, length| {
            let (row, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            row.copy_from_slice(&block.data()[at..at + length]);
        });
    }

    /// Contents of a view of floats of any type, packed in memory order as f32. Panics if the lengths differ.
    pub fn pack_f32(&self, view: &View, packed: &mut [f32]) {
        match self.body.buffer(view.buffer).dtype {
            Dtype::F32 => self.pack_into(view, packed),
            Dtype::Bf16 => {
                let mut stored: Vec<bf16> = Vec::new();
                self.pack(view, &mut stored);
                stored.convert_to_f32_slice(packed);
            }
            Dtype::F16 => {
                let mut stored: Vec<f16> = Vec::new();
                self.pack(view, &mut stored);
                stored.convert_to_f32_slice(packed);
            }
            Dtype::F64 => {
                let mut stored: Vec<f64> = Vec::new();
                self.pack(view, &mut stored);
                assert_eq!(packed.len(), stored.len(), "length of {view}");
                let values = packed.iter_mut().zip(stored);
                values.for_each(|(to, from)| *to = from as f32);
            }
            Dtype::I16 => panic!("{view} holds integers"),
        }
    }

    /// Sets the contents of a view of floats of up to four bytes from packed f32, rounded to its type.
    pub fn unpack_f32(&self, view: &View, packed: &[f32]) {
        match self.body.buffer(view.buffer).dtype {
            Dtype::F32 => self.unpack(view, packed, false),
            Dtype::Bf16 => {
                let mut narrow = vec![bf16::ZERO; packed.len()];
                narrow.convert_from_f32_slice(packed);
                self.unpack(view, &narrow, false);
            }
            Dtype::F16 => {
                let mut narrow = vec![f16::ZERO; packed.len()];
                narrow.convert_from_f32_slice(packed);
                self.unpack(view, &narrow, false);
            }
            dtype @ (Dtype::F64 | Dtype::I16) => panic!("{view} holds {dtype:?}"),
        }
    }

    /// The first element of a view, in memory order, that is wanted.
    pub(crate) fn find<T: Element>(
        &self,
        view: &View,
        is_wanted: impl Fn(&T) -> bool,
    ) -> Option<T> {
        if self.device.is_some() {
            let mut packed = Vec::new();
            self.pack(view, &mut packed);
            return packed.into_iter().find(is_wanted);
        }
        let block = self.read::<T>(view);
        let mut found = None;
        for_rows(view.extent, block.pitch, |at, length| {
            if found.is_none() {
                let row = &block.data()[at..at + length];
                found = row.iter().copied().find(&is_wanted);
            }
        });
        found
    }

    /// Sets the contents of a view to zeros.
    pub fn clear<T: Element>(&self, view: &View) {
        if self.device.is_some() {
            if let Some((device, place)) = self.on_device::<T>(view) {
                device.clear(&place);
            }
            return;
        }
        let mut block = self.write::<T>(view);
        for_rows(view.extent, block.pitch, |at, length| {
            block.data_mut()[at..at + length].fill(T::default());
        });
    }

    /// Sets, or adds to, the contents of a view from packed elements.
    pub fn unpack<T: Element + std::ops::AddAssign>(
        &self,
        view: &View,
        packed: &[T],
        accumulate: bool,
    ) {
        assert_eq!(
            packed.len(),
            view.volume(),
            "length of a message for {view}"
        );
        if self.device.is_some() {
            if let Some((device, place)) = self.on_device::<T>(view) {
                device.unpack(&place, bytes_of(packed), accumulate);
            }
            return;
        }
        let mut block = self.write::<T>(view);
        let mut rest = packed;
        for_rows(view.extent, block.pitch, |at, length| {
            let (row, after) = rest.split_at(length);
            rest = after;
            let target = &mut block.data_mut()[at..at + length];
            if accumulate {
                target
                    .iter_mut()
                    .zip(row)
                    .for_each(|(sum, &part)| *sum += part);
            } else {
                target.copy_from_slice(row);
            }
        });
    }
}

/// Calls `visit(first element, length)` for every contiguous row of a box.
fn for_rows(extent: [usize; 5], pitch: [usize; 5], mut visit: impl FnMut(usize, usize)) {
    if extent.contains(&0) {
        return;
    }
    // The contiguous innermost dims form one row.
    let mut dim = 4;
    let mut length = extent[4];
    while dim > 0 && pitch[dim - 1] == length {
        dim -= 1;
        length *= extent[dim];
    }
    let mut index = [0; 5];
    loop {
        let at = (0..dim).map(|d| index[d] * pitch[d]).sum();
        visit(at, length);
        let mut d = dim;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < extent[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

impl<T: Element> Cells<'_, T> {
    /// Extents.
    pub fn extent(&self) -> [usize; 5] {
        self.extent
    }

    fn at(&self, index: [usize; 5]) -> *mut T {
        let mut offset = 0;
        for dim in 0..5 {
            assert!(
                index[dim] < self.extent[dim],
                "{index:?} lies outside {:?}",
                self.extent
            );
            offset += index[dim] * self.pitch[dim];
        }
        // SAFETY: the index lies inside the view, which lies inside the arena.
        unsafe { self.start.add(offset) }
    }

    /// The element at an index.
    pub fn get(&self, index: [usize; 5]) -> T {
        // SAFETY: `at` is inside the range that the cells claim, so no block refers to it, and only one
        // thread has the memory. Every bit pattern is a `T`.
        unsafe { self.at(index).read() }
    }

    /// Sets the element at an index.
    pub fn set(&self, index: [usize; 5], value: T) {
        // SAFETY: as in `get`.
        unsafe { self.at(index).write(value) }
    }
}

impl<T: Element> Block<'_, T> {
    /// From the first to the last element, elements between them included.
    #[inline]
    pub fn data(&self) -> &[T] {
        // SAFETY: the elements lie inside the arena, aligned as `Arena::memory` has checked, every bit
        // pattern is a `T`, and the claim excludes writers as long as the block lives.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// Position in the data of an index of the box.
    pub fn at(&self, index: [usize; 5]) -> usize {
        (0..5).map(|dim| index[dim] * self.pitch[dim]).sum()
    }

    /// Bytes of the box's elements only.
    pub fn box_bytes(&self) -> u64 {
        (self.extent.iter().product::<usize>() * size_of::<T>()) as u64
    }
}

impl<T: Element> BlockMut<'_, T> {
    /// From the first to the last element, elements between them included.
    #[inline]
    pub fn data(&self) -> &[T] {
        // SAFETY: as in `data_mut`; the block is borrowed as the slice is.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// From the first to the last element, elements between them included.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [T] {
        // SAFETY: the elements lie inside the arena, aligned as `Arena::memory` has checked, every bit
        // pattern is a `T`, and the claim excludes all others as long as the block lives.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }

    /// Position in the data of an index of the box.
    pub fn at(&self, index: [usize; 5]) -> usize {
        (0..5).map(|dim| index[dim] * self.pitch[dim]).sum()
    }

    /// Bytes of the box's elements only.
    pub fn box_bytes(&self) -> u64 {
        (self.extent.iter().product::<usize>() * size_of::<T>()) as u64
    }
}

#[cfg(test)]
mod tests;
