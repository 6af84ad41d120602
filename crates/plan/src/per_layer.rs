//! A distribution for each layer of a model on one mesh: the cheapest path through all of them.
//!
//! Example: on `data=16` convolutions have samples and linear layers filters, `data=16; fc1..: F=data`.
//! A choice is made wherever a single tensor passes from the layers before to those behind, at a layer
//! with weights; layers of a residual block stay alike. What layers take under a distribution is read
//! from one program of the whole model for each distribution, so equal layers are lowered once, together.

use crate::candidates::SPATIAL;
use crate::closed::of_one_rank;
use crate::layers::{LayersError, StageCosts, middle, origins};
use partita_graph::{Graph, NodeId, Op, readers};
use partita_lower::{LayerChoice, LayerDim, Request, Strategy};
use partita_oracle::closed::Link;
use partita_program::{Lane, Phase, ProgramKind, Task};
use partita_space::{AXES, Axis, AxisList, Mesh, Seconds};
use std::ops::Range;

/// Where the ranks of a bundle of axes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// To the dims on which they lie unless something else is said: samples or positions.
    Own,
    Samples,
    Filters,
    Channels,
}

/// Where the data axis and the spatial axes go.
type State = [Role; 2];

/// What the layers of a model take under each distribution, and what lies between.
///
/// The seconds of a path are those of all its layers and of what moves between them. Nothing of it is
/// simulated: they compare paths, and what comes of them is for the simulation to say.
pub struct PerLayer<'a> {
    graph: &'a Graph,
    mesh: Strategy,
    states: Vec<State>,
    /// Nodes that are split alike.
    units: Vec<Range<usize>>,
    /// Seconds of each unit under each state.
    layers: Vec<Vec<f64>>,
    /// Seconds between a unit under a state and the next one under another.
    borders: Vec<Vec<Vec<f64>>>,
}

impl<'a> PerLayer<'a> {
    /// For a mesh of samples and positions; of halos and sums of gradients the share `shown` counts, the rest
    /// hides behind computation. None where the mesh does not suit the model.
    ///
    /// Errors: a kernel that the menu lacks, a cost that cannot be had.
    pub fn new(
        training: &Request<'a>,
        costs: &dyn StageCosts,
        shown: f64,
    ) -> Result<Option<Self>, String> {
        let found = Measured::new(training, costs).map_err(|error| match error {
            LayersError::Lower(error) => error.to_string(),
            LayersError::Cost(unknown) => unknown,
        })?;
        Ok(found.map(|found| found.per_layer(shown)))
    }

    /// How many distributions each unit has, and how many units there are.
    pub fn size(&self) -> [usize; 2] {
        [self.states.len(), self.units.len()]
    }

    /// The cheapest path: of each unit the number of its distribution.
    pub fn best(&self) -> Vec<usize> {
        let states = self.states.len();
        let mut least = self.layers[0].clone();
        let mut from: Vec<Vec<usize>> = Vec::new();
        for (unit, border) in self.borders.iter().enumerate() {
            let reach = |to: usize| {
                let all = (0..states).map(|at| (at, least[at] + border[at][to]));
                let best = all.min_by(|a, b| a.1.total_cmp(&b.1));
                best.unwrap_or((0, f64::INFINITY))
            };
            let steps: Vec<(usize, f64)> = (0..states).map(reach).collect();
            from.push(steps.iter().map(|step| step.0).collect());
            let layers = &self.layers[unit + 1];
            least = steps
                .iter()
                .zip(layers)
                .map(|(step, own)| step.1 + own)
                .collect();
        }
        let last = (0..states).min_by(|&a, &b| least[a].total_cmp(&least[b]));
        let mut path = vec![last.unwrap_or(0)];
        for from in from.iter().rev() {
            path.push(from[path[path.len() - 1]]);
        }
        path.reverse();
        path
    }

    /// Seconds of a path by these costs.
    pub fn seconds(&self, path: &[usize]) -> Seconds {
        let layers = self
            .layers
            .iter()
            .zip(path)
            .map(|(unit, &state)| unit[state]);
        let borders = self
            .borders
            .iter()
            .zip(path.windows(2))
            .map(|(border, pair)| border[pair[0]][pair[1]]);
        Seconds(layers.sum::<f64>() + borders.sum::<f64>())
    }

    /// A path in words: one for all neighbors that are alike and not as the mesh has it.
    pub fn strategy(&self, path: &[usize]) -> Strategy {
        let states: Vec<State> = path.iter().map(|&state| self.states[state]).collect();
        said(self.graph, &self.mesh, &self.units, &states)
    }
}

