//! `partita train`: from a run file to trained weights, with what was predicted and measured.

pub mod check;
mod choose;
pub mod company;
mod foretell;
pub mod kernel_set;
mod memory;
mod output;
mod processes;
mod programs;
mod ranks;
mod results;
mod run_file;
mod screen;
mod section;
#[cfg(test)]
mod tests;
mod weights;

use crate::error::CliError;
use crate::here::Ranks;
use crate::host::Host;
use crate::table::write_json;
use crate::{interrupt, model, search};
use company::Company;
use memory::Mark;
use output::{Output, Room};
use partita_data::{
    Accepted, DType, Dataset, HyperslabSource, Split, Waker, first_sample, order::epoch_order,
};
use partita_graph::{Graph, initial_part};
use partita_lower::Strategy;
use partita_program::{Buffer, ProgramKind, Role};
use partita_run::{End, Plan, RunError, Session, Source, SystemClock, kept_name};
use partita_space::{Bytes, Mesh, Rank};
use ranks::{Listener, World};
pub use results::write_whole;
use results::{Finished, pretty};
pub use run_file::RunFile;
use screen::Screen;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use weights::WeightSink;

/// Training steps whose traces are kept.
const TRACES_KEPT: usize = 20;

/// What `partita train` was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainRequest {
    /// The run file.
    pub run_file: PathBuf,
    /// Instead of its `ranks`.
    pub ranks: Option<usize>,
    /// Instead of its `threads`.
    pub threads: Option<usize>,
    /// Instead of its `strategy`.
    pub strategy: Option<String>,
    /// Collectives of the MPI library.
    pub library_collectives: bool,
    /// Over a run that `output` holds.
    pub overwrite: bool,
    /// Without a prediction of seconds.
    pub no_prediction: bool,
    /// Answer with the result as JSON.
    pub json: bool,
}

/// Why an interrupted run leaves nothing to clean up.
const NOTHING_WRITTEN: &str = "all ranks have ended, and nothing of the run was written";

/// What helps where loss or weights leave the range of their type.
const AGAINST_DIVERGENCE: &str = "no value of the samples that were read is infinite or extreme, so lower \
                                  `learning_rate` under [schedule] or set `clip` under [optimizer]";

/// Trains: checks everything, runs the ranks, writes what came of it to `output` of the run file.
///
/// Under a launcher this process is one rank of many, else all ranks are its threads.
///
/// Errors: a run that cannot be, found before any rank starts; a failure of a rank, the first cause;
/// Ctrl-C, after which nothing of the run is left.
pub fn run(request: &TrainRequest, out: &mut dyn Write) -> Result<(), CliError> {
    interrupt::release()?;
    let company = Company::of_this_process()?;
    let done = run_with(&company, request, interrupt::flag(), out);
    done.map_err(|error| company.part(error))
}

fn run_with(
    company: &Company,
    request: &TrainRequest,
    cancel: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let run = read(company, request)?;
    company.set_limit(run.watchdog)?;
    let graph = model::resolve(&run.model)?;
    let dataset = Dataset::open(&run.data).map_err(|error| CliError::user(&error))?;
    check_request(company, &run, &graph, &dataset)?;
    let host = Host::here();
    let (local, cores) = company.local(run.ranks, &host);
    let (limit, origin) = memory_limit(&run, &host, local);
    let strategy = company.decide(&run, |here| {
        strategy(&run, &graph, dataset.dtype(), limit, here)
    })?;
    let mut warnings = Vec::new();
    if company.speaks() {
        warnings.extend(check::core_warning(local, run.threads, cores));
        warnings.extend(check::micro_warning(&strategy, &graph));
    }
    for warning in &warnings {
        writeln!(io::stderr(), "partita: {warning}")?;
    }
    let (training, validation) = (
        dataset.samples(Split::Train),
        dataset.samples(Split::Validation),
    );
    let order = |epoch| epoch_order(run.seed, epoch, training);
    let first = first_sample(&dataset, Split::Validation);
    let session = company.prepare(|| {
        let stored = dataset.dtype();
        let played = programs::programs(&run, &graph, &strategy, stored, training, validation)?;
        let plan = Plan {
            epochs: run.epochs as u64,
            batch: run.batch,
            seed: run.seed,
            schedule: run.schedule,
            training_order: &order,
            validation: (first..first + validation).collect(),
            traces_kept: TRACES_KEPT,
        };
        let session = Session::new(played, plan).map_err(|error| CliError::run(&error))?;
        check::memory_fits(&run, &session, limit, &origin)?;
        Ok(session)
    })?;
    company.agree(&session, &run)?;
    let job = Task {
        company,
        run: &run,
        graph: &graph,
        dataset: &dataset,
        session: &session,
        cancel,
        is_foretold: !request.no_prediction,
    };
    let Some(mut finished) = train(&job, &strategy, warnings)? else {
        return Ok(());
    };
    let saved = finished.save()?;
    let printed = match request.json {
        true => write_json(out, &saved.result),
        false => finished.write_report(&saved.result["files"], out),
    };
    // Where the files are matters more than a reader who has left.
    saved.check().and(printed)
}

