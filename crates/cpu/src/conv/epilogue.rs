//! Fused epilogues of convolutions.
//!
//! An epilogue is applied to a tile that has just been stored, so it costs no extra pass over memory.
//! What is stored in bf16 is rounded last, from values in f32 beside it, and sums are of what is stored.
//! Sums are taken over a tile or two in f32, relative to the first value of each channel, and added up in
//! f64 in slots: each slot sums a fixed part of the positions, and the slots are added in order.

use crate::conv::convolution::Convolution;
use crate::conv::tiles::Tiles;
use crate::conv::values::Values;
use crate::conv::walk::{P_MAX, Positions};
use crate::grid::{Grid, View};
use crate::norm::Normalization;
use crate::simd::{LANES_MAX, Level, Op, Simd};
use crate::team::TeamKind;
use std::marker::PhantomData;

/// Slots per thread: enough for load balance.
const SLOTS_PER_THREAD: usize = 32;
/// Positions whose sums are taken in f32, at most: as many as the widest tile has.
const NARROW: usize = P_MAX;
/// Vectors of a tile of a convolution, at most.
const VECTORS_MAX: usize = 4;
/// Boxes that an epilogue may read.
pub(crate) const BOXES: usize = 3;

/// Operations on each output element v, in the order of the fields.
///
/// The output is y of a forward kernel, dx of a backward one. The epilogue is applied after accumulation.
pub struct Epilogue<'a, E = f32> {
    /// v + bias\[channel\].
    pub bias: Option<&'a [f32]>,
    /// v * scale\[channel\] + shift\[channel\].
    pub scale_shift: Option<(&'a [f32], &'a [f32])>,
    /// v + the element of a box like the written one.
    pub add: Option<View<'a, E>>,
    /// v where positive, slope * v elsewhere.
    pub negative_slope: Option<f32>,
    /// v where the element of a box like the written one is positive, slope * v elsewhere.
    pub mask: Option<(View<'a, E>, f32)>,
    /// Sums over positions of the values written.
    pub sums: Option<Sums<'a, E>>,
}

impl<E> Default for Epilogue<'_, E> {
    fn default() -> Self {
        Epilogue {
            bias: None,
            scale_shift: None,
            add: None,
            negative_slope: None,
            mask: None,
            sums: None,
        }
    }
}

/// Sums per channel over the values that a kernel writes.
///
/// Reproducible for a given number of threads.
pub struct Sums<'a, E = f32> {
    /// What is summed.
    pub of: Summed<'a, E>,
    /// C first sums, then C second sums.
    pub into: &'a mut [f64],
    /// Add to the old contents.
    pub accumulate: bool,
}

/// The two things that are summed over the written values v of a channel.
#[derive(Clone, Copy)]
pub enum Summed<'a, E = f32> {
    /// v and v * v, as [`crate::norm_statistics`] does.
    Squares,
    /// v and v * xhat, as [`crate::norm_backward_statistics`] does for v = dy: x is the input of
    /// the normalization, in a box like the written one.
    Normalized(View<'a, E>, Normalization<'a>),
}

/// Additional scratch elements of a kernel whose epilogue takes sums over a box of `channels` channels.
pub fn sums_scratch(team: TeamKind, conv: &Convolution, channels: usize) -> usize {
    let tiles = tiles(team, conv, channels);
    // Two f64 a channel in each slot, and room to align them.
    4 * slots(team.threads) * tiles.padded() + 2
}

/// Tiles of the channels of a job; a depthwise convolution is one job.
fn tiles(team: TeamKind, conv: &Convolution, channels: usize) -> Tiles {
    let level = team.level;
    if conv.groups == channels {
        Tiles { level, f: channels }
    } else {
        Tiles {
            level,
            f: channels / conv.groups,
        }
    }
}

fn slots(threads: usize) -> usize {
    match threads {
        1 => 1,
        _ => SLOTS_PER_THREAD * threads,
    }
}

impl<'a, E: Copy> Epilogue<'a, E> {
    /// Panics if an operand does not fit the written box.
    pub(crate) fn assert_valid(&self, grid: &Grid) {
        let c = grid.channels;
        let (scale, shift) = self.scale_shift.unzip();
        for values in [self.bias, scale, shift].into_iter().flatten() {
            assert!(values.len() >= c, "{} values of {c} channels", values.len());
        }
        if let Some(sums) = &self.sums {
            let n = sums.into.len();
            assert!(n == 2 * c, "{n} sums of {c} channels");
            if let Summed::Normalized(_, norm) = sums.of {
                assert!(norm.sums.len() == 2 * c, "{c} channels of {norm:?}");
            }
        }
        for b in self.boxes().iter().flatten() {
            b.grid.assert_like(grid);
        }
    }

