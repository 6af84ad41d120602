//! `serve`: a loader or a validator, which trainings join.

use super::super::error::TrainError;
use super::super::run::{Run, TrainRequest};
use super::super::run_file::RunFile;
use super::super::{adapted, check, crops};
use super::request::ServeRequest;
use super::validate::{Trainee, ValidatorWork};
use super::work_error::WorkError;
use super::{OffloadError, settings};
use partita_data::Dataset;
use partita_graph::Graph;
use partita_input::{EvaluationCrops, PieceReader, Preparation, Preprocessing, Sampling};
use partita_offload::{
    Address, Greeted, Listener, Role, Secret, Served, SharedSetting, Stream, difference, greet,
    serve_pieces, turn_away, welcome,
};
use partita_site::launch::Launch;
use partita_site::{Context, Event, Host};
use partita_space::printable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 8192;
/// Most connections that have not greeted yet.
const PENDING_MAX: usize = 512;
/// Most characters of the name that a trainer gives itself.
const NAME_MAX: usize = 80;

/// What a trainer asks of a loader.
#[derive(Serialize, Deserialize)]
pub struct LoaderWork {
    /// Pieces that it reads ahead.
    pub credits: usize,
    /// The crops of the validation.
    #[serde(default)]
    pub evaluation: Option<EvaluationCrops>,
    /// Statistics of the transform.
    pub preparation: Preparation,
    /// Names of the channels, in the order in which they are read.
    pub channels: Vec<String>,
    /// Names of the features, likewise.
    pub features: Vec<String>,
}

/// What all connections share.
struct Service<'s> {
    context: &'s Context,
    request: &'s ServeRequest,
    run: Run,
    graph: Graph,
    dataset: Dataset,
    sampling: Sampling,
    settings: Vec<SharedSetting>,
    secret: Secret,
    /// Connections, and those of them that have not greeted yet.
    open: AtomicUsize,
    pending: AtomicUsize,
    /// Trainings that a validator serves, by name.
    trainees: Mutex<BTreeMap<String, Arc<Trainee>>>,
}

/// One of those that are counted, until it is dropped.
struct Counted<'c>(&'c AtomicUsize);

