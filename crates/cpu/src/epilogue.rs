//! What becomes of the output of a convolution on its way to memory.
//!
//! The tiles apply it to their registers before they store them, so it costs no pass of its own.
//! Sums are taken over a tile in f32, relative to the first value of each channel, and go on in
//! f64 in slots: each slot sums a fixed share of the positions, and the slots are added in order.

use crate::conv_forward::Convolution;
use crate::grid::{Grid, View};
use crate::norm::Normalization;
use crate::simd::{LANES_MAX, Simd};
use crate::team::TeamKind;
use crate::tile::{P_MAX, Place, Tiles};

/// Slots per thread; the threads end at about the same time.
const SLOTS_PER_THREAD: usize = 32;
/// Boxes that an epilogue may read.
pub(crate) const BOXES: usize = 3;

/// What becomes of each output element, in the order of the fields.
///
/// An element of a channel here is one of the written box: y of a forward kernel, dx of a backward
/// one. It applies after the kernel has added to what was there, where it accumulates.
#[derive(Default)]
pub struct Epilogue<'a> {
    /// v + bias\[channel\].
    pub bias: Option<&'a [f32]>,
    /// v * scale\[channel\] + shift\[channel\].
    pub scale_shift: Option<(&'a [f32], &'a [f32])>,
    /// v + the element of a box like the written one.
    pub add: Option<View<'a>>,
    /// v where positive, slope * v elsewhere.
    pub negative_slope: Option<f32>,
    /// v where the element of a box like the written one is positive, slope * v elsewhere.
    pub mask: Option<(View<'a>, f32)>,
    /// Sums over positions of the values written.
    pub sums: Option<Sums<'a>>,
}

/// Sums per channel over the values that a kernel writes.
///
/// Reproducible for a given number of threads.
pub struct Sums<'a> {
    /// What is summed.
    pub of: Summed<'a>,
    /// C first sums, then C second sums.
    pub into: &'a mut [f64],
    /// Add to what is there.
    pub accumulate: bool,
}

/// The two things that are summed over the written values v of a channel.
#[derive(Clone, Copy)]
pub enum Summed<'a> {
    /// v and v * v, as [`crate::norm_statistics`] does.
    Squares,
    /// v and v * xhat, as [`crate::norm_backward_statistics`] does for v = dy: x is the input of
    /// the normalization, in a box like the written one.
    Normalized(View<'a>, &'a Normalization<'a>),
}

/// Scratch elements that a kernel needs in addition where its epilogue takes sums over a box of
/// so many channels.
pub fn sums_scratch(team: TeamKind, conv: &Convolution, channels: usize) -> usize {
    let tiles = Tiles {
        level: team.level,
        f: channels / conv.groups,
    };
    // Two f64 a channel in each slot, and room to align them.
    4 * slots(team.threads) * tiles.padded() + 2
}

fn slots(threads: usize) -> usize {
    match threads {
        1 => 1,
        _ => SLOTS_PER_THREAD * threads,
    }
}

impl<'a> Epilogue<'a> {
    /// Panics where something is too short for the written box, or unlike it.
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

    /// What is added, what masks, what is summed against.
    fn boxes(&self) -> [Option<View<'a>>; BOXES] {
        let against = match self.sums.as_ref().map(|s| s.of) {
            Some(Summed::Normalized(x, _)) => Some(x),
            Some(Summed::Squares) | None => None,
        };
        [self.add, self.mask.map(|m| m.0), against]
    }

    /// Bytes of the boxes that it reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.boxes().iter().flatten().map(|b| b.grid.bytes()).sum()
    }

    /// Splits it into what the tiles apply and the sums of the caller, which begin at zero unless
    /// they are added to. `scratch` is what [`sums_scratch`] asks for.
    pub(crate) fn begin(
        self,
        team: TeamKind,
        conv: &Convolution,
        channels: usize,
        scratch: &mut [f32],
    ) -> (Ending<'a>, Total<'a>) {
        let slots = self.sums.is_some().then(|| {
            let need = sums_scratch(team, conv, channels);
            // SAFETY: every bit pattern is an f64.
            let (_, aligned, _) = unsafe { scratch[..need].align_to_mut::<f64>() };
            let f = channels / conv.groups;
            let level = team.level;
            Slots {
                first: aligned.as_mut_ptr(),
                count: slots(team.threads),
                padded: Tiles { level, f }.padded(),
            }
        });
        let ending = Ending {
            bias: self.bias,
            scale_shift: self.scale_shift,
            negative_slope: self.negative_slope,
            mask_slope: self.mask.map_or(1.0, |m| m.1),
            boxes: self.boxes(),
            places: [Place::default(); BOXES],
            channel: 0,
            slots,
        };
        let mut sums = self.sums;
        if let Some(sums) = sums.as_mut().filter(|s| !s.accumulate) {
            sums.into.fill(0.0);
        }
        (ending, Total { sums, slots })
    }
}

