//! The run file, as TOML.

mod optimizer;
mod schedule;
pub mod words;

use super::checkpoint::{self, CheckpointConfig};
use super::early_stopping::EndRules;
use super::metrics::MetricsFormat;
use super::offload::config::{OffloadConfig, cores, read_offload};
use super::preparation::SampleOptions;
use super::section::{RunFileError, Section, all_faults, suggest, syntax};
use super::store::config::{DataOptions, StoreConfig};
use crate::weights::{Selection, WeightNames};
use partita_forecast::{ADAM, EMA_MAX};
use partita_graph::{Loss, text};
use partita_input::CheckScope;
use partita_program::Optimizer;
use partita_session::{LOSS_SCALES, LearningRateSchedule, LossScaling};
use partita_site::kernel_set::{KernelSet, Precision};
use partita_site::near_file;
use partita_space::help::{Expected, Message};
use partita_space::{Bytes, Seconds};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

const KEYS: [&str; 39] = [
    "model",
    "loss",
    "data",
    "output",
    "overwrite",
    "ranks",
    "threads",
    "cores",
    "pin",
    "strategy",
    "micro_statistics",
    "machine",
    "tune",
    "kernels",
    "device",
    "precision",
    "loss_scale",
    "batch",
    "accumulate",
    "epochs",
    "seed",
    "transform",
    "check_data",
    "metrics",
    "watchdog",
    "memory",
    "augmentation",
    "optimizer",
    "schedule",
    "checkpoint",
    "weights",
    "offload",
    "freeze",
    "freeze_statistics",
    "drop_last",
    "early_stopping",
    "target",
    "ema",
    "allow_external",
];
const WEIGHTS_KEYS: [&str; 8] = [
    "file",
    "skip",
    "rename",
    "new",
    "initial",
    "order",
    "axes",
    "statistics",
];
/// What `freeze` may be.
const FREEZE: &str = "a list of layers or parameters, like [\"enc*\", \"bn1.gamma\"]";
/// Longest time without progress, unless the configuration says another.
const WATCHDOG: Seconds = Seconds(60.0);

/// A run file. Paths are relative to the current folder.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFile {
    /// Model of the zoo or path of a model file.
    pub model: String,
    /// A dataset folder or a single HDF5 file.
    pub data: PathBuf,
    /// Output folder.
    pub output: PathBuf,
    /// Everything else.
    pub config: TrainConfig,
}

