//! The cores that the ranks of a job hold.

use super::super::LaunchError;
use super::{HostRanks, Job, RankHost, cores_of_host, ranks_of_host};
use crate::kernel_set::{self, CoreSlot, at_once};
use crate::local_ranks::RankConfig;
use crate::progress::Event;
use partita_space::Rank;

impl Job<'_> {
    /// Holds cores for the threads of this rank, once; all ranks call it. The cores of all ranks of this host, in their
    /// order; empty unless all are pinned.
    pub fn hold_cores(&self, rank_config: RankConfig) -> Result<Vec<usize>, LaunchError> {
        if self.held.get().is_none() {
            let held = self.hold_together(rank_config)?;
            self.held.get_or_init(|| held);
        }
        let held = self.held.get().map_or(&[][..], Vec::as_slice);
        let is_pinned = !held.iter().any(Vec::is_empty);
        Ok(if is_pinned { held.concat() } else { Vec::new() })
    }

    fn hold_together(&self, rank_config: RankConfig) -> Result<Vec<Vec<usize>>, LaunchError> {
        let RankConfig {
            threads, kernels, ..
        } = rank_config;
        let mut among = kernel_set::cores().to_vec();
        let CoreSlot { slot, slots, .. } = self.slot;
        let is_possible = slots * threads <= among.len() && kernels.is_on_processor();
        let wanted = if is_possible { threads } else { 0 };
        // Ranks that share cores begin with their own, so that they do not wait for each other.
        among.rotate_left(slot * wanted);
        let locks = self.context.core_locks();
        let (own, text) = locks.hold(wanted, &among);
        let own = (own, text, locks.is_crowded());
        let all: Vec<(Vec<usize>, Option<String>, bool)> =
            self.broadcast_value(&self.gather(&own)?)?;
        let told = all.iter().enumerate();
        let mut told = told.filter_map(|(rank, (_, text, _))| Some((rank, text.as_ref()?)));
        if let Some((rank, text)) = told.next().filter(|_| self.rank == 0) {
            self.context
                .report(Event::Note(&format!("rank {rank}: {text}")));
        }
        // Where one rank shares its core, none of this host spins.
        if self.of_host.iter().any(|&rank| all[rank].2) {
            locks.set_crowded();
        }
        let held = self.of_host.iter().map(|&rank| all[rank].0.clone());
        Ok(held.collect())
    }

    /// This rank on its host, with the cores that it holds.
    pub(super) fn slot(&self) -> CoreSlot {
        let at = self.of_host.iter().position(|&rank| rank == self.rank);
        let own = self.held.get().zip(at).map(|(held, at)| held[at].clone());
        CoreSlot {
            cores: own.unwrap_or_default(),
            ..self.slot.clone()
        }
    }
}

/// The cores of a rank on its host. Ranks with the same cores divide them; if the launcher gave each its own, or
/// they overlap otherwise, each uses all of its own.
pub(super) fn core_slot(rank_hosts: &[RankHost], rank: Rank) -> (CoreSlot, HostRanks) {
    let own = &rank_hosts[rank];
    let here = ranks_of_host(rank_hosts, rank);
    let local = HostRanks {
        ranks: here.len(),
        cores: at_once(cores_of_host(rank_hosts, rank).len()),
    };
    let are_shared = here.iter().all(|&r| rank_hosts[r].cores == own.cores);
    let slot = if are_shared {
        let slot = here.iter().position(|&r| r == rank).unwrap_or_default();
        let slots = here.len();
        CoreSlot::among(slot, slots, &[])
    } else {
        CoreSlot::among(0, 1, &[])
    };
    (slot, local)
}
