//! The machine of a request: described by a file, or this one, which is measured.

mod machines;

pub use machines::{DescribedMachine, MeasuredMachine, TargetMachine};

use crate::budget::MeasuringBudget;
use crate::input::{Input, InputRequest};
use crate::local_machine;
use crate::machine;
use crate::planning::PlanningError;
use crate::search::{Limits, search};
use crate::software::{self, Reserve};
use crate::training::Training;
use partita_cluster::{LayerPrecision, Machine, Software};
use partita_graph::Graph;
use partita_lower::{Request, Strategy};
use partita_plan::RankedStrategy;
use partita_site::kernel_set::KernelSet;
use partita_site::{Context, Ranks};
use partita_space::Bytes;
use std::sync::Arc;

/// A machine with the software on it.
pub struct Target<'c> {
    /// The machine.
    pub machine: Box<dyn TargetMachine + 'c>,
    /// The software.
    pub software: Software,
    /// The settings of the software that concern the model.
    pub settings: Strategy,
    /// Where samples come from.
    pub input: Input,
    /// Memory of a rank beside programs.
    pub reserve: Reserve,
}

/// The machine and the software of a request. Both are read once: their files may be pipes.
pub struct Platform {
    /// The machine of a file; `None` for this one.
    pub machine: Option<Machine>,
    software: Software,
    settings: Strategy,
}

impl Platform {
    /// The machine and the software of these names or files; `here` is this machine.
    ///
    /// Errors: no such machine or software, too few devices, software that is not here.
    pub fn resolve(
        context: &Context,
        (machine, software): (&str, &str),
        ranks: usize,
    ) -> Result<Self, PlanningError> {
        let environment = context.environment();
        let machine = if machine::is_local(machine) {
            software::check_local(software)?;
            None
        } else {
            let machine = machine::resolve(machine, environment)?;
            machine::check_capacity(&machine, ranks)?;
            Some(machine)
        };
        let (software, settings) = software::resolve(software, machine.as_ref(), environment)?;
        Ok(Self {
            machine,
            software,
            settings,
        })
    }
}

impl<'c> Target<'c> {
    /// Samples come from where `input` says. `memory` is the limit of a rank, `kernels` are pinned, both by default as the
    /// machine has them. Kernels of this machine are measured within `budget`.
    ///
    /// Errors: an unknown input rate, a precision that the machine lacks, kernels without their device.
    pub fn new(
        context: &'c Context,
        platform: &Platform,
        (graph, training): (&Graph, &Training),
        input: InputRequest,
        (memory, kernels): (Option<Bytes>, Option<KernelSet>),
        budget: MeasuringBudget,
    ) -> Result<Self, PlanningError> {
        let software = platform.software.clone();
        let settings = software::settings_for(platform.settings.clone(), graph);
        let Some(machine) = platform.machine.clone() else {
            check_measured(training.precision)?;
            let kernels = kernels.unwrap_or(KernelSet::CPU);
            kernels.check_devices()?;
            let ranks = Ranks::threads(training.ranks, local_machine::THREADS);
            let input = Input::local(input);
            let machine = MeasuredMachine::new(
                context,
                (kernels, ranks),
                input.source,
                memory,
                Arc::new(budget),
            );
            return Ok(Self {
                machine: Box::new(machine),
                software,
                settings,
                input,
                reserve: Reserve::default(),
            });
        };
        let input = Input::new(graph, training, (&machine, &software), input)?;
        let reserve = Reserve::new(&software, &machine).keeping(input.kept);
        let asked = (input.source, training.precision);
        let on = (machine, &software);
        let machine = DescribedMachine::new(context, on, asked, (memory, kernels))?;
        Ok(Self {
            machine: Box::new(machine),
            software,
            settings,
            input,
            reserve,
        })
    }

    /// Whether a training may have this precision.
    pub fn has_precision(&self, precision: LayerPrecision) -> bool {
        match self.machine.described() {
            Some(described) => {
                described.has_precision(&self.software, (self.input.source, precision))
            }
            None => check_measured(precision).is_ok(),
        }
    }

    /// Evaluates all strategies for a number of ranks within limits, best first. What the software reserves is taken off
    /// their memory.
    ///
    /// Errors: as [`search`].
    pub fn search(
        &self,
        context: &Context,
        training: Request<'_>,
        ranks: usize,
        limits: Limits,
    ) -> Result<Vec<RankedStrategy>, PlanningError> {
        let limits = Limits {
            memory: self.reserve.room(limits.memory),
            ..limits
        };
        let mut found = search(context, training, ranks, limits, &*self.machine)?;
        let predictions = found.iter_mut().filter_map(|one| one.prediction.as_mut());
        predictions.for_each(|prediction| self.reserve.add_to(prediction));
        Ok(found)
    }
}

/// Refuses a precision that ranks here do not compute in.
///
/// Errors: [`PlanningError::PrecisionHere`].
pub fn check_measured(precision: LayerPrecision) -> Result<(), PlanningError> {
    match precision {
        LayerPrecision::F32 | LayerPrecision::Bf16 | LayerPrecision::F16 => Ok(()),
        LayerPrecision::Tf32 => Err(PlanningError::PrecisionHere(precision)),
    }
}
