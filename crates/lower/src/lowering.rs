//! What is asked for, and the way from it to the program of every rank.

use crate::arena;
use crate::classes::{by_bodies, classes};
use crate::emit::Emit;
use crate::geometry::Rows;
use crate::lay_out::lay_out;
use crate::network::{Network, positions};
use crate::placement::Placement;
use crate::schedule::{self, Pass, Schedule, Slot};
use crate::storage::Storages;
use crate::{Strategy, StrategyError};
use partita_graph::{Graph, NodeId, Op};
use partita_program::verify::{Faults, verify_sizes};
use partita_program::{
    Body, Dtype, Menu, MenuError, Optimizer, Place, Program, ProgramKind, Staging, Transform,
};
use partita_space::{Axis, AxisList, AxisSet, Grid, Mesh, Rank};
use std::collections::HashMap;

/// How samples are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleFormat {
    /// Type in the dataset.
    pub dtype: Dtype,
    /// What is done to a value on its way into the network.
    pub transform: Transform,
}

/// What to lower.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// How to split it.
    pub strategy: &'a Strategy,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// What for.
    pub kind: ProgramKind,
    /// Type of activations and parameters.
    pub dtype: Dtype,
    /// Update rule; decides which state lives beside each parameter, in every kind of program.
    pub optimizer: Optimizer,
    /// Largest norm of all gradients together.
    pub clip: Option<f64>,
    /// How samples are stored.
    pub samples: SampleFormat,
    /// What kernels there are.
    pub menu: &'a dyn Menu,
}

/// Why there is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The strategy does not fit.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A kernel is missing.
    #[error(transparent)]
    Menu(#[from] MenuError),
    /// Memory that cannot be counted.
    #[error(
        "there are {asked} {what}; at most {limit} are possible; choose a smaller mini-batch, or a \
         strategy that splits more"
    )]
    TooLarge {
        /// What is counted, and where.
        what: String,
        /// How many, in digits: 64 bits may not hold it.
        asked: String,
        /// The bound.
        limit: u64,
    },
    /// Counts of a step over all ranks that 64 bits do not hold.
    #[error("{0}; choose a smaller mini-batch, or fewer ranks")]
    Uncountable(Faults),
}

impl LowerError {
    /// Whether another strategy may do.
    pub fn is_of_strategy(&self) -> bool {
        match self {
            Self::Strategy(_) | Self::TooLarge { .. } | Self::Uncountable(_) => true,
            Self::Menu(_) => false,
        }
    }
}

/// Lowers a model under a strategy to the program of every rank.
///
/// Errors: a strategy that does not fit the model or the mini-batch, a kernel that the menu lacks, sizes
/// beyond [`partita_space::limits`].
pub fn lower(request: &Request<'_>) -> Result<Program, LowerError> {
    let plan = Plan::new(request)?;
    let is_like = request.batch.is_multiple_of(plan.networks.len());
    let (bodies, class_of) = match plan.placement.is_whole() && is_like {
        true => {
            // Micro-batches differ in nothing but their samples.
            let (network, storages) = &plan.networks[0];
            let (kind, shard) = (request.kind, request.strategy.shard);
            let (class_of, ranks) = classes(&plan.world, network, storages, shard, kind);
            let ranks = ranks.into_iter();
            let bodies: Result<Vec<Body>, LowerError> = ranks
                .map(|rank| lower_planned(request, &plan, rank))
                .collect();
            (bodies?, class_of)
        }
        false => by_bodies(&plan.world, plan.is_even(), &|rank| {
            lower_planned(request, &plan, rank)
        })?,
    };
    let title = format!(
        "{} batch {} {}",
        request.graph.name, request.batch, request.strategy
    );
    let program = Program {
        title,
        kind: request.kind,
        dtype: request.dtype,
        batch: request.batch,
        mesh: plan.world,
        bodies,
        class_of,
    };
    verify_sizes(&program).map_err(LowerError::Uncountable)?;
    Ok(program)
}

