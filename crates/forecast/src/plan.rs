//! `plan`: strategies for a number of ranks on a machine, ranked.

pub mod figures;
pub mod ties;

use crate::budget::MeasuringBudget;
use crate::explain::{self, Change, Explanation, Subject, simulated};
use crate::input::{Dataset, InputRequest, InputSource};
use crate::local_machine;
use crate::model;
use crate::pareto::pareto;
use crate::planning::PlanningError;
use crate::predict::{Epoch, EpochPrediction, OffloadRequest, PredictRequest, Sources};
use crate::search::Limits;
use crate::software::{self, Reserve};
use crate::target::{Platform, Target};
use crate::training::{
    StrategyChoice, Training, lower_to_predict, micro_note, request as lowering, sample_note,
};
use figures::Figures;
use partita_cluster::Software;
use partita_graph::Graph;
use partita_lower::{BatchNormStatistics, LowerError, Request, Setting, Strategy, lower_ranks};
use partita_oracle::{LayerPrecision, Prediction, Simulation, add_paths, precision};
use partita_plan::{RankedStrategy, Refusal};
use partita_program::{Body, Dtype, ProgramKind};
use partita_site::{Context, Event};
use partita_space::{Axis, Bytes, Help, Seconds};
use serde::{Serialize, Serializer};
use std::time::Instant;

/// Most ranks, and tasks of all programs, for which the best strategy is explained by default, which takes up to a
/// second.
const RANKS_EXPLAINED: usize = 1024;
const TASKS_EXPLAINED: usize = 20_000;

/// A training to plan on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// The training.
    pub training: Training,
    /// Name or path of a machine file; `here` is this machine, which is measured.
    pub machine: String,
    /// Name or path of a software profile.
    pub software: String,
    /// Statistics of batch norms (default: those of the software). Local ones change the result of the training.
    pub batch_norm: Option<BatchNormStatistics>,
    /// Where samples come from.
    pub input: InputRequest,
    /// Memory limit of a rank (default: that of the machine's device).
    pub memory: Option<Bytes>,
    /// Samples of the dataset that are validated, not trained on; they say the length of an epoch with those of `input`.
    pub validation_samples: usize,
    /// Time of the search, after which the best so far are returned (default: no limit).
    pub budget: Option<Seconds>,
    /// Predict more memory and more ranks for the best strategy, too.
    pub explain: bool,
    /// Whether slower strategies of less memory are looked for, too, down to the least that is possible.
    pub front: bool,
    /// Gather [`Planned::figures`].
    pub figures: bool,
    /// Whether predictions have the digests of their programs; a fifth of the time of a search goes there.
    pub digests: bool,
}

impl PlanRequest {
    /// A training on a machine with this software, without explanations and figures.
    pub fn new(training: Training, machine: &str) -> Self {
        Self {
            training,
            machine: machine.to_owned(),
            software: Software::OWN.to_owned(),
            batch_norm: None,
            input: InputRequest::default(),
            memory: None,
            validation_samples: 0,
            budget: None,
            explain: false,
            front: false,
            figures: false,
            digests: false,
        }
    }
}

/// All strategies that were considered.
pub struct Planned {
    /// Best first, then the refused ones.
    pub candidates: Vec<Candidate>,
    /// Name of the software.
    pub software: String,
    /// Says so if the software does not exist yet.
    pub not_built: Option<String>,
    /// Where samples come from.
    pub input: InputSource,
    /// The dataset, unless input is ignored or reads are measured.
    pub dataset: Option<Dataset>,
    /// Memory limit of a rank.
    pub memory: Bytes,
    /// Figures of the report, if requested.
    pub figures: Option<Figures>,
    /// Whether the front reaches down to the least memory that is possible.
    pub front: bool,
    /// Whether kernels are pinned; if the machine has no kernel catalog, they are open, and their workspace is
    /// not counted.
    pub kernels_pinned: bool,
    /// The error if no strategy fits.
    pub none_fits: Option<PlanningError>,
}

/// A strategy that was considered.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Its text.
    pub strategy: String,
    /// Name of the software.
    pub software: String,
    /// Where samples come from.
    pub input: InputSource,
    /// The dataset, unless input is ignored or reads are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Dataset>,
    /// Whether it is on the Pareto front of time and memory.
    pub front: bool,
    /// Its prediction, if it has a program.
    #[serde(flatten)]
    pub prediction: Option<Prediction>,
    /// Probability with which it is the fastest of those that fit; none for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability_fastest: Option<f64>,
    /// Whether it is within prediction error of the first one, which is itself; none where it does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie: Option<bool>,
    /// Why it is refused, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The refusal as text.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    pub refusal: Option<Refusal>,
    /// What bounds it; only for the best one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
    /// An epoch; only for the best one, if the samples of the dataset were said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochPrediction>,
}

