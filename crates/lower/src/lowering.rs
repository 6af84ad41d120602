use crate::arena;
use crate::body::{Builder, Held};
use crate::classes::classes;
use crate::lay_out::lay_out;
use crate::network::{Layer, Network, reads_whole};
use crate::parameters::ParameterGradient;
use crate::storage::Storages;
use crate::{Strategy, StrategyError};
use partita_graph::{Graph, Loss, NodeId, Op, ParameterId};
use partita_program::{
    Body, Collective, CollectiveKind, Dtype, Item, Load, Menu, MenuError, Optimizer, Phase, Place,
    Program, ProgramKind, Role, Transform, View, When, Work,
};
use partita_space::{AxisSet, Coord, Mesh, Rank, Region};
use std::collections::BTreeMap;

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
    /// Two readers of one tensor disagree about what lies around it.
    #[error(
        "layer `{layer}` is read by a convolution with periodic padding and by one with another \
         border rule; give both the same padding, or put an operation between"
    )]
    MixedPadding {
        /// The tensor.
        layer: String,
    },
}

/// Lowers a model under a strategy to the program of every rank.
///
/// Errors: a strategy that does not fit the model or the mini-batch, a kernel that the menu lacks.
pub fn lower(request: &Request<'_>) -> Result<Program, LowerError> {
    let (mesh, networks) = prepare(request)?;
    // Micro-batches differ in nothing but their samples.
    let (network, storages) = &networks[0];
    let (kind, shard) = (request.kind, request.strategy.shard);
    let (class_of, representatives) = classes(&mesh, network, storages, shard, kind);
    let mut bodies = Vec::with_capacity(representatives.len());
    for rank in representatives {
        let coord = mesh.coord(rank);
        bodies.push(lower_coord(request, &mesh, &networks, coord)?);
    }
    let title = format!(
        "{} batch {} {}",
        request.graph.name, request.batch, request.strategy
    );
    Ok(Program {
        title,
        kind: request.kind,
        dtype: request.dtype,
        batch: request.batch,
        mesh,
        bodies,
        class_of,
    })
}

/// Lowers one rank alone, whatever its class.
///
/// Errors: as [`lower`].
pub fn lower_rank(request: &Request<'_>, rank: Rank) -> Result<Body, LowerError> {
    let (mesh, networks) = prepare(request)?;
    lower_coord(request, &mesh, &networks, mesh.coord(rank))
}

/// The network of each micro-batch.
fn prepare(request: &Request<'_>) -> Result<(Mesh, Vec<(Network, Storages)>), LowerError> {
    request
        .strategy
        .check_axes(request.graph, request.batch.max(data_extent(request)))?;
    let mesh = request.strategy.mesh();
    let parts = request.strategy.micro_batches(request.batch);
    let samples = request.batch / parts;
    let mut network = lay_out(request.graph, request.strategy, request.batch)?;
    if request.kind == ProgramKind::Evaluate {
        network = network.without_auxiliary();
    }
    check_padding(&network)?;
    let networks = match parts {
        1 => vec![network],
        _ => (0..parts)
            .map(|part| network.of_micro_batch((part * samples, samples)))
            .collect(),
    };
    let with_storages = |network| {
        let storages = Storages::new(&network, &mesh);
        (network, storages)
    };
    let networks = networks.into_iter().map(with_storages).collect();
    Ok((mesh, networks))
}

/// A last partial batch may be smaller than the data axis: some ranks then have no sample.
fn data_extent(request: &Request<'_>) -> usize {
    request.strategy.extent(partita_space::Axis::Data)
}

fn check_padding(network: &Network) -> Result<(), LowerError> {
    for (i, layer) in network.layers.iter().enumerate() {
        let readers = network.readers(NodeId(i));
        let has = |test: &dyn Fn(&Op) -> bool| {
            let mut ops = readers.iter().filter_map(|&id| network.layer(id).op());
            ops.any(test)
        };
        let periodic = has(&|op| matches!(op, Op::Convolution(c) if c.periodic));
        let other = has(&|op| match op {
            Op::Convolution(convolution) => !convolution.periodic,
            Op::Pool(_) => true,
            _ => false,
        });
        if periodic && other {
            return Err(LowerError::MixedPadding {
                layer: layer.name.clone(),
            });
        }
    }
    Ok(())
}

/// Ranks of one class give equal bodies.
fn lower_coord(
    request: &Request<'_>,
    mesh: &Mesh,
    networks: &[(Network, Storages)],
    coord: Coord,
) -> Result<Body, LowerError> {
    let (network, storages) = &networks[0];
    let builder = Builder::new(mesh, coord, request.dtype, request.menu);
    let mut emit = Emit {
        request,
        graph: request.graph,
        network,
        storages,
        builder,
        values: vec![None; storages.all.len()],
        gradients: vec![None; storages.all.len()],
        sums: BTreeMap::new(),
        parameters: Vec::new(),
        gathered: BTreeMap::new(),
        micro_batches: networks.len(),
        micro: 0,
        pass: Phase::Forward,
        report: BTreeMap::new(),
        moments: Vec::new(),
        staging: [None; 2],
        parameter_gradients: BTreeMap::new(),
    };
    emit.persistent();
    if request.kind == ProgramKind::Fetch {
        emit.loads(network, When::Now);
    } else {
        emit.micro_batches(networks);
    }
    let mut body = emit.builder.finish(request.strategy.fuse)?;
    arena::plan(&mut body);
    Ok(body)
}

/// Gradient of a storage while contributions arrive.
#[derive(Clone, Copy)]
pub(crate) struct GradientState {
    pub held: Held,
    pub written: bool,
}

