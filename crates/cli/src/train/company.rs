//! Who trains: all ranks as threads of this process, or this process as one rank of a job.

use super::foretell;
use super::kernel_set::KernelSet;
use super::memory::Mark;
use super::processes::Job;
use super::ranks::{self, Listener, World};
use super::run_file::RunFile;
use crate::cache;
use crate::error::CliError;
use crate::here::{Calibrated, Here, Ranks};
use crate::host::Host;
use crate::launcher;
use partita_local::LaunchError;
use partita_lower::Strategy;
use partita_mpi::Collectives;
use partita_oracle::Prediction;
use partita_program::{Program, Role};
use partita_run::{Arena, End, Lasting, Outcome, PackedTensor, RunError, Session};
use partita_space::{Bytes, Seconds};
use partita_tune::LinkTimes;
use std::collections::BTreeSet;

/// Memory that a run took.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// Arenas as they were allocated, in rank order.
    pub arenas: Vec<Bytes>,
    /// Largest resident set of all processes until the last step, above that before the arenas.
    pub peak: Option<Bytes>,
    /// The same until the weights were written, where all ranks are of one process.
    pub peak_saving: Option<Bytes>,
}

/// Takes the tensors that a run leaves, one by one, in the order of [`Session::lasting`].
pub trait TensorSink: Send {
    /// Takes the next tensor.
    fn keep(&mut self, tensor: &Lasting, values: PackedTensor);

    /// Ends a pass over all tensors: true where they are safe, false where they are wanted once more from
    /// the first on, as the place that they went to did not hold them.
    ///
    /// Errors: no place holds them.
    fn finish(&mut self) -> Result<bool, CliError>;
}

/// The ranks of a run, as this process sees them.
pub enum Company {
    /// Threads of this process.
    Threads,
    /// Processes under a launcher, of which this is one.
    Processes(Job),
}

impl Company {
    /// A job where a launcher started several processes, else threads.
    ///
    /// Errors: a launcher without its MPI.
    pub fn of_this_process() -> Result<Self, CliError> {
        let Some(launcher) = launcher::of_this_process() else {
            return Ok(Self::Threads);
        };
        Ok(Job::join(&launcher)?.map_or(Self::Threads, Self::Processes))
    }

    /// Whether this process prints and writes.
    pub fn speaks(&self) -> bool {
        match self {
            Self::Threads => true,
            Self::Processes(job) => job.rank() == 0,
        }
    }

    /// How many ranks there are. A launcher goes before the run file; whoever asks on the command line
    /// must ask for what there is.
    pub fn ranks(&self, asked: Option<usize>, of_file: usize) -> Result<usize, CliError> {
        let size = match self {
            Self::Threads => return Ok(asked.unwrap_or(of_file)),
            Self::Processes(job) => job.size(),
        };
        match asked.filter(|&ranks| ranks != size) {
            None => Ok(size),
            Some(ranks) => Err(CliError::User(format!(
                "--ranks {ranks} is asked for, and the launcher started {size} processes; each is one \
                 rank, so leave --ranks out or start {ranks}"
            ))),
        }
    }

    /// The collectives of the library, where there is one.
    pub fn library_collectives(&self) -> Result<Collectives, CliError> {
        match self {
            Self::Processes(_) => Ok(Collectives::Library),
            Self::Threads => Err(CliError::User(
                "--library-collectives is asked for, and ranks are threads, which use no library; \
                 start them by a launcher, like `mpirun -n 2 partita train ...`, or leave it out"
                    .to_owned(),
            )),
        }
    }

    /// How long others may be silent.
    pub fn set_limit(&self, limit: Seconds) -> Result<(), CliError> {
        match self {
            Self::Threads => Ok(()),
            Self::Processes(job) => job.set_limit(limit),
        }
    }

    /// Ranks of this host, and the cores that they share.
    pub fn local(&self, ranks: usize, host: &Host) -> (usize, usize) {
        match self {
            Self::Threads => (ranks, host.cores_usable),
            Self::Processes(job) => (job.local().ranks, job.local().cores),
        }
    }

