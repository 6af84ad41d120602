//! The part of lowering that is common to all ranks.

use crate::geometry::Rows;
use crate::lay_out::{check_kind, lay_out};
use crate::network::{LayerId, Network, gradient_axes};
use crate::placement::Placement;
use crate::request::{LowerError, Request};
use crate::schedule::{self, Pass, Schedule, Slot};
use crate::selective::Selective;
use crate::storage::Storages;
use crate::strategy::Strategy;
use partita_program::{Distribution, ProgramKind};
use partita_space::{Axis, AxisList, AxisSet, Mesh, Submesh};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The distributed network of each micro-batch, and the global order of slots.
pub(crate) struct StepPlan<'a> {
    pub request: &'a Request<'a>,
    pub world: Mesh,
    /// Axes along which batch norms have statistics of their own.
    pub local_statistics: AxisSet,
    pub placement: Placement,
    /// By micro-batch, on the submeshes of its replica.
    pub networks: Vec<(Network, Storages)>,
    /// What is recomputed selectively, the same for all micro-batches.
    pub selective: Selective,
    /// The replica that takes each micro-batch.
    pub replica_of: Vec<usize>,
    /// In the global order.
    pub slots: Vec<Slot>,
    /// Index of a slot by micro-batch, stage and pass.
    pub slot_of: HashMap<(usize, usize, Pass), usize>,
    /// Layers of each stage, in the order of the network.
    pub layers_of: Vec<Vec<LayerId>>,
    /// Distributions of each parameter, one per submesh; the first keeps the optimizer state.
    pub holders: Vec<Vec<Distribution>>,
    /// For each parameter on several submeshes, the submeshes with gradients and the axes over which these are
    /// partial sums.
    pub keys: Vec<Vec<(Option<Submesh>, AxisSet)>>,
}

/// The layers with their distributions.
///
/// Errors: a strategy that does not fit the model or the mini-batch.
pub(crate) fn network(request: &Request<'_>) -> Result<Network, LowerError> {
    laid_out(request, &placement(request)?)
}

/// The placement of the layers.
///
/// Errors: as [`network`].
fn placement(request: &Request<'_>) -> Result<Placement, LowerError> {
    let strategy = request.strategy;
    // The last mini-batch may be smaller than the data axis; some ranks then have no sample.
    strategy.check_axes(request.graph, request.batch.max(strategy.data_parts()))?;
    if request.kind == ProgramKind::Train {
        strategy.check_norms(request.graph, request.batch)?;
    }
    check_kind(request.graph, strategy, request.kind)?;
    Ok(Placement::new(request.graph, strategy)?)
}

fn laid_out(request: &Request<'_>, placement: &Placement) -> Result<Network, LowerError> {
    let network = lay_out(request.graph, request.strategy, placement, request.batch)?;
    if request.kind == ProgramKind::Train {
        request
            .strategy
            .check_local_statistics(request.graph, &network)?;
    }
    Ok(match request.kind {
        ProgramKind::Evaluate => network.without_auxiliary(),
        ProgramKind::Infer => network.without_auxiliary().without_loss(),
        ProgramKind::Train | ProgramKind::Fetch | ProgramKind::FetchSamples => network,
    })
}

