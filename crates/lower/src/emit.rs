//! Emits the tasks of one rank, slot by slot.
//!
//! All ranks iterate over all slots and layers in one order, so that message numbers agree; a rank emits
//! tasks only for the layers that it runs.
//!
//! Slots are (replica, stage, micro-batch, pass), in the global order of [`crate::schedule`]. A send is emitted at
//! the turn of its receiver. So all lanes of all ranks follow one order, and no pipeline can deadlock, whatever
//! stages a rank runs.

use crate::body::{Builder, TensorBuffer};
use crate::gradients::{ActivationGradients, ParameterGradients};
use crate::network::{Layer, LayerId, Network, is_gate, reads_whole};
use crate::request::Request;
use crate::schedule::{Pass, Slot};
use crate::slabs::Part;
use crate::step_plan::StepPlan;
use crate::storage::Storages;
use partita_graph::{Graph, Loss, ParameterId, TargetKind};
use partita_program::{
    Distribution, GRADIENT_SQUARES, Item, Load, Phase, ProgramKind, Role, Store, View, When, Work,
};
use partita_space::{AxisSet, Rank, Region, Submesh};
use std::collections::BTreeMap;

/// State of a micro-batch between its slots.
pub(crate) struct MicroBatchState<'a> {
    pub values: Vec<Option<TensorBuffer>>,
    pub gradients: ActivationGradients<'a>,
    /// Statistics of each normalization, kept for the backward pass.
    pub sums: BTreeMap<LayerId, View>,
}

pub(crate) struct Emit<'a> {
    pub request: &'a Request<'a>,
    pub graph: &'a Graph,
    pub plan: &'a StepPlan<'a>,
    pub network: &'a Network,
    pub storages: &'a Storages,
    pub builder: Builder<'a>,
    /// By micro-batch.
    pub states: Vec<MicroBatchState<'a>>,
    pub gradients: ParameterGradients<'a>,
    /// Parameters by replica on the rank.
    pub parameters: BTreeMap<(ParameterId, Option<Submesh>), TensorBuffer>,
    /// Sharded parameters gathered for the current layer.
    pub gathered: BTreeMap<ParameterId, TensorBuffer>,
    pub moments: Vec<Vec<View>>,
    /// Averages of parameters by replica on the rank.
    pub averages: BTreeMap<(ParameterId, Option<Submesh>), TensorBuffer>,
    /// Of each replica, by item.
    pub staging: [[Option<View>; 3]; 2],
    /// Targets of each micro-batch on each replica, where all are staged at once.
    pub targets: Vec<[Option<View>; 2]>,
    /// Counts of the targets of the mini-batch by loss and submesh, where they are taken at the start of the step.
    pub totals: BTreeMap<(LayerId, Option<Submesh>), View>,
    /// The current micro-batch.
    pub micro: usize,
    /// Forward, or backward where activations are recomputed.
    pub pass: Phase,
    /// Sums over the micro-batches so far, by output.
    pub report: BTreeMap<&'static str, View>,
    /// Statistics of micro-batches that update the running statistics at the end of the step.
    pub late_moments: BTreeMap<(LayerId, usize), View>,
    /// The current slot.
    slot: usize,
}

impl<'a> Emit<'a> {
    pub fn new(request: &'a Request<'a>, plan: &'a StepPlan<'a>, rank: Rank) -> Self {
        let (network, storages) = &plan.networks[0];
        let mut builder = Builder::new(&plan.world, rank, request.dtype, request.menu);
        builder.is_whole = plan.placement.is_whole();
        let states = (0..plan.networks.len()).map(|micro| MicroBatchState {
            values: vec![None; storages.all.len()],
            gradients: ActivationGradients::new(plan, micro),
            sums: BTreeMap::new(),
        });
        Self {
            request,
            graph: request.graph,
            plan,
            network,
            storages,
            builder,
            states: states.collect(),
            gradients: ParameterGradients::new(plan),
            parameters: BTreeMap::new(),
            gathered: BTreeMap::new(),
            moments: Vec::new(),
            averages: BTreeMap::new(),
            staging: [[None; 3]; 2],
            targets: Vec::new(),
            totals: BTreeMap::new(),
            micro: 0,
            pass: Phase::Forward,
            report: BTreeMap::new(),
            late_moments: BTreeMap::new(),
            slot: 0,
        }
    }

