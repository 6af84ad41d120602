//! Loading of samples and validation in processes of their own: the side of the training, and the serving side.
//!
//! With validators a session skips the evaluation steps of its plan. At the end of an epoch it copies parameters
//! and statistics (`session::Snapshot`) and hands the copy to `session::Validators`; the epoch is reported when its
//! results are there. Ranks agree twice per epoch (`launch/agreement`): rank 0 decides whether there are
//! validators, and broadcasts their results. If none are left, each rank swaps the copy in, evaluates, and swaps it
//! out. Results are kept per mini-batch, as bits, and folded in order.

mod children;
pub mod config;
pub mod error;
mod remote;
mod request;
mod serve;
mod settings;
mod validate;
mod work_error;

pub use children::LISTENING;
pub use config::{OffloadConfig, Processes};
pub use error::OffloadError;
use error::StartError;
pub use request::ServeRequest;
pub use serve::serve;

use super::check;
use super::error::TrainError;
use super::run::Run;
use children::Children;
use partita_data::order::epoch_samples;
use partita_data::{Dataset, Split};
use partita_graph::Graph;
use partita_input::{
    HyperslabSource, Loading, PieceMaker, PieceReader, PieceSupply, Preprocessing, Waker,
};
use partita_lower::Strategy;
use partita_offload::{Address, Hello, Loaders, Role, Secret, Stream, join, loaders_of};
use partita_run::{RunError, Source};
use partita_session::Session;
use partita_site::launch::Launch;
use partita_site::{Context, Event};
use partita_space::{Rank, Seconds};
use remote::{Joined, RemoteValidation};
use serde::Serialize;
use serve::LoaderWork;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use validate::ValidatorWork;

/// What ranks share: model, dataset, preprocessing.
pub type Samples<'s> = (&'s Graph, &'s Dataset, &'s Preprocessing);

/// The processes of a training, joined by the ranks of this process.
pub struct Offload {
    /// Joined loaders of each rank of this process.
    loaders: Mutex<BTreeMap<Rank, Joined>>,
    /// Joined validators of each rank of this process.
    validators: Mutex<BTreeMap<Rank, Joined>>,
    has_validators: bool,
    credits: usize,
    /// How long a process may take for an answer.
    timeout: Duration,
    warnings: Sender<String>,
    said: Mutex<Option<Receiver<String>>>,
    /// On the rank that started them, until the training ends.
    _children: Vec<Children>,
}

/// What starting and joining need.
struct Starting<'s> {
    run: &'s Run,
    run_file: Option<&'s Path>,
    strategy: &'s str,
    samples: Samples<'s>,
}

impl Offload {
    /// Starts the processes that the run file asks the training to start, and joins all of them.
    ///
    /// Errors: one cannot be started or joined, or serves another run; nothing to validate.
    pub fn start(
        launch: &Launch<'_>,
        run: &Run,
        (run_file, strategy): (Option<&Path>, &Strategy),
        samples: Samples<'_>,
    ) -> Result<Self, TrainError> {
        let starting = Starting {
            run,
            run_file,
            strategy: &strategy.to_string(),
            samples,
        };
        let config = &run.offload;
        starting.check_files()?;
        starting.check_validation()?;
        let mut children = Vec::new();
        let loaders = starting.processes(launch, Role::Loader, &config.loaders, &mut children)?;
        let validators =
            starting.processes(launch, Role::Validator, &config.validators, &mut children)?;
        let training = match validators.addresses.len() {
            0 => String::new(),
            _ => launch.choose(|| Ok::<_, TrainError>(unique_name()))?,
        };
        let ranks = launch.local_ranks(run.ranks);
        let (joined_loaders, joined_validators) = launch.prepare(|| {
            let mut joined = (BTreeMap::new(), BTreeMap::new());
            for rank in ranks {
                joined
                    .0
                    .insert(rank, starting.join_loaders(rank, &loaders)?);
                let all = starting.join_validators(rank, &validators, &training)?;
                joined.1.insert(rank, all);
            }
            Ok::<_, TrainError>(joined)
        })?;
        let (warnings, said) = channel();
        Ok(Self {
            loaders: Mutex::new(joined_loaders),
            validators: Mutex::new(joined_validators),
            has_validators: !validators.addresses.is_empty(),
            credits: config.credits,
            timeout: timeout(run),
            warnings,
            said: Mutex::new(Some(said)),
            _children: children,
        })
    }

