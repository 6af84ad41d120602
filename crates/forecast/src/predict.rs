//! `predict`: time and memory of a step on a machine, and what bounds them.

mod epoch;

pub use epoch::{Epoch, EpochPrediction, OffloadRequest};

use crate::budget::MeasuringBudget;
use crate::compute_scale::ComputeScale;
use crate::explain::{self, Explanation, Subject, simulated};
use crate::input::{Dataset, InputRequest, InputSource, IoChoice};
use crate::layer_times::{LayerScale, LayerTimes};
use crate::local_machine;
use crate::model;
use crate::planning::PlanningError;
use crate::search::staged;
use crate::software;
use crate::target::{DescribedMachine, Platform, Target};
use crate::training::{
    Lowered, StrategyChoice, Training, lowered_to_predict, micro_note, request as lowering,
    sample_note,
};
use partita_cluster::Software;
use partita_graph::Graph;
use partita_lower::{Request, Setting};
use partita_oracle::{Prediction, add_paths};
use partita_plan::{ClosedForm as Form, FixedCosts, closed_form};
use partita_program::{Menu, ProgramKind};
use partita_site::Context;
use partita_site::kernel_set::KernelSet;
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// A training to predict on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictRequest {
    /// The training.
    pub training: Training,
    /// Training step, evaluation or inference.
    pub kind: ProgramKind,
    /// The strategy; `Auto` is refused.
    pub strategy: StrategyChoice,
    /// Settings that the strategy gives even where they are the usual ones; the others follow the software.
    pub settings: Vec<Setting>,
    /// Name or path of a machine file; `here` is this machine, which is measured.
    pub machine: String,
    /// Name or path of a software profile.
    pub software: String,
    /// Where samples come from.
    pub input: InputRequest,
    /// Kernels to pin in the program; `None` leaves them open.
    pub kernels: Option<KernelSet>,
    /// Memory limit of a rank (default: that of the machine's device).
    pub memory: Option<Bytes>,
    /// Measured time of forward and backward computation of a sample on one device, by which modeled kernels are
    /// scaled; not with `here`, where kernels are measured.
    pub seconds_per_sample: Option<Seconds>,
    /// A table of layers' measured times on one device, by which modeled layers are scaled; not with `here` either.
    pub layer_times: Option<PathBuf>,
    /// Predict every task, as a comparison with a trace needs it.
    pub tasks: bool,
    /// Predict changes of the machine, twice the batch and more ranks, too.
    pub explain: bool,
    /// Loaders and validators, with which an epoch is predicted.
    pub offload: Option<OffloadRequest>,
}

impl PredictRequest {
    /// A training on a machine with this software, without tasks and explanations.
    pub fn new(training: Training, strategy: StrategyChoice, machine: &str) -> Self {
        Self {
            training,
            kind: ProgramKind::Train,
            strategy,
            settings: Vec::new(),
            machine: machine.to_owned(),
            software: Software::OWN.to_owned(),
            input: InputRequest::default(),
            kernels: None,
            memory: None,
            seconds_per_sample: None,
            layer_times: None,
            tasks: false,
            explain: false,
            offload: None,
        }
    }
}

/// A prediction with its request.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// Name of the model.
    pub model: String,
    /// Training step, evaluation or inference.
    pub kind: ProgramKind,
    /// The strategy, with the layers of all stages.
    pub strategy: String,
    /// Name of the machine.
    pub machine: String,
    /// Name of the software.
    pub software: String,
    /// Says so if the software does not exist yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_built: Option<String>,
    /// Where samples come from.
    pub input: InputSource,
    /// The dataset, unless input is ignored or reads are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Dataset>,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// Memory limit of a rank.
    pub memory_bytes_device: Bytes,
    /// Whether input time is ignored.
    pub no_io: bool,
    /// How modeled computation is scaled, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_scale: Option<ComputeScale>,
    /// How modeled layers are scaled, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<LayerScale>,
    /// Estimates of the closed forms of the strategy, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_form: Option<ClosedForm>,
    /// The prediction.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// What bounds it.
    pub explanation: Explanation,
    /// An epoch with loaders and validators, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochPrediction>,
}

/// The estimate of a closed form.
#[derive(Clone, Debug, Serialize)]
pub struct ClosedForm {
    /// The kind of parallelism.
    pub strategy: &'static str,
    /// Time of a step.
    pub seconds: Seconds,
    /// Compute time.
    pub compute_seconds: Seconds,
    /// Communication time.
    pub communication_seconds: Seconds,
    /// Memory of a rank.
    pub memory_bytes: Bytes,
}

