//! `lower`: the program of a training under a strategy.

use crate::budget::MeasuringBudget;
use crate::input::InputRequest;
use crate::local_machine;
use crate::machine;
use crate::model;
use crate::planning::PlanningError;
use crate::search::staged;
use crate::target::{Platform, Target, check_measured};
use crate::training::{Lowered, StrategyChoice, Training, lower_until, lowered, with_request};
use partita_cluster::Software;
use partita_lower::{LoweringPass, Request, Strategy};
use partita_program::{Body, Count, Dtype, Menu, ProgramKind, Role, Staging, UnpinnedMenu};
use partita_site::kernel_set::KernelSet;
use partita_site::{Context, Ranks};
use partita_space::{Bytes, Flops, Rank};
use serde::Serialize;

/// A training to lower.
#[derive(Clone, Debug, PartialEq)]
pub struct LowerRequest {
    /// The training.
    pub training: Training,
    /// The strategy; `Auto` is refused.
    pub strategy: StrategyChoice,
    /// Kernels to pin in the program; `None` leaves them open.
    pub kernels: Option<KernelSet>,
    /// Kind of program.
    pub kind: ProgramKind,
    /// Machine on which pipeline stages are balanced: name or path of a machine file (default: balance flops).
    pub machine: Option<String>,
    /// Memory limit of a rank (default: that of the machine's device).
    pub memory: Option<Bytes>,
}

impl LowerRequest {
    /// A training step with the reference kernels.
    pub fn new(training: Training, strategy: StrategyChoice) -> Self {
        Self {
            training,
            strategy,
            kernels: Some(KernelSet::REFERENCE),
            kind: ProgramKind::Train,
            machine: None,
            memory: None,
        }
    }
}

/// Lowers a training and verifies its program.
///
/// Errors: no such model or machine; an invalid strategy; faults of the program.
///
/// ```
/// use partita_forecast::{LowerRequest, Training, lower};
/// use partita_site::{Context, Environment};
///
/// let training = Training::new("cosmoflow@32", 2, 4);
/// let request = LowerRequest::new(training, "depth=2".parse()?);
/// let lowered = lower(&Context::new(Environment::default()), &request)?;
/// assert_eq!(lowered.program.mesh.ranks(), 2);
/// assert_eq!(lowered.summary().digest, lowered.program.digest());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lower(context: &Context, request: &LowerRequest) -> Result<Lowered, PlanningError> {
    check_precision(request)?;
    let graph = model::resolve(&request.training.model)?;
    lowered(
        (&graph, &request.training, &request.strategy),
        &*menu(context, request),
        request.kind,
        &|lowering| stages(context, request, lowering),
    )
}

/// The intermediate form after a lowering pass, as text: the network with its distributions, or the unfinished
/// programs of all rank classes. Nothing is verified.
///
/// Errors: as [`lower`], but for faults of the program.
pub fn lower_after(
    context: &Context,
    request: &LowerRequest,
    pass: LoweringPass,
) -> Result<String, PlanningError> {
    check_precision(request)?;
    let graph = model::resolve(&request.training.model)?;
    let (_, text) = with_request(
        (&graph, &request.training, &request.strategy),
        &*menu(context, request),
        request.kind,
        &|lowering| stages(context, request, lowering),
        &|lowering| lower_until(lowering, pass),
    )?;
    Ok(text)
}

/// Without a machine file a program is for ranks here.
fn check_precision(request: &LowerRequest) -> Result<(), PlanningError> {
    match &request.machine {
        Some(name) if !machine::is_local(name) => Ok(()),
        Some(_) | None => check_measured(request.training.precision),
    }
}

/// The kernels to pin: those that a training on this machine would.
fn menu(context: &Context, request: &LowerRequest) -> Box<dyn Menu> {
    let ranks = Ranks::threads(request.training.ranks, local_machine::THREADS);
    match request.kernels {
        Some(kernels) => context.menu(kernels, &ranks),
        None => Box::new(UnpinnedMenu),
    }
}