#[allow(clippy::ref_option, reason = "serde passes references")]
fn word<S: Serializer>(refusal: &Option<Refusal>, serializer: S) -> Result<S::Ok, S::Error> {
    let word = refusal.map(|refusal| match refusal {
        Refusal::Memory(_) => "memory",
        Refusal::Slower => "slower",
        Refusal::Large => "large",
        Refusal::Untried => "untried",
        Refusal::Unsuited => "unsuited",
        Refusal::Unknown => "unknown",
    });
    word.serialize(serializer)
}

impl Planned {
    /// Candidates that fit, best first, with their predictions.
    pub fn fitting(&self) -> impl Iterator<Item = (&Candidate, &Prediction)> {
        let fitting = self.candidates.iter().filter(|one| one.reason.is_none());
        fitting.filter_map(|one| Some((one, one.prediction.as_ref()?)))
    }

    /// Number of candidates at the head of the ranking, the first included, that are within prediction error of the
    /// first.
    pub fn ties(&self) -> usize {
        let fitting = self.fitting();
        fitting.take_while(|(one, _)| one.tie == Some(true)).count()
    }
}

/// Ranks the strategies for a number of ranks, best first.
///
/// A cancelled context ends the search, and the best so far are returned.
///
/// Errors: no such model or machine; a cost that the machine lacks; a kernel that the catalog lacks; cancelled
/// before the first strategy was looked at.
///
/// ```
/// use partita_forecast::{InputRequest, PlanRequest, Training, plan};
/// use partita_site::{Context, Environment};
///
/// let mut request = PlanRequest::new(Training::new("cosmoflow@64", 4, 8), "lassen");
/// request.input = InputRequest::IGNORED;
/// let planned = plan(&Context::new(Environment::default()), &request)?;
/// let (best, prediction) = planned.fitting().next().expect("4 GPUs are enough");
/// assert!(best.strategy.starts_with("data=4"));
/// assert!(prediction.memory_bytes_max <= planned.memory);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(context: &Context, request: &PlanRequest) -> Result<Planned, PlanningError> {
    let begin = Instant::now();
    let training = &request.training;
    let ranks = training.ranks;
    let graph = model::resolve(&training.model)?;
    let names = (&*request.machine, &*request.software);
    let platform = Platform::resolve(context, names, ranks)?;
    let target = Target::new(
        context,
        &platform,
        (&graph, training),
        request.input,
        (request.memory, None),
        MeasuringBudget::of_search(request.budget),
    )?;
    let menu = target.machine.menu(ranks);
    // Settings of all candidates.
    let mut single = target.settings.clone();
    single.batch_norm = request.batch_norm.unwrap_or(single.batch_norm);
    let lowering = lowering(&graph, &single, training, ProgramKind::Train, &*menu);
    let memory = target.machine.memory(ranks);
    let warning = local_machine::sharing(ranks);
    if let Some(warning) = warning.filter(|_| target.machine.described().is_none()) {
        context.report(Event::Warning(&warning));
    }
    let limits = Limits {
        front: request.front,
        digests: request.digests,
        ..Limits::new(memory, request.budget)
    };
    let found = target.search(context, lowering, ranks, limits)?;
    let best = found.iter().find(|candidate| candidate.reason.is_none());
    note_micro(context, best, &graph);
    let costed = best.and_then(|best| Some((&best.strategy, best.prediction.as_ref()?)));
    let left = || {
        let of = |budget: Seconds| Seconds(budget.0 - begin.elapsed().as_secs_f64());
        request.budget.map(of)
    };
    let explained = costed.map(|(strategy, prediction)| {
        let training = Request {
            strategy,
            ..lowering
        };
        explain_best(
            context,
            (request, platform, &target),
            &left,
            training,
            prediction,
            &found,
        )
    });
    let (explanation, epoch) = explained.transpose()?.unzip();
    let of = request.figures.then_some((ranks, request.budget));
    let figures = of.map(|of| figures::gather(context, &target, lowering, of, &found));
    Ok(Planned {
        candidates: candidates(&found, &target, (explanation, epoch.flatten())),
        software: target.software.name.clone(),
        not_built: software::not_built(&target.software),
        input: target.input.source,
        dataset: target.input.dataset.clone(),
        memory,
        figures: figures.transpose()?,
        front: request.front,
        kernels_pinned: target.machine.pins_kernels(),
        none_fits: best.is_none().then(|| {
            let has_bf16 = target.has_precision(LayerPrecision::Bf16);
            let lowering = has_bf16.then_some(lowering);
            none_fits(&found, lowering, training, (memory, target.reserve))
        }),
    })
}

