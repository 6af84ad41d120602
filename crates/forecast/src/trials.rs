//! Trials: some steps of a training with each of the most promising implementations of its convolutions.

use partita_program::Program;
use partita_site::launch::{Launch, LaunchError};
use partita_site::{RankConfig, Ranks};
use partita_space::{Rank, Seconds};
use partita_tune::TrialTimes;

pub use partita_tune::{TrialMenu, telling};

/// Steps of a trial for each that is measured: the first ones find cold caches and untouched pages.
const STEPS: u64 = 5;

/// Share of a training that trials may take.
const SHARE_MAX: f64 = 0.02;

/// Trainings whose convolutions are expected to take less are not worth trials.
const TRAINING_MIN: Seconds = Seconds(60.0);

/// The trials of a training, whose ranks run them together.
pub struct Trials<'l> {
    launch: &'l Launch<'l>,
    rank_config: RankConfig,
    ranks: Ranks,
    turns: usize,
    times: TrialTimes,
}

impl<'l> Trials<'l> {
    /// Steps of full batch size of each trial.
    pub const STEPS: u64 = STEPS;

    /// The trials for a program that a training runs for so many steps. None where nothing is left to choose, ranks share
    /// cores, or, unless they are wanted `in_any_case`, the training is too short for them to pay.
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
        let is_measurable = || {
            let threads = ranks.count * ranks.threads;
            rank_config.kernels.is_on_processor() && threads <= ranks.cores.len()
        };
        let turns = || {
            if !is_measurable() {
                return 0;
            }
            let menu = context.trial_menu(rank_config.kernels, &ranks, 0);
            let turns = menu.turns(program);
            let seconds = menu.expected_seconds(program) * steps as f64;
            let share = (turns as u64 * STEPS) as f64 / steps as f64;
            let pays = seconds >= TRAINING_MIN && share <= SHARE_MAX;
            if pays || in_any_case { turns } else { 0 }
        };
        let turns = launch.choose(|| Ok::<_, LaunchError>(turns()))?;
        Ok((turns > 0).then(|| Self {
            launch,
            rank_config,
            ranks,
            turns,
            times: TrialTimes::default(),
        }))
    }

    /// Their menus.
    pub fn menus(&self) -> Vec<TrialMenu<'static>> {
        let (kernels, context) = (self.rank_config.kernels, self.launch.context());
        let turns = 0..self.turns;
        turns
            .map(|turn| context.trial_menu(kernels, &self.ranks, turn))
            .collect()
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
