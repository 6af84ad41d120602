//! Variants of programs, in which kernels that can be cut run by other configurations.
//!
//! Kernels are measured where they stand in a program, since their time depends on what the tasks before them have
//! left in the caches. So each configuration is put into a copy of the program.

use crate::{
    DivisionPolicy, Frontier, FrontierPoint, KernelKey, Measurements, MicroTime, frontier,
};
use partita_program::{
    Algorithm, Body, Buffer, BufferId, Choice, Configuration, Dtype, Kernel, KernelShape, Menu,
    Program, Role, Task, TaskId, View, Work,
};
use partita_space::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Most micro-batches of a measured configuration: beyond, starting kernels takes more than it gives.
const PIECES_MAX: usize = 64;

/// A copy of a program, and the kernels in it that are to be measured.
pub struct Variant {
    /// The copy; its memory is not planned.
    pub program: Program,
    /// The kernels of interest.
    pub kernels: BTreeSet<KernelKey>,
}

/// The configurations of the kernels of programs, built from measurements in two rounds: of all implementations and
/// their micro-batches, and of the configurations that follow from those.
pub struct Variants<'v> {
    programs: &'v [&'v Program],
    menu: &'v dyn Menu,
    policy: DivisionPolicy,
}

/// What replaces a kernel: kernels with their choices, and whether each is to be measured.
type Replacement = Vec<(Kernel, Choice, bool)>;

/// The dims that a kernel is cut along: samples, and the first spatial dim with several positions.
fn cut_dims(extents: &[usize; 5]) -> impl Iterator<Item = usize> {
    let spatial = (1..4).find(|&dim| extents[dim] > 1);
    let samples = (extents[0] > 1).then_some(0);
    samples.into_iter().chain(spatial)
}

/// Extents of micro-batches along a dim, without the whole.
fn micro_extents(policy: DivisionPolicy, whole: usize) -> Vec<usize> {
    let mut extents = policy.extents(whole);
    extents.retain(|&extent| extent < whole && whole.div_ceil(extent) <= PIECES_MAX);
    extents
}

/// The piece that stands for all of an extent: one with neighbors on both sides, where there is one.
fn typical_piece(whole: usize, extent: usize) -> usize {
    whole / extent / 2
}

impl<'v> Variants<'v> {
    /// Of programs whose kernels are to be tuned.
    pub fn new(programs: &'v [&'v Program], menu: &'v dyn Menu, policy: DivisionPolicy) -> Self {
        Self {
            programs,
            menu,
            policy,
        }
    }

    /// The first round: every implementation of every kernel that can be cut, whole and in micro-batches of every
    /// extent of the policy.
    pub fn micro_batches(&self) -> Vec<Variant> {
        let mut variants = Vec::new();
        for program in self.programs {
            for method in 0.. {
                let whole = |shape: &KernelShape<'_>| {
                    let choice = self.method(shape, method)?;
                    Some(vec![(shape.kernel.clone(), choice, true)])
                };
                let variant = self.variant(program, &whole);
                if variant.kernels.is_empty() {
                    break;
                }
                variants.push(variant);
                for spatial in [false, true] {
                    for index in 0.. {
                        let cut = |shape: &KernelShape<'_>| self.cut(shape, method, spatial, index);
                        let variant = self.variant(program, &cut);
                        if variant.kernels.is_empty() {
                            break;
                        }
                        variants.push(variant);
                    }
                }
            }
        }
        variants
    }

    /// The second round: the configurations that the first one suggests, whole.
    pub fn configurations(&self, measured: &Measurements) -> Vec<Variant> {
        let mut variants = Vec::new();
        let mut frontiers: BTreeMap<String, Frontier> = BTreeMap::new();
        for program in self.programs {
            for shape in program.bodies.iter().flat_map(shapes) {
                let entry = frontiers.entry(shape.signature());
                entry.or_insert_with(|| self.frontier(&shape, measured));
            }
            for index in 0.. {
                let at = |shape: &KernelShape<'_>| {
                    let point = frontiers.get(&shape.signature())?.points().get(index)?;
                    let choice = self.menu.configured(shape, &point.configuration)?;
                    Some(vec![(shape.kernel.clone(), choice, true)])
                };
                let variant = self.variant(program, &at);
                if variant.kernels.is_empty() {
                    break;
                }
                variants.push(variant);
            }
        }
        variants
    }

    /// What follows for a kernel from the times of its micro-batches.
    pub fn frontier(&self, shape: &KernelShape<'_>, measured: &Measurements) -> Frontier {
        let mut all = Frontier::default();
        let Some(extents) = shape.cut_extents() else {
            return all;
        };
        let choices = self.menu.implementations(shape).unwrap_or_default();
        let undivided = choices.iter().filter_map(|choice| {
            let key = key(shape, &choice.algorithm);
            Some((choice, measured.seconds(&key)?))
        });
        let whole: Vec<(&Choice, _)> = undivided.collect();
        for (choice, seconds) in &whole {
            all.add(FrontierPoint {
                seconds: *seconds,
                workspace: choice.workspace,
                configuration: Configuration::undivided(&choice.algorithm.0),
            });
        }
        for dim in cut_dims(&extents) {
            let mut times = Vec::new();
            for (choice, seconds) in &whole {
                times.push(MicroTime {
                    method: choice.algorithm.0.clone(),
                    extent: extents[dim],
                    seconds: *seconds,
                    workspace: choice.workspace,
                });
            }
            for extent in micro_extents(self.policy, extents[dim]) {
                times.extend(self.times_of(shape, (dim, extents[dim], extent), measured));
            }
            for point in frontier(dim, extents[dim], &times).points() {
                all.add(point.clone());
            }
        }
        all
    }

    /// The times of the micro-batches of an extent.
    fn times_of(
        &self,
        shape: &KernelShape<'_>,
        (dim, whole, extent): (usize, usize, usize),
        measured: &Measurements,
    ) -> Vec<MicroTime> {
        let start = typical_piece(whole, extent) * extent;
        let Some(kernel) = shape.piece(dim, start, extent) else {
            return Vec::new();
        };
        let piece = KernelShape {
            kernel: &kernel,
            buffers: shape.buffers,
        };
        let choices = self.menu.implementations(&piece).unwrap_or_default();
        let time = |choice: Choice| {
            Some(MicroTime {
                seconds: measured.seconds(&key(&piece, &choice.algorithm))?,
                method: choice.algorithm.0,
                extent,
                workspace: choice.workspace,
            })
        };
        choices.into_iter().filter_map(time).collect()
    }

    /// An implementation of a kernel that can be cut.
    fn method(&self, shape: &KernelShape<'_>, method: usize) -> Option<Choice> {
        shape.cut_extents()?;
        let all = self.menu.implementations(shape).ok()?;
        all.into_iter().nth(method)
    }

    /// The micro-batches of one extent, by one implementation.
    fn cut(
        &self,
        shape: &KernelShape<'_>,
        method: usize,
        spatial: bool,
        index: usize,
    ) -> Option<Replacement> {
        let extents = shape.cut_extents()?;
        let dim = cut_dims(&extents).find(|&dim| (dim > 0) == spatial)?;
        let whole = extents[dim];
        let extent = *micro_extents(self.policy, whole).get(index)?;
        let typical = typical_piece(whole, extent);
        let piece = |at: usize| {
            let kernel = shape.piece(dim, at * extent, extent)?;
            let piece = KernelShape {
                kernel: &kernel,
                buffers: shape.buffers,
            };
            let choice = self
                .menu
                .implementations(&piece)
                .ok()?
                .into_iter()
                .nth(method)?;
            Some((kernel, choice, at == typical))
        };
        // Its neighbors leave the caches as the other micro-batches do.
        let last = whole / extent - 1;
        (typical.saturating_sub(1)..=last.min(typical + 1))
            .map(piece)
            .collect()
    }

    /// A copy of a program with replacements of its kernels.
    fn variant(
        &self,
        program: &Program,
        replacement: &dyn Fn(&KernelShape<'_>) -> Option<Replacement>,
    ) -> Variant {
        let mut kernels = BTreeSet::new();
        let bodies = program.bodies.iter();
        let bodies = bodies.map(|body| body_with(body, replacement, &mut kernels));
        let bodies = bodies.collect();
        Variant {
            program: Program {
                bodies,
                ..program.clone()
            },
            kernels,
        }
    }
}

