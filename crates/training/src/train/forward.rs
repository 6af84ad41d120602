//! A run of forward programs with trained weights: what `evaluate` and `infer` have in common.

mod volumes;

pub use volumes::VolumeMode;

use super::ensemble::{self, WeightSources, WeightSwitches};
use super::error::{Mismatch, TrainError};
use super::memory::MemoryLimit;
use super::per_sample::PerSample;
use super::preparation::buffer_bytes;
use super::run::{PredictionChoice, Run, TrainRequest};
use super::run_file::RunFile;
use super::start::{self, initial_values};
use super::statistics::{self, KeptSteps};
use super::tiling::{self, TilesAsked, TilesResult};
use super::trainer::TrainData;
use super::{
    adapted, check, checkpoint, class_weights, crops, ending, identity, programs, source, strategy,
};
use crate::weights::{LoadedWeights, Selection, WeightFile};
use partita_data::{Dataset, Split, TargetRecord};
use partita_forecast::{MeasuringBudget, launched};
use partita_formats::{DType, DataError};
use partita_graph::Graph;
use partita_input::{
    Loading, PredictionShape, Preparation, Preprocessing, TilePlan, Tiling, Waker,
};
use partita_lower::Strategy;
use partita_program::{Buffer, Optimizer, ProgramKind, Role};
use partita_run::{NoSink, PackedTensor, RunError, Sink, Source, SystemClock};
use partita_session::{
    Outcome, PersistentTensor, Plan, Progress, RunEnd, Session, ValuesError, persistent_name,
};
use partita_site::kernel_set::{KernelSet, oversubscription};
use partita_site::launch::{
    InitialValues, Launch, Listener, MakeJoins, MakeSink, MakeSource, MakeStepHook, MemoryBaseline,
    NotSaved, RunSetup, TensorSink,
};
use partita_site::{Context, Event, Host};
use partita_space::{Bytes, Rank};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use volumes::{Volumes, read_volumes};

/// Run file, weights and overrides of a forward run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardRequest {
    /// The run file.
    pub run_file: PathBuf,
    /// Files or output folders of weights whose outputs are averaged (default: `output` of the run file).
    pub weights: Vec<PathBuf>,
    /// Take the weights of the best epoch of `output` of the run file instead.
    pub best: bool,
    /// Their names in the model, which are left, and their axis order (default: as in `[weights]` of the run file, for
    /// its file).
    pub selection: Selection,
    /// Overrides its `data`.
    pub data: Option<PathBuf>,
    /// Overrides its `ranks`.
    pub ranks: Option<usize>,
    /// Overrides its `threads`.
    pub threads: Option<usize>,
    /// Overrides its `cores`.
    pub cores: Option<Vec<usize>>,
    /// Overrides its `strategy`.
    pub strategy: Option<String>,
    /// Overrides its `device`.
    pub device: Option<KernelSet>,
    /// Overrides its `batch`.
    pub batch: Option<usize>,
    /// Split of the dataset (default: validation; test or train where it is empty).
    pub split: Option<Split>,
    /// What is taken of volumes that are larger than the crops of the training (default: tiles if a layer spans
    /// positions, or else whole volumes, or else tiles, or else crops).
    pub volumes: Option<VolumeMode>,
    /// How tiles overlap, and what each counts.
    pub tiles: TilesAsked,
    /// Which of D, H, W samples are mirrored along: outputs are averaged over all combinations.
    pub mirror: [bool; 3],
    /// Use the collectives of the MPI library.
    pub library_collectives: bool,
    /// Evaluate one sample a step, so that each has a loss and metrics of its own.
    pub per_sample: bool,
}

/// Values of a range of elements of a named tensor.
pub type TensorPart<'t> = dyn Fn(&str, Range<usize>) -> Result<Vec<f64>, ValuesError> + Sync + 't;

