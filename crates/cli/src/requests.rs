//! Requests to the library, from arguments.

use crate::args::{
    BatchNormName, CalibrateArgs, CheckName, ConvertArgs, CosmologyArgs, DigitsArgs,
    DigitsTaskName, EvaluateArgs, ExportArgs, ForwardArgs, FractalsArgs, ImportArgs,
    ImportNetworkArgs, InferArgs, InputArgs, InterpolationName, IoName, KindName, LowerArgs,
    MakingArgs, NamesName, OffloadArgs, OptimizerName, OrientationName, OutputName, PlanArgs,
    PrecisionName, PredictArgs, SampleName, SegmentationArgs, ShapesArgs, SplitName, StoreName,
    StoredName, TileWeightsName, TrainArgs, TrainingArgs, TuneArgs, TuningName, UnitsName,
    VolumesName,
};
use crate::error::CliError;
use crate::number::{Cores, Mirror};
use partita::{
    ADAM, ADAMW, BatchNormStatistics, COUNTS, CalibrateRequest, ConvertRequest, CosmologyRequest,
    DigitsRequest, ErrorKind, FLOATS, ForwardRequest, FractalsRequest, ImportRequest, InferRequest,
    InputRequest, IoChoice, LAMB, LARS, LayerPrecision, LiveTuning, LowerRequest, MakeRequest,
    NESTEROV, OffloadRequest, PlanRequest, PredictRequest, PredictionChoice, PredictionUnits,
    ResumeFrom, SCALED_COUNTS, SGD, SegmentationRequest, Setting, ShapesRequest, StoreKind,
    StrategyChoice, TilesAsked, TrainRequest, Training, TuneRequest, VolumeMode, WeightForm,
    WeightNames,
};
use partita_data::Split;
use partita_data::{ConvertSpec, GeometrySpec, Interpolation, Keys, VoxelOrientation};
use partita_formats::DType;
use partita_input::CheckScope;
use partita_input::{PredictionKind, TileWeights};
use partita_program::ProgramKind;
use partita_synth::DigitsTask;
use std::path::Path;

impl TrainingArgs {
    fn request(&self) -> Training {
        Training {
            model: self.model.clone(),
            ranks: self.ranks,
            batch: self.batch,
            optimizer: match self.optimizer {
                OptimizerName::Adam => ADAM,
                OptimizerName::Sgd => SGD,
                OptimizerName::Nesterov => NESTEROV,
                OptimizerName::Adamw => ADAMW,
                OptimizerName::Lars => LARS,
                OptimizerName::Lamb => LAMB,
            },
            ema: self.ema,
            samples: match self.samples {
                SampleName::Int16 => COUNTS,
                SampleName::Int16Scaled => SCALED_COUNTS,
                SampleName::Float32 => FLOATS,
            },
            precision: self.precision.precision(),
        }
    }
}

/// Errors: a text that is no strategy.
fn strategy(text: &str) -> Result<StrategyChoice, CliError> {
    let strategy = text.parse();
    strategy.map_err(|error| CliError::request_or_failure(&error, ErrorKind::Request))
}

impl PrecisionName {
    fn precision(self) -> LayerPrecision {
        match self {
            Self::F32 => LayerPrecision::F32,
            Self::Tf32 => LayerPrecision::Tf32,
            Self::Bf16 => LayerPrecision::Bf16,
            Self::F16 => LayerPrecision::F16,
        }
    }
}

impl LowerArgs {
    /// Errors: a text that is no strategy.
    pub fn request(&self) -> Result<LowerRequest, CliError> {
        Ok(LowerRequest {
            training: self.training.request(),
            strategy: strategy(&self.strategy)?,
            kernels: self.kernels.0,
            kind: self.kind.kind(),
            machine: self.machine.clone(),
            memory: self.memory,
        })
    }
}

impl InputArgs {
    fn request(&self) -> InputRequest {
        let choice = self.io.map(|word| match word {
            IoName::Store => IoChoice::Store,
            IoName::Files => IoChoice::Files,
            IoName::None => IoChoice::None,
        });
        InputRequest {
            choice: choice.or(self.no_io.then_some(IoChoice::None)),
            dataset_samples: self.dataset_samples,
        }
    }
}