/// The seconds of the units by what hides and what does not.
pub(crate) struct Measured<'a> {
    graph: &'a Graph,
    mesh: Strategy,
    states: Vec<State>,
    units: Vec<Range<usize>>,
    /// Of each unit and state what shows, and what may hide; none where a unit cannot be split so.
    seconds: Vec<Vec<Option<[f64; 2]>>>,
    borders: Vec<Vec<Vec<f64>>>,
}

impl<'a> Measured<'a> {
    pub fn new(
        training: &Request<'a>,
        costs: &dyn StageCosts,
    ) -> Result<Option<Self>, LayersError> {
        let (graph, strategy) = (training.graph, training.strategy);
        let mut mesh = Strategy::of(AXES.map(|axis| strategy.extent(axis)));
        mesh.overlap = strategy.overlap;
        mesh.fuse = strategy.fuse;
        if mesh.check(graph, training.batch).is_err() {
            return Ok(None);
        }
        let (units, crossing) = units(graph);
        let mut states = Vec::new();
        let mut seconds: Vec<Vec<Option<[f64; 2]>>> = vec![Vec::new(); units.len()];
        for state in all_states(&mesh) {
            let fits = |unit: &Range<usize>| suits(graph, unit, &mesh, state, training.batch);
            let fits: Vec<bool> = units.iter().map(fits).collect();
            let each: Vec<State> = fits
                .iter()
                .map(|&fits| if fits { state } else { OWN })
                .collect();
            let strategy = said(graph, &mesh, &units, &each);
            if !fits.contains(&true) || strategy.check(graph, training.batch).is_err() {
                continue;
            }
            let request = Request {
                strategy: &strategy,
                kind: ProgramKind::Train,
                ..*training
            };
            let all = unit_seconds(&request, &units, &crossing, costs)?;
            for ((unit, own), fits) in seconds.iter_mut().zip(all).zip(fits) {
                unit.push(fits.then_some(own));
            }
            states.push(state);
        }
        let moves = Moves::new(&mesh, costs);
        let size = (training.batch * training.dtype.size()) as f64;
        let borders = crossing.iter().map(|id| {
            let shape = graph.node(*id).shape;
            let bytes = shape.volume() as f64 * size;
            let to = |from: &State| {
                let all = states.iter().map(|to| moves.seconds(*from, *to, bytes));
                all.collect()
            };
            states.iter().map(to).collect()
        });
        Ok(Some(Self {
            graph,
            mesh,
            borders: borders.collect(),
            states,
            units,
            seconds,
        }))
    }

    /// The cheapest paths by what may be thought to show, with all distributions and with those that split
    /// no channels.
    pub fn best(&self) -> Vec<Strategy> {
        let mut best = Vec::new();
        for shown in SHOWN {
            let mut layers = self.per_layer(shown);
            best.push(layers.strategy(&layers.best()));
            let split = |state: &State| state.contains(&Role::Channels);
            for unit in &mut layers.layers {
                let all = unit.iter_mut().zip(&self.states);
                all.filter(|(_, state)| split(state))
                    .for_each(|(seconds, _)| *seconds = f64::INFINITY);
            }
            best.push(layers.strategy(&layers.best()));
        }
        best
    }

    /// With a share of what may hide.
    fn per_layer(&self, shown: f64) -> PerLayer<'a> {
        let sum = |own: &Option<[f64; 2]>| {
            own.map_or(f64::INFINITY, |[shows, hides]| shows + shown * hides)
        };
        let units = self.seconds.iter();
        PerLayer {
            graph: self.graph,
            mesh: self.mesh.clone(),
            states: self.states.clone(),
            units: self.units.clone(),
            layers: units.map(|unit| unit.iter().map(sum).collect()).collect(),
            borders: self.borders.clone(),
        }
    }
}

/// Shares of what may hide that are thought to show.
const SHOWN: [f64; 3] = [1.0, 0.4, 0.1];
const OWN: State = [Role::Own; 2];

/// The axes of both bundles.
fn bundles(mesh: &Strategy) -> [Vec<Axis>; 2] {
    let wide = |axes: &[Axis]| {
        let axes = axes.iter().copied();
        axes.filter(|&axis| mesh.extent(axis) > 1).collect()
    };
    [wide(&[Axis::Data]), wide(&SPATIAL)]
}

