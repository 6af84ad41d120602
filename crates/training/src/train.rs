//! `train`: from a run file to trained weights, with what was predicted and measured.

mod check;
mod checkpoint;
mod choose;
mod class_weights;
mod convert;
mod crops;
mod curve;
mod divergence;
mod early_stopping;
mod ending;
mod ensemble;
mod error;
mod evaluate;
mod forward;
mod infer;
mod joined;
mod machine;
mod measured;
mod memory;
mod metrics;
mod offload;
mod output;
mod per_sample;
mod preparation;
mod programs;
mod ranks;
mod record;
mod results;
mod run;
mod run_file;
mod section;
mod start;
mod statistics;
mod store;
#[cfg(test)]
mod tests;
mod tiles;
mod tiling;
mod trainer;
mod trials;
mod utilization;
mod weights;

pub use checkpoint::{
    BestMetric, CheckpointConfig, LastCheckpoint, ResumeError, ResumeFrom, TrainingState,
};
pub use convert::{ConvertRequest, ConvertResult, convert_weights};
pub use early_stopping::{EarlyStopping, EndRules, Target};
pub use error::{AutoError, Mismatch, OutputError, TrainError};
pub use evaluate::{EvaluateResult, evaluate, evaluate_on};
pub use forward::{ForwardRequest, VolumeMode};
pub use infer::{InferRequest, InferResult, PredictionUnits, infer, infer_on};
pub use metrics::MetricsFormat;
pub use offload::{LISTENING, OffloadConfig, OffloadError, Processes, ServeRequest, serve};
pub use per_sample::SampleResult;
pub use preparation::SampleOptions;
pub use record::{
    BestResult, ClassResult, Classification, EndReason, EndedEarly, EpochResult, MemoryResult,
    PhysicalError, ResultFiles, RunResult, TargetError, TargetResult, TaskResult, ValidationResult,
};
pub use run::{PredictionChoice, TrainRequest};
pub use run_file::{LiveTuning, RunFile, StartWeights, TrainConfig};
pub use section::RunFileError;
pub use store::{StoreConfig, StoreError, StoreKind};
pub use tiling::{TilesAsked, TilesResult};
pub use trainer::{TrainData, Trainer};
pub use utilization::{ComputeTimes, Peak, Utilization};
pub use weights::WeightTensor;

use crate::weights::LoadedWeights;
use checkpoint::{BestFile, Checkpoints, Resume};
use curve::LossCurve;
use joined::JoinedValidation;
use machine::named_machine;
use memory::MemoryLimit;
use metrics::{ClassNames, Metrics};
use offload::Offload;
use output::{Output, RunSize};
use partita_data::order::epoch_samples;
use partita_data::{Dataset, Split, TargetRecord};
use partita_forecast::{
    DescribedMachine, InputSource, MeasuredMachine, MeasuringBudget, StrategyChoice, TargetMachine,
    accumulating, launched, micro_note, model, search, signatures,
};
use partita_formats::DType;
use partita_graph::Graph;
use partita_input::{
    Accepted, DataRecord, HyperslabSource, Loading, Preprocessing, Sampling, Waker,
};
use partita_lower::Strategy;
use partita_oracle::{Costs, Prediction};
use partita_program::Menu;
use partita_run::{Footprint, RunError, Source};
use partita_session::{EpochReport, Plan, Position, Session};
use partita_site::kernel_set::oversubscription;
use partita_site::launch::{Launch, LaunchError, Listener, MemoryBaseline};
use partita_site::{Context, Event, Host, Ranks};
use partita_space::{Bytes, Mesh, Rank};
use preparation::buffer_bytes;
use results::{Finished, pretty};
use run::Run;
use statistics::KeptSteps;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use trainer::EpochCallback;
use trials::PinnedKernels;
use utilization::UtilizationScale;
use weights::WeightSink;

/// Training steps whose traces are kept.
const TRACES_KEPT: usize = 20;