fn key(shape: &KernelShape<'_>, algorithm: &Algorithm) -> KernelKey {
    KernelKey {
        signature: shape.signature(),
        algorithm: algorithm.0.clone(),
    }
}

/// The kernels of a body.
fn shapes(body: &Body) -> impl Iterator<Item = KernelShape<'_>> {
    body.tasks.iter().filter_map(|task| body.kernel_shape(task))
}

fn body_with(
    body: &Body,
    replacement: &dyn Fn(&KernelShape<'_>) -> Option<Replacement>,
    measured: &mut BTreeSet<KernelKey>,
) -> Body {
    let mut copy = Body {
        tasks: Vec::with_capacity(body.tasks.len()),
        ..body.clone()
    };
    for task in &body.tasks {
        let shape = body.kernel_shape(task);
        let replaced = shape.and_then(|shape| replacement(&shape));
        let Some(replaced) = replaced else {
            copy.tasks.push(task.clone());
            continue;
        };
        for (kernel, choice, is_measured) in replaced {
            let shape = KernelShape {
                kernel: &kernel,
                buffers: &body.buffers,
            };
            if is_measured {
                measured.insert(key(&shape, &choice.algorithm));
            }
            let workspace = workspace(&mut copy, body.arena, choice.workspace);
            copy.tasks.push(Task {
                origin: task.origin.clone(),
                after: Vec::<TaskId>::new(),
                work: Work::Compute {
                    kernel,
                    algorithm: choice.algorithm,
                    workspace,
                },
            });
        }
    }
    copy
}

/// A buffer for the workspace of one kernel, behind the planned arena.
fn workspace(body: &mut Body, arena: Bytes, bytes: Bytes) -> Option<View> {
    if bytes.0 == 0 {
        return None;
    }
    let dtype = Dtype::F32;
    let id = BufferId(body.buffers.len() as u32);
    let buffer = Buffer {
        name: format!("workspace.{}", id.0),
        role: Role::Workspace,
        dtype,
        dims: [1, 1, 1, 1, (bytes.0 as usize).div_ceil(dtype.size())],
        tensor: None,
        offset: arena,
    };
    let view = buffer.view(id);
    body.arena = body.arena.max(Bytes(arena.0 + buffer.bytes().0));
    body.buffers.push(buffer);
    Some(view)
}
