//! Convolutions of programs by the library.

use crate::affinity::{CoreSet, on_cores};
use crate::api::{OneDnnError, Primitive, Stream, TensorMemory};
use crate::library::Library;
use crate::problem::{Operands, Pass, Problem};
use crate::recipe::{ALIGNMENT, Place, Recipe};
use partita_program::{Buffer, Kernel, View};
use partita_run::Memory;
use partita_space::Bytes;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// Name of the implementation in algorithms.
pub const NAME: &str = "onednn";

/// What the library computes of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Number of parts of the kernel, from the first on.
    pub parts: usize,
    /// Workspace.
    pub workspace: Bytes,
}

/// The convolutions that a library offers to ranks with this many threads.
#[derive(Clone, Debug)]
pub struct OneDnnMenu {
    library: Arc<Library>,
    threads: usize,
}

impl OneDnnMenu {
    /// The convolutions of a library.
    pub fn new(library: Arc<Library>, threads: usize) -> Self {
        Self { library, threads }
    }

    /// What the library computes of the parts of a kernel: a convolution in f32 with plain weights, and a leaky ReLU
    /// or the gradient of its bias that follows. None where it has no fast code, or does not run on this many threads.
    pub fn offer(&self, parts: &[Kernel], buffers: &[Buffer]) -> Option<Offer> {
        let (problem, _, count) = Problem::of(parts, buffers)?;
        let library = &self.library;
        let workspace = library.workspace(&problem, self.threads, || {
            if !library.runs_on(self.threads) {
                return None;
            }
            library.with_threads(self.threads, || {
                let recipe = Recipe::of(library, &problem).ok()??;
                Some(recipe.workspace())
            })
        })?;
        Some(Offer {
            parts: count,
            workspace: Bytes(workspace.next_multiple_of(size_of::<f32>()) as u64),
        })
    }
}

/// The primitives of a problem.
struct Plan {
    steps: Vec<(Primitive, Vec<(c_int, usize)>)>,
    tensors: Vec<(TensorMemory, Place)>,
    /// Where the scratchpad begins in the workspace.
    end: usize,
    workspace: usize,
}

/// First elements of the operands.
#[derive(Clone, Copy)]
struct Places {
    input: *mut f32,
    output: *mut f32,
    weights: *mut f32,
    bias: *mut f32,
    workspace: *mut f32,
}

/// The convolutions of a rank. Primitives are made at the first call of each shape and kept.
pub struct OneDnnKernels {
    library: Arc<Library>,
    threads: usize,
    /// The cores of the rank, on which threads of the library may run; none if it is not pinned.
    cores: Option<CoreSet>,
    stream: Stream,
    plans: HashMap<Problem, Plan>,
}

impl OneDnnKernels {
    /// For a rank with this many threads, on the thread that will call it. While it computes with several threads, the
    /// calling thread may use all of the rank's `cores`, of which it has one otherwise; the list is empty if it is not
    /// pinned.
    ///
    /// Errors: no stream.
    pub fn new(
        library: Arc<Library>,
        threads: usize,
        cores: &[usize],
    ) -> Result<Self, OneDnnError> {
        let stream = library.api.stream(&library.engine)?;
        library.sleep_at_once();
        let is_pinned = threads > 1 && !cores.is_empty();
        Ok(Self {
            library,
            threads,
            cores: is_pinned.then(|| CoreSet::of(cores)),
            stream,
            plans: HashMap::new(),
        })
    }

    /// Computes the first parts of a kernel that [`OneDnnMenu::offer`] offers, and returns their number; none if it
    /// offers nothing. The workspace has the offered size; what it contains does not matter.
    ///
    /// Errors: a failed call of the library. Panics if the workspace is too small.
    pub fn execute(
        &mut self,
        parts: &[Kernel],
        workspace: Option<&View>,
        memory: &Memory<'_>,
    ) -> Result<Option<usize>, OneDnnError> {
        let Some((problem, operands, count)) = Problem::of(parts, &memory.body().buffers) else {
            return Ok(None);
        };
        let library = Arc::clone(&self.library);
        let cores = self.cores;
        let computed = library.with_threads(self.threads, || {
            let mut compute = || self.compute(&problem, &operands, workspace, memory);
            match &cores {
                Some(cores) => on_cores(cores, compute),
                None => compute(),
            }
        })?;
        Ok(computed.then_some(count))
    }

