//! Bounds on the sizes in a program, so that all values computed from them fit in 64 bits.

use crate::count::WideCount;
use crate::descriptor::Window;
use crate::{Body, Distribution, Exchange, Kernel, Lane, Program, TaskSite, TensorRegion, Work};
use partita_space::help::extend;
use partita_space::limits::{BYTES_MAX, ELEMENTS_MAX, SAMPLES_MAX};
use partita_space::{Help, Mesh, Offset, Rank, Submesh};
use std::fmt;

/// A size in a program beyond its bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {what} {got}{}", Help::possible(possible))]
pub struct SizeFault {
    /// The buffer, task or class.
    pub location: String,
    /// What is counted.
    pub what: &'static str,
    /// How many, in digits: 64 bits may not hold it.
    pub got: String,
    /// The bound.
    pub possible: String,
}

/// All sizes of a program beyond their bounds: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeFaults(pub Vec<SizeFault>);

impl fmt::Display for SizeFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else {
            return write!(f, "no size is too large");
        };
        match others.len() {
            0 => write!(f, "{first}"),
            others => write!(f, "{}", extend(first, format_args!(" (and {others} more)"))),
        }
    }
}

impl std::error::Error for SizeFaults {}

impl Program {
    /// Checks that the program can be counted, its text written and its memory planned: sizes stay
    /// within [`partita_space::limits`], what is counted of a step over all ranks fits in 64 bits, and
    /// submeshes and peers lie in the mesh.
    ///
    /// The classes, buffers and tasks that the program names must exist, as in a lowered one.
    /// Errors: all sizes that are too large.
    pub fn check_sizes(&self) -> Result<(), SizeFaults> {
        let mut faults = Vec::new();
        sizes(self, &mut faults);
        if faults.is_empty() {
            Ok(())
        } else {
            Err(SizeFaults(faults))
        }
    }
}

fn sizes(program: &Program, faults: &mut Vec<SizeFault>) {
    if program.batch > SAMPLES_MAX {
        let got = program.batch.to_string();
        let possible = format!("at most {SAMPLES_MAX}");
        faults.push(size(
            "the program".to_owned(),
            "samples of a step",
            got,
            possible,
        ));
    }
    let ranks = program.representatives();
    for (class, (body, rank)) in program.bodies.iter().zip(ranks).enumerate() {
        let mut case = Sizes {
            program,
            class,
            rank,
            faults,
        };
        case.buffers(body);
        case.tasks(body);
    }
    if faults.is_empty() {
        counts(program, faults);
    }
}

/// Counts of a step over all ranks.
fn counts(program: &Program, faults: &mut Vec<SizeFault>) {
    let mut all = WideCount::default();
    for (body, ranks) in program.bodies.iter().zip(program.class_sizes()) {
        for task in &body.tasks {
            all.add(&WideCount::of(task, &body.buffers), ranks);
        }
    }
    if let Some((what, got)) = all.too_many() {
        let possible = format!("at most {}", u64::MAX);
        let location = "a step over all ranks".to_owned();
        faults.push(size(location, what, got.to_string(), possible));
    }
}

fn size(location: String, what: &'static str, got: String, possible: String) -> SizeFault {
    SizeFault {
        location,
        what,
        got,
        possible,
    }
}

/// Product of the extents, empty dims counting as one, so that products of some of them fit as well.
fn elements(extents: &[usize]) -> u128 {
    let widths = extents.iter().map(|&extent| extent.max(1) as u128);
    widths.fold(1, u128::saturating_mul)
}

struct Sizes<'p, 'f> {
    program: &'p Program,
    class: usize,
    rank: Rank,
    faults: &'f mut Vec<SizeFault>,
}

impl Sizes<'_, '_> {
    fn most(&mut self, at: &dyn Fn() -> String, what: &'static str, got: u128, limit: u64) {
        if got > u128::from(limit) {
            let possible = format!("at most {limit}");
            self.faults
                .push(size(at(), what, got.to_string(), possible));
        }
    }