/// The sums of the caller, to which each job adds its slots.
pub(crate) struct Total<'a> {
    sums: Option<Sums<'a>>,
    slots: Option<Slots>,
}

impl Total<'_> {
    /// Adds the first `used` slots of a job over the channels from `channel` on.
    pub(crate) fn add(&mut self, used: usize, channel: usize, channels: usize) {
        let (Some(sums), Some(slots)) = (&mut self.sums, self.slots) else {
            return;
        };
        let (first, second) = sums.into.split_at_mut(sums.into.len() / 2);
        for c in 0..channels {
            let (mut a, mut b) = (0.0, 0.0);
            for slot in 0..used {
                // SAFETY: a used slot holds `padded` sums of either kind, and its job has ended.
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
pub(crate) struct Slots {
    first: *mut f64,
    pub count: usize,
    padded: usize,
}

// SAFETY: a unit of a job writes only the channels of its own tiles in its own slot.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// The slot is one of `count`.
    unsafe fn slot(self, index: usize) -> *mut f64 {
        unsafe { self.first.add(index * 2 * self.padded) }
    }

    /// Zeros the sums of some channels.
    pub(crate) fn clear(self, index: usize, channels: std::ops::Range<usize>) {
        assert!(index < self.count && channels.end <= self.padded, "slot");
        for half in [0, self.padded] {
            // SAFETY: inside the slot, by the assertion.
            unsafe {
                let from = self.slot(index).add(half + channels.start);
                std::slice::from_raw_parts_mut(from, channels.len()).fill(0.0);
            }
        }
    }
}

/// The epilogue as the tiles of a job apply it.
#[derive(Clone, Copy)]
pub(crate) struct Ending<'a> {
    bias: Option<&'a [f32]>,
    scale_shift: Option<(&'a [f32], &'a [f32])>,
    negative_slope: Option<f32>,
    mask_slope: f32,
    boxes: [Option<View<'a>>; BOXES],
    /// Of the boxes, for the positions of the job.
    pub places: [Place; BOXES],
    /// First channel of the job.
    channel: usize,
    pub slots: Option<Slots>,
}

impl Ending<'_> {
    /// For a job over the channels from `channel` on and the positions `first, first + step, ...`.
    pub(crate) fn of_job(mut self, channel: usize, first: [usize; 3], step: [usize; 3]) -> Self {
        self.channel = channel;
        for (place, b) in self.places.iter_mut().zip(&self.boxes) {
            if let Some(b) = b {
                *place = Place::new(b.grid, channel, first, step);
            }
        }
        self
    }

    /// Whether an output is more than the sum of products.
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

    /// For the tile that begins at channel `f0` of the job, with the sums in a slot.
    pub(crate) fn of_tile(&self, f0: usize, slot: usize) -> Finish {
        let from = |values: &[f32]| values[self.channel + f0..].as_ptr();
        Finish {
            bias: self.bias.map(from),
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

/// The epilogue of one tile of channels: pointers to their values and sums.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    bias: Option<*const f32>,
    scale_shift: Option<(*const f32, *const f32)>,
    negative_slope: Option<f32>,
    mask_slope: f32,
    boxes: [Option<*const f32>; BOXES],
    /// First sums, and the distance of the second ones.
    sums: Option<(*mut f64, usize)>,
}

impl Finish {
    /// Applies it to V vectors of P positions, of which `n` count and `width` channels exist.
    ///
    /// # Safety
    /// As [`Simd`]; the boxes hold the offsets, and the values `width` channels.
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Simd, const V: usize, const P: usize>(
        &self,
        offsets: &[[usize; P_MAX]; BOXES],
        (n, width): (usize, usize),
        acc: &mut [[S::V; V]; P],
    ) {
        unsafe {
            for v in 0..V {
                let at = v * S::LANES;
                let lanes = (width - at).min(S::LANES);
                let load = |from: *const f32| S::load_part(from.wrapping_add(at), lanes);
                let other = |b: *const f32, i: usize, p: usize| load(b.wrapping_add(offsets[i][p]));
                if let Some(bias) = self.bias {
                    let bias = load(bias);
                    (0..P).for_each(|p| acc[p][v] = S::add(acc[p][v], bias));
                }
                if let Some((scale, shift)) = self.scale_shift {
                    let (scale, shift) = (load(scale), load(shift));
                    (0..P).for_each(|p| acc[p][v] = S::fma(acc[p][v], scale, shift));
                }
                if let Some(add) = self.boxes[0] {
                    (0..P).for_each(|p| acc[p][v] = S::add(acc[p][v], other(add, 0, p)));
                }
                if let Some(slope) = self.negative_slope {
                    let slope = S::splat(slope);
                    for row in acc.iter_mut() {
                        row[v] = S::where_positive(row[v], row[v], S::mul(row[v], slope));
                    }
                }
                if let Some(mask) = self.boxes[1] {
                    let slope = S::splat(self.mask_slope);
                    for p in 0..P {
                        let a = acc[p][v];
                        acc[p][v] = S::where_positive(other(mask, 1, p), a, S::mul(a, slope));
                    }
                }
                if let Some((first, distance)) = self.sums {
                    let first = first.add(at);
                    match self.boxes[2] {
                        None => squares::<S, V, P>(acc, v, n, first, distance),
                        Some(x) => {
                            let x: [S::V; P] = std::array::from_fn(|p| other(x, 2, p));
                            products::<S, V, P>(acc, v, &x, n, first, distance);
                        }
                    }
                }
            }
        }
    }
}

/// Adds values and their squares: with a the first of n values and d = v - a,
/// sum of v = n a + sum of d, sum of v * v = n a * a + 2 a * sum of d + sum of d * d.
#[inline(always)]
unsafe fn squares<S: Simd, const V: usize, const P: usize>(
    acc: &[[S::V; V]; P],
    v: usize,
    n: usize,
    first: *mut f64,
    distance: usize,
) {
    unsafe {
        let pivot = acc[0][v];
        let (mut d1, mut d2) = (S::splat(0.0), S::splat(0.0));
        for (p, row) in acc.iter().enumerate().skip(1) {
            if p < n {
                let d = S::sub(row[v], pivot);
                d1 = S::add(d1, d);
                d2 = S::fma(d, d, d2);
            }
        }
        let count = n as f64;
        widen::<S>([pivot, d1, d2], first, distance, |[a, d1, d2]| {
            (count * a + d1, (count * a + 2.0 * d1) * a + d2)
        });
    }
}

/// Adds values and their products with x: with a the first of the x,
/// sum of v * x = sum of v * (x - a) + a * sum of v.
#[inline(always)]
unsafe fn products<S: Simd, const V: usize, const P: usize>(
    acc: &[[S::V; V]; P],
    v: usize,
    x: &[S::V; P],
    n: usize,
    first: *mut f64,
    distance: usize,
) {
    unsafe {
        let mut s1 = acc[0][v];
        let mut s2 = S::splat(0.0);
        for (p, row) in acc.iter().enumerate().skip(1) {
            if p < n {
                s1 = S::add(s1, row[v]);
                s2 = S::fma(row[v], S::sub(x[p], x[0]), s2);
            }
        }
        widen::<S>([x[0], s1, s2], first, distance, |[a, s1, s2]| {
            (s1, a * s1 + s2)
        });
    }
}

/// Adds the two values of `f` of each lane, in f64.
#[inline(always)]
unsafe fn widen<S: Simd>(
    from: [S::V; 3],
    first: *mut f64,
    distance: usize,
    f: impl Fn([f64; 3]) -> (f64, f64),
) {
    let mut lanes = [[0f32; LANES_MAX]; 3];
    unsafe {
        for (to, from) in lanes.iter_mut().zip(from) {
            S::store(to.as_mut_ptr(), from);
        }
        for i in 0..S::LANES {
            let (a, b) = f(lanes.map(|l| f64::from(l[i])));
            *first.add(i) += a;
            *first.add(distance + i) += b;
        }
    }
}