    /// The boxes of `add`, `mask` and `sums`.
    fn boxes(&self) -> [Option<View<'a, E>>; BOXES] {
        let against = match self.sums.as_ref().map(|s| s.of) {
            Some(Summed::Normalized(x, _)) => Some(x),
            Some(Summed::Squares) | None => None,
        };
        [self.add, self.mask.map(|m| m.0), against]
    }

    /// Bytes of the boxes that it reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.boxes().iter().flatten().map(View::bytes).sum()
    }

    /// Splits it into what the tiles apply and the sums of the caller, which begin at zero unless
    /// they are added to. `scratch` is what [`sums_scratch`] asks for.
    pub(crate) fn begin(
        self,
        team: TeamKind,
        conv: &Convolution,
        channels: usize,
        scratch: &'a mut [f32],
    ) -> (JobEpilogue<'a, E>, Total<'a, E>) {
        let slots = self.sums.is_some().then(|| {
            let need = sums_scratch(team, conv, channels);
            // SAFETY: every bit pattern is an f64.
            let (_, aligned, _) = unsafe { scratch[..need].align_to_mut::<f64>() };
            Slots::new(
                aligned,
                slots(team.threads),
                tiles(team, conv, channels).padded(),
            )
        });
        let job_epilogue = JobEpilogue {
            bias: self.bias,
            scale_shift: self.scale_shift,
            negative_slope: self.negative_slope,
            mask_slope: self.mask.map_or(1.0, |m| m.1),
            boxes: self.boxes(),
            positions: [Positions::default(); BOXES],
            channel: 0,
            slots,
        };
        let mut sums = self.sums;
        if let Some(sums) = sums.as_mut().filter(|s| !s.accumulate) {
            sums.into.fill(0.0);
        }
        (job_epilogue, Total { sums, slots })
    }
}

/// The sums of the caller, to which each job adds its slots.
pub(crate) struct Total<'a, E = f32> {
    sums: Option<Sums<'a, E>>,
    slots: Option<Slots<'a>>,
}

impl<E> Total<'_, E> {
    /// Adds the first `used` slots of a job over the channels from `channel` on.
    pub(crate) fn add(&mut self, used: usize, channel: usize, channels: usize) {
        let (Some(sums), Some(slots)) = (&mut self.sums, self.slots) else {
            return;
        };
        let (first, second) = sums.into.split_at_mut(sums.into.len() / 2);
        for c in 0..channels {
            let (mut a, mut b) = (0.0, 0.0);
            for slot in 0..used {
                // SAFETY: a used slot is one of `count` and holds `padded` sums of either kind. Its job
                // has ended, so that no thread writes it.
                let (p, q) = unsafe {
                    let p = slots.slot(slot).add(c);
                    (*p, *p.add(slots.padded))
                };
                (a, b) = (a + p, b + q);
            }
            if let Summed::Normalized(_, norm) = sums.of {
                let (mean, variance) = norm.moments(channel + c);
                b = (b - mean * a) / (variance + norm.epsilon).sqrt();
            }
            first[channel + c] += a;
            second[channel + c] += b;
        }
    }
}

/// Room for sums: per slot the first sums of all channels of a group, then the second ones.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    first: *mut f64,
    count: usize,
    padded: usize,
    room: PhantomData<&'a mut [f64]>,
}

// SAFETY: pointers alone touch nothing; a unit of a job writes only the channels of its own tiles in its
// own slot.
unsafe impl Send for Slots<'_> {}
// SAFETY: as above.
unsafe impl Sync for Slots<'_> {}