    fn compute(
        &mut self,
        problem: &Problem,
        operands: &Operands<'_>,
        workspace: Option<&View>,
        memory: &Memory<'_>,
    ) -> Result<bool, OneDnnError> {
        if !self.plans.contains_key(problem) {
            let Some(plan) = Plan::of(&self.library, problem)? else {
                return Ok(false);
            };
            self.plans.insert(problem.clone(), plan);
        }
        let plan = &self.plans[problem];
        let dense = [Some(operands.weights), operands.bias];
        for view in dense.into_iter().flatten() {
            assert!(
                memory.is_dense(view),
                "parameters and their gradients are contiguous"
            );
        }
        let mut workspace = workspace.map(|view| memory.write::<f32>(view));
        let scratch = workspace.as_mut().map_or(&mut [][..], |it| it.data_mut());
        let start = plan.start(scratch);
        let places = |views: [*mut f32; 4]| Places {
            input: views[0],
            output: views[1],
            weights: views[2],
            bias: views[3],
            workspace: start,
        };
        let read = |view: &View| memory.read::<f32>(view);
        let write = |view: &View| memory.write::<f32>(view);
        let run = |places: Places| plan.run(&self.library, &self.stream, places);
        let (input, output, weights) = (operands.input, operands.output, operands.weights);
        match problem.pass {
            Pass::Forward { .. } => {
                let (x, w, mut y) = (read(input), read(weights), write(output));
                let bias = operands.bias.map(read);
                let bias = bias
                    .as_ref()
                    .map_or(null_mut(), |it| it.data().as_ptr().cast_mut());
                let [x, w] = [&x, &w].map(|block| block.data().as_ptr().cast_mut());
                run(places([x, y.data_mut().as_mut_ptr(), w, bias]))
            }
            Pass::BackwardData => {
                let (dy, w, mut dx) = (read(output), read(weights), write(input));
                let [dy, w] = [&dy, &w].map(|block| block.data().as_ptr().cast_mut());
                run(places([dx.data_mut().as_mut_ptr(), dy, w, null_mut()]))
            }
            Pass::BackwardWeight { .. } => {
                let (x, dy, mut dw) = (read(input), read(output), write(weights));
                let mut db = operands.bias.map(write);
                let db = db
                    .as_mut()
                    .map_or(null_mut(), |it| it.data_mut().as_mut_ptr());
                let [x, dy] = [&x, &dy].map(|block| block.data().as_ptr().cast_mut());
                run(places([x, dy, dw.data_mut().as_mut_ptr(), db]))
            }
        }?;
        Ok(true)
    }
}

impl Plan {
    /// None if the library has no fast code.
    fn of(library: &Library, problem: &Problem) -> Result<Option<Self>, OneDnnError> {
        let Some(recipe) = Recipe::of(library, problem)? else {
            return Ok(None);
        };
        let (api, engine) = (&library.api, &library.engine);
        let (workspace, end) = (recipe.workspace(), recipe.end);
        let mut steps = Vec::with_capacity(recipe.steps.len());
        for step in recipe.steps {
            steps.push((api.primitive(&step.primitive)?, step.arguments));
        }
        let mut tensors = Vec::with_capacity(recipe.tensors.len());
        for (desc, place) in &recipe.tensors {
            tensors.push((api.memory(engine, desc)?, *place));
        }
        Ok(Some(Self {
            steps,
            tensors,
            end,
            workspace,
        }))
    }

    /// The first aligned element of a workspace.
    fn start(&self, workspace: &mut [f32]) -> *mut f32 {
        if self.workspace == 0 {
            return null_mut();
        }
        let bytes = size_of_val(workspace);
        assert!(
            bytes >= self.workspace,
            "a workspace of {bytes} bytes, not {}",
            self.workspace
        );
        let start = workspace.as_mut_ptr();
        // The size has room for this.
        start.wrapping_byte_add(start.cast::<u8>().align_offset(ALIGNMENT))
    }

    fn run(&self, library: &Library, stream: &Stream, places: Places) -> Result<(), OneDnnError> {
        let api = &library.api;
        for (tensor, place) in &self.tensors {
            let start = match place {
                Place::Input => places.input,
                Place::Output => places.output,
                Place::Weights => places.weights,
                Place::Bias => places.bias,
                Place::Workspace(start) => places.workspace.wrapping_byte_add(*start),
                Place::Scratchpad => places.workspace.wrapping_byte_add(self.end),
            };
            api.set_place(tensor, start)?;
        }
        for (primitive, arguments) in &self.steps {
            let arguments = arguments
                .iter()
                .map(|&(number, at)| (number, &self.tensors[at].0));
            // SAFETY: operands are where the program has them, claimed by the caller for reading or writing; temporary
            // tensors lie in the workspace, whose size has been checked.
            unsafe { api.execute(primitive, stream, arguments) }?;
        }
        Ok(())
    }
}
