//! Words that arguments choose from.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use partita::KernelSet;
use std::sync::LazyLock;

/// Tasks on strings of digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DigitsTaskName {
    /// The digits in reverse order
    Reverse,
    /// The digits in ascending order
    Sort,
    /// The sum of two numbers, its least significant digit first
    Add,
}

/// Orientations in which images are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OrientationName {
    /// RAS+: x to the right, y to anterior, z to superior, or the axes nearest to these
    #[default]
    Canonical,
    /// That of each image
    Image,
}

/// Interpolations of resampled images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum InterpolationName {
    /// Between the two nearest voxels along each dim
    #[default]
    Linear,
    /// Through the four nearest voxels along each dim, without smoothing
    Cubic,
    /// The nearest voxel
    Nearest,
}

/// What is taken of volumes that are larger than the crops of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumesName {
    /// Whole volumes, which the network reads at their extents
    Whole,
    /// Overlapping crops, whose outputs are joined
    Tiles,
    /// Crops, each as a sample of its own
    Crops,
}

/// What each tile counts where several have a voxel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TileWeightsName {
    /// A Gaussian around its middle, with a standard deviation of 1/8 of its extent
    Gaussian,
    /// All tiles the same
    Constant,
    /// One tile for each voxel: neighbors meet in the middle of what they share
    Middle,
}

/// How much of a dataset is checked before a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckName {
    /// Every sample of the training and the validation split
    All,
    /// A few samples of both, evenly spaced
    Quick,
    /// Nothing
    None,
}

/// Whether kernels are tried before a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TuningName {
    /// Where the training is so long that this pays
    Live,
    /// Never
    Off,
    /// However short the training is
    Always,
}

/// Where samples stay after they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreName {
    /// Nowhere: every epoch reads the files
    None,
    /// In the memory of the ranks, one copy in all
    Memory,
    /// Nowhere: for benchmarks, samples are made up and no file is read
    Synthetic,
}

/// Kernel sets; none leaves kernels open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelsName(pub Option<KernelSet>);

impl ValueEnum for KernelsName {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<KernelsName>> = LazyLock::new(|| {
            let sets = KernelSet::all().map(Some);
            sets.chain([None]).map(KernelsName).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, about) = self.0.map_or(
            (
                "unpinned",
                "None: the program can be predicted but not run; on this machine predictions have the fast ones",
            ),
            |set| (set.name(), set.about_kernels()),
        );
        Some(PossibleValue::new(name).help(about))
    }
}

/// Where kernels compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName(pub KernelSet);

impl ValueEnum for DeviceName {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<DeviceName>> =
            LazyLock::new(|| KernelSet::devices_to_choose().map(DeviceName).collect());
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.about_devices()))
    }
}

/// Where samples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoName {
    /// Host memory of the ranks
    Store,
    /// File system, in every epoch
    Files,
    /// Input takes no time
    None,
}

/// Precisions of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// 32-bit floats
    F32,
    /// 32-bit floats, rounded to TF32 as factors of products
    Tf32,
    /// bfloat16, with sums and weights in f32
    Bf16,
    /// 16-bit floats, with sums and weights in f32
    F16,
}

/// Statistics of batch norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BatchNormName {
    /// Over all ranks
    Synchronized,
    /// Over the samples of each coordinate of `data`
    Local,
}

/// What is written of the outputs of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputName {
    /// The outputs before the loss
    #[default]
    Scores,
    /// The softmax over classes
    Probabilities,
    /// The index of the class with the greatest score
    Classes,
}

/// What predictions of numbers are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UnitsName {
    /// Physical values, where the weights keep the range of each target
    #[default]
    Physical,
    /// As the network outputs them
    Network,
}

/// Names and axis orders of weight files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NamesName {
    /// Those of PyTorch's state dicts
    #[default]
    Pytorch,
    /// Those of Partita
    Partita,
}

/// Splits of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitName {
    /// Training samples
    Train,
    /// Validation samples
    Validation,
    /// Test samples
    Test,
}

/// Kinds of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KindName {
    /// Training step
    #[default]
    Train,
    /// Evaluation: loss and errors
    Evaluate,
    /// Inference: outputs before the loss, without targets
    Infer,
}

/// Optimizers, with their usual constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Adam
    #[default]
    Adam,
    /// SGD with momentum 0.9
    Sgd,
    /// SGD with Nesterov's momentum of 0.9
    Nesterov,
    /// AdamW with weight decay 0.01
    Adamw,
    /// LARS with momentum 0.9
    Lars,
    /// LAMB with weight decay 0.01
    Lamb,
}

/// Storage types of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SampleName {
    /// 16-bit counts x, read as ln(1 + x)
    #[default]
    Int16,
    /// 16-bit counts x, read as x / 100, as of volumes and images
    Int16Scaled,
    /// 32-bit floats
    Float32,
}

/// Element types of datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredName {
    /// 16-bit integers
    Int16,
    /// 32-bit floats
    Float32,
}
