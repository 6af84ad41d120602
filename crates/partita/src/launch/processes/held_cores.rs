//! The cores that the ranks of a job hold.

use super::super::{LaunchError, RankConfig};
use super::Job;
use crate::kernel_set::{self, CoreSlot, KernelSet};
use crate::progress::Event;

impl Job<'_> {
    /// Holds cores for the threads of this rank, once; all ranks call it. The cores of all ranks of this host, in their
    /// order; empty unless all are pinned.
    pub fn hold_cores(&self, rank_config: RankConfig) -> Result<Vec<usize>, LaunchError> {
        if self.held.get().is_none() {
            let held = self.hold_together(rank_config)?;
            self.held.get_or_init(|| held);
        }
        let held = self.held.get().map_or(&[][..], Vec::as_slice);
        match held.iter().any(Vec::is_empty) {
            true => Ok(Vec::new()),
            false => Ok(held.concat()),
        }
    }

    fn hold_together(&self, rank_config: RankConfig) -> Result<Vec<Vec<usize>>, LaunchError> {
        let RankConfig {
            threads, kernels, ..
        } = rank_config;
        let mut among = kernel_set::cores().to_vec();
        let CoreSlot { slot, slots, .. } = self.slot;
        let is_possible = slots * threads <= among.len() && kernels == KernelSet::Cpu;
        let wanted = if is_possible { threads } else { 0 };
        // Ranks that share cores begin with their own, so that they do not wait for each other.
        among.rotate_left(slot * wanted);
        let own = self.context.core_locks().hold(wanted, &among);
        let all: Vec<(Vec<usize>, Option<String>)> = self.broadcast(&self.gather(&own)?)?;
        let told = all.iter().enumerate();
        let mut told = told.filter_map(|(rank, (_, text))| Some((rank, text.as_ref()?)));
        if let Some((rank, text)) = told.next().filter(|_| self.rank == 0) {
            self.context
                .report(Event::Note(&format!("rank {rank}: {text}")));
        }
        let held = self.of_host.iter().map(|&rank| all[rank].0.clone());
        let held: Vec<Vec<usize>> = held.collect();
        if wanted > 0 && held.iter().any(Vec::is_empty) {
            self.context.core_locks().set_crowded();
        }
        Ok(held)
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