/// A run that came to its end.
#[derive(Debug)]
pub struct Trained {
    /// Title of its program.
    pub program: String,
    /// Its result, as written.
    pub result: RunResult,
    /// Its weights where there is no output folder, in the order of weight files; else they are in a file.
    pub weights: Vec<WeightTensor>,
    /// Why files are not where they were asked for, if so. The run is complete all the same.
    pub misplaced: Option<TrainError>,
}

/// Trains: checks everything, runs the ranks, and writes the results to `output` of the run file.
///
/// Under a launcher this process is one rank of many, and all but that of rank 0 get no result; else all
/// ranks are threads of this process.
///
/// Errors: a run that cannot be, found before any rank starts; a failure of a rank, the first cause; a stop,
/// after which nothing of the run is left.
pub fn train(context: &Context, request: &TrainRequest) -> Result<Option<Trained>, TrainError> {
    let launch = run::join(context, &request.run_file, request.cores.as_deref())?;
    let trainer = RunFile::read(&request.run_file).map(|file| Trainer::of_run_file(file, request));
    let trained = trainer
        .map_err(TrainError::from)
        .and_then(|trainer| train_with(&launch, &trainer));
    trained.map_err(|error| launch.shut_down(error))
}

/// The dataset; tells other files that it reads.
fn opened(launch: &Launch<'_>, run: &Run, trainer: &Trainer) -> Result<Dataset, TrainError> {
    let dataset = trainer.data.open(&run.keys())?;
    if launch.is_first() {
        run.note_external(launch.context(), &dataset)?;
    }
    Ok(dataset)
}

fn train_with(launch: &Launch<'_>, trainer: &Trainer) -> Result<Option<Trained>, TrainError> {
    let context = launch.context();
    let mut run = trainer.run(launch)?;
    launch.set_limit(run.watchdog)?;
    let graph = adapted(&run)?;
    let dataset = opened(launch, &run, trainer)?.ignoring(check::ignored(&graph));
    let resume = resume(launch, &mut run, trainer, (&graph, &dataset))?;
    let sampling = crops::sampling(&run, &graph, &dataset)?;
    check_request(launch, &run, &graph, (&dataset, &sampling))?;
    let (start, dataset) = start::of_run(launch, &run, (&graph, dataset), resume.as_ref())?;
    let from = (resume.as_ref(), start.as_ref());
    let stored = run.samples.dtype(dataset.dtype());
    let (limit, crowded) = limits(launch, &run);
    let (machine, of_machine) = named_machine(context, &run)?;
    let room = store::room(&run, &dataset, limit.bytes);
    let menu = launch.menu_anew(run.rank_config(), Resume::kernels(resume.as_ref()))?;
    let model = &graph;
    let budget = Arc::new(choose::measuring_budget(&run, &sampling));
    let by = (machine.as_ref(), &budget);
    let choose = |beside| chosen(launch, (&run, by), model, stored, (room, beside));
    let strategy = choose(Bytes(0))?;
    let micro = micro_note(&strategy, &graph, run.accumulate);
    let new = [crowded, micro, of_machine, trainer.left_out()];
    let mut warnings = warnings(launch, resume.as_ref(), new);
    let [training, validation] = run.samples(&sampling);
    let all = sampling.samples(Split::Train);
    let order = |epoch| epoch_samples(run.seed, epoch, all, training);
    let ends = |epochs: &[EpochReport]| run.ends.end(epochs).is_some();
    let samples = (&graph, &dataset, sampling);
    let (graph, preprocessing) = checked(launch, &run, samples, from, &mut warnings)?;
    let samples = (&graph, &dataset, &preprocessing);
    let joined = JoinedValidation::prepare(launch, &run, samples)?;
    let (groups, loss) = JoinedValidation::needs(joined.as_ref(), run.ranks);
    let limit = limit.beside(loss);
    let prepare = |strategy: &Strategy, menu: &dyn Menu| {
        launch.prepare(|| {
            let kinds = programs::kinds(training, validation, &groups);
            let programs = programs::programs(&run, menu, &graph, strategy, stored, &kinds)?;
            let plan = plan(&run, samples, &order, &ends, groups.clone());
            let session = checkpoint::fitting(Session::new(programs, plan)?, resume.as_ref())?;
            within(&run, strategy, samples, session, &limit)
        })
    };
    let fit = |strategy: &Strategy| prepare(strategy, &*menu);
    let (strategy, session) = choose::fitting(launch, (&run, model), strategy, choose, fit)?;
    let with = (&strategy, stored, start.as_ref());
    let tried = |menu: &dyn Menu| prepare(&strategy, menu);
    let (session, kernels) = trials::tried(launch, &run, samples, with, (menu, session), tried)?;
    let epoch = first_epoch(resume.as_ref());
    let loading = store::prepare(launch, &run, samples, &session, epoch, &limit)?;
    launch.check_agreement(|| identity(&run, &session, &preprocessing))?;
    let offload = Offload::start(launch, &run, (trainer.run_file(), &strategy), samples)?;
    let task = Task {
        launch,
        run: &run,
        graph: &graph,
        dataset: &dataset,
        preprocessing: &preprocessing,
        session: &session,
        kernels: &kernels,
        loading: &loading,
        costs: machine.as_ref().map(|machine| &*machine.costs),
        budget: &budget,
        resume: resume.as_ref(),
        start: start.as_ref(),
        offload: &offload,
        joined: joined.as_ref(),
        record: &data_record(&run, samples),
        on_epoch: trainer.on_epoch.as_ref(),
    };
    trained(run_session(&task, &strategy, warnings)?, &session)
}

