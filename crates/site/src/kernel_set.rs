//! Kernel sets, and the cores that kernels run on.

mod backend;
mod backends;
pub mod devices;
mod joined;

use crate::cores::allowed;
use crate::host;
use backend::Backend;
use backends::{BACKENDS, Cpu, Reference};
use devices::DeviceUseError;
use partita_cluster::LayerPrecision;
use partita_cpu::{Level, Team, TeamError};
use partita_gpu::{Device, DeviceFacts, DeviceKind};
use partita_onednn::{Instructions, OneDnn};
use partita_program::{Dtype, Menu, UnpinnedMenu};
use partita_run::{Arena, Kernels, RunError};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A kernel set: that of one of the backends. Equal by name.
#[derive(Clone, Copy)]
pub struct KernelSet(&'static dyn Backend);

impl PartialEq for KernelSet {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for KernelSet {}

impl std::fmt::Debug for KernelSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Element types of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// 64-bit floats.
    F64,
    /// Activations and their gradients in bf16, all else in 32-bit floats.
    Bf16,
    /// Activations and their gradients in f16, all else in 32-bit floats; gradients are scaled.
    F16,
}

/// A part of the cores of a host. The slot of a rank is its number among threads, and its number on the host
/// among processes; while kernels are measured, all slots run kernels of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSlot {
    /// Index, from 0.
    pub slot: usize,
    /// Number of slots.
    pub slots: usize,
    /// The cores that its threads are pinned to, one each; empty if they are not.
    pub cores: Vec<usize>,
}

impl CoreSlot {
    /// Its part of the cores that all slots are pinned to, if they are.
    pub fn among(slot: usize, slots: usize, pinned: &[usize]) -> Self {
        let each = pinned.len() / slots;
        let cores = pinned[slot * each..(slot + 1) * each].to_vec();
        Self { slot, slots, cores }
    }
}

/// What the kernels of each rank compute with.
#[derive(Clone, Debug)]
pub struct Processing {
    /// Threads per rank.
    pub threads: usize,
    /// Instruction level.
    pub level: Level,
    /// Of which convolutions may be taken.
    pub onednn: Arc<OneDnn>,
}

impl Processing {
    /// Whether a library computes convolutions on ranks of these threads.
    pub fn has_library(&self) -> bool {
        let library = self.onednn.library();
        library.is_ok_and(|library| library.runs_on(self.threads))
    }
}

/// The instructions that oneDNN may use where kernels have this level.
pub(crate) fn instructions(level: Level) -> Instructions {
    match level {
        Level::Portable => Instructions::Least,
        Level::Avx2 => Instructions::Avx2,
        Level::Neon | Level::Avx512 | Level::Avx512Bf16 => Instructions::All,
    }
}

/// The kernel catalog of a set for a rank with these threads; `None` leaves kernels open.
pub fn menu_of(kernels: Option<KernelSet>, threads: usize, level: Level) -> Box<dyn Menu> {
    match kernels {
        Some(kernels) => kernels.menu(threads, level),
        None => Box::new(UnpinnedMenu),
    }
}

impl Precision {
    /// Names in run files.
    pub const CHOICES: [(&str, Self); 4] = [
        ("f32", Self::F32),
        ("f64", Self::F64),
        ("bf16", Self::Bf16),
        ("f16", Self::F16),
    ];