/// That of the mesh first.
fn all_states(mesh: &Strategy) -> Vec<State> {
    let [data, tiles] = bundles(mesh).map(|axes| !axes.is_empty());
    let roles = |is_wide: bool, more: &[Role]| {
        if is_wide {
            [&[Role::Own], more, &[Role::Filters, Role::Channels]].concat()
        } else {
            vec![Role::Own]
        }
    };
    let tiles = roles(tiles, &[Role::Samples]);
    let data = roles(data, &[]).into_iter();
    data.flat_map(|data| tiles.iter().map(move |&tiles| [data, tiles]))
        .collect()
}

/// Parts in which a state splits what has a role.
fn parts(mesh: &Strategy, state: State, role: Role) -> usize {
    let sizes = bundles(mesh).map(|axes| axes.iter().map(|&axis| mesh.extent(axis)).product());
    let own = [(state[0], sizes[0]), (state[1], sizes[1])];
    let meant = own.into_iter().filter(|(of, _)| *of == role);
    meant.map(|(_, size): (Role, usize)| size).product()
}

/// Whether all layers of a unit are wide enough for a state.
fn suits(graph: &Graph, unit: &Range<usize>, mesh: &Strategy, state: State, batch: usize) -> bool {
    let [filters, channels] = [Role::Filters, Role::Channels].map(|role| parts(mesh, state, role));
    let samples = parts(mesh, state, Role::Samples)
        * match state[0] {
            Role::Own => mesh.extent(Axis::Data),
            Role::Samples | Role::Filters | Role::Channels => 1,
        };
    let wide = |node: &partita_graph::Node| {
        let groups = match &node.op {
            Op::Convolution(convolution) => convolution.groups,
            Op::TransposedConvolution(convolution) => convolution.groups,
            _ => 1,
        };
        let reads = node
            .inputs
            .first()
            .map_or(1, |input| graph.node(*input).shape.channels);
        let is_alone = filters * channels == 1;
        is_alone
            || groups == 1
                && (!node.op.has_weights() || node.shape.channels >= filters * channels)
                && (!node.op.has_weights() || reads >= channels)
    };
    samples <= batch
        && (unit.start > 0 || channels == 1)
        && graph.nodes[unit.clone()].iter().all(wide)
}

/// Ranges of nodes between which single tensors pass, each from a layer with weights on, and these tensors.
fn units(graph: &Graph) -> (Vec<Range<usize>>, Vec<NodeId>) {
    let readers = readers(graph.nodes.iter().map(|node| &node.inputs[..]));
    let last: Vec<usize> = readers
        .iter()
        .map(|all| all.iter().map(|id| id.0).max().unwrap_or(0))
        .collect();
    let (mut starts, mut crossing) = (vec![0], Vec::new());
    for at in 2..graph.nodes.len() {
        let mut open = (0..at).filter(|&id| last[id] >= at);
        let single = open.next().filter(|_| open.next().is_none());
        if let Some(id) = single.filter(|&id| id > 0 && graph.nodes[at].op.has_weights()) {
            starts.push(at);
            crossing.push(NodeId(id));
        }
    }
    let ends = starts.iter().skip(1).copied().chain([graph.nodes.len()]);
    let units = starts.iter().copied().zip(ends);
    (units.map(|(start, end)| start..end).collect(), crossing)
}

/// The strategy that says so.
fn said(graph: &Graph, mesh: &Strategy, units: &[Range<usize>], states: &[State]) -> Strategy {
    let [data, tiles] = bundles(mesh);
    let mut strategy = mesh.clone();
    let mut at = 0;
    for run in states.chunk_by(|a, b| a == b) {
        let (first, end) = (units[at].start, units[at + run.len() - 1].end);
        at += run.len();
        let state = run[0];
        if state == OWN {
            continue;
        }
        let mut dims = [None; 6];
        for (dim, role) in [
            (LayerDim::N, Role::Samples),
            (LayerDim::C, Role::Channels),
            (LayerDim::F, Role::Filters),
        ] {
            let mut axes = Vec::new();
            let is_own = dim == LayerDim::N && state[0] == Role::Own;
            if state[0] == role || is_own {
                axes.extend(&data);
            }
            if state[1] == role {
                axes.extend(&tiles);
            }
            if state.contains(&role) {
                dims[dim as usize] = Some(AxisList::of(axes));
            }
        }
        strategy.layers.push(LayerChoice {
            from: graph.nodes[first].name.clone(),
            to: if end == graph.nodes.len() {
                String::new()
            } else {
                graph.nodes[end - 1].name.clone()
            },
            dims,
            ..LayerChoice::default()
        });
    }
    strategy
}

