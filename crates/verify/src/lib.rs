//! Static verification of programs, before anything runs.
//!
//! Does: checks structure and shapes; that every message has its counterpart; that the program terminates under
//! any timing; that memory is free of races and uninitialized reads; that every partial sum is reduced once,
//! over the right ranks; that parameters are updated by all of their gradients, on all ranks that have them.
//! Knows: programs and their kernels' descriptors. Works on classes of ranks: one representative of each, one pair
//! of ranks for each two classes that exchange messages, one group for each list of classes that have a collective.
//! That the other ranks are equivalent to these is checked by loops over integers.
//! Must not know: the model, how a program was lowered, machines, or how programs run.

mod adjoint;
mod class_equivalence;
mod collectives;
mod fault;
mod gradient_flow;
mod lost;
mod matching;
mod memory;
mod order;
mod packed;
mod partial;
mod relations;
mod repeated;
mod shapes;
mod structure;
mod termination;
mod updated;

pub use fault::{BufferRegion, Fault, Faults};

use self::relations::Relations;
use partita_program::{Body, Group, Program, SizeFaults, TaskSite, TensorRegion, View};
use partita_space::{Coord, Offset, Rank, Region, on_cores};
use std::collections::HashMap;
use std::sync::Mutex;

/// Checks everything.
///
/// Errors: all faults found. With invalid indices of buffers, classes or tasks, or views outside of their
/// buffers, only these are reported; with sizes beyond [`partita_space::limits`], or ranks outside of the mesh,
/// only those.
pub fn verify(program: &Program) -> Result<(), Faults> {
    let mut faults = Vec::new();
    if structure::is_indexable(program, &mut faults) && sizes_are_bounded(program, &mut faults) {
        let case = Case::new(program);
        let all = [&OF_CLASSES[..], &OF_PROGRAMS[..]].concat();
        faults.extend(case.faults(&all));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Faults(faults))
    }
}

/// Checks some classes of a large program: their structure, shapes, memory and updates, and that what they send, receive and
/// reduce has counterparts. What all classes together decide is not checked: termination, partial sums and where
/// gradients go.
///
/// Errors: as [`verify`].
pub fn verify_classes(program: &Program, classes: &[usize]) -> Result<(), Faults> {
    let mut faults = Vec::new();
    if structure::is_indexable(program, &mut faults) && sizes_are_bounded(program, &mut faults) {
        let mut case = Case::new(program);
        case.checked = classes.to_vec();
        faults.extend(case.faults(&OF_CLASSES));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Faults(faults))
    }
}

/// Adds the faults that it finds.
type Check = fn(&Case<'_>, &mut Vec<Fault>);

/// What is checked class by class.
const OF_CLASSES: [Check; 10] = [
    structure::check,
    shapes::check,
    matching::check,
    collectives::check,
    class_equivalence::check,
    memory::check,
    packed::check,
    updated::check,
    lost::check,
    repeated::check,
];

/// What all classes together decide.
const OF_PROGRAMS: [Check; 3] = [termination::check, partial::check, gradient_flow::check];

fn sizes_are_bounded(program: &Program, faults: &mut Vec<Fault>) -> bool {
    let found = program.check_sizes();
    let found = found.map_or_else(|SizeFaults(found)| found, |()| Vec::new());
    let bounded = found.is_empty();
    faults.extend(found.into_iter().map(Fault::Size));
    bounded
}

/// A program with valid indices, and the representatives of its classes.
struct Case<'p> {
    program: &'p Program,
    representatives: Vec<Rank>,
    coords: Vec<Coord>,
    relations: Relations,
    /// Classes of which what concerns each alone is checked.
    checked: Vec<usize>,
    /// What [`adjoint`] knows of the data gradients of a class and layer.
    reaching: Mutex<HashMap<(usize, &'p str), bool>>,
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
            relations: Relations::of(program),
            checked: (0..program.bodies.len()).collect(),
            reaching: Mutex::default(),
        }
    }

    /// What these checks find, in their order.
    fn faults(&self, checks: &[Check]) -> Vec<Fault> {
        let found = on_cores(checks.len(), self.program.tasks(), |at| {
            let mut faults = Vec::new();
            checks[at](self, &mut faults);
            faults
        });
        found.into_iter().flatten().collect()
    }

    /// Ranks of a class, one for each class of ranks that they have at an offset, ascending.
    fn ranks_beside(&self, class: usize, offset: Offset) -> &[Rank] {
        self.relations.beside(class, offset)
    }

    /// Ranks of a class, one for each list of classes in their groups of a kind, ascending.
    fn ranks_in(&self, class: usize, group: Group) -> &[Rank] {
        self.relations.in_groups(class, group)
    }

    /// The classes that are checked, with their bodies.
    fn checked(&self) -> impl Iterator<Item = (usize, &'p Body)> {
        let program = self.program;
        let classes = self.checked.iter();
        classes.map(|&class| (class, &program.bodies[class]))
    }

    fn bodies(&self) -> impl Iterator<Item = (usize, &'p Body)> + use<'p> {
        self.program.bodies.iter().enumerate()
    }

    fn class_of(&self, rank: Rank) -> usize {
        self.program.class_of[rank] as usize
    }

    fn site(&self, class: usize, task: usize) -> TaskSite {
        self.site_at(class, self.representatives[class], task)
    }

    /// A task on a certain rank of the class.
    fn site_at(&self, class: usize, rank: Rank, task: usize) -> TaskSite {
        TaskSite::of(self.program, class, rank, task)
    }

    fn spot(&self, class: usize, view: &View) -> BufferRegion {
        self.buffer_region_at(class, view.buffer.0 as usize, view.region())
    }

    fn buffer_region_at(&self, class: usize, buffer: usize, region: Region) -> BufferRegion {
        let body = &self.program.bodies[class];
        BufferRegion {
            buffer: buffer as u32,
            name: body.buffers[buffer].name.clone(),
            region,
        }
    }

    fn tensor(&self, class: usize, view: &View) -> Option<&'p TensorRegion> {
        self.program.bodies[class]
            .buffer(view.buffer)
            .tensor
            .as_ref()
    }

    /// The global region of a view on a rank of the class, where its buffer holds a tensor.
    fn global(&self, class: usize, view: &View, coord: &Coord) -> Option<Region> {
        self.tensor(class, view)
            .map(|tensor| tensor.region(view, &self.program.mesh, coord))
    }
}

/// Whether two regions of a tensor of this shape have the same elements under periodic indices.
fn same_elements(a: &Region, b: &Region, shape: &[usize; 5]) -> bool {
    (0..5).all(|dim| {
        let extent = shape[dim].max(1) as i64;
        let apart = a.0[dim].start - b.0[dim].start;
        a.0[dim].len() == b.0[dim].len() && apart.rem_euclid(extent) == 0
    })
}
