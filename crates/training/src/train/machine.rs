//! The machine file of a run, which replaces measurements before it.

use super::error::TrainError;
use super::run::Run;
use partita_cluster::Software;
use partita_forecast::{DescribedMachine, InputSource, PlanningError, machine, software};
use partita_site::Context;
use partita_site::kernel_set::KernelSet;

/// A machine of a file, and a warning.
type NamedMachine = (Option<DescribedMachine>, Option<String>);

/// The machine that the run names, with a warning if its kernels are others than those of the run; none where
/// this machine is measured.
///
/// Reading takes no time on a machine whose file system is not described, unless samples stay in memory.
///
/// Errors: no such machine, too few devices.
pub fn named_machine(context: &Context, run: &Run) -> Result<NamedMachine, TrainError> {
    let named = run.machine.as_deref();
    let Some(name) = named.filter(|name| !machine::is_local(name)) else {
        return Ok((None, None));
    };
    let found = machine::resolve(name, context.environment()).map_err(PlanningError::from)?;
    machine::check_capacity(&found, run.ranks).map_err(PlanningError::from)?;
    let (software, _) = software::resolve(Software::OWN, Some(&found), context.environment())
        .map_err(PlanningError::from)?;
    let input = match run.store.input() {
        InputSource::FileSystem if found.io.is_none() => InputSource::Ignored,
        input => input,
    };
    let asked = (input, run.precision.of_layers());
    let machine = DescribedMachine::new(context, (found, &software), asked, (None, None))?;
    let calibration = machine.machine.calibration.as_ref();
    let other = calibration.filter(|it| KernelSet::of_backend(&it.kernels) != run.kernels);
    let warning = other.map(|calibration| {
        format!(
            "the machine file `{name}` has times of `{}`, and this run computes with `{}`: its prediction is of the \
             former; `partita calibrate` with the same `--device` makes one for it",
            calibration.kernels,
            run.kernels.name()
        )
    });
    Ok((Some(machine), warning))
}