/// A forward run, its weights loaded.
pub struct Forward {
    /// The settings, without optimizer state.
    pub run: Run,
    /// The model.
    pub graph: Graph,
    /// The dataset.
    pub dataset: Dataset,
    /// Its samples, prepared as those of the training.
    pub preprocessing: Preprocessing,
    /// Files of the weights; none where they come with each run.
    pub weights_files: Vec<PathBuf>,
    /// What is taken of volumes.
    pub volumes: VolumeMode,
    /// How tiles are joined, if they are.
    pub tiling: Tiling,
    /// Why tiles are taken by default, if they are.
    because: Option<String>,
    /// Element type of samples on their way into the network.
    pub stored: DType,
    /// Takes what an evaluation finds of each sample, if that is asked for.
    pub per_sample: Option<PerSample>,
    /// Whether it is a part of another run, which says what there is to say of the ranks.
    pub is_part: bool,
    /// Whether outputs of variants or tiles are joined before they are written or evaluated.
    pub is_joined: bool,
    /// None where they come with each run.
    weights: Vec<LoadedWeights>,
    /// The preparation for each of the weights, where statistics differ; else empty.
    preparations: Vec<Preparation>,
}

/// Where a forward run reads and writes.
pub struct Ends<'e> {
    /// Makes the source of a rank.
    pub source: &'e MakeSource<'e>,
    /// Makes the sink of a rank.
    pub sink: &'e MakeSink<'e>,
    /// Joins tiles.
    pub joins: Option<&'e dyn MakeJoins>,
    /// Whether another run follows.
    pub is_followed: bool,
}

/// Programs of a forward run.
pub struct Prepared<'s> {
    /// Its strategy.
    pub strategy: Strategy,
    /// Number of samples.
    pub samples: usize,
    /// Its programs and samples.
    pub session: Session<'s>,
    /// Steps after which other weights are read.
    switches: BTreeMap<u64, usize>,
}

impl Forward {
    /// Reads the run file, the model, the weights and the index of the dataset, whose targets are read as those of the
    /// weights.
    pub fn new(
        launch: &Launch<'_>,
        request: &ForwardRequest,
        data: Option<&TrainData>,
    ) -> Result<Self, TrainError> {
        let open = |run: &Run| match data {
            None => Dataset::open_with(&run.data, &run.keys()),
            Some(data) => data.open(&run.keys()),
        };
        let (mut forward, trained_on) = Self::open(launch, request, open)?;
        if let Some(record) = forward.targets() {
            let (dataset, said) = forward.dataset.clone().answering(record)?;
            if let (true, Some(text)) = (launch.is_first(), said) {
                launch.context().report(Event::Note(&text));
            }
            forward.dataset = dataset;
        }
        if let Some(weights) = forward.weights.first() {
            let (run, from) = (&forward.run, (weights, &*trained_on));
            forward.graph = class_weights::of_weights(launch, run, forward.graph, from)?;
        }
        Ok(forward)
    }

    /// What the outputs stand for, if the weights keep it.
    pub fn targets(&self) -> Option<&TargetRecord> {
        self.weights.first()?.record().targets.as_ref()
    }

    /// Which of D, H, W samples are mirrored along.
    pub fn mirror(&self) -> [bool; 3] {
        let variants = self.preprocessing.sampling.variants();
        let last = variants.count() - 1;
        variants.flip(last)
    }

    /// As [`Self::new`], of a dataset that needs no targets.
    pub fn without_targets(
        launch: &Launch<'_>,
        request: &ForwardRequest,
        data: Option<&TrainData>,
    ) -> Result<Self, TrainError> {
        let open = |run: &Run| match data {
            None => Dataset::open_samples_with(&run.data, &run.keys()),
            Some(data) => data.open(&run.keys()),
        };
        let opened = Self::open(launch, request, open);
        opened.map(|(forward, _)| forward)
    }

