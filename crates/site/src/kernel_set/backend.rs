//! What a backend is.

use super::{CoreSlot, Precision, Processing};
use partita_cpu::Level;
use partita_gpu::{Device, DeviceError, DeviceKind};
use partita_program::Menu;
use partita_run::{Arena, Kernels, RunError};
use partita_space::{Bytes, Mesh, Rank};
use std::sync::Arc;

/// Where kernels come from.
pub(super) trait Backend: Sync {
    /// Its name on the command line, in run files and JSON, and in databases of measured times.
    fn name(&self) -> &'static str;

    /// What its kernels are.
    fn about_kernels(&self) -> &'static str;

    /// What it computes on.
    fn about_devices(&self) -> &'static str;

    /// Its devices, looked for by the first call; none for the processor.
    fn devices(&self) -> Option<Result<&'static [Arc<Device>], DeviceError>> {
        None
    }

    /// The kind of its devices; none for the processor.
    fn device_kind(&self) -> Option<DeviceKind> {
        None
    }

    /// Whether it supports this type.
    fn offers(&self, precision: Precision) -> bool;

    /// Its catalog for a rank with these threads.
    fn menu(&self, threads: usize, level: Level) -> Box<dyn Menu>;

    /// As [`Self::menu`], with what libraries add to it.
    fn menu_with(&self, processing: &Processing) -> Box<dyn Menu> {
        self.menu(processing.threads, processing.level)
    }

    /// Memory of the rank of a slot, where its kernels work.
    ///
    /// Errors: there is not so much.
    fn arena(&self, rank: Rank, _slot: usize, bytes: Bytes) -> Result<Arena, RunError> {
        Arena::of_rank(rank, bytes)
    }

    /// The kernels of a rank, made on the thread that runs them.
    ///
    /// Errors: threads cannot be started, or a device cannot be used.
    fn kernels(
        &self,
        precision: Precision,
        at: (Mesh, Rank),
        slot: &CoreSlot,
        processing: &Processing,
    ) -> Result<Box<dyn Kernels>, RunError>;
}
