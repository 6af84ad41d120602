//! Arguments of all verbs.

mod choices;
mod fractals;
mod input;
mod selection;
mod tune;

pub use choices::{
    BatchNormName, CheckName, DeviceName, DigitsTaskName, InterpolationName, IoName, KernelsName,
    KindName, NamesName, OptimizerName, OrientationName, OutputName, PrecisionName, SampleName,
    SplitName, StoreName, StoredName, TileWeightsName, TuningName, UnitsName, VolumesName,
};
pub use fractals::FractalsArgs;
pub use input::{CoresArgs, DecodingArgs, InputArgs, OffloadArgs};
pub use selection::SelectionArgs;
pub use tune::TuneArgs;

use crate::number::{self, Mirror, WeightList};
use crate::serve::ServeArgs;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use partita::{KernelSet, LoweringPass, parse_bytes, parse_seconds};
use partita_space::{Bytes, Seconds};
use std::path::PathBuf;

/// Plans, predicts and runs hybrid-parallel training of large convolutional networks.
#[derive(Debug, Parser)]
#[command(name = "partita", version, propagate_version = true)]
pub struct Arguments {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List the models of the zoo with parameters, flops and memory
    Models(ModelsArgs),
    /// Show layers, shapes, parameters, flops and bytes of a model
    Inspect(InspectArgs),
    /// Show what a network of PyTorch or ONNX becomes, and write it as a model file
    Import(ImportNetworkArgs),
    /// Print the program of every rank as text, verified
    Lower(LowerArgs),
    /// Predict time and memory of a training step on a machine
    Predict(PredictArgs),
    /// Rank strategies for a training on a machine
    Plan(PlanArgs),
    /// Measure this machine and write a machine file
    Calibrate(CalibrateArgs),
    /// Measure implementations and micro-batches of convolutions, for later runs to use
    Tune(TuneArgs),
    /// Train a network from a run file
    Train(TrainArgs),
    /// Load samples or validate for trainings in a process of its own
    Serve(ServeArgs),
    /// Evaluate trained weights: loss and metrics on a split of a dataset
    Evaluate(EvaluateArgs),
    /// Write the predictions of trained weights for a dataset to a file
    Infer(InferArgs),
    /// Export weights to other frameworks, and import them
    Weights {
        /// The verb.
        #[command(subcommand)]
        verb: WeightsVerb,
    },
    /// Compare a prediction with the trace of a run, task by task
    Compare(CompareArgs),
    /// Make and inspect datasets
    Data {
        /// The verb.
        #[command(subcommand)]
        verb: DataVerb,
    },
    /// Show processor, memory, MPI and libraries, and how to install what is missing
    Doctor(DoctorArgs),
    /// Make a small dataset, plan, train, and compare with simple baselines
    Demo(DemoArgs),
}

/// `partita demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder for the dataset and the results
    #[arg(long, default_value = "demo-output")]
    pub out: PathBuf,
    /// Number of ranks
    #[arg(long, value_name = "P", default_value_t = 2, allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: usize,
    #[command(flatten)]
    pub on: CoresArgs,
}

