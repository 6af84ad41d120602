//! Memory of arenas and packet pools.

use crate::allocation::handling_failure;
use partita_space::Bytes;
use std::cell::UnsafeCell;

/// From this size on, pages go back to the system when the memory is dropped.
#[cfg(target_os = "linux")]
const PAGES_FROM: usize = 1 << 20;

/// One allocation, zeroed, aligned to 64 bytes.
///
/// If it is large, its pages go back to the system as soon as it is dropped. The allocator would keep some of them, which then
/// are missing where the memory of the next run is measured.
pub(crate) struct AlignedMemory(Box<[UnsafeCell<Line>]>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: plain bytes, accessed only through an arena, by one thread at a time, or through packets, whose
// ranges are disjoint.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// Allocates at least `bytes`; `None` if out of memory.
    pub fn try_allocate(bytes: Bytes) -> Option<Self> {
        let lines = usize::try_from(bytes.0.div_ceil(64)).ok()?;
        let layout = std::alloc::Layout::array::<UnsafeCell<Line>>(lines.max(1)).ok()?;
        // SAFETY: the layout is not of size zero, zero bytes are a valid `Line`, and the box is
        // given exactly the allocation made for its type and length.
        let lines = unsafe {
            let start = handling_failure(|| std::alloc::alloc_zeroed(layout));
            let start = start.cast::<UnsafeCell<Line>>();
            if start.is_null() {
                return None;
            }
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, lines.max(1)))
        };
        Some(Self(lines))
    }

    /// Size.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.0.len() as u64 * 64)
    }

    /// Touches every page, so that all are resident before the first step.
    pub fn touch(&mut self) {
        for line in self.0.iter_mut().step_by(64) {
            // SAFETY: `&mut self` excludes every other reference; a volatile write is not elided.
            unsafe { std::ptr::write_volatile(line.get(), Line([0; 64])) };
        }
    }

    /// The first byte. Users of the pointer must exclude conflicting accesses themselves.
    pub fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast::<u8>()
    }
}

#[cfg(target_os = "linux")]
impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // The largest page of any system: a length is rounded up to whole pages, and what lies behind is not ours.
        const PAGE: usize = 1 << 16;
        let bytes = size_of_val(&*self.0);
        if bytes < PAGES_FROM {
            return;
        }
        let start = self.start();
        let skipped = start.align_offset(PAGE);
        let whole = (bytes - skipped) / PAGE * PAGE;
        // SAFETY: the pages lie within the allocation, which nobody reads any more; they are zero if they are used again.
        unsafe { libc::madvise(start.add(skipped).cast(), whole, libc::MADV_DONTNEED) };
    }
}
