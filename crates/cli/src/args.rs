//! Arguments of all verbs.

use crate::number;
use clap::{Args, Parser, Subcommand, ValueEnum};
use partita::{LoweringPass, parse_bytes};
use partita_space::Bytes;
use std::path::PathBuf;

/// Plans, predicts and runs hybrid-parallel training of large convolutional networks.
#[derive(Debug, Parser)]
#[command(name = "partita", version, propagate_version = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What `partita` can do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List the models of the zoo with parameters, flops and memory
    Models(ModelsArgs),
    /// Show layers, shapes, parameters, flops and bytes of a model
    Inspect(InspectArgs),
    /// Print the program of every rank as text, verified
    Lower(LowerArgs),
    /// Say how long a step takes on a machine, and why
    Predict(PredictArgs),
    /// Rank the ways to split a training on a machine
    Plan(PlanArgs),
    /// Measure this machine and write a machine file
    Calibrate(CalibrateArgs),
    /// Train a network as a run file says
    Train(TrainArgs),
    /// Hold a prediction against the trace of a run, task by task
    Compare(CompareArgs),
    /// Make and inspect datasets
    Data {
        /// What to do with them.
        #[command(subcommand)]
        verb: DataVerb,
    },
    /// Show what this machine offers, and what mends what is missing
    Doctor(DoctorArgs),
    /// Make a small dataset, plan, train on it, and compare with simple baselines
    Demo(DemoArgs),
}

/// `partita demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder for the dataset and what the training leaves
    #[arg(long, default_value = "demo-output")]
    pub out: PathBuf,
    /// Ranks that train together
    #[arg(long, value_name = "P", default_value_t = 2, allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: usize,
}

/// `partita models`.
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A name of the zoo (`partita models` lists them) or the path of a model file
    pub model: String,
    /// Print the model in the text form that model files have
    #[arg(long, conflicts_with = "json")]
    pub text: bool,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// What is to be lowered: common to all verbs that lower.
#[derive(Debug, Args)]
pub struct TrainingArgs {
    /// A name of the zoo (`partita models` lists them) or the path of a model file
    pub model: String,
    /// Ranks that train together
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: usize,
    /// Samples per step over all ranks
    #[arg(long, value_name = "B", allow_negative_numbers = true, value_parser = number::count)]
    pub batch: usize,
    /// Rule by which parameters move
    #[arg(long, value_enum, default_value_t)]
    pub optimizer: OptimizerName,
    /// How the dataset stores its values
    #[arg(long, value_enum, default_value_t)]
    pub samples: SampleName,
}

/// `partita lower`.
#[derive(Debug, Args)]
pub struct LowerArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// How to split, like `data=4,depth=2`
    #[arg(long, value_name = "S")]
    pub strategy: String,
    /// Kernels to pin in the program
    #[arg(long, value_enum, default_value_t = KernelsName::Reference)]
    pub kernels: KernelsName,
    /// What the program is for
    #[arg(long, value_enum, default_value_t)]
    pub kind: KindName,
    /// Name or path of a machine file, on which stages whose layers are left open are made equally long;
    /// if not given, they are made equal in arithmetic
    #[arg(long, value_name = "M")]
    pub machine: Option<String>,
    /// Memory that a rank may fill, like `16GiB`; that of the machine's device if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true, requires = "machine")]
    pub memory: Option<Bytes>,
    /// Print what stands after a pass of lowering: lay-out, emit, fuse, pack, select, arena or stage
    #[arg(long, value_name = "PASS", conflicts_with = "json")]
    pub after: Option<LoweringPass>,
    /// Answer in JSON: digest, counts per class and memory instead of the text
    #[arg(long)]
    pub json: bool,
}