/// Predicts time and memory of a step.
///
/// Errors: no such model or machine; an invalid strategy; a missing cost.
///
/// ```
/// use partita_forecast::{InputRequest, PredictRequest, Training, predict};
/// use partita_site::{Context, Environment};
///
/// let training = Training::new("cosmoflow@64", 4, 8);
/// let mut request = PredictRequest::new(training, "data=2,depth=2".parse()?, "lassen");
/// request.input = InputRequest::IGNORED;
/// let predicted = predict(&Context::new(Environment::default()), &request)?;
/// assert!(predicted.prediction.iteration_seconds.0 > 0.0);
/// assert!(predicted.prediction.memory_bytes_max <= predicted.memory_bytes_device);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn predict(context: &Context, request: &PredictRequest) -> Result<Predicted, PlanningError> {
    let graph = model::resolve(&request.training.model)?;
    let epoch = Epoch::new(request, &graph)?;
    let mut request = request.clone();
    if request.offload.is_some_and(|it| it.loaders > 0) {
        request.input.choice = Some(IoChoice::Loaders);
    }
    let sources = Sources::read(context, &request, &graph)?;
    let mut predicted = step(context, &request, &sources)?;
    if let Some(epoch) = epoch {
        let step = &predicted.prediction;
        predicted.epoch = Some(epoch.predict(context, &request, &sources, step)?);
    }
    Ok(predicted)
}

/// What a request names. It is read once, for a prediction may have several steps, and files may be pipes.
pub struct Sources<'g> {
    /// The model.
    pub graph: &'g Graph,
    /// The machine and its software.
    pub platform: Platform,
    /// Measured times of layers.
    pub layer_times: Option<LayerTimes>,
}

impl<'g> Sources<'g> {
    /// Errors: as [`Platform::resolve`]; times of layers that cannot be read, or for a machine that is measured.
    fn read(
        context: &Context,
        request: &PredictRequest,
        graph: &'g Graph,
    ) -> Result<Self, PlanningError> {
        let names = (&*request.machine, &*request.software);
        let platform = Platform::resolve(context, names, request.training.ranks)?;
        let (seconds, table) = (request.seconds_per_sample, request.layer_times.as_deref());
        if platform.machine.is_none() {
            match (seconds, table) {
                (Some(seconds), _) => return Err(PlanningError::MeasuredHere(seconds)),
                (None, Some(_)) => return Err(PlanningError::LayersMeasuredHere),
                (None, None) => {}
            }
        }
        Ok(Self {
            graph,
            platform,
            layer_times: table.map(LayerTimes::read).transpose()?,
        })
    }
}

/// Predicts a step alone.
fn step(
    context: &Context,
    request: &PredictRequest,
    sources: &Sources<'_>,
) -> Result<Predicted, PlanningError> {
    let (training, graph) = (&request.training, sources.graph);
    let budget = match &request.strategy {
        StrategyChoice::Auto(_) => MeasuringBudget::default(),
        StrategyChoice::Given(_) => MeasuringBudget::unlimited(),
    };
    let target = Target::new(
        context,
        &sources.platform,
        (graph, training),
        request.input,
        (request.memory, request.kernels),
        budget,
    )?;
    let strategy = match &request.strategy {
        StrategyChoice::Auto(statistics) => StrategyChoice::Auto(*statistics),
        StrategyChoice::Given(strategy) => {
            let strategy = strategy.clone();
            StrategyChoice::Given(strategy.with_settings_of(&target.settings, &request.settings))
        }
    };
    let menu = target.machine.menu(training.ranks);
    let subject = (graph, training, &strategy);
    let table = sources.layer_times.as_ref();
    let (target, scales) = scaled(target, (request.seconds_per_sample, table), subject, &*menu)?;
    let memory = target.machine.memory(training.ranks);
    let room = target.reserve.room(memory);
    let lowered = lowered_to_predict(subject, &*menu, request.kind, &|lowering| {
        staged(context, lowering, room, &*target.machine)
    })?;
    let (program, ranks) = (&lowered.program, training.ranks);
    if target.machine.described().is_none() && program.memory_max() > memory {
        return Err(PlanningError::TooLarge {
            strategy: Box::new(lowered.strategy),
            needed: program.memory_max(),
            memory,
            ranks,
        });
    }
    answer(request, graph, &lowered, (&target, &*menu), scales)
}

/// Factors of modeled computation and of modeled layers.
type Scales = (Option<ComputeScale>, Option<LayerScale>);