/// Lowers one rank alone, whatever its class. Where layers run on some ranks only, or micro-batches are of
/// two sizes, numbers of exchanges and collectives have gaps, which [`lower`] closes.
///
/// Errors: as [`lower`].
pub fn lower_rank(request: &Request<'_>, rank: Rank) -> Result<Body, LowerError> {
    let plan = Plan::new(request)?;
    lower_planned(request, &plan, rank)
}

/// Some ranks one after the other, each lowered as by [`lower_rank`] when it is asked for.
///
/// Errors: as [`lower`].
pub fn lower_ranks<'a>(
    request: &'a Request<'a>,
    ranks: &'a [Rank],
) -> Result<impl Iterator<Item = Result<Body, LowerError>> + use<'a>, LowerError> {
    let plan = Plan::new(request)?;
    Ok(ranks
        .iter()
        .map(move |&rank| lower_planned(request, &plan, rank)))
}

/// What all ranks do, and in which order.
pub(crate) struct Plan {
    pub world: Mesh,
    pub placement: Placement,
    /// Of each micro-batch, on the ranks of its replica.
    pub networks: Vec<(Network, Storages)>,
    /// The replica that takes each micro-batch.
    pub replica_of: Vec<usize>,
    /// In the order that all ranks keep.
    pub slots: Vec<Slot>,
    /// Which of them takes a micro-batch through a stage.
    pub slot_of: HashMap<(usize, usize, Pass), usize>,
    /// Of each stage, in the order of the network.
    pub layers_of: Vec<Vec<NodeId>>,
    /// Of each parameter those that hold it, the ranks first that keep the state of its optimizer.
    pub holders: Vec<Vec<Place>>,
    /// Of each parameter with several holders, on which of them it has gradients that are partial along
    /// which axes.
    pub keys: Vec<Vec<(Option<Grid>, AxisSet)>>,
}

impl Plan {
    fn new(request: &Request<'_>) -> Result<Self, LowerError> {
        let strategy = request.strategy;
        // A last partial batch may be smaller than the data axis: some ranks then have no sample.
        strategy.check_axes(request.graph, request.batch.max(strategy.data_parts()))?;
        if request.kind == ProgramKind::Train {
            strategy.check_norms(request.graph, request.batch)?;
        }
        let placement = Placement::new(request.graph, strategy)?;
        let parts = strategy.micro_batches(request.batch);
        let mut network = lay_out(request.graph, strategy, &placement, request.batch)?;
        if request.kind == ProgramKind::Evaluate {
            network = network.without_auxiliary();
        }
        let slots = slots(strategy, parts, request.kind);
        let mut replica_of = vec![0; parts];
        slots
            .iter()
            .for_each(|slot| replica_of[slot.micro] = slot.replica);
        let world = strategy.mesh();
        let replicas: Vec<Network> = (0..if placement.is_whole() { 1 } else { 2 })
            .map(|replica| network.of_replica(&placement.sites, replica))
            .collect();
        let samples = strategy.samples_of_micro_batches(request.batch);
        let rows = Rows::default();
        let networks = samples.zip(&replica_of).map(|(samples, &replica)| {
            let replica = &replicas[replica];
            let network = match parts {
                1 => replica.clone(),
                _ => replica.of_micro_batch(samples),
            };
            let storages = Storages::new(&network, &world, &rows);
            (network, storages)
        });
        let networks = networks.collect();
        let used = replicas.iter().take(strategy.schedule.replicas());
        let mut holders = vec![Vec::<Place>::new(); request.graph.parameters.len()];
        for network in used {
            for (known, places) in holders.iter_mut().zip(&network.parameters) {
                for place in places {
                    if known.iter().all(|known| known.on != place.on) {
                        known.push(*place);
                    }
                }
            }
        }
        let mut plan = Self {
            world,
            placement,
            networks,
            replica_of,
            slot_of: slots_by_work(&slots),
            layers_of: layers_by_stage(&network),
            slots,
            holders,
            keys: Vec::new(),
        };
        plan.keys = plan.keys();
        Ok(plan)
    }