/// The memory of a rank, and a warning if there are more threads than cores.
fn limits(launch: &Launch<'_>, run: &Run) -> (MemoryLimit, Option<String>) {
    let host = Host::local(launch.context().level());
    let (local, cores) = launch.local(run.ranks, &host);
    let limit = MemoryLimit::of_rank(run, &host, local);
    (limit, oversubscription(local, run.threads, cores))
}

/// The strategy of a run, for what is left of the memory of a rank beside other things.
fn chosen(
    launch: &Launch<'_>,
    (run, (machine, budget)): (&Run, (Option<&DescribedMachine>, &Arc<MeasuringBudget>)),
    graph: &Graph,
    stored: DType,
    (room, beside): (Bytes, Bytes),
) -> Result<Strategy, TrainError> {
    let measures = machine.is_none() && run.has_open_strategy();
    let room = Bytes(room.0.saturating_sub(beside.0));
    let context = launch.context();
    launched::choose_strategy(launch, run.rank_config(), measures, |here| {
        strategy(context, run, graph, stored, room, (here, machine, budget))
    })
}

/// A session whose ranks have the memory for it.
fn within<'s>(
    run: &Run,
    strategy: &Strategy,
    (graph, dataset, preprocessing): (&Graph, &Dataset, &Preprocessing),
    session: Session<'s>,
    limit: &MemoryLimit,
) -> Result<Session<'s>, TrainError> {
    let buffers = |rank| buffers(run, (dataset, preprocessing), &session, rank);
    limit.check((run, graph, strategy), &session, &buffers)?;
    Ok(session)
}

/// Saves the results of a run, on the rank that has them.
fn trained(
    finished: Option<Finished<'_>>,
    session: &Session<'_>,
) -> Result<Option<Trained>, TrainError> {
    let Some(mut finished) = finished else {
        return Ok(None);
    };
    let saved = finished.save()?;
    Ok(Some(Trained {
        weights: std::mem::take(&mut finished.weights.tensors),
        program: session.main_program().title.clone(),
        result: saved.result.clone(),
        misplaced: saved.misplaced(),
    }))
}

