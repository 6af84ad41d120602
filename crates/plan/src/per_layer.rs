//! Chooses a distribution for each segment of a model on one mesh, as a shortest path.
//!
//! Example: on `data=16`, samples of convolutions and filters of linear layers are split: `data=16; fc1..: F=data`.
//! A segment ends before a layer with weights where a single tensor connects the layers before and after; layers of
//! a residual block stay in one segment. The costs of all segments under a distribution are those of one program of
//! the whole model.

use crate::candidates::SPATIAL;
use crate::layers::{LayersError, StageCosts, single_crossings};
use crate::moves::{AxisTarget, MoveCosts, TimeKind, add_seconds};
use crate::repeats::Shortened;
use partita_graph::{Graph, NodeId, Op};
use partita_lower::{LayerChoice, LayerDim, Request, Strategy};
use partita_program::ProgramKind;
use partita_space::{AXES, Axis, AxisList, Seconds};
use std::ops::Range;

/// What the data axis and the spatial axes split.
type AxisAssignment = [AxisTarget; 2];

/// Costs of the segments of a model under each axis assignment, and of redistributions between them.
///
/// The seconds of a path are the sum of both. They only compare paths; the simulation evaluates the result.
pub struct PerLayer<'a> {
    graph: &'a Graph,
    mesh: Strategy,
    assignments: Vec<AxisAssignment>,
    /// Ranges of nodes that are split alike.
    segments: Vec<Range<usize>>,
    /// Seconds by segment and assignment.
    layers: Vec<Vec<f64>>,
    /// Seconds of the redistribution after each segment, by both assignments.
    borders: Vec<Vec<Vec<f64>>>,
}

impl<'a> PerLayer<'a> {
    /// On a mesh of data and spatial axes, with an exposed fraction of halo exchanges and gradient reductions. None
    /// where the mesh does not fit the model.
    ///
    /// Errors: a kernel that the menu lacks, an unknown cost.
    pub fn new(
        training: &Request<'a>,
        costs: &dyn StageCosts,
        exposed_fraction: f64,
    ) -> Result<Option<Self>, LayersError> {
        let found = DistributionCosts::new(training, None, costs)?;
        Ok(found.map(|found| found.per_layer(exposed_fraction)))
    }

    /// Number of assignments and of segments.
    pub fn size(&self) -> [usize; 2] {
        [self.assignments.len(), self.segments.len()]
    }

    /// The shortest path: the index of the assignment of each segment.
    pub fn best(&self) -> Vec<usize> {
        shortest_path(&self.layers, &self.borders)
    }

    /// Seconds of a path.
    pub fn seconds(&self, path: &[usize]) -> Seconds {
        let layers = self
            .layers
            .iter()
            .zip(path)
            .map(|(segment, &assignment)| segment[assignment]);
        let borders = self
            .borders
            .iter()
            .zip(path.windows(2))
            .map(|(border, pair)| border[pair[0]][pair[1]]);
        Seconds(layers.sum::<f64>() + borders.sum::<f64>())
    }

    /// The strategy of a path, with one setting for adjacent segments with the same assignment.
    pub fn strategy(&self, path: &[usize]) -> Strategy {
        let assignments: Vec<AxisAssignment> = path
            .iter()
            .map(|&assignment| self.assignments[assignment])
            .collect();
        with_assignments(self.graph, &self.mesh, &self.segments, &assignments)
    }
}

/// The shortest path over units of layers, by their seconds under each assignment and those between them.
pub(crate) fn shortest_path(layers: &[Vec<f64>], borders: &[Vec<Vec<f64>>]) -> Vec<usize> {
    let assignments = layers[0].len();
    let mut least = layers[0].clone();
    let mut from: Vec<Vec<usize>> = Vec::new();
    for (own, border) in layers[1..].iter().zip(borders) {
        let reach = |to: usize| {
            let all = (0..assignments).map(|at| (at, least[at] + border[at][to]));
            let best = all.min_by(|a, b| a.1.total_cmp(&b.1));
            best.unwrap_or((0, f64::INFINITY))
        };
        let steps: Vec<(usize, f64)> = (0..assignments).map(reach).collect();
        from.push(steps.iter().map(|step| step.0).collect());
        least = steps
            .iter()
            .zip(own)
            .map(|(step, own)| step.1 + own)
            .collect();
    }
    let last = (0..assignments).min_by(|&a, &b| least[a].total_cmp(&least[b]));
    let mut path = vec![last.unwrap_or(0)];
    for from in from.iter().rev() {
        path.push(from[path[path.len() - 1]]);
    }
    path.reverse();
    path
}

