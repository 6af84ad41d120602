//! Finds the layer in which values that are not finite begin: repeats the steps up to the one whose loss was not
//! finite, and checks what each kernel reads and writes.

use crate::persistent::set_initial;
use crate::resume::{Failed, Repeat};
use crate::run::SessionRun;
use crate::schedule::ScheduleState;
use crate::steps::PlannedStep;
use partita_program::ProgramKind;
use partita_run::{FiniteCheck, NotFiniteOrigin, RankRunner, RunError};

impl SessionRun<'_, '_> {
    /// Where values began that are not finite on this rank, after the step that showed them.
    ///
    /// Errors: those of the hook and of [`RankRunner::step`].
    pub(crate) fn find_origin(
        &mut self,
        runner: &mut RankRunner<'_>,
        failed: &PlannedStep,
    ) -> Result<Option<NotFiniteOrigin>, RunError> {
        self.staged = None;
        let mut check = FiniteCheck::default();
        if failed.kind != ProgramKind::Train {
            // It changed no parameter.
            self.step(runner, failed, None, Some(&mut check))?;
            return Ok(check.origin());
        }
        let Some(from) = self.set_back(runner)? else {
            return Ok(None);
        };
        let session = self.session;
        let steps = session.steps_from(from);
        let mut training = steps
            .filter(|planned| planned.kind == ProgramKind::Train)
            .peekable();
        while let Some(planned) = training.next() {
            self.schedule = self.schedule_at(planned.epoch);
            let is_failed = planned == *failed;
            // The rate of a plateau changes between epochs.
            let next = training.peek().filter(|_| !is_failed);
            self.step(runner, &planned, next, Some(&mut check))?;
            if is_failed {
                break;
            }
        }
        Ok(check.origin())
    }

    /// Sets the persistent buffers to those of an earlier position.
    fn set_back(&mut self, runner: &mut RankRunner<'_>) -> Result<Option<(u64, u64)>, RunError> {
        let seconds = self.seconds(runner);
        let program = self.session.main_program();
        let (rank, arena) = (runner.rank, &mut runner.arena);
        let failed = Failed {
            steps: self.steps,
            seconds,
            seconds_of_run: seconds - self.start.1,
        };
        Ok(match self.hook.repeat_from(&failed)? {
            Repeat::Nothing => None,
            Repeat::Start => {
                set_initial(program, rank, arena, self.initial)?;
                self.loss_scale[0] = self.loss_scale[1];
                Some(self.from)
            }
            Repeat::From(position, values) => {
                set_initial(program, rank, arena, &*values)?;
                self.loss_scale[0] = self.session.loss_scale_at(position.loss_scale);
                Some((position.epoch, position.done))
            }
        })
    }

    /// What the learning-rate schedule had learned before an epoch.
    fn schedule_at(&self, epoch: u64) -> ScheduleState {
        let mut state = ScheduleState::default();
        let before = self.epochs.iter().take(epoch as usize);
        for validation in before.filter_map(|one| one.validation.as_ref()) {
            self.session
                .plan
                .schedule
                .observe(&mut state, validation.loss);
        }
        state
    }
}
