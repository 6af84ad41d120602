//! Proof, before anything runs, that a program is sound: its structure and shapes, that every message
//! has its counterpart, that it ends under any timing, that no task reads what is not yet, or no
//! longer, there, that every sum over ranks is taken once and over the right ones, and that parameters move
//! by all of their gradients and wherever they are kept.
//!
//! Works on one representative of each class of ranks with its real peers; that the other ranks of a
//! class stand in the same relation to theirs is checked by loops over integers.

mod adjoint;
mod carried;
mod collectives;
mod equity;
mod fault;
mod lost;
mod matching;
mod memory;
mod order;
mod packed;
mod partial;
mod repeated;
mod shapes;
mod sizes;
mod structure;
mod termination;
mod updated;

pub use fault::{Fault, Faults, Site, Spot};

use crate::{Body, Home, Program, View};
use partita_space::{Coord, Rank, Region};

/// Checks everything.
///
/// Errors: all faults found. Where buffers, classes or tasks are named that do not exist, or views
/// leave their buffers, only faults of structure are looked for, since nothing else has a meaning; and
/// where sizes are beyond [`partita_space::limits`], or ranks outside of the mesh, only these.
pub fn verify(program: &Program) -> Result<(), Faults> {
    let mut faults = Vec::new();
    if structure::is_indexable(program, &mut faults) && sizes::are_bounded(program, &mut faults) {
        let case = Case::new(program);
        structure::check(&case, &mut faults);
        shapes::check(&case, &mut faults);
        matching::check(&case, &mut faults);
        collectives::check(&case, &mut faults);
        equity::check(&case, &mut faults);
        termination::check(&case, &mut faults);
        memory::check(&case, &mut faults);
        packed::check(&case, &mut faults);
        partial::check(&case, &mut faults);
        updated::check(&case, &mut faults);
        lost::check(&case, &mut faults);
        repeated::check(&case, &mut faults);
        carried::check(&case, &mut faults);
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Faults(faults))
    }
}

/// The part of [`verify`] that says whether a program can be counted, its text written and its memory
/// planned: sizes, and what is counted of a step over all ranks, fit in 64 bits.
///
/// Errors: all that do not. The program must be indexable, as a lowered one is.
pub fn verify_sizes(program: &Program) -> Result<(), Faults> {
    let mut faults = Vec::new();
    match sizes::are_bounded(program, &mut faults) {
        true => Ok(()),
        false => Err(Faults(faults)),
    }
}

/// A program whose indices are known to be good, with its representatives.
struct Case<'p> {
    program: &'p Program,
    representatives: Vec<Rank>,
    coords: Vec<Coord>,
}

impl<'p> Case<'p> {
    fn new(program: &'p Program) -> Self {
        let representatives = program.representatives();
        let coords = representatives
            .iter()
            .map(|&rank| program.mesh.coord(rank))
            .collect();
        Self {
            program,
            representatives,
            coords,
        }
    }

    fn bodies(&self) -> impl Iterator<Item = (usize, &'p Body)> + use<'p> {
        self.program.bodies.iter().enumerate()
    }

    fn class_of(&self, rank: Rank) -> usize {
        self.program.class_of[rank] as usize
    }

    fn site(&self, class: usize, task: usize) -> Site {
        Site::of(self.program, class, self.representatives[class], task)
    }

    fn spot(&self, class: usize, view: &View) -> Spot {
        self.spot_at(class, view.buffer.0 as usize, view.region())
    }

    fn spot_at(&self, class: usize, buffer: usize, region: Region) -> Spot {
        let body = &self.program.bodies[class];
        Spot {
            buffer: buffer as u32,
            name: body.buffers[buffer].name.clone(),
            region,
        }
    }

    fn home(&self, class: usize, view: &View) -> Option<&'p Home> {
        self.program.bodies[class].buffer(view.buffer).home.as_ref()
    }

    /// The global region of a view on a rank of the class, where its buffer has a home.
    fn global(&self, class: usize, view: &View, coord: &Coord) -> Option<Region> {
        self.home(class, view)
            .map(|home| home.region(view, &self.program.mesh, coord))
    }
}

/// Whether two regions of a tensor of this shape hold the same elements where indices wrap around.
fn same_elements(a: &Region, b: &Region, shape: &[usize; 5]) -> bool {
    (0..5).all(|dim| {
        let extent = shape[dim].max(1) as i64;
        let apart = a.0[dim].start - b.0[dim].start;
        a.0[dim].len() == b.0[dim].len() && apart.rem_euclid(extent) == 0
    })
}