/// How a model is trained. A [`RunFile`] is read to one; paths are relative to the current folder.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    /// Loss in the words of a model file (default: that of the model).
    pub loss: Option<Loss>,
    /// Whether and where samples stay after they were read (default: nowhere).
    pub store: StoreConfig,
    /// Memory that decoding of files may take, all readers of a process together (default: half of what is free).
    pub decode_memory: Option<Bytes>,
    /// Whether a run in the output folder may be replaced (default: false).
    pub overwrite: bool,
    /// Number of ranks (default: 1).
    pub ranks: usize,
    /// Threads per rank (default: 1).
    pub threads: usize,
    /// Cores that the run may use (default: all that the process may use).
    pub cores: Option<Vec<usize>>,
    /// Whether the threads of ranks are pinned to cores (default: true).
    pub pin: bool,
    /// `auto` (default) or a strategy.
    pub strategy: String,
    /// Whether `auto` may choose micro-batches where batch norm, or Dice over a batch, then takes its sums over one of
    /// them (default: false).
    pub micro_statistics: bool,
    /// Name or path of a machine file (default: this machine, measured).
    pub machine: Option<String>,
    /// Whether kernels are tried before the first step (default: where that pays).
    pub tune: LiveTuning,
    /// Kernel set (default: the fast one).
    pub kernels: KernelSet,
    /// Where kernels compute (default: the processor).
    pub device: KernelSet,
    /// Type of activations and parameters (default: f32).
    pub precision: Precision,
    /// How gradients in f16 are scaled (default: by a factor that follows them).
    pub loss_scaling: Option<LossScaling>,
    /// Global batch size.
    pub batch: usize,
    /// Steps of `batch` samples whose gradients are accumulated for one update (default: 1).
    pub accumulate: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// Seed of sample order, initial values and dropout (default: 1).
    pub seed: u64,
    /// Preparation and augmentation of samples (default: none).
    pub samples: SampleOptions,
    /// How much of the data is looked at before the run (default: some samples).
    pub check_data: CheckScope,
    /// Files of metrics that the run writes (default: none).
    pub metrics: Vec<MetricsFormat>,
    /// Watchdog limit: longest time without progress (default: 60 s).
    pub watchdog: Seconds,
    /// Memory limit of a rank (default: the memory available divided by the ranks).
    pub memory: Option<Bytes>,
    /// Optimizer (default: Adam with its usual constants).
    pub optimizer: Optimizer,
    /// Whether biases, scales, shifts and slopes have the weight decay and the trust ratio of the optimizer
    /// (default: true, but false for LARS and LAMB).
    pub decay_norms: bool,
    /// Gradient clipping: largest global norm.
    pub clip: Option<f64>,
    /// Decay of the exponential moving averages of the weights, which then are evaluated and saved (default: no averages).
    pub ema: Option<f64>,
    /// Learning-rate schedule.
    pub schedule: LearningRateSchedule,
    /// When checkpoints are written, and which are kept.
    pub checkpoint: CheckpointConfig,
    /// Weights to start from (default: initial values drawn by the seed).
    pub weights: Option<StartWeights>,
    /// What is done in processes of its own (default: nothing).
    pub offload: OffloadConfig,
    /// Layers and parameters that are not trained, as patterns of
    /// [`Graph::with_frozen`](partita_graph::Graph::with_frozen) (default: none).
    pub freeze: Vec<String>,
    /// Whether batch norms without trained parameters keep their running statistics (default: true).
    pub freeze_statistics: bool,
    /// Whether the training samples of an epoch that do not fill an update are left out (default: false).
    pub drop_last: bool,
    /// Whether files of the dataset may take values from other files outside of their folders (default: refused).
    pub allow_external: bool,
    /// When the training ends before its last epoch (default: not).
    pub ends: EndRules,
}

impl Default for TrainConfig {
    /// An epoch of steps of one sample on one rank, with Adam and a constant learning rate of 1e-3; everything else as
    /// where a run file omits it.
    fn default() -> Self {
        Self {
            loss: None,
            store: StoreConfig::default(),
            decode_memory: None,
            overwrite: false,
            ranks: 1,
            threads: 1,
            cores: None,
            pin: true,
            strategy: "auto".to_owned(),
            micro_statistics: false,
            machine: None,
            tune: LiveTuning::default(),
            kernels: KernelSet::CPU,
            device: KernelSet::CPU,
            precision: Precision::F32,
            loss_scaling: None,
            batch: 1,
            accumulate: 1,
            epochs: 1,
            seed: 1,
            samples: SampleOptions::as_stored(),
            check_data: CheckScope::default(),
            metrics: Vec::new(),
            watchdog: WATCHDOG,
            memory: None,
            optimizer: ADAM,
            decay_norms: true,
            clip: None,
            ema: None,
            schedule: LearningRateSchedule::Constant { rate: 1e-3 },
            checkpoint: CheckpointConfig::default(),
            weights: None,
            offload: OffloadConfig::default(),
            freeze: Vec::new(),
            freeze_statistics: true,
            drop_last: false,
            allow_external: false,
            ends: EndRules::default(),
        }
    }
}

/// Whether a training tries kernels before its first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LiveTuning {
    /// Where the training is so long that this pays.
    #[default]
    Live,
    /// Never: kernels are pinned by measured times and a model.
    Off,
    /// However short the training is.
    Always,
}

impl LiveTuning {
    /// Names in run files and on the command line.
    pub const CHOICES: [(&str, Self); 3] = [
        ("live", Self::Live),
        ("off", Self::Off),
        ("always", Self::Always),
    ];
}

