//! `predict`: time and memory of a step on a machine, and what bounds them.

mod epoch;

pub use epoch::{EpochPrediction, OffloadRequest};

use crate::compute_scale::ComputeScale;
use crate::context::Context;
use crate::explain::{self, CostsOf, Explanation, Subject, simulated};
use crate::input::{Dataset, Input, InputRequest, InputSource};
use crate::kernel_set::{KernelSet, menu_of};
use crate::layer_times::{LayerScale, LayerTimes};
use crate::local_machine::{self, LocalMachine, Ranks};
use crate::machine;
use crate::model;
use crate::planner::{check_measured, costs};
use crate::planning::PlanningError;
use crate::search::{staged, staged_local};
use crate::software::{self, Reserve};
use crate::training::{
    Lowered, StrategyChoice, Training, given, lower_verified, lowered, micro_note,
    request as lowering,
};
use partita_cluster::Software;
use partita_lower::{Request, Setting, Strategy};
use partita_oracle::{Costs, Prediction, ScaledCosts, Simulation, SpeedFactors, add_paths};
use partita_plan::{ClosedForm as Form, FixedCosts, closed_form};
use partita_program::{Menu, Program, ProgramKind};
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::path::PathBuf;

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
    /// Predict every task, as [`compare`](crate::compare()) needs it.
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

/// The machine of a prediction.
struct OnMachine<'a> {
    name: &'a str,
    /// Memory limit of a rank.
    memory: Bytes,
    software: &'a str,
    input: Input,
    /// Memory of a rank beside the program.
    reserve: Reserve,
    costs: &'a CostsOf<'a>,
    kernels: &'a dyn Menu,
}

/// Predicts time and memory of a step.
///
/// Errors: no such model or machine; an invalid strategy; a missing cost.
///
/// ```
/// use partita::{Context, Environment, InputRequest, PredictRequest, Training, predict};
///
/// let training = Training::new("cosmoflow@64", 4, 8);
/// let mut request = PredictRequest::new(training, "data=2,depth=2".parse()?, "lassen");
/// request.input = InputRequest::IGNORED;
/// let predicted = predict(&Context::new(Environment::default()), &request)?;
/// assert!(predicted.prediction.iteration_seconds.0 > 0.0);
/// assert!(predicted.prediction.memory_bytes_max <= predicted.memory_bytes_device);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn predict(
    context: &Context<'_>,
    request: &PredictRequest,
) -> Result<Predicted, PlanningError> {
    match request.offload {
        None => step(context, request),
        Some(offload) => epoch::predict_epoch(context, request, offload),
    }
}

/// Predicts a step alone.
fn step(context: &Context<'_>, request: &PredictRequest) -> Result<Predicted, PlanningError> {
    if machine::is_local(&request.machine) {
        check_measured(request.training.precision)?;
        software::check_local(&request.software)?;
        return match (request.seconds_per_sample, &request.layer_times) {
            (Some(seconds), _) => Err(PlanningError::MeasuredHere(seconds)),
            (None, Some(_)) => Err(PlanningError::LayersMeasuredHere),
            (None, None) => predict_locally(context, request),
        };
    }
    let machine = machine::resolve(&request.machine, context.environment())?;
    machine::check_capacity(&machine, request.training.ranks)?;
    let graph = model::resolve(&request.training.model)?;
    let (software, settings) =
        software::resolve(&request.software, Some(&machine), context.environment())?;
    let settings = software::settings_for(settings, &graph);
    let request = &with_settings(request, &settings);
    let on = (&machine, &software);
    let input = Input::new(&graph, &request.training, on, request.input)?;
    let costs = costs(on, input.source, request.training.precision)?;
    let memory = request.memory.unwrap_or(machine.device.memory.value);
    let reserve = Reserve::new(&software, &machine).keeping(input.kept);
    let kernels = machine::kernels(&machine, request.kernels);
    let menu = menu_of(kernels, local_machine::THREADS, context.level());
    let subject = (&request.training, &request.strategy);
    let scale = |seconds| ComputeScale::of(seconds, subject, &*menu, costs.as_ref());
    let compute_scale = request.seconds_per_sample.map(scale).transpose()?;
    let costs = match &compute_scale {
        Some(scale) => scale.scaled(costs),
        None => costs,
    };
    let table = request.layer_times.as_deref().map(LayerTimes::read);
    let scale = |table: LayerTimes| table.scale(subject, &*menu, costs.as_ref());
    let layer_scale = table.transpose()?.map(scale).transpose()?;
    let costs = match &layer_scale {
        Some(scale) => scale.scaled(costs),
        None => costs,
    };
    let lowered = lowered(
        &request.training,
        &request.strategy,
        &*menu,
        request.kind,
        &|lowering| staged(context, lowering, reserve.room(memory), costs.as_ref()),
    )?;
    let on = OnMachine {
        name: &machine.name,
        memory,
        software: &software.name,
        input,
        reserve,
        costs: &|_| {
            Ok(Box::new(ScaledCosts::new(
                costs.as_ref(),
                SpeedFactors::default(),
            )))
        },
        kernels: &*menu,
    };
    let closed = closed(&on, request, &lowered, costs.as_ref())?;
    let mut predicted = answer(request, &lowered, &on, closed)?;
    let idle = software::idle_adapters(&software, &machine, request.training.ranks);
    predicted.prediction.limits.extend(idle);
    Ok(Predicted {
        not_built: software::not_built(&software),
        compute_scale,
        layer_scale,
        ..predicted
    })
}