impl<'a> Slots<'a> {
    fn new(room: &'a mut [f64], count: usize, padded: usize) -> Slots<'a> {
        assert!(room.len() >= 2 * count * padded, "room for {count} slots");
        Slots {
            first: room.as_mut_ptr(),
            count,
            padded,
            room: PhantomData,
        }
    }

    pub(crate) fn count(self) -> usize {
        self.count
    }

    /// # Safety
    /// The slot is one of `count`.
    unsafe fn slot(self, index: usize) -> *mut f64 {
        // SAFETY: the room has as many slots, by the assertion in `new`.
        unsafe { self.first.add(index * 2 * self.padded) }
    }

    /// Zeros the sums of some channels.
    ///
    /// # Safety
    /// No other thread uses these sums.
    pub(crate) unsafe fn clear(self, index: usize, channels: std::ops::Range<usize>) {
        assert!(index < self.count && channels.end <= self.padded, "slot");
        for half in [0, self.padded] {
            // SAFETY: inside the slot, by the assertion; the rest is guaranteed by the caller.
            unsafe {
                let from = self.slot(index).add(half + channels.start);
                std::slice::from_raw_parts_mut(from, channels.len()).fill(0.0);
            }
        }
    }
}

/// The epilogue as the tiles of a job apply it.
#[derive(Clone, Copy)]
pub(crate) struct JobEpilogue<'a, E = f32> {
    bias: Option<&'a [f32]>,
    scale_shift: Option<(&'a [f32], &'a [f32])>,
    negative_slope: Option<f32>,
    mask_slope: f32,
    boxes: [Option<View<'a, E>>; BOXES],
    /// Of the boxes, for the positions of the job.
    pub positions: [Positions; BOXES],
    /// First channel of the job.
    channel: usize,
    pub slots: Option<Slots<'a>>,
}

impl<E: Values> JobEpilogue<'_, E> {
    /// For a job over the channels from `channel` on and the positions `first, first + step, ...`.
    pub(crate) fn of_job(mut self, channel: usize, first: [usize; 3], step: [usize; 3]) -> Self {
        self.channel = channel;
        for (positions, b) in self.positions.iter_mut().zip(&self.boxes) {
            if let Some(b) = b {
                *positions = Positions::new(b.grid, channel, first, step);
            }
        }
        self
    }

    /// Into how many parts that many blocks of positions are cut: one for each slot, if it takes sums.
    pub(crate) fn shares(&self, blocks: usize) -> usize {
        self.slots.map_or(blocks, |slots| slots.count().min(blocks))
    }

    /// Whether there is any operation.
    pub(crate) fn is_some(&self) -> bool {
        self.bias.is_some()
            || self.scale_shift.is_some()
            || self.negative_slope.is_some()
            || self.slots.is_some()
            || self.has_boxes()
    }

    pub(crate) fn has_boxes(&self) -> bool {
        self.boxes.iter().any(Option::is_some)
    }

    /// The bias of the tile that begins at channel `f0` of the job.
    pub(crate) fn bias_of_tile(&self, f0: usize) -> Option<*const f32> {
        self.bias.map(|b| b[self.channel + f0..].as_ptr())
    }

    /// The epilogue after the bias, for the tile that begins at channel `f0` of the job, with the sums
    /// in a slot.
    pub(crate) fn of_tile(&self, f0: usize, slot: usize) -> Option<TileEpilogue<E>> {
        Some(self.tile(f0, slot)).filter(TileEpilogue::is_some)
    }

    /// The same, whether there is anything to do or not.
    pub(crate) fn tile(&self, f0: usize, slot: usize) -> TileEpilogue<E> {
        let from = |values: &[f32]| values[self.channel + f0..].as_ptr();
        TileEpilogue {
            scale_shift: self.scale_shift.map(|(a, b)| (from(a), from(b))),
            negative_slope: self.negative_slope,
            mask_slope: self.mask_slope,
            boxes: self.boxes.map(|b| b.map(|b| b.data[f0..].as_ptr())),
            sums: self.slots.map(|s| {
                assert!(slot < s.count && f0 < s.padded, "slot");
                // SAFETY: inside the slot, by the assertion.
                let first = unsafe { s.slot(slot).add(f0) };
                (first, s.padded)
            }),
        }
    }
}

/// The epilogue after the bias, for one tile of channels.
///
/// Pointers: the values of the channels of the tile, and sums for whole vectors of them.
#[derive(Clone, Copy)]
pub(crate) struct TileEpilogue<E = f32> {
    scale_shift: Option<(*const f32, *const f32)>,
    negative_slope: Option<f32>,
    mask_slope: f32,
    boxes: [Option<*const E>; BOXES],
    /// First sums, and the distance of the second ones.
    sums: Option<(*mut f64, usize)>,
}