/// The strategy with the layers of all pipeline stages.
fn stages(
    context: &Context,
    asked: &LowerRequest,
    request: &Request<'_>,
) -> Result<Strategy, PlanningError> {
    let Some(name) = &asked.machine else {
        return Ok(request.strategy.resolved(request.graph)?);
    };
    let target = Target::new(
        context,
        &Platform::resolve(context, (name, Software::OWN), asked.training.ranks)?,
        (request.graph, &asked.training),
        InputRequest::IGNORED,
        (asked.memory, asked.kernels),
        MeasuringBudget::default(),
    )?;
    let (machine, ranks) = (&*target.machine, asked.training.ranks);
    let room = target.reserve.room(machine.memory(ranks));
    if machine.described().is_some() {
        return staged(context, request, room, machine);
    }
    // Only kernels that are pinned can be measured.
    let menu = machine.menu(ranks);
    let request = Request {
        menu: &*menu,
        ..*request
    };
    staged(context, &request, room, machine)
}

/// Digest, work and memory of a program.
#[derive(Clone, Debug, Serialize)]
pub struct LowerSummary {
    /// Digest of the program.
    pub digest: String,
    /// Name of the model.
    pub model: String,
    /// The strategy, with the layers of all stages.
    pub strategy: String,
    /// Kind of program.
    pub kind: ProgramKind,
    /// Type that kernels compute in.
    pub dtype: Dtype,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Memory of the largest rank.
    pub memory_bytes_max: Bytes,
    /// Work of all ranks.
    pub count: WorkCount,
    /// Classes of ranks with the same tasks.
    pub classes: Vec<ClassSummary>,
}

/// A class of ranks with the same tasks.
#[derive(Clone, Debug, Serialize)]
pub struct ClassSummary {
    /// Ranks of the class.
    pub ranks: usize,
    /// The first of them.
    pub first_rank: Rank,
    /// Tasks of each.
    pub tasks: usize,
    /// Buffers of each.
    pub buffers: usize,
    /// Memory of each.
    pub memory_bytes: Bytes,
    /// Arena of each.
    pub arena_bytes: Bytes,
    /// Pools of packets and read-ahead buffers of each.
    pub staging_bytes: Staging,
    /// Parameters of each.
    pub parameter_bytes: Bytes,
    /// Work of each.
    pub count: WorkCount,
}

/// Work of a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WorkCount {
    /// Floating-point operations.
    pub flops: Flops,
    /// Bytes that kernels read.
    pub read_bytes: Bytes,
    /// Bytes that kernels write.
    pub written_bytes: Bytes,
    /// Messages sent.
    pub messages: u64,
    /// Bytes of messages.
    pub message_bytes: Bytes,
    /// Collectives.
    pub collectives: u64,
    /// Bytes of collectives.
    pub collective_bytes: Bytes,
    /// Bytes of samples that are loaded.
    pub load_bytes: Bytes,
    /// Bytes of predictions that are stored.
    #[serde(skip_serializing_if = "is_zero")]
    pub store_bytes: Bytes,
}

impl Lowered {
    /// The summary.
    pub fn summary(&self) -> LowerSummary {
        let program = &self.program;
        let bodies = program.bodies.iter();
        let classes = bodies
            .zip(program.class_sizes())
            .zip(program.representatives());
        LowerSummary {
            digest: program.digest(),
            model: self.model.clone(),
            strategy: self.strategy.to_string(),
            kind: program.kind,
            dtype: program.dtype,
            batch: program.batch,
            ranks: program.mesh.ranks(),
            memory_bytes_max: program.memory_max(),
            count: WorkCount::of(&program.count()),
            classes: classes
                .map(|((body, ranks), first)| ClassSummary::of(body, ranks, first))
                .collect(),
        }
    }
}

impl ClassSummary {
    fn of(body: &Body, ranks: usize, first_rank: Rank) -> Self {
        Self {
            ranks,
            first_rank,
            tasks: body.tasks.len(),
            buffers: body.buffers.len(),
            memory_bytes: body.memory(),
            arena_bytes: body.arena,
            staging_bytes: body.staging,
            parameter_bytes: body.bytes_of(Role::Parameter),
            count: WorkCount::of(&body.count()),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

impl WorkCount {
    fn of(count: &Count) -> Self {
        Self {
            flops: count.flops,
            read_bytes: count.read,
            written_bytes: count.written,
            messages: count.messages,
            message_bytes: count.message_bytes,
            collectives: count.collectives,
            collective_bytes: count.collective_bytes,
            load_bytes: count.load_bytes,
            store_bytes: count.store_bytes,
        }
    }
}
