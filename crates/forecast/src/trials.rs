//! Trials: some steps of a training with each of the most promising implementations of its convolutions.

use partita_program::Program;
use partita_site::launch::{Launch, LaunchError};
use partita_site::{RankConfig, Ranks};
use partita_space::{Rank, Seconds};
use partita_tune::TrialTimes;

pub use partita_tune::{TrialMenu, telling};

/// Share of a training that trials may take.
const SHARE_MAX: f64 = 0.02;

/// Trainings whose convolutions are expected to take less are not worth trials.
const TRAINING_MIN: Seconds = Seconds(60.0);

/// The trials of a training, whose ranks run them together.
pub struct Trials<'l> {
    launch: &'l Launch<'l>,
    rank_config: RankConfig,
    ranks: Ranks,
    /// Whether libraries compute convolutions, too.
    with_libraries: bool,
    turns: usize,
    times: TrialTimes,
}

impl<'l> Trials<'l> {
    /// Steps of full batch size of each trial; the first ones, with cold caches and untouched pages, are not measured.
    pub const STEPS: u64 = 5;

    /// The trials for a program that a training runs for so many steps. None where nothing is left to choose, ranks share
    /// cores with each other or with other processes, or, unless they are wanted `in_any_case`, the training is too short for them to pay.
    ///
    /// Errors: more threads than the system allows.
    pub fn of(
        launch: &'l Launch<'l>,
        rank_config: RankConfig,
        (program, steps): (&Program, u64),
        in_any_case: bool,
    ) -> Result<Option<Self>, LaunchError> {
        let ranks = launch.on_this_host(rank_config)?;
        let context = launch.context();
        let kernels = rank_config.kernels;
        // Other hosts may have no library, or another.
        let may_have_libraries = launch.is_on_one_host();
        let pays = || {
            let menu = context.trial_menu((kernels, false), &ranks, 0);
            let seconds = menu.expected_seconds(program) * steps as f64;
            // Which libraries there are is not known yet.
            let turns = || menu.turns(program) + usize::from(may_have_libraries);
            let share = || (turns() as u64 * Self::STEPS) as f64 / steps as f64;
            seconds >= TRAINING_MIN && share() <= SHARE_MAX
        };
        let threads = ranks.count * ranks.threads;
        let is_measurable = kernels.is_on_processor() && threads <= ranks.cores.len();
        let has_processes = launch.has_processes();
        let is_crowded = || !has_processes && context.shares_cores(kernels, threads);
        let choose = || {
            if !is_measurable || !in_any_case && !pays() || is_crowded() {
                return (false, 0);
            }
            let with_libraries =
                may_have_libraries && context.processing(ranks.threads).has_library();
            let menu = context.trial_menu((kernels, with_libraries), &ranks, 0);
            (with_libraries, menu.turns(program))
        };
        let (with_libraries, turns) = launch.choose(|| Ok::<_, LaunchError>(choose()))?;
        Ok((turns > 0).then(|| Self {
            launch,
            rank_config,
            ranks,
            with_libraries,
            turns,
            times: TrialTimes::default(),
        }))
    }

    /// Their menus.
    pub fn menus(&self) -> Vec<TrialMenu<'static>> {
        let kernels = (self.rank_config.kernels, self.with_libraries);
        let menu = |turn| self.launch.context().trial_menu(kernels, &self.ranks, turn);
        (0..self.turns).map(menu).collect()
    }

    /// Adds the times of the tasks of a rank after the trial of a menu.
    pub fn add(&mut self, menu: &TrialMenu<'_>, program: &Program, rank: Rank, tasks: &[Seconds]) {
        self.times.add(menu, program, rank, tasks);
    }

    /// Keeps what was learned with all measured times, on rank 0.
    ///
    /// Errors: other ranks failed meanwhile.
    pub fn keep(self) -> Result<(), LaunchError> {
        let Self {
            launch,
            rank_config,
            ranks,
            times,
            ..
        } = self;
        let context = launch.context();
        launch.on_first(|| {
            context.keep_trials(rank_config.kernels, &ranks, &times.finish());
            Ok::<_, LaunchError>(Some(()))
        })?;
        Ok(())
    }
}
