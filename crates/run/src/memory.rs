//! The arena of a rank and the views into it.

use partita_program::{Body, Dtype, View};
use partita_space::Bytes;
use std::cell::{RefCell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;

/// An element type of buffers.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Its tag in programs.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}

impl Element for i16 {
    const DTYPE: Dtype = Dtype::I16;
}

/// The memory of a rank: one allocation, zeroed, aligned to 64 bytes.
pub struct Arena {
    words: Box<[UnsafeCell<Line>]>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: the cells are reached only through `memory(&mut self)`, so by one thread at a time.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of at least `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        let lines = bytes.0.div_ceil(64) as usize;
        let layout = std::alloc::Layout::array::<UnsafeCell<Line>>(lines.max(1))
            .expect("an arena fits the address space");
        // SAFETY: the layout is not of size zero, zero bytes are a valid `Line`, and the box is
        // given exactly the allocation made for its type and length.
        let words = unsafe {
            let start = std::alloc::alloc_zeroed(layout).cast::<UnsafeCell<Line>>();
            if start.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, lines.max(1)))
        };
        Self { words }
    }

    /// Size.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.words.len() as u64 * 64)
    }

    /// Touches every page, so that they are counted and resident before the first step.
    pub fn touch(&mut self) {
        for word in self.words.iter_mut().step_by(64) {
            // SAFETY: `&mut self` excludes every other reference; a volatile write is not elided.
            unsafe { std::ptr::write_volatile(word.get(), Line([0; 64])) };
        }
    }

    /// The arena as the buffers of a body.
    pub fn memory<'a>(&'a mut self, body: &'a Body) -> Memory<'a> {
        assert!(
            body.arena <= self.bytes(),
            "the arena is smaller than the body says"
        );
        for buffer in &body.buffers {
            let (start, size) = (buffer.offset.0, buffer.dtype.size() as u64);
            assert!(
                start.is_multiple_of(size) && start + buffer.bytes().0 <= body.arena.0,
                "buffer {} does not lie in the arena",
                buffer.name
            );
        }
        let start = self.words.as_mut_ptr().cast::<u8>();
        Memory {
            start,
            body,
            claims: RefCell::default(),
            arena: PhantomData,
        }
    }
}

/// The buffers of a body while it runs. Blocks are checked at run time like the borrows of a
/// `RefCell`: any number of readers or one writer for overlapping ranges of memory.
pub struct Memory<'a> {
    start: *mut u8,
    body: &'a Body,
    claims: RefCell<Vec<Claim>>,
    arena: PhantomData<&'a mut Arena>,
}

struct Claim {
    bytes: Range<usize>,
    writes: bool,
}

/// A box of elements to read: `data` begins at its first element and ends at its last.
pub struct Block<'m, T> {
    /// From the first to the last element, what lies between them included.
    pub data: &'m [T],
    /// Extents.
    pub extent: [usize; 5],
    /// Elements between neighbors along each dim; the last is 1.
    pub pitch: [usize; 5],
    claim: ClaimGuard<'m>,
}

/// A box of elements to write.
pub struct BlockMut<'m, T> {
    /// From the first to the last element, what lies between them included.
    pub data: &'m mut [T],
    /// Extents.
    pub extent: [usize; 5],
    /// Elements between neighbors along each dim; the last is 1.
    pub pitch: [usize; 5],
    claim: ClaimGuard<'m>,
}

/// A box of elements that may share its range of memory with other boxes, element by element.
pub struct Cells<'m, T> {
    start: *mut T,
    /// Extents.
    pub extent: [usize; 5],
    /// Elements between neighbors along each dim; the last is 1.
    pub pitch: [usize; 5],
    memory: PhantomData<&'m T>,
}

struct ClaimGuard<'m> {
    claims: &'m RefCell<Vec<Claim>>,
    bytes: Range<usize>,
    writes: bool,
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        let mut claims = self.claims.borrow_mut();
        let mine = claims
            .iter()
            .position(|claim| claim.bytes == self.bytes && claim.writes == self.writes);
        claims.swap_remove(mine.expect("a claim is listed while its block lives"));
    }
}

impl<'a> Memory<'a> {
    /// The body whose buffers these are.
    pub fn body(&self) -> &'a Body {
        self.body
    }

    /// Whether the elements of a view lie side by side, so that a block of it has no others.
    pub fn is_dense(&self, view: &View) -> bool {
        is_dense(self.body, view)
    }

    fn locate<T: Element>(&self, view: &View) -> (Range<usize>, [usize; 5]) {
        let buffer = self.body.buffer(view.buffer);
        assert_eq!(buffer.dtype, T::DTYPE, "dtype of buffer {}", buffer.name);
        let pitch = buffer.pitches();
        let mut first = 0;
        let mut last = 0;
        for dim in 0..5 {
            assert!(
                view.start[dim] + view.extent[dim] <= buffer.dims[dim],
                "{view} leaves buffer {}",
                buffer.name
            );
            first += view.start[dim] * pitch[dim];
            last += (view.start[dim] + view.extent[dim].max(1) - 1) * pitch[dim];
        }
        let size = T::DTYPE.size();
        let base = buffer.offset.0 as usize;
        if view.is_empty() {
            // Its first element may lie beyond the buffer, among those of another.
            return (base..base, pitch);
        }
        (base + first * size..base + (last + 1) * size, pitch)
    }

    fn claim(&self, bytes: Range<usize>, writes: bool) -> ClaimGuard<'_> {
        let mut claims = self.claims.borrow_mut();
        let overlaps = |claim: &Claim| {
            claim.bytes.start < bytes.end
                && bytes.start < claim.bytes.end
                && (claim.writes || writes)
        };
        assert!(
            !claims.iter().any(overlaps),
            "two blocks of one task overlap in memory"
        );
        claims.push(Claim {
            bytes: bytes.clone(),
            writes,
        });
        ClaimGuard {
            claims: &self.claims,
            bytes,
            writes,
        }
    }

    /// The elements of a view, to read. Panics where a writer holds part of the range.
    pub fn read<T: Element>(&self, view: &View) -> Block<'_, T> {
        let (bytes, pitch) = self.locate::<T>(view);
        let claim = self.claim(bytes.clone(), false);
        // SAFETY: `locate` keeps the range inside a buffer, `memory` keeps buffers inside the arena,
        // offsets are multiples of the element size, and the claim excludes writers.
        let data = unsafe {
            let first = self.start.add(bytes.start).cast::<T>();
            std::slice::from_raw_parts(first, bytes.len() / size_of::<T>())
        };
        Block {
            data,
            extent: view.extent,
            pitch,
            claim,
        }
    }

    /// The elements of a view, to write. Panics where anyone holds part of the range.
    pub fn write<T: Element>(&self, view: &View) -> BlockMut<'_, T> {
        let (bytes, pitch) = self.locate::<T>(view);
        let claim = self.claim(bytes.clone(), true);
        // SAFETY: as in `read`, and the claim excludes every other block of the range.
        let data = unsafe {
            let first = self.start.add(bytes.start).cast::<T>();
            std::slice::from_raw_parts_mut(first, bytes.len() / size_of::<T>())
        };
        BlockMut {
            data,
            extent: view.extent,
            pitch,
            claim,
        }
    }

    /// The elements of a view, for kernels that may work in place or between boxes of one buffer. Panics
    /// while a block is held; none may be taken while the cells are in use.
    pub fn cells<T: Element>(&self, view: &View) -> Cells<'_, T> {
        assert!(
            self.claims.borrow().is_empty(),
            "cells are taken while a block is held"
        );
        let (bytes, pitch) = self.locate::<T>(view);
        // SAFETY: `locate` keeps the range inside the arena.
        let start = unsafe { self.start.add(bytes.start).cast::<T>() };
        Cells {
            start,
            extent: view.extent,
            pitch,
            memory: PhantomData,
        }
    }

    /// Contents of a view, packed in memory order.
    pub fn pack<T: Element>(&self, view: &View, packed: &mut Vec<T>) {
        let block = self.read::<T>(view);
        packed.clear();
        packed.reserve(view.volume());
        for_rows(view.extent, block.pitch, |at, length| {
            packed.extend_from_slice(&block.data[at..at + length]);
        });
    }

    /// Sets the contents of a view to zeros.
    pub fn clear<T: Element>(&self, view: &View) {
        let block = self.write::<T>(view);
        for_rows(view.extent, block.pitch, |at, length| {
            block.data[at..at + length].fill(T::default());
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
        let block = self.write::<T>(view);
        let mut rest = packed;
        for_rows(view.extent, block.pitch, |at, length| {
            let (row, after) = rest.split_at(length);
            rest = after;
            let target = &mut block.data[at..at + length];
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

/// Whether the elements of a view lie side by side.
pub(crate) fn is_dense(body: &Body, view: &View) -> bool {
    let pitch = body.buffer(view.buffer).pitches();
    let last: usize = (0..5)
        .map(|dim| (view.extent[dim].max(1) - 1) * pitch[dim])
        .sum();
    view.is_empty() || last + 1 == view.volume()
}

/// Calls `visit(first element, length)` for every contiguous row of a box.
fn for_rows(extent: [usize; 5], pitch: [usize; 5], mut visit: impl FnMut(usize, usize)) {
    if extent.contains(&0) {
        return;
    }
    // The innermost dims that lie without gaps make one row.
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

    /// The element there.
    pub fn get(&self, index: [usize; 5]) -> T {
        // SAFETY: `at` is inside the arena and no block is held, so nothing aliases as a reference.
        unsafe { self.at(index).read() }
    }

    /// Sets the element there.
    pub fn set(&self, index: [usize; 5], value: T) {
        // SAFETY: as in `get`.
        unsafe { self.at(index).write(value) }
    }
}

impl<T> Block<'_, T> {
    /// Position in `data` of an index of the box.
    pub fn at(&self, index: [usize; 5]) -> usize {
        (0..5).map(|dim| index[dim] * self.pitch[dim]).sum()
    }

    /// Bytes of the box's elements, without what lies between.
    pub fn box_bytes(&self) -> u64 {
        debug_assert!(!self.claim.writes);
        (self.extent.iter().product::<usize>() * size_of::<T>()) as u64
    }
}

impl<T> BlockMut<'_, T> {
    /// Position in `data` of an index of the box.
    pub fn at(&self, index: [usize; 5]) -> usize {
        (0..5).map(|dim| index[dim] * self.pitch[dim]).sum()
    }

    /// Bytes of the box's elements, without what lies between.
    pub fn box_bytes(&self) -> u64 {
        debug_assert!(self.claim.writes);
        (self.extent.iter().product::<usize>() * size_of::<T>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, Dtype, View};
    use partita_program::{Body, Buffer, BufferId, Role};
    use partita_space::Bytes;

    #[test]
    fn a_view_without_elements_is_in_nobodys_way() {
        let buffer = |dims| Buffer {
            name: "x".to_owned(),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims,
            home: None,
            offset: Bytes(0),
        };
        let body = Body {
            buffers: vec![buffer([1, 0, 1, 2, 2]), buffer([1, 1, 1, 4, 4])],
            arena: Bytes(64),
            ..Body::default()
        };
        let none = View {
            buffer: BufferId(0),
            start: [0, 0, 1, 1, 1],
            extent: [1, 0, 0, 1, 1],
        };
        let all = body.buffers[1].view(BufferId(1));
        let mut arena = Arena::new(body.arena);
        let memory = arena.memory(&body);
        let block = memory.write::<f32>(&all);
        assert!(memory.read::<f32>(&none).data.is_empty());
        assert_eq!(block.data.len(), 16);
    }
}
