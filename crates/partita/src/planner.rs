//! A planner: a machine on which strategies are compared.

use crate::context::Context;
use crate::explain::simulated;
use crate::input::{Input, InputRequest, InputSource};
use crate::kernel_set::{KernelSet, menu_of};
use crate::local_machine::{self, LocalMachine, Ranks};
use crate::machine;
use crate::planning::PlanningError;
use crate::search::{Limits, search, search_local};
use crate::software::{self, Reserve};
use crate::training::Training;
use partita_cluster::{LayerPrecision, Machine, Software};
use partita_graph::Graph;
use partita_lower::{Request, Strategy};
use partita_oracle::{
    Costs, MachineCosts, SampleRead, ScaledCosts, SimulateError, Simulation, SpeedFactors,
};
use partita_plan::Candidate;
use partita_program::{Menu, Program};
use partita_space::{Bytes, Seconds};

const KERNELS: KernelSet = KernelSet::CPU;

/// A machine on which strategies are compared.
pub struct Planner<'c> {
    /// Where progress goes, and whether to end early.
    pub context: &'c Context<'c>,
    /// Source of costs.
    pub source: CostSource,
    /// Name of the software.
    pub software: String,
    /// Says so if the software does not exist yet.
    pub not_built: Option<String>,
    /// Where samples come from.
    pub input: Input,
    /// The settings of the software.
    pub settings: Strategy,
    /// Memory of a rank beside programs.
    pub reserve: Reserve,
    /// Time of a search, if it is limited.
    budget: Option<Seconds>,
}

/// What strategies are compared for.
pub struct Target<'t> {
    /// Name or path of a machine file, or the local machine.
    pub machine: &'t str,
    /// Name or path of a software profile.
    pub software: &'t str,
    /// The model.
    pub graph: &'t Graph,
    /// The training.
    pub training: &'t Training,
    /// Memory limit of a rank, if given.
    pub memory: Option<Bytes>,
    /// Where samples come from.
    pub input: InputRequest,
    /// Time of a search, if it is limited.
    pub budget: Option<Seconds>,
}

/// Source of the costs of a machine.
pub enum CostSource {
    /// A machine file.
    Modeled {
        /// The machine of the file.
        machine: Machine,
        /// Costs of its kernels, messages, collectives and reads.
        costs: Box<dyn Costs>,
        /// Memory limit of a rank.
        memory: Bytes,
    },
    /// Measurements of this machine.
    Measured {
        /// Memory limit of a rank, if given.
        memory: Option<Bytes>,
        /// Memory that is available to all ranks together.
        available: Bytes,
        /// Where samples come from.
        input: InputSource,
    },
}

impl<'c> Planner<'c> {
    /// A machine and its software.
    ///
    /// Errors: no such machine or software, too few devices, an unknown input rate, a precision that it lacks.
    pub fn new(context: &'c Context<'c>, target: &Target<'_>) -> Result<Self, PlanningError> {
        let (memory, budget) = (target.memory, target.budget);
        let is_local = machine::is_local(target.machine);
        if is_local {
            check_measured(target.training.precision)?;
            software::check_local(target.software)?;
        }
        let machine = if is_local {
            None
        } else {
            Some(machine::resolve(target.machine, context.environment())?)
        };
        let (software, settings) =
            software::resolve(target.software, machine.as_ref(), context.environment())?;
        let settings = software::settings_for(settings, target.graph);
        let Some(machine) = machine else {
            let input = Input::local(target.input);
            let source = CostSource::Measured {
                memory,
                available: local_machine::memory(context, 1),
                input: input.source,
            };
            return Ok(Self {
                context,
                source,
                not_built: software::not_built(&software),
                software: software.name,
                input,
                settings,
                reserve: Reserve::default(),
                budget,
            });
        };
        machine::check_capacity(&machine, target.training.ranks)?;
        let on = (&machine, &software);
        let input = Input::new(target.graph, target.training, on, target.input)?;
        let reserve = Reserve::new(&software, &machine).keeping(input.kept);
        let source = CostSource::Modeled {
            memory: memory.unwrap_or(machine.device.memory.value),
            costs: costs(on, input.source, target.training.precision)?,
            machine,
        };
        Ok(Self {
            context,
            source,
            not_built: software::not_built(&software),
            software: software.name,
            input,
            settings,
            reserve,
            budget,
        })
    }

