//! Loss and metrics of volumes whose outputs are joined of tiles.
//!
//! A first run writes the outputs of all tiles into a scratch file, as an inference does. A second one reads whole
//! volumes of it as the samples of a network that is the loss alone.

use super::check;
use super::error::TrainError;
use super::forward::{Ends, Forward, Prepared};
use super::preparation::SampleOptions;
use super::run::Run;
use crate::launch::Launch;
use crate::training::StrategyChoice;
use partita_data::{
    DType, HyperslabSource, PredictionScratch, PredictionShape, PredictionSink, PredictionSource,
    Preprocessing, Split,
};
use partita_graph::{Graph, Node, NodeId, Op, Shape};
use partita_lower::Strategy;
use partita_program::ProgramKind;
use partita_run::{NoSink, RunError, Sink, Source};
use partita_session::{Outcome, Validation};
use partita_space::{Rank, Seconds};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the scratch file, beside the weights.
const SCRATCH: &str = "evaluate";

/// What came of both runs.
pub struct Joined {
    /// Loss and metrics of whole volumes.
    pub validation: Validation,
    /// Time of both runs.
    pub seconds: Seconds,
}

/// Programs of both runs.
pub struct JoinedPrograms {
    /// The outputs of tiles.
    pub outputs: Prepared<'static>,
    /// The loss of whole volumes, for those of each extents.
    losses: Vec<(Forward, Prepared<'static>)>,
}

impl JoinedPrograms {
    /// Lowers both programs and checks their memory.
    pub fn prepare(
        launch: &Launch<'_>,
        forward: &Forward,
        split: Split,
    ) -> Result<Self, TrainError> {
        let outputs = forward.prepare(launch, ProgramKind::Infer, split)?;
        let mut losses = Vec::new();
        for (extent, volumes) in groups(forward, split) {
            let shape = PredictionShape {
                extent,
                ..forward.output_shape(split)
            };
            let loss = of_loss(forward, shape);
            let first = loss.preprocessing.sampling.first_sample(split);
            let samples = volumes.into_iter().map(|volume| first + volume).collect();
            let of_loss = loss.prepare_samples(launch, ProgramKind::Evaluate, samples)?;
            losses.push((loss, of_loss));
        }
        Ok(Self { outputs, losses })
    }

    /// Runs both. The process of rank 0 gets what came of them.
    pub fn execute(
        &self,
        launch: &Launch<'_>,
        forward: &Forward,
        split: Split,
    ) -> Result<Option<Joined>, TrainError> {
        let shape = forward.output_shape(split);
        let folder = forward.weights_file.parent().unwrap_or(Path::new(""));
        let created = launch.is_first();
        let scratch = launch.prepare(|| {
            let create = || PredictionScratch::temporary(&folder.join(SCRATCH), shape);
            created.then(create).transpose().map_err(TrainError::from)
        })?;
        let path = || {
            let path = scratch.as_ref().map(PredictionScratch::path);
            Ok::<_, TrainError>(path.map(Path::to_owned).unwrap_or_default())
        };
        let path: PathBuf = launch.choose(path)?;
        forward.check_agreement(launch, &self.outputs)?;
        let open = |rank: Rank| {
            let opened = PredictionScratch::open_at(&path, shape);
            opened.map_err(|error| RunError::Sink {
                rank,
                reason: error.to_string(),
            })
        };
        let outputs = self.write_outputs(launch, forward, split, &open)?;
        let mut joined = outputs.map(|outputs| Joined {
            validation: Validation::default(),
            seconds: outputs.seconds,
        });
        for (number, (loss, of_loss)) in self.losses.iter().enumerate() {
            // No rank reads before all have written.
            loss.check_agreement(launch, of_loss)?;
            let is_followed = number + 1 < self.losses.len();
            let found = read_outputs(launch, split, (loss, of_loss), &open, is_followed)?;
            if let (Some(joined), Some(mut found)) = (&mut joined, found) {
                let validation = found.epochs.pop().and_then(|one| one.validation);
                joined.validation.join(&validation.unwrap_or_default());
                joined.seconds += found.seconds;
            }
        }
        Ok(joined)
    }

