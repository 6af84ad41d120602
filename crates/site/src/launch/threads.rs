//! Ranks that are threads of this process.

use super::error::LaunchError;
use super::memory_baseline::MemoryBaseline;
use super::ranks::{self, Listener, RunSetup};
use super::saving::{MemoryUsage, TensorSink};
use super::world::World;
use crate::context::Context;
use crate::error::Fault;
use crate::host::Host;
use crate::kernel_set::{KernelSet, cores};
use crate::local_ranks::{RankConfig, Ranks};
use partita_mpi::Collectives;
use partita_run::Arena;
use partita_session::{Outcome, RunEnd, Session};
use partita_space::{Rank, Seconds};
use partita_tune::{HostLayout, LinkSizes, LinkTimes, NetworkTimes};
use std::collections::BTreeSet;
use std::ops::Range;

/// All ranks of a run, as threads of this process.
pub struct Threads<'c> {
    /// The context of the verb.
    pub context: &'c Context,
}

impl World for Threads<'_> {
    fn has_processes(&self) -> bool {
        false
    }

    fn share(&self) -> (usize, usize) {
        (0, 1)
    }

    fn ranks(&self, asked: Option<usize>, of_file: usize) -> Result<usize, LaunchError> {
        Ok(asked.unwrap_or(of_file))
    }

    fn library_collectives(&self) -> Result<Collectives, LaunchError> {
        Err(LaunchError::NoLibrary)
    }

    fn set_limit(&self, _limit: Seconds) -> Result<(), LaunchError> {
        Ok(())
    }

    fn local(&self, ranks: usize, host: &Host) -> (usize, usize) {
        (ranks, host.cores_usable)
    }

    fn local_ranks(&self, ranks: usize) -> Range<Rank> {
        0..ranks
    }

    fn local_cores(&self) -> usize {
        cores().len()
    }

    fn ranks_of_host(&self, ranks: usize) -> Vec<Rank> {
        (0..ranks).collect()
    }

    fn is_on_one_host(&self) -> bool {
        true
    }

    fn on_this_host(&self, rank_config: RankConfig) -> Result<Ranks, LaunchError> {
        Ok(Ranks::threads(rank_config.ranks, rank_config.threads))
    }

    fn calibrated_ranks(
        &self,
        rank_config: RankConfig,
    ) -> Result<(Ranks, HostLayout), LaunchError> {
        let ranks = self.on_this_host(rank_config)?;
        Ok((ranks, HostLayout::single(rank_config.ranks)))
    }

    fn with_heartbeats(&self, work: Box<dyn FnOnce() + Send + '_>) -> Result<(), LaunchError> {
        work();
        Ok(())
    }

    fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, LaunchError> {
        Ok(own)
    }

    fn meet(&self) -> Result<(), LaunchError> {
        Ok(())
    }

    fn check_agreement(&self, _identity: &dyn Fn() -> String) -> Result<(), LaunchError> {
        Ok(())
    }

    fn measure_links(
        &self,
        _wanted: (&BTreeSet<usize>, LinkSizes),
        _known: &LinkTimes,
        _by: (KernelSet, usize),
    ) -> Result<LinkTimes, LaunchError> {
        Ok(LinkTimes::default())
    }

    fn measure_network(
        &self,
        _layout: HostLayout,
        _by: (KernelSet, usize),
    ) -> Result<NetworkTimes, LaunchError> {
        Ok(NetworkTimes::new())
    }

    fn run(
        &self,
        session: &Session<'_>,
        setup: &RunSetup<'_>,
        _collectives: Collectives,
        listener: Listener<'_>,
        baseline: MemoryBaseline,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, MemoryUsage)>, LaunchError> {
        let (ranks, threads) = (
            session.main_program().mesh.ranks(),
            setup.processing.threads,
        );
        let pinned = self.context.hold_cores(setup.kernels, ranks * threads);
        let spin = self.context.spin(ranks, threads, cores().len());
        let results = ranks::run_ranks(session, setup, listener, (&pinned, spin));
        let peak = baseline.peak_above();
        let results = results?;
        let (outcomes, mut arenas) = (results.outcomes, results.arenas);
        if outcomes[0].end == RunEnd::Finished {
            save(session, &mut arenas, sink)?;
        }
        let usage = MemoryUsage {
            arenas: arenas.iter().map(Arena::bytes).collect(),
            peak,
            peak_saving: baseline.peak_above(),
        };
        Ok(Some((outcomes, usage)))
    }

    fn close(&self) -> Result<(), LaunchError> {
        Ok(())
    }

    fn shut_down(&self, _error: &dyn Fault) -> Option<LaunchError> {
        None
    }
}

/// Passes all tensors to the sink until they are saved.
fn save(
    session: &Session<'_>,
    arenas: &mut [Arena],
    sink: &mut dyn TensorSink,
) -> Result<(), LaunchError> {
    loop {
        for tensor in session.persistent_tensors() {
            let holders = tensor.holders.iter();
            let shares = holders.map(|&it| session.shard(it, &mut arenas[it.0]));
            sink.keep(&tensor, session.assemble(&tensor, shares));
        }
        if sink.finish()? {
            return Ok(());
        }
    }
}