    /// The same strategy for all, chosen by one.
    pub fn decide(
        &self,
        run: &RunFile,
        choose: impl FnOnce(Ranks) -> Result<Strategy, CliError> + Send,
    ) -> Result<Strategy, CliError> {
        let ranks = self.on_this_host(run.ranks, run.threads)?;
        let job = match self {
            Self::Threads => return choose(ranks),
            Self::Processes(job) => job,
        };
        // Whoever chooses between strategies or cuts stages wants to know what messages take.
        let said: Result<Strategy, _> = run.strategy.parse();
        let is_cut = |one: &Strategy| one.stages.is_empty() || one.has_layers();
        let is_open = run.strategy == "auto" || said.is_ok_and(|one| !is_cut(&one));
        if is_open && ranks.library.is_some() {
            measure_links(job, run, &ranks, &(2..=ranks.count).collect())?;
        }
        let own = match job.rank() {
            0 => job.while_pulsing(|| choose(ranks))?.to_string(),
            _ => String::new(),
        };
        let chosen: String = job.shared(&own)?;
        chosen.parse().map_err(|error| CliError::user(&error))
    }

    /// Does what every rank does for itself and takes long.
    pub fn prepare<R: Send>(
        &self,
        work: impl FnOnce() -> Result<R, CliError> + Send,
    ) -> Result<R, CliError> {
        match self {
            Self::Threads => work(),
            Self::Processes(job) => job.while_pulsing(work),
        }
    }

    /// Makes sure that all ranks are about to do the same.
    pub fn agree(&self, session: &Session<'_>, run: &RunFile) -> Result<(), CliError> {
        let job = match self {
            Self::Threads => return Ok(()),
            Self::Processes(job) => job,
        };
        let digests: Vec<String> = session.programs().map(Program::digest).collect();
        job.agree(&format!(
            "programs {}, {} epochs, seed {}, {:?}",
            digests.join(" "),
            run.epochs,
            run.seed,
            run.schedule
        ))
    }

    /// What the oracle says of ranks that share a host, to the one who speaks; of ranks on several hosts
    /// it knows nothing yet.
    pub fn foretell(
        &self,
        program: &Program,
        run: &RunFile,
    ) -> Result<Option<Prediction>, CliError> {
        let ranks = self.on_this_host(run.ranks, run.threads)?;
        let Self::Processes(job) = self else {
            return foretell::predict_here(program, run.kernels, ranks);
        };
        if ranks.library.is_none() {
            return Ok(None);
        }
        measure_links(job, run, &ranks, &program.group_sizes())?;
        let prediction = match job.rank() {
            0 => job.while_pulsing(|| foretell::predict_here(program, run.kernels, ranks))?,
            _ => None,
        };
        // The others wait here, where they hear that rank 0 lives.
        job.shared(&())?;
        Ok(prediction)
    }

    /// Measures this machine, whatever is known of it; gives what was found to the one who speaks. All
    /// [`close`](Self::close) afterwards.
    ///
    /// Errors: something that cannot be measured; processes on several hosts.
    pub fn calibrate(
        &self,
        kernels: KernelSet,
        ranks: &Ranks,
        programs: &[Program],
        passes: usize,
    ) -> Result<Option<Calibrated>, CliError> {
        let Self::Processes(job) = self else {
            return Here::of(kernels, ranks.clone(), false)?
                .calibrate(programs, None, passes)
                .map(Some);
        };
        if ranks.library.is_none() {
            return Err(CliError::User(format!(
                "{} processes on several hosts, or more than {} on one, are not measured; start as many \
                 on one host as it has cores",
                ranks.count,
                ranks.most()
            )));
        }
        if job.rank() == 0 {
            job.while_pulsing(|| {
                cache::before_measuring();
                Ok(())
            })?;
        }
        let groups = (2..=ranks.count).collect();
        let links = job.measure_links(&groups, &LinkTimes::default(), ranks.threads)?;
        let found = match job.rank() {
            0 => job.while_pulsing(|| {
                let mut here = Here::of(kernels, ranks.clone(), false)?;
                here.calibrate(programs, Some(links), passes).map(Some)
            })?,
            _ => None,
        };
        Ok(found)
    }

    /// Ends what a launcher started, in order, when all have done their part.
    pub fn close(&self) -> Result<(), CliError> {
        match self {
            Self::Threads => Ok(()),
            Self::Processes(job) => {
                // Nobody leaves before the one who speaks is done.
                job.shared(&())?;
                job.close()
            }
        }
    }

