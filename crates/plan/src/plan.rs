use crate::bound::compute_bound;
use crate::candidates::hybrids;
use partita_lower::{LowerError, Request, Strategy, lower};
use partita_oracle::Prediction;
use partita_program::{Program, Role};
use partita_space::{Bytes, Flops, FlopsPerSecond, Seconds};

/// Why the time of a program is not known, in words for people.
type Unknown = String;

/// Says how long a program takes.
pub type Cost<'a> = dyn Fn(&Program) -> Result<Prediction, Unknown> + 'a;

/// What to plan.
pub struct PlanRequest<'a> {
    /// The training; its strategy is replaced by each candidate in turn.
    pub training: Request<'a>,
    /// Ranks to use, all of them.
    pub ranks: usize,
    /// Memory that a rank may fill.
    pub memory: Bytes,
    /// A rate of arithmetic that no kernel exceeds; none where nothing is known, so that no candidate
    /// is passed over without being costed.
    pub rate_max: Option<FlopsPerSecond>,
    /// How long a program takes.
    pub cost: &'a Cost<'a>,
    /// Told the candidate at hand, and how many are left.
    pub progress: &'a dyn Fn(&Strategy, usize),
}

/// What became of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The strategy.
    pub strategy: Strategy,
    /// What the oracle says of it; absent where it was refused.
    pub prediction: Option<Prediction>,
    /// Why it was refused, and what would help; absent where it was not.
    pub reason: Option<String>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No candidate is left.
    #[error(
        "no strategy fits {ranks} rank(s) with {memory} each for batch {batch}; the nearest is \
         `{nearest}`: {reason}"
    )]
    NoneFits {
        /// As asked for.
        ranks: usize,
        /// As asked for.
        memory: Bytes,
        /// As asked for.
        batch: usize,
        /// The refused strategy that lacks least.
        nearest: Box<Strategy>,
        /// What it lacks.
        reason: String,
        /// All refused candidates.
        refused: Vec<Candidate>,
    },
    /// A kernel is missing, whatever the strategy.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

impl Candidate {
    fn refused(strategy: Strategy, reason: String) -> Self {
        Self {
            strategy,
            prediction: None,
            reason: Some(reason),
        }
    }

    /// Seconds of a step; none where it was refused.
    pub fn seconds(&self) -> Option<Seconds> {
        let prediction = self.prediction.as_ref();
        prediction.map(|prediction| prediction.iteration_seconds)
    }

    /// Why it is as fast as it is, or why it was refused.
    pub fn explanation(&self) -> &str {
        match (&self.reason, &self.prediction) {
            (Some(reason), _) => reason,
            (None, Some(prediction)) => &prediction.bottleneck,
            (None, None) => "",
        }
    }
}

/// How near a refused candidate is to being possible; the smaller, the nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    /// Of memory.
    Memory(Bytes),
    /// Of something that more memory does not mend.
    Other,
}

/// Ranks every way of splitting the training: those that fit, shortest step first, then those refused.
///
/// A candidate is refused where the strategy does not suit the model or the mini-batch, where the
/// largest rank needs more memory than it may fill, where a cost is not known, or where the flops of
/// its busiest rank ([`compute_bound`]) at [`PlanRequest::rate_max`] already take longer than the best
/// candidate found. The cheaper test comes first; only what passes all is costed.
/// Errors: no candidate fits, or the menu lacks a kernel.
pub fn plan(request: &PlanRequest<'_>) -> Result<Vec<Candidate>, PlanError> {
    let training = &request.training;
    let mut refused: Vec<(Lack, Candidate)> = Vec::new();
    let mut open: Vec<(Flops, Strategy)> = Vec::new();
    for strategy in hybrids(request.ranks, training.graph.spatial_rank) {
        match strategy.check(training.graph, training.batch) {
            Ok(()) => open.push((
                compute_bound(training.graph, &strategy, training.batch),
                strategy,
            )),
            Err(error) => {
                let candidate = Candidate::refused(strategy, error.to_string());
                refused.push((Lack::Other, candidate));
            }
        }
    }
    // What can be fast comes first, so that the rest is passed over early; equals keep their order.
    open.sort_by_key(|(flops, _)| *flops);
    let mut costed: Vec<Candidate> = Vec::new();
    let mut best: Option<(Seconds, Strategy)> = None;
    let total = open.len();
    for (index, (flops, strategy)) in open.into_iter().enumerate() {
        if let Some(reason) = beaten(request, flops, best) {
            refused.push((Lack::Other, Candidate::refused(strategy, reason)));
            continue;
        }
        (request.progress)(&strategy, total - index);
        match weigh(request, strategy)? {
            Ok(prediction) => {
                let seconds = prediction.iteration_seconds;
                if best.is_none_or(|(least, _)| seconds < least) {
                    best = Some((seconds, strategy));
                }
                costed.push(Candidate {
                    strategy,
                    prediction: Some(prediction),
                    reason: None,
                });
            }
            Err((lack, reason)) => refused.push((lack, Candidate::refused(strategy, reason))),
        }
    }
    refused.sort_by_key(|(lack, _)| *lack);
    if costed.is_empty() {
        return Err(none_fits(request, refused));
    }
    let seconds = |candidate: &Candidate| candidate.seconds().map_or(f64::INFINITY, |s| s.0);
    costed.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    costed.extend(refused.into_iter().map(|(_, candidate)| candidate));
    Ok(costed)
}

