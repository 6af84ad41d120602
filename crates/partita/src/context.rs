//! The context of a verb: the environment, measured times, the progress listener, and a cancellation flag.

use crate::environment::Environment;
use crate::kernel_set::KernelSet;
use crate::local_machine::{Ranks, setting};
use crate::progress::{Event, Progress, Silent};
use crate::times::{NoScratch, Times};
use partita_cpu::Level;
use partita_program::Menu;
use partita_tune::{Catalog, CatalogMenu, Measurements, Setting};
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static NEVER: AtomicBool = AtomicBool::new(false);

/// The context of a verb. A process needs only one, as it holds measured times.
pub struct Context<'c> {
    environment: Environment,
    times: Times,
    progress: &'c dyn Progress,
    cancel: &'c AtomicBool,
    /// What rank 0 of a job has measured.
    shared: OnceLock<Catalog>,
}

impl Context<'static> {
    /// A context without progress listener and cancellation.
    pub fn new(environment: Environment) -> Self {
        Self::watched(environment, &Silent, &NEVER)
    }
}

impl<'c> Context<'c> {
    /// A context that reports to `progress`, and whose work ends early once `cancel` is set.
    pub fn watched(
        environment: Environment,
        progress: &'c dyn Progress,
        cancel: &'c AtomicBool,
    ) -> Self {
        let path = environment.measured_times.clone();
        let temporary = environment.temporary.clone();
        Self {
            environment,
            times: Times::new(path, temporary),
            progress,
            cancel,
            shared: OnceLock::new(),
        }
    }

    /// The environment of the process.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The cancellation flag: ranks end within a second, and partial files are removed.
    pub fn cancel(&self) -> &'c AtomicBool {
        self.cancel
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    pub(crate) fn level(&self) -> Level {
        self.environment.level
    }

    pub(crate) fn report(&self, event: Event<'_>) {
        self.progress.report(event);
    }

    /// Reports the progress of a measurement or a search.
    pub(crate) fn status(&self, text: &str, is_last: bool) {
        self.report(Event::Status { text, is_last });
    }

    pub(crate) fn measurements(&self, setting: &Setting) -> Measurements {
        self.times.measurements(setting, self.progress)
    }

    /// The kernels of ranks on this machine, with all measured configurations.
    pub(crate) fn menu(&self, kernels: KernelSet, ranks: &Ranks) -> Box<dyn Menu + Sync> {
        let menu = kernels.menu(ranks.threads, self.level());
        let catalog = match self.shared.get() {
            Some(catalog) => catalog.clone(),
            None => self.catalog(kernels, ranks),
        };
        if catalog.is_empty() {
            return menu;
        }
        Box::new(CatalogMenu::new(menu, catalog))
    }

    /// The measured configurations of kernels of these ranks.
    pub(crate) fn catalog(&self, kernels: KernelSet, ranks: &Ranks) -> Catalog {
        Catalog::of(&self.measurements(&setting(self, kernels, ranks)))
    }

    /// Makes [`Self::menu`] use this catalog from now on.
    pub(crate) fn share(&self, catalog: Catalog) {
        // A context serves one job, whose ranks all use the first.
        let _ = self.shared.set(catalog);
    }

    pub(crate) fn keep_measurements(&self, setting: &Setting, new: &Measurements) {
        self.times.keep(setting, new, self.progress);
    }

    pub(crate) fn before_measuring(&self) {
        self.times.before_measuring(self.progress);
    }

    pub(crate) fn scratch_file(&self, contents: &[u8]) -> Result<File, NoScratch> {
        self.times.scratch_file(contents, self.progress)
    }
}