/// `partita predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// How to split, like `data=4,depth=2`
    #[arg(long, value_name = "S")]
    pub strategy: String,
    /// Name or path of a machine file; `here` is this machine
    #[arg(long, value_name = "M", default_value = "here")]
    pub machine: String,
    /// Leave reading out: the samples lie in the memory of the ranks already
    #[arg(long)]
    pub no_io: bool,
    /// Kernels to pin in the program; a prediction for another machine leaves them open
    #[arg(long, value_enum, default_value_t = KernelsName::Unpinned)]
    pub kernels: KernelsName,
    /// Memory that a rank may fill, like `16GiB`; that of the machine's device if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub memory: Option<Bytes>,
    /// List every task with its seconds, as `partita compare` needs it
    #[arg(long)]
    pub tasks: bool,
    /// Say what changes of the machine, twice the batch and more ranks would bring, too
    #[arg(long)]
    pub explain: bool,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Name or path of a machine file; `here` is this machine
    #[arg(long, value_name = "M", default_value = "here")]
    pub machine: String,
    /// Leave reading out: the samples lie in the memory of the ranks already
    #[arg(long)]
    pub no_io: bool,
    /// Memory that a rank may fill, like `16GiB`; that of the machine's device if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub memory: Option<Bytes>,
    /// Say of the best strategy what more memory and more ranks would bring, too
    #[arg(long)]
    pub explain: bool,
    /// List all strategies and every refusal with its reason
    #[arg(long)]
    pub all: bool,
    /// Write a page with the ranking and pictures of it, to be read in a browser
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Name that the machine gets; that of the host if not given
    #[arg(long)]
    pub name: Option<String>,
    /// Machine file to write; `NAME.toml` if not given
    #[arg(long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
    /// Write over a file that exists
    #[arg(long)]
    pub replace: bool,
    /// Ranks at work together; as many as there are cores for if not given. Under a launcher, its processes
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: Option<usize>,
    /// Threads of a rank
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count, default_value_t = 1)]
    pub threads: usize,
    /// Models whose kernels are measured, like `cosmoflow@64:2` with the batch; a set of all kinds if
    /// not given
    #[arg(long, value_name = "MODEL:B", value_delimiter = ',')]
    pub models: Vec<String>,
    /// How often all kernels are measured, one pass after the other; the middle of each counts
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count, default_value_t = partita::PASSES)]
    pub passes: usize,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// What to train on what, for how long, and where to write the results
    #[arg(value_name = "RUN.toml")]
    pub run: PathBuf,
    /// Ranks that train together, instead of those of the run file
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number::ranks)]
    pub ranks: Option<usize>,
    /// Threads of a rank, instead of those of the run file
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
    /// How to split, like `data=2,depth=2`, or `auto`, instead of what the run file says
    #[arg(long, value_name = "S")]
    pub strategy: Option<String>,
    /// Sum over ranks as the MPI library does, equal up to rounding, instead of in rank order
    #[arg(long)]
    pub library_collectives: bool,
    /// Replace the run that the output folder holds
    #[arg(long)]
    pub overwrite: bool,
    /// Leave out the prediction of seconds, for which kernels and links are measured first
    #[arg(long)]
    pub no_prediction: bool,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// What `partita predict --tasks --json` printed
    pub prediction: PathBuf,
    /// The trace that `partita train` wrote
    pub trace: PathBuf,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita data`.
#[derive(Debug, Subcommand)]
pub enum DataVerb {
    /// Make universes whose four cosmological parameters are known
    Cosmology(CosmologyArgs),
    /// Make volumes of an organ with lesions, with a class at each voxel
    Segmentation(SegmentationArgs),
    /// Make images of simple shapes, with one class each
    Shapes(ShapesArgs),
    /// Make strings of digits and their answers, token by token, for an encoder and a decoder
    Digits(DigitsArgs),
    /// Show what a dataset holds
    Inspect(DataInspectArgs),
}

/// What is common to all makers of datasets.
#[derive(Debug, Args)]
pub struct MakingArgs {
    /// Folder to make; it must not exist, or be empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Names the dataset; same seed and options, same bytes
    #[arg(long, value_name = "S", default_value_t = 2019, allow_negative_numbers = true, value_parser = number::seed)]
    pub seed: u64,
    /// Share of the samples that steer the training
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true, value_parser = number::share)]
    pub validation: f64,
    /// Share of the samples that are seen once, at the end
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true, value_parser = number::share)]
    pub test: f64,
    /// Samples made at a time; as many as there are cores if not given
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number::count)]
    pub threads: Option<usize>,
}

/// `partita data segmentation`.
#[derive(Debug, Args)]
pub struct SegmentationArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Volumes of all splits together
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub volumes: usize,
    /// Voxels a side, 8 to 1024
    #[arg(long, value_name = "VOXELS", allow_negative_numbers = true, value_parser = number::within::<8, 1024>)]
    pub grid: usize,
}

/// `partita data shapes`.
#[derive(Debug, Args)]
pub struct ShapesArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Images of all splits together
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub images: usize,
    /// Pixels a side, 16 to 4096
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = number::within::<16, 4096>)]
    pub size: usize,
    /// Classes, 2 to 1000: ten shapes, then with textures of the figure, then of the ground
    #[arg(long, value_name = "C", default_value_t = 10, allow_negative_numbers = true, value_parser = number::within::<2, 1000>)]
    pub classes: usize,
}

/// `partita data digits`.
#[derive(Debug, Args)]
pub struct DigitsArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Samples of all splits together, no two of the same string
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub samples: usize,
    /// What is to be answered
    #[arg(long, value_enum)]
    pub task: DigitsTaskName,
    /// Digits of a string, or of a number of a sum at most, 1 to 512
    #[arg(long, value_name = "DIGITS", allow_negative_numbers = true, value_parser = number::within::<1, 512>)]
    pub digits: usize,
    /// Strings of any number of digits from 1 on, as those of sums always are
    #[arg(long)]
    pub vary: bool,
    /// Positions of a sample; the smallest multiple of 8 that holds all samples if not given
    #[arg(long, value_name = "L", allow_negative_numbers = true, value_parser = number::count)]
    pub length: Option<usize>,
}

/// `partita data cosmology`.
#[derive(Debug, Args)]
pub struct CosmologyArgs {
    #[command(flatten)]
    pub making: MakingArgs,
    /// Universes of all splits together, one sample each
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::count)]
    pub universes: usize,
    /// Voxels a side: a power of two from 16 to 512
    #[arg(long, value_name = "VOXELS", allow_negative_numbers = true, value_parser = number::universe_grid)]
    pub grid: usize,
    /// How far n_s reaches to either side of 0.96, as a share of it, at most 0.1
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true, value_parser = number::spread)]
    pub n_s_spread: f64,
    /// How far H_0 reaches to either side of 70, as a share of it, at most 0.1
    #[arg(long, value_name = "SHARE", default_value = "0.1", allow_negative_numbers = true, value_parser = number::spread)]
    pub h_0_spread: f64,
}

/// `partita data inspect`.
#[derive(Debug, Args)]
pub struct DataInspectArgs {
    /// A dataset folder or a single HDF5 file
    pub path: PathBuf,
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// `partita doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Answer in JSON, in SI base units
    #[arg(long)]
    pub json: bool,
}

/// What the answer to a string of digits is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DigitsTaskName {
    /// The digits from last to first
    Reverse,
    /// The digits in ascending order
    Sort,
    /// The sum of two numbers, its least significant digit first
    Add,
}

/// Kernels that a program can pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelsName {
    /// Fast
    Cpu,
    /// Plain and exact
    Reference,
    /// None: the program can be costed but not run
    Unpinned,
}

/// What a program is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KindName {
    /// A step of training
    #[default]
    Train,
    /// Loss and errors without training
    Evaluate,
}

/// Rules by which parameters move, with their customary constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Adam: two moments beside each parameter
    #[default]
    Adam,
    /// Gradient descent with momentum 0.9
    Sgd,
}

/// How stored values look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SampleName {
    /// Counts, of which the network sees ln(1 + x)
    #[default]
    Int16,
    /// Counts, of which the network sees a hundredth, as of volumes and images
    Int16Scaled,
    /// Values that the network sees as they are
    Float32,
}
