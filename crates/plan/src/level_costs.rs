//! Chooses for each level of a model over which spatial axes it is split, as a shortest path over the levels.
//!
//! Small pieces exchange halos for little arithmetic, and deep layers have most of the weights, whose gradients all ranks
//! sum. As in `per_layer`, one rank is lowered for each assignment of axes that may gain something.

use crate::layers::{LayersError, StageCosts};
use crate::levels::{DeepLayers, LevelAssignment, Levels, splits_weights};
use crate::moves::{AxisTarget, MoveCosts, TimeKind, add_seconds};
use crate::per_layer::{EXPOSED_FRACTIONS, shortest_path};
use crate::plan::{PlanError, RankedStrategy, Refusal};
use crate::ranking::{Pending, Ranking};
use crate::repeats::Shortened;
use partita_graph::{Graph, NodeId};
use partita_lower::{Request, Strategy};
use partita_program::ProgramKind;
use partita_space::{Axis, Seconds};
use std::cmp::Reverse;

/// Assignments that gain less than this part of the time of a rank are not lowered.
const GAIN_MIN: f64 = 0.01;
/// Part of their expected time that redistributions within a level take at least.
const MOVES_MIN: f64 = 0.5;
/// Axes of the deep levels of a mesh are chosen if it takes at most this many times as long as the best, by closed forms.
const MESH_FACTOR: f64 = 1.1;
/// Meshes on which they are chosen where nothing else fits in memory.
const MESHES_BY_MEMORY: usize = 3;

/// What an axis may split beside the default.
const TARGETS: [AxisTarget; 3] = [
    AxisTarget::Channels,
    AxisTarget::Filters,
    AxisTarget::Repeated,
];

/// Kinds of time: computation, communication that layers wait for, and other communication.
const KINDS: usize = 3;

/// Seconds of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct UnitSeconds([f64; KINDS]);

impl UnitSeconds {
    /// With an exposed fraction of what layers do not wait for.
    fn sum(&self, exposed_fraction: f64) -> f64 {
        let [computation, waited, overlappable] = self.0;
        computation + waited + exposed_fraction * overlappable
    }
}

/// Costs of the levels of a model under each assignment, and of redistributions between them.
struct LevelCosts<'a> {
    levels: Levels<'a>,
    /// Models with fewer of its equal blocks, which are lowered in its place, with the same levels.
    shortened: Option<&'a Shortened>,
    assignments: Vec<LevelAssignment>,
    /// By unit and assignment: levels, and then the transposed convolutions between them. None where a unit cannot be
    /// split so.
    seconds: Vec<Vec<Option<UnitSeconds>>>,
    moves: MoveCosts,
    /// Bytes of an element of all samples.
    item: f64,
}