/// Weights from which a training starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartWeights {
    /// Weight file, output folder or checkpoint.
    pub file: PathBuf,
    /// Which of them are taken.
    pub selection: Selection,
    /// Whether `transform` takes the statistics of the data that they were trained on (default: those of `data`).
    pub takes_statistics: bool,
}

/// Kernel sets with their names.
fn named(all: impl Iterator<Item = KernelSet>) -> Vec<(&'static str, KernelSet)> {
    all.map(|set| (set.name(), set)).collect()
}

/// Errors: kernels that do not compute in the precision.
fn kernels_and_precision(
    top: &Section<'_>,
) -> Result<(KernelSet, KernelSet, Precision), RunFileError> {
    let kernels = top
        .choice("kernels", &named(KernelSet::kernels_to_choose()))?
        .unwrap_or(KernelSet::CPU);
    let precision = top
        .choice("precision", &Precision::CHOICES)?
        .unwrap_or(Precision::F32);
    let device = top
        .choice("device", &named(KernelSet::devices_to_choose()))?
        .unwrap_or(KernelSet::CPU);
    if !kernels.offers(precision) {
        let expected = if device.is_on_processor() {
            "\"f32\", \"bf16\" or \"f16\" with `kernels = \"cpu\"`, or this with `kernels = \"reference\"`"
        } else {
            "\"f32\", \"bf16\" or \"f16\" on a device, or this with `kernels = \"reference\"` and `device = \"cpu\"`"
        };
        return Err(top.refuse("precision", expected));
    }
    Ok((kernels, device, precision))
}

/// Errors: a factor in another precision.
fn loss_scaling(
    top: &Section<'_>,
    precision: Precision,
) -> Result<Option<LossScaling>, RunFileError> {
    let expected =
        "a number from 1e-7 to 1e18, like 1024; without it the loss scale follows the gradients";
    let factor = top.number("loss_scale", expected, |number| {
        LOSS_SCALES.contains(&number)
    })?;
    match (precision, factor) {
        (Precision::F16, Some(factor)) => Ok(Some(LossScaling::Fixed(factor))),
        (Precision::F16, None) => Ok(Some(LossScaling::Dynamic)),
        (Precision::F32 | Precision::F64 | Precision::Bf16, None) => Ok(None),
        (Precision::F32 | Precision::F64 | Precision::Bf16, Some(_)) => Err(top.refuse(
            "loss_scale",
            "`precision = \"f16\"`, as gradients of no other type need it",
        )),
    }
}

/// Errors: a decay that is not above 0 and below 1.
fn ema(top: &Section<'_>) -> Result<Option<f64>, RunFileError> {
    let possible = "a number above 0 and below 1, like 0.999";
    let expected = match top.get("ema").and_then(|it| suggest::number(it.get_ref())) {
        Some(asked) if asked > EMA_MAX => Expected::from(possible).nearest(EMA_MAX),
        Some(asked) if asked > 0.0 => Expected::from(possible).nearest(asked),
        Some(_) => format!("{possible}; without `ema` the weights themselves are saved").into(),
        None => possible.into(),
    };
    top.number("ema", expected, |decay| {
        (f64::MIN_POSITIVE..=EMA_MAX).contains(&decay)
    })
}

impl RunFile {
    /// Reads a run file.
    ///
    /// Errors: an unreadable file; else all faults, each with its line, key, valid values and the nearest one.
    pub fn read(path: &Path) -> Result<Self, RunFileError> {
        let file = path.display().to_string();
        match partita_files::read_piped_text(path) {
            Ok(text) => Self::parse(&text, &file),
            Err(source) => Err(RunFileError::Unreadable {
                file,
                source,
                nearest: near_file::near_file(path, "toml"),
            }),
        }
    }

    /// Parses the text of a run file; errors name it `file`.
    pub fn parse(text: &str, file: &str) -> Result<Self, RunFileError> {
        let table = DeTable::parse(text).map_err(|error| syntax(file, text, &error))?;
        all_faults(table.get_ref(), |table| Self::of_table(table, text, file))
    }