/// Exposed and overlappable seconds of the segments.
pub(crate) struct DistributionCosts<'a> {
    graph: &'a Graph,
    mesh: Strategy,
    assignments: Vec<AxisAssignment>,
    segments: Vec<Range<usize>>,
    /// By segment and assignment; none where a segment cannot be split so.
    seconds: Vec<Vec<Option<[f64; 2]>>>,
    borders: Vec<Vec<Vec<f64>>>,
}

impl<'a> DistributionCosts<'a> {
    /// None where the mesh does not fit the model. Segments with the like in a shortened model have the costs of
    /// those.
    pub fn new(
        training: &Request<'a>,
        shortened: Option<&Shortened>,
        costs: &dyn StageCosts,
    ) -> Result<Option<Self>, LayersError> {
        let Some(shortened) = shortened else {
            return Self::of(training, costs);
        };
        let request = Request {
            graph: &shortened.graph,
            ..*training
        };
        let Some(short) = DistributionCosts::of(&request, costs)? else {
            return Ok(None);
        };
        let (segments, crossing) = segments(training.graph);
        let like = |segment: &Range<usize>| {
            let at = shortened.like[segment.start];
            let is_here = |one: &Range<usize>| one.contains(&at);
            short.segments.iter().position(is_here).unwrap_or_default()
        };
        let seconds = segments
            .iter()
            .map(|segment| short.seconds[like(segment)].clone());
        Ok(Some(Self {
            graph: training.graph,
            seconds: seconds.collect(),
            borders: borders(training, &crossing, &short.mesh, &short.assignments, costs),
            mesh: short.mesh,
            assignments: short.assignments,
            segments,
        }))
    }

    fn of(training: &Request<'a>, costs: &dyn StageCosts) -> Result<Option<Self>, LayersError> {
        let (graph, strategy) = (training.graph, training.strategy);
        let mut mesh = Strategy::of(AXES.map(|axis| strategy.extent(axis)));
        mesh.overlap = strategy.overlap;
        mesh.fuse = strategy.fuse;
        mesh.batch_norm = strategy.batch_norm;
        mesh.workspace = strategy.workspace;
        if mesh.check(graph, training.batch).is_err() {
            return Ok(None);
        }
        let (segments, crossing) = segments(graph);
        let mut assignments = Vec::new();
        let mut seconds: Vec<Vec<Option<[f64; 2]>>> = vec![Vec::new(); segments.len()];
        for assignment in all_assignments(&mesh) {
            let fits = |segment: &Range<usize>| {
                is_wide_enough(graph, segment, &mesh, assignment, training.batch)
            };
            let fits: Vec<bool> = segments.iter().map(fits).collect();
            let each: Vec<AxisAssignment> = fits
                .iter()
                .map(|&fits| if fits { assignment } else { DEFAULT })
                .collect();
            let strategy = with_assignments(graph, &mesh, &segments, &each);
            if !fits.contains(&true) || strategy.check(graph, training.batch).is_err() {
                continue;
            }
            let request = Request {
                strategy: &strategy,
                kind: ProgramKind::Train,
                ..*training
            };
            let all = segment_seconds(&request, &segments, &crossing, costs)?;
            for ((segment, own), fits) in seconds.iter_mut().zip(all).zip(fits) {
                segment.push(fits.then_some(own));
            }
            assignments.push(assignment);
        }
        Ok(Some(Self {
            graph,
            borders: borders(training, &crossing, &mesh, &assignments, costs),
            mesh,
            assignments,
            segments,
            seconds,
        }))
    }