/// `partita models`.
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Model of the zoo (see `partita models`) or path of a model file
    pub model: String,
    /// Print the model in the text form of model files
    #[arg(long, conflicts_with = "json")]
    pub text: bool,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita import`.
#[derive(Debug, Args)]
pub struct ImportNetworkArgs {
    /// Network that `torch.export.save` wrote, or ONNX model
    #[arg(value_name = "FILE.pt2|FILE.onnx")]
    pub source: PathBuf,
    /// Model file to write
    #[arg(long, value_name = "FILE.model")]
    pub out: Option<PathBuf>,
    /// Weight file to write, in PyTorch's names and axis order
    #[arg(long, value_name = "FILE.safetensors")]
    pub weights: Option<PathBuf>,
    /// Loss, as in a model file, like "softmax_cross_entropy smoothing=0.1" (default: by the output)
    #[arg(long, value_name = "LOSS")]
    pub loss: Option<String>,
    /// Output that is trained, from 0, where the network returns several
    #[arg(long, value_name = "N")]
    pub output: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments common to all verbs that lower a training.
#[derive(Debug, Args)]
pub struct TrainingArgs {
    /// Model of the zoo (see `partita models`) or path of a model file
    pub model: String,
    /// Number of ranks
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: usize,
    /// Global batch size: samples per step over all ranks
    #[arg(long, value_name = "B", allow_negative_numbers = true, value_parser = number::count)]
    pub batch: usize,
    /// Optimizer
    #[arg(long, value_enum, default_value_t)]
    pub optimizer: OptimizerName,
    /// Decay of averages of the weights, as `ema` of a run file (default: no averages)
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true, value_parser = number::decay)]
    pub ema: Option<f64>,
    /// Storage type of the samples
    #[arg(long, value_enum, default_value_t)]
    pub samples: SampleName,
    /// Precision of layers: f32, bf16 or f16 where ranks run; with a machine file any that it has a rate for
    #[arg(long, value_enum, default_value_t = PrecisionName::F32)]
    pub precision: PrecisionName,
}

/// `partita lower`.
#[derive(Debug, Args)]
pub struct LowerArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Strategy, such as `data=4,depth=2`
    #[arg(long, value_name = "S")]
    pub strategy: String,
    /// Kernels to pin in the program
    #[arg(long, value_enum, default_value_t = KernelsName(Some(KernelSet::REFERENCE)))]
    pub kernels: KernelsName,
    /// Kind of program
    #[arg(long, value_enum, default_value_t)]
    pub kind: KindName,
    /// Machine on which pipeline stages are balanced: name or path of a machine file (default: balance flops)
    #[arg(long, value_name = "M")]
    pub machine: Option<String>,
    /// Memory limit of a rank, such as `16GiB` (default: that of the machine's device)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true, requires = "machine")]
    pub memory: Option<Bytes>,
    /// Print the intermediate form after a lowering pass: lay-out, emit, fuse, pack, select, arena or stage
    #[arg(long, value_name = "PASS", conflicts_with = "json")]
    pub after: Option<LoweringPass>,
    /// Print digest, counts per class and memory as JSON instead of the program
    #[arg(long)]
    pub json: bool,
}

/// `partita predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Strategy, such as `data=4,depth=2`
    #[arg(long, value_name = "S")]
    pub strategy: String,
    /// Kind of step
    #[arg(long, value_enum, default_value_t)]
    pub kind: KindName,
    /// Name or path of a machine file; `here` measures this machine
    #[arg(long, value_name = "M", default_value = "here")]
    pub machine: String,
    /// Name or path of the profile of the software that runs the training
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "partita")]
    pub software: String,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub on: CoresArgs,
    /// Kernels to pin in the program
    #[arg(long, value_enum, default_value_t = KernelsName(None))]
    pub kernels: KernelsName,
    /// Memory limit of a rank, such as `16GiB` (default: that of the machine's device)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub memory: Option<Bytes>,
    /// Measured time of forward and backward computation of a sample on one device, such as `8.2ms`; modeled
    /// kernels are scaled by it
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub seconds_per_sample: Option<Seconds>,
    /// Table of layers' measured times on one device, as TOML; modeled layers are scaled by it
    #[arg(long, value_name = "FILE.toml", conflicts_with = "seconds_per_sample")]
    pub layer_times: Option<PathBuf>,
    #[command(flatten)]
    pub offload: OffloadArgs,
    /// List every task with its time, as `partita compare` needs it
    #[arg(long)]
    pub tasks: bool,
    /// Also predict changes of the machine, twice the batch and more ranks
    #[arg(long)]
    pub explain: bool,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Name or path of a machine file; `here` measures this machine
    #[arg(long, value_name = "M", default_value = "here")]
    pub machine: String,
    /// Name or path of the profile of the software that runs the training
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "partita")]
    pub software: String,
    /// Over which samples batch norms take their statistics: those of all ranks, or `local` to each coordinate of
    /// `data`, which changes the result of the training (default: as the software does, `synchronized` for Partita)
    #[arg(long, value_enum)]
    pub batch_norm: Option<BatchNormName>,
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub on: CoresArgs,
    /// Samples of the dataset that are validated, not trained on, in the epoch that is printed with `--dataset-samples`
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::dataset_samples, requires = "dataset_samples")]
    pub validation_samples: Option<usize>,
    /// Memory limit of a rank, such as `16GiB` (default: that of the machine's device)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub memory: Option<Bytes>,
    /// Time of the search, such as `10s`: after it the best so far are printed, as after Ctrl-C (default: no limit)
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub budget: Option<Seconds>,
    /// Also predict more memory and more ranks for the best strategy
    #[arg(long)]
    pub explain: bool,
    /// Also look for slower strategies of less memory, down to the least that is possible
    #[arg(long)]
    pub front: bool,
    /// List all strategies, refused ones with the reason
    #[arg(long)]
    pub all: bool,
    /// Write an HTML report
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Name of the machine (default: host name)
    #[arg(long)]
    pub name: Option<String>,
    /// Machine file to write (default: `NAME.toml`)
    #[arg(long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub replace: bool,
    /// Number of ranks that run concurrently (default: cores divided by threads; under a launcher, its processes)
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: Option<usize>,
    /// Threads per rank
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count, default_value_t = 1)]
    pub threads: usize,
    #[command(flatten)]
    pub on: CoresArgs,
    /// Where kernels compute
    #[arg(long, value_enum, default_value_t = DeviceName(KernelSet::CPU))]
    pub device: DeviceName,
    /// Models whose kernels are measured, with the batch, such as `cosmoflow@64:2` (default: a set of all kinds)
    #[arg(long, value_name = "MODEL:B", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Passes over all kernels; the median of each kernel counts
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count, default_value_t = partita::PASSES)]
    pub passes: usize,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Run file
    #[arg(value_name = "RUN.toml")]
    pub run: PathBuf,
    /// Number of ranks (overrides the run file)
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: Option<usize>,
    /// Threads per rank (overrides the run file)
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub on: CoresArgs,
    /// Strategy, such as `data=2,depth=2`, or `auto` (overrides the run file)
    #[arg(long, value_name = "S")]
    pub strategy: Option<String>,
    /// Where kernels compute (overrides the run file; default: cpu)
    #[arg(long, value_enum)]
    pub device: Option<DeviceName>,
    /// Name or path of a machine file from which times are predicted, instead of measurements before the run
    /// (overrides the run file)
    #[arg(long, value_name = "M")]
    pub machine: Option<String>,
    /// Whether samples stay in memory after they were read (overrides the run file)
    #[arg(long, value_enum, value_name = "WHERE")]
    pub store: Option<StoreName>,
    /// Read all samples into memory before the first step
    #[arg(long)]
    pub preload: bool,
    /// Folder on a local disk for samples that do not fit the memory (overrides the run file)
    #[arg(long, value_name = "FOLDER")]
    pub spill: Option<PathBuf>,
    /// Memory for samples of each rank, such as `16GiB` (overrides the run file)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub store_memory: Option<Bytes>,
    #[command(flatten)]
    pub decoding: DecodingArgs,
    /// Use collectives of the MPI library, equal up to rounding, instead of sums in rank order
    #[arg(long)]
    pub library_collectives: bool,
    /// Replace the run in the output folder
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// Resume from the newest checkpoint of the output folder, from the checkpoint at a path, or, with `auto`, from the
    /// newest one if there is one
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "newest")]
    pub resume: Option<PathBuf>,
    /// Predict times, which measures kernels and links before the run (default: only with `auto` or a machine file)
    #[arg(long)]
    pub prediction: bool,
    /// Do not predict times
    #[arg(long, conflicts_with = "prediction")]
    pub no_prediction: bool,
    /// Time for measurements of kernels before the run, such as `30s`; others are estimated from those that are measured
    /// (default: a tenth of the training, between 5 seconds and 2 minutes; with `--prediction` of a given strategy, all)
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, allow_hyphen_values = true)]
    pub budget: Option<Seconds>,
    /// Whether the most promising kernels are tried for some steps before the run (overrides `tune` of the run file; default:
    /// live)
    // Open MPI takes `--tune` for its own.
    #[arg(long, value_enum)]
    pub tuning: Option<TuningName>,
    /// How many samples are checked for NaN, infinities, invalid classes and constant channels before the run
    /// (overrides the run file; default: quick)
    #[arg(long, value_enum)]
    pub check_data: Option<CheckName>,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// Arguments common to the verbs that use trained weights.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// Run file of the training
    #[arg(value_name = "RUN.toml")]
    pub run: PathBuf,
    /// Weight file, in Partita's or in PyTorch's names and axis order, or an output folder (default: `output` of the
    /// run file). Of several, such as those of a cross-validation, outputs are averaged
    #[arg(long, value_name = "FILE,...", value_parser = OsStringValueParser::new().try_map(number::weights))]
    pub weights: Vec<WeightList>,
    /// Weights of the best epoch in `output` of the run file, by the metric `best` of `[checkpoint]` (default: of the
    /// last epoch)
    #[arg(long, conflicts_with = "weights")]
    pub best: bool,
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Dataset (overrides the run file)
    #[arg(long, value_name = "DATASET")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub decoding: DecodingArgs,
    /// Number of ranks (overrides the run file)
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: Option<usize>,
    /// Threads per rank (overrides the run file)
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub on: CoresArgs,
    /// Strategy, such as `data=2,depth=2`, or `auto` (overrides the run file)
    #[arg(long, value_name = "S")]
    pub strategy: Option<String>,
    /// Where kernels compute (overrides the run file; default: cpu)
    #[arg(long, value_enum)]
    pub device: Option<DeviceName>,
    /// Global batch size (overrides the run file)
    #[arg(long, value_name = "B", allow_negative_numbers = true, value_parser = number::count)]
    pub batch: Option<usize>,
    /// Split of the dataset (default: validation; test or train where it is empty)
    #[arg(long, value_enum)]
    pub split: Option<SplitName>,
    /// What to take of volumes that are larger than the crops of the training (default: tiles if a layer of the model
    /// spans positions, such as an instance norm; or else whole volumes if the model can read them, or else tiles, or
    /// else crops)
    #[arg(long, value_enum)]
    pub volumes: Option<VolumesName>,
    /// Fraction of its extent that a tile shares with the next one, from 0 to below 1 (default: 0.5)
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = number::overlap)]
    pub overlap: Option<f64>,
    /// What each tile counts where several have a voxel (default: gaussian)
    #[arg(long, value_enum)]
    pub tile_weights: Option<TileWeightsName>,
    /// Average outputs over samples that are mirrored along these dims, in all combinations: `depth`, `height` and
    /// `width`, or `d`, `h` and `w`, such as `h,w`
    #[arg(long, value_name = "DIM,...", value_parser = number::mirror)]
    pub mirror: Option<Mirror>,
    /// Use collectives of the MPI library, equal up to rounding, instead of sums in rank order
    #[arg(long)]
    pub library_collectives: bool,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    #[command(flatten)]
    pub forward: ForwardArgs,
    /// Evaluate samples one by one, and print loss and metrics of each, with its name
    #[arg(long)]
    pub per_sample: bool,
    /// Write loss and metrics of each sample as a table of comma-separated values, too (implies --per-sample)
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}