    /// The run, and the dataset of its training.
    fn open(
        launch: &Launch<'_>,
        request: &ForwardRequest,
        dataset: impl FnOnce(&Run) -> Result<Dataset, DataError>,
    ) -> Result<(Self, PathBuf), TrainError> {
        let file = RunFile::read(&request.run_file)?;
        let overrides = TrainRequest {
            run_file: request.run_file.clone(),
            ranks: request.ranks,
            threads: request.threads,
            strategy: request.strategy.clone(),
            device: request.device,
            library_collectives: request.library_collectives,
            prediction: PredictionChoice::Never,
            ..TrainRequest::default()
        };
        let (output, trained_on) = (file.output.clone(), file.data.clone());
        let mut run = Run::merge(file, &overrides, launch)?;
        run.data = request.data.clone().unwrap_or(run.data);
        run.batch = request.batch.unwrap_or(run.batch);
        // Without a state, so that ranks hold parameters alone.
        run.optimizer = Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        };
        run.clip = None;
        run.ema = None;
        launch.set_limit(run.watchdog)?;
        let graph = adapted(&run)?;
        let dataset = dataset(&run)?.ignoring(check::ignored(&graph));
        if launch.is_first() {
            run.note_external(launch.context(), &dataset)?;
        }
        let sampling = crops::sampling(&run, &graph, &dataset)?;
        let asked = (request.volumes, request.tiles);
        let Volumes {
            graph,
            sampling,
            mode: volumes,
            because,
        } = read_volumes(launch, graph, &dataset, &sampling, asked)?;
        let asked = (request.mirror, request.weights.len().max(1));
        let variants = ensemble::variants(&graph, &sampling, asked)?;
        let weights = load(launch, request, (&run, &graph), &output)?;
        ensemble::check_alike(&weights, &dataset)?;
        let dataset = start::of_weights(launch, dataset, &weights[0])?;
        let from = (&*trained_on, &dataset);
        let mut preparations = preparations(launch, &run, &weights, from)?;
        let preprocessing = Preprocessing {
            preparation: preparations[0].clone(),
            sampling: sampling.with_variants(variants),
        };
        if preparations.iter().all(|one| *one == preparations[0]) {
            preparations.clear();
        }
        let forward = Self {
            is_joined: volumes == VolumeMode::Tiles
                || preprocessing.sampling.variants().count() > 1,
            weights_files: weights.iter().map(|one| one.path().to_owned()).collect(),
            stored: run.samples.dtype(dataset.dtype()),
            run,
            graph,
            dataset,
            preprocessing,
            volumes,
            per_sample: request.per_sample.then(PerSample::default),
            tiling: request.tiles.tiling(),
            because,
            is_part: false,
            weights,
            preparations,
        };
        forward.note_samples(launch, forward.split(request.split)?);
        Ok((forward, trained_on))
    }

    /// Says which samples of a split are padded, whether they are stored on other voxels than those of the trainings, and
    /// whether weights are of different models.
    fn note_samples(&self, launch: &Launch<'_>, split: Split) {
        crops::note_padding(launch, &self.graph, &self.preprocessing.sampling, &[split]);
        if !launch.is_first() {
            return;
        }
        let warn = |text: &str| launch.context().report(Event::Warning(text));
        for text in ensemble::other_models(&self.weights) {
            warn(&text);
        }
        let Some(own) = self.dataset.voxel_record(split) else {
            return;
        };
        let data = self.dataset.path().display();
        for weights in &self.weights {
            let trained = weights.record().voxels.as_ref();
            let differences = trained.map(|trained| own.differences(trained));
            let of = match self.weights.len() {
                1 => String::new(),
                _ => format!("{}: ", weights.path().display()),
            };
            for difference in differences.iter().flatten() {
                warn(&format!(
                    "{of}a network sees voxels alone, and in {data} {difference}"
                ));
            }
        }
    }

    /// A forward run without weights, or of weights that come with each run.
    pub fn without_weights(
        run: Run,
        graph: Graph,
        dataset: Dataset,
        preprocessing: Preprocessing,
    ) -> Self {
        Self {
            weights_files: Vec::new(),
            stored: run.samples.dtype(dataset.dtype()),
            run,
            graph,
            dataset,
            preprocessing,
            volumes: VolumeMode::Crops,
            per_sample: None,
            tiling: Tiling::default(),
            because: None,
            is_part: false,
            is_joined: false,
            weights: Vec::new(),
            preparations: Vec::new(),
        }
    }

    /// Number of samples of a split: volumes, or crops of them.
    pub fn samples(&self, split: Split) -> usize {
        self.preprocessing.sampling.samples(split)
    }

    /// Shape of the outputs of a split: of volumes where tiles are joined to them, and of the largest extents along each
    /// dim where these differ.
    pub fn output_shape(&self, split: Split) -> PredictionShape {
        let (answer, _) = check::answer(&self.graph);
        let sampling = &self.preprocessing.sampling;
        let (samples, extent) = match self.volumes {
            VolumeMode::Tiles => {
                let [_, volume @ ..] = sampling.volume();
                (sampling.volumes(split), volume)
            }
            VolumeMode::Whole | VolumeMode::Crops => (sampling.samples(split), answer.extent),
        };
        PredictionShape {
            samples,
            channels: answer.channels,
            extent,
            spatial_rank: self.graph.spatial_rank,
        }
    }

    /// D, H, W of the outputs of each sample of a split, where volumes are joined of tiles and differ.
    pub fn output_extents(&self, split: Split) -> Option<Arc<[[usize; 3]]>> {
        match self.volumes {
            VolumeMode::Tiles => self.preprocessing.sampling.extents(split),
            VolumeMode::Whole | VolumeMode::Crops => None,
        }
    }

    /// Number of the first output of a split among those of all.
    pub fn first_output(&self, split: Split) -> usize {
        let sampling = &self.preprocessing.sampling;
        match self.volumes {
            VolumeMode::Tiles => sampling.whole().first_sample(split),
            VolumeMode::Whole | VolumeMode::Crops => sampling.first_sample(split),
        }
    }

    /// Names of the outputs of a split.
    pub fn names(&self, split: Split) -> Vec<String> {
        match self.volumes {
            VolumeMode::Tiles => self.dataset.names(split),
            VolumeMode::Whole | VolumeMode::Crops => {
                self.preprocessing.sampling.names_of(&self.dataset, split)
            }
        }
    }

    /// The tiles of a split, where volumes are joined of tiles; or its samples, where their variants are joined.
    pub fn tiles(&self, split: Split) -> Option<Arc<TilePlan>> {
        if !self.is_joined {
            return None;
        }
        let (sampling, outputs) = (&self.preprocessing.sampling, self.output_shape(split));
        let batch = self.run.batch;
        let plan = match self.volumes {
            VolumeMode::Tiles => tiling::plan(sampling, (split, self.tiling), outputs, batch),
            VolumeMode::Whole | VolumeMode::Crops => {
                tiling::plan_of_samples(sampling, outputs, batch)
            }
        };
        Some(plan.into())
    }

    /// How volumes are joined of tiles, if they are.
    pub fn tiles_result(&self) -> Option<TilesResult> {
        let [_, extent @ ..] = self.preprocessing.sampling.shape();
        let is_tiled = self.volumes == VolumeMode::Tiles;
        is_tiled.then(|| TilesResult::new(extent, self.tiling, self.because.clone()))
    }

    /// The split that is asked for, else that of validation, else the first with samples.
    ///
    /// Errors: no sample in it.
    pub fn split(&self, asked: Option<Split>) -> Result<Split, Mismatch> {
        let has_samples = |split: &Split| self.samples(*split) > 0;
        let usual = [Split::Validation, Split::Test, Split::Train];
        let found = usual.into_iter().find(has_samples);
        let split = asked.or(found).unwrap_or(Split::Validation);
        if has_samples(&split) {
            return Ok(split);
        }
        Err(Mismatch::EmptySplit {
            data: self.run.data.clone(),
            split: split.name(),
            nearest: found.map_or_else(
                || "a dataset with samples".to_owned(),
                |found| format!("`--split {}`", found.name()),
            ),
        })
    }

    /// Chooses a strategy, lowers and verifies the programs, and checks their memory.
    pub fn prepare(
        &self,
        launch: &Launch<'_>,
        kind: ProgramKind,
        split: Split,
    ) -> Result<Prepared<'static>, TrainError> {
        let sampling = &self.preprocessing.sampling;
        let first = sampling.first_sample(split);
        let Some(plan) = self.tiles(split) else {
            let samples = first..first + sampling.samples(split);
            return self.prepare_samples(launch, kind, samples.collect(), Vec::new());
        };
        let (samples, parts) = plan.samples(first);
        let groups = parts.iter().map(|(samples, _)| samples.clone());
        let prepared = self.prepare_samples(launch, kind, samples, groups.collect())?;
        Ok(Prepared {
            switches: ensemble::switches(&parts, self.run.batch),
            ..prepared
        })
    }

    /// As [`Self::prepare`], for these samples, whose outputs are joined in these groups.
    pub fn prepare_samples(
        &self,
        launch: &Launch<'_>,
        kind: ProgramKind,
        samples: Vec<usize>,
        groups: Vec<Range<usize>>,
    ) -> Result<Prepared<'static>, TrainError> {
        let (run, graph, stored, count) = (&self.run, &self.graph, self.stored, samples.len());
        let context = launch.context();
        let host = Host::local(context.level());
        let (local, cores) = launch.local(run.ranks, &host);
        let limit = MemoryLimit::of_rank(run, &host, local);
        let menu = launch.menu(run.rank_config())?;
        let budget = Arc::new(MeasuringBudget::default());
        let strategy = launched::choose_strategy(launch, run.rank_config(), false, |here| {
            programs::check_given(run, graph, None)?;
            strategy(
                context,
                run,
                graph,
                stored,
                limit.bytes,
                (here, None, &budget),
            )
        })?;
        if launch.is_first() && !self.is_part {
            let crowded = oversubscription(local, run.threads, cores);
            crowded
                .iter()
                .for_each(|warning| context.report(Event::Warning(warning)));
        }
        let session = launch.prepare(|| {
            let is_each = self.per_sample.is_some() && kind == ProgramKind::Evaluate;
            let mut counts: Vec<usize> = groups.iter().map(Range::len).collect();
            if counts.is_empty() {
                counts.push(if is_each { 1 } else { count });
            }
            let kinds: Vec<_> = counts.into_iter().map(|count| (kind, count)).collect();
            let programs = programs::programs(run, &*menu, graph, &strategy, stored, &kinds)?;
            let plan = Plan {
                epochs: 1,
                batch: if is_each { 1 } else { run.batch },
                seed: run.seed,
                schedule: run.schedule.clone(),
                loss_scaling: None,
                training_order: &|_| Vec::new(),
                validation: samples,
                groups,
                divided: programs::divided(graph),
                sample_dice: run.needs_sample_dice(),
                ends: &|_| false,
                traces_kept: 0,
            };
            let session = Session::new(programs, plan)?;
            let program = session.main_program();
            let (preprocessing, stored) = (&self.preprocessing, self.dataset.dtype());
            let sources = self.preparations.len().max(1) as u64;
            let buffers =
                |rank| Bytes(sources * buffer_bytes(preprocessing, stored, program, rank).0);
            let fits = limit.check((run, graph, &strategy), &session, &buffers);
            fits.map_err(|error| self.with_tiles(error))?;
            Ok::<_, TrainError>(session)
        })?;
        Ok(Prepared {
            strategy,
            samples: count,
            session,
            switches: BTreeMap::new(),
        })
    }

    /// A refusal for its memory, with tiles as a way out of whole volumes where these can be joined.
    fn with_tiles(&self, mut error: TrainError) -> TrainError {
        let is_whole = self.volumes == VolumeMode::Whole && self.run.samples.crops.is_some();
        let has_positions = check::answer(&self.graph).0.extent == self.graph.nodes[0].shape.extent;
        if let TrainError::Memory { smaller, .. } = &mut error
            && is_whole
            && has_positions
        {
            *smaller = format!("take no more than a crop with `--volumes tiles`, {smaller}");
        }
        error
    }

    /// Checks that all ranks have the same programs.
    pub fn check_agreement(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared<'_>,
    ) -> Result<(), TrainError> {
        let identity = || identity(&self.run, &prepared.session, &self.preprocessing);
        Ok(launch.check_agreement(identity)?)
    }

    /// Reads samples and targets from the dataset and runs the programs. The process of rank 0 gets its outcome.
    pub fn execute(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared<'_>,
        sink: &MakeSink<'_>,
    ) -> Result<Option<Outcome>, TrainError> {
        let source = self.source(prepared);
        let ends = Ends {
            source: &source,
            sink,
            joins: None,
            is_followed: false,
        };
        self.execute_between(launch, prepared, &ends)
    }

    /// As [`Self::execute`], between a source and a sink.
    pub fn execute_between(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared<'_>,
        ends: &Ends<'_>,
    ) -> Result<Option<Outcome>, TrainError> {
        let values = |weights: usize, buffer: &Buffer, elements: Range<usize>| {
            let (graph, seed) = (&self.graph, self.run.seed);
            initial_values(graph, seed, self.weights.get(weights), buffer, elements)
        };
        let initial = |buffer: &Buffer, elements: Range<usize>| values(0, buffer, elements);
        let hook = WeightSwitches {
            after: &prepared.switches,
            values: &values,
        };
        let listener = samples_listener(launch.context(), prepared.samples);
        let listener = match &self.per_sample {
            Some(found) => found.listen(&prepared.session, listener),
            None => listener,
        };
        let outcomes = self.run(launch, prepared, ends, (&initial, &hook), listener)?;
        if let Some(outcomes) = &outcomes {
            ending::refuse_not_finite(&self.run, &self.graph, outcomes)?;
        }
        Ok(outcomes.and_then(|outcomes| outcomes.into_iter().next()))
    }

    /// Runs the programs with the values that `tensor` gives of elements of a named tensor. Gives how the run ended.
    pub fn execute_from(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared<'_>,
        tensor: &TensorPart<'_>,
        listener: Listener<'_>,
    ) -> Result<RunEnd, TrainError> {
        let initial = |buffer: &Buffer, elements: Range<usize>| match buffer.role {
            Role::Constant => initial_values(&self.graph, self.run.seed, None, buffer, elements),
            role if role.is_of_model() => tensor(persistent_name(&buffer.name), elements).map(Some),
            _ => Ok(None),
        };
        let sink = |_| Ok(Box::new(NoSink) as Box<dyn Sink>);
        let source = self.source(prepared);
        let ends = Ends {
            source: &source,
            sink: &sink,
            joins: None,
            is_followed: false,
        };
        let with = (
            &initial as &InitialValues<'_>,
            &checkpoint::Off as &dyn MakeStepHook,
        );
        let outcomes = self.run(launch, prepared, &ends, with, listener)?;
        Ok(outcomes.map_or(RunEnd::Finished, |outcomes| outcomes[0].end))
    }

    /// Makes the source of a rank that reads samples and targets from the dataset.
    pub fn source<'f>(
        &'f self,
        prepared: &Prepared<'_>,
    ) -> impl Fn(Rank, Option<Waker>) -> Result<Box<dyn Source>, RunError> + Sync + use<'f> {
        let mesh = prepared.session.main_program().mesh;
        let accepted = check::accepted(&self.run, &self.graph);
        move |rank, wake| {
            let sampling = &self.preprocessing.sampling;
            let of = |preparation: &Preparation, wake| {
                let preprocessing = Preprocessing {
                    sampling: sampling.clone(),
                    preparation: preparation.clone(),
                };
                source((&self.dataset, &preprocessing), mesh, rank, accepted, wake)
            };
            if self.preparations.is_empty() {
                return of(&self.preprocessing.preparation, wake);
            }
            let of = |weights: usize, wake| of(&self.preparations[weights], wake);
            Ok(Box::new(WeightSources::new(sampling, wake, of)?))
        }
    }

    /// Runs the programs. The process of rank 0 gets the outcomes of all ranks that it knows.
    fn run(
        &self,
        launch: &Launch<'_>,
        prepared: &Prepared<'_>,
        ends: &Ends<'_>,
        (initial, hook): (&InitialValues<'_>, &dyn MakeStepHook),
        listener: Listener<'_>,
    ) -> Result<Option<Vec<Outcome>>, TrainError> {
        let (run, context, session) = (&self.run, launch.context(), &prepared.session);
        let position = checkpoint::start(None);
        let setup = RunSetup {
            kernels: run.kernels,
            precision: run.precision,
            processing: context.processing(run.threads),
            watchdog: run.watchdog,
            cancel: context.cancel(),
            source: ends.source,
            loading: &Loading::default(),
            sink: ends.sink,
            clock: SystemClock::start(),
            initial,
            position: &position,
            hook,
            validators: None,
            joins: ends.joins,
            is_followed: ends.is_followed,
            on_epoch: None,
            shares_loads: false,
        };
        let results = launch.run(
            session,
            &setup,
            run.collectives,
            listener,
            MemoryBaseline::set(),
            &mut NothingToSave,
        )?;
        Ok(results.map(|(outcomes, _)| outcomes))
    }
}