    /// The dtype in programs.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F64 => Dtype::F64,
            Self::Bf16 => Dtype::Bf16,
            Self::F16 => Dtype::F16,
        }
    }

    /// That of the layers on a machine that is described by a file; those in f64 are taken for such in f32.
    pub fn of_layers(self) -> LayerPrecision {
        match self {
            Self::F32 | Self::F64 => LayerPrecision::F32,
            Self::Bf16 => LayerPrecision::Bf16,
            Self::F16 => LayerPrecision::F16,
        }
    }

    /// Its name in run files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl KernelSet {
    /// Fast kernels, on the processor.
    pub const CPU: Self = Self(&Cpu);
    /// Reference kernels: plain loops.
    pub const REFERENCE: Self = Self(&Reference);

    /// All kernel sets, in the order in which they are listed as choices.
    pub fn all() -> impl Iterator<Item = Self> {
        BACKENDS.iter().map(|&backend| Self(backend))
    }

    /// Those that `device` in a run file chooses among: the processor, and devices.
    pub fn devices_to_choose() -> impl Iterator<Item = Self> {
        Self::all().filter(|set| *set == Self::CPU || set.is_on_device())
    }

    /// Those that `kernels` in a run file chooses among.
    pub fn kernels_to_choose() -> impl Iterator<Item = Self> {
        Self::all().filter(|set| !set.is_on_device())
    }

    /// The set of devices of a kind; none if no backend has such.
    pub fn of_devices(kind: DeviceKind) -> Option<Self> {
        Self::all().find(|set| set.0.device_kind() == Some(kind))
    }

    /// Its name on the command line, in run files and in JSON.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// What its kernels are.
    pub fn about_kernels(self) -> &'static str {
        self.0.about_kernels()
    }

    /// What it computes on.
    pub fn about_devices(self) -> &'static str {
        self.0.about_devices()
    }

    fn is_on_device(self) -> bool {
        self.0.device_kind().is_some()
    }

    /// The set where kernels compute on a chosen device, which is looked for.
    ///
    /// Errors: there is no such device, or it has no such kernels.
    pub fn on(self, device: Self, precision: Precision) -> Result<Self, DeviceUseError> {
        if !device.is_on_device() {
            return Ok(self);
        }
        if self == Self::REFERENCE {
            return Err(DeviceUseError::Reference);
        }
        device.check_devices()?;
        if device.offers(precision) {
            Ok(device)
        } else {
            Err(DeviceUseError::Precision)
        }
    }

    /// Errors: it needs a device that is not there.
    pub fn check_devices(self) -> Result<(), DeviceUseError> {
        self.0.devices().transpose()?;
        Ok(())
    }

    /// The set of a name of [`Self::backend`], which may be that of another machine: the fast kernels of the processor
    /// unless its first word is that of another backend.
    pub fn of_backend(name: &str) -> Self {
        let word = name.split([' ', ',']).next();
        let mut all = Self::all();
        all.find(|set| Some(set.name()) == word)
            .unwrap_or(Self::CPU)
    }

    /// Whether it is the fast kernels of the processor, whose threads are held on cores.
    pub fn is_on_processor(self) -> bool {
        self == Self::CPU
    }

    fn found(self) -> Option<&'static [Arc<Device>]> {
        self.0.devices()?.ok()
    }

    /// Number of devices; none for the processor.
    pub fn devices(self) -> Option<usize> {
        self.found().map(<[_]>::len)
    }

    /// What the first device says of itself; none for the processor.
    pub fn device_facts(self) -> Option<&'static DeviceFacts> {
        self.found()?.first().map(|device| device.facts())
    }

    /// Under which name times of its kernels are kept: that of a device includes the device and its driver.
    pub fn backend(self) -> String {
        let own = format!("{} {}", self.name(), env!("CARGO_PKG_VERSION"));
        match self.device_facts() {
            Some(facts) => format!("{own}, {}, {}", facts.name, facts.version),
            None => own,
        }
    }

    /// The memory of the device of each rank, for `ranks` ranks of this process; none for the processor.
    pub fn device_memory(self, ranks: usize) -> Option<Bytes> {
        let all = self.found()?;
        let each = ranks.div_ceil(all.len()) as u64;
        let of = |device: &Arc<Device>| {
            let facts = device.facts();
            Bytes(facts.memory.0 / each).min(facts.largest)
        };
        all.iter().map(of).min()
    }

    /// Whether it supports this type.
    pub fn offers(self, precision: Precision) -> bool {
        self.0.offers(precision)
    }

    /// Its kernels for a rank with these threads, without measured configurations.
    pub fn menu(self, threads: usize, level: Level) -> Box<dyn Menu> {
        // Recorded before any thread is pinned.
        let _ = cores();
        self.0.menu(threads, level)
    }

    /// As [`Self::menu`], with what libraries add to it, such as the convolutions of oneDNN.
    pub fn menu_with(self, processing: &Processing) -> Box<dyn Menu> {
        let _ = cores();
        self.0.menu_with(processing)
    }

    /// Memory of the rank of a slot, as its kernels have it, for messages without kernels.
    ///
    /// Errors: there is not so much.
    pub fn arena(self, rank: Rank, slot: usize, bytes: Bytes) -> Result<Arena, RunError> {
        self.0.arena(rank, slot, bytes)
    }

    /// The kernels of a rank, made on the thread that runs them, which is pinned if the slot has cores.
    ///
    /// Errors: threads cannot be started.
    pub fn kernels(
        self,
        precision: Precision,
        mesh: Mesh,
        rank: Rank,
        slot: &CoreSlot,
        processing: &Processing,
    ) -> Result<Box<dyn Kernels>, RunError> {
        self.0.kernels(precision, (mesh, rank), slot, processing)
    }
}