/// Outputs of a tile that are in the L1 cache.
///
/// Pointers: `width` channels of y at each offset, which no other thread accesses; the values that are not
/// in y yet.
pub(crate) struct TileOutputs<'a, E: Values = f32> {
    pub y: *mut E,
    pub yo: &'a [usize],
    pub unrounded: E::Unrounded,
    /// Offsets in the boxes that the epilogue reads.
    pub boxes: &'a [[usize; P_MAX]; BOXES],
    /// Channels.
    pub width: usize,
    /// Whether no outputs of the same channels follow that share the moments.
    pub is_last: bool,
}

/// What [`squares`] or [`products`] found of outputs that are not yet in the sums.
#[derive(Default)]
pub(crate) struct Moments {
    vectors: [[[f32; LANES_MAX]; 3]; VECTORS_MAX],
    /// Positions that they are of.
    count: usize,
}

impl<E: Values> TileEpilogue<E> {
    fn changes(&self) -> bool {
        let [add, mask, _] = self.boxes;
        let boxes = add.is_some() || mask.is_some();
        self.scale_shift.is_some() || self.negative_slope.is_some() || boxes
    }

    /// Whether there is any operation.
    pub(crate) fn is_some(&self) -> bool {
        self.changes() || self.sums.is_some()
    }

    /// The negative slope if it is the only operation: a tile then applies it before it stores.
    pub(crate) fn slope_alone(self) -> Option<f32> {
        let alone = TileEpilogue {
            negative_slope: None,
            ..self
        };
        self.negative_slope
            .filter(|_| !alone.changes() && alone.sums.is_none())
    }

    /// Applies it to some outputs.
    ///
    /// # Safety
    /// The processor has the level, the pointer requirements of [`TileEpilogue`] and [`TileOutputs`] hold, and the
    /// boxes can be read at their offsets. No other thread uses the sums.
    pub(crate) unsafe fn apply(self, level: Level, outputs: TileOutputs<E>, moments: &mut Moments) {
        let (f, o, m) = (self, outputs, moments);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (f.changes(), f.sums, f.boxes[2]) {
                (false, None, _) if E::IS_ROUNDED => {
                    level.run(Apply::<E, false, NONE>(f, o, m));
                }
                (false, None, _) => {}
                (true, None, _) => level.run(Apply::<E, true, NONE>(f, o, m)),
                (false, Some(_), None) => level.run(Apply::<E, false, SQUARES>(f, o, m)),
                (true, Some(_), None) => level.run(Apply::<E, true, SQUARES>(f, o, m)),
                (false, Some(_), Some(_)) => level.run(Apply::<E, false, PRODUCTS>(f, o, m)),
                (true, Some(_), Some(_)) => level.run(Apply::<E, true, PRODUCTS>(f, o, m)),
            }
        }
    }

    /// The boxes that it reads, at the first channel of the tile.
    pub(crate) fn boxes(&self) -> [Option<*const E>; BOXES] {
        self.boxes
    }
}

/// Sums of [`Apply`].
const NONE: u8 = 0;
const SQUARES: u8 = 1;
const PRODUCTS: u8 = 2;

/// `CHANGES`: the outputs change. Pointers as those of [`TileEpilogue::apply`].
struct Apply<'a, E: Values, const CHANGES: bool, const SUMS: u8>(
    TileEpilogue<E>,
    TileOutputs<'a, E>,
    &'a mut Moments,
);

