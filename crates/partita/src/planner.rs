use crate::args::PlanArgs;
use crate::error::CliError;
use crate::kernel_set::KernelSet;
use crate::local_machine::{self, Here};
use crate::machine;
use crate::predict;
use crate::search::{search, search_here};
use partita_cluster::Machine;
use partita_lower::Request;
use partita_oracle::{Costs, Scaled, Simulation, Speeds};
use partita_plan::Candidate;
use partita_program::{Menu, Program, UnpinnedMenu};
use partita_space::Bytes;

const KERNELS: KernelSet = KernelSet::Cpu;

/// A machine on which trainings are planned.
pub enum Planner {
    /// One with a file.
    Modelled {
        /// As in its file.
        machine: Machine,
        /// Of its kernels, messages, collectives and reads.
        costs: Box<dyn Costs>,
        /// Memory that a rank may fill.
        memory: Bytes,
    },
    /// This one.
    Measured {
        /// Memory that a rank may fill, if it is said.
        memory: Option<Bytes>,
        /// Memory that is available to all ranks together.
        available: Bytes,
        /// Whether reading is left out.
        no_io: bool,
    },
}

impl Planner {
    /// The machine that is asked for.
    ///
    /// Errors: no such machine, too few devices, reads of which nothing is known.
    pub fn new(args: &PlanArgs) -> Result<Self, CliError> {
        if machine::is_here(&args.machine) {
            return Ok(Self::Measured {
                memory: args.memory,
                available: local_machine::memory(1),
                no_io: args.no_io,
            });
        }
        let machine = machine::resolve(&args.machine)?;
        machine::check_capacity(&machine, args.training.ranks)?;
        Ok(Self::Modelled {
            memory: args.memory.unwrap_or(machine.device.memory.value),
            costs: predict::costs(&machine, args.no_io)?,
            machine,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Modelled { machine, .. } => &machine.name,
            Self::Measured { .. } => local_machine::NAME,
        }
    }

    /// Memory that each of so many ranks may fill.
    pub fn memory(&self, ranks: usize) -> Bytes {
        match self {
            Self::Modelled { memory, .. } => *memory,
            Self::Measured {
                memory, available, ..
            } => memory.unwrap_or(Bytes(available.0 / ranks as u64)),
        }
    }

    /// The kernels that programs are made of.
    pub fn menu(&self) -> Box<dyn Menu> {
        match self {
            Self::Modelled { machine, .. } => match &machine.calibration {
                Some(calibration) => KERNELS.menu(calibration.threads),
                None => Box::new(UnpinnedMenu),
            },
            Self::Measured { .. } => KERNELS.menu(local_machine::THREADS),
        }
    }

    /// What becomes of all strategies for a number of ranks, best first.
    ///
    /// Errors: as [`search`].
    pub fn plan(&self, training: Request<'_>, ranks: usize) -> Result<Vec<Candidate>, CliError> {
        self.plan_with(training, ranks, self.memory(ranks))
    }

    /// The same with so much memory for each.
    ///
    /// Errors: as [`search`].
    pub fn plan_with(
        &self,
        training: Request<'_>,
        ranks: usize,
        memory: Bytes,
    ) -> Result<Vec<Candidate>, CliError> {
        match self {
            Self::Modelled { costs, .. } => search(training, ranks, memory, costs.as_ref()),
            Self::Measured { no_io, .. } => {
                let here = Here::new(KERNELS, ranks, local_machine::THREADS, *no_io)?;
                search_here(training, ranks, memory, here)
            }
        }
    }

    /// What the work of a program costs.
    ///
    /// Errors: a cost that cannot be had.
    pub fn costs(&self, program: &Program) -> Result<Box<dyn Costs + '_>, CliError> {
        Ok(match self {
            Self::Modelled { costs, .. } => {
                Box::new(Scaled::new(costs.as_ref(), Speeds::default()))
            }
            Self::Measured { no_io, .. } => {
                let ranks = program.mesh.ranks();
                Box::new(Here::new(KERNELS, ranks, local_machine::THREADS, *no_io)?.costs(program)?)
            }
        })
    }

    /// A step of a program, played.
    ///
    /// Errors: a cost that cannot be had.
    pub fn play(&self, program: &Program) -> Result<Simulation, CliError> {
        predict::play(program, self.costs(program)?.as_ref())
    }
}