impl<'a> LevelCosts<'a> {
    /// Once it is over, no more assignments are added.
    ///
    /// Errors: a kernel that the menu lacks, an unknown cost.
    fn new(
        training: &Request<'a>,
        (levels, shortened): (Levels<'a>, Option<&'a Shortened>),
        costs: &dyn StageCosts,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Self, LayersError> {
        let axes = levels.axes.iter().map(|&axis| vec![axis]);
        let groups: Vec<Vec<Axis>> = [vec![Axis::Data]].into_iter().chain(axes).collect();
        let mut all = levels.assignments().into_iter();
        let default = all.next().unwrap_or_default();
        let mut table = Self {
            assignments: Vec::new(),
            seconds: vec![Vec::new(); units(levels.deep.len())],
            moves: MoveCosts::new(&levels.mesh, &groups, costs),
            item: (training.batch * training.dtype.size()) as f64,
            levels,
            shortened,
        };
        table.add(training, default.clone(), 0, costs)?;
        let single = Request {
            batch: training.batch / table.levels.mesh.extent(Axis::Data),
            ..*training
        };
        let single = table.unit_seconds(&single, (&Strategy::single(), 0, &default), costs)?;
        for assignment in all.take_while(|_| !is_over()) {
            if let Some(first) = table.levels.first_that_fits(&assignment, training.batch)
                && table.may_gain(first, &assignment, &single)
            {
                table.add(training, assignment, first, costs)?;
            }
        }
        Ok(table)
    }

    /// Adds the costs of an assignment of the levels below one.
    fn add(
        &mut self,
        training: &Request<'_>,
        assignment: LevelAssignment,
        first: usize,
        costs: &dyn StageCosts,
    ) -> Result<(), LayersError> {
        let of = (&self.levels.mesh, first, &assignment);
        let own = self.unit_seconds(training, of, costs)?;
        let (depth, is_default) = (self.levels.deep.len(), self.assignments.is_empty());
        for (unit, (all, own)) in self.seconds.iter_mut().zip(own).enumerate() {
            let level = if unit > depth { unit - depth } else { unit };
            all.push((is_default || level > first).then_some(own));
        }
        self.assignments.push(assignment);
        Ok(())
    }

    /// Whether an assignment of the levels below one may be faster than the default, given the seconds of a rank alone.
    /// A level takes at least what it takes alone, divided evenly, and a part of the redistributions of what its layers
    /// read.
    fn may_gain(&self, first: usize, assignment: &LevelAssignment, single: &[UnitSeconds]) -> bool {
        let levels = &self.levels;
        let of_default = |unit: usize| self.seconds[unit][0].map_or(0.0, |one| one.sum(1.0));
        let repeated = levels.ranks(assignment, &[AxisTarget::Repeated]) as f64;
        let tiles = levels.ranks(&self.assignments[0], &[AxisTarget::Default]) as f64;
        let gain = |level: usize| {
            let inner = levels.deep.get(level).map(|deep| deep.range.clone());
            let is_own = |at: &usize| inner.as_ref().is_none_or(|inner| !inner.contains(at));
            let own = levels.deep[level - 1].range.clone().filter(is_own);
            let weighted = own.filter(|&at| levels.graph.nodes[at].op.has_weights());
            let moved = |at: usize| {
                let read = levels.graph.nodes[at].inputs.first();
                let moved = |id: &NodeId| self.moved(assignment, assignment, *id);
                read.map_or(0.0, moved)
            };
            let moved: f64 = weighted.map(moved).sum();
            let even = single[level].0[0] * repeated / tiles;
            (of_default(level) - even - MOVES_MIN * moved).max(0.0)
        };
        let gain: f64 = (first + 1..=levels.deep.len()).map(gain).sum();
        let all: f64 = (0..self.seconds.len()).map(of_default).sum();
        gain >= GAIN_MIN * all
    }

    /// Seconds of each unit in a program on a mesh in which levels below one have this assignment, without redistributions
    /// between levels.
    fn unit_seconds(
        &self,
        training: &Request<'_>,
        (mesh, first, assignment): (&Strategy, usize, &LevelAssignment),
        costs: &dyn StageCosts,
    ) -> Result<Vec<UnitSeconds>, LayersError> {
        let of = |levels: &Levels<'_>| {
            let strategy = match mesh.ranks() {
                // Without axes there are no levels.
                1 => mesh.clone(),
                _ => levels.strategy(&levels.below(first, assignment)),
            };
            let request = Request {
                graph: levels.graph,
                strategy: &strategy,
                kind: ProgramKind::Train,
                ..*training
            };
            lowered_seconds(&request, (levels, assignment), costs)
        };
        let short = |graph: &Graph| {
            let levels = Levels::new(graph, &self.levels.mesh);
            of(&levels.expect("shortened models have the levels of the whole one"))
        };
        let all = match self.shortened {
            Some(shortened) => shortened.extrapolated(short)?,
            None => of(&self.levels)?,
        };
        let (units, _) = all.as_chunks();
        Ok(units.iter().map(|kinds| UnitSeconds(*kinds)).collect())
    }

