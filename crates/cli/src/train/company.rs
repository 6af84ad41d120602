//! Who trains: all ranks as threads of this process, or this process as one rank of a job.

use super::foretell;
use super::processes::Job;
use super::ranks::{self, Listener, Played, World};
use super::run_file::RunFile;
use crate::error::CliError;
use crate::host::Host;
use crate::launcher;
use partita_local::LaunchError;
use partita_lower::Strategy;
use partita_mpi::Collectives;
use partita_oracle::Prediction;
use partita_program::Program;
use partita_run::{RunError, Session};
use partita_space::{Bytes, Seconds};

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
        choose: impl FnOnce() -> Result<Strategy, CliError> + Send,
    ) -> Result<Strategy, CliError> {
        let job = match self {
            Self::Threads => return choose(),
            Self::Processes(job) => job,
        };
        let own = match job.rank() {
            0 => job.while_pulsing(choose)?.to_string(),
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

    /// What the oracle says of ranks that are threads of this machine; of others it knows nothing yet.
    pub fn foretell(
        &self,
        program: &Program,
        run: &RunFile,
    ) -> Result<Option<Prediction>, CliError> {
        match self {
            Self::Threads => foretell::predict_here(program, run.kernels, run.threads),
            Self::Processes(_) => Ok(None),
        }
    }

    /// Plays. Gives what all ranks gave and the memory they took to the process that speaks.
    ///
    /// Errors: the first cause.
    pub fn play(
        &self,
        session: &Session<'_>,
        world: &World<'_>,
        collectives: Collectives,
        listener: Listener,
        peak: impl FnOnce() -> Option<Bytes>,
    ) -> Result<Option<(Played, Option<Bytes>)>, CliError> {
        match self {
            Self::Threads => {
                let played = ranks::play(session, world, listener);
                let peak = peak();
                Ok(Some((played.map_err(|error| failure(&error))?, peak)))
            }
            Self::Processes(job) => job.play(session, world, collectives, listener, peak),
        }
    }

    /// Ends a run that failed: what is to be told by `main`.
    pub fn part(&self, error: CliError) -> CliError {
        match self {
            Self::Threads => error,
            Self::Processes(job) => job.part(error),
        }
    }
}

fn failure(error: &LaunchError) -> CliError {
    match error {
        LaunchError::Rank {
            error: RunError::Cancelled,
            ..
        } => CliError::Interrupted(super::NOTHING_WRITTEN.to_owned()),
        LaunchError::Rank { .. } | LaunchError::Panicked { .. } | LaunchError::NoThread { .. } => {
            CliError::run(error)
        }
    }
}
