//! Memory of arenas and packet pools.

use crate::allocation::handling_failure;
use partita_space::Bytes;
use std::cell::UnsafeCell;

/// One allocation, zeroed, aligned to 64 bytes.
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