/// Memory of a rank beside its program: buffers of its reading thread, and copies for validators.
fn buffers(
    run: &Run,
    (dataset, preprocessing): (&Dataset, &Preprocessing),
    session: &Session<'_>,
    rank: Rank,
) -> Bytes {
    let program = session.main_program();
    let copies = run.offload.copies(program.body(rank));
    buffer_bytes(preprocessing, dataset.dtype(), program, rank) + copies
}

/// The plan of a training with the validation samples of a sampling.
fn plan<'s>(
    run: &Run,
    (graph, _, preprocessing): (&Graph, &Dataset, &Preprocessing),
    order: &'s (dyn Fn(u64) -> Vec<usize> + Sync),
    ends: &'s (dyn Fn(&[EpochReport]) -> bool + Sync),
    groups: Vec<Range<usize>>,
) -> Plan<'s> {
    let sampling = &preprocessing.sampling;
    let first = sampling.first_sample(Split::Validation);
    Plan {
        epochs: run.epochs as u64,
        batch: run.batch,
        seed: run.seed,
        schedule: run.schedule.clone(),
        loss_scaling: run.loss_scaling,
        training_order: order,
        validation: (first..first + sampling.samples(Split::Validation)).collect(),
        groups,
        divided: programs::divided(graph),
        sample_dice: run.needs_sample_dice(),
        ends,
        traces_kept: TRACES_KEPT,
    }
}

/// The model with the loss and the frozen layers of the run file.
fn adapted(run: &Run) -> Result<Graph, TrainError> {
    let refused = |error| TrainError::Loss(Box::new(error));
    let graph = run.model.graph()?.clone();
    let graph = match &run.loss {
        None => {
            model::check_loss(run.model.name(), &graph)?;
            graph
        }
        Some(loss) => graph.with_loss(loss).map_err(refused)?,
    };
    let refused = |error| TrainError::Freeze(Box::new(error));
    graph
        .with_frozen(&run.freeze, run.freeze_statistics)
        .map_err(refused)
}

/// The model with its weights of classes, the preparation of samples, and a look at the data with it.
fn checked(
    launch: &Launch<'_>,
    run: &Run,
    (graph, dataset, sampling): (&Graph, &Dataset, Sampling),
    (resume, start): (Option<&Resume>, Option<&LoadedWeights>),
    warnings: &mut Vec<String>,
) -> Result<(Graph, Preprocessing), TrainError> {
    let read = [Split::Train, Split::Validation];
    crops::note_padding(launch, graph, &sampling, &read);
    check::note_frozen_norms(launch, run, graph);
    let host = Host::local(launch.context().level());
    let sampling = crops::on_foreground(launch, run, dataset, sampling, &host)?;
    let kept = KeptSteps::of_start(run, resume, start);
    let (preparation, differ) =
        statistics::of_training(launch, run, dataset, &host, kept.as_ref())?;
    warnings.extend(report(launch, differ.into_iter().collect()));
    let preprocessing = Preprocessing {
        sampling,
        preparation,
    };
    let found = check::data(launch, run, graph, (dataset, &preprocessing), &host)?;
    warnings.extend(report(launch, found));
    let graph = class_weights::of_training(launch, run, (graph.clone(), dataset), resume)?;
    Ok((graph, preprocessing))
}

/// Warnings of the checkpoint and new ones, which the first rank reports.
fn warnings(launch: &Launch<'_>, resume: Option<&Resume>, new: [Option<String>; 4]) -> Vec<String> {
    let mut warnings = resume.map_or_else(Vec::new, |resume| resume.warnings.clone());
    if launch.is_first() {
        warnings.extend(new.into_iter().flatten());
    }
    report(launch, warnings)
}

/// Reports warnings on the first rank.
fn report(launch: &Launch<'_>, warnings: Vec<String>) -> Vec<String> {
    if launch.is_first() {
        let report = |warning: &String| launch.context().report(Event::Warning(warning));
        warnings.iter().for_each(report);
    }
    warnings
}

