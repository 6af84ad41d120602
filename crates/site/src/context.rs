//! The context of a verb: the environment, measured times, the progress listener, and a cancellation flag.

use crate::cores::CoreLocks;
use crate::environment::Environment;
use crate::kernel_set::{KernelSet, Processing, cores, instructions, spin};
use crate::local_ranks::{PinningTimes, Ranks, in_place, setting};
use crate::progress::{Event, Progress, Silent};
use crate::times::{NoScratch, Times};
use partita_cpu::Level;
use partita_mpi::OnTimeout;
use partita_onednn::{NAME, OneDnn};
use partita_program::{Configuration, Menu};
use partita_space::{Seconds, printable};
use partita_tune::{Catalog, CatalogMenu, Conditions, Measurements, TrialMenu};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The context of a verb, which owns what it holds. A process needs only one, as it holds measured times.
pub struct Context {
    environment: Environment,
    times: Times,
    progress: Arc<dyn Progress>,
    cancel: Arc<AtomicBool>,
    onednn: Arc<OneDnn>,
    core_locks: CoreLocks,
    /// The measured times by which all ranks of a job pin their kernels, by the conditions of the measurements.
    shared: Mutex<BTreeMap<Conditions, Catalog>>,
}

impl Context {
    /// A context without progress listener and cancellation.
    pub fn new(environment: Environment) -> Self {
        Self::watched(environment, Arc::new(Silent), Arc::default())
    }

    /// A context that reports to `progress`, and whose work ends early once `cancel` is set.
    pub fn watched(
        environment: Environment,
        progress: Arc<dyn Progress>,
        cancel: Arc<AtomicBool>,
    ) -> Self {
        let path = environment.measured_times.clone();
        let temporary = environment.temporary.clone();
        let (search, level) = (environment.onednn.clone(), environment.level);
        Self {
            core_locks: CoreLocks::new(environment.core_locks.clone()),
            environment,
            onednn: Arc::new(OneDnn::new(search, instructions(level))),
            times: Times::new(path, temporary),
            progress,
            cancel,
            shared: Mutex::default(),
        }
    }

    /// The environment of the process.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The cancellation flag: ranks end within a second, and partial files are removed.
    pub fn cancel(&self) -> &AtomicBool {
        &self.cancel
    }

    /// What is called when a call of a foreign library does not return.
    pub fn on_timeout(&self) -> OnTimeout {
        let progress = Arc::clone(&self.progress);
        match self.environment.on_timeout {
            Some(call) => Arc::new(call),
            None => Arc::new(move |text| progress.report(Event::Failure(text))),
        }
    }

    /// Whether the work is to end early.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The instruction level of the CPU kernels.
    pub fn level(&self) -> Level {
        self.environment.level
    }

    /// Reports an event to the caller; texts are fit for terminals and logs, whatever names are in them.
    pub fn report(&self, event: Event<'_>) {
        let message = printable::message;
        match event {
            Event::Note(text) => self.progress.report(Event::Note(&message(text))),
            Event::Warning(text) => self.progress.report(Event::Warning(&message(text))),
            Event::Failure(text) => self.progress.report(Event::Failure(&message(text))),
            Event::Status { text, is_last } => {
                let text = &message(text);
                self.progress.report(Event::Status { text, is_last });
            }
            Event::Training { .. }
            | Event::Samples { .. }
            | Event::SamplesStopped
            | Event::Writing
            | Event::Checkpoints { .. }
            | Event::EndedEarly(_) => self.progress.report(event),
        }
    }

    /// Reports the progress of a measurement or a search.
    pub fn status(&self, text: &str, is_last: bool) {
        self.report(Event::Status { text, is_last });
    }

    /// The locks of the cores that ranks are pinned to.
    pub fn core_locks(&self) -> &CoreLocks {
        &self.core_locks
    }

    /// Cores for this many threads of ranks with these kernels, which no other process holds; empty if they are not
    /// pinned.
    pub fn hold_cores(&self, kernels: KernelSet, threads: usize) -> Vec<usize> {
        let wanted = if kernels.is_on_processor() {
            threads
        } else {
            0
        };
        let (own, told) = self.core_locks.hold(wanted, cores());
        if let Some(text) = told {
            self.report(Event::Note(&text));
        }
        own
    }

    /// Whether other processes hold the cores that this many threads of ranks would have.
    pub fn shares_cores(&self, kernels: KernelSet, threads: usize) -> bool {
        self.hold_cores(kernels, threads);
        self.core_locks.is_crowded()
    }

    /// How long a thread that waits for another spins before it sleeps: not at all where others need the cores.
    pub fn spin(&self, ranks: usize, threads: usize, cores: usize) -> Seconds {
        if self.core_locks.is_crowded() {
            return Seconds(0.0);
        }
        spin(ranks, threads, cores)
    }

    /// What kernels of ranks with this many threads compute with.
    pub fn processing(&self, threads: usize) -> Processing {
        Processing {
            threads,
            level: self.level(),
            onednn: Arc::clone(&self.onednn),
        }
    }