    /// The shortest paths for each exposed fraction, with all assignments and with those that split no channels.
    pub fn best(&self) -> Vec<Strategy> {
        let mut best = Vec::new();
        for exposed_fraction in EXPOSED_FRACTIONS {
            let mut layers = self.per_layer(exposed_fraction);
            best.push(layers.strategy(&layers.best()));
            let split = |assignment: &AxisAssignment| assignment.contains(&AxisTarget::Channels);
            for segment in &mut layers.layers {
                let all = segment.iter_mut().zip(&self.assignments);
                all.filter(|(_, assignment)| split(assignment))
                    .for_each(|(seconds, _)| *seconds = f64::INFINITY);
            }
            best.push(layers.strategy(&layers.best()));
        }
        best
    }

    /// With an exposed fraction of overlappable communication.
    fn per_layer(&self, exposed_fraction: f64) -> PerLayer<'a> {
        let sum = |own: &Option<[f64; 2]>| {
            own.map_or(f64::INFINITY, |[exposed, overlappable]| {
                exposed + exposed_fraction * overlappable
            })
        };
        let segments = self.seconds.iter();
        PerLayer {
            graph: self.graph,
            mesh: self.mesh.clone(),
            assignments: self.assignments.clone(),
            segments: self.segments.clone(),
            layers: segments
                .map(|segment| segment.iter().map(sum).collect())
                .collect(),
            borders: self.borders.clone(),
        }
    }
}

/// Assumed fractions of overlappable communication that is exposed.
pub(crate) const EXPOSED_FRACTIONS: [f64; 3] = [1.0, 0.4, 0.1];
const DEFAULT: AxisAssignment = [AxisTarget::Default; 2];

/// The data axis and the spatial axes, those of extent above 1.
fn axis_groups(mesh: &Strategy) -> [Vec<Axis>; 2] {
    let wide = |axes: &[Axis]| {
        let axes = axes.iter().copied();
        axes.filter(|&axis| mesh.extent(axis) > 1).collect()
    };
    [wide(&[Axis::Data]), wide(&SPATIAL)]
}

/// All axis assignments, the default first.
fn all_assignments(mesh: &Strategy) -> Vec<AxisAssignment> {
    let [data, tiles] = axis_groups(mesh).map(|axes| !axes.is_empty());
    let targets = |is_wide: bool, more: &[AxisTarget]| {
        if is_wide {
            [
                &[AxisTarget::Default],
                more,
                &[AxisTarget::Filters, AxisTarget::Channels],
            ]
            .concat()
        } else {
            vec![AxisTarget::Default]
        }
    };
    let tiles = targets(tiles, &[AxisTarget::Samples]);
    let data = targets(data, &[]).into_iter();
    data.flat_map(|data| tiles.iter().map(move |&tiles| [data, tiles]))
        .collect()
}

/// Number of parts into which an assignment splits a dim.
fn parts(mesh: &Strategy, assignment: AxisAssignment, target: AxisTarget) -> usize {
    let sizes = axis_groups(mesh).map(|axes| axes.iter().map(|&axis| mesh.extent(axis)).product());
    let own = [(assignment[0], sizes[0]), (assignment[1], sizes[1])];
    let chosen = own.into_iter().filter(|(of, _)| *of == target);
    chosen.map(|(_, size): (AxisTarget, usize)| size).product()
}