/// A run with all that it needs.
struct Task<'r, 's> {
    launch: &'r Launch<'r>,
    run: &'r Run,
    graph: &'r Graph,
    dataset: &'r Dataset,
    preprocessing: &'r Preprocessing,
    session: &'r Session<'s>,
    kernels: &'r PinnedKernels,
    /// Samples in memory, and the counts of what is loaded.
    loading: &'r Loading,
    /// Of a machine file, if the run names one.
    costs: Option<&'r dyn Costs>,
    /// Time for measurements before the run.
    budget: &'r Arc<MeasuringBudget>,
    /// The checkpoint from which it resumes.
    resume: Option<&'r Resume>,
    /// Weights to start from, if the run file names some.
    start: Option<&'r LoadedWeights>,
    /// Its loaders and validators.
    offload: &'r Offload,
    /// What weights and checkpoints keep of the data.
    record: &'r DataRecord,
    /// What validates by tiles, if the run does.
    joined: Option<&'r JoinedValidation>,
    /// Called with the results of each epoch.
    on_epoch: Option<&'r EpochCallback>,
}

/// Finds, opens and checks the checkpoint from which a run resumes, if it does.
fn resume(
    launch: &Launch<'_>,
    run: &mut Run,
    trainer: &Trainer,
    (graph, dataset): (&Graph, &Dataset),
) -> Result<Option<Resume>, TrainError> {
    let from = &trainer.request.resume;
    let path = launch.choose(|| checkpoint::find(run, from).map_err(TrainError::from))?;
    let Some(path) = path else {
        run.begins_anew = *from == ResumeFrom::Auto;
        return Ok(None);
    };
    run.is_resumed = true;
    let mut now = checkpoint::identity(run, graph, dataset, "");
    now.data_record.targets = target_record(graph, dataset);
    let found = Resume::open(&path, graph, &now)?;
    let position = &found.state.position;
    let mut text = format!(
        "resuming from {} (step {}, epoch {})",
        path.display(),
        position.updates,
        position.epoch + 1
    );
    if position.epoch >= run.epochs as u64 {
        let epochs = position.epoch;
        text = format!(
            "{} has all {epochs} epochs, so nothing is left to train; raise `epochs` to train on",
            path.display()
        );
    } else if let Some(end) = run
        .ends
        .end(&position.epochs)
        .filter(|_| position.done == 0)
    {
        text = format!(
            "{}: the training ended {end}, so nothing is left to train; change or omit that key to train on",
            path.display()
        );
    }
    if launch.is_first() {
        launch.context().report(Event::Note(&text));
    }
    Ok(Some(found))
}

/// What weights and checkpoints keep of the data.
fn data_record(run: &Run, (graph, dataset, preprocessing): offload::Samples<'_>) -> DataRecord {
    DataRecord {
        preparation: Some(run.samples.applied(&preprocessing.preparation)),
        targets: target_record(graph, dataset),
        voxels: dataset.voxel_record(Split::Train),
        channels: dataset.channels(),
        features: check::feature_names(graph, dataset),
        class_weights: graph.inverse_frequency().unwrap_or_default().to_vec(),
    }
}

/// What the outputs of a model stand for, if its targets are of the kind of the dataset's.
fn target_record(graph: &Graph, dataset: &Dataset) -> Option<TargetRecord> {
    let is_alike = check::classes(graph).is_some() == dataset.labels().is_some();
    is_alike.then(|| dataset.target_record())
}

/// The epoch in which a run begins, from 0.
fn first_epoch(resume: Option<&Resume>) -> u64 {
    resume.map_or(0, |resume| resume.state.position.epoch)
}

/// Programs and plan, by which ranks make sure that they run the same.
fn identity(run: &Run, session: &Session<'_>, preprocessing: &Preprocessing) -> String {
    let digests: Vec<String> = session.programs().map(|program| program.digest()).collect();
    format!(
        "programs {}, {} epochs, seed {}, {:?}, {:?}, {:?}, {:?}, {:?}",
        digests.join(" "),
        run.epochs,
        run.seed,
        run.schedule,
        preprocessing,
        run.store,
        run.ends,
        run.drop_last
    )
}