impl KindName {
    fn kind(self) -> ProgramKind {
        match self {
            Self::Train => ProgramKind::Train,
            Self::Evaluate => ProgramKind::Evaluate,
            Self::Infer => ProgramKind::Infer,
        }
    }
}

impl PredictArgs {
    /// Errors: a text that is no strategy.
    pub fn request(&self) -> Result<PredictRequest, CliError> {
        Ok(PredictRequest {
            training: self.training.request(),
            kind: self.kind.kind(),
            strategy: strategy(&self.strategy)?,
            settings: Setting::named_in(&self.strategy),
            machine: self.machine.clone(),
            software: self.software.clone(),
            input: self.input.request(),
            kernels: self.kernels.0,
            memory: self.memory,
            seconds_per_sample: self.seconds_per_sample,
            layer_times: self.layer_times.clone(),
            tasks: self.tasks,
            explain: self.explain,
            offload: self.offload.request(),
        })
    }
}

impl OffloadArgs {
    /// None where no epoch is asked for.
    fn request(&self) -> Option<OffloadRequest> {
        let asked = [self.loaders, self.validators, self.validation_samples];
        asked.iter().any(Option::is_some).then(|| OffloadRequest {
            loaders: self.loaders.unwrap_or(0),
            seconds_per_load: self.seconds_per_load,
            validators: self.validators.unwrap_or(0),
            seconds_per_validation: self.seconds_per_validation,
            validation_samples: self.validation_samples.unwrap_or(0),
        })
    }
}

impl PlanArgs {
    /// The request to the library.
    pub fn request(&self) -> PlanRequest {
        PlanRequest {
            training: self.training.request(),
            machine: self.machine.clone(),
            software: self.software.clone(),
            batch_norm: self.batch_norm.map(|word| match word {
                BatchNormName::Synchronized => BatchNormStatistics::Synchronized,
                BatchNormName::Local => BatchNormStatistics::Local,
            }),
            input: self.input.request(),
            memory: self.memory,
            validation_samples: self.validation_samples.unwrap_or(0),
            budget: self.budget,
            explain: self.explain,
            front: self.front,
            figures: self.report.is_some(),
            digests: self.json,
        }
    }
}

impl CalibrateArgs {
    /// The request to the library.
    pub fn request(&self) -> CalibrateRequest {
        CalibrateRequest {
            name: self.name.clone(),
            output: self.output.clone(),
            replace: self.replace,
            ranks: self.ranks,
            threads: self.threads,
            device: self.device.0,
            models: self.models.clone(),
            passes: self.passes,
        }
    }
}

impl TuneArgs {
    /// Errors: a text that is no strategy.
    pub fn request(&self) -> Result<TuneRequest, CliError> {
        let usual = format!("data={}", self.training.ranks);
        let text = self.strategy.as_deref().unwrap_or(&usual);
        Ok(TuneRequest {
            training: self.training.request(),
            strategy: strategy(text)?,
            kind: self.kind.kind(),
            threads: self.threads,
            device: self.device.0,
            policy: self.policy.policy(),
            limits: self.limits.clone(),
            totals: self.totals.clone(),
        })
    }
}