/// What each unit takes on the rank with most neighbors: what shows, and what may hide; without what comes
/// to it from others.
fn unit_seconds(
    request: &Request<'_>,
    units: &[Range<usize>],
    crossing: &[NodeId],
    costs: &dyn StageCosts,
) -> Result<Vec<[f64; 2]>, LayersError> {
    let graph = request.graph;
    let rank = middle(&request.strategy.mesh());
    let program = of_one_rank(request, rank)?;
    let seconds = costs.seconds(&program, rank).map_err(LayersError::Cost)?;
    let mut unit_of = vec![0; graph.nodes.len()];
    for (at, range) in units.iter().enumerate() {
        unit_of[range.clone()].fill(at);
    }
    let passed: Vec<String> = crossing
        .iter()
        .map(|id| format!("{}.moved", graph.node(*id).name))
        .collect();
    let is_passed = |task: &Task| passed.contains(&task.origin.layer);
    let body = &program.bodies[0];
    let mut all = vec![[0.0; 2]; units.len()];
    for ((task, seconds), node) in body.tasks.iter().zip(seconds).zip(origins(graph, body)) {
        let hides = match (task.work.lane(), task.origin.phase) {
            (Lane::Compute, _) => false,
            (Lane::Collective, Phase::Forward | Phase::Backward) if is_passed(task) => continue,
            (Lane::Exchange, Phase::Forward | Phase::Backward) if is_passed(task) => continue,
            (Lane::Collective, Phase::Forward | Phase::Backward | Phase::Report) => false,
            (Lane::Collective, Phase::Load | Phase::Reduce | Phase::Update) => true,
            (Lane::Exchange | Lane::Io, _) => true,
        };
        all[unit_of[node]][usize::from(hides)] += seconds.0;
    }
    Ok(all)
}

/// What moves a tensor from one state to another, forward and back.
struct Moves {
    sizes: [f64; 2],
    rings: [Link; 2],
    pairs: [Link; 2],
}

/// Where a bundle has a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Own,
    Samples,
    Channels,
    /// Nowhere: each rank has all of it.
    Whole,
}

impl Moves {
    fn new(mesh: &Strategy, costs: &dyn StageCosts) -> Self {
        let own = bundles(mesh);
        let world: Mesh = mesh.mesh();
        let members = own.clone().map(|axes| {
            let ranks = (0..world.ranks()).filter(|&rank| {
                let here =
                    |axis: Axis| world.coord(rank)[axis.index()] == 0 || axes.contains(&axis);
                AXES.into_iter().all(here)
            });
            ranks.collect::<Vec<_>>()
        });
        let pair = |members: &Vec<usize>| costs.pair(members[0], members[members.len() - 1]);
        Self {
            sizes: [members[0].len() as f64, members[1].len() as f64],
            rings: [costs.ring(&members[0]), costs.ring(&members[1])],
            pairs: [pair(&members[0]), pair(&members[1])],
        }
    }

    /// Seconds of both directions, one bundle after the other, each with what the other leaves.
    fn seconds(&self, from: State, to: State, bytes: f64) -> f64 {
        let places = [0, 1].map(|bundle| (given(bundle, from[bundle]), read(bundle, to[bundle])));
        let mut seconds = 0.0;
        for (bundle, (has, wants)) in places.into_iter().enumerate() {
            let size = self.sizes[bundle];
            let other = 1 - bundle;
            let is_split = places[other].0 != Lies::Whole && places[other].1 != Lies::Whole;
            let here = if is_split {
                bytes / self.sizes[other]
            } else {
                bytes
            };
            let steps = (size - 1.0).max(0.0);
            let over = |link: Link, bytes: f64| steps * (link.latency.0 + bytes * link.byte.0);
            // Gathered, and its gradient scattered with a sum, or the other way round.
            let gather = 2.0 * over(self.rings[bundle], here / size);
            seconds += match (has, wants) {
                _ if has == wants => 0.0,
                (Lies::Whole, _) => 0.5 * gather,
                (_, Lies::Whole) => gather,
                _ => 2.0 * over(self.pairs[bundle], here / size / size),
            };
        }
        seconds
    }
}

/// How a layer under a role leaves its output.
fn given(bundle: usize, role: Role) -> Lies {
    match role {
        Role::Own if bundle == 0 => Lies::Samples,
        Role::Own => Lies::Own,
        Role::Samples => Lies::Samples,
        Role::Filters | Role::Channels => Lies::Channels,
    }
}

/// How a layer under a role reads its input.
fn read(bundle: usize, role: Role) -> Lies {
    match role {
        Role::Own if bundle == 0 => Lies::Samples,
        Role::Own => Lies::Own,
        Role::Samples => Lies::Samples,
        Role::Filters => Lies::Whole,
        Role::Channels => Lies::Channels,
    }
}