/// `partita infer`.
#[derive(Debug, Args)]
pub struct InferArgs {
    #[command(flatten)]
    pub forward: ForwardArgs,
    /// File of the predictions; its end names the format: `.h5`, `.hdf5`, `.npy`, or `.nii` or `.nii.gz` with a file
    /// for each sample, `p.nii.gz` giving `p-NAME.nii.gz`. Without an end: a folder of `NAME.nii.gz`
    #[arg(long, value_name = "FILE|FOLDER")]
    pub out: PathBuf,
    /// What to write of the outputs of the network
    #[arg(long, value_enum, default_value_t)]
    pub output: OutputName,
    /// What to write predictions of numbers in
    #[arg(long, value_enum, default_value_t)]
    pub units: UnitsName,
}

/// `partita weights`.
#[derive(Debug, Subcommand)]
pub enum WeightsVerb {
    /// Write weights for another framework
    Export(ExportArgs),
    /// Write weights of another framework in Partita's names and axis order
    Import(ImportArgs),
}

/// `partita weights export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Run file, whose output is taken, weight file, output folder or checkpoint
    #[arg(value_name = "RUN.toml|FILE")]
    pub source: PathBuf,
    /// File to write
    #[arg(
        long,
        value_name = "FILE.safetensors",
        required_unless_present = "onnx"
    )]
    pub out: Option<PathBuf>,
    /// Names and axis order of the file
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["like", "onnx"])]
    pub names: NamesName,
    /// Exported network whose state dict the file shall be: all of its entries, with their names, extents and types
    #[arg(long, value_name = "FILE.pt2", conflicts_with = "onnx")]
    pub like: Option<PathBuf>,
    /// Write the network with its weights as an ONNX model
    #[arg(long, value_name = "FILE.onnx", conflicts_with = "out")]
    pub onnx: Option<PathBuf>,
    /// Model of the weights (default: the one that the run file or the weight file names)
    #[arg(long)]
    pub model: Option<String>,
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `partita weights import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Weight file in PyTorch's names and axis order
    #[arg(value_name = "FILE.safetensors")]
    pub source: PathBuf,
    /// Model of the weights: of the zoo (see `partita models`) or path of a model file
    #[arg(long)]
    pub model: String,
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// File to write
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `partita compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Output of `partita predict --tasks --json`
    pub prediction: PathBuf,
    /// Trace written by `partita train`
    pub trace: PathBuf,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita data`.
#[derive(Debug, Subcommand)]
pub enum DataVerb {
    /// Make simulated universes with four cosmological parameters as targets
    Cosmology(CosmologyArgs),
    /// Make volumes of an organ with lesions, with a class per voxel
    Segmentation(SegmentationArgs),
    /// Make volumes of fractals, with a class per voxel: the data of the benchmark ScaFFold
    Fractals(FractalsArgs),
    /// Make images of simple shapes, with a class per image
    Shapes(ShapesArgs),
    /// Make strings of digits and their answers, for an encoder and a decoder
    Digits(DigitsArgs),
    /// Make a dataset of HDF5, NPY, NPZ, Zarr, NIfTI, PNG, JPEG or TFRecord files
    Convert(ConvertArgs),
    /// Give the samples of a dataset numbers of a table, such as age and weight, for networks that read features
    Features(DataFeaturesArgs),
    /// Summarize a dataset
    Inspect(DataInspectArgs),
}

/// Arguments common to all makers of datasets.
#[derive(Debug, Args)]
pub struct MakingArgs {
    /// Output folder, new or empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Seed; the same seed and options give the same bytes
    #[arg(long, value_name = "S", default_value_t = 2019, allow_negative_numbers = true, value_parser = number::seed)]
    pub seed: u64,
    /// Validation fraction
    #[arg(long, value_name = "FRACTION", default_value = "0.1", allow_negative_numbers = true, value_parser = number::fraction)]
    pub validation: f64,
    /// Test fraction
    #[arg(long, value_name = "FRACTION", default_value = "0.1", allow_negative_numbers = true, value_parser = number::fraction)]
    pub test: f64,
    /// Threads (default: number of cores)
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
}

/// `partita data segmentation`.
#[derive(Debug, Args)]
pub struct SegmentationArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Number of volumes over all splits
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub volumes: usize,
    /// Voxels per side, 8 to 1024
    #[arg(long, value_name = "VOXELS", allow_negative_numbers = true, value_parser = number::within::<8, 1024>)]
    pub grid: usize,
}

/// `partita data shapes`.
#[derive(Debug, Args)]
pub struct ShapesArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Number of images over all splits
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub images: usize,
    /// Pixels per side, 16 to 4096
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = number::within::<16, 4096>)]
    pub size: usize,
    /// Number of classes, 2 to 1000: ten shapes, then textures of the figure, then of the background
    #[arg(long, value_name = "C", default_value_t = 10, allow_negative_numbers = true, value_parser = number::within::<2, 1000>)]
    pub classes: usize,
}

/// `partita data digits`.
#[derive(Debug, Args)]
pub struct DigitsArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Number of samples over all splits, all with different strings
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub samples: usize,
    /// Task
    #[arg(long, value_enum)]
    pub task: DigitsTaskName,
    /// Digits of a string, or most digits of a summand, 1 to 512
    #[arg(long, value_name = "DIGITS", allow_negative_numbers = true, value_parser = number::within::<1, 512>)]
    pub digits: usize,
    /// Vary the number of digits from 1 on, as sums always do
    #[arg(long)]
    pub vary: bool,
    /// Positions of a sample (default: smallest multiple of 8 that holds all samples)
    #[arg(long, value_name = "L", allow_negative_numbers = true, value_parser = number::count)]
    pub length: Option<usize>,
}

/// `partita data cosmology`.
#[derive(Debug, Args)]
pub struct CosmologyArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Number of universes over all splits, one sample each
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub universes: usize,
    /// Voxels per side: a power of two from 16 to 512
    #[arg(long, value_name = "VOXELS", allow_negative_numbers = true, value_parser = number::universe_grid)]
    pub grid: usize,
    /// Half-width of the range of n_s around 0.96, as a fraction of it, at most 0.1
    #[arg(long, value_name = "FRACTION", default_value = "0.1", allow_negative_numbers = true, value_parser = number::spread)]
    pub n_s_spread: f64,
    /// Half-width of the range of H_0 around 70, as a fraction of it, at most 0.1
    #[arg(long, value_name = "FRACTION", default_value = "0.1", allow_negative_numbers = true, value_parser = number::spread)]
    pub h_0_spread: f64,
}

/// `partita data convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Files, Zarr stores, or folders of them
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// Output folder, new or empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Fractions of training, validation and test; folders named train, validation and test go before
    #[arg(long, value_name = "T,V,T", default_value = "0.8,0.1,0.1", value_parser = number::fractions)]
    pub split: number::Fractions,
    /// Seed of the split
    #[arg(long, value_name = "S", default_value_t = 2019, allow_negative_numbers = true, value_parser = number::seed)]
    pub seed: u64,
    /// Key of the volumes (default: `full`, of TFRecord `x`)
    #[arg(long, value_name = "KEY")]
    pub volume_key: Option<String>,
    /// Key of targets that are numbers (default: `unitPar`, of TFRecord `y`)
    #[arg(long, value_name = "KEY")]
    pub target_key: Option<String>,
    /// Key of classes (default: `labels`)
    #[arg(long, value_name = "KEY")]
    pub label_key: Option<String>,
    /// Order of the dims of volumes and classes, such as NDHWC (default: by the number of dims)
    #[arg(long, value_name = "DIMS")]
    pub layout: Option<partita_formats::DimOrder>,
    /// Element type (default: int16 where it holds every stored value, otherwise float32)
    #[arg(long, value_enum)]
    pub dtype: Option<StoredName>,
    /// Scale images (PNG, JPEG) to cover this size, and crop them at their middle
    #[arg(long, value_name = "HxW", value_parser = number::image_size)]
    pub size: Option<number::ImageSize>,
    /// Orientation in which images are stored that state positions of voxels (NIfTI); `infer` restores that of the image
    #[arg(long, value_enum, default_value_t)]
    pub orientation: OrientationName,
    /// Resample NIfTI images and labels to this spacing along D, H and W, in millimeters; `infer` restores their voxels
    #[arg(long, value_name = "DxHxW", value_parser = number::spacing)]
    pub spacing: Option<number::Spacing>,
    /// Interpolation of resampled images (labels take the nearest voxel)
    #[arg(long, value_enum, default_value_t)]
    pub interpolation: InterpolationName,
    /// Table (CSV) of file names with numbers or a class, or a file of arrays with a row per sample
    #[arg(long, value_name = "FILE")]
    pub targets: Option<PathBuf>,
    /// Names of the classes, from class 0 on
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub classes: Vec<String>,
    /// Class index of positions that do not count, such as 255 or -1 (default: the label `ignore` of `dataset.json`)
    #[arg(long, value_name = "CLASS", allow_negative_numbers = true)]
    pub ignore: Option<i64>,
    /// Rename class numbers, such as 255=1, or 255=ignore for positions that do not count
    #[arg(
        long,
        value_name = "FROM=TO",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub map: Vec<partita_data::LabelPair>,
    /// Convert samples without targets or labels, for `partita infer`
    #[arg(long)]
    pub no_targets: bool,
    /// Read HDF5 values that were never written as the file's fill value (default: refused)
    #[arg(long)]
    pub fill: bool,
    /// Read HDF5 values from other files that a file names outside of its folder (default: refused)
    #[arg(long)]
    pub allow_external: bool,
    /// Leave samples out whose files are cut or damaged, and name them (default: refused); all files are decoded twice
    #[arg(long)]
    pub skip_damaged: bool,
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

/// `partita data features`.
#[derive(Debug, Args)]
pub struct DataFeaturesArgs {
    /// A dataset folder
    pub path: PathBuf,
    /// Table with a header and a row for each sample, whose first column names it; replaces the features that are there
    #[arg(long, value_name = "FILE.csv")]
    pub table: PathBuf,
    /// Columns of the features, in this order (default: all behind the first)
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `partita data inspect`.
#[derive(Debug, Args)]
pub struct DataInspectArgs {
    /// A dataset folder, a single file of one, or any file or Zarr store of arrays
    pub path: PathBuf,
    /// Read all values (default: at most 2^24 of each split or array)
    #[arg(long)]
    pub all: bool,
    /// Also draw slices of some samples, with their classes in colors
    #[arg(long, value_name = "FILE.png", value_parser = number::png)]
    pub picture: Option<PathBuf>,
    #[command(flatten)]
    pub decoding: DecodingArgs,
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}
