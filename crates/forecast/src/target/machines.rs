//! Machines on which programs are costed: described or measured.

use crate::budget::MeasuringBudget;
use crate::explain::simulated;
use crate::input::InputSource;
use crate::local_machine::{self, LocalError, LocalMachine};
use crate::machine;
use crate::planning::PlanningError;
use partita_cluster::{LayerPrecision, Machine, Software};
use partita_cpu::Level;
use partita_oracle::closed::Link;
use partita_oracle::{
    Costs, MachineCosts, MeasuredCosts, Prediction, SampleRead, ScaledCosts, SimulateError,
    SpeedFactors, rank_seconds,
};
use partita_plan::{FixedCosts, StageCosts, UnknownCost};
use partita_program::{Body, Menu, Program};
use partita_site::kernel_set::{KernelSet, menu_of};
use partita_site::{Context, Ranks};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use std::cell::RefCell;
use std::sync::Arc;

/// A machine on which programs are costed.
pub trait TargetMachine {
    /// Its name.
    fn name(&self) -> &str;

    /// Its file, with costs that hold for all programs; `None` if it is measured, program by program.
    fn described(&self) -> Option<&DescribedMachine>;

    /// As [`Self::described`], to scale its costs.
    fn described_mut(&mut self) -> Option<&mut DescribedMachine>;

    /// Most ranks whose programs can be costed.
    fn ranks_max(&self) -> usize;

    /// Precision of the layers.
    fn precision(&self) -> LayerPrecision;

    /// Memory limit of each of these ranks.
    fn memory(&self, ranks: usize) -> Bytes;

    /// The kernels of programs of this many ranks.
    fn menu(&self, ranks: usize) -> Box<dyn Menu>;

    /// Whether [`Self::menu`] pins kernels.
    fn pins_kernels(&self) -> bool;

    /// The costs of a program.
    ///
    /// Errors: a failed measurement.
    fn costs(&self, program: &Program) -> Result<Box<dyn Costs + '_>, PlanningError>;

    /// The prediction of a step of a program, without its tasks.
    ///
    /// Errors: a missing cost, a failed measurement.
    fn predict(&self, program: &Program) -> Result<Prediction, PlanningError>;

    /// Lower bound of the time of a step from the body of one rank; 0 where nothing is known.
    fn lower_bound(&self, body: &Body, rank: Rank, mesh: &Mesh) -> Seconds;

    /// Whether more kernels of a program that was costed can be measured; from then on, time that was kept for the best
    /// programs may be used.
    fn settle(&self) -> bool {
        false
    }

    /// Costs of the stages of programs of this many ranks.
    ///
    /// Errors: too many ranks to measure.
    fn stages(&self, ranks: usize) -> Result<Box<dyn StageCosts + '_>, PlanningError>;
}

/// A machine of a file, with software on it.
pub struct DescribedMachine {
    /// The machine of the file.
    pub machine: Machine,
    /// Costs of its kernels, messages, collectives and reads.
    pub costs: Arc<dyn Costs>,
    memory: Bytes,
    kernels: Option<KernelSet>,
    level: Level,
}

impl DescribedMachine {
    /// A machine with the costs of software, with or without input time. `memory` is the limit of a rank (default:
    /// that of its device), `kernels` are pinned (default: those that its file has times of, if any).
    ///
    /// Errors: an unknown input rate, a precision that the machine lacks.
    pub fn new(
        context: &Context,
        (machine, software): (Machine, &Software),
        (input, precision): (InputSource, LayerPrecision),
        (memory, kernels): (Option<Bytes>, Option<KernelSet>),
    ) -> Result<Self, PlanningError> {
        Ok(Self {
            costs: costs((&machine, software), input, precision)?,
            memory: memory.unwrap_or(machine.device.memory.value),
            kernels: machine::kernels(&machine, kernels),
            level: context.level(),
            machine,
        })
    }

    /// Whether software computes in a precision on it.
    pub fn has_precision(
        &self,
        software: &Software,
        (input, precision): (InputSource, LayerPrecision),
    ) -> bool {
        costs((&self.machine, software), input, precision).is_ok()
    }
}

