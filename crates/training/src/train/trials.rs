//! Kernels tried before the first step: some steps for each of the most promising implementations of convolutions, on made-up
//! samples, whose results are forgotten.

use super::error::TrainError;
use super::offload::Samples;
use super::run::Run;
use super::run_file::LiveTuning;
use super::start::initial_values;
use super::{check, checkpoint, plan, programs};
use crate::weights::LoadedWeights;
use partita_data::Split;
use partita_data::order::epoch_samples;
use partita_forecast::{PinnedConvolutions, TrialMenu, Trials, telling};
use partita_formats::DType;
use partita_input::{HyperslabSource, Loading, PieceMaker, PieceReader};
use partita_lower::{Strategy, WorkspaceLimit};
use partita_program::{Menu, ProgramKind};
use partita_run::{NoSink, PackedTensor, SystemClock};
use partita_session::{LearningRateSchedule, Outcome, PersistentTensor, Plan, Programs, Session};
use partita_site::Event;
use partita_site::launch::{Launch, MemoryBaseline, NotSaved, RunSetup, TensorSink};
use partita_space::Seconds;
use std::time::Instant;

/// By what the convolutions of a training run.
#[derive(Clone, Debug)]
pub struct PinnedKernels {
    /// Those of a step of rank 0.
    pub convolutions: PinnedConvolutions,
    /// In how many trials kernels were tried before.
    pub trials: usize,
}

/// The session of a training and its kernels, prepared again if trials have told what is faster. A run that resumes tries
/// nothing, so that it goes on with the kernels that it had.
///
/// Errors: those of a training.
pub fn tried<'s>(
    launch: &Launch<'_>,
    run: &Run,
    samples: Samples<'_>,
    (strategy, stored, start): (&Strategy, DType, Option<&LoadedWeights>),
    (menu, session): (Box<dyn Menu>, Session<'s>),
    prepare: impl Fn(&dyn Menu) -> Result<Session<'s>, TrainError>,
) -> Result<(Session<'s>, PinnedKernels), TrainError> {
    let tried = Tried {
        launch,
        run,
        samples,
        strategy,
        stored,
        start,
    };
    let (menu, session, trials) = match tried.menu(&session)? {
        Some((menu, trials)) => {
            drop(session);
            let session = prepare(&*menu)?;
            (menu, session, trials)
        }
        None => (menu, session, 0),
    };
    let kernels = PinnedKernels {
        convolutions: PinnedConvolutions::of(session.main_program().body(0), &*menu),
        trials,
    };
    if launch.is_first() && !kernels.convolutions.is_plain() {
        let text = kernels.convolutions.to_string();
        launch.context().report(Event::Note(&text));
    }
    Ok((session, kernels))
}

/// Kernels by what trials have told, and how many these were.
type Learned = (Box<dyn Menu>, usize);

/// A training whose kernels may be tried.
struct Tried<'t> {
    launch: &'t Launch<'t>,
    run: &'t Run,
    samples: Samples<'t>,
    strategy: &'t Strategy,
    stored: DType,
    start: Option<&'t LoadedWeights>,
}

