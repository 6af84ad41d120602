//! Memory of arenas and packet pools.

use crate::allocation::handling_failure;
use memmap2::{MmapOptions, MmapRaw};
use partita_space::Bytes;
use std::cell::UnsafeCell;

/// From this size on, memory has pages of its own.
const PAGES_FROM: usize = 1 << 20;

/// The smallest page of any system.
const PAGE: usize = 4096;

/// Zeroed memory, aligned to 64 bytes.
///
/// If it is large, it goes back to the system as soon as it is dropped. The allocator would keep some of it, which then is
/// missing where the memory of the next run is measured.
pub(crate) enum AlignedMemory {
    Pages(MmapRaw),
    Lines(Box<[UnsafeCell<Line>]>),
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

// SAFETY: plain bytes, accessed only through an arena, by one thread at a time, or through packets, whose
// ranges are disjoint.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// Allocates at least `bytes`; `None` if out of memory.
    pub fn try_allocate(bytes: Bytes) -> Option<Self> {
        let lines = usize::try_from(bytes.0.div_ceil(64)).ok()?.max(1);
        let layout = std::alloc::Layout::array::<UnsafeCell<Line>>(lines).ok()?;
        if layout.size() >= PAGES_FROM {
            let pages = MmapOptions::new().len(layout.size()).map_anon();
            return Some(Self::Pages(pages.ok()?.into()));
        }
        // SAFETY: the layout is not of size zero, zero bytes are a valid `Line`, and the box is
        // given exactly the allocation made for its type and length.
        let lines = unsafe {
            let start = handling_failure(|| std::alloc::alloc_zeroed(layout));
            let start = start.cast::<UnsafeCell<Line>>();
            if start.is_null() {
                return None;
            }
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, lines))
        };
        Some(Self::Lines(lines))
    }

    /// Size.
    pub fn bytes(&self) -> Bytes {
        let bytes = match self {
            Self::Pages(pages) => pages.len(),
            Self::Lines(lines) => size_of_val(&**lines),
        };
        Bytes(bytes as u64)
    }

    /// Touches every page, so that all are resident before the first step.
    pub fn touch(&mut self) {
        let start = self.start();
        for at in (0..self.bytes().0 as usize).step_by(PAGE) {
            // SAFETY: the byte is in the memory, and `&mut self` excludes every other reference; a volatile write is not
            // elided.
            unsafe { start.add(at).write_volatile(0) };
        }
    }

    /// The first byte. Users of the pointer must exclude conflicting accesses themselves.
    pub fn start(&self) -> *mut u8 {
        match self {
            Self::Pages(pages) => pages.as_mut_ptr(),
            Self::Lines(lines) => lines.as_ptr().cast_mut().cast::<u8>(),
        }
    }
}
