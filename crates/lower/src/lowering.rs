//! From what is asked for to the program of every rank.

use crate::arena;
use crate::classes::{by_bodies, classes};
use crate::emit::Emit;
use crate::network_text::text_of;
use crate::passes::LoweringPass;
use crate::request::{LowerError, Request};
use crate::step_plan::{StepPlan, network};
use partita_program::{Body, Program, ProgramKind, Staging};
use partita_space::Rank;

/// Lowers a model under a strategy to the program of every rank.
///
/// Errors: a strategy that does not fit the model or the mini-batch, a kernel that the menu lacks, sizes
/// beyond [`partita_space::limits`].
pub fn lower(request: &Request<'_>) -> Result<Program, LowerError> {
    let program = lower_until(request, LoweringPass::Stage)?;
    program.check_sizes().map_err(LowerError::Uncountable)?;
    Ok(program)
}

/// What stands after a pass: the network with its distributions after [`LoweringPass::LayOut`], and a
/// program's text after the others. After the last it is the text of [`lower`].
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
        | LoweringPass::Stage => Ok(lower_until(request, pass)?.to_text()),
    }
}

/// What the passes up to one make.
fn lower_until(request: &Request<'_>, last: LoweringPass) -> Result<Program, LowerError> {
    let plan = StepPlan::new(request)?;
    let lower_planned = |rank| lower_planned(request, &plan, rank, last);
    let is_like = request.batch.is_multiple_of(plan.networks.len());
    let (bodies, class_of) = if plan.placement.is_whole() && is_like {
        // Micro-batches differ in nothing but their samples.
        let (network, storages) = &plan.networks[0];
        let (kind, shard) = (request.kind, request.strategy.shard);
        let (class_of, ranks) = classes(&plan.world, network, storages, shard, kind);
        let ranks = ranks.into_iter();
        let bodies: Result<Vec<Body>, LowerError> = ranks.map(lower_planned).collect();
        (bodies?, class_of)
    } else {
        by_bodies(&plan.world, plan.is_even(), &lower_planned)?
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
        bodies,
        class_of,
    })
}

/// Lowers one rank alone, whatever its class. Where layers run on some ranks only, or micro-batches are of
/// two sizes, numbers of exchanges and collectives have gaps, which [`lower`] closes.
///
/// Errors: as [`lower`].
pub fn lower_rank(request: &Request<'_>, rank: Rank) -> Result<Body, LowerError> {
    let plan = StepPlan::new(request)?;
    lower_planned(request, &plan, rank, LoweringPass::Stage)
}

/// Some ranks one after the other, each lowered as by [`lower_rank`] when it is asked for.
///
/// Errors: as [`lower`].
pub fn lower_ranks<'a>(
    request: &'a Request<'a>,
    ranks: &'a [Rank],
) -> Result<impl Iterator<Item = Result<Body, LowerError>> + use<'a>, LowerError> {
    let plan = StepPlan::new(request)?;
    Ok(ranks
        .iter()
        .map(move |&rank| lower_planned(request, &plan, rank, LoweringPass::Stage)))
}

/// Ranks of one class give equal bodies.
fn lower_planned(
    request: &Request<'_>,
    plan: &StepPlan,
    rank: Rank,
    last: LoweringPass,
) -> Result<Body, LowerError> {
    let mut emit = Emit::new(request, plan, rank);
    emit.persistent();
    match request.kind {
        ProgramKind::Fetch => emit.fetch(),
        ProgramKind::Train | ProgramKind::Evaluate => emit.step(),
    }
    let mut body = emit.builder.finish(request.strategy.fuse, last)?;
    if last >= LoweringPass::Arena {
        arena::plan(&mut body)?;
    }
    if last >= LoweringPass::Stage {
        body.staging = Staging::of(&body, &plan.world);
    }
    Ok(body)
}
