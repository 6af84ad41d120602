//! `tune`: implementations and micro-batches of the kernels of a training on this machine.

use crate::input::InputSource;
use crate::local_machine::LocalMachine;
use crate::model;
use crate::pinned::shapes;
use crate::planning::PlanningError;
use crate::target::check_measured;
use crate::training::{StrategyChoice, Training, given, lower_verified, request as lowering};
use partita_graph::Graph;
use partita_lower::{Strategy, WorkspaceLimit};
use partita_onednn::LibrarySearch;
use partita_program::{
    Body, Choice, Configuration, KernelShape, Menu, MenuError, Program, ProgramKind, Task, Work,
};
use partita_site::kernel_set::{KernelSet, Precision, Processing};
use partita_site::{Context, Event, Host, Ranks, setting};
use partita_space::{Bytes, Seconds};
use partita_tune::{Catalog, CatalogMenu, DivisionPolicy, KernelKey, Measurements};
use serde::Serialize;

/// A training whose kernels are to be tuned.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneRequest {
    /// The training.
    pub training: Training,
    /// Its strategy, with the limit of workspaces that the choices are shown for.
    pub strategy: StrategyChoice,
    /// Kind of program.
    pub kind: ProgramKind,
    /// Threads per rank.
    pub threads: usize,
    /// Where the kernels compute.
    pub device: KernelSet,
    /// Candidates for micro-batches.
    pub policy: DivisionPolicy,
    /// Limits of each kernel for which the whole step is shown, besides `off`, `live` and that of the
    /// strategy.
    pub limits: Vec<Bytes>,
    /// Limits of all kernels together for which it is shown.
    pub totals: Vec<Bytes>,
}

/// A tuned training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Name of the model.
    pub model: String,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// The strategy.
    pub strategy: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Threads per rank.
    pub threads: usize,
    /// Candidates for micro-batches.
    pub policy: &'static str,
    /// Model name of the processor or device.
    pub processor: Option<String>,
    /// Instruction level of the kernels; `OpenCL` on devices.
    pub simd: &'static str,
    /// Convolutions of rank 0, in the order of its program.
    pub kernels: Vec<TunedKernel>,
    /// The step under limits of the workspace.
    pub steps: Vec<TunedStep>,
}

/// A convolution.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedKernel {
    /// Name of its layer.
    pub layer: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Extents (N, D, H, W, C) of its outputs, or of their gradient.
    pub extent: [usize; 5],
    /// By the implementation that needs no measurement.
    pub usual: Option<TunedPoint>,
    /// The fastest configuration that is not divided.
    pub undivided: Option<TunedPoint>,
    /// What the program pins.
    pub choice: Option<TunedPoint>,
    /// What it would pin in any workspace if nothing had been measured.
    pub expected: String,
    /// The implementations that were measured, undivided, the usual one first.
    pub implementations: Vec<TunedPoint>,
    /// The configurations worth having, by ascending workspace.
    pub frontier: Vec<TunedPoint>,
}

/// A measured configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedPoint {
    /// Implementation and micro-batches.
    pub configuration: String,
    /// Its time.
    pub seconds: Seconds,
    /// Its workspace.
    pub workspace_bytes: Bytes,
}

/// A step under a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedStep {
    /// The setting `workspace` of the strategy.
    pub workspace: String,
    /// The sum over the convolutions of rank 0.
    pub convolution_seconds: Seconds,
    /// Predicted time of the step.
    pub step_seconds: Seconds,
    /// Largest workspace of a convolution.
    pub workspace_bytes_max: Bytes,
    /// Memory of the largest rank.
    pub memory_bytes: Bytes,
}