/// Whether all layers of a segment have enough channels and samples for an assignment.
fn is_wide_enough(
    graph: &Graph,
    segment: &Range<usize>,
    mesh: &Strategy,
    assignment: AxisAssignment,
    batch: usize,
) -> bool {
    let [filters, channels] =
        [AxisTarget::Filters, AxisTarget::Channels].map(|target| parts(mesh, assignment, target));
    let samples = parts(mesh, assignment, AxisTarget::Samples)
        * match assignment[0] {
            AxisTarget::Default => mesh.extent(Axis::Data),
            AxisTarget::Samples
            | AxisTarget::Filters
            | AxisTarget::Channels
            | AxisTarget::Repeated => 1,
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
        && (segment.start > 0 || channels == 1)
        && graph.nodes[segment.clone()].iter().all(wide)
}

/// The segments of a model, and the tensors between them.
fn segments(graph: &Graph) -> (Vec<Range<usize>>, Vec<NodeId>) {
    let (mut starts, mut crossing) = (vec![0], Vec::new());
    for (at, single) in single_crossings(graph).into_iter().enumerate().skip(2) {
        // Padding begins the segment of its convolution.
        let weighted = &graph.nodes[at + usize::from(graph.is_padding(at))].op;
        let is_start = weighted.has_weights() && graph.layer_start(at) == at;
        let single = single.filter(|id| id.0 > 0 && is_start);
        if let Some(id) = single {
            starts.push(at);
            crossing.push(id);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([graph.nodes.len()]);
    let segments = starts.iter().copied().zip(ends);
    (segments.map(|(start, end)| start..end).collect(), crossing)
}

/// The strategy with an assignment for each segment.
fn with_assignments(
    graph: &Graph,
    mesh: &Strategy,
    segments: &[Range<usize>],
    assignments: &[AxisAssignment],
) -> Strategy {
    let [data, tiles] = axis_groups(mesh);
    let mut strategy = mesh.clone();
    let mut at = 0;
    for run in assignments.chunk_by(|a, b| a == b) {
        let (first, end) = (segments[at].start, segments[at + run.len() - 1].end);
        at += run.len();
        let assignment = run[0];
        if assignment == DEFAULT {
            continue;
        }
        let mut dims = [None; 6];
        for (dim, target) in [
            (LayerDim::N, AxisTarget::Samples),
            (LayerDim::C, AxisTarget::Channels),
            (LayerDim::F, AxisTarget::Filters),
        ] {
            let mut axes = Vec::new();
            let is_own = dim == LayerDim::N && assignment[0] == AxisTarget::Default;
            if assignment[0] == target || is_own {
                axes.extend(&data);
            }
            if assignment[1] == target {
                axes.extend(&tiles);
            }
            if assignment.contains(&target) {
                dims[dim as usize] = Some(AxisList::of(axes));
            }
        }
        strategy.layers.push(LayerChoice {
            from: graph.layer_name(first).to_owned(),
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

/// Exposed and overlappable seconds of each segment, without redistributions between segments.
fn segment_seconds(
    request: &Request<'_>,
    segments: &[Range<usize>],
    crossing: &[NodeId],
    costs: &dyn StageCosts,
) -> Result<Vec<[f64; 2]>, LayersError> {
    let graph = request.graph;
    let mut segment_of = vec![0; graph.nodes.len()];
    for (at, range) in segments.iter().enumerate() {
        segment_of[range.clone()].fill(at);
    }
    let mut all = vec![[0.0; 2]; segments.len()];
    add_seconds(request, costs, crossing, &mut |_, node, kind, seconds| {
        all[segment_of[node]][usize::from(kind == TimeKind::Overlappable)] += seconds;
    })?;
    Ok(all)
}

/// Seconds of the redistribution of each tensor between segments, by both assignments.
fn borders(
    training: &Request<'_>,
    crossing: &[NodeId],
    mesh: &Strategy,
    assignments: &[AxisAssignment],
    costs: &dyn StageCosts,
) -> Vec<Vec<Vec<f64>>> {
    let moves = MoveCosts::new(mesh, &axis_groups(mesh), costs);
    let size = (training.batch * training.dtype.size()) as f64;
    let border = |id: &NodeId| {
        let bytes = training.graph.node(*id).shape.volume() as f64 * size;
        let to = |from: &AxisAssignment| {
            let all = assignments.iter();
            all.map(|to| moves.seconds(from, to, bytes)).collect()
        };
        assignments.iter().map(to).collect()
    };
    crossing.iter().map(border).collect()
}