/// The weights that are asked for.
///
/// Errors: files that cannot be read, or do not fit the model.
fn load(
    launch: &Launch<'_>,
    request: &ForwardRequest,
    (run, graph): (&Run, &Graph),
    output: &Path,
) -> Result<Vec<LoadedWeights>, TrainError> {
    let files = if request.best {
        vec![(WeightFile::best(output)?, None)]
    } else if request.weights.is_empty() {
        let file = WeightFile::of_training(output, &request.run_file)?;
        vec![(file, None)]
    } else {
        let paths = request.weights.iter().map(PathBuf::as_path);
        let files = paths.map(|path| Ok((WeightFile::read(path)?, Some(path))));
        files.collect::<Result<_, TrainError>>()?
    };
    if !request.best {
        files.iter().for_each(|(file, _)| note_newer(launch, file));
    }
    start::of_forward(launch, files, &request.selection, (run, graph))
}

/// The preparation of samples for each of the weights.
///
/// Errors: those of [`statistics::of_weights`].
fn preparations(
    launch: &Launch<'_>,
    run: &Run,
    weights: &[LoadedWeights],
    from: (&Path, &Dataset),
) -> Result<Vec<Preparation>, TrainError> {
    let of = |weights: &LoadedWeights| {
        let kept = KeptSteps::of_weights(weights.path(), weights.record());
        statistics::of_weights(launch, run, &kept, from)
    };
    weights.iter().map(of).collect()
}