impl<E: Values, const CHANGES: bool, const SUMS: u8> Op for Apply<'_, E, CHANGES, SUMS> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Apply(f, outputs, waiting) = self;
        let (before, count) = (waiting.count, waiting.count + outputs.yo.len());
        let widens = outputs.is_last || count + outputs.yo.len() > NARROW;
        // SAFETY: guaranteed by the caller; lanes beyond the width are left out.
        unsafe {
            for at in (0..outputs.width).step_by(S::LANES) {
                let lanes = (outputs.width - at).min(S::LANES);
                let (scale, shift) = match f.scale_shift {
                    Some((a, b)) => (
                        f32::load::<S>(a.add(at), lanes),
                        f32::load::<S>(b.add(at), lanes),
                    ),
                    None => (S::splat(1.0), S::splat(0.0)),
                };
                let slope = S::splat(f.negative_slope.unwrap_or(1.0));
                let mask_slope = S::splat(f.mask_slope);
                let vector = at / S::LANES;
                let mut moments = [S::splat(0.0); 3];
                if SUMS != NONE && before > 0 {
                    let waiting = &waiting.vectors[vector];
                    moments = std::array::from_fn(|i| S::load(waiting[i].as_ptr()));
                }
                for (p, yo) in outputs.yo.iter().enumerate() {
                    let y = outputs.y.add(yo + at);
                    let mut a = E::value::<S>(y, outputs.unrounded, (p, at), lanes);
                    if CHANGES {
                        a = S::fma(a, scale, shift);
                        if let Some(add) = f.boxes[0] {
                            a = S::add(a, E::load::<S>(add.add(outputs.boxes[0][p] + at), lanes));
                        }
                        a = S::where_positive(a, a, S::mul(a, slope));
                        if let Some(mask) = f.boxes[1] {
                            let mask = E::load::<S>(mask.add(outputs.boxes[1][p] + at), lanes);
                            a = S::where_positive(mask, a, S::mul(a, mask_slope));
                        }
                    }
                    // What is rounded is not in y yet.
                    if CHANGES || E::IS_ROUNDED {
                        E::store::<S>(y, lanes, a);
                    }
                    if SUMS != NONE {
                        a = E::round::<S>(a);
                    }
                    if SUMS == SQUARES {
                        squares::<S>(before + p == 0, a, &mut moments);
                    }
                    if let (PRODUCTS, Some(x)) = (SUMS, f.boxes[2]) {
                        let x = E::load::<S>(x.add(outputs.boxes[2][p] + at), lanes);
                        products::<S>(before + p == 0, a, x, &mut moments);
                    }
                }
                if let (Some((first, distance)), true) = (f.sums, widens) {
                    widen::<S, SUMS>(moments, count as f64, first.add(at), distance);
                } else if SUMS != NONE {
                    let waiting = &mut waiting.vectors[vector];
                    for (to, moment) in waiting.iter_mut().zip(moments) {
                        S::store(to.as_mut_ptr(), moment);
                    }
                }
            }
        }
        waiting.count = if widens { 0 } else { count };
    }
}

/// The first value v, sum of d and sum of d * d, where d is the difference from the first one.
#[inline(always)]
fn squares<S: Simd>(first: bool, v: S::V, [pivot, d1, d2]: &mut [S::V; 3]) {
    if first {
        *pivot = v;
    }
    let d = S::sub(v, *pivot);
    *d1 = S::add(*d1, d);
    *d2 = S::fma(d, d, *d2);
}

/// The first x, sum of v and sum of v * d, where d is the difference of x from the first one.
#[inline(always)]
fn products<S: Simd>(first: bool, v: S::V, x: S::V, [pivot, s1, s2]: &mut [S::V; 3]) {
    if first {
        *pivot = x;
    }
    *s1 = S::add(*s1, v);
    *s2 = S::fma(v, S::sub(x, *pivot), *s2);
}

/// Adds what [`squares`] or [`products`] found over `n` positions to the sums of each lane.
///
/// # Safety
/// There are sums for each lane from `first` on, and at the distance; no other thread uses them.
#[inline(always)]
unsafe fn widen<S: Simd, const SUMS: u8>(
    moments: [S::V; 3],
    n: f64,
    first: *mut f64,
    distance: usize,
) {
    let mut lanes = [[0f32; LANES_MAX]; 3];
    // SAFETY: no level has more lanes; the rest is guaranteed by the caller.
    unsafe {
        S::store(lanes[0].as_mut_ptr(), moments[0]);
        S::store(lanes[1].as_mut_ptr(), moments[1]);
        S::store(lanes[2].as_mut_ptr(), moments[2]);
        let firsts = std::slice::from_raw_parts_mut(first, S::LANES);
        let seconds = std::slice::from_raw_parts_mut(first.add(distance), S::LANES);
        for (i, (first, second)) in firsts.iter_mut().zip(seconds).enumerate() {
            let a = f64::from(lanes[0][i]);
            let (s1, s2) = (f64::from(lanes[1][i]), f64::from(lanes[2][i]));
            let (x, y) = match SUMS {
                SQUARES => (n * a + s1, (n * a + 2.0 * s1) * a + s2),
                _ => (s1, a * s1 + s2),
            };
            *first += x;
            *second += y;
        }
    }
}
