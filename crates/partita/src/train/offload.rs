//! Loading of samples and validation in processes of their own: the side of the training, and the serving side.

mod children;
pub mod config;
pub mod error;
mod serve;
mod settings;

pub use children::LISTENING;
pub use config::{OffloadConfig, Processes, parse_cores};
pub use error::OffloadError;
pub use serve::{ServeRequest, serve};

use super::check;
use super::error::TrainError;
use super::run::Run;
use crate::context::Context;
use crate::launch::Launch;
use crate::progress::Event;
use children::Children;
use partita_data::{
    Dataset, HyperslabSource, PieceMaker, PieceReader, PieceSupply, Preprocessing, Waker,
    order::epoch_order,
};
use partita_graph::Graph;
use partita_offload::{Address, Hello, Loaders, Role, Stream, join, loaders_of};
use partita_run::{RunError, Source};
use partita_session::Session;
use partita_space::{Rank, Seconds};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What ranks share: model, dataset, preprocessing.
pub type Samples<'s> = (&'s Graph, &'s Dataset, &'s Preprocessing);

/// The processes of a training, joined by the ranks of this process.
pub struct Offload {
    /// Joined loaders of each rank of this process.
    loaders: Mutex<BTreeMap<Rank, Vec<(Address, Stream)>>>,
    credits: usize,
    warnings: Sender<String>,
    said: Mutex<Option<Receiver<String>>>,
    /// On the rank that started them, until the training ends.
    _children: Children,
}

impl Offload {
    /// Starts the processes that the run file asks the training to start, and joins all of them.
    ///
    /// Errors: one cannot be started or joined, or serves another run.
    pub fn start(
        launch: &Launch<'_>,
        run: &Run,
        run_file: &Path,
        samples: Samples<'_>,
    ) -> Result<Self, TrainError> {
        let mut children = Children::default();
        let loaders = &run.offload.loaders;
        let addresses = match loaders {
            Processes::At(addresses) => addresses.clone(),
            Processes::Started(0) => Vec::new(),
            &Processes::Started(count) => {
                let role = Role::Loader;
                if !launch.is_on_one_host() {
                    return Err(OffloadError::Hosts { role, count }.into());
                }
                let environment = launch.context().environment();
                let started: Vec<String> = launch.choose(|| {
                    children = Children::start(environment, role, count, run_file, &run.offload)?;
                    let texts = children.addresses().iter().map(Address::to_string);
                    Ok::<_, TrainError>(texts.collect())
                })?;
                started
                    .iter()
                    .filter_map(|text| text.parse().ok())
                    .collect()
            }
        };
        let joined = {
            let ranks = launch.local_ranks(run.ranks);
            launch.prepare(|| join_loaders(ranks, run, &addresses, samples))?
        };
        let (warnings, said) = channel();
        Ok(Self {
            loaders: Mutex::new(joined),
            credits: run.offload.credits,
            warnings,
            said: Mutex::new(Some(said)),
            _children: children,
        })
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
        from: (u64, u64),
    ) -> Result<Box<dyn Source>, RunError> {
        let mesh = session.main_program().mesh;
        let maker = PieceMaker::new(dataset, preprocessing, mesh, rank);
        let accepted = check::accepted(run, graph);
        let reader = PieceReader::new(dataset, preprocessing.clone(), accepted);
        let mut joined = self.loaders.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = joined.remove(&rank).filter(|joined| !joined.is_empty());
        let supply = joined.map(|joined| {
            let training = preprocessing.sampling.samples(partita_data::Split::Train);
            let seed = run.seed;
            let order = Arc::new(move |epoch| epoch_order(seed, epoch, training));
            let loads = session.loads(rank, from, order);
            let pieces = maker.clone();
            let upcoming = loads
                .flat_map(move |one| pieces.pieces(&one.load, (seed, one.epoch), &one.samples));
            let said = self.warnings.clone();
            // Nobody listens after the run.
            let warn = Box::new(move |text| drop(said.send(text)));
            Loaders::new(rank, joined, self.credits, Box::new(upcoming), warn)
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
        context: &Context<'_>,
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

/// How long a process may take for an answer before it counts as lost.
fn timeout(run: &Run) -> Duration {
    let limit = run.offload.timeout.unwrap_or(Seconds(run.watchdog.0 / 2.0));
    Duration::from_secs_f64(limit.0.clamp(1e-3, 1e6))
}

/// Joins the loaders of all ranks of this process.
fn join_loaders(
    ranks: Range<Rank>,
    run: &Run,
    addresses: &[Address],
    (graph, dataset, preprocessing): Samples<'_>,
) -> Result<BTreeMap<Rank, Vec<(Address, Stream)>>, TrainError> {
    let patience = Duration::from_secs_f64(run.offload.connect_timeout.0.clamp(0.0, 1e6));
    let mut all = BTreeMap::new();
    for rank in ranks {
        let hello = Hello {
            role: Role::Loader,
            trainer: format!("rank {rank} of {}", run.ranks),
            settings: settings::of_samples(run, graph, dataset),
            work: json!({
                "credits": run.offload.credits,
                "preparation": preprocessing.preparation,
            }),
        };
        let mut joined = Vec::new();
        for loader in loaders_of(rank, run.ranks, addresses.len()) {
            let address = addresses[loader].clone();
            let (stream, _) = join(&address, &hello, patience).map_err(OffloadError::from)?;
            let limited = stream.set_timeout(Some(timeout(run)));
            limited.map_err(|error| OffloadError::Broken {
                role: Role::Loader,
                address: address.clone(),
                error,
            })?;
            joined.push((address, stream));
        }
        all.insert(rank, joined);
    }
    Ok(all)
}