    /// Precision of the layers.
    pub fn precision(&self) -> LayerPrecision {
        match &self.source {
            CostSource::Modeled { costs, .. } => costs.precision(),
            CostSource::Measured { .. } => LayerPrecision::F32,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match &self.source {
            CostSource::Modeled { machine, .. } => &machine.name,
            CostSource::Measured { .. } => local_machine::NAME,
        }
    }

    /// Memory limit of each of these ranks.
    pub fn memory(&self, ranks: usize) -> Bytes {
        match &self.source {
            CostSource::Modeled { memory, .. } => *memory,
            CostSource::Measured {
                memory, available, ..
            } => memory.unwrap_or(Bytes(available.0 / ranks as u64)),
        }
    }

    /// What a program of these ranks may fill of that.
    pub fn room(&self, ranks: usize) -> Bytes {
        self.reserve.room(self.memory(ranks))
    }

    /// The kernels of programs; on this machine with what was measured of so many ranks.
    pub fn menu(&self, ranks: usize) -> Box<dyn Menu> {
        if let CostSource::Measured { .. } = &self.source {
            let ranks = Ranks::threads(ranks, local_machine::THREADS);
            return self.context.menu(KERNELS, &ranks);
        }
        let threads = self.threads_of_kernels();
        let kernels = match &self.source {
            CostSource::Modeled { machine, .. } => machine::kernels(machine, None),
            CostSource::Measured { .. } => Some(KERNELS),
        };
        let threads = threads.unwrap_or(local_machine::THREADS);
        menu_of(kernels, threads, self.context.level())
    }

    /// Whether [`Self::menu`] pins kernels.
    pub fn pins_kernels(&self) -> bool {
        self.threads_of_kernels().is_some()
    }

    /// Threads of measured kernels; `None` if kernels are open.
    fn threads_of_kernels(&self) -> Option<usize> {
        match &self.source {
            CostSource::Modeled { machine, .. } => {
                machine.calibration.as_ref().map(|it| it.threads)
            }
            CostSource::Measured { .. } => Some(local_machine::THREADS),
        }
    }

    /// Evaluates all strategies for a number of ranks, best first.
    ///
    /// Errors: as [`search`].
    pub fn plan(
        &self,
        training: Request<'_>,
        ranks: usize,
    ) -> Result<Vec<Candidate>, PlanningError> {
        self.plan_with(training, ranks, (self.memory(ranks), self.budget))
    }

    /// As [`Self::plan`], with another memory limit and budget.
    ///
    /// Errors: as [`search`].
    pub fn plan_with(
        &self,
        training: Request<'_>,
        ranks: usize,
        (memory, budget): (Bytes, Option<Seconds>),
    ) -> Result<Vec<Candidate>, PlanningError> {
        let limits = Limits {
            memory: self.reserve.room(memory),
            budget,
            micro_statistics: true,
        };
        let mut found = match &self.source {
            CostSource::Modeled { costs, .. } => {
                search(self.context, training, ranks, limits, costs.as_ref())?
            }
            CostSource::Measured { input, .. } => search_local(
                self.context,
                training,
                ranks,
                limits,
                self.local(ranks, *input)?,
            )?,
        };
        let predictions = found.iter_mut().filter_map(|one| one.prediction.as_mut());
        predictions.for_each(|prediction| self.reserve.add_to(prediction));
        Ok(found)
    }

    /// The costs of a program.
    ///
    /// Errors: a missing cost.
    pub fn costs(&self, program: &Program) -> Result<Box<dyn Costs + '_>, PlanningError> {
        Ok(match &self.source {
            CostSource::Modeled { costs, .. } => {
                Box::new(ScaledCosts::new(costs.as_ref(), SpeedFactors::default()))
            }
            CostSource::Measured { input, .. } => {
                Box::new(self.local(program.mesh.ranks(), *input)?.costs(program)?)
            }
        })
    }

    fn local(&self, ranks: usize, input: InputSource) -> Result<LocalMachine<'c>, PlanningError> {
        let threads = local_machine::THREADS;
        Ok(LocalMachine::new(
            self.context,
            KERNELS,
            ranks,
            threads,
            input,
        )?)
    }

    /// A simulated step of a program.
    ///
    /// Errors: a missing cost.
    pub fn simulate(&self, program: &Program) -> Result<Simulation, PlanningError> {
        simulated(program, self.costs(program)?.as_ref())
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

/// Costs of software on a machine, with or without input time.
///
/// Errors: an unknown input rate, a precision that the machine lacks.
pub fn costs(
    (machine, software): (&Machine, &Software),
    input: InputSource,
    precision: LayerPrecision,
) -> Result<Box<dyn Costs>, PlanningError> {
    let software = input.applied(software);
    let costs = MachineCosts::new(machine.clone(), software).with_precision(precision);
    let costs = costs.map_err(SimulateError::Cost)?;
    if input.is_left_out() {
        let in_memory = SpeedFactors {
            reading: f64::INFINITY,
            ..SpeedFactors::default()
        };
        return Ok(Box::new(ScaledCosts::new(Box::new(costs), in_memory)));
    }
    let read = SampleRead {
        bytes: Bytes(1),
        bytes_f32: Bytes(1),
        readers: 1,
        parts: 1,
    };
    costs.load(0, read).map_err(SimulateError::Cost)?;
    Ok(Box::new(costs))
}
