//! `partita train`: from a run file to trained weights, with what was predicted and measured.

mod check;
mod choose;
mod foretell;
pub mod kernel_set;
mod memory;
mod programs;
mod ranks;
mod results;
mod run_file;
mod screen;
mod section;
#[cfg(test)]
mod tests;

use crate::error::CliError;
use crate::host::Host;
use crate::table::write_json;
use crate::{interrupt, model};
use partita_data::{
    DType, Dataset, HyperslabSource, Split, Waker, first_sample, order::epoch_order,
};
use partita_graph::{Graph, initial_values};
use partita_local::LaunchError;
use partita_lower::Strategy;
use partita_program::{Buffer, ProgramKind, Role};
use partita_run::{End, Plan, RunError, Session, Source};
use partita_space::{Bytes, Mesh, Rank};
use ranks::World;
use results::Finished;
pub use results::write_whole;
use run_file::RunFile;
use screen::Screen;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

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
    /// Answer with the result as JSON.
    pub json: bool,
}

/// Trains: checks everything, runs the ranks, writes what came of it to `output` of the run file.
///
/// Errors: a run that cannot be, found before any rank starts; a failure of a rank, the first cause;
/// Ctrl-C, after which nothing of the run is left.
pub fn run(request: &TrainRequest, out: &mut dyn Write) -> Result<(), CliError> {
    interrupt::release()?;
    run_until(request, interrupt::flag(), out)
}

fn run_until(
    request: &TrainRequest,
    cancel: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let run = read(request)?;
    let graph = model::resolve(&run.model)?;
    let dataset = Dataset::open(&run.data).map_err(|error| CliError::user(&error))?;
    check::dataset_fits(&run, &graph, &dataset)?;
    check::batch_fits(&run, &dataset)?;
    let host = Host::here();
    let (limit, origin) = memory_limit(&run, &host);
    let strategy = strategy(&run, &graph, dataset.dtype(), limit)?;
    let warnings: Vec<String> = check::core_warning(&run, host.cores_usable)
        .into_iter()
        .collect();
    for warning in &warnings {
        writeln!(io::stderr(), "partita: {warning}")?;
    }
    let (training, validation) = (
        dataset.samples(Split::Train),
        dataset.samples(Split::Validation),
    );
    let played = programs::programs(
        &run,
        &graph,
        &strategy,
        dataset.dtype(),
        training,
        validation,
    )?;
    let order = |epoch| epoch_order(run.seed, epoch, training);
    let first = first_sample(&dataset, Split::Validation);
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
    let finished = train(
        &run, &graph, &dataset, &session, &strategy, warnings, cancel,
    )?;
    let result = finished.save()?;
    if request.json {
        return write_json(out, &result);
    }
    finished.write_report(out)
}

fn read(request: &TrainRequest) -> Result<RunFile, CliError> {
    let mut run = RunFile::read(&request.run_file)?;
    run.ranks = request.ranks.unwrap_or(run.ranks);
    run.threads = request.threads.unwrap_or(run.threads);
    if let Some(strategy) = &request.strategy {
        run.strategy.clone_from(strategy);
    }
    Ok(run)
}

fn strategy(
    run: &RunFile,
    graph: &Graph,
    stored: DType,
    memory: Bytes,
) -> Result<Strategy, CliError> {
    if run.strategy == "auto" {
        return choose::choose_strategy(run, graph, stored, memory);
    }
    let strategy: Strategy = run
        .strategy
        .parse()
        .map_err(|error| CliError::user(&error))?;
    strategy
        .check_ranks(run.ranks)
        .map_err(|error| CliError::user(&error))?;
    strategy
        .check(graph, run.batch)
        .map_err(|error| CliError::user(&error))?;
    Ok(strategy)
}

/// Memory that a rank may have, and who says so.
fn memory_limit(run: &RunFile, host: &Host) -> (Bytes, String) {
    if let Some(limit) = run.memory {
        return (limit, "`memory` of the run file".to_owned());
    }
    let known = [host.memory_bytes_available, host.memory_bytes_limit];
    match known.into_iter().flatten().min() {
        Some(available) => {
            let origin = format!("{available} available to {} rank(s)", run.ranks);
            (Bytes(available.0 / run.ranks as u64), origin)
        }
        None => (Bytes(u64::MAX), "the system names none".to_owned()),
    }
}