/// What is to be done, by whom.
struct Task<'r, 's> {
    company: &'r Company,
    run: &'r RunFile,
    graph: &'r Graph,
    dataset: &'r Dataset,
    session: &'r Session<'s>,
    cancel: &'r AtomicBool,
    /// Whether its seconds are predicted.
    is_foretold: bool,
}

fn read(company: &Company, request: &TrainRequest) -> Result<RunFile, CliError> {
    let mut run = RunFile::read(&request.run_file)?;
    run.ranks = company.ranks(request.ranks, run.ranks)?;
    if request.library_collectives {
        run.collectives = company.library_collectives()?;
    }
    run.threads = request.threads.unwrap_or(run.threads);
    run.overwrite |= request.overwrite;
    if let Some(strategy) = &request.strategy {
        run.strategy.clone_from(strategy);
    }
    Ok(run)
}

/// What can be told before a strategy is chosen.
fn check_request(
    company: &Company,
    run: &RunFile,
    graph: &Graph,
    dataset: &Dataset,
) -> Result<(), CliError> {
    check::dataset_fits(run, graph, dataset)?;
    check::batch_fits(run, dataset)?;
    check::output_fits(run)?;
    match company.speaks() {
        true => output::check(run, Room::of_model(graph, run)),
        false => Ok(()),
    }
}

fn strategy(
    run: &RunFile,
    graph: &Graph,
    stored: DType,
    memory: Bytes,
    here: Ranks,
) -> Result<Strategy, CliError> {
    if run.strategy == "auto" {
        return choose::choose_strategy(run, graph, stored, memory, here);
    }
    let strategy: Strategy = run
        .strategy
        .parse()
        .map_err(|error| CliError::user(&error))?;
    strategy
        .check_ranks(run.ranks, run.batch)
        .map_err(|error| CliError::user(&error))?;
    strategy
        .check(graph, run.batch)
        .map_err(|error| CliError::user(&error))?;
    let menu = run.kernels.menu(run.threads);
    let request = programs::request(run, graph, &strategy, stored, &*menu);
    search::staged_here(&request, memory, run.kernels, here)
}

/// Memory that a rank may have, and who says so.
fn memory_limit(run: &RunFile, host: &Host, local: usize) -> (Bytes, String) {
    if let Some(limit) = run.memory {
        return (limit, "`memory` of the run file".to_owned());
    }
    let known = [host.memory_bytes_available, host.memory_bytes_limit];
    match known.into_iter().flatten().min() {
        Some(available) => {
            let origin = format!("{available} available to {local} rank(s)");
            (Bytes(available.0 / local as u64), origin)
        }
        None => (Bytes(u64::MAX), "the system names none".to_owned()),
    }
}