    fn write_outputs(
        &self,
        launch: &Launch<'_>,
        forward: &Forward,
        split: Split,
        open: &(dyn Fn(Rank) -> Result<PredictionScratch, RunError> + Sync),
    ) -> Result<Option<Outcome>, TrainError> {
        let mesh = self.outputs.session.main_program().mesh;
        let first = forward.preprocessing.sampling.first_sample(split);
        let tiles = forward.tiles(split);
        let source = forward.source(&self.outputs);
        let sink = |rank| {
            let sink = PredictionSink::new(open(rank)?, first, mesh, rank).joining(tiles.clone());
            Ok(Box::new(sink) as Box<dyn Sink>)
        };
        let ends = Ends {
            source: &source,
            sink: &sink,
            is_followed: true,
        };
        forward.execute_between(launch, &self.outputs, &ends)
    }
}

/// Reads whole volumes of the scratch file and computes their loss.
fn read_outputs(
    launch: &Launch<'_>,
    split: Split,
    (loss, of_loss): (&Forward, &Prepared<'_>),
    open: &(dyn Fn(Rank) -> Result<PredictionScratch, RunError> + Sync),
    is_followed: bool,
) -> Result<Option<Outcome>, TrainError> {
    let mesh = of_loss.session.main_program().mesh;
    let Forward {
        run,
        graph,
        dataset,
        preprocessing,
        ..
    } = loss;
    let (accepted, first) = (
        check::accepted(run, graph),
        preprocessing.sampling.first_sample(split),
    );
    let ends = Ends {
        source: &|rank, wake| {
            let samples = preprocessing.clone();
            let targets =
                HyperslabSource::preprocessed(dataset, samples, mesh, rank, accepted, wake)?;
            let source = PredictionSource::new(open(rank)?, first, targets, mesh, rank);
            Ok(Box::new(source) as Box<dyn Source>)
        },
        sink: &|_| Ok(Box::new(NoSink)),
        is_followed,
    };
    loss.execute_between(launch, of_loss, &ends)
}

/// The volumes of a split by their extents.
fn groups(forward: &Forward, split: Split) -> BTreeMap<[usize; 3], Vec<usize>> {
    let shape = forward.output_shape(split);
    let extents = forward.output_extents(split);
    let mut groups: BTreeMap<[usize; 3], Vec<usize>> = BTreeMap::new();
    for volume in 0..shape.samples {
        let extent = extents
            .as_ref()
            .map_or(shape.extent, |extents| extents[volume]);
        groups.entry(extent).or_default().push(volume);
    }
    groups
}

/// The run that reads joined outputs and computes the loss.
fn of_loss(forward: &Forward, shape: PredictionShape) -> Forward {
    let graph = loss_alone(&forward.graph, shape);
    let ranks = forward.run.ranks;
    let strategy = spread(&graph, ranks, forward.run.batch);
    let run = Run {
        samples: SampleOptions::as_stored(),
        strategy: StrategyChoice::Given(strategy),
        ..forward.run.clone()
    };
    let (dataset, whole) = (
        forward.dataset.clone(),
        forward.preprocessing.sampling.whole_of(shape.extent),
    );
    let preprocessing = Preprocessing {
        sampling: whole,
        ..Preprocessing::plain(&dataset)
    };
    let per_sample = forward.per_sample.clone();
    let mut forward = Forward::without_weights(run, graph, dataset, preprocessing);
    forward.stored = DType::Float32;
    forward.per_sample = per_sample;
    forward
}

/// The loss of a model as a network of its own, which reads outputs of this shape.
fn loss_alone(graph: &Graph, shape: PredictionShape) -> Graph {
    let shape = Shape {
        extent: shape.extent,
        channels: shape.channels,
    };
    let last = &graph.nodes[graph.nodes.len() - 1];
    let input = Node {
        name: graph.nodes[0].name.clone(),
        op: Op::Input,
        inputs: Vec::new(),
        parameters: Vec::new(),
        shape,
    };
    let loss = Node {
        inputs: vec![NodeId(0)],
        shape,
        ..last.clone()
    };
    Graph {
        nodes: vec![input, loss],
        parameters: Vec::new(),
        ..graph.clone()
    }
}

/// A strategy that splits volumes among so many ranks along their longest dims.
fn spread(graph: &Graph, ranks: usize, batch: usize) -> Strategy {
    let (extent, mut parts) = (graph.nodes[0].shape.extent, [1; 3]);
    let mut rest = ranks;
    while rest > 1 {
        let factor = (2..=rest)
            .find(|factor| rest.is_multiple_of(*factor))
            .unwrap_or(rest);
        let longest = (0..3).max_by_key(|&dim| (extent[dim] / parts[dim], 3 - dim));
        parts[longest.unwrap_or(0)] *= factor;
        rest /= factor;
    }
    let strategy = Strategy::hybrid(1, parts);
    match strategy.check(graph, batch) {
        Ok(()) => strategy,
        Err(_) => Strategy::hybrid(ranks, [1; 3]),
    }
}