impl<'a> StepPlan<'a> {
    pub fn new(request: &'a Request<'a>) -> Result<Self, LowerError> {
        let strategy = request.strategy;
        let placement = placement(request)?;
        let parts = strategy.micro_batches(request.batch);
        let network = laid_out(request, &placement)?;
        let slots = slots(strategy, parts, request.kind);
        let mut replica_of = vec![0; parts];
        slots
            .iter()
            .for_each(|slot| replica_of[slot.micro] = slot.replica);
        let world = strategy.mesh();
        let replicas: Vec<Network> = (0..if placement.is_whole() { 1 } else { 2 })
            .map(|replica| network.of_replica(&placement.rank_sets, replica))
            .collect();
        let samples = strategy.samples_of_micro_batches(request.batch);
        let rows = Rows::default();
        let micro = samples.zip(replica_of.iter().copied());
        let networks = networks(&replicas, micro, parts == 1, (&world, &rows));
        let used = replicas.iter().take(strategy.schedule.replicas());
        let mut holders = vec![Vec::<Distribution>::new(); request.graph.parameters.len()];
        for network in used {
            for (known, distributions) in holders.iter_mut().zip(&network.parameters) {
                for distribution in distributions {
                    if known
                        .iter()
                        .all(|known| known.submesh != distribution.submesh)
                    {
                        known.push(*distribution);
                    }
                }
            }
        }
        let local_statistics = match request.kind {
            ProgramKind::Train => strategy.local_statistics(),
            ProgramKind::Evaluate
            | ProgramKind::Infer
            | ProgramKind::Fetch
            | ProgramKind::FetchSamples => AxisSet::NONE,
        };
        let mut plan = Self {
            request,
            world,
            local_statistics,
            placement,
            selective: Selective::new(request.graph, &networks[0]),
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

    fn keys(&self) -> Vec<Vec<(Option<Submesh>, AxisSet)>> {
        let mut keys = vec![Vec::new(); self.holders.len()];
        for (network, _) in &self.networks {
            for layer in &network.layers {
                for id in &layer.parameters {
                    let axes = gradient_axes(layer, self.local_statistics);
                    let (key, known) = ((layer.distribution.submesh, axes), &mut keys[id.0]);
                    if self.holders[id.0].len() > 1 && !known.contains(&key) {
                        known.push(key);
                    }
                }
            }
        }
        keys
    }

    /// Position of a layer in the global order of slots and layers.
    pub fn turn_of(&self, slot: usize, id: LayerId) -> u32 {
        let layers = self.networks[0].0.layers.len();
        let within = match self.slots[slot].pass {
            Pass::Forward => id.0,
            Pass::Backward | Pass::Weights => layers - id.0,
        };
        (slot * (layers + 1) + within + 1) as u32
    }

    /// The submesh of the first replica that corresponds to a submesh of any replica.
    pub fn first_replica_of(&self, submesh: Option<Submesh>) -> Option<Submesh> {
        let mut rank_sets = self.placement.rank_sets.iter();
        if rank_sets
            .clone()
            .any(|rank_set| rank_set.submeshes[0] == submesh)
        {
            return submesh;
        }
        let rank_set = rank_sets.find(|rank_set| rank_set.submeshes[1] == submesh);
        rank_set.map_or(submesh, |rank_set| rank_set.submeshes[0])
    }

    /// Whether the parts of the mini-batch along the data axis have equal size, and nothing else is split along
    /// that axis.
    pub fn is_even(&self) -> bool {
        let along_data = |distribution: &Distribution| distribution.split_axes().has(Axis::Data);
        let is_even = |distribution: &Distribution| {
            let (samples, mesh) = (distribution.axes[0], distribution.mesh(&self.world));
            let others = Distribution {
                axes: [
                    AxisList::NONE,
                    distribution.axes[1],
                    distribution.axes[2],
                    distribution.axes[3],
                    distribution.axes[4],
                ],
                ..*distribution
            };
            let splits_first = samples.iter().next() == Some(Axis::Data);
            let data = mesh.extent(Axis::Data);
            let is_even = distribution.split_range(0).len().is_multiple_of(data);
            (splits_first && is_even || data == 1) && !along_data(&others)
        };
        self.networks.iter().all(|(network, _)| {
            let mut kept = network.parameters.iter().chain(&network.shares).flatten();
            network
                .layers
                .iter()
                .all(|layer| is_even(&layer.distribution))
                && !kept.any(along_data)
        })
    }
}

/// The network of each micro-batch, given by first sample, number of samples and replica; one alone is the whole
/// mini-batch.
fn networks(
    replicas: &[Network],
    micro: impl Iterator<Item = ((usize, usize), usize)>,
    is_one: bool,
    world: (&Mesh, &Rows),
) -> Vec<(Network, Storages)> {
    let mut networks: Vec<(Network, Storages)> = Vec::new();
    // The first micro-batch of each replica and number of samples.
    let mut first: HashMap<(usize, usize), usize> = HashMap::new();
    for (samples, replica) in micro {
        let network = if is_one {
            replicas[replica].clone()
        } else {
            replicas[replica].of_micro_batch(samples)
        };
        let storages = match first.entry((replica, samples.1)) {
            Entry::Occupied(known) => {
                let (_, storages) = &networks[*known.get()];
                storages.of_micro_batch(&network, world)
            }
            Entry::Vacant(new) => {
                new.insert(networks.len());
                Storages::new(&network, world.0, world.1)
            }
        };
        networks.push((network, storages));
    }
    networks
}

fn slots_by_work(slots: &[Slot]) -> HashMap<(usize, usize, Pass), usize> {
    let works = slots.iter().map(|slot| (slot.micro, slot.stage, slot.pass));
    works.zip(0..).collect()
}

fn layers_by_stage(network: &Network) -> Vec<Vec<LayerId>> {
    let stages = network.layers.iter().map(|layer| layer.stage + 1).max();
    let mut layers_of = vec![Vec::new(); stages.unwrap_or(1)];
    for (id, layer) in network.layers.iter().enumerate() {
        layers_of[layer.stage].push(LayerId(id));
    }
    layers_of
}

/// Without stages, micro-batches run one after the other.
fn slots(strategy: &Strategy, micro: usize, kind: ProgramKind) -> Vec<Slot> {
    let stages = strategy.stages.len().max(1) * strategy.schedule.chunks();
    let devices = strategy.stages.len();
    match kind {
        ProgramKind::Evaluate | ProgramKind::Infer => schedule::forward_slots(stages, micro),
        ProgramKind::Train | ProgramKind::Fetch | ProgramKind::FetchSamples => {
            if devices > 0 && strategy.can_schedule(micro) {
                schedule::slots(strategy.schedule, devices, micro)
            } else {
                schedule::slots(Schedule::Sequential, stages, micro)
            }
        }
    }
}