/// Cores that this process may use, as of the first call, one thread of each physical core first.
pub fn cores() -> &'static [usize] {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    CORES.get_or_init(allowed)
}

/// How long a waiting thread spins before it sleeps.
///
/// Waking a thread takes longer than most messages and many kernels. But if there are more threads than cores,
/// or than the CPU quota of the cgroup, the thread that it waits for may need its core.
pub fn spin(ranks: usize, threads: usize, cores: usize) -> Seconds {
    let has_room = ranks * threads <= at_once(cores);
    Seconds(if has_room { 1e-3 } else { 0.0 })
}

/// How many of these cores the CPU quota of the cgroup lets this process use at once.
pub fn at_once(cores: usize) -> usize {
    static QUOTA: OnceLock<f64> = OnceLock::new();
    let quota = *QUOTA.get_or_init(|| host::cores_quota().unwrap_or(f64::INFINITY));
    cores.min(quota.max(1.0) as usize)
}

/// A warning if there are more threads than cores: measured times are then unreliable.
pub fn oversubscription(ranks: usize, threads: usize, cores: usize) -> Option<String> {
    let all = ranks * threads;
    (all > cores).then(|| {
        let threads_busy = threads.min(cores);
        let ranks_busy = (cores / threads_busy).max(1);
        format!(
            "{ranks} rank(s) of {threads} thread(s) share {cores} core(s) and take turns: a step takes about {:.0} times \
             as long as with {all} cores, and measured times do not hold for these; {ranks_busy} rank(s) of \
             {threads_busy} thread(s) keep the cores busy",
            all as f64 / cores as f64
        )
    })
}

fn team(slot: &CoreSlot, processing: &Processing) -> Result<Team, TeamError> {
    let (threads, level) = (processing.threads, processing.level);
    if slot.cores.is_empty() {
        return Team::new(threads, level);
    }
    // If the system refuses to pin, the threads run unpinned.
    let mut team = Team::pinned(&slot.cores, level).or_else(|_| Team::new(threads, level))?;
    let limit = spin(slot.slots, threads, slot.slots * threads);
    team.spin_for(Duration::from_secs_f64(limit.0));
    Ok(team)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_are_told_with_their_cost() {
        assert_eq!(oversubscription(2, 1, 2), None);
        let text = oversubscription(64, 1, 2).unwrap();
        assert!(
            text.contains("64 rank(s) of 1 thread(s) share 2 core(s)"),
            "{text}"
        );
        assert!(
            text.contains("about 32 times as long as with 64 cores"),
            "{text}"
        );
        assert!(text.contains("; 2 rank(s) of 1 thread(s) keep"), "{text}");
        let text = oversubscription(3, 4, 8).unwrap();
        assert!(text.contains("; 2 rank(s) of 4 thread(s) keep"), "{text}");
        let text = oversubscription(1, 8, 2).unwrap();
        assert!(text.contains("; 1 rank(s) of 2 thread(s) keep"), "{text}");
    }
    use partita_onednn::LibrarySearch;
    use std::collections::BTreeSet;

    /// The cores of kernels that are made on a thread of their own.
    fn cores_of(rank: Rank, slot: usize) -> Vec<usize> {
        let mesh = Mesh::new([2, 1, 1, 1, 1, 1, 1]);
        let made = move || {
            let pinned = cores().get(..2).unwrap_or_default();
            let own = CoreSlot::among(slot, 2, pinned);
            let processing = Processing {
                threads: 1,
                level: Level::detect(),
                onednn: Arc::new(OneDnn::new(LibrarySearch::Off, Instructions::All)),
            };
            let kernels = KernelSet::CPU.kernels(Precision::F32, mesh, rank, &own, &processing);
            let ids = core_affinity::get_core_ids().unwrap();
            drop(kernels.unwrap());
            ids.into_iter().map(|core| core.id).collect()
        };
        std::thread::spawn(made).join().unwrap()
    }

    #[test]
    fn kernels_of_one_rank_lie_on_the_cores_of_their_slots() {
        let all = cores();
        let seen = [
            cores_of(0, 0),
            cores_of(0, 1),
            cores_of(1, 0),
            cores_of(1, 1),
        ];
        if all.len() < 2 {
            assert!(seen.iter().all(|cores| cores == all), "nothing to pin to");
            return;
        }
        for (cores, slot) in seen.iter().zip([0, 1, 0, 1]) {
            assert_eq!(cores, &all[slot..=slot], "of all in {seen:?}");
        }
        let distinct: BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), 2);
    }
}
