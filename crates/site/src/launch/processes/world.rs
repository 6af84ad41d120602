//! A job as the world of a launch.

use super::Job;
use crate::error::Fault;
use crate::host::Host;
use crate::kernel_set::KernelSet;
use crate::launch::LaunchError;
use crate::launch::memory_baseline::MemoryBaseline;
use crate::launch::ranks::{Listener, RunSetup};
use crate::launch::saving::{MemoryUsage, TensorSink};
use crate::launch::world::World;
use crate::local_ranks::{RankConfig, Ranks};
use partita_mpi::Collectives;
use partita_session::{Outcome, Session};
use partita_space::{Rank, Seconds};
use partita_tune::{HostLayout, LinkSizes, LinkTimes, NetworkTimes};
use std::collections::BTreeSet;
use std::ops::Range;

impl World for Job<'_> {
    fn has_processes(&self) -> bool {
        true
    }

    fn share(&self) -> (usize, usize) {
        (self.rank, self.size)
    }

    fn ranks(&self, asked: Option<usize>, _of_file: usize) -> Result<usize, LaunchError> {
        let size = self.size;
        match asked.filter(|&ranks| ranks != size) {
            None => Ok(size),
            Some(asked) => Err(LaunchError::OtherRanks { asked, size }),
        }
    }

    fn library_collectives(&self) -> Result<Collectives, LaunchError> {
        Ok(Collectives::Library)
    }

    fn set_limit(&self, limit: Seconds) -> Result<(), LaunchError> {
        self.with(|world| {
            world.set_limit(limit);
            Ok(())
        })
    }

    fn local(&self, _ranks: usize, _host: &Host) -> (usize, usize) {
        (self.local.ranks, self.local.cores)
    }

    fn local_ranks(&self, _ranks: usize) -> Range<Rank> {
        self.rank..self.rank + 1
    }

    fn local_cores(&self) -> usize {
        self.local.cores
    }

    fn ranks_of_host(&self, _ranks: usize) -> Vec<Rank> {
        self.of_host.clone()
    }

    fn is_on_one_host(&self) -> bool {
        self.local.ranks == self.size
    }

    fn on_this_host(&self, rank_config: RankConfig) -> Result<Ranks, LaunchError> {
        let ranks = self.pinned_ranks(rank_config.ranks, rank_config)?;
        let is_known = self.is_on_one_host() && ranks.count <= ranks.most();
        Ok(if is_known {
            ranks
        } else {
            Ranks::threads(rank_config.ranks, rank_config.threads)
        })
    }

    fn calibrated_ranks(
        &self,
        rank_config: RankConfig,
    ) -> Result<(Ranks, HostLayout), LaunchError> {
        let uneven = LaunchError::UnevenHosts { ranks: self.size };
        let layout = self.layout.ok_or(uneven)?;
        Ok((
            self.pinned_ranks(layout.ranks_per_host, rank_config)?,
            layout,
        ))
    }

    fn with_heartbeats(&self, work: Box<dyn FnOnce() + Send + '_>) -> Result<(), LaunchError> {
        self.with(|world| {
            world.with_heartbeats(work);
            Ok(())
        })
    }

    fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, LaunchError> {
        self.with(|world| world.broadcast(&own))
    }

    fn meet(&self) -> Result<(), LaunchError> {
        self.wait_for_all()
    }

    fn check_agreement(&self, identity: &dyn Fn() -> String) -> Result<(), LaunchError> {
        let identity = identity();
        let all = self.gather(&identity)?;
        let other = all.iter().position(|one| *one != identity);
        let verdict = other.map(|rank| (rank, all[rank].clone(), identity));
        match self.broadcast_value(&verdict)? {
            None => Ok(()),
            Some((rank, other, own)) => Err(LaunchError::Differ { rank, other, own }),
        }
    }

    fn measure_links(
        &self,
        wanted: (&BTreeSet<usize>, LinkSizes),
        known: &LinkTimes,
        by: (KernelSet, usize),
    ) -> Result<LinkTimes, LaunchError> {
        self.links(wanted, known, by)
    }

    fn measure_network(
        &self,
        layout: HostLayout,
        by: (KernelSet, usize),
    ) -> Result<NetworkTimes, LaunchError> {
        self.network(layout, by)
    }

    fn run(
        &self,
        session: &Session<'_>,
        setup: &RunSetup<'_>,
        collectives: Collectives,
        listener: Listener<'_>,
        baseline: MemoryBaseline,
        sink: &mut dyn TensorSink,
    ) -> Result<Option<(Vec<Outcome>, MemoryUsage)>, LaunchError> {
        self.run_session(session, setup, collectives, listener, baseline, sink)
    }

    fn close(&self) -> Result<(), LaunchError> {
        // No rank leaves before rank 0 is done.
        self.broadcast_value(&())?;
        self.finalize()
    }

    fn shut_down(&self, error: &dyn Fault) -> Option<LaunchError> {
        self.end_with(error)
    }
}

impl Job<'_> {
    /// Ranks of this host, pinned to cores that they hold.
    fn pinned_ranks(&self, count: usize, rank_config: RankConfig) -> Result<Ranks, LaunchError> {
        // Part of the key of measurements.
        let library = self.with(|world| Ok(world.library().version.clone()))?;
        Ok(Ranks {
            cores: self.cores.clone(),
            library: Some(library),
            pinned: self.hold_cores(rank_config)?,
            ..Ranks::threads(count, rank_config.threads)
        })
    }
}