/// The target with modeled times scaled by measured ones, where they are given.
///
/// Errors: a table that does not suit the model.
fn scaled<'c>(
    mut target: Target<'c>,
    (seconds, table): (Option<Seconds>, Option<&LayerTimes>),
    subject: (&Graph, &Training, &StrategyChoice),
    menu: &dyn Menu,
) -> Result<(Target<'c>, Scales), PlanningError> {
    let Some(described) = target.machine.described_mut() else {
        return Ok((target, (None, None)));
    };
    let scale = |seconds| ComputeScale::of(seconds, subject, menu, &*described.costs);
    let compute = seconds.map(scale).transpose()?;
    if let Some(scale) = &compute {
        described.costs = scale.scaled(Arc::clone(&described.costs));
    }
    let scale = |table: &LayerTimes| table.scale(subject, menu, &*described.costs);
    let layers = table.map(scale).transpose()?;
    if let Some(scale) = &layers {
        described.costs = scale.scaled(Arc::clone(&described.costs));
    }
    Ok((target, (compute, layers)))
}

/// The estimate of the closed form of a training step on a described machine. On a measured one the kernels of a single
/// rank would have to be measured too.
fn closed(
    target: &Target<'_>,
    training: &Request<'_>,
) -> Result<Option<ClosedForm>, PlanningError> {
    let described = target.machine.described();
    let Some(described) = described.filter(|_| training.kind == ProgramKind::Train) else {
        return Ok(None);
    };
    let form = closed_form(training, &FixedCosts(&*described.costs))?;
    Ok(form.map(|Form { split, estimate }| ClosedForm {
        strategy: split.name(),
        seconds: estimate.seconds(),
        compute_seconds: estimate.compute,
        communication_seconds: estimate.communication,
        memory_bytes: estimate.memory,
    }))
}

fn answer(
    request: &PredictRequest,
    graph: &Graph,
    lowered: &Lowered,
    (target, menu): (&Target<'_>, &dyn Menu),
    (compute_scale, layer_scale): Scales,
) -> Result<Predicted, PlanningError> {
    let (program, strategy) = (&lowered.program, &lowered.strategy);
    let (ranks, kind) = (program.mesh.ranks(), request.kind);
    let training = lowering(graph, strategy, &request.training, kind, menu);
    let closed_form = closed(target, &training)?;
    let memory = target.machine.memory(ranks);
    let costs = target.machine.costs(program)?;
    let mut simulation = simulated(program, costs.as_ref())?;
    add_paths(program, costs.as_ref(), &mut simulation)?;
    let mut prediction = Prediction::of(program, &simulation, request.tasks);
    prediction.digest = Some(program.digest());
    let subject = Subject {
        training,
        program,
        prediction: &prediction,
        memory: target.reserve.room(memory),
        own: costs.as_ref(),
        costs: &|program| target.machine.costs(program),
        is_late: &|| false,
    };
    let mut explanation = Explanation::new(explain::findings(&subject, &simulation)?);
    if request.explain {
        explanation.what_ifs = explain::changes(&subject)?;
        explanation.scaling = Some(explain::scaling(&subject)?);
    }
    let sharing = match target.machine.described() {
        Some(_) => None,
        None => local_machine::sharing(ranks),
    };
    prediction.limits.splice(0..0, sharing);
    if kind == ProgramKind::Train {
        prediction.limits.extend(micro_note(strategy, graph, 1));
    }
    prediction.limits.extend(sample_note(program));
    target.reserve.add_to(&mut prediction);
    if prediction.memory_bytes_max > memory {
        prediction.limits.insert(0, misfit(&prediction, memory));
    }
    let described = target.machine.described();
    let idle =
        |it: &DescribedMachine| software::idle_adapters(&target.software, &it.machine, ranks);
    prediction.limits.extend(described.and_then(idle));
    Ok(Predicted {
        model: graph.name.clone(),
        kind,
        strategy: strategy.to_string(),
        machine: target.machine.name().to_owned(),
        software: target.software.name.clone(),
        not_built: software::not_built(&target.software),
        input: target.input.source,
        dataset: target.input.dataset.clone(),
        batch: program.batch,
        memory_bytes_device: memory,
        no_io: target.input.source == InputSource::Ignored,
        compute_scale,
        layer_scale,
        closed_form,
        prediction,
        explanation,
        epoch: None,
    })
}

fn misfit(prediction: &Prediction, device_memory: Bytes) -> String {
    let memory = &prediction.memory;
    let software = memory.context + memory.library_workspace;
    let of_weights = memory.weights + memory.optimizer + memory.gradients;
    let remedy = if software > device_memory {
        format!("context and workspace of the software alone take {software}, so no strategy fits.")
    } else if software + of_weights > device_memory {
        format!(
            "weights, their gradients and the optimizer take {of_weights} of it: split them by `shard=parameters`, \
             filters, channels or stages."
        )
    } else {
        "split a sample over more ranks or lower the batch.".to_owned()
    };
    format!(
        "It does not fit: the largest rank needs {}, its device has {device_memory}; {remedy}",
        prediction.memory_bytes_max
    )
}