/// Measures implementations and micro-batches of the convolutions of a training on this machine. They are kept with
/// all measured times, and later trainings and predictions pin the fastest.
///
/// Errors: no such model; an invalid strategy; too many ranks to measure; no convolution; a failed measurement.
pub fn tune(context: &Context, request: &TuneRequest) -> Result<Tuned, PlanningError> {
    let training = &request.training;
    check_measured(training.precision)?;
    let graph = model::resolve(&training.model)?;
    let strategy = given(&graph, &request.strategy, training, request.kind)?.resolved(&graph)?;
    let subject = Subject {
        graph: &graph,
        training,
        kind: request.kind,
        strategy: &strategy,
    };
    let kernels = KernelSet::CPU.on(request.device, Precision::F32)?;
    let ranks = Ranks::threads(training.ranks, request.threads);
    let processing = context.processing(request.threads);
    if kernels.is_on_processor() {
        warn_of_onednn(context, &processing);
    }
    let menu = kernels.menu_with(&processing);
    measure(context, request, &subject, (kernels, &*menu))?;
    let measured = context.measurements(&setting(context.level(), kernels, &ranks));
    let times = Times {
        catalog: Catalog::of(&measured),
        measured,
    };
    let pinned = context.menu(kernels, &ranks);
    let step = |limit: WorkspaceLimit| -> Result<TunedStep, PlanningError> {
        let program = subject.program(limit, &*pinned)?;
        let mut here = LocalMachine::of(context, kernels, ranks.clone(), InputSource::Ignored)?;
        let seconds = here.predict(&program, false)?.iteration_seconds;
        Ok(tuned_step(limit, &program, &times, seconds))
    };
    let each = request.limits.iter().copied().map(WorkspaceLimit::Kernel);
    let all = request.totals.iter().copied().map(WorkspaceLimit::Total);
    let own = [
        WorkspaceLimit::Off,
        WorkspaceLimit::Live,
        strategy.workspace,
    ]
    .into_iter();
    let mut limits: Vec<WorkspaceLimit> = Vec::new();
    for limit in own.chain(each).chain(all) {
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    let steps: Result<Vec<TunedStep>, PlanningError> = limits.into_iter().map(step).collect();
    let chosen = subject.program(strategy.workspace, &*pinned)?;
    let host = Host::local(context.level());
    let (processor, simd) = match kernels.device_facts() {
        Some(facts) => (Some(facts.name.clone()), "OpenCL"),
        None => (host.processor, host.simd),
    };
    let unmeasured = CatalogMenu::new(kernels.menu_with(&processing), Catalog::default());
    Ok(Tuned {
        model: graph.name.clone(),
        batch: training.batch,
        strategy: strategy.to_string(),
        ranks: training.ranks,
        threads: request.threads,
        policy: request.policy.name(),
        processor,
        simd,
        kernels: tuned_kernels(&chosen, &times, (&*menu, &unmeasured)),
        steps: steps?,
    })
}

/// Warns if the user names a library that is not used; where none is named, none is missed.
fn warn_of_onednn(context: &Context, processing: &Processing) {
    let LibrarySearch::File(_) = context.environment().onednn else {
        return;
    };
    let threads = processing.threads;
    let warning = match processing.onednn.library() {
        Ok(library) if library.runs_on(threads) => return,
        Ok(library) => format!("{library:?} runs on one thread, so ranks of {threads} do without"),
        Err(error) => format!("convolutions of oneDNN are not measured: {error}"),
    };
    context.report(Event::Warning(&warning));
}

/// Measures what the convolutions of a training leave to choose.
///
/// Errors: no convolution, or a failed measurement.
fn measure(
    context: &Context,
    request: &TuneRequest,
    subject: &Subject<'_>,
    (kernels, menu): (KernelSet, &dyn Menu),
) -> Result<(), PlanningError> {
    let program = subject.program(WorkspaceLimit::Off, &PlainWeights(menu))?;
    let is_cut = |body: &Body| shapes(body).next().is_some();
    if !program.bodies.iter().any(is_cut) {
        return Err(PlanningError::NoConvolution {
            model: request.training.model.clone(),
        });
    }
    let ranks = Ranks::threads(request.training.ranks, request.threads);
    let mut here = LocalMachine::of(context, kernels, ranks, InputSource::Ignored)?;
    Ok(here.tune(&[&program], menu, request.policy)?)
}

/// What was measured of kernels.
struct Times {
    measured: Measurements,
    catalog: Catalog,
}

impl Times {
    fn seconds(&self, shape: &KernelShape<'_>, configuration: &str) -> Option<Seconds> {
        self.measured.seconds(&KernelKey {
            signature: shape.signature(),
            algorithm: configuration.to_owned(),
        })
    }
}

/// A training that is lowered several times.
struct Subject<'s> {
    graph: &'s Graph,
    training: &'s Training,
    kind: ProgramKind,
    strategy: &'s Strategy,
}