    fn keys(&self) -> Vec<Vec<(Option<Grid>, AxisSet)>> {
        let mut keys = vec![Vec::new(); self.holders.len()];
        for (network, _) in &self.networks {
            for layer in &network.layers {
                for id in &layer.parameters {
                    let axes = match layer.op() {
                        Some(Op::BatchNorm { .. }) => AxisSet::NONE,
                        _ => positions(&layer.place),
                    };
                    let (key, known) = ((layer.place.on, axes), &mut keys[id.0]);
                    if self.holders[id.0].len() > 1 && !known.contains(&key) {
                        known.push(key);
                    }
                }
            }
        }
        keys
    }

    /// Where the first replica has what another has on these ranks.
    pub fn twin_of(&self, on: Option<Grid>) -> Option<Grid> {
        let mut sites = self.placement.sites.iter();
        if sites.clone().any(|site| site.grids[0] == on) {
            return on;
        }
        let site = sites.find(|site| site.grids[1] == on);
        site.map_or(on, |site| site.grids[0])
    }

    /// Whether ranks do the same for each part of the mini-batch that the axis of data leaves: these are of
    /// one size, and nothing else lies along that axis.
    fn is_even(&self) -> bool {
        let along_data = |place: &Place| place.split_axes().has(Axis::Data);
        let is_even = |place: &Place| {
            let (samples, mesh) = (place.axes[0], place.mesh(&self.world));
            let others = Place {
                axes: [
                    AxisList::NONE,
                    place.axes[1],
                    place.axes[2],
                    place.axes[3],
                    place.axes[4],
                ],
                ..*place
            };
            let splits_first = samples.iter().next() == Some(Axis::Data);
            let data = mesh.extent(Axis::Data);
            let is_even = place.shared(0).len().is_multiple_of(data);
            (splits_first && is_even || data == 1) && !along_data(&others)
        };
        self.networks.iter().all(|(network, _)| {
            let mut kept = network.parameters.iter().chain(&network.shares).flatten();
            network.layers.iter().all(|layer| is_even(&layer.place)) && !kept.any(along_data)
        })
    }
}

fn slots_by_work(slots: &[Slot]) -> HashMap<(usize, usize, Pass), usize> {
    let works = slots.iter().map(|slot| (slot.micro, slot.stage, slot.pass));
    works.zip(0..).collect()
}

fn layers_by_stage(network: &Network) -> Vec<Vec<NodeId>> {
    let stages = network.layers.iter().map(|layer| layer.stage + 1).max();
    let mut layers_of = vec![Vec::new(); stages.unwrap_or(1)];
    for (id, layer) in network.layers.iter().enumerate() {
        layers_of[layer.stage].push(NodeId(id));
    }
    layers_of
}

/// Where there is one stage, micro-batches come one after the other.
fn slots(strategy: &Strategy, micro: usize, kind: ProgramKind) -> Vec<Slot> {
    let stages = strategy.stages.len().max(1) * strategy.schedule.chunks();
    let places = strategy.stages.len();
    match kind {
        ProgramKind::Evaluate => schedule::forward_slots(stages, micro),
        ProgramKind::Train | ProgramKind::Fetch => match strategy.can_schedule(micro) {
            true if places > 0 => schedule::slots(strategy.schedule, places, micro),
            _ => schedule::slots(Schedule::Sequential, stages, micro),
        },
    }
}

/// Ranks of one class give equal bodies.
fn lower_planned(request: &Request<'_>, plan: &Plan, rank: Rank) -> Result<Body, LowerError> {
    let mut emit = Emit::new(request, plan, rank);
    emit.persistent();
    match request.kind {
        ProgramKind::Fetch => emit.fetch(),
        ProgramKind::Train | ProgramKind::Evaluate => emit.step(),
    }
    let mut body = emit.builder.finish(request.strategy.fuse)?;
    arena::plan(&mut body)?;
    body.staging = Staging::of(&body, &plan.world);
    Ok(body)
}