/// Says that micro-batches of the best strategy change the training, if they do.
fn note_micro(context: &Context, best: Option<&RankedStrategy>, graph: &Graph) {
    if let Some(note) = best.and_then(|best| micro_note(&best.strategy, graph, 1)) {
        context.report(Event::Note(&note));
    }
}

/// What bounds the best strategy, and an epoch under it; none where the samples of the dataset were not said.
fn explain_best(
    context: &Context,
    (request, platform, target): (&PlanRequest, Platform, &Target<'_>),
    left: &dyn Fn() -> Option<Seconds>,
    training: Request<'_>,
    prediction: &Prediction,
    found: &[RankedStrategy],
) -> Result<(Explanation, Option<EpochPrediction>), PlanningError> {
    // The recommended program is verified, of a very large one some classes.
    let program = lower_to_predict(&training)?;
    if let Some(note) = sample_note(&program) {
        context.report(Event::Note(&note));
    }
    let own = target.machine.costs(&program)?;
    let own = own.as_ref();
    let mut simulation = simulated(&program, own)?;
    let subject = Subject {
        training,
        program: &program,
        prediction,
        memory: target.reserve.room(target.machine.memory(prediction.ranks)),
        own,
        costs: &|program| target.machine.costs(program),
        is_late: &|| context.is_cancelled() || left().is_some_and(|left| left <= Seconds(0.0)),
    };
    let asked = (request, target);
    let explanation = explained(context, asked, left, (&subject, &simulation), found)?;
    if request.input.dataset_samples.is_none() {
        return Ok((explanation, None));
    }
    add_paths(&program, own, &mut simulation)?;
    let step = Prediction::of(&program, &simulation, false);
    let strategy = StrategyChoice::Given(training.strategy.clone());
    let request = PredictRequest {
        settings: Setting::ALL.to_vec(),
        software: request.software.clone(),
        input: request.input,
        memory: request.memory,
        offload: Some(OffloadRequest::none(request.validation_samples)),
        ..PredictRequest::new(request.training.clone(), strategy, &request.machine)
    };
    let epoch = Epoch::new(&request, training.graph)?;
    let sources = Sources {
        graph: training.graph,
        platform,
        layer_times: None,
    };
    let epoch = epoch.map(|epoch| epoch.predict(context, &request, &sources, &step));
    Ok((explanation, epoch.transpose()?))
}

/// The error if no strategy fits, with advice. `lowering` is of programs that may be in bf16.
fn none_fits(
    found: &[RankedStrategy],
    lowering: Option<Request<'_>>,
    asked: &Training,
    (memory, reserve): (Bytes, Reserve),
) -> PlanningError {
    let (ranks, batch) = (asked.ranks, asked.batch);
    let needed = |one: &RankedStrategy| Some(one.memory_needed()? + reserve.total());
    let needs = found.iter().filter_map(|one| Some((needed(one)?, one)));
    let least = needs.min_by_key(|&(needed, _)| needed);
    let in_half = || {
        let needed = in_half(lowering?, &least?.1.strategy)? + reserve.total();
        (needed <= memory).then(|| {
            let needed = shown(needed);
            format!("with `--precision bf16` that strategy fits, it takes about {needed}")
        })
    };
    let text =
        least.map(|(needed, one)| format!("{} of memory, with `{}`", shown(needed), one.strategy));
    let is_untried = |one: &&RankedStrategy| one.refusal == Some(Refusal::Untried);
    let untried = found.iter().filter(is_untried).count();
    let remedy = if reserve.room(memory) == Bytes(0) {
        let more = text.map_or("more memory".to_owned(), |least| {
            format!("at least {least}")
        });
        Help::advice(format_args!(
            "context and workspace of the software alone take {}",
            reserve.total()
        ))
        .nearest(more)
    } else if untried > 0 {
        return PlanningError::NoneFound {
            ranks,
            memory,
            batch,
            looked: found.len() - untried,
            untried,
        };
    } else if let Some(least) = text {
        let smaller = if batch > 1 { ", a smaller batch" } else { "" };
        let is_large = |one: &&RankedStrategy| one.refusal == Some(Refusal::Large);
        let help = match found.iter().find(is_large) {
            Some(large) => Help::advice(format_args!(
                "`partita predict` tells whether `{}` fits, whose program is too large for a search",
                large.strategy
            )),
            None => in_half().map_or(Help::none(), Help::advice),
        };
        help.nearest(format_args!("more ranks{smaller} or at least {least}"))
    } else {
        // Samples can always be split if there are enough.
        Help::advice(format_args!(
            "none splits the model and {batch} sample(s) so; the nearest batch that suits is {}, the nearest number \
             of ranks {}",
            batch.max(ranks),
            batch.min(ranks)
        ))
    };
    PlanningError::NoneFits {
        ranks,
        memory,
        batch,
        remedy,
    }
}

/// What a strategy needs on some ranks with activations in bf16, if it is not half a precision already.
fn in_half(lowering: Request<'_>, strategy: &Strategy) -> Option<Bytes> {
    let request = Request {
        strategy,
        dtype: Dtype::Bf16,
        ..lowering
    };
    let mesh = strategy.mesh();
    let ranks = [0, mesh.middle(), mesh.ranks() - 1];
    let bodies = match lowering.dtype {
        Dtype::F32 => lower_ranks(&request, &ranks).ok()?,
        Dtype::F64 | Dtype::Bf16 | Dtype::F16 | Dtype::I16 => return None,
    };
    let need =
        |body: Result<Body, LowerError>| Some(precision::memory(&body.ok()?, LayerPrecision::Bf16));
    let needs: Option<Vec<Bytes>> = bodies.map(need).collect();
    needs?.into_iter().max()
}

/// A size as it is shown, but never rounded to less.
fn shown(bytes: Bytes) -> Bytes {
    let mut unit = 1;
    while bytes.0 / unit >= 1024 {
        unit *= 1024;
    }
    Bytes(bytes.0 + unit / 100)
}

/// Candidates in the same order; the first one gets the explanation.
fn candidates(
    found: &[RankedStrategy],
    target: &Target<'_>,
    (mut explanation, mut epoch): (Option<Explanation>, Option<EpochPrediction>),
) -> Vec<Candidate> {
    let fitting = found.iter().filter(|one| one.reason.is_none());
    let costed = fitting.filter_map(|one| Some((&one.strategy, one.prediction.as_ref()?)));
    let costed: Vec<(&Strategy, &Prediction)> = costed.collect();
    let front = pareto(&costed, |(_, prediction)| {
        (prediction.memory_bytes_max, prediction.iteration_seconds)
    });
    let mut sureness = ties::sureness(costed.iter().map(|(_, prediction)| *prediction)).into_iter();
    let candidate = |one: &RankedStrategy| {
        let sure = match one.reason {
            None => sureness.next(),
            Some(_) => None,
        };
        Candidate {
            strategy: one.strategy.to_string(),
            software: target.software.name.clone(),
            input: target.input.source,
            dataset: target.input.dataset.clone(),
            front: front.iter().any(|(strategy, _)| **strategy == one.strategy),
            prediction: one.prediction.clone(),
            probability_fastest: sure.map(|sure| sure.probability_fastest),
            tie: sure.map(|sure| sure.is_tie),
            reason: one.reason.clone(),
            refusal: one.refusal,
            explanation: one.reason.is_none().then(|| explanation.take()).flatten(),
            epoch: one.reason.is_none().then(|| epoch.take()).flatten(),
        }
    };
    found.iter().map(candidate).collect()
}

/// What bounds the best strategy, and its rival; of what changes would bring, what begins before a budget is used up.
fn explained(
    context: &Context,
    (request, target): (&PlanRequest, &Target<'_>),
    left: &dyn Fn() -> Option<Seconds>,
    (subject, simulation): (&Subject<'_, '_>, &Simulation),
    found: &[RankedStrategy],
) -> Result<Explanation, PlanningError> {
    let Subject {
        training,
        program,
        is_late,
        ..
    } = subject;
    let ranks = request.training.ranks;
    let mut explanation = Explanation::new(explain::findings(subject, simulation)?);
    let tasks = program.tasks();
    let is_small = ranks <= RANKS_EXPLAINED && tasks <= TASKS_EXPLAINED;
    let is_cheap = is_small && target.machine.described().is_some();
    if !is_cheap && !request.explain || is_late() {
        return Ok(explanation);
    }
    explanation.what_ifs = explain::changes(subject)?;
    // How large its program is, is known of a strategy that was simulated.
    let tasks_of_class = tasks / program.bodies.len().max(1);
    let is_cheap = |one: &RankedStrategy| {
        let prediction = one.prediction.as_ref();
        let tasks = prediction.map(|prediction| prediction.classes * tasks_of_class);
        request.explain || tasks.is_some_and(|tasks| tasks <= TASKS_EXPLAINED)
    };
    let rival = rival_of(training.strategy, found, &is_cheap);
    if let Some(rival) = rival.filter(|_| !is_late()) {
        explanation.rival = explain::rival(subject, &rival)?;
    }
    if request.explain && !is_late() {
        let more_memory = with_memory(context, target, subject, found, left())?;
        explanation.what_ifs.extend(more_memory);
    }
    if request.explain && !is_late() {
        explanation.scaling = Some(explain::scaling(subject)?);
    }
    Ok(explanation)
}

/// The first strategy of another kind among those that may have been the fastest and are cheap to look at. One for
/// which no bucket was looked for has that of the best.
fn rival_of(
    best: &Strategy,
    found: &[RankedStrategy],
    is_cheap: &dyn Fn(&RankedStrategy) -> bool,
) -> Option<Strategy> {
    let is_possible = |one: &RankedStrategy| match one.refusal {
        None => true,
        Some(Refusal::Slower) => one.strategy.stages.is_empty() || one.strategy.has_layers(),
        Some(
            Refusal::Memory(_)
            | Refusal::Large
            | Refusal::Untried
            | Refusal::Unsuited
            | Refusal::Unknown,
        ) => false,
    };
    let possible = found.iter().filter(|one| is_possible(one) && is_cheap(one));
    let mut others = possible.filter(|one| kind(&one.strategy) != kind(best));
    others.next().map(|one| {
        let mut strategy = one.strategy.clone();
        if one.refusal.is_some() {
            strategy.bucket = best.bucket;
        }
        strategy
    })
}

/// What a strategy splits: samples, space, filters, channels, branches, layers.
fn kind(strategy: &Strategy) -> [bool; 6] {
    let splits = |axes: &[Axis]| axes.iter().any(|&axis| strategy.extent(axis) > 1);
    [
        splits(&[Axis::Data]),
        splits(&[Axis::Depth, Axis::Height, Axis::Width]),
        splits(&[Axis::Filter]),
        splits(&[Axis::Channel]),
        splits(&[Axis::Branch]),
        !strategy.stages.is_empty(),
    ]
}

/// The best strategy with twice the memory, if a refused one would then fit.
fn with_memory(
    context: &Context,
    target: &Target<'_>,
    subject: &Subject<'_, '_>,
    found: &[RankedStrategy],
    budget: Option<Seconds>,
) -> Result<Option<Change>, PlanningError> {
    let memory = target.machine.memory(subject.prediction.ranks) * 2;
    let room = target.reserve.room(memory);
    let would_fit = |one: &RankedStrategy| one.memory_needed().is_some_and(|needed| needed <= room);
    let strategy = subject.training.strategy;
    let now = subject.prediction;
    let then = if found.iter().any(would_fit) {
        let limits = Limits::new(memory, budget);
        target.search(context, subject.training, now.ranks, limits)?
    } else {
        Vec::new()
    };
    let best = then.into_iter().find(|one| one.reason.is_none());
    let best = best.filter(|best| best.strategy != *strategy);
    let best = best.and_then(|best| Some((best.strategy, best.prediction?)));
    // A search with a budget may not have come to the present strategy.
    let best = best.filter(|(_, then)| then.iteration_seconds < now.iteration_seconds);
    Ok(Some(match best {
        Some((other, prediction)) => {
            let says = format!("{memory} a rank, with `{other}`");
            explain::change("device_memory", &other, &prediction, now, says)
        }
        None => {
            let says = format!("{memory} a rank, with the same strategy");
            explain::change("device_memory", strategy, now, now, says)
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_site::Environment;
    use partita_site::Progress;
    use partita_site::{ErrorKind, Fault};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Cancels at the first candidate that is announced.
    struct Impatient(Arc<AtomicBool>);

    impl Progress for Impatient {
        fn report(&self, _event: Event<'_>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_cancelled_search_returns_the_best_so_far() {
        let mut request = PlanRequest::new(Training::new("cosmoflow@32", 4, 4), "lassen");
        request.input = InputRequest::IGNORED;
        let cancel: Arc<AtomicBool> = Arc::default();
        let impatient = Arc::new(Impatient(Arc::clone(&cancel)));
        let context = Context::watched(Environment::default(), impatient, cancel);
        let planned = plan(&context, &request).unwrap();
        assert!(planned.fitting().next().is_some());
        let untried = planned.candidates.iter();
        let untried = untried.filter(|one| one.refusal == Some(Refusal::Untried));
        assert!(untried.count() > 10);
        // Cancelled before, there is nothing.
        let error = plan(&context, &request).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    }
}
