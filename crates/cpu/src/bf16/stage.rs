//! Copies of what a tile reads: widened, or with a zero after the last of an odd number of channels.

use crate::conv::tile::Stretch;
use crate::simd::{LANES_MAX, Op, Simd};
use half::bf16;

/// Stretches of x at some offsets to rows of f32, one after another, whose last vector may be written whole.
///
/// Pointers: the stretches at each offset, and room for rows of `pitch` elements and a vector.
pub(super) struct Widen<'a> {
    pub x: *const bf16,
    pub xo: &'a [usize],
    pub stretches: &'a [Stretch],
    pub to: *mut f32,
    pub pitch: usize,
}

impl Op for Widen<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for (row, xo) in self.xo.iter().enumerate() {
                let mut to = self.to.add(row * self.pitch);
                for s in self.stretches {
                    let from = self.x.add(xo + s.x);
                    let whole = s.len / S::LANES * S::LANES;
                    for at in (0..whole).step_by(S::LANES) {
                        S::store(to.add(at), S::load_bf16(from.add(at)));
                    }
                    if whole < s.len && S::LANES == LANES_MAX {
                        let rest = S::load_bf16_part(from.add(whole), s.len - whole);
                        S::store(to.add(whole), rest);
                    } else {
                        // Narrow levels gather a part in memory, which a load of all of it waits for.
                        for at in whole..s.len {
                            *to.add(at) =
                                f32::from_bits(u32::from((*from.add(at)).to_bits()) << 16);
                        }
                    }
                    to = to.add(s.len);
                }
            }
        }
    }
}

/// Stretches of x at some offsets to rows of whole words, one after another.
///
/// # Safety
/// The stretches can be read at each offset, and there is room for rows of `pitch` elements, which no other
/// thread accesses.
pub(super) unsafe fn complete(
    x: *const bf16,
    xo: &[usize],
    stretches: &[Stretch],
    to: *mut bf16,
    pitch: usize,
) {
    for (row, xo) in xo.iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut to = to.add(row * pitch);
            for s in stretches {
                std::ptr::copy_nonoverlapping(x.add(xo + s.x), to, s.len);
                to = to.add(s.len);
                if s.len % 2 == 1 {
                    *to = bf16::ZERO;
                    to = to.add(1);
                }
            }
        }
    }
}