/// Why a candidate cannot beat the best one.
fn beaten(
    request: &PlanRequest<'_>,
    flops: Flops,
    best: Option<(Seconds, Strategy)>,
) -> Option<String> {
    let (rate, (least, strategy)) = (request.rate_max?, best?);
    let bound = Seconds(flops.0 as f64 / rate.0);
    (bound > least).then(|| {
        format!(
            "its busiest rank computes at least {bound}, longer than a whole step of `{strategy}` \
             ({least}); not costed further"
        )
    })
}

/// The prediction of a strategy that suits the model, or what it lacks.
fn weigh(
    request: &PlanRequest<'_>,
    strategy: Strategy,
) -> Result<Result<Prediction, (Lack, String)>, PlanError> {
    let training = Request {
        strategy,
        ..request.training
    };
    let program = match lower(&training) {
        Ok(program) => program,
        Err(LowerError::Strategy(error)) => return Ok(Err((Lack::Other, error.to_string()))),
        Err(error @ (LowerError::Menu(_) | LowerError::MixedPadding { .. })) => {
            return Err(error.into());
        }
    };
    let needed = program.memory_max();
    if needed > request.memory {
        let reason = memory_reason(&program, request.memory);
        return Ok(Err((Lack::Memory(needed), reason)));
    }
    Ok((request.cost)(&program).map_err(|unknown| (Lack::Other, unknown)))
}

/// What is needed, what there is, what it is needed for, what would help.
fn memory_reason(program: &Program, memory: Bytes) -> String {
    let needed = program.memory_max();
    let largest = program.bodies.iter().max_by_key(|body| body.arena);
    let of = |roles: &[Role]| -> Bytes {
        let bodies = largest.into_iter();
        bodies
            .flat_map(|body| roles.iter().map(|&role| body.bytes_of(role)))
            .sum()
    };
    let activations = of(&[
        Role::Activation,
        Role::ActivationGradient,
        Role::Staging,
        Role::Statistics,
        Role::Workspace,
    ]);
    let parameters = of(&[
        Role::Parameter,
        Role::State,
        Role::Optimizer,
        Role::Gradient,
    ]);
    let remedy = if activations >= parameters {
        "more ranks along depth, height or width, more ranks along data, or a smaller batch would \
         lower the first"
    } else {
        "plain gradient descent keeps less beside each parameter than Adam; no split of samples \
         lowers the second"
    };
    format!(
        "the largest rank needs {needed}, it may fill {memory}; its activations come to \
         {activations}, its parameters with all that belongs to them to {parameters}: {remedy}"
    )
}

fn none_fits(request: &PlanRequest<'_>, refused: Vec<(Lack, Candidate)>) -> PlanError {
    let refused: Vec<Candidate> = refused
        .into_iter()
        .map(|(_, candidate)| candidate)
        .collect();
    let nearest = refused.first();
    PlanError::NoneFits {
        ranks: request.ranks,
        memory: request.memory,
        batch: request.training.batch,
        nearest: Box::new(nearest.map_or_else(Strategy::single, |one| one.strategy)),
        reason: nearest
            .and_then(|one| one.reason.clone())
            .unwrap_or_default(),
        refused,
    }
}