/// What can be checked before a strategy is chosen.
fn check_request(
    launch: &Launch<'_>,
    run: &Run,
    graph: &Graph,
    (dataset, sampling): (&Dataset, &Sampling),
) -> Result<(), TrainError> {
    let environment = launch.context().environment();
    check::dataset_fits(run, graph, dataset, sampling)?;
    check::batch_fits(run, sampling)?;
    check::schedule_fits(run, dataset)?;
    check::metric_fits(run, graph, dataset)?;
    check::output_fits(run, environment)?;
    programs::check_given(run, graph, Some(sampling))?;
    if launch.is_first() && run.output.is_some() {
        output::check(run, RunSize::of_model(graph, run), environment)?;
    }
    Ok(())
}

/// The strategy of a run: as given, which is checked before, or chosen.
fn strategy(
    context: &Context,
    run: &Run,
    graph: &Graph,
    stored: DType,
    memory: Bytes,
    (here, described, budget): (Ranks, Option<&DescribedMachine>, &Arc<MeasuringBudget>),
) -> Result<Strategy, TrainError> {
    let strategy = match &run.strategy {
        StrategyChoice::Auto(statistics) => {
            // Chosen for one part, which all parts of an update repeat.
            let part = Run {
                batch: run.batch / run.accumulate,
                ..run.clone()
            };
            let (part, by) = ((&part, *statistics), (here, described));
            let one = choose::choose_strategy(context, part, graph, stored, memory, by, budget)?;
            let all = accumulating(one, run.accumulate);
            all.check(graph, run.batch)?;
            return Ok(all);
        }
        StrategyChoice::Given(strategy) => strategy,
    };
    let menu = context.menu(run.kernels, &here);
    let request = programs::request(run, graph, strategy, stored, &*menu);
    let input = InputSource::Ignored;
    let by = (run.kernels, here);
    let measured = MeasuredMachine::new(context, by, input, None, Arc::clone(budget));
    let machine = described.map_or(&measured as &dyn TargetMachine, |machine| machine);
    Ok(search::staged(context, &request, memory, machine)?)
}

/// Runs the session. The process of rank 0 gets what came of it.
fn run_session<'r>(
    task: &Task<'r, '_>,
    strategy: &Strategy,
    mut warnings: Vec<String>,
) -> Result<Option<Finished<'r>>, TrainError> {
    let (launch, run, session) = (task.launch, task.run, task.session);
    let context = launch.context();
    let environment = context.environment();
    if context.is_cancelled() {
        return Err(LaunchError::Interrupted.into());
    }
    let prediction = predict(task)?;
    context.report(Event::Writing);
    let text = prediction.as_ref().map(pretty).transpose()?;
    let output = open_output(task, text.as_deref())?;
    let baseline = MemoryBaseline::set();
    let (samples, epoch) = ((task.preprocessing, task.loading), first_epoch(task.resume));
    store::fill(launch, run, samples, epoch)?;
    let curve = Arc::new(Mutex::new(task.curve()));
    let checkpoints = task.checkpoints(strategy, &curve)?;
    warnings.extend(begin_checkpoints(launch, checkpoints.as_ref()));
    let scale = task.scale();
    let metrics = open_metrics(task, output.as_ref(), &scale)?;
    let mut sink = WeightSink::new(launch, run, session, task.record, output);
    let listener = listener(context, run, session, (metrics.as_ref(), &curve));
    let (results, lost) = task.offload.while_reporting(context, || {
        ranks::run(task, checkpoints.as_ref(), listener, baseline, &mut sink)
    });
    if let Some(checkpoints) = checkpoints.as_ref().filter(|_| launch.is_first()) {
        checkpoints.clean();
    }
    let last = checkpoints.as_ref().and_then(Checkpoints::last);
    let Some((outcomes, usage)) = results? else {
        return Ok(None);
    };
    ending::refuse_early(task, &outcomes, (&curve, checkpoints.as_ref()))?;
    let compute = ComputeTimes::of(session.main_program(), &outcomes);
    let fault = metrics.and_then(|metrics| metrics.finish(compute.as_ref()));
    let late = fault
        .into_iter()
        .chain(ending::no_update(run, &outcomes[0]));
    let late = late.inspect(|warning| context.report(Event::Warning(warning)));
    let warnings = warnings.into_iter().chain(lost).chain(late).collect();
    let Some(weights) = sink.saved() else {
        return Ok(None);
    };
    Ok(Some(Finished {
        run,
        scale,
        environment,
        strategy: strategy.to_string(),
        targets: task.dataset.targets(),
        record: task.record.targets.as_ref(),
        preparation: run.samples.applied(&task.preprocessing.preparation),
        program: session.main_program(),
        kernels: task.kernels,
        footprints: footprints(task),
        snapshots: checkpoint::snapshots(run, session),
        loading: task.loading,
        usage,
        outcomes,
        curve: taken(&curve),
        tiles: task.joined.map(JoinedValidation::result),
        weights,
        prediction,
        warnings,
        resumed_from: task.resume.map(|resume| resume.path().to_owned()),
        checkpoint: last.map(|last| last.path),
        best: checkpoints.as_ref().and_then(Checkpoints::best),
    }))
}