fn train<'r>(
    run: &'r RunFile,
    graph: &Graph,
    dataset: &'r Dataset,
    session: &'r Session<'_>,
    strategy: &Strategy,
    warnings: Vec<String>,
    cancel: &AtomicBool,
) -> Result<Finished<'r>, CliError> {
    let program = session.main_program();
    let prediction = foretell::predict_here(program, run.kernels, run.threads)?;
    // From here on something must be put in order if the run is stopped.
    interrupt::listen()?;
    let mut folder = Folder::make(&run.output)?;
    if let Some(prediction) = &prediction {
        folder.note_prediction()?;
        results::write_prediction(&run.output, prediction)?;
    }
    let mut screen = Screen::new(
        run.epochs as u64,
        run.epochs as u64 * session.steps_per_epoch(),
    );
    let mark = memory::mark();
    let world = World {
        kernels: run.kernels,
        precision: run.precision,
        threads: run.threads,
        watchdog: run.watchdog,
        cancel,
        source: &|rank, wake| source(dataset, program.mesh, rank, wake),
        initial: &|buffer| initial(graph, run.seed, buffer),
    };
    let listener = Box::new(move |progress| screen.show(&progress));
    let played = ranks::play(session, &world, listener);
    let peak = memory::peak_above(mark);
    let (outcomes, values) = played.map_err(|error| failure(&error))?;
    refuse_divergence(run, outcomes[0].end)?;
    folder.keep();
    Ok(Finished {
        run,
        strategy: strategy.to_string(),
        targets: dataset.targets(),
        program,
        arenas: (0..program.mesh.ranks())
            .map(|rank| session.arena_bytes(rank))
            .collect(),
        peak,
        outcomes,
        values,
        prediction,
        warnings,
    })
}

fn source(
    dataset: &Dataset,
    mesh: Mesh,
    rank: Rank,
    wake: Option<Waker>,
) -> Result<Box<dyn Source>, RunError> {
    Ok(Box::new(HyperslabSource::new(dataset, mesh, rank, wake)?))
}

fn initial(graph: &Graph, seed: u64, buffer: &Buffer) -> Option<Vec<f64>> {
    match buffer.role {
        Role::Parameter | Role::State => {
            let named = graph.parameters.iter().find(|one| one.name == buffer.name);
            named.map(|parameter| initial_values(parameter, seed))
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

fn failure(error: &LaunchError) -> CliError {
    match error {
        LaunchError::Rank {
            error: RunError::Cancelled,
            ..
        } => CliError::Interrupted(
            "all ranks have ended, and nothing of the run was written".to_owned(),
        ),
        LaunchError::Rank { .. } | LaunchError::Panicked { .. } | LaunchError::NoThread { .. } => {
            CliError::run(error)
        }
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
                Some(clip) => format!("lower `clip`, now {clip}"),
                None => "set `clip` under [optimizer]".to_owned(),
            };
            Err(CliError::Run(format!(
                "the loss became {loss} {when}; nothing was written; lower `learning_rate` under \
                 [schedule], now {} at the start, or {clip}, or look at the data for values that \
                 `transform` makes infinite",
                run.schedule.rate(0.0)
            )))
        }
    }
}

/// The folder of the results. What a run wrote before it failed is taken away again.
struct Folder<'p> {
    path: &'p Path,
    is_new: bool,
    /// What to do with the prediction of a run that fails.
    undo: Option<Undo>,
}

/// How the folder was before a prediction was written to it.
enum Undo {
    /// There was none.
    Remove,
    /// There was one with this text.
    Restore(String),
}

impl<'p> Folder<'p> {
    fn make(path: &'p Path) -> Result<Self, CliError> {
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(|error| CliError::file("made", path.display(), &error))?;
        Ok(Self {
            path,
            is_new,
            undo: None,
        })
    }

    /// Remembers the prediction of an earlier run.
    fn note_prediction(&mut self) -> Result<(), CliError> {
        let path = self.path.join(results::PREDICTION);
        self.undo = Some(match fs::read_to_string(&path) {
            Ok(earlier) => Undo::Restore(earlier),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Undo::Remove,
            Err(error) => return Err(CliError::file("read", path.display(), &error)),
        });
        Ok(())
    }

    fn keep(mut self) {
        self.is_new = false;
        self.undo = None;
    }
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        // What cannot be undone harms nobody, and the error of the run is the one to tell.
        let path = self.path.join(results::PREDICTION);
        match &self.undo {
            Some(Undo::Remove) => {
                let _ = fs::remove_file(path);
            }
            Some(Undo::Restore(earlier)) => {
                let _ = results::write_whole(&path, earlier);
            }
            None => {}
        }
        if self.is_new {
            let _ = fs::remove_dir(self.path);
        }
    }
}
