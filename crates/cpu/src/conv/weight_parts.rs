//! Gradients of weights in parts: threads share the positions and the tiles, and the sums of the parts are added.

use crate::conv::convolution::Convolution;
use crate::conv::weight_plan::{Partition, Shape};
use crate::grid::{Call, Canceled, Shared, View, Work, part};
use crate::team::{ELEMENT, Poll, Team};
use std::ops::Range;

/// A gradient of weights whose units have tiles and positions of their own.
pub(crate) trait InParts: Sync {
    fn shape(&self) -> &Shape;

    fn partition(&self) -> Partition;

    /// Scratch elements of a unit.
    fn room(&self) -> usize;

    /// Some tiles over some positions, into rows of dw or added to them.
    ///
    /// # Safety
    /// x is the complete input of dy, dw is valid for all weights, the level is the team's, and nobody else touches
    /// the tiles, sums and room of the share.
    unsafe fn share(&self, share: Share, to: (*mut f32, bool), poll: &mut Poll);
}

/// What one unit computes.
pub(crate) struct Share {
    /// Which part of the positions, and of how many.
    pub part: (usize, usize),
    pub tiles: Range<usize>,
    /// Vectors of dy to sum, and the sums of all channels.
    pub vectors: Range<usize>,
    pub sums: Option<*mut f64>,
    /// Scratch of the unit.
    pub room: *mut f32,
}

/// Scratch elements for C input and F output channels, and for the rooms of all threads.
pub(crate) fn scratch_of_parts(
    conv: &Convolution,
    (c, f): (usize, usize),
    partition: Partition,
    rooms: usize,
) -> usize {
    let parts = partition.position_parts;
    // Sums of dy in f64 for each part, and room to align them.
    let sums = 2 * parts * f + 2;
    (parts - 1) * conv.weight_elements(c, f) + sums + rooms
}

/// The gradient of the weights, and that of the bias where there is a db; `plan` makes the former.
pub(crate) fn in_parts<E, G: InParts>(
    call: &mut Call,
    (x, dy): (&View<E>, &View<E>),
    dw: &mut [f32],
    mut db: Option<&mut [f32]>,
    (conv, accumulate): (&Convolution, bool),
    plan: impl FnOnce(Shape) -> G,
) -> Result<Work, Canceled> {
    let (xg, yg) = (x.grid, dy.grid);
    let (c, f) = (xg.channels, yg.channels);
    conv.assert_valid(c, f, dw.len());
    conv.assert_boxes(xg, yg);
    if let Some(db) = &db {
        assert!(db.len() >= f, "db of {} for {yg:?}", db.len());
    }
    let weights = conv.weight_elements(c, f);
    let written = 4 * (weights + db.as_ref().map_or(0, |_| f)) as u64;
    let work = Work {
        flops: conv.flops(yg.positions(), c, f),
        bytes: x.bytes() + dy.bytes() + written * (1 + u64::from(accumulate)),
    };
    let dw = &mut dw[..weights];
    if weights == 0 || yg.positions() == 0 {
        if !accumulate {
            dw.fill(0.0);
            db.iter_mut().for_each(|db| db[..f].fill(0.0));
        }
        return Ok(work);
    }
    let gradient = plan(Shape::new(call.team.level(), conv, xg, f));
    let parts = gradient.partition().position_parts;
    let (others, rest) = call.scratch.split_at_mut((parts - 1) * weights);
    let (rooms, rest) = rest.split_at_mut(call.team.threads() * gradient.room());
    // SAFETY: every bit pattern is an f64.
    let (_, sums, _) = unsafe { rest.align_to_mut::<f64>() };
    let sums = &mut sums[..parts * f];
    sums.fill(0.0);
    let (team, progress) = (&mut *call.team, &mut *call.progress);
    let to_sum = db.is_some().then_some(Shared(sums.as_mut_ptr()));
    let (out, shared) = (Shared(dw.as_mut_ptr()), Shared(others.as_mut_ptr()));
    let targets = (out, shared, to_sum, Shared(rooms.as_mut_ptr()));
    let (size, how) = ((weights, f), (work.flops, accumulate));
    compute(&gradient, team, progress, size, how, targets)?;
    add_parts(team, progress, dw, others)?;
    if let Some(db) = db {
        for (c, db) in db[..f].iter_mut().enumerate() {
            let sum: f64 = sums[c..].iter().step_by(f).sum();
            *db = sum as f32 + if accumulate { *db } else { 0.0 };
        }
    }
    Ok(work)
}

/// The first part of the positions into dw, to which it adds if it accumulates, and each other one into elements of
/// its own.
fn compute<G: InParts>(
    gradient: &G,
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    (weights, f): (usize, usize),
    (flops, accumulate): (u64, bool),
    (dw, others, sums, rooms): (Shared, Shared, Option<Shared<f64>>, Shared),
) -> Result<(), Canceled> {
    let (shape, partition) = (gradient.shape(), gradient.partition());
    let units = partition.position_parts * partition.tile_parts;
    team.units(progress, units, flops / units as u64, &|unit, poll| {
        let (p, t) = (unit / partition.tile_parts, unit % partition.tile_parts);
        let to = match p {
            0 => (dw.get(), accumulate),
            // SAFETY: part p > 0 of the positions has elements (p - 1) * weights.. of the scratch.
            1.. => (unsafe { others.get().add((p - 1) * weights) }, false),
        };
        let share = Share {
            part: (p, partition.position_parts),
            tiles: part(shape.groups * shape.tiles(), t, partition.tile_parts),
            vectors: part(f.div_ceil(shape.level.lanes()), t, partition.tile_parts),
            sums: sums.map(|sums| sums.get().wrapping_add(p * f)),
            room: rooms.get().wrapping_add(unit * gradient.room()),
        };
        // SAFETY: the boxes hold their slices, x is the complete input of dy, and each unit has tiles of dw or of its
        // part of the scratch, sums, and a room, of its own.
        unsafe { gradient.share(share, to, poll) };
    })
}

/// Adds the sums of the other parts of the positions to those of the first, part by part.
fn add_parts(
    team: &mut Team,
    progress: &mut dyn FnMut() -> bool,
    dw: &mut [f32],
    parts: &[f32],
) -> Result<(), Canceled> {
    let (weights, out) = (dw.len(), Shared(dw.as_mut_ptr()));
    let cost = ELEMENT * (parts.len() / weights) as u64;
    if parts.is_empty() {
        return Ok(());
    }
    team.ranges(progress, weights, cost, &|range| {
        // SAFETY: the ranges are disjoint parts of the weights.
        let sums =
            unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
        for part in parts.chunks_exact(weights) {
            for (sum, a) in sums.iter_mut().zip(&part[range.clone()]) {
                *sum += a;
            }
        }
    })
}