    /// The validators of the ranks of this process, if there are some. A training is followed where a callback wants the
    /// results of each epoch at its end.
    pub fn validators<'r>(
        &self,
        run: &Run,
        session: &'r Session<'r>,
        is_followed: bool,
        is_asked_to_end: &'r AtomicBool,
    ) -> Option<RemoteValidation<'r>> {
        if !self.has_validators {
            return None;
        }
        let needed = run.metrics_needed();
        let is_awaited = is_followed
            || run.schedule.needs_validation()
            || needed.iter().any(|(_, metric)| metric.needs().0);
        let mut validators = self
            .validators
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let joined = std::mem::take(&mut *validators);
        let warnings = self.warnings.clone();
        let awaited = (is_awaited, self.timeout);
        Some(RemoteValidation::new(
            session,
            joined,
            awaited,
            is_asked_to_end,
            warnings,
        ))
    }

    /// The source of a rank: of its loaders, else of files.
    ///
    /// Errors: those of [`HyperslabSource`].
    pub fn source(
        &self,
        run: &Run,
        session: &Session<'_>,
        (graph, dataset, preprocessing): Samples<'_>,
        (rank, wake): (Rank, Option<Waker>),
        (from, loading): ((u64, u64), Loading),
    ) -> Result<Box<dyn Source>, RunError> {
        let mesh = session.main_program().mesh;
        let maker = PieceMaker::new(dataset, preprocessing, mesh, rank);
        let accepted = check::accepted(run, graph);
        let reader = PieceReader::new(dataset, preprocessing.clone(), accepted);
        let reader = reader.with_loading(dataset, rank, loading);
        let mut joined = self.loaders.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = joined.remove(&rank).filter(|joined| !joined.is_empty());
        let supply = joined.map(|joined| {
            let sampling = &preprocessing.sampling;
            let (all, [training, _]) = (sampling.samples(Split::Train), run.samples(sampling));
            let seed = run.seed;
            let order = Arc::new(move |epoch| epoch_samples(seed, epoch, all, training));
            let loads = session.loads(rank, from, order, !self.has_validators);
            let pieces = maker.clone();
            let upcoming = loads
                .flat_map(move |one| pieces.pieces(&one.load, (seed, one.epoch), &one.samples));
            let said = self.warnings.clone();
            // Nobody listens after the run.
            let warn = Box::new(move |text| drop(said.send(text)));
            let limits = (self.credits, self.timeout);
            Loaders::new(rank, joined, limits, Box::new(upcoming), warn)
        });
        let supply = supply.transpose().map_err(|error| RunError::Source {
            rank,
            reason: format!("its loaders: {error}"),
        })?;
        let supply = supply.map(|supply| Box::new(supply) as Box<dyn PieceSupply>);
        let source = HyperslabSource::of_pieces(maker, reader, supply, rank, wake)?;
        Ok(Box::new(source))
    }

    /// Runs the ranks, and reports meanwhile what they say about their processes. Gives these warnings too.
    pub fn while_reporting<R>(
        &self,
        context: &Context,
        work: impl FnOnce() -> R,
    ) -> (R, Vec<String>) {
        let said = self
            .said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let listening = scope.spawn(|| {
                let mut all = Vec::new();
                let Some(said) = said else { return all };
                loop {
                    match said.recv_timeout(Duration::from_millis(50)) {
                        Ok(text) => {
                            context.report(Event::Warning(&text));
                            all.push(text);
                        }
                        Err(RecvTimeoutError::Timeout) if !is_over.load(Ordering::Relaxed) => {}
                        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                            return all;
                        }
                    }
                }
            });
            let result = work();
            is_over.store(true, Ordering::Relaxed);
            (result, listening.join().unwrap_or_default())
        })
    }
}

/// The processes of a role.
#[derive(Default)]
struct Serving {
    addresses: Vec<Address>,
    /// Theirs; none where there are no processes.
    secret: Option<Secret>,
}

/// The secret in this file, or in that of the user.
///
/// Errors: a file that others may read, or that is missing and cannot be made.
fn secret(context: &Context, own: Option<&Path>) -> Result<Secret, OffloadError> {
    let user = context.environment().secret.as_deref();
    Ok(match (own, user) {
        (Some(own), _) => Secret::read(own)?,
        (None, Some(user)) => Secret::of_user(user)?,
        (None, None) => return Err(OffloadError::NoSecret),
    })
}

/// How long a process may take for an answer before it counts as lost.
fn timeout(run: &Run) -> Duration {
    let limit = run.offload.timeout.unwrap_or(Seconds(run.watchdog.0 / 2.0));
    Duration::from_secs_f64(limit.0.clamp(1e-3, 1e6))
}

/// A name that no other training has.
fn unique_name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ns = since.map_or(0, |since| since.as_nanos());
    format!("{}-{ns}", std::process::id())
}

