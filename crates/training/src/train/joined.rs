//! Loss and metrics of volumes whose outputs are joined of tiles, and of samples whose outputs are averages.
//!
//! A first run writes the outputs of all tiles into a scratch file, as an inference does. A second one reads whole
//! volumes of it, or crops that are averaged one by one, as the samples of a network that is the loss alone.

use super::error::TrainError;
use super::forward::{Ends, Forward, Prepared, VolumeMode};
use super::preparation::SampleOptions;
use super::run::Run;
use super::tiles::{self, TileFiles, VolumeLoss};
use super::tiling::{self, TilesResult};
use super::{check, checkpoint, programs};
use partita_data::{Dataset, Split};
use partita_forecast::StrategyChoice;
use partita_formats::DType;
use partita_graph::{Graph, Node, NodeId, Op, Shape};
use partita_input::{
    EvaluationCrops, HyperslabSource, Loading, PredictionScratch, PredictionShape,
    PredictionSource, Preprocessing, TilePlan, Tiling, Variants, Waker,
};
use partita_lower::Strategy;
use partita_program::ProgramKind;
use partita_run::{NoSink, RunError, Sink, Source, SystemClock};
use partita_session::{JoinOutputs, Outcome, RunEnd, Validation};
use partita_site::Context;
use partita_site::launch::{Agreement, InnerRun, Launch, MakeJoins, RunSetup};
use partita_space::{Bytes, Mesh, Rank, Seconds};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Name of the scratch file, beside the weights.
const SCRATCH: &str = "evaluate";
/// That of a training, in its output folder.
const VALIDATION: &str = "validate";

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
    plan: Arc<TilePlan>,
    loss: JoinedLoss,
}

impl JoinedPrograms {
    /// Lowers both programs and checks their memory.
    pub fn prepare(
        launch: &Launch<'_>,
        forward: &Forward,
        (split, plan): (Split, Arc<TilePlan>),
    ) -> Result<Self, TrainError> {
        let outputs = forward.prepare(launch, ProgramKind::Infer, split)?;
        let loss = JoinedLoss::prepare(launch, forward, split, plan.volumes())?;
        Ok(Self {
            outputs,
            plan,
            loss,
        })
    }