    /// Seconds of the redistribution of a tensor, forward and backward.
    fn moved(&self, from: &LevelAssignment, to: &LevelAssignment, id: NodeId) -> f64 {
        let bytes = self.levels.graph.node(id).shape.volume() as f64 * self.item;
        self.moves.seconds(from, to, bytes)
    }

    /// Seconds between adjacent levels, by both assignments, with the transposed convolution between them.
    fn borders(&self, seconds: &dyn Fn(usize, usize) -> f64) -> Vec<Vec<Vec<f64>>> {
        let depth = self.levels.deep.len();
        let border = |at: usize, outer: usize, inner: usize| {
            let deep = &self.levels.deep[at];
            let [from, to] = [outer, inner].map(|at| &self.assignments[at]);
            let up = deep.own_upsampling(to).or(deep.leaves);
            let up = up.map_or(0.0, |id| self.moved(to, from, id));
            let own = if splits_weights(to) { inner } else { outer };
            let moved = |id: &NodeId| self.moved(from, to, *id);
            let moved: f64 = deep.enters.iter().map(moved).sum();
            moved + up + seconds(depth + 1 + at, own)
        };
        let all = 0..self.assignments.len();
        let of = |at: usize| {
            let from = |outer| all.clone().map(|inner| border(at, outer, inner)).collect();
            all.clone().map(from).collect()
        };
        (0..depth).map(of).collect()
    }

    /// The shortest paths for each exposed fraction: with all assignments, with those that split no channels, and with those
    /// that only repeat layers.
    fn best(&self) -> Vec<Strategy> {
        let mut best = Vec::new();
        for exposed_fraction in EXPOSED_FRACTIONS {
            for last in 0..TARGETS.len() {
                let strategy = self.path(exposed_fraction, &TARGETS[last..]);
                if !strategy.layers.is_empty() && !best.contains(&strategy) {
                    best.push(strategy);
                }
            }
        }
        best
    }

    /// The fastest strategies with one assignment for all levels below one, whose programs have fewer classes of ranks than those
    /// with many assignments: for each exposed fraction, with all assignments and with those that split no channels.
    fn best_of_one_change(&self) -> Vec<Strategy> {
        let mut best: Vec<Strategy> = Vec::new();
        for exposed_fraction in EXPOSED_FRACTIONS {
            for allowed in [&TARGETS[..], &TARGETS[1..]] {
                let found = self.with_one_change(exposed_fraction, allowed);
                best.extend(found.filter(|strategy| !best.contains(strategy)));
            }
        }
        best
    }

    /// The fastest strategy with one assignment of these targets for all levels below one.
    fn with_one_change(&self, exposed_fraction: f64, allowed: &[AxisTarget]) -> Option<Strategy> {
        let depth = self.levels.deep.len();
        let seconds = |unit: usize, at: usize| match self.seconds[unit][at] {
            Some(seconds) => seconds.sum(exposed_fraction),
            None => f64::INFINITY,
        };
        let borders = self.borders(&seconds);
        let time = |first: usize, at: usize| {
            let of = |level: usize| if level > first { at } else { 0 };
            let levels = (0..=depth).map(|level| seconds(level, of(level)));
            let borders = (0..depth).map(|level| borders[level][of(level)][of(level + 1)]);
            levels.sum::<f64>() + borders.sum::<f64>()
        };
        let is_allowed = |at: &usize| {
            let mut targets = self.assignments[*at].iter();
            targets.all(|one| *one == AxisTarget::Default || allowed.contains(one))
        };
        let all = (1..self.assignments.len()).filter(is_allowed);
        let all = all.flat_map(|at| (0..depth).map(move |first| (time(first, at), first, at)));
        let best = all.min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, first, at) = best.filter(|best| best.0.is_finite())?;
        Some(
            self.levels
                .strategy(&self.levels.below(first, &self.assignments[at])),
        )
    }

    /// The strategy of the shortest path with these targets beside the default.
    fn path(&self, exposed_fraction: f64, allowed: &[AxisTarget]) -> Strategy {
        let is_allowed = |assignment: &LevelAssignment| {
            let mut targets = assignment.iter();
            targets.all(|one| *one == AxisTarget::Default || allowed.contains(one))
        };
        let is_allowed: Vec<bool> = self.assignments.iter().map(is_allowed).collect();
        let seconds = |unit: usize, at: usize| match self.seconds[unit][at] {
            Some(seconds) if is_allowed[at] => seconds.sum(exposed_fraction),
            Some(_) | None => f64::INFINITY,
        };
        let all = 0..self.assignments.len();
        // The first level keeps the default.
        let of = |level: usize, at: usize| {
            if level == 0 && at > 0 {
                f64::INFINITY
            } else {
                seconds(level, at)
            }
        };
        let levels = 0..=self.levels.deep.len();
        let layers = levels.map(|level| all.clone().map(|at| of(level, at)).collect());
        let layers: Vec<Vec<f64>> = layers.collect();
        let path = shortest_path(&layers, &self.borders(&seconds)).into_iter();
        let path: Vec<LevelAssignment> = path.map(|at| self.assignments[at].clone()).collect();
        self.levels.strategy(&path)
    }
}