    fn buffers(&mut self, body: &Body) {
        let class = self.class;
        let mut sum = 0u128;
        for (id, buffer) in body.buffers.iter().enumerate() {
            let at = || format!("class {class}: b{id} ({})", buffer.name);
            let elements = elements(&buffer.dims);
            self.most(&at, "elements", elements, ELEMENTS_MAX);
            sum = sum.saturating_add(elements.saturating_mul(buffer.dtype.size() as u128));
            if let Some(tensor) = &buffer.tensor {
                self.tensor(&at, tensor);
            }
        }
        let at = || format!("class {class}");
        self.most(&at, "bytes of all buffers", sum, BYTES_MAX);
        let arena = u128::from(body.arena.0);
        self.most(&at, "bytes of the arena", arena, BYTES_MAX);
        for lane in Lane::ALL {
            let staging = u128::from(body.staging.of_lane(lane).0);
            self.most(&at, "bytes of a pool", staging, BYTES_MAX);
        }
    }

    fn tensor(&mut self, at: &dyn Fn() -> String, tensor: &TensorRegion) {
        self.distribution(at, &tensor.distribution);
        self.halo_low(at, &tensor.halo_low.map(i64::unsigned_abs));
    }

    fn halo_low(&mut self, at: &dyn Fn() -> String, halo_low: &[u64; 5]) {
        for &halo_low in halo_low {
            self.most(
                at,
                "elements before its part",
                u128::from(halo_low),
                ELEMENTS_MAX,
            );
        }
    }

    fn distribution(&mut self, at: &dyn Fn() -> String, distribution: &Distribution) {
        let elements = elements(&distribution.shape);
        self.most(at, "elements of its tensor", elements, ELEMENTS_MAX);
        if let Some((first, samples)) = distribution.micro {
            let end = first as u128 + samples as u128;
            let whole = distribution.shape[0] as u64;
            self.most(at, "samples up to the end of its micro-batch", end, whole);
        }
        if let Some(submesh) = distribution.submesh {
            self.submesh(at, submesh);
        }
    }

    fn submesh(&mut self, at: &dyn Fn() -> String, submesh: Submesh) {
        let last = self.program.mesh.ranks() as u64 - 1;
        self.most(at, "largest rank of its mesh", submesh.last() as u128, last);
    }

    fn tasks(&mut self, body: &Body) {
        let (program, class, rank) = (self.program, self.class, self.rank);
        for (id, task) in body.tasks.iter().enumerate() {
            let at = || TaskSite::of(program, class, rank, id).to_string();
            match &task.work {
                Work::Compute { .. } => {
                    for kernel in task.work.kernels() {
                        self.kernel(&at, kernel);
                    }
                }
                Work::Exchange(exchange) => self.exchange(&at, exchange),
                Work::Collective(collective) => {
                    if let Some(submesh) = collective.submesh {
                        self.submesh(&at, submesh);
                    }
                }
                Work::Load(load) => self.distribution(&at, &load.distribution),
                Work::Store(store) => self.distribution(&at, &store.distribution),
            }
        }
    }

    fn exchange(&mut self, at: &dyn Fn() -> String, exchange: &Exchange) {
        let sends = exchange.sends.iter().map(|send| send.to);
        let offsets = sends.chain(exchange.receives.iter().map(|receive| receive.from));
        for Offset(steps) in offsets {
            for step in steps {
                let ranks = u128::from(step.unsigned_abs());
                self.most(at, "ranks to a peer", ranks, Mesh::RANKS_MAX as u64);
            }
        }
    }

    fn kernel(&mut self, at: &dyn Fn() -> String, kernel: &Kernel) {
        let descriptor = kernel.descriptor();
        if let Some(window) = descriptor.window {
            self.window(at, &window);
        }
        if let Some((distribution, halo_low)) = descriptor.distribution {
            self.distribution(at, distribution);
            self.halo_low(at, &halo_low.map(|low| low as u64));
        }
    }

    /// The inputs from the first tap of the first output to the last tap of the last one.
    fn window(&mut self, at: &dyn Fn() -> String, window: &Window<'_>) {
        for dim in 0..3 {
            let steps = |times: usize, step: usize| (times.max(1) - 1) as u128 * step as u128;
            let taps = window.taps;
            let reach = steps(window.outputs[dim + 1], taps.stride[dim])
                .saturating_add(steps(taps.kernel[dim], taps.dilation[dim]))
                .saturating_add(u128::from(window.shift[dim].unsigned_abs()));
            self.most(at, "inputs along its window", reach, ELEMENTS_MAX);
        }
    }
}