impl Subject<'_> {
    fn program(&self, limit: WorkspaceLimit, menu: &dyn Menu) -> Result<Program, PlanningError> {
        let mut strategy = self.strategy.clone();
        strategy.workspace = limit;
        let request = lowering(self.graph, &strategy, self.training, self.kind, menu);
        lower_verified(&request)
    }
}

/// A menu that packs no weights beforehand, so that every implementation can be measured.
struct PlainWeights<'m>(&'m dyn Menu);

impl Menu for PlainWeights<'_> {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let choice = self.0.choose(shape)?;
        Ok(Choice {
            packed_weights: 0,
            ..choice
        })
    }

    fn fuses(&self) -> bool {
        self.0.fuses()
    }
}

/// The configuration that a task pins, with its workspace.
fn pinned(task: &Task, body: &Body) -> Option<(String, Bytes)> {
    let Work::Compute {
        algorithm,
        workspace,
        ..
    } = &task.work
    else {
        return None;
    };
    let bytes = workspace.map_or(Bytes(0), |view| body.buffer(view.buffer).bytes());
    Some((algorithm.0.clone(), bytes))
}

fn tuned_step(
    limit: WorkspaceLimit,
    program: &Program,
    times: &Times,
    step_seconds: Seconds,
) -> TunedStep {
    let body = program.body(0);
    let (mut seconds, mut most) = (0.0, Bytes(0));
    for (task, shape) in shapes(body) {
        if let Some((algorithm, bytes)) = pinned(task, body) {
            let time = times.seconds(&shape, &algorithm);
            seconds += time.map_or(0.0, |time| time.0);
            most = most.max(bytes);
        }
    }
    TunedStep {
        workspace: match limit {
            WorkspaceLimit::Total(_) => format!("{limit} in all"),
            WorkspaceLimit::Live | WorkspaceLimit::Off | WorkspaceLimit::Kernel(_) => {
                limit.to_string()
            }
        },
        convolution_seconds: Seconds(seconds),
        step_seconds,
        workspace_bytes_max: most,
        memory_bytes: program.memory_max(),
    }
}

fn tuned_kernels(
    program: &Program,
    times: &Times,
    (menu, unmeasured): (&dyn Menu, &dyn Menu),
) -> Vec<TunedKernel> {
    let body = program.body(0);
    let kernel = |(task, shape): (&Task, KernelShape<'_>)| {
        let point = |configuration: &Configuration| {
            Some(TunedPoint {
                configuration: configuration.to_string(),
                seconds: times.seconds(&shape, &configuration.to_string())?,
                workspace_bytes: menu.configured(&shape, configuration)?.workspace,
            })
        };
        let implementations = menu.implementations(&shape).unwrap_or_default();
        let undivided = implementations.iter();
        let undivided = undivided.map(|choice| Configuration::undivided(&choice.algorithm.0));
        let points: Vec<TunedPoint> = undivided.filter_map(|one| point(&one)).collect();
        let fastest = points
            .iter()
            .min_by(|a, b| a.seconds.0.total_cmp(&b.seconds.0));
        let choice = pinned(task, body).and_then(|(name, _)| point(&name.parse().ok()?));
        let expected = unmeasured.fastest_within(&shape, Bytes(u64::MAX));
        let usual = implementations.first().map(|choice| &choice.algorithm);
        let expected = expected.as_ref().map(|choice| &choice.algorithm).or(usual);
        let frontier = times.catalog.frontier(menu, &shape);
        let frontier = frontier.points().iter();
        TunedKernel {
            layer: task.origin.layer.clone(),
            kernel: shape.kernel.name().to_owned(),
            extent: shape.cut_extents().unwrap_or_default(),
            undivided: fastest.cloned(),
            usual: points.first().cloned(),
            choice,
            expected: expected.map_or_else(String::new, |algorithm| algorithm.0.clone()),
            implementations: points.clone(),
            frontier: frontier
                .filter_map(|one| point(&one.configuration))
                .collect(),
        }
    };
    shapes(body).map(kernel).collect()
}