/// Seconds of each unit of a program in which levels have this assignment, by kind.
fn lowered_seconds(
    request: &Request<'_>,
    (levels, assignment): (&Levels<'_>, &LevelAssignment),
    costs: &dyn StageCosts,
) -> Result<Vec<f64>, LayersError> {
    let Levels { graph, deep, .. } = levels;
    let mut unit_of = vec![0; graph.nodes.len()];
    let mut crossing = Vec::new();
    for (at, one) in deep.iter().enumerate() {
        unit_of[one.range.clone()].fill(at + 1);
        if let Some(upsampling) = one.upsampling {
            unit_of[upsampling.0] = deep.len() + at + 1;
        }
        crossing.extend(&one.enters);
        crossing.extend(one.own_upsampling(assignment).or(one.leaves));
    }
    let enters = |one: &DeepLayers, name: &str| {
        let mut all = one.enters.iter();
        all.any(|id| graph.node(*id).name == name)
    };
    let mut all = vec![0.0; KINDS * units(deep.len())];
    add_seconds(
        request,
        costs,
        &crossing,
        &mut |task, node, kind, seconds| {
            // The halo of a tensor that enters a level is one of its layers.
            let is_halo = kind == TimeKind::Overlappable;
            let entered = deep
                .iter()
                .position(|one| is_halo && enters(one, &task.origin.layer));
            let unit = entered.map_or(unit_of[node], |at| at + 1);
            let at = match kind {
                TimeKind::Computation => 0,
                TimeKind::Exposed => 1,
                TimeKind::Overlappable => 2,
            };
            all[KINDS * unit + at] += seconds;
        },
    )?;
    Ok(all)
}

/// Levels, and the transposed convolutions between them.
fn units(deep: usize) -> usize {
    2 * deep + 1
}

impl Ranking<'_, '_> {
    /// Chooses axes for the levels of the model, and evaluates the results that may be the fastest: on a mesh, and, unless
    /// that was in vain, on the one of nearly as fast ones that splits the deepest weights into the most parts, of equals by the
    /// most axes. The meshes come with their time by closed forms, the fastest first.
    pub fn evaluate_levels(
        &mut self,
        (least, mesh): (Seconds, &Strategy),
        meshes: &[(Seconds, Strategy)],
    ) -> Result<(), PlanError> {
        let Request { graph, batch, .. } = self.request.training;
        let levels = Levels::new(graph, mesh);
        let Some(levels) = levels else {
            return Ok(());
        };
        let choices = |levels: &Levels<'_>| (levels.parts_max(batch), levels.axes.len());
        let mut most = (choices(&levels), None);
        let before = self.best.clone();
        self.evaluate_levels_of(levels)?;
        if before.is_some() && self.best == before && most.0.0 > 1 {
            return Ok(());
        }
        let near = meshes.iter().filter(|(form, one)| {
            let is_near = *form <= least * MESH_FACTOR && one.overlap == mesh.overlap;
            is_near && one.check(graph, batch).is_ok()
        });
        for levels in near.filter_map(|(_, one)| Levels::new(graph, one)) {
            if choices(&levels) > most.0 {
                most = (choices(&levels), Some(levels));
            }
        }
        let other = most.1.filter(|_| !self.is_over());
        other.map_or(Ok(()), |levels| self.evaluate_levels_of(levels))
    }

    /// Where nothing fits in memory: chooses axes for the levels on the meshes that can split the deepest weights into the
    /// most parts, of equals the fastest by closed forms first, until a result fits.
    pub fn evaluate_levels_by_memory(
        &mut self,
        mesh: &Strategy,
        meshes: &[(Seconds, Strategy)],
    ) -> Result<(), PlanError> {
        let Request { graph, batch, .. } = self.request.training;
        let all = meshes.iter().map(|(_, one)| one);
        let mut all: Vec<(usize, &Strategy)> = all
            .filter(|one| one.overlap == mesh.overlap && one.check(graph, batch).is_ok())
            .filter_map(|one| Some((Levels::new(graph, one)?.parts_max(batch), one)))
            .filter(|(parts, _)| *parts > 1)
            .collect();
        all.sort_by_key(|(parts, _)| Reverse(*parts));
        for (_, one) in all.into_iter().take(MESHES_BY_MEMORY) {
            if self.best.is_some() || self.is_over() {
                break;
            }
            if let Some(levels) = Levels::new(graph, one) {
                self.evaluate_levels_of(levels)?;
            }
        }
        Ok(())
    }

    fn evaluate_levels_of(&mut self, levels: Levels<'_>) -> Result<(), PlanError> {
        let request = Request {
            strategy: &levels.mesh.clone(),
            ..self.request.training
        };
        let is_over = || self.is_over();
        let depth = levels.deep.len();
        let mut models = self.shortened.into_iter().flat_map(Shortened::graphs);
        let has_levels = |one: &Graph| {
            Levels::new(one, &levels.mesh).is_some_and(|short| short.deep.len() == depth)
        };
        if !models.all(has_levels) {
            return Ok(());
        }
        let of = (levels, self.shortened);
        let costs = match LevelCosts::new(&request, of, self.request.stages, &is_over) {
            Ok(found) => found,
            Err(LayersError::Cost(_)) => return Ok(()),
            Err(LayersError::Lower(error)) if error.is_of_strategy() => return Ok(()),
            Err(LayersError::Lower(error)) => return Err(error.into()),
        };
        let before = self.refused.len();
        self.evaluate_some(costs.best())?;
        let is_large = |one: &RankedStrategy| one.refusal == Some(Refusal::Large);
        if self.refused[before..].iter().any(is_large) {
            self.evaluate_some(costs.best_of_one_change())?;
        }
        Ok(())
    }

    /// Evaluates those of these candidates that fit and may be the fastest, in the order of their lower bounds.
    fn evaluate_some(&mut self, best: Vec<Strategy>) -> Result<(), PlanError> {
        let mut pending: Vec<Pending> = Vec::new();
        for strategy in best {
            if self.refused.iter().any(|one| one.strategy == strategy) {
                continue;
            }
            if let Some(one) = self.bounded(strategy)? {
                pending.push(one);
                continue;
            }
            let is_short = |one: &&RankedStrategy| one.memory_needed().is_some();
            let short = self.refused.last().filter(is_short);
            self.levels_short
                .extend(short.map(|one| one.strategy.clone()));
        }
        pending.sort_by(|a, b| a.lower_bound.0.total_cmp(&b.lower_bound.0));
        let total = pending.len();
        for (at, one) in pending.into_iter().enumerate() {
            (self.request.progress)(&one.strategy, total - at);
            self.estimate_bounded(one)?;
        }
        Ok(())
    }
}