    /// The ranks of a run as they lie on this machine; those on several hosts as if they were threads of
    /// this process.
    pub fn on_this_host(&self, count: usize, threads: usize) -> Result<Ranks, CliError> {
        let threads = Ranks::threads(count, threads);
        let Self::Processes(job) = self else {
            return Ok(threads);
        };
        let ranks = Ranks {
            cores: job.cores().to_vec(),
            library: Some(job.library()?),
            ..threads.clone()
        };
        let is_known = job.is_on_one_host() && ranks.count <= ranks.most();
        Ok(if is_known { ranks } else { threads })
    }

    /// Plays. Gives what all ranks gave and the memory that their steps took to the process that
    /// speaks, which is also the one that keeps the tensors that the run leaves.
    ///
    /// Errors: the first cause.
    pub fn play(
        &self,
        session: &Session<'_>,
        world: &World<'_>,
        collectives: Collectives,
        listener: Listener,
        mark: Mark,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, Taken)>, CliError> {
        let job = match self {
            Self::Threads => {
                let played = ranks::play(session, world, listener);
                let peak = mark.peak_above();
                let played = played.map_err(|error| failure(&error))?;
                let (outcomes, mut arenas) = (played.outcomes, played.arenas);
                if outcomes[0].end == End::Finished {
                    save(session, &mut arenas, sink)?;
                }
                let taken = Taken {
                    arenas: arenas.iter().map(Arena::bytes).collect(),
                    peak,
                    peak_saving: mark.peak_above(),
                };
                return Ok(Some((outcomes, taken)));
            }
            Self::Processes(job) => job,
        };
        job.play(session, world, collectives, listener, mark, sink)
    }

    /// Ends a run that failed: what is to be told by `main`.
    pub fn part(&self, error: CliError) -> CliError {
        match self {
            Self::Threads => error,
            Self::Processes(job) => job.part(error),
        }
    }
}

/// Gives all tensors to the sink until they are safe.
fn save(
    session: &Session<'_>,
    arenas: &mut [Arena],
    sink: &mut dyn TensorSink,
) -> Result<(), CliError> {
    loop {
        for tensor in session.lasting() {
            let holders = tensor.holders.iter();
            let shares = holders.map(|&it| session.share(it, &mut arenas[it.0]));
            sink.keep(&tensor, session.whole(&tensor, shares));
        }
        if sink.finish()? {
            return Ok(());
        }
    }
}

/// What messages and collectives of processes take, of these groups, measured by all of them where it is
/// not known, and kept by rank 0.
fn measure_links(
    job: &Job,
    run: &RunFile,
    ranks: &Ranks,
    groups: &BTreeSet<usize>,
) -> Result<(), CliError> {
    // Another process may hold the lock of the cache for longer than the others are patient.
    let open = || {
        let here = Here::of(run.kernels, ranks.clone(), false)?;
        if !here.links().has_all(ranks.count, groups) {
            cache::before_measuring();
        }
        Ok(here)
    };
    let here = (job.rank() == 0).then(|| job.while_pulsing(open));
    let here = here.transpose()?;
    let known = here.as_ref().map(Here::links).unwrap_or_default();
    let found = job.measure_links(groups, &known, ranks.threads)?;
    let Some(mut here) = here else {
        return Ok(());
    };
    job.while_pulsing(|| {
        here.keep_links(found);
        Ok(())
    })
}

fn failure(error: &LaunchError) -> CliError {
    match error {
        LaunchError::Rank {
            error: RunError::Cancelled,
            ..
        } => CliError::Interrupted(super::NOTHING_WRITTEN.to_owned()),
        LaunchError::Rank { error, .. } => rank_failure(error),
        LaunchError::Panicked { .. } | LaunchError::NoThread { .. } => CliError::run(error),
    }
}

/// The failure of a rank, with what helps against it.
pub fn rank_failure(error: &RunError) -> CliError {
    let RunError::NotFinite { role, .. } = error else {
        return CliError::run(error);
    };
    let origin = match role {
        Role::State => "activations in front of that layer are too large for its statistics",
        Role::Optimizer => "a gradient is too large for what the optimizer keeps of it",
        Role::Parameter
        | Role::Gradient
        | Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Gathered
        | Role::Statistics
        | Role::Workspace => "a step of the optimizer was too large",
    };
    CliError::Run(format!(
        "{error}: {origin}; nothing was written; {}",
        super::AGAINST_DIVERGENCE
    ))
}