impl TargetMachine for DescribedMachine {
    fn name(&self) -> &str {
        &self.machine.name
    }

    fn described(&self) -> Option<&DescribedMachine> {
        Some(self)
    }

    fn described_mut(&mut self) -> Option<&mut DescribedMachine> {
        Some(self)
    }

    fn ranks_max(&self) -> usize {
        self.machine.devices()
    }

    fn precision(&self) -> LayerPrecision {
        self.costs.precision()
    }

    fn memory(&self, _ranks: usize) -> Bytes {
        self.memory
    }

    fn menu(&self, _ranks: usize) -> Box<dyn Menu> {
        let calibration = self.machine.calibration.as_ref();
        let threads = calibration.map_or(local_machine::THREADS, |it| it.threads);
        menu_of(self.kernels, threads, self.level)
    }

    fn pins_kernels(&self) -> bool {
        self.kernels.is_some()
    }

    fn costs(&self, _program: &Program) -> Result<Box<dyn Costs + '_>, PlanningError> {
        let neutral = SpeedFactors::default();
        Ok(Box::new(ScaledCosts::new(&*self.costs, neutral)))
    }

    fn predict(&self, program: &Program) -> Result<Prediction, PlanningError> {
        let simulation = simulated(program, &*self.costs)?;
        Ok(Prediction::of(program, &simulation, false))
    }

    fn lower_bound(&self, body: &Body, rank: Rank, mesh: &Mesh) -> Seconds {
        rank_seconds(body, rank, mesh, &*self.costs)
    }

    fn stages(&self, _ranks: usize) -> Result<Box<dyn StageCosts + '_>, PlanningError> {
        Ok(Box::new(FixedCosts(&*self.costs)))
    }
}

/// This machine, which measures the kernels and links of a program when it is costed.
pub struct MeasuredMachine<'c> {
    context: &'c Context,
    kernels: KernelSet,
    /// How ranks share it; their number is that of a program.
    ranks: Ranks,
    input: InputSource,
    memory: Option<Bytes>,
    budget: Arc<MeasuringBudget>,
    /// Memory that is available to all ranks together.
    available: Bytes,
    /// Measurements of the ranks of the last program.
    measured: RefCell<Option<(usize, LocalMachine<'c>)>>,
}

impl<'c> MeasuredMachine<'c> {
    /// This machine with ranks like these. `memory` is the limit of a rank (default: that of its device, or the
    /// available memory divided by the ranks).
    pub fn new(
        context: &'c Context,
        (kernels, ranks): (KernelSet, Ranks),
        input: InputSource,
        memory: Option<Bytes>,
        budget: Arc<MeasuringBudget>,
    ) -> Self {
        Self {
            context,
            kernels,
            ranks,
            input,
            memory,
            budget,
            available: local_machine::memory(context, 1),
            measured: RefCell::new(None),
        }
    }

    fn ranks(&self, count: usize) -> Ranks {
        Ranks {
            count,
            ..self.ranks.clone()
        }
    }

    /// What the measurements of this many ranks give.
    ///
    /// Errors: too many ranks to measure.
    fn with<T>(
        &self,
        ranks: usize,
        ask: impl FnOnce(&mut LocalMachine<'c>) -> T,
    ) -> Result<T, LocalError> {
        let mut measured = self.measured.borrow_mut();
        let (_, here) = match measured.take() {
            Some((count, here)) if count == ranks => measured.insert((count, here)),
            Some(_) | None => {
                let ranks_here = self.ranks(ranks);
                let here = LocalMachine::of(self.context, self.kernels, ranks_here, self.input)?;
                measured.insert((ranks, here.within(Arc::clone(&self.budget))))
            }
        };
        Ok(ask(here))
    }
}

impl TargetMachine for MeasuredMachine<'_> {
    fn name(&self) -> &str {
        local_machine::NAME
    }

    fn described(&self) -> Option<&DescribedMachine> {
        None
    }

    fn described_mut(&mut self) -> Option<&mut DescribedMachine> {
        None
    }

    fn ranks_max(&self) -> usize {
        self.ranks.most()
    }