    /// Errors: the first fault.
    fn of_table(table: &DeTable<'_>, text: &str, file: &str) -> Result<Self, RunFileError> {
        let top = Section::top(file, text, table, &KEYS)?;
        let (kernels, device, precision) = kernels_and_precision(&top)?;
        let batch = "a whole number of samples per step, like 16";
        let epochs = "a whole number, like 20";
        let model = "a name that `partita models` lists, or the path of a model file";
        let strategy = "\"auto\", \"auto,batch_norm=local\" or a strategy like \"data=2,depth=2\"";
        let machine = "a name or path of a machine file, like \"lassen\" or \"cluster.toml\"";
        let folder = "the path of a folder that exists or can be made, like \"out\"";
        let output = top.text("output", folder)?;
        if output.as_deref() == Some("") {
            return Err(top.refuse("output", folder));
        }
        let epoch_count = top.need("epochs", top.count("epochs")?, epochs)?;
        let watchdog = top.time("watchdog", "60 s")?.unwrap_or(WATCHDOG);
        let (optimizer, data) = (optimizer::optimizer(&top)?, DataOptions::read(&top)?);
        let checkpoint = checkpoint::section(&top)?;
        let model = top.need("model", top.text("model", model)?, model)?;
        let (loss, metrics) = (loss(&top)?, metrics(&top)?);
        let output = top.need("output", output, folder)?;
        let config = TrainConfig {
            loss,
            metrics,
            store: data.store,
            decode_memory: data.decode_memory,
            overwrite: top.flag("overwrite")?.unwrap_or(false),
            ranks: top.count("ranks")?.unwrap_or(1),
            threads: top.count("threads")?.unwrap_or(1),
            cores: cores(&top)?,
            pin: top.flag("pin")?.unwrap_or(true),
            strategy: top.text("strategy", strategy)?.unwrap_or("auto".into()),
            micro_statistics: top.flag("micro_statistics")?.unwrap_or(false),
            machine: top.text("machine", machine)?,
            tune: top
                .choice("tune", &LiveTuning::CHOICES)?
                .unwrap_or_default(),
            kernels,
            device,
            precision,
            loss_scaling: loss_scaling(&top, precision)?,
            batch: top.need("batch", top.count("batch")?, batch)?,
            accumulate: top.count("accumulate")?.unwrap_or(1),
            epochs: epoch_count,
            seed: top.natural("seed")?.unwrap_or(1),
            samples: SampleOptions::read(&top)?,
            check_data: top
                .choice("check_data", &CheckScope::CHOICES)?
                .unwrap_or_default(),
            watchdog,
            memory: top.bytes("memory")?,
            optimizer: optimizer.rule,
            decay_norms: optimizer.decay_norms,
            clip: optimizer.clip,
            ema: ema(&top)?,
            schedule: schedule::schedule(&top, epoch_count)?,
            ends: EndRules::read(&top, checkpoint.best)?,
            checkpoint,
            weights: weights(&top)?,
            offload: read_offload(&top, watchdog)?,
            freeze: names(&top, "freeze", FREEZE)?,
            freeze_statistics: top.flag("freeze_statistics")?.unwrap_or(true),
            drop_last: top.flag("drop_last")?.unwrap_or(false),
            allow_external: top.flag("allow_external")?.unwrap_or(false),
        };
        Ok(Self {
            model,
            data: data.path,
            output: output.into(),
            config,
        })
    }
}