impl TrainArgs {
    /// The request to the library.
    pub fn request(&self) -> TrainRequest {
        TrainRequest {
            run_file: self.run.clone(),
            ranks: self.ranks,
            threads: self.threads,
            cores: self.on.cores.as_ref().map(|Cores(cores)| cores.clone()),
            strategy: self.strategy.clone(),
            device: self.device.map(|name| name.0),
            machine: self.machine.clone(),
            store: self.store.map(|store| match store {
                StoreName::None => StoreKind::None,
                StoreName::Memory => StoreKind::Memory,
                StoreName::Synthetic => StoreKind::Synthetic,
            }),
            preload: self.preload,
            spill: self.spill.clone(),
            store_memory: self.store_memory,
            library_collectives: self.library_collectives,
            overwrite: self.overwrite,
            prediction: match (self.prediction, self.no_prediction) {
                (true, _) => PredictionChoice::Asked,
                (false, true) => PredictionChoice::Never,
                (false, false) => PredictionChoice::Usual,
            },
            budget: self.budget,
            tune: self.tuning.map(|tuning| match tuning {
                TuningName::Live => LiveTuning::Live,
                TuningName::Off => LiveTuning::Off,
                TuningName::Always => LiveTuning::Always,
            }),
            check_data: self.check_data.map(|check| match check {
                CheckName::All => CheckScope::All,
                CheckName::Quick => CheckScope::Quick,
                CheckName::None => CheckScope::None,
            }),
            resume: match &self.resume {
                None => ResumeFrom::Start,
                Some(path) if path == Path::new("newest") => ResumeFrom::Newest,
                Some(path) if path == Path::new("auto") => ResumeFrom::Auto,
                Some(path) => ResumeFrom::Path(path.clone()),
            },
        }
    }
}

impl ConvertArgs {
    /// The conversion that is asked for.
    pub fn request(&self) -> ConvertSpec {
        let usual = Keys::default();
        ConvertSpec {
            sources: self.sources.clone(),
            out: self.out.clone(),
            keys: Keys {
                volume: self.volume_key.clone().unwrap_or(usual.volume),
                target: self.target_key.clone().unwrap_or(usual.target),
                label: self.label_key.clone().unwrap_or(usual.label),
                order: self.layout.clone(),
                fill: self.fill,
                external: self.allow_external,
            },
            fractions: self.split.0,
            seed: self.seed,
            dtype: self.dtype.map(|dtype| match dtype {
                StoredName::Int16 => DType::Int16,
                StoredName::Float32 => DType::Float32,
            }),
            size: self.size.map(|size| size.0),
            targets: self.targets.clone(),
            classes: self.classes.clone(),
            ignore: self.ignore,
            map: self.map.clone(),
            no_targets: self.no_targets,
            skip_damaged: self.skip_damaged,
            geometry: GeometrySpec {
                orientation: match self.orientation {
                    OrientationName::Canonical => VoxelOrientation::Canonical,
                    OrientationName::Image => VoxelOrientation::Image,
                },
                spacing: self.spacing.map(|spacing| spacing.0),
                interpolation: match self.interpolation {
                    InterpolationName::Linear => Interpolation::Linear,
                    InterpolationName::Cubic => Interpolation::Cubic,
                    InterpolationName::Nearest => Interpolation::Nearest,
                },
            },
        }
    }
}

impl ForwardArgs {
    fn request(&self) -> ForwardRequest {
        ForwardRequest {
            run_file: self.run.clone(),
            weights: self
                .weights
                .iter()
                .flat_map(|list| list.0.clone())
                .collect(),
            best: self.best,
            selection: self.selection.selection(),
            data: self.data.clone(),
            ranks: self.ranks,
            threads: self.threads,
            cores: self.on.cores.as_ref().map(|Cores(cores)| cores.clone()),
            strategy: self.strategy.clone(),
            device: self.device.map(|name| name.0),
            batch: self.batch,
            split: self.split.map(|split| match split {
                SplitName::Train => Split::Train,
                SplitName::Validation => Split::Validation,
                SplitName::Test => Split::Test,
            }),
            volumes: self.volumes.map(|volumes| match volumes {
                VolumesName::Whole => VolumeMode::Whole,
                VolumesName::Tiles => VolumeMode::Tiles,
                VolumesName::Crops => VolumeMode::Crops,
            }),
            tiles: TilesAsked {
                overlap: self.overlap,
                weights: self.tile_weights.map(|weights| match weights {
                    TileWeightsName::Gaussian => TileWeights::Gaussian,
                    TileWeightsName::Constant => TileWeights::Constant,
                    TileWeightsName::Middle => TileWeights::Middle,
                }),
            },
            mirror: self.mirror.map_or([false; 3], |Mirror(dims)| dims),
            library_collectives: self.library_collectives,
            per_sample: false,
        }
    }
}

