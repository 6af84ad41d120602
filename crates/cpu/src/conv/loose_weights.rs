//! Weights that a thread packs for a tile and a sweep at a time.
//!
//! Packing all weights in advance writes them to memory and reads them again. Where there are few
//! positions, that takes as long as a fourth of the products; here the packed rows stay in the L2 cache.

use crate::conv::tile::Stretch;
use crate::conv::transpose::Transpose;
use crate::grid::Shared;
use crate::simd::{Level, Op, Simd};
use crate::team::TeamKind;

/// Weights that one sweep over the positions reads, in elements: stays in the L1 and L2 caches.
pub(crate) const WEIGHTS_PER_SWEEP: usize = 32 * 1024;
/// Elements for the rows of a sweep, whose number is rounded up.
const ROOM: usize = WEIGHTS_PER_SWEEP + 512;

/// Plain weights of a job, and room for each thread to pack some rows of a tile.
#[derive(Clone, Copy)]
pub(crate) struct LooseWeights<'a> {
    w: &'a [f32],
    pitch: usize,
    /// Taps of the kernel, flipped, and channels transposed: the backward-data direction.
    flipped_taps: Option<usize>,
    room: Shared,
}

/// Weights that fit a part of an L2 cache are packed in advance, in elements.
const PACKED_IN_ADVANCE: usize = 128 * 1024;
/// Positions from which on weights are packed in advance, as each block of positions packs loose ones.
const POSITIONS_MAX: usize = 480;

/// True if weights are packed per tile, not up front.
pub(crate) fn is_loose(packed: usize, positions: usize) -> bool {
    packed > PACKED_IN_ADVANCE && positions < POSITIONS_MAX
}

/// Scratch elements of all threads.
pub(crate) fn loose_scratch(team: TeamKind) -> usize {
    team.threads * ROOM
}

impl<'a> LooseWeights<'a> {
    /// Of rows of `pitch` elements; the room is [`loose_scratch`], borrowed for as long as these live.
    pub(crate) fn new(
        w: &'a [f32],
        pitch: usize,
        flipped_taps: Option<usize>,
        room: &'a mut [f32],
    ) -> LooseWeights<'a> {
        LooseWeights {
            w,
            pitch,
            flipped_taps,
            room: Shared(room.as_mut_ptr()),
        }
    }

    /// From a channel on.
    pub(crate) fn at_channel(self, channel: usize) -> LooseWeights<'a> {
        LooseWeights {
            w: &self.w[channel..],
            ..self
        }
    }

    /// Packs the rows of some stretches for a tile of `width` channels from `f0` on, of which `take` of
    /// `f` channels exist, and numbers the rows of the stretches anew. Returns the packed rows.
    ///
    /// # Safety
    /// The level is the team's, the room is that of a team with this thread, and nobody else uses its part
    /// before the stretches are done.
    pub(crate) unsafe fn pack(
        &self,
        (level, thread): (Level, usize),
        stretches: &mut [Stretch],
        (c, f): (usize, usize),
        (f0, take, width): (usize, usize, usize),
    ) -> *const f32 {
        let rows: usize = stretches.iter().map(|s| s.len).sum();
        assert!(rows * width <= ROOM, "{rows} rows of {width}");
        // SAFETY: the part of this thread, as the caller says.
        let out = unsafe {
            let room = self.room.get().add(thread * ROOM);
            std::slice::from_raw_parts_mut(room, rows * width)
        };
        let mut done = 0;
        for stretch in stretches {
            let (mut row, mut left) = (stretch.row, stretch.len);
            stretch.row = done;
            while left > 0 {
                // Rows of one tap.
                let n = left.min(c - row % c);
                let out = &mut out[done * width..(done + n) * width];
                match self.flipped_taps {
                    None => {
                        let copy = CopyRows {
                            from: &self.w[row * self.pitch + f0..],
                            pitch: self.pitch,
                            take,
                            out,
                            width,
                        };
                        // SAFETY: the team has the level.
                        unsafe { level.run(copy) };
                    }
                    Some(taps) => {
                        let tap = taps - 1 - row / c;
                        let transpose = Transpose {
                            from: &self.w[(tap * f + f0) * self.pitch + row % c..],
                            pitch: self.pitch,
                            rows: take,
                            columns: n,
                            out,
                            width,
                        };
                        // SAFETY: the team has the level.
                        unsafe { level.run(transpose) };
                    }
                }
                (row, left, done) = (row + n, left - n, done + n);
            }
        }
        out.as_ptr()
    }
}

/// Rows from a read to its prefetch.
const AHEAD: usize = 16;

/// Copies `take` elements of rows of `pitch` to rows of `width`, whose rest becomes zero.
struct CopyRows<'a> {
    from: &'a [f32],
    pitch: usize,
    take: usize,
    out: &'a mut [f32],
    width: usize,
}

impl Op for CopyRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = self.out.len() / self.width;
        assert!(rows == 0 || self.from.len() >= (rows - 1) * self.pitch + self.take);
        let (mut from, mut to) = (self.from.as_ptr(), self.out.as_mut_ptr());
        for _ in 0..rows {
            for at in (0..self.width).step_by(S::LANES) {
                S::prefetch(from.wrapping_add(AHEAD * self.pitch + at));
                let lanes = self.take.saturating_sub(at).min(S::LANES);
                // SAFETY: elements of a row that exist, by the assertion; widths are whole vectors.
                unsafe {
                    if lanes == S::LANES {
                        S::store(to.add(at), S::load(from.add(at)));
                    } else {
                        S::store(to.add(at), S::load_part(from.add(at), lanes));
                    }
                }
            }
            from = from.wrapping_add(self.pitch);
            to = to.wrapping_add(self.width);
        }
    }
}