    /// Runs both. The process of rank 0 gets what came of them.
    pub fn execute(
        &self,
        launch: &Launch<'_>,
        forward: &Forward,
        split: Split,
    ) -> Result<Option<Joined>, TrainError> {
        let folder = forward.weights_files.first().and_then(|file| file.parent());
        let folder = folder.unwrap_or(Path::new(""));
        let (files, _volumes) = TileFiles::temporary(launch, &self.plan, &folder.join(SCRATCH))?;
        forward.check_agreement(launch, &self.outputs)?;
        let outputs = self.write_outputs(launch, forward, split, &files)?;
        let mut joined = outputs.map(|outputs| Joined {
            validation: Validation::default(),
            seconds: outputs.seconds,
        });
        let (last, parts) = (self.loss.parts.len(), &self.loss.parts);
        for (number, part) in (1..).zip(parts) {
            // No rank reads before all have written.
            part.loss.check_agreement(launch, &part.prepared)?;
            let ends = Ends {
                source: &|rank, wake| part.source(files.volumes(rank)?, rank, wake),
                sink: &|_| Ok(Box::new(NoSink)),
                joins: None,
                is_followed: number < last,
            };
            let found = part.loss.execute_between(launch, &part.prepared, &ends)?;
            if let (Some(joined), Some(mut found)) = (&mut joined, found) {
                let validation = found.epochs.pop().and_then(|one| one.validation);
                let divided = programs::divided(&forward.graph);
                joined
                    .validation
                    .join(&validation.unwrap_or_default(), divided.as_ref());
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
        files: &TileFiles,
    ) -> Result<Option<Outcome>, TrainError> {
        let mesh = self.outputs.session.main_program().mesh;
        let first = forward.preprocessing.sampling.first_sample(split);
        let source = forward.source(&self.outputs);
        let ends = Ends {
            source: &source,
            sink: &|rank| files.sink(first, mesh, rank),
            joins: Some(files),
            is_followed: true,
        };
        forward.execute_between(launch, &self.outputs, &ends)
    }
}

/// Runs that read joined outputs and compute the loss, with their programs: one for the volumes of each extents.
pub struct JoinedLoss {
    parts: Vec<LossPart>,
}

/// The run of the volumes that have the same extents.
struct LossPart {
    loss: Forward,
    prepared: Prepared<'static>,
    /// Number of the first volume of the split.
    first_sample: usize,
}

impl JoinedLoss {
    /// Lowers the programs for the outputs of a split of this shape, which has the largest extents, and checks their memory.
    /// `of` has the run, the samples, and what takes the results of each volume.
    pub fn prepare(
        launch: &Launch<'_>,
        of: &Forward,
        split: Split,
        shape: PredictionShape,
    ) -> Result<Self, TrainError> {
        let sampling = &of.preprocessing.sampling;
        let part = |(extent, volumes): ([usize; 3], Vec<usize>)| {
            let loss = of_loss(of, PredictionShape { extent, ..shape });
            let first_sample = loss.preprocessing.sampling.first_sample(split);
            let samples = volumes.into_iter().map(|volume| first_sample + volume);
            let (kind, samples) = (ProgramKind::Evaluate, samples.collect());
            let prepared = loss.prepare_samples(launch, kind, samples, Vec::new())?;
            Ok::<_, TrainError>(LossPart {
                loss,
                prepared,
                first_sample,
            })
        };
        let extents = sampling.extents(split);
        let extents = extents.filter(|_| of.volumes != VolumeMode::Crops);
        let parts = by_extents(extents.as_deref(), shape).into_iter().map(part);
        Ok(Self {
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    /// Memory of a rank: the runs come one after another.
    fn bytes(&self, rank: Rank) -> Bytes {
        let parts = self.parts.iter();
        let all = parts.map(|part| part.prepared.session.memory_bytes(rank));
        all.max().unwrap_or_default()
    }
}

impl LossPart {
    /// The source of a rank, of outputs in a scratch file.
    fn source(
        &self,
        scratch: PredictionScratch,
        rank: Rank,
        wake: Option<Waker>,
    ) -> Result<Box<dyn Source>, RunError> {
        let mesh = self.prepared.session.main_program().mesh;
        let Forward {
            run,
            graph,
            dataset,
            preprocessing,
            ..
        } = &self.loss;
        let accepted = check::accepted(run, graph);
        let samples = preprocessing.clone();
        let targets = HyperslabSource::preprocessed(dataset, samples, mesh, rank, accepted, wake)?;
        let source = PredictionSource::new(scratch, self.first_sample, targets, mesh, rank);
        Ok(Box::new(source))
    }
}

/// The volumes of a split by their extents, where these differ.
fn by_extents(
    extents: Option<&[[usize; 3]]>,
    shape: PredictionShape,
) -> BTreeMap<[usize; 3], Vec<usize>> {
    let mut groups: BTreeMap<[usize; 3], Vec<usize>> = BTreeMap::new();
    for volume in 0..shape.samples {
        let extent = extents.map_or(shape.extent, |extents| extents[volume]);
        groups.entry(extent).or_default().push(volume);
    }
    groups
}

/// The run that reads joined outputs of these extents and computes the loss.
fn of_loss(of: &Forward, shape: PredictionShape) -> Forward {
    let graph = loss_alone(&of.graph, shape);
    let strategy = spread(&graph, of.run.ranks, of.run.batch);
    let run = Run {
        samples: SampleOptions::as_stored(),
        strategy: StrategyChoice::Given(strategy),
        ..of.run.clone()
    };
    let sampling = &of.preprocessing.sampling;
    let sampling = match of.volumes {
        VolumeMode::Tiles | VolumeMode::Whole => sampling.whole_of(shape.extent),
        VolumeMode::Crops => sampling.clone().with_variants(Variants::default()),
    };
    let preprocessing = Preprocessing {
        sampling,
        ..Preprocessing::plain(&of.dataset)
    };
    let mut loss = Forward::without_weights(run, graph, of.dataset.clone(), preprocessing);
    loss.stored = DType::Float32;
    loss.per_sample = of.per_sample.clone();
    loss.is_part = true;
    loss
}

/// Computes the loss of volumes in a training, after the tiles of an epoch are joined.
struct InnerLoss<'t> {
    loss: &'t JoinedLoss,
    context: &'t Context,
    /// Ends the training.
    cancel: &'t AtomicBool,
}

impl VolumeLoss for InnerLoss<'_> {
    fn evaluate(
        &self,
        inner: &mut dyn InnerRun,
        volumes: &PredictionScratch,
    ) -> Result<Validation, RunError> {
        let mut all = Validation::default();
        for part in &self.loss.parts {
            let found = self.evaluate_part(part, inner, volumes)?;
            if !found.loss.is_finite() {
                return Ok(found);
            }
            all.join(&found, programs::divided(&part.loss.graph).as_ref());
        }
        Ok(all)
    }
}

impl InnerLoss<'_> {
    fn evaluate_part(
        &self,
        part: &LossPart,
        inner: &mut dyn InnerRun,
        volumes: &PredictionScratch,
    ) -> Result<Validation, RunError> {
        let LossPart { loss, prepared, .. } = part;
        let scratch = |rank| {
            let shared = volumes.share();
            shared.map_err(|error| tiles::failed(rank, &error))
        };
        let setup = RunSetup {
            kernels: loss.run.kernels,
            precision: loss.run.precision,
            processing: self.context.processing(loss.run.threads),
            watchdog: loss.run.watchdog,
            cancel: self.cancel,
            source: &|rank, wake| part.source(scratch(rank)?, rank, wake),
            loading: &Loading::default(),
            sink: &|_| Ok(Box::new(NoSink)),
            clock: SystemClock::start(),
            initial: &|_, _| Ok(None),
            position: &checkpoint::start(None),
            hook: &checkpoint::Off,
            validators: None,
            joins: None,
            is_followed: true,
            on_epoch: None,
            shares_loads: false,
        };
        let mut outcome = inner.run(&prepared.session, &setup)?;
        if let RunEnd::NotFinite { loss, .. } = outcome.end {
            return Ok(Validation {
                loss,
                ..Validation::default()
            });
        }
        let found = outcome.epochs.pop().and_then(|one| one.validation);
        found.ok_or(RunError::Cancelled)
    }
}

/// What validates the epochs of a training by tiles.
pub struct JoinedValidation {
    /// The tiles of the validation split.
    plan: Arc<TilePlan>,
    /// The loss of their volumes.
    loss: JoinedLoss,
    first_sample: usize,
}

impl JoinedValidation {
    /// Of a training whose validation is by tiles; none otherwise, or without validation samples.
    pub fn prepare(
        launch: &Launch<'_>,
        run: &Run,
        (graph, dataset, preprocessing): (&Graph, &Dataset, &Preprocessing),
    ) -> Result<Option<Self>, TrainError> {
        let sampling = &preprocessing.sampling;
        let split = Split::Validation;
        let is_tiled = sampling
            .crops()
            .is_some_and(|crops| crops.evaluation == EvaluationCrops::Tiles);
        if !is_tiled || sampling.volumes(split) == 0 {
            return Ok(None);
        }
        let (answer, _) = check::answer(graph);
        let [_, volume @ ..] = sampling.volume();
        let volumes = PredictionShape {
            samples: sampling.volumes(split),
            channels: answer.channels,
            extent: volume,
            spatial_rank: graph.spatial_rank,
        };
        let plan = tiling::plan(sampling, (split, Tiling::default()), volumes, run.batch);
        let first_sample = sampling.first_sample(split);
        let (run, graph) = (run.clone(), graph.clone());
        let preprocessing = preprocessing.clone();
        let mut forward = Forward::without_weights(run, graph, dataset.clone(), preprocessing);
        forward.volumes = VolumeMode::Tiles;
        Ok(Some(Self {
            plan: Arc::new(plan),
            loss: JoinedLoss::prepare(launch, &forward, split, volumes)?,
            first_sample,
        }))
    }

    /// How volumes are joined.
    pub fn result(&self) -> TilesResult {
        TilesResult::new(self.plan.tiles().extent, Tiling::default(), None)
    }

    /// Groups of samples whose outputs are joined together, and the most memory of the programs of the loss on a rank; none
    /// without a validation by tiles.
    pub fn needs(joined: Option<&Self>, ranks: usize) -> (Vec<Range<usize>>, Bytes) {
        let Some(joined) = joined else {
            return (Vec::new(), Bytes(0));
        };
        let most = (0..ranks).map(|rank| joined.bytes(rank)).max();
        (joined.plan.groups().to_vec(), most.unwrap_or_default())
    }

    /// Memory of the programs of the loss on a rank.
    pub fn bytes(&self, rank: Rank) -> Bytes {
        self.loss.bytes(rank)
    }

    /// Creates the scratch files in the output folder, which are there until both values are dropped.
    ///
    /// Errors: no room, no write permission.
    pub fn files(
        &self,
        launch: &Launch<'_>,
        folder: &Path,
    ) -> Result<(TileFiles, Option<PredictionScratch>), TrainError> {
        TileFiles::temporary(launch, &self.plan, &folder.join(VALIDATION))
    }

    /// What takes part in the steps of the training; `cancel` ends them.
    pub fn inner<'t>(
        &'t self,
        files: &'t TileFiles,
        context: &'t Context,
        cancel: &'t AtomicBool,
    ) -> InnerValidation<'t> {
        InnerValidation {
            files,
            first_sample: self.first_sample,
            loss: InnerLoss {
                loss: &self.loss,
                context,
                cancel,
            },
        }
    }
}

/// A validation by tiles while ranks train.
pub struct InnerValidation<'t> {
    files: &'t TileFiles,
    first_sample: usize,
    loss: InnerLoss<'t>,
}

impl InnerValidation<'_> {
    /// The sink of a rank of the training.
    ///
    /// Errors: the file cannot be opened.
    pub fn sink(&self, mesh: Mesh, rank: Rank) -> Result<Box<dyn Sink>, RunError> {
        self.files.sink(self.first_sample, mesh, rank)
    }
}

impl MakeJoins for InnerValidation<'_> {
    fn joins<'a>(
        &'a self,
        of: (Rank, usize),
        agreement: Box<dyn Agreement + 'a>,
        inner: Box<dyn InnerRun + 'a>,
    ) -> Result<Box<dyn JoinOutputs + 'a>, RunError> {
        let joins = self.files.join(of, agreement)?;
        Ok(Box::new(joins.evaluating(inner, &self.loss)))
    }
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

/// A strategy that splits volumes among `ranks` ranks along their longest dims.
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
