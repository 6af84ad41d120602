//! Messages and collectives of a job, measured by all its ranks together.

use super::Job;
use crate::host::Host;
use crate::kernel_set::KernelSet;
use crate::launch::LaunchError;
use partita_mpi::Collectives;
use partita_program::Program;
use partita_run::{Arena, RunError, Transport};
use partita_space::{Bytes, Rank};
use partita_tune::{
    HostLayout, LinkSizes, LinkTimes, NetworkTimes, RankTimes, RankTransportMaker, TuneError,
    link_times_of_ranks, measure_links_of_rank, measure_network_of_rank, network_times_of_ranks,
};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

impl Job<'_> {
    /// Measures messages and collectives of groups of these sizes, up to this many bytes, except `known` of rank 0; all ranks call it.
    /// Returns the new times.
    ///
    /// Errors: a transport that fails.
    pub(super) fn links(
        &self,
        (groups, sizes): (&BTreeSet<usize>, LinkSizes),
        known: &LinkTimes,
        (kernels, threads): (KernelSet, usize),
    ) -> Result<LinkTimes, LaunchError> {
        let asked = (groups.clone(), sizes, known.clone());
        let (groups, sizes, known) = self.broadcast_value(&asked)?;
        let layout = self.layout.unwrap_or(HostLayout::single(self.size));
        let arenas = self.arenas(kernels);
        let own = self.measured(threads, &mut |transports| {
            let made = (transports, &arenas as _, self.cache(threads));
            measure_links_of_rank((self.rank, layout), (&groups, sizes), &known, made)
        })?;
        let all: Vec<RankTimes> = self.gather(&own)?;
        let found = match self.rank {
            0 => link_times_of_ranks(layout, (&groups, sizes), &known, &all),
            _ => LinkTimes::default(),
        };
        self.broadcast_value(&found)
    }

    /// Measures messages and collectives between hosts; all ranks call it, and rank 0 gets the times. Empty on one
    /// host.
    ///
    /// Errors: a transport that fails.
    pub(super) fn network(
        &self,
        layout: HostLayout,
        (kernels, threads): (KernelSet, usize),
    ) -> Result<NetworkTimes, LaunchError> {
        let arenas = self.arenas(kernels);
        let own = self.measured(threads, &mut |transports| {
            let made = (transports, &arenas as _, self.cache(threads));
            measure_network_of_rank((self.rank, layout), made)
        })?;
        let all: Vec<RankTimes> = self.gather(&own)?;
        Ok(match self.rank {
            0 => network_times_of_ranks(layout, &all),
            _ => NetworkTimes::new(),
        })
    }

    /// Where messages of this rank are sent from.
    fn arenas(
        &self,
        kernels: KernelSet,
    ) -> impl Fn(Rank, Bytes) -> Result<Arena, RunError> + use<> {
        let slot = self.slot.slot;
        move |rank, bytes| kernels.arena(rank, slot, bytes)
    }

    /// Its part of the caches that a rank has.
    fn cache(&self, threads: usize) -> Bytes {
        let host = Host::local(self.context.level());
        host.cache_of_rank(self.local.ranks, threads)
    }

    /// Measures with transports of this world.
    fn measured(
        &self,
        threads: usize,
        measure: &mut dyn FnMut(&mut RankTransportMaker<'_>) -> Result<RankTimes, TuneError>,
    ) -> Result<RankTimes, LaunchError> {
        let cancel = AtomicBool::new(false);
        let mut transports = |program: &Program| -> Result<Box<dyn Transport + '_>, TuneError> {
            let made = self.with(|world| {
                let spin = self.spin(threads);
                world.transport(
                    program.mesh,
                    &[program],
                    Collectives::Ordered,
                    spin,
                    &cancel,
                )
            });
            let failed = |error: LaunchError| TuneError::Stopped {
                what: "links",
                reason: error.to_string(),
            };
            Ok(Box::new(made.map_err(failed)?))
        };
        measure(&mut transports).map_err(LaunchError::Links)
    }
}