/// Opens the files of metrics, on the rank that writes.
fn open_metrics(
    task: &Task<'_, '_>,
    output: Option<&Output>,
    scale: &UtilizationScale,
) -> Result<Option<Metrics>, OutputError> {
    let from = task.resume.map(|resume| told(&resume.state.position));
    let open = |output: &Output| {
        let tally = Arc::clone(&task.loading.tally);
        let sampling = &task.preprocessing.sampling;
        let mut samples = task.run.samples(sampling);
        if task.joined.is_some() {
            samples[1] = sampling.volumes(Split::Validation);
        }
        let classes = ClassNames::of_run(task.run, task.graph, task.dataset.targets());
        let of_run = (task.run, samples, classes);
        Metrics::open(of_run, output.path(), from.as_ref(), scale.clone(), tally)
    };
    output.map(open).transpose()
}

/// A copy of the curve at the end.
fn taken(curve: &Mutex<LossCurve>) -> LossCurve {
    curve.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A position without an epoch whose validation is still to come, as it is reported again.
fn told(position: &Position) -> Position {
    let mut position = position.clone();
    let is_due = |last: &EpochReport| last.validation.is_none();
    if position.done == 0 && position.epochs.last().is_some_and(is_due) {
        position.epochs.pop();
    }
    position
}

/// Makes the folder of checkpoints, if the run writes some. Gives a warning about those before a resume.
fn begin_checkpoints(launch: &Launch<'_>, checkpoints: Option<&Checkpoints<'_>>) -> Option<String> {
    let checkpoints = checkpoints?;
    let is_first = launch.is_first();
    let warning = is_first.then(|| checkpoints.begin()).flatten();
    launch.context().report(Event::Checkpoints { is_first });
    warning
}

/// Predicted memory of each rank.
fn footprints(task: &Task<'_, '_>) -> Vec<Footprint> {
    let (program, stored) = (task.session.main_program(), task.dataset.dtype());
    let of_rank = |rank| {
        let mut footprint = task.session.footprint(rank);
        footprint.io_buffers += buffer_bytes(task.preprocessing, stored, program, rank);
        if let Some(joined) = task.joined {
            footprint.workspace += joined.bytes(rank);
        }
        footprint
    };
    (0..program.mesh.ranks()).map(of_rank).collect()
}

/// Predicts the program, if that is asked for.
fn predict(task: &Task<'_, '_>) -> Result<Option<Prediction>, TrainError> {
    let program = task.session.main_program();
    match (task.run.is_predicted(), task.costs) {
        (false, _) => Ok(None),
        (true, Some(costs)) => launched::predict_described(task.launch, program, costs),
        (true, None) => {
            let (config, input) = (task.run.rank_config(), task.run.store.input());
            let budget = Arc::clone(task.budget);
            launched::predict_measured(task.launch, program, config, input, budget)
        }
    }
}

/// Opens the output folder, on the rank that writes.
fn open_output(
    task: &Task<'_, '_>,
    prediction: Option<&str>,
) -> Result<Option<Output>, OutputError> {
    if !task.launch.is_first() || task.run.output.is_none() {
        return Ok(None);
    }
    let checkpoints = task.run.checkpoint.stored_max();
    let prediction_bytes = prediction.map_or(0, str::len);
    let size = RunSize::of_session(task.session, TRACES_KEPT, prediction_bytes, checkpoints);
    let size = match task.run.checkpoint.best {
        Some(_) => size.with_best(),
        None => size,
    };
    let environment = task.launch.context().environment();
    Output::open(task.run, size, prediction, environment).map(Some)
}

impl<'r> Task<'r, '_> {
    /// Flops of a sample, and the peak.
    fn scale(&self) -> UtilizationScale {
        let run = self.run;
        let machine = run.machine.as_deref();
        let config = run.rank_config();
        UtilizationScale::of(self.launch, self.graph, config, machine, run.is_predicted())
    }

    /// The losses of the steps before the first one, of a checkpoint if it knows them.
    fn curve(&self) -> LossCurve {
        let known = self.resume.and_then(|resume| resume.state.curve.clone());
        known.unwrap_or_else(|| LossCurve::new(self.session.steps_per_epoch()))
    }

    /// The checkpoints of the run, if it writes some; each with the curve at its time.
    fn checkpoints(
        &self,
        strategy: &Strategy,
        curve: &Arc<Mutex<LossCurve>>,
    ) -> Result<Option<Checkpoints<'r>>, LaunchError> {
        if !self.run.checkpoint.is_on() {
            return Ok(None);
        }
        let mut state =
            checkpoint::identity(self.run, self.graph, self.dataset, &strategy.to_string());
        state.data_record = self.record.clone();
        let config = self.run.rank_config();
        let signatures = signatures(self.session.step_programs());
        state.kernels = Some(self.launch.pinning_times(config, &signatures)?);
        let last = self.resume.map(|resume| {
            state.best = resume.state.best.clone();
            LastCheckpoint {
                path: resume.path().to_owned(),
                epoch: resume.state.position.epoch,
                steps: resume.state.position.updates,
            }
        });
        let (context, session) = (self.launch.context(), self.session);
        let best = BestFile::new(
            self.run.output_folder(),
            weights::metadata(self.run, session, self.record),
        );
        let begin = (last, Arc::clone(curve), best);
        let checkpoints = Checkpoints::new(context, self.run, session, state, begin);
        Ok(Some(checkpoints))
    }
}

fn listener<'c>(
    context: &'c Context,
    run: &Run,
    session: &Session<'_>,
    (metrics, curve): (Option<&'c Metrics>, &'c Mutex<LossCurve>),
) -> Listener<'c> {
    let epochs = run.epochs as u64;
    let steps = epochs * session.steps_per_epoch();
    Box::new(move |progress| {
        let progress = &progress;
        if let Some(metrics) = metrics {
            metrics.add(progress);
        }
        if let Ok(mut curve) = curve.lock() {
            curve.add(progress);
        }
        context.report(Event::Training {
            epochs,
            steps,
            progress,
        });
    })
}

fn source(
    (dataset, preprocessing): (&Dataset, &Preprocessing),
    mesh: Mesh,
    rank: Rank,
    accepted: Accepted,
    wake: Option<Waker>,
) -> Result<Box<dyn Source>, RunError> {
    let preprocessing = preprocessing.clone();
    let source = HyperslabSource::preprocessed(dataset, preprocessing, mesh, rank, accepted, wake)?;
    Ok(Box::new(source))
}