pub(crate) struct Emit<'a> {
    pub request: &'a Request<'a>,
    pub graph: &'a Graph,
    pub network: &'a Network,
    pub storages: &'a Storages,
    pub builder: Builder<'a>,
    pub values: Vec<Option<Held>>,
    pub gradients: Vec<Option<GradientState>>,
    /// Moments of each batch norm, from forward to backward.
    pub sums: BTreeMap<NodeId, View>,
    pub parameters: Vec<Held>,
    /// Those of the layer at hand that are kept by shares.
    pub gathered: BTreeMap<ParameterId, Held>,
    pub moments: Vec<Vec<View>>,
    /// Sample and target.
    pub staging: [Option<View>; 2],
    pub parameter_gradients: BTreeMap<(ParameterId, AxisSet), ParameterGradient>,
    /// In how many parts the mini-batch is taken, and which is at hand.
    pub micro_batches: usize,
    pub micro: usize,
    /// Forward, or backward where something is computed again.
    pub pass: Phase,
    /// Sums over the micro-batches so far, by the names of the outputs.
    pub report: BTreeMap<&'static str, View>,
}

impl<'a> Emit<'a> {
    pub fn layer(&self, id: NodeId) -> &'_ Layer {
        self.network.layer(id)
    }

    pub fn place(&self, id: NodeId) -> &Place {
        &self.network.layer(id).place
    }

    pub fn owned(&self, id: NodeId) -> Region {
        self.place(id).owned(self.builder.mesh, &self.builder.coord)
    }

    /// What is computed of a tensor: the own part, and inside of a group what is read around it.
    pub fn computed(&self, id: NodeId) -> Region {
        let computed = &self.storages.of(id).computed;
        let mut region = self.owned(id);
        for (dim, line) in computed.lines_at(&self.builder.coord).iter().enumerate() {
            if (1..4).contains(&dim) {
                region.0[dim] = line.held;
            }
        }
        region
    }

    /// What a layer that works element by element reads of an input; one of other positions than its
    /// own has all that it reads where it is.
    pub fn reach(&self, id: NodeId, input: NodeId) -> Region {
        let (mut region, computed) = (self.owned(input), self.computed(id));
        if !self.layer(id).op().is_some_and(reads_whole) {
            region.0[1..4].copy_from_slice(&computed.0[1..4]);
        }
        region
    }

    pub fn computed_value(&self, node: NodeId) -> View {
        self.value(node).view(&self.computed(node))
    }

    /// Where the value of a node is held; it was computed before.
    pub fn value(&self, node: NodeId) -> Held {
        self.values[self.storages.of[node.0]].expect("inputs are computed before their readers")
    }

    /// The part of an input that a layer reads element by element.
    pub fn read_value(&self, id: NodeId, index: usize) -> View {
        let input = self.layer(id).inputs[index];
        self.value(input).view(&self.reach(id, input))
    }

    pub fn owned_value(&self, node: NodeId) -> View {
        self.value(node).view(&self.owned(node))
    }

    /// All micro-batches, one after the other, and the update. The samples of the next one are read as
    /// soon as those at hand have been taken in.
    fn micro_batches(&mut self, networks: &'a [(Network, Storages)]) {
        let trains = self.request.kind == ProgramKind::Train;
        if trains {
            self.open_parameter_gradients();
        }
        for (micro, (network, storages)) in networks.iter().enumerate() {
            (self.micro, self.network, self.storages) = (micro, network, storages);
            self.values.fill(None);
            self.gradients.fill(None);
            self.sums.clear();
            self.forward();
            if let Some((next, _)) = networks.get(micro + 1) {
                self.loads(next, When::Now);
            }
            if trains {
                self.forget();
                self.backward();
            }
        }
        if trains {
            self.update();
        }
        self.loads(&networks[0].0, When::Next);
    }

    /// Allreduce of a view over the axes of a group; nothing for a group of one.
    pub fn allreduce(&mut self, layer: &str, phase: Phase, axes: AxisSet, view: View) {
        let sequence = self.builder.next_sequence();
        if self.builder.mesh.group_size(axes) > 1 {
            let kind = CollectiveKind::AllReduce { view };
            let collective = Collective {
                sequence,
                group: axes,
                kind,
            };
            self.builder
                .push(layer, phase, Work::Collective(collective));
        }
    }

    pub fn stage_samples(&mut self) {
        let input = self.owned(NodeId(0)).shape();
        let [n, d, h, w, c] = input;
        let dtype = self.request.samples.dtype;
        let sample = self
            .builder
            .buffer("sample", Role::Staging, dtype, [n, c, d, h, w]);
        let target = target_place(self.network)
            .owned(self.builder.mesh, &self.builder.coord)
            .shape();
        let target = self
            .builder
            .buffer("target", Role::Staging, self.request.dtype, target);
        self.staging = [sample, target].map(|id| Some(self.builder.whole(id)));
    }

    fn loads(&mut self, network: &Network, when: When) {
        let places = [network.layer(NodeId(0)).place, target_place(network)];
        for (index, item) in [Item::Sample, Item::Target].into_iter().enumerate() {
            let target = self.staging[index].expect("staging comes first");
            if !target.is_empty() {
                let load = Load {
                    item,
                    when,
                    place: places[index],
                    target,
                };
                let layer = if index == 0 { "sample" } else { "target" };
                self.builder.push(layer, Phase::Load, Work::Load(load));
            }
        }
    }
}

/// Split of what the network shall answer.
fn target_place(network: &Network) -> Place {
    let last = &network.layers[network.layers.len() - 1];
    let mut place = network.layer(last.inputs[0]).place;
    if let Some(Op::Loss(Loss::SoftmaxCrossEntropy { .. })) = last.op() {
        place.shape[4] = 1;
    }
    place
}