impl Tried<'_> {
    /// None if nothing was tried.
    fn menu(&self, session: &Session<'_>) -> Result<Option<Learned>, TrainError> {
        let (launch, run) = (self.launch, self.run);
        let steps = self.steps_per_epoch();
        let is_open = self.strategy.workspace == WorkspaceLimit::Live && !run.is_resumed;
        if run.tune == LiveTuning::Off || steps == 0 || !is_open {
            return Ok(None);
        }
        let all = (steps * run.epochs) as u64;
        let subject = (session.main_program(), all);
        let in_any_case = run.tune == LiveTuning::Always;
        let trials = Trials::of(launch, run.rank_config(), subject, in_any_case)?;
        let Some(mut trials) = trials else {
            return Ok(None);
        };
        let begin = Instant::now();
        let menus = trials.menus();
        let programs = self.programs(&menus)?;
        launch.check_agreement(|| {
            let digests = programs.iter().map(|programs| programs[0].step.digest());
            digests.collect::<Vec<_>>().join(" ")
        })?;
        let steps = programs.iter().map(|programs| &programs[0].step);
        let tells = telling(&menus.iter().zip(steps).collect::<Vec<_>>());
        let count = tells.iter().filter(|tells| **tells).count();
        if count == 0 {
            return Ok(None);
        }
        let all = menus.iter().zip(programs).zip(tells);
        let all = all.filter_map(|(trial, tells)| tells.then_some(trial));
        for (number, (menu, programs)) in (1..).zip(all) {
            let text = format!("trying kernels, trial {number} of {count}");
            launch.context().status(&text, number == count);
            self.run_trial(&mut trials, menu, programs)?;
        }
        trials.keep()?;
        if launch.is_first() {
            let text = format!(
                "kernels were tried in {count} trials of {} steps, {}; `tune = \"off\"` leaves that out",
                Trials::STEPS,
                Seconds(begin.elapsed().as_secs_f64())
            );
            launch.context().report(Event::Note(&text));
        }
        let menu = launch.menu_anew(run.rank_config(), None)?;
        Ok(Some((menu, count)))
    }

    /// Those of full batch size.
    fn steps_per_epoch(&self) -> usize {
        let (_, _, preprocessing) = self.samples;
        let [training, _] = self.run.samples(&preprocessing.sampling);
        training / self.run.batch
    }

    /// The steps of an epoch of a trial.
    fn steps_of_trial(&self) -> usize {
        self.steps_per_epoch().min(Trials::STEPS as usize)
    }

    /// The programs of a step with each of the menus.
    fn programs(&self, menus: &[TrialMenu<'_>]) -> Result<Vec<Vec<Programs>>, TrainError> {
        let (run, (graph, _, _)) = (self.run, self.samples);
        let (strategy, stored) = (self.strategy, self.stored);
        let kinds = [(ProgramKind::Train, run.batch)];
        let of = |menu| programs::programs(run, menu, graph, strategy, stored, &kinds);
        self.launch
            .prepare(|| menus.iter().map(|menu| of(menu)).collect())
    }

    fn run_trial(
        &self,
        trials: &mut Trials<'_>,
        menu: &TrialMenu<'_>,
        programs: Vec<Programs>,
    ) -> Result<(), TrainError> {
        let (_, _, preprocessing) = self.samples;
        let run = self.run;
        let all = preprocessing.sampling.samples(Split::Train);
        let samples = self.steps_of_trial() * run.batch;
        let order = |epoch| epoch_samples(run.seed, epoch, all, samples);
        let session = Session::new(
            programs,
            Plan {
                epochs: Trials::STEPS.div_ceil(self.steps_of_trial() as u64),
                schedule: LearningRateSchedule::Constant { rate: 0.0 },
                validation: Vec::new(),
                sample_dice: false,
                traces_kept: 0,
                ..plan(run, self.samples, &order, &|_| false, Vec::new())
            },
        )?;
        for outcome in self.run_session(&session)?.into_iter().flatten() {
            let tasks = &outcome.task_seconds;
            trials.add(menu, session.main_program(), outcome.rank, tasks);
        }
        Ok(())
    }

    /// The outcomes of all ranks, in the process that has them.
    fn run_session(&self, session: &Session<'_>) -> Result<Option<Vec<Outcome>>, TrainError> {
        let (launch, run, start) = (self.launch, self.run, self.start);
        let (graph, dataset, preprocessing) = self.samples;
        let context = launch.context();
        let mesh = session.main_program().mesh;
        let accepted = check::accepted(run, graph);
        let loading = Loading {
            is_synthetic: true,
            ..Loading::default()
        };
        let setup = RunSetup {
            kernels: run.kernels,
            precision: run.precision,
            processing: context.processing(run.threads),
            watchdog: run.watchdog,
            cancel: context.cancel(),
            source: &|rank, wake| {
                let maker = PieceMaker::new(dataset, preprocessing, mesh, rank);
                let reader = PieceReader::new(dataset, preprocessing.clone(), accepted);
                let reader = reader.with_loading(dataset, rank, loading.clone());
                let source = HyperslabSource::of_pieces(maker, reader, None, rank, wake)?;
                Ok(Box::new(source))
            },
            loading: &loading,
            sink: &|_| Ok(Box::new(NoSink)),
            clock: SystemClock::start(),
            initial: &|buffer, elements| initial_values(graph, run.seed, start, buffer, elements),
            position: &checkpoint::start(None),
            hook: &checkpoint::Off,
            validators: None,
            joins: None,
            is_followed: true,
            on_epoch: None,
            shares_loads: false,
        };
        let results = launch.run(
            session,
            &setup,
            run.collectives,
            Box::new(|_| {}),
            MemoryBaseline::set(),
            &mut Forgotten,
        )?;
        Ok(results.map(|(outcomes, _)| outcomes))
    }
}

/// What trials train.
struct Forgotten;

impl TensorSink for Forgotten {
    fn keep(&mut self, _: &PersistentTensor, _: PackedTensor) {}

    fn finish(&mut self) -> Result<bool, NotSaved> {
        Ok(true)
    }
}