impl Starting<'_> {
    /// Errors: processes of their own, which cannot read the source of the samples.
    fn check_files(&self) -> Result<(), OffloadError> {
        let config = &self.run.offload;
        let roles = [
            (Role::Loader, &config.loaders),
            (Role::Validator, &config.validators),
        ];
        let (_, dataset, _) = self.samples;
        let mut asked = roles.into_iter().filter(|(_, all)| all.count() > 0);
        match asked.next().filter(|_| dataset.has_source()) {
            None => Ok(()),
            Some((role, _)) => Err(OffloadError::Start {
                role,
                error: StartError::NoDataset,
            }),
        }
    }

    fn check_validation(&self) -> Result<(), OffloadError> {
        let validators = self.run.offload.validators.count();
        let (_, _, preprocessing) = self.samples;
        let samples = preprocessing.sampling.samples(Split::Validation);
        let batches = samples.div_ceil(self.run.batch);
        if validators > 0 && samples == 0 {
            let data = self.run.data.display().to_string();
            return Err(OffloadError::NoValidation { data });
        }
        if validators > batches {
            return Err(OffloadError::ManyValidators {
                validators,
                batches,
            });
        }
        Ok(())
    }

    /// The processes of a role, which are started if the run file gives their number.
    fn processes(
        &self,
        launch: &Launch<'_>,
        role: Role,
        processes: &Processes,
        children: &mut Vec<Children>,
    ) -> Result<Serving, TrainError> {
        let count = match processes {
            Processes::Started(0) => return Ok(Serving::default()),
            &Processes::Started(count) => count,
            Processes::At(addresses) => {
                let own = self.run.offload.secret.as_deref();
                // Each process of the ranks reads it on its host.
                let context = launch.context();
                let secret = launch.prepare(|| secret(context, own).map_err(TrainError::from))?;
                return Ok(Serving {
                    addresses: addresses.clone(),
                    secret: Some(secret),
                });
            }
        };
        if !launch.is_on_one_host() {
            return Err(OffloadError::Hosts { role, count }.into());
        }
        let environment = launch.context().environment();
        let config = &self.run.offload;
        let Some(run_file) = self.run_file else {
            let error = StartError::NoRunFile;
            return Err(OffloadError::Start { role, error }.into());
        };
        let (started, secret): (Vec<String>, PathBuf) = launch.choose(|| {
            let new = Children::start(environment, role, count, run_file, config)?;
            let texts = new.addresses().iter().map(Address::to_string).collect();
            let secret = new.secret();
            children.push(new);
            Ok::<_, TrainError>((texts, secret))
        })?;
        let secret = launch
            .prepare(|| Ok::<_, TrainError>(Secret::read(&secret).map_err(OffloadError::from)?))?;
        Ok(Serving {
            addresses: started
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
            secret: Some(secret),
        })
    }

    fn trainer(&self, rank: Rank) -> String {
        format!("rank {rank} of {}", self.run.ranks)
    }

    fn join_loaders(&self, rank: Rank, all: &Serving) -> Result<Joined, OffloadError> {
        let (graph, dataset, preprocessing) = self.samples;
        let hello = Hello {
            role: Role::Loader,
            trainer: self.trainer(rank),
            settings: settings::of_samples(self.run, graph, dataset),
        };
        let work = LoaderWork {
            credits: self.run.offload.credits,
            preparation: preprocessing.preparation.clone(),
            channels: dataset.channels(),
            features: dataset.features().to_vec(),
            evaluation: preprocessing.sampling.crops().map(|crops| crops.evaluation),
        };
        let own = loaders_of(rank, self.run.ranks, all.addresses.len());
        own.into_iter()
            .map(|index| self.join((all, index), &hello, &work))
            .collect()
    }

    /// Each rank joins all validators.
    fn join_validators(
        &self,
        rank: Rank,
        all: &Serving,
        training: &str,
    ) -> Result<Joined, OffloadError> {
        let (graph, dataset, preprocessing) = self.samples;
        let hello = Hello {
            role: Role::Validator,
            trainer: self.trainer(rank),
            settings: settings::of_validation(self.run, graph, dataset),
        };
        let count = all.addresses.len();
        let work = |index: usize| ValidatorWork {
            training: training.to_owned(),
            rank,
            ranks: self.run.ranks,
            strategy: self.strategy.to_owned(),
            threads: self.run.threads,
            part: [index, count],
            preparation: preprocessing.preparation.clone(),
            channels: dataset.channels(),
            features: dataset.features().to_vec(),
            class_weights: graph.inverse_frequency().unwrap_or_default().to_vec(),
        };
        (0..count)
            .map(|index| self.join((all, index), &hello, &work(index)))
            .collect()
    }

    fn join<W: Serialize>(
        &self,
        (all, index): (&Serving, usize),
        hello: &Hello,
        work: &W,
    ) -> Result<(Address, Stream), OffloadError> {
        let patience = self.run.offload.connect_timeout.0.clamp(0.0, 1e6);
        let patience = Duration::from_secs_f64(patience);
        let (address, secret) = (&all.addresses[index], all.secret.as_ref());
        let secret = secret.ok_or(OffloadError::NoSecret)?;
        let mut stream = join(address, secret, (hello, work), patience)?;
        let limited = stream.set_timeout(Some(timeout(self.run)));
        limited.map_err(|error| OffloadError::Broken {
            role: hello.role,
            address: address.clone(),
            error,
        })?;
        Ok((address.clone(), stream))
    }
}