    /// The measurements under a setting, those of oneDNN in its present version included.
    pub fn measurements(&self, setting: &Conditions) -> Measurements {
        let mut all = self.times.measurements(setting, &*self.progress);
        // Where nothing of it was measured, it is not loaded.
        let is_onednn =
            |other: &Conditions| other.backend.starts_with(&onednn_backend(setting, ""));
        let may_have =
            self.onednn.is_loaded() || self.times.has_setting(is_onednn, &*self.progress);
        if may_have && let Some(own) = self.onednn_setting(setting) {
            all.merge(&self.times.measurements(&own, &*self.progress));
        }
        all
    }

    /// The version of oneDNN, if the catalog has kernels of it and it is found.
    pub(crate) fn version_for(&self, catalog: &Catalog) -> Option<String> {
        let library = catalog.uses(NAME).then(|| self.onednn.library().ok())??;
        Some(library.version.to_string())
    }

    /// Under which the times of kernels are kept.
    fn setting(&self, kernels: KernelSet, ranks: &Ranks) -> Conditions {
        setting(self.level(), kernels, ranks)
    }

    /// Under which the times of kernels are kept that the library computes; none if there is no library.
    fn onednn_setting(&self, setting: &Conditions) -> Option<Conditions> {
        let version = self.onednn.library().ok()?.version.to_string();
        Some(Conditions {
            backend: onednn_backend(setting, &version),
            ..setting.clone()
        })
    }

    /// The kernels of ranks on this machine, with all measured configurations, and with those that are expected to be
    /// faster where none was measured.
    pub fn menu(&self, kernels: KernelSet, ranks: &Ranks) -> Box<dyn Menu> {
        Box::new(self.catalog_menu((kernels, false), ranks))
    }

    /// The kernels of a turn of trials, with the convolutions of libraries or not; see [`TrialMenu`].
    pub fn trial_menu(
        &self,
        (kernels, with_libraries): (KernelSet, bool),
        ranks: &Ranks,
        turn: usize,
    ) -> TrialMenu<'static> {
        TrialMenu::new(self.catalog_menu((kernels, with_libraries), ranks), turn)
    }

    fn catalog_menu(
        &self,
        (kernels, with_libraries): (KernelSet, bool),
        ranks: &Ranks,
    ) -> CatalogMenu<'static> {
        let catalog = self.job_catalog(kernels, ranks);
        let menu = if with_libraries || catalog.uses(NAME) {
            kernels.menu_with(&self.processing(ranks.threads))
        } else {
            kernels.menu(ranks.threads, self.level())
        };
        CatalogMenu::new(menu, catalog)
    }

    /// The measured configurations of kernels of these ranks: each kernel by itself, or else in trials.
    pub(crate) fn catalog(&self, kernels: KernelSet, ranks: &Ranks) -> Catalog {
        let setting = self.setting(kernels, ranks);
        let mut catalog = Catalog::of(&self.measurements(&setting));
        catalog.complete(&Catalog::of(&self.measurements(&in_place(&setting))));
        catalog
    }

    /// Makes [`Self::menu`] use this catalog for these ranks from now on.
    pub(crate) fn share(&self, kernels: KernelSet, ranks: &Ranks, catalog: Catalog) {
        let setting = self.setting(kernels, ranks);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.insert(setting, catalog);
    }

    /// The catalog of all ranks of the job, or else that of this process.
    pub(crate) fn job_catalog(&self, kernels: KernelSet, ranks: &Ranks) -> Catalog {
        let setting = self.setting(kernels, ranks);
        let shared = || self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let own = shared().get(&setting).cloned();
        own.unwrap_or_else(|| self.catalog(kernels, ranks))
    }

    /// The times by which the kernels of these signatures are pinned in this job.
    pub fn pinning_times(
        &self,
        kernels: KernelSet,
        ranks: &Ranks,
        signatures: &BTreeSet<String>,
    ) -> PinningTimes {
        PinningTimes {
            setting: self.setting(kernels, ranks).to_string(),
            catalog: self.job_catalog(kernels, ranks).of_signatures(signatures),
        }
    }

    /// Keeps what kernels of these ranks took in trials.
    pub fn keep_trials(&self, kernels: KernelSet, ranks: &Ranks, new: &Measurements) {
        self.keep_measurements(&in_place(&self.setting(kernels, ranks)), new);
    }

    /// Keeps measurements under a setting, and those of oneDNN under one that has its version.
    pub fn keep_measurements(&self, setting: &Conditions, new: &Measurements) {
        let is_onednn = |algorithm: &str| {
            let configuration = algorithm.parse::<Configuration>();
            configuration.is_ok_and(|it| it.uses(NAME))
        };
        let (of_onednn, rest) = new.clone().partition(&is_onednn);
        self.times.keep(setting, &rest, &*self.progress);
        if of_onednn.kernels.is_empty() {
            return;
        }
        if let Some(own) = self.onednn_setting(setting) {
            self.times.keep(&own, &of_onednn, &*self.progress);
        }
    }

    /// Warns if measured times cannot be kept.
    pub fn before_measuring(&self) {
        self.times.before_measuring(&*self.progress);
    }

    /// An anonymous temporary file with these contents.
    ///
    /// Errors: no folder can be written.
    pub fn scratch_file(&self, contents: &[u8]) -> Result<File, NoScratch> {
        self.times.scratch_file(contents, &*self.progress)
    }
}

/// The backend of times of the library beside those of other kernels.
fn onednn_backend(setting: &Conditions, version: &str) -> String {
    format!("{}, oneDNN {version}", setting.backend)
}