/// A request whose strategy has the settings of the software.
fn with_settings(request: &PredictRequest, settings: &Strategy) -> PredictRequest {
    let strategy = match &request.strategy {
        StrategyChoice::Auto(statistics) => StrategyChoice::Auto(*statistics),
        StrategyChoice::Given(strategy) => {
            let strategy = strategy.clone();
            StrategyChoice::Given(strategy.with_settings_of(settings, &request.settings))
        }
    };
    PredictRequest {
        strategy,
        ..request.clone()
    }
}

fn closed(
    on: &OnMachine<'_>,
    request: &PredictRequest,
    lowered: &Lowered,
    costs: &dyn Costs,
) -> Result<Option<ClosedForm>, PlanningError> {
    if request.kind != ProgramKind::Train {
        // The forms are those of training steps.
        return Ok(None);
    }
    let training = training(on.kernels, request, lowered);
    let form = closed_form(&training, &FixedCosts(costs)).map_err(PlanningError::ClosedForm)?;
    Ok(form.map(|Form { split, estimate }| ClosedForm {
        strategy: split.name(),
        seconds: estimate.seconds(),
        compute_seconds: estimate.compute,
        communication_seconds: estimate.communication,
        memory_bytes: estimate.memory,
    }))
}

fn training<'r>(
    kernels: &'r dyn Menu,
    request: &PredictRequest,
    lowered: &'r Lowered,
) -> Request<'r> {
    let (graph, strategy) = (&lowered.graph, &lowered.strategy);
    lowering(graph, strategy, &request.training, request.kind, kernels)
}

/// As [`predict`], from measurements of this machine, with pinned kernels.
fn predict_locally(
    context: &Context<'_>,
    request: &PredictRequest,
) -> Result<Predicted, PlanningError> {
    let training = &request.training;
    let (ranks, threads) = (training.ranks, local_machine::THREADS);
    let kernels = local_machine::kernels(request.kernels);
    kernels.check_devices()?;
    let menu = context.menu(kernels, &Ranks::threads(ranks, threads));
    let graph = model::resolve(&training.model)?;
    let strategy = given(&graph, &request.strategy, training, request.kind)?;
    let step = lowering(&graph, &strategy, training, request.kind, &*menu);
    let memory = request.memory;
    let memory = memory.unwrap_or_else(|| local_machine::memory_of(context, kernels, ranks));
    let threaded = Ranks::threads(ranks, threads);
    let strategy = staged_local(context, &step, memory, kernels, threaded)?;
    let program = lower_verified(&Request {
        strategy: &strategy,
        ..step
    })?;
    if program.memory_max() > memory {
        return Err(PlanningError::TooLarge {
            strategy: Box::new(strategy),
            needed: program.memory_max(),
            memory,
            ranks,
        });
    }
    let input = Input::local(request.input);
    let costs = |program: &Program| -> Result<Box<dyn Costs>, PlanningError> {
        let ranks = program.mesh.ranks();
        let mut here = LocalMachine::new(context, kernels, ranks, threads, input.source)?;
        Ok(Box::new(here.costs(program)?))
    };
    let lowered = Lowered {
        strategy,
        program,
        graph: graph.clone(),
    };
    let on = OnMachine {
        name: local_machine::NAME,
        memory,
        software: Software::OWN,
        input: input.clone(),
        reserve: Reserve::default(),
        costs: &costs,
        kernels: &*menu,
    };
    // The kernels of a single rank would have to be measured too.
    answer(request, &lowered, &on, None)
}

fn answer(
    request: &PredictRequest,
    lowered: &Lowered,
    on: &OnMachine<'_>,
    closed_form: Option<ClosedForm>,
) -> Result<Predicted, PlanningError> {
    let program = &lowered.program;
    let costs = (on.costs)(program)?;
    let mut simulation = simulated(program, costs.as_ref())?;
    add_paths(program, costs.as_ref(), &mut simulation)?;
    let mut prediction = Prediction::of(program, &simulation, request.tasks);
    let own = (costs.as_ref(), &simulation);
    let explanation = explained(request, lowered, on, &prediction, own)?;
    if on.name == local_machine::NAME {
        let warning = local_machine::sharing(program.mesh.ranks());
        prediction.limits.splice(0..0, warning);
    }
    if request.kind == ProgramKind::Train {
        let note = micro_note(&lowered.strategy, &lowered.graph);
        prediction.limits.extend(note);
    }
    on.reserve.add_to(&mut prediction);
    if prediction.memory_bytes_max > on.memory {
        let misfit = misfit(&prediction, on.memory);
        prediction.limits.insert(0, misfit);
    }
    Ok(Predicted {
        model: lowered.graph.name.clone(),
        kind: request.kind,
        strategy: lowered.strategy.to_string(),
        machine: on.name.to_owned(),
        software: on.software.to_owned(),
        not_built: None,
        input: on.input.source,
        dataset: on.input.dataset.clone(),
        batch: program.batch,
        memory_bytes_device: on.memory,
        no_io: on.input.source == InputSource::Ignored,
        compute_scale: None,
        layer_scale: None,
        closed_form,
        prediction,
        explanation,
        epoch: None,
    })
}

fn explained(
    request: &PredictRequest,
    lowered: &Lowered,
    on: &OnMachine<'_>,
    prediction: &Prediction,
    (own, simulation): (&dyn Costs, &Simulation),
) -> Result<Explanation, PlanningError> {
    let subject = Subject {
        training: training(on.kernels, request, lowered),
        program: &lowered.program,
        prediction,
        memory: on.reserve.room(on.memory),
        own,
        costs: on.costs,
        is_late: &|| false,
    };
    let mut explanation = Explanation::new(explain::findings(&subject, simulation)?);
    if request.explain {
        explanation.what_ifs = explain::changes(&subject)?;
        explanation.scaling = Some(explain::scaling(&subject)?);
    }
    Ok(explanation)
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