    fn precision(&self) -> LayerPrecision {
        LayerPrecision::F32
    }

    fn memory(&self, ranks: usize) -> Bytes {
        let of_device = || self.kernels.device_memory(ranks);
        let limit = self.memory.or_else(of_device);
        limit.unwrap_or(Bytes(self.available.0 / ranks as u64))
    }

    fn menu(&self, ranks: usize) -> Box<dyn Menu> {
        self.context.menu(self.kernels, &self.ranks(ranks))
    }

    fn pins_kernels(&self) -> bool {
        true
    }

    fn costs(&self, program: &Program) -> Result<Box<dyn Costs + '_>, PlanningError> {
        let costs = self.with(program.mesh.ranks(), |here| here.costs(program))??;
        Ok(Box::new(costs))
    }

    fn predict(&self, program: &Program) -> Result<Prediction, PlanningError> {
        Ok(self.with(program.mesh.ranks(), |here| here.predict(program, false))??)
    }

    fn lower_bound(&self, body: &Body, rank: Rank, mesh: &Mesh) -> Seconds {
        let bound = |here: &mut LocalMachine<'_>| rank_seconds(body, rank, mesh, &here.known());
        self.with(mesh.ranks(), bound).unwrap_or_default()
    }

    fn settle(&self) -> bool {
        self.budget.settle()
    }

    fn stages(&self, ranks: usize) -> Result<Box<dyn StageCosts + '_>, PlanningError> {
        self.with(ranks, |_| ())?;
        Ok(Box::new(MeasuredStages {
            machine: self,
            ranks,
            costs: RefCell::new(MeasuredCosts::default()),
        }))
    }
}

/// Stages on this machine.
struct MeasuredStages<'m, 'c> {
    machine: &'m MeasuredMachine<'c>,
    ranks: usize,
    /// Of the previous program.
    costs: RefCell<MeasuredCosts>,
}

impl MeasuredStages<'_, '_> {
    /// The costs, once the kernels of a program are measured.
    fn measured<T>(
        &self,
        program: &Program,
        with: impl Fn(FixedCosts<'_>) -> Result<T, UnknownCost>,
    ) -> Result<T, UnknownCost> {
        let costs = self.machine.with(self.ranks, |here| here.costs(program));
        let costs = costs
            .flatten()
            .map_err(|error| UnknownCost(error.to_string()))?;
        let found = with(FixedCosts(&costs));
        self.costs.replace(costs);
        found
    }
}

impl StageCosts for MeasuredStages<'_, '_> {
    fn precision(&self) -> LayerPrecision {
        self.machine.precision()
    }

    fn delays(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost> {
        self.measured(program, |known| known.delays(program, rank))
    }

    fn message(&self, from: Rank, to: Rank, bytes: Bytes) -> Seconds {
        FixedCosts(&*self.costs.borrow()).message(from, to, bytes)
    }

    fn seconds(&self, program: &Program, rank: Rank) -> Result<Vec<Seconds>, UnknownCost> {
        self.measured(program, |known| known.seconds(program, rank))
    }

    fn ring(&self, members: &[Rank]) -> Link {
        FixedCosts(&*self.costs.borrow()).ring(members)
    }
}

/// Costs of software on a machine, with or without input time.
fn costs(
    (machine, software): (&Machine, &Software),
    input: InputSource,
    precision: LayerPrecision,
) -> Result<Arc<dyn Costs>, PlanningError> {
    let software = input.applied(software);
    let costs = MachineCosts::new(machine.clone(), software).with_precision(precision);
    let costs = costs.map_err(SimulateError::Cost)?;
    if input.is_left_out() {
        let in_memory = SpeedFactors {
            reading: f64::INFINITY,
            ..SpeedFactors::default()
        };
        return Ok(Arc::new(ScaledCosts::new(Box::new(costs), in_memory)));
    }
    let read = SampleRead {
        bytes: Bytes(1),
        bytes_f32: Bytes(1),
        readers: 1,
        parts: 1,
    };
    costs.load(0, read).map_err(SimulateError::Cost)?;
    Ok(Arc::new(costs))
}