    /// The state of the current micro-batch.
    pub fn state(&self) -> &MicroBatchState<'a> {
        &self.states[self.micro]
    }

    pub fn state_mut(&mut self) -> &mut MicroBatchState<'a> {
        &mut self.states[self.micro]
    }

    /// Makes another micro-batch the current one.
    fn switch_to(&mut self, micro: usize) {
        self.micro = micro;
        let (network, storages) = &self.plan.networks[micro];
        (self.network, self.storages) = (network, storages);
    }

    pub fn is_whole(&self) -> bool {
        self.plan.placement.is_whole()
    }

    pub fn layer(&self, id: LayerId) -> &'_ Layer {
        self.network.layer(id)
    }

    pub fn distribution(&self, id: LayerId) -> &Distribution {
        &self.network.layer(id).distribution
    }

    pub fn owned(&self, id: LayerId) -> Region {
        self.builder.owned(self.distribution(id))
    }

    /// What the current slab has of a tensor, if that is of its block.
    pub fn slab_part(&self, id: LayerId) -> Option<Part> {
        self.state().gradients.slab_part(self.storages.of[id.0])
    }

    /// The region of a tensor that the rank computes: the owned one, in a halo group the halo too, and in a slab its part.
    pub fn computed(&self, id: LayerId) -> Region {
        if let Some(part) = self.slab_part(id) {
            return part.computed;
        }
        let computed = &self.storages.of(id).computed;
        let mut region = self.owned(id);
        for (dim, line) in computed.lines_at(&self.builder.coord).iter().enumerate() {
            if (1..4).contains(&dim) {
                region.0[dim] = line.held;
            }
        }
        region
    }

    /// What the rank, or the current slab, has of a tensor for a block in chunks.
    pub fn present(&self, id: LayerId) -> Region {
        if let Some(part) = self.slab_part(id) {
            return part.computed;
        }
        let geometry = self.storages.of(id).present(self.network);
        let held = geometry.held(&self.builder.coord);
        held.intersect(&Region::all(self.distribution(id).shape))
    }

    /// The region of an input that an elementwise layer reads.
    pub fn reach(&self, id: LayerId, input: LayerId) -> Region {
        let (mut region, computed) = (self.owned(input), self.computed(id));
        let is_whole = self.layer(id).op().is_some_and(reads_whole);
        if !is_whole && !is_gate(self.network, id, input) {
            region.0[1..4].copy_from_slice(&computed.0[1..4]);
        }
        region
    }

    pub fn computed_value(&self, id: LayerId) -> View {
        self.value(id).view(&self.computed(id))
    }

    /// The buffer of the value of a layer, which was computed before.
    pub fn value(&self, id: LayerId) -> TensorBuffer {
        self.state().values[self.storages.of[id.0]]
            .expect("inputs are computed before their readers")
    }

    /// The view of an input that an elementwise layer reads.
    pub fn read_value(&self, id: LayerId, index: usize) -> View {
        let input = self.layer(id).inputs[index];
        self.value(input).view(&self.reach(id, input))
    }

    pub fn owned_value(&self, id: LayerId) -> View {
        self.value(id).view(&self.owned(id))
    }

    /// Allreduce of a view over the axes of a group; nothing for a group of one.
    pub fn allreduce(&mut self, layer: &str, phase: Phase, axes: AxisSet, view: View) {
        self.builder.allreduce(layer, phase, axes, view);
    }

    /// Reads the samples of the first step.
    pub fn fetch(&mut self) {
        self.first_loads(When::Now);
    }

    /// All slots, and the update. The samples of the next micro-batch are read as soon as the current ones
    /// have been imported.
    pub fn step(&mut self) {
        let plan = self.plan;
        let trains = self.request.kind == ProgramKind::Train;
        if trains {
            self.gradients.open(&mut self.builder);
        }
        self.builder.reserved = self.first_number();
        self.count_targets();
        for (at, slot) in plan.slots.iter().enumerate() {
            self.slot = at;
            if slot.pass != Pass::Forward && !trains {
                continue;
            }
            self.switch_to(slot.micro);
            let layers = &plan.layers_of[slot.stage];
            match slot.pass {
                Pass::Forward => {
                    self.forward(layers);
                    self.store_predictions(layers);
                    self.next_loads(at, slot);
                    if trains {
                        self.free_activations(layers);
                        self.drop_selected(layers);
                    }
                }
                Pass::Backward => {
                    let splits_weights = self.request.strategy.schedule.splits_weights();
                    self.gradients.deferring = splits_weights.then_some(slot.micro);
                    self.backward(layers);
                }
                Pass::Weights => self.gradients.add_deferred(&mut self.builder, at),
            }
        }
        if !self.is_whole() {
            self.builder.turn = (plan.slots.len() * (self.network.layers.len() + 1)) as u32 + 1;
        }
        let total = if trains { self.update() } else { None };
        self.report_from_submeshes();
        if let Some(total) = total.filter(|_| self.request.scales_gradients()) {
            self.builder.output(GRADIENT_SQUARES, total);
        }
        self.first_loads(When::Next);
    }

    /// The last message number of reshardings between stages, which come first.
    fn first_number(&self) -> u32 {
        2 * (self.network.layers.len() * self.plan.networks.len()) as u32
    }

    /// Switches to the mesh of a layer and reserves its message numbers; false if the rank does not run it.
    pub fn enter(&mut self, id: LayerId) -> bool {
        if self.is_whole() {
            return true;
        }
        let number = self.builder.take_numbers(1);
        self.gradients.layer = id;
        self.builder.number_from(number);
        self.builder.turn = self.plan.turn_of(self.slot, id);
        let submesh = self.distribution(id).submesh;
        self.builder.enter(submesh)
    }

    /// The turn in which the ranks of a stage receive a resharding, forward or backward.
    pub fn turn_of_receiver(&self, stage: usize, layer: LayerId, pass: Pass) -> u32 {
        let slot = self.plan.slot_of.get(&(self.micro, stage, pass));
        self.plan
            .turn_of(*slot.expect("every stage takes every micro-batch"), layer)
    }

    /// The message number of a resharding, forward or backward.
    pub fn resharding_number(&self, id: LayerId, is_back: bool) -> u32 {
        let all = self.network.layers.len() * self.micro;
        2 * (all + id.0) as u32 + u32::from(is_back) + 1
    }

    /// Staging buffers for what each replica on the rank reads.
    pub fn stage_samples(&mut self) {
        let apart = self.stages_all_targets();
        let network = &self.plan.networks[0].0;
        for replica in 0..self.request.strategy.schedule.replicas() {
            for (item, name) in ITEMS {
                let reads = item != Item::Target || !apart && self.request.kind.reads_targets();
                let Some(reader) = reader(network, item).filter(|_| reads) else {
                    continue;
                };
                let rank_set = network.layer(reader).rank_set;
                let mut distribution = staged_distribution(network, item);
                distribution.submesh = self.plan.placement.rank_sets[rank_set].submeshes[replica];
                if !self.builder.is_in(distribution.submesh) {
                    continue;
                }
                let owned = self.builder.owned(&distribution);
                let [n, d, h, w, c] = if owned.is_empty() {
                    [0; 5]
                } else {
                    owned.shape()
                };
                let float = self.request.dtype.arithmetic();
                let (dims, dtype) = match item {
                    Item::Sample => ([n, c, d, h, w], self.request.samples.dtype),
                    Item::Features => ([n, c, d, h, w], float),
                    Item::Target => ([n, d, h, w, c], float),
                };
                let id = self.builder.buffer(name, Role::Staging, dtype, dims);
                self.staging[replica][item as usize] = Some(self.builder.whole(id));
            }
        }
        if apart {
            self.stage_all_targets();
        }
    }

    /// Replicas that take micro-batches.
    fn replicas(&self) -> Vec<usize> {
        (0..2)
            .filter(|replica| self.plan.replica_of.contains(replica))
            .collect()
    }

    fn first_micro(&self, replica: usize) -> usize {
        let mut micros = self.plan.replica_of.iter();
        micros.position(|&of| of == replica).unwrap_or(0)
    }

    /// The first loads of a step.
    fn first_loads(&mut self, when: When) {
        for replica in self.replicas() {
            let micro = self.first_micro(replica);
            self.load(micro, Item::Sample, when);
            self.load(micro, Item::Features, when);
            if self.targets.is_empty() {
                self.load(micro, Item::Target, when);
            }
        }
        self.load_all_targets(when);
    }

    /// Loads the samples or targets of the next micro-batch after a slot that has imported them.
    fn next_loads(&mut self, at: usize, slot: &Slot) {
        let rest = self.plan.slots[at + 1..].iter();
        let mut same = rest.filter(|next| {
            (next.replica, next.stage, next.pass) == (slot.replica, slot.stage, slot.pass)
        });
        let Some(next) = same.next() else { return };
        for (item, _) in ITEMS {
            let is_staged = item == Item::Target && !self.targets.is_empty();
            let stage = reader(self.network, item).map(|id| self.layer(id).stage);
            if stage == Some(slot.stage) && !is_staged {
                self.load(next.micro, item, When::Now);
            }
        }
    }

    /// The view of the staging buffer for a micro-batch; the buffer has the size of the first, the largest.
    pub fn staged(&self, micro: usize, item: Item) -> View {
        let replica = self.plan.replica_of[micro];
        if let (Item::Target, Some(of_micro)) = (item, self.targets.get(micro)) {
            return of_micro[replica].expect("staging comes first");
        }
        let memory = self.staging[replica][item as usize];
        let mut view = memory.expect("staging comes first");
        let distribution = staged_distribution(&self.plan.networks[micro].0, item);
        view.extent[0] = self.builder.owned(&distribution).shape()[0];
        view
    }

    /// In an inference, stores the outputs of the last layer after the slot that computes them.
    fn store_predictions(&mut self, layers: &[LayerId]) {
        let last = LayerId(self.network.layers.len() - 1);
        if self.request.kind != ProgramKind::Infer || layers.last() != Some(&last) {
            return;
        }
        let distribution = *self.distribution(last);
        if !self.builder.enter(distribution.submesh) {
            return;
        }
        let source = self.owned_value(last);
        if !source.is_empty() {
            let store = Store {
                distribution,
                source,
            };
            let layer = self.layer(last).name.clone();
            self.builder.push(&layer, Phase::Report, Work::Store(store));
        }
    }

    fn load(&mut self, micro: usize, item: Item, when: When) {
        if item == Item::Target && !self.request.kind.reads_targets() {
            return;
        }
        let network = &self.plan.networks[micro].0;
        if reader(network, item).is_none() {
            return;
        }
        let distribution = staged_distribution(network, item);
        if self.builder.is_in(distribution.submesh) {
            self.load_to(item, when, distribution, self.staged(micro, item));
        }
    }

    pub(crate) fn load_to(
        &mut self,
        item: Item,
        when: When,
        distribution: Distribution,
        target: View,
    ) {
        let (_, layer) = ITEMS[item as usize];
        if !target.is_empty() {
            let load = Load {
                item,
                when,
                distribution,
                target,
            };
            self.builder.push(layer, Phase::Load, Work::Load(load));
        }
    }
}

/// What is read of a sample, by number, with its name.
const ITEMS: [(Item, &str); 3] = [
    (Item::Sample, "sample"),
    (Item::Target, "target"),
    (Item::Features, "features"),
];

/// The layer that reads an item; none if the network has no features.
fn reader(network: &Network, item: Item) -> Option<LayerId> {
    match item {
        Item::Sample => Some(LayerId(0)),
        Item::Features => network.features,
        Item::Target => network.layers.len().checked_sub(1).map(LayerId),
    }
}

/// Distribution of what is read of the samples.
pub(crate) fn staged_distribution(network: &Network, item: Item) -> Distribution {
    let reader = reader(network, item).expect("an item that the network reads");
    let last = network.layer(reader);
    if item != Item::Target {
        return last.distribution;
    }
    let mut distribution = network.layer(last.inputs[0]).distribution;
    if last.loss().map(Loss::target) == Some(TargetKind::Classes) {
        distribution.shape[4] = 1;
    }
    distribution
}