impl EvaluateArgs {
    /// The request to the library.
    pub fn request(&self) -> ForwardRequest {
        ForwardRequest {
            per_sample: self.per_sample || self.csv.is_some(),
            ..self.forward.request()
        }
    }
}

impl InferArgs {
    /// The request to the library.
    pub fn request(&self) -> InferRequest {
        InferRequest {
            forward: self.forward.request(),
            out: self.out.clone(),
            kind: match self.output {
                OutputName::Scores => PredictionKind::Scores,
                OutputName::Probabilities => PredictionKind::Probabilities,
                OutputName::Classes => PredictionKind::Classes,
            },
            units: match self.units {
                UnitsName::Physical => PredictionUnits::Physical,
                UnitsName::Network => PredictionUnits::Network,
            },
        }
    }
}

impl NamesName {
    /// The names and the axis order.
    pub(crate) fn names(self) -> WeightNames {
        match self {
            Self::Pytorch => WeightNames::PyTorch,
            Self::Partita => WeightNames::Partita,
        }
    }
}

impl ExportArgs {
    /// The request to the library.
    pub fn request(&self) -> ConvertRequest {
        let form = match (&self.like, &self.onnx) {
            (Some(like), _) => WeightForm::Like(like.clone()),
            (None, Some(_)) => WeightForm::Onnx,
            (None, None) => WeightForm::Names(self.names.names()),
        };
        let out = self.onnx.as_ref().or(self.out.as_ref());
        ConvertRequest {
            source: self.source.clone(),
            model: self.model.clone(),
            out: out.cloned().unwrap_or_default(),
            form,
            selection: self.selection.selection(),
        }
    }
}

impl ImportNetworkArgs {
    /// The request to the library.
    pub fn request(&self) -> ImportRequest {
        ImportRequest {
            source: self.source.clone(),
            out: self.out.clone(),
            weights: self.weights.clone(),
            loss: self.loss.clone(),
            output: self.output,
        }
    }
}

impl ImportArgs {
    /// The request to the library.
    pub fn request(&self) -> ConvertRequest {
        ConvertRequest {
            source: self.source.clone(),
            model: Some(self.model.clone()),
            out: self.out.clone(),
            form: WeightForm::Names(WeightNames::Partita),
            selection: self.selection.selection(),
        }
    }
}

impl MakingArgs {
    fn request(&self) -> MakeRequest {
        MakeRequest {
            out: self.out.clone(),
            seed: self.seed,
            validation: self.validation,
            test: self.test,
            threads: self.threads,
        }
    }
}

impl CosmologyArgs {
    /// The request to the library.
    pub fn request(&self) -> CosmologyRequest {
        CosmologyRequest {
            make: self.making.request(),
            universes: self.universes,
            grid: self.grid,
            n_s_spread: self.n_s_spread,
            h_0_spread: self.h_0_spread,
        }
    }
}

impl SegmentationArgs {
    /// The request to the library.
    pub fn request(&self) -> SegmentationRequest {
        SegmentationRequest {
            make: self.making.request(),
            volumes: self.volumes,
            grid: self.grid,
        }
    }
}

impl FractalsArgs {
    /// The request to the library.
    pub fn request(&self) -> FractalsRequest {
        FractalsRequest {
            make: MakeRequest {
                out: self.out.clone(),
                seed: self.seed,
                validation: self.validation,
                test: self.test,
                threads: self.threads,
            },
            volumes: self.volumes,
            scale: self.scale,
        }
    }
}

impl ShapesArgs {
    /// The request to the library.
    pub fn request(&self) -> ShapesRequest {
        ShapesRequest {
            make: self.making.request(),
            images: self.images,
            size: self.size,
            classes: self.classes,
        }
    }
}

impl DigitsArgs {
    /// The request to the library.
    pub fn request(&self) -> DigitsRequest {
        DigitsRequest {
            make: self.making.request(),
            samples: self.samples,
            task: match self.task {
                DigitsTaskName::Reverse => DigitsTask::Reverse,
                DigitsTaskName::Sort => DigitsTask::Sort,
                DigitsTaskName::Add => DigitsTask::Add,
            },
            digits: self.digits,
            vary: self.vary,
            length: self.length,
        }
    }
}
