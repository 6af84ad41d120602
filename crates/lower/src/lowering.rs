//! From a request to the program of every rank.

use crate::arena;
use crate::classes::{by_bodies, classes};
use crate::emit::Emit;
use crate::network_text::text_of;
use crate::passes::LoweringPass;
use crate::request::{LowerError, Request};
use crate::step_plan::{StepPlan, network};
use crate::strategy::WorkspaceLimit;
use partita_program::{Body, Program, ProgramKind, Staging};
use partita_space::{Rank, on_cores};

/// Lowers a model under a strategy to the program of every rank.
///
/// Errors: a strategy that does not fit the model or the mini-batch, a kernel that the menu lacks, sizes
/// beyond [`partita_space::limits`].
pub fn lower(request: &Request<'_>) -> Result<Program, LowerError> {
    let program = lower_until(request, LoweringPass::Staging)?;
    program.check_sizes().map_err(LowerError::Uncountable)?;
    Ok(program)
}

/// The text after a pass: of the distributed network after [`LoweringPass::LayOut`], of the program after the
/// others. After the last pass it is the text of [`lower`].
///
/// Errors: as [`lower`].
pub fn lower_after(request: &Request<'_>, pass: LoweringPass) -> Result<String, LowerError> {
    match pass {
        LoweringPass::LayOut => Ok(text_of(&network(request)?)),
        LoweringPass::Emit
        | LoweringPass::Fuse
        | LoweringPass::Pack
        | LoweringPass::Select
        | LoweringPass::Arena
        | LoweringPass::Staging => Ok(lower_until(request, pass)?.to_text()),
    }
}

/// Number of classes of ranks in the program of [`lower`], found without lowering any; none where they follow from the
/// bodies of ranks.
///
/// Errors: as [`lower`].
pub fn class_count(request: &Request<'_>) -> Result<Option<usize>, LowerError> {
    let plan = StepPlan::new(request)?;
    Ok(plan.has_known_classes().then(|| plan.classes().1.len()))
}

/// The program after the passes up to `last`.
fn lower_until(request: &Request<'_>, last: LoweringPass) -> Result<Program, LowerError> {
    let plan = StepPlan::new(request)?;
    let lower_planned = |rank| lower_planned(request, &plan, rank, last);
    let (bodies, class_of) = if plan.has_known_classes() {
        let (class_of, ranks) = plan.classes();
        (on_cores_of(&plan, &ranks, &lower_planned)?, class_of)
    } else {
        let lower = |ranks: &[Rank]| on_cores_of(&plan, ranks, &lower_planned);
        by_bodies(&plan.world, plan.is_even(), &lower)?
    };
    let title = format!(
        "{} batch {} {}",
        request.graph.name, request.batch, request.strategy
    );
    Ok(Program {
        title,
        kind: request.kind,
        dtype: request.dtype,
        batch: request.batch,
        mesh: plan.world,
        local_statistics: plan.local_statistics,
        bodies,
        class_of,
    })
}

/// About how many tasks a layer has.
const TASKS_OF_LAYER: usize = 5;

/// The bodies of ranks, or the error of the first one that has one.
fn on_cores_of(
    plan: &StepPlan<'_>,
    ranks: &[Rank],
    lower: &(dyn Fn(Rank) -> Result<Body, LowerError> + Sync),
) -> Result<Vec<Body>, LowerError> {
    let layers = plan.networks[0].0.layers.len() * plan.networks.len();
    let tasks = TASKS_OF_LAYER * layers * ranks.len();
    on_cores(ranks.len(), tasks, |at| lower(ranks[at]))
        .into_iter()
        .collect()
}

impl StepPlan<'_> {
    /// Whether the classes of ranks follow from what they hold, as all layers run on all ranks and micro-batches have one size.
    fn has_known_classes(&self) -> bool {
        self.placement.is_whole() && self.request.batch.is_multiple_of(self.networks.len())
    }

    /// The class of each rank, and the first rank of each. Micro-batches differ only in their samples.
    fn classes(&self) -> (Vec<u32>, Vec<Rank>) {
        let (network, storages) = &self.networks[0];
        let (kind, shard) = (self.request.kind, self.request.strategy.shard);
        classes(&self.world, network, storages, shard, kind)
    }
}

/// Lowers a single rank. Where layers run on some ranks only, or micro-batches have two sizes, message
/// numbers have gaps, which [`lower`] closes.
///
/// Errors: as [`lower`].
pub fn lower_rank(request: &Request<'_>, rank: Rank) -> Result<Body, LowerError> {
    let plan = StepPlan::new(request)?;
    lower_planned(request, &plan, rank, LoweringPass::Staging)
}

/// Lowers some ranks lazily, each as by [`lower_rank`].
///
/// Errors: as [`lower`].
pub fn lower_ranks<'a>(
    request: &'a Request<'a>,
    ranks: &'a [Rank],
) -> Result<impl Iterator<Item = Result<Body, LowerError>> + use<'a>, LowerError> {
    let plan = StepPlan::new(request)?;
    Ok(ranks
        .iter()
        .map(move |&rank| lower_planned(request, &plan, rank, LoweringPass::Staging)))
}

fn lower_planned(
    request: &Request<'_>,
    plan: &StepPlan<'_>,
    rank: Rank,
    last: LoweringPass,
) -> Result<Body, LowerError> {
    let mut emit = Emit::new(request, plan, rank);
    emit.persistent();
    match request.kind {
        ProgramKind::Fetch | ProgramKind::FetchSamples => emit.fetch(),
        ProgramKind::Train | ProgramKind::Evaluate | ProgramKind::Infer => emit.step(),
    }
    let strategy = request.strategy;
    let mut body = emit
        .builder
        .finish(strategy.fuse, strategy.workspace, last)?;
    if last >= LoweringPass::Arena {
        let is_live = strategy.workspace == WorkspaceLimit::Live;
        arena::plan(&mut body, &plan.world, is_live.then_some(request.menu))?;
    }
    if last >= LoweringPass::Staging {
        body.staging = Staging::of(&body, &plan.world);
    }
    Ok(body)
}