/// Says that there is a checkpoint that is newer than the weights, if so.
fn note_newer(launch: &Launch<'_>, file: &WeightFile) {
    let Some(checkpoint) = file.newer_checkpoint().filter(|_| launch.is_first()) else {
        return;
    };
    let text = format!(
        "{} is older than the checkpoint {}, of a training that did not come to its end; `--weights {}` takes that one",
        file.path().display(),
        checkpoint.display(),
        checkpoint.display()
    );
    launch.context().report(Event::Note(&text));
}

/// Reports how many samples are done.
fn samples_listener<'c>(context: &'c Context, total: usize) -> Listener<'c> {
    let mut made = 0;
    Box::new(move |progress| match progress {
        Progress::Evaluated { samples, .. } => {
            made += samples;
            context.report(Event::Samples {
                noun: "samples",
                made,
                total,
            });
        }
        Progress::Step { .. } | Progress::Epoch(_) | Progress::Done { .. } => {}
    })
}

/// The sink of a run that trains nothing.
struct NothingToSave;

impl TensorSink for NothingToSave {
    fn keep(&mut self, tensor: &PersistentTensor, _: PackedTensor) {
        panic!("`{}` was not trained", tensor.name);
    }

    fn finish(&mut self) -> Result<bool, NotSaved> {
        Ok(true)
    }
}
