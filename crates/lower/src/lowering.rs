use crate::arena;
use crate::body::{Builder, Held};
use crate::classes::classes;
use crate::lay_out::lay_out;
use crate::network::{Layer, Network};
use crate::storage::Storages;
use crate::{Strategy, StrategyError};
use partita_graph::{Graph, NodeId, Op, ParameterId};
use partita_program::{
    Body, BufferId, Collective, CollectiveKind, Dtype, Item, Load, Menu, MenuError, Optimizer,
    Phase, Place, Program, ProgramKind, Role, Transform, View, When, Work,
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
    let (mesh, network, storages) = prepare(request)?;
    let (class_of, representatives) = classes(&mesh, &network, &storages);
    let mut bodies = Vec::with_capacity(representatives.len());
    for rank in representatives {
        let coord = mesh.coord(rank);
        bodies.push(lower_coord(request, &mesh, &network, &storages, coord)?);
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
    let (mesh, network, storages) = prepare(request)?;
    lower_coord(request, &mesh, &network, &storages, mesh.coord(rank))
}

fn prepare(request: &Request<'_>) -> Result<(Mesh, Network, Storages), LowerError> {
    request
        .strategy
        .check_axes(request.graph, request.batch.max(data_extent(request)))?;
    let mesh = request.strategy.mesh();
    let network = lay_out(request.graph, request.strategy, request.batch)?;
    check_padding(&network)?;
    let storages = Storages::new(&network, &mesh);
    Ok((mesh, network, storages))
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
    network: &Network,
    storages: &Storages,
    coord: Coord,
) -> Result<Body, LowerError> {
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
        moments: Vec::new(),
        staging: [None; 2],
        parameter_gradients: BTreeMap::new(),
    };
    emit.persistent();
    match request.kind {
        ProgramKind::Fetch => emit.loads(When::Now),
        ProgramKind::Train => {
            emit.forward();
            emit.backward();
            emit.update();
            emit.loads(When::Next);
        }
        ProgramKind::Evaluate => {
            emit.forward();
            emit.loads(When::Next);
        }
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

/// Gradient of a parameter from the uses that are partial along the same axes.
#[derive(Clone, Copy)]
pub(crate) struct ParameterGradient {
    pub view: View,
    pub written: bool,
    /// Uses whose contribution is still to come.
    pub open: usize,
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
    pub parameters: Vec<View>,
    pub moments: Vec<Vec<View>>,
    /// Sample and target.
    pub staging: [Option<View>; 2],
    pub parameter_gradients: BTreeMap<(ParameterId, AxisSet), ParameterGradient>,
}

impl Emit<'_> {
    pub fn layer(&self, id: NodeId) -> &'_ Layer {
        self.network.layer(id)
    }

    pub fn place(&self, id: NodeId) -> &Place {
        &self.network.layer(id).place
    }

    pub fn owned(&self, id: NodeId) -> Region {
        self.place(id).owned(self.builder.mesh, &self.builder.coord)
    }

    pub fn parameter(&self, node: NodeId, index: usize) -> View {
        self.parameters[self.layer(node).parameters[index].0]
    }

    /// Where the value of a node is held; it was computed before.
    pub fn value(&self, node: NodeId) -> Held {
        self.values[self.storages.of[node.0]].expect("inputs are computed before their readers")
    }

    pub fn owned_value(&self, node: NodeId) -> View {
        self.value(node).view(&self.owned(node))
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

    fn persistent(&mut self) {
        let moment_names: &[&str] = match self.request.optimizer {
            Optimizer::Sgd { momentum: 0.0, .. } => &[],
            Optimizer::Sgd { .. } => &["velocity"],
            Optimizer::Adam { .. } => &["first_moment", "second_moment"],
        };
        let mut list: Vec<(Role, String, usize)> = Vec::new();
        for (index, parameter) in self.graph.parameters.iter().enumerate() {
            if parameter.role.is_trained() {
                list.push((Role::Parameter, parameter.name.clone(), index));
                for moment in moment_names {
                    let name = format!("{}.{moment}", parameter.name);
                    list.push((Role::Optimizer, name, index));
                }
            } else {
                list.push((Role::State, parameter.name.clone(), index));
            }
        }
        list.sort_by_key(|(role, ..)| arena::persistent_order(*role));
        let mut own: Vec<Option<View>> = vec![None; self.graph.parameters.len()];
        self.moments = vec![Vec::new(); self.graph.parameters.len()];
        for (role, name, index) in list {
            let id = self.parameter_buffer(&name, role, ParameterId(index));
            let view = self.builder.whole(id);
            match role {
                Role::Optimizer => self.moments[index].push(view),
                _ => own[index] = Some(view),
            }
        }
        self.parameters = own.into_iter().flatten().collect();
        self.stage_samples();
    }

    /// A buffer for the own share of a parameter, or of what goes with it.
    pub fn parameter_buffer(&mut self, name: &str, role: Role, id: ParameterId) -> BufferId {
        let place = self.network.parameters[id.0];
        let region = place.owned(self.builder.mesh, &self.builder.coord);
        let dtype = self.builder.dtype;
        if place.split_axes().is_empty() {
            return self.builder.buffer(name, role, dtype, place.shape);
        }
        // Activations have the numbers below.
        let tensor = 2 * self.storages.all.len() + id.0;
        self.builder
            .held(name, role, tensor as u32, place, region)
            .id
    }

    fn stage_samples(&mut self) {
        let input = self.owned(NodeId(0)).shape();
        let [n, d, h, w, c] = input;
        let dtype = self.request.samples.dtype;
        let sample = self
            .builder
            .buffer("sample", Role::Staging, dtype, [n, c, d, h, w]);
        let target = self
            .target_place()
            .owned(self.builder.mesh, &self.builder.coord)
            .shape();
        let target = self
            .builder
            .buffer("target", Role::Staging, self.request.dtype, target);
        self.staging = [sample, target].map(|id| Some(self.builder.whole(id)));
    }

    /// Split of what the network shall answer.
    pub fn target_place(&self) -> Place {
        let last = &self.network.layers[self.network.layers.len() - 1];
        let mut place = *self.place(last.inputs[0]);
        if let Some(Op::Loss(partita_graph::Loss::SoftmaxCrossEntropy)) = last.op() {
            place.shape[4] = 1;
        }
        place
    }

    fn loads(&mut self, when: When) {
        let places = [*self.place(NodeId(0)), self.target_place()];
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