fn weights(top: &Section<'_>) -> Result<Option<StartWeights>, RunFileError> {
    let expected = "the path of a weight file, an output folder or a checkpoint";
    if top
        .get("weights")
        .is_none_or(|value| value.get_ref().is_str())
    {
        let file = top.text("weights", expected)?;
        return Ok(file.map(|file| StartWeights {
            file: file.into(),
            selection: Selection::default(),
            takes_statistics: false,
        }));
    }
    let Some(section) = top.section("weights")? else {
        return Ok(None);
    };
    section.check(&WEIGHTS_KEYS)?;
    let patterns =
        "a list of names of tensors, in which `*` stands for any characters, like [\"fc*\"]";
    let axes = "letters of the dims of samples, like \"WHD\" for arrays of NiBabel, or \"DHW\"";
    let renames = "a table of names, like {\"old.name\" = \"new.name\"}";
    let rename = section.read("rename", renames, |value| {
        let pairs = value.as_table()?.iter();
        let pairs = pairs.map(|(old, new)| {
            let new = new.get_ref().as_str()?;
            Some((old.get_ref().to_string(), new.to_owned()))
        });
        pairs.collect::<Option<Vec<_>>>()
    })?;
    let file = section.need("file", section.text("file", expected)?, expected)?;
    Ok(Some(StartWeights {
        file: file.into(),
        selection: Selection {
            skip: names(&section, "skip", patterns)?,
            new: names(&section, "new", patterns)?,
            rename: rename.unwrap_or_default(),
            initial: section.flag("initial")?.unwrap_or(false),
            is_whole: false,
            order: section.choice("order", &WeightNames::CHOICES)?,
            axes: section.read("axes", axes, |value| value.as_str()?.parse().ok())?,
        },
        takes_statistics: section
            .choice("statistics", &[("data", false), ("weights", true)])?
            .unwrap_or(false),
    }))
}

/// A list of texts, empty by default.
fn names(
    section: &Section<'_>,
    key: &'static str,
    expected: &str,
) -> Result<Vec<String>, RunFileError> {
    let value = section.get(key).map(|value| value.get_ref());
    let expected = Expected::from(expected).maybe_nearest(value.and_then(suggest::list));
    let texts = section.read(key, expected, |value| {
        let texts = value.as_array()?.iter();
        let texts = texts.map(|text| text.get_ref().as_str().map(str::to_owned));
        texts.collect::<Option<Vec<String>>>()
    })?;
    Ok(texts.unwrap_or_default())
}

/// A list of formats, each once.
fn metrics(top: &Section<'_>) -> Result<Vec<MetricsFormat>, RunFileError> {
    let names = MetricsFormat::CHOICES.map(|(word, _)| word);
    let words = names.map(|word| format!("\"{word}\""));
    let mut formats = Vec::new();
    let mut close = Vec::new();
    let mut is_list = true;
    match top.get("metrics").map(|value| value.get_ref()) {
        None => return Ok(formats),
        Some(DeValue::Array(list)) => {
            for word in list.iter() {
                let word = word.get_ref().as_str().unwrap_or_default();
                let meant = suggest::word(word, names.into_iter());
                let mut choices = MetricsFormat::CHOICES.into_iter();
                is_list &= meant == word && !close.contains(&meant);
                if !close.contains(&meant) {
                    formats.extend(choices.find(|(name, _)| *name == meant).map(|it| it.1));
                    close.push(meant);
                }
            }
        }
        Some(value) => {
            is_list = false;
            close.push(suggest::word(
                value.as_str().unwrap_or_default(),
                names.into_iter(),
            ));
        }
    }
    if is_list {
        return Ok(formats);
    }
    let expected = Expected::new(format_args!("a list of {}, each once", words.join(", ")));
    let nearest = format!("{close:?}");
    Err(top.refuse("metrics", expected.nearest(nearest)))
}

/// As on the last line of a model, without name and input.
fn loss(top: &Section<'_>) -> Result<Option<Loss>, RunFileError> {
    let expected = "a loss as in a model file, like \"dice_cross_entropy smooth=1\"";
    let Some(asked) = top.text("loss", expected)? else {
        return Ok(None);
    };
    let read = text::parse_loss(&asked);
    let reason = |error: text::TextError| {
        let Message { text, help } = Message::of(&error);
        let text = text.strip_prefix("line 1: ").unwrap_or(&text);
        let nearest = help.iter().find_map(|line| line.strip_prefix("try "));
        let expected = Expected::new(format_args!("{expected} ({text})"));
        top.refuse("loss", expected.maybe_nearest(nearest))
    };
    read.map(Some).map_err(reason)
}