/// Gives what came of it to the one who writes it down.
fn train<'r>(
    task: &Task<'r, '_>,
    strategy: &Strategy,
    warnings: Vec<String>,
) -> Result<Option<Finished<'r>>, CliError> {
    let (company, run, session) = (task.company, task.run, task.session);
    let dataset = task.dataset;
    let program = session.main_program();
    let prediction = match task.is_foretold {
        true => company.foretell(program, run)?,
        false => None,
    };
    // From here on something must be put in order if the run is stopped.
    interrupt::listen()?;
    let text = prediction.as_ref().map(pretty).transpose()?;
    let room = Room::of_session(session, TRACES_KEPT, text.as_ref().map_or(0, String::len));
    let open = || Output::open(run, room, text.as_deref());
    let output = company.speaks().then(open).transpose()?;
    let mark = Mark::set();
    let accepted = Accepted {
        transform: run.transform,
        classes: check::classes(task.graph),
    };
    let world = World {
        kernels: run.kernels,
        precision: run.precision,
        threads: run.threads,
        watchdog: run.watchdog,
        cancel: task.cancel,
        source: &|rank, wake| source(dataset, program.mesh, rank, accepted, wake),
        clock: SystemClock::start(),
        initial: &|buffer, elements| initial(task.graph, run.seed, buffer, elements),
    };
    let mut sink = WeightSink::new(run, session, output);
    let played = company.play(
        session,
        &world,
        run.collectives,
        listener(run, session),
        mark,
        &mut sink,
    )?;
    let Some((outcomes, taken)) = played else {
        return Ok(None);
    };
    refuse_divergence(run, outcomes[0].end)?;
    let Some(weights) = sink.saved() else {
        return Ok(None);
    };
    Ok(Some(Finished {
        run,
        strategy: strategy.to_string(),
        targets: task.dataset.targets(),
        program,
        footprints: (0..program.mesh.ranks())
            .map(|rank| session.footprint(rank))
            .collect(),
        taken,
        outcomes,
        weights,
        prediction,
        warnings,
    }))
}

fn listener(run: &RunFile, session: &Session<'_>) -> Listener {
    let epochs = run.epochs as u64;
    // The screen is made where it is used: only one rank shows anything.
    let (mut screen, steps) = (None, epochs * session.steps_per_epoch());
    Box::new(move |progress| {
        let screen = screen.get_or_insert_with(|| Screen::new(epochs, steps));
        screen.show(&progress);
    })
}

fn source(
    dataset: &Dataset,
    mesh: Mesh,
    rank: Rank,
    accepted: Accepted,
    wake: Option<Waker>,
) -> Result<Box<dyn Source>, RunError> {
    let source = HyperslabSource::new(dataset, mesh, rank, accepted, wake)?;
    Ok(Box::new(source))
}

fn initial(graph: &Graph, seed: u64, buffer: &Buffer, elements: Range<usize>) -> Option<Vec<f64>> {
    match buffer.role {
        Role::Parameter | Role::State => {
            let name = kept_name(&buffer.name);
            let named = graph.parameters.iter().find(|one| one.name == name);
            named.map(|parameter| initial_part(parameter, seed, elements))
        }
        Role::Optimizer
        | Role::Gradient
        | Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => None,
    }
}

fn refuse_divergence(run: &RunFile, end: End) -> Result<(), CliError> {
    match end {
        End::Finished => Ok(()),
        End::NotFinite {
            kind,
            epoch,
            step,
            loss,
        } => {
            let when = match kind {
                ProgramKind::Train => format!("in training step {step} (epoch {})", epoch + 1),
                ProgramKind::Evaluate | ProgramKind::Fetch => {
                    format!("in the validation after epoch {}", epoch + 1)
                }
            };
            let clip = match run.clip {
                Some(clip) => format!("`clip` is {clip}"),
                None => "`clip` is not set".to_owned(),
            };
            Err(CliError::Run(format!(
                "the loss became {loss} {when}; nothing was written; {AGAINST_DIVERGENCE}; \
                 `learning_rate` is {} at the start, {clip}",
                run.schedule.rate(0.0)
            )))
        }
    }
}