impl<'c> Counted<'c> {
    fn one(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A name as it may stand in a line of a log.
fn short_name(name: &str) -> String {
    let beginning: String = name.chars().take(NAME_MAX).collect();
    printable::name(&beginning).into_owned()
}

/// What a connection is for.
enum Work {
    Load(LoaderWork, Dataset),
    Validate(ValidatorWork, Arc<Trainee>),
}

/// Serves trainings of a run file until the context is cancelled. `listening` gets the address.
///
/// Errors: a run file, model or dataset that a training would refuse; an address where nobody can listen.
pub fn serve(
    context: &Context,
    request: &ServeRequest,
    listening: &mut dyn FnMut(&Address),
) -> Result<(), TrainError> {
    let launch = Launch::threads(context);
    let overrides = TrainRequest {
        run_file: request.run_file.clone(),
        ..TrainRequest::default()
    };
    let file = RunFile::read(&request.run_file)?;
    context.core_locks().switch(file.config.pin);
    let run = Run::merge(file, &overrides, &launch)?;
    let graph = adapted(&run)?;
    let dataset = Dataset::open_with(&run.data, &run.keys())?.ignoring(check::ignored(&graph));
    run.note_external(context, &dataset)?;
    let sampling = crops::sampling(&run, &graph, &dataset)?;
    check::dataset_fits(&run, &graph, &dataset, &sampling)?;
    let sampling = match request.role {
        Role::Loader => {
            let host = Host::local(context.level());
            crops::on_foreground(&launch, &run, &dataset, sampling, &host)?
        }
        Role::Validator => sampling,
    };
    let service = Service {
        context,
        request,
        settings: match request.role {
            Role::Loader => settings::of_samples(&run, &graph, &dataset),
            Role::Validator => settings::of_validation(&run, &graph, &dataset),
        },
        secret: super::secret(context, request.secret.as_deref())?,
        open: AtomicUsize::new(0),
        pending: AtomicUsize::new(0),
        trainees: Mutex::default(),
        run,
        graph,
        dataset,
        sampling,
    };
    let failed = |error| OffloadError::Listen {
        address: request.listen.clone(),
        error,
    };
    let listener = Listener::bind(&request.listen).map_err(failed)?;
    listening(listener.address());
    thread::scope(|scope| {
        while !context.is_cancelled() {
            if !service.has_room() {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            match listener.accept() {
                Ok(Some((stream, peer))) => {
                    let counted = [Counted::one(&service.open), Counted::one(&service.pending)];
                    let service = &service;
                    scope.spawn(move || service.connection(stream, &peer, counted));
                }
                Ok(None) => {}
                Err(error) => {
                    service.warn(&format!("a connection cannot be accepted: {error}"));
                    thread::sleep(Duration::from_secs(1));
                }
            }
        }
    });
    Ok(())
}

impl Service<'_> {
    /// Whether another connection may be accepted. Others wait in the queue of the system.
    fn has_room(&self) -> bool {
        self.open.load(Ordering::Relaxed) < CONNECTIONS_MAX
            && self.pending.load(Ordering::Relaxed) < PENDING_MAX
    }

    /// Serves one connection to its end. Whoever does not greet as a trainer is left without an answer.
    fn connection(&self, stream: Stream, peer: &str, [_open, pending]: [Counted<'_>; 2]) {
        let mut greeted = match greet(stream, &self.secret) {
            Ok(greeted) => greeted,
            Err(error) => {
                let role = self.request.role;
                self.warn(&format!(
                    "{peer} is no trainer that this {role} knows: {error}"
                ));
                return;
            }
        };
        drop(pending);
        let trainer = short_name(&greeted.hello.trainer);
        let work = match self.check(&mut greeted) {
            Ok(work) => work,
            Err(error) => {
                let reason = error.to_string();
                self.warn(&format!("refused {trainer} at {peer}: {reason}"));
                // It may have gone already.
                let _ = turn_away(greeted, &reason);
                return;
            }
        };
        let Ok(stream) = welcome(greeted) else {
            return;
        };
        match work {
            Work::Load(work, dataset) => self.load(&stream, (work, &dataset), (&trainer, peer)),
            Work::Validate(work, trainee) => {
                let served = trainee.serve(self.context, stream, work.rank);
                self.trainees().remove(&work.training);
                match served {
                    Ok(count) if work.rank == 0 => {
                        self.note(&format!("{trainer} at {peer}: {count} snapshots"));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let reason = partita_site::full_text(&error);
                        self.warn(&format!("{trainer} at {peer}: {reason}"));
                    }
                }
            }
        }
    }

    fn load(
        &self,
        stream: &Stream,
        (work, dataset): (LoaderWork, &Dataset),
        (trainer, peer): (&str, &str),
    ) {
        let preprocessing = Preprocessing {
            sampling: match work.evaluation {
                Some(evaluation) => self.sampling.evaluating(evaluation),
                None => self.sampling.clone(),
            },
            preparation: work.preparation,
        };
        let accepted = check::accepted(&self.run, &self.graph);
        let reader = PieceReader::new(dataset, preprocessing, accepted);
        let delay = Duration::from_secs_f64(self.request.delay.0.clamp(0.0, 1e6));
        let stop = self.context.cancel();
        let served = serve_pieces(stream, reader, work.credits, delay, stop);
        self.report(trainer, peer, &served);
    }

    fn trainees(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Trainee>>> {
        self.trainees.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The training of a connection, which the first of its ranks makes known.
    fn trainee(&self, work: &ValidatorWork) -> Result<Arc<Trainee>, WorkError> {
        if work.rank >= work.ranks {
            let (rank, ranks) = (work.rank, work.ranks);
            return Err(WorkError::Rank { rank, ranks });
        }
        let mut trainees = self.trainees();
        if let Some(known) = trainees.get(&work.training) {
            return Ok(Arc::clone(known));
        }
        let dataset = self.dataset(&work.channels, &work.features)?;
        let samples = (&self.run, &self.graph, &dataset, &self.sampling);
        let new = Arc::new(Trainee::new(samples, self.request, work)?);
        trainees.insert(work.training.clone(), Arc::clone(&new));
        Ok(new)
    }

    /// What is asked of it. Errors: why it refuses.
    fn check(&self, greeted: &mut Greeted) -> Result<Work, WorkError> {
        let (own, hello) = (self.request.role, &greeted.hello);
        if hello.role != own {
            let wanted = hello.role;
            return Err(WorkError::Role { own, wanted });
        }
        if let Some(text) = difference(own, &self.settings, &hello.settings) {
            return Err(WorkError::Settings(text));
        }
        match own {
            Role::Loader => {
                let work: LoaderWork = greeted.work()?;
                if !(1..=1024).contains(&work.credits) {
                    let credits = work.credits;
                    return Err(WorkError::Credits { credits });
                }
                self.check_preparation(&work.preparation)?;
                let dataset = self.dataset(&work.channels, &work.features)?;
                Ok(Work::Load(work, dataset))
            }
            Role::Validator => {
                let work: ValidatorWork = greeted.work()?;
                self.check_preparation(&work.preparation)?;
                let trainee = self.trainee(&work)?;
                Ok(Work::Validate(work, trainee))
            }
        }
    }

    /// The dataset as a training reads it. Errors: names of channels that do not match.
    fn dataset(&self, channels: &[String], features: &[String]) -> Result<Dataset, WorkError> {
        let (dataset, _) = self.dataset.clone().in_channel_order(channels)?;
        let (dataset, _) = dataset.in_feature_order(features)?;
        Ok(dataset)
    }

    fn check_preparation(&self, preparation: &Preparation) -> Result<(), WorkError> {
        let is_asked = preparation.asked() == self.run.samples.steps;
        if is_asked && preparation.suits(self.dataset.shape()[0]) {
            return Ok(());
        }
        Err(WorkError::Statistics)
    }

    fn report(&self, trainer: &str, peer: &str, served: &Served) {
        let Served {
            pieces,
            bytes,
            held_max,
            fault,
        } = served;
        match fault {
            Some(fault) => self.warn(&format!("{trainer} at {peer}: {fault}")),
            None => self.note(&format!(
                "{trainer} at {peer}: {pieces} pieces, {bytes} B, at most {held_max} held at once"
            )),
        }
    }

    fn note(&self, text: &str) {
        if !self.request.is_quiet {
            self.context.report(Event::Note(text));
        }
    }

    fn warn(&self, text: &str) {
        self.context.report(Event::Warning(text));
    }
}
