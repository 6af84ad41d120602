//! Errors of datasets and weight files.

use partita_space::Help;
use std::ops::Range;
use std::path::PathBuf;

use crate::shortage::Shortage;
use partita_space::{Bytes, Rank};

/// Why an operation on a dataset or a weight file failed.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Channels or targets that are not those of weights.
    #[error("{path}: its {what} are {found}, and those of the weights are {expected}; {remedy}")]
    OtherTargets {
        /// The dataset.
        path: PathBuf,
        /// Channels, classes, targets or units.
        what: &'static str,
        /// Those of the dataset.
        found: String,
        /// Those of the weights.
        expected: String,
        /// How they match.
        remedy: &'static str,
    },
    /// A source could not give a sample.
    #[error("{source}: sample {sample} of the split `{split}` cannot be read: {reason}", source = .path.display())]
    Source {
        /// The name of the source.
        path: PathBuf,
        /// The split.
        split: &'static str,
        /// The sample.
        sample: usize,
        /// The error of the source.
        reason: String,
    },
    /// No file or folder at a path.
    #[error("{path} does not exist{}", Help::advice(valid))]
    Missing {
        /// The path.
        path: PathBuf,
        /// What is expected there.
        valid: String,
    },
    /// The operating system refused to open or list a path.
    #[error("{path} cannot be opened: {reason}; a readable file or dataset folder is needed")]
    Unopenable {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A file without an HDF5 signature.
    #[error(
        "{path} is not an HDF5 file: it has no HDF5 signature (it begins with {found}); \
         a file made by `partita data cosmology`, h5py or the HDF5 library is needed"
    )]
    NotHdf5 {
        /// The file.
        path: PathBuf,
        /// Its first bytes, in hexadecimal.
        found: String,
    },
    /// An HDF5 file without a key that a dataset needs.
    #[error(
        "{path} has no key `{key}`; its keys are {}; a dataset file holds `full` \
         (the volumes) and `unitPar` (numbers) or `labels` (classes){}",
        list(.found),
        Help::none().maybe_code(nearest.as_ref())
    )]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key asked for.
        key: String,
        /// All keys of the file, sorted.
        found: Vec<String>,
        /// The key whose spelling is nearest, if one is near.
        nearest: Option<String>,
    },
    /// A key with the wrong number of dims.
    #[error("{path}: key `{key}` has rank {} (shape {got:?}){}", .got.len(), Help::possible(expected))]
    WrongRank {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The ranks that would be valid.
        expected: String,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A key with the right rank and the wrong extents.
    #[error("{path}: key `{key}` has shape {got:?}{}", Help::possible(expected))]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The shape that would be valid.
        expected: String,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A key with an element type that is not supported there.
    #[error("{path}: key `{key}` holds {got}{}", Help::possible(expected))]
    WrongDtype {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The element types that would be valid.
        expected: String,
        /// The element type found.
        got: String,
    },
    /// A stored number that the type of the samples does not have.
    #[error("{path}: key `{key}`: {found}, which {expected} cannot hold; store smaller numbers")]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Where it is, and what it is.
        found: String,
        /// The element type that it was to become.
        expected: &'static str,
    },
    /// A sample number beyond the end of a split.
    #[error(
        "{path}: sample {sample} of split {split} was asked for; {}",
        valid_samples(*.samples)
    )]
    SampleOutOfRange {
        /// The dataset.
        path: PathBuf,
        /// The split.
        split: &'static str,
        /// The sample asked for.
        sample: usize,
        /// How many samples the split has.
        samples: usize,
    },
    /// A region that leaves the sample.
    #[error(
        "{path}: region {region} (C, D, H, W; half-open) was asked for; samples have shape \
         {shape:?}, so valid regions lie within it with start <= end"
    )]
    RegionOutOfRange {
        /// The dataset.
        path: PathBuf,
        /// The region asked for.
        region: String,
        /// The shape of every sample.
        shape: [usize; 4],
    },
    /// Stored bytes that cannot be read or decoded.
    #[error(
        "{path}: {} cannot be read: {reason}; the file is truncated or damaged, restore it \
         from a copy or make the dataset again",
        place(.key, *.sample)
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The key, where reading got that far.
        key: Option<String>,
        /// The sample within the file, where reading got that far.
        sample: Option<usize>,
        /// What the HDF5 library found.
        reason: String,
    },
    /// A damaged file of a sample that a conversion can leave out.
    #[error(
        "{_0}{}",
        Help::advice("`--skip-damaged` leaves such samples out, and names them")
    )]
    Skippable(Box<Self>),
    /// A valid file that is not read, or values that were never written to it.
    #[error("{path}: {}{reason}", place_of(.key, *.sample))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key, where reading got that far.
        key: Option<String>,
        /// The sample within the file, where reading got that far.
        sample: Option<usize>,
        /// What it is, and what can be done.
        reason: String,
    },
    /// A file whose decoding takes more memory than it may.
    #[error(
        "{path}: {} takes {} to decode, and the budget of decoding is {}{}{}",
        place(.key, *.sample),
        .shortage.asked,
        .shortage.limit,
        in_use(.shortage),
        Help::advice(format_args!(
            "where the file is what it should be, `--decode-memory {0}`, or `decode_memory = \"{0}\"` in `[data]` of a \
             run file; else leave the file out",
            .shortage.enough()
        ))
    )]
    DecodeMemory {
        /// The file.
        path: PathBuf,
        /// The key, where reading got that far.
        key: Option<String>,
        /// The sample within the file, where reading got that far.
        sample: Option<usize>,
        /// What it takes, and what there is.
        shortage: Shortage,
    },
    /// A class index outside the classes of the dataset or the model.
    #[error(transparent)]
    NoClass(Box<NoClass>),
    /// A stored value that a network cannot be trained on.
    #[error(
        "{path}: key `{key}`, sample {sample} of split {split}{}, {found}{}",
        beside(.name),
        Help::possible(expected).advise("mend the sample, leave it out, or choose another transform")
    )]
    Untrainable {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The split.
        split: &'static str,
        /// The sample within the split.
        sample: usize,
        /// Its name, where the index gives it.
        name: Option<Box<str>>,
        /// Where in the sample the value is, and what is wrong with it.
        found: Box<str>,
        /// What would be valid.
        expected: Box<str>,
    },
    /// A sample that the rank that keeps it cannot give.
    #[error("rank {owner} keeps the sample in memory and cannot give it: {reason}")]
    Store {
        /// The owner.
        owner: Rank,
        /// Its error.
        reason: String,
    },
    /// Samples for which there is no memory.
    #[error(
        "no memory for {bytes} of samples; use more ranks, so that each keeps less, a smaller `store_memory` with \
         `spill`, which keeps the rest on a local disk, or `store = \"none\"`"
    )]
    StoreMemory {
        /// What was to be allocated.
        bytes: Bytes,
    },
    /// The file of samples that are not kept in memory.
    #[error(
        "{path}: the file for {bytes} of samples beside those in memory cannot be {action}: {reason}{}",
        Help::possible(
            "another folder as `spill`, a larger `store_memory`, or more ranks, so that each keeps less"
        )
    )]
    Spill {
        /// The file.
        path: PathBuf,
        /// All that it is for.
        bytes: Bytes,
        /// `made`, `written` or `read`.
        action: &'static str,
        /// The error of the system.
        reason: String,
    },
    /// A stored value that cannot become part of a dataset.
    #[error("{path}: key `{key}`, {found}; mend or remove the sample")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Where the value is, and what is wrong with it.
        found: String,
    },
    /// A size of images for samples that are none.
    #[error(
        "`--size {height}x{width}` scales and crops images, and {path} is none{}",
        Help::none().nearest(format_args!(
            "sources that end in .png, .jpg or .jpeg, or no `--size`: samples then keep their extents, here {extents}, \
             of which `[augmentation] crop` of a run file takes parts"
        ))
    )]
    NoImages {
        /// The first sample.
        path: PathBuf,
        /// Requested.
        height: usize,
        /// Requested.
        width: usize,
        /// Extents of a sample.
        extents: String,
    },
    /// A sample of another shape than the first.
    #[error("{path} is {got}, the first sample {expected}; {remedy}")]
    MixedShapes {
        /// The file.
        path: PathBuf,
        /// Its shape.
        got: String,
        /// The shape of the first.
        expected: String,
        /// What can be done.
        remedy: &'static str,
    },
    /// Labels on other voxels than their image, or a channel on others than the first of its case.
    #[error(
        "{file} does not lie on the voxels of {of} {image}: {found}; resample it to these, or, where only its header is \
         wrong, give it that of the other file (sform, qform, pixdim)"
    )]
    OtherGrid {
        /// The file of the labels, or of the channel.
        file: PathBuf,
        /// What the other file is to it.
        of: &'static str,
        /// The file of the image.
        image: PathBuf,
        /// What differs.
        found: String,
    },
    /// Samples without targets or classes.
    #[error(
        "{path}: no answers were found (its keys are {}); name the key of numbers (`--target-key`) or of classes \
         (`--label-key`), a table or file of them (`--targets`), or sort the files in folders, one per class; \
         `--no-targets` converts samples alone, for `partita infer`",
        list(.found)
    )]
    NoAnswers {
        /// The file of the first sample.
        path: PathBuf,
        /// Its keys.
        found: Vec<String>,
    },
    /// A source without samples.
    #[error(
        "{path} holds no samples: {found}; files that end in {valid}, or Zarr stores, are needed"
    )]
    NoSamples {
        /// The source.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// Ends of the names of files that are read.
        valid: String,
    },
    /// A description of a task that cannot be followed.
    #[error("{path}: {found}; {valid}")]
    BadTask {
        /// The `dataset.json`, or a file of a case.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What would be valid.
        valid: String,
    },
    /// A dataset that holds samples alone.
    #[error(
        "the dataset {path} has no answers, and holds samples alone; `partita infer` predicts on them, and a training or \
         evaluation needs a dataset that was converted with its targets or labels"
    )]
    SamplesAlone {
        /// The dataset.
        path: PathBuf,
    },
    /// A split none of whose labels counts.
    #[error(
        "{path}: no label of split {split} counts: all are {ignored}, which the loss ignores, so that nothing can be \
         learned; convert the data without `--ignore`, or with `--map {ignored}=N` where {ignored} is a class"
    )]
    AllIgnored {
        /// The dataset.
        path: PathBuf,
        /// The split.
        split: &'static str,
        /// The class index of positions that do not count.
        ignored: i64,
    },
    /// A class that a dataset leaves out, and a loss counts.
    #[error(
        "positions of class {class} do not count in {path} (`ignore` of its index), and the loss of model `{model}` counts \
         them; write `ignore={class}` in the line of the loss; a model needs no channel for that class"
    )]
    LeftOut {
        /// The dataset.
        path: PathBuf,
        /// The class.
        class: i64,
        /// The model.
        model: String,
    },
    /// An invalid table of targets.
    #[error(
        "{path}, line {line}: {found}; a table has a line of column names, then a line per sample: the name of its \
         file, then numbers or a class, separated by commas"
    )]
    BadTable {
        /// The table.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What was found.
        found: String,
    },
    /// A channel whose values do not differ cannot be normalized.
    #[error(
        "{path}: channel {channel} of the training split is {value} everywhere, or nearly so, before \
         `{step}`, which divides by how much it varies; leave the channel out of the data, or the step out of \
         `transform`"
    )]
    Constant {
        /// The dataset.
        path: PathBuf,
        /// The channel.
        channel: usize,
        /// Its value.
        value: f64,
        /// The step that needs values that differ.
        step: &'static str,
    },
    /// A crop or an augmentation that samples do not allow.
    #[error("{path}: `{key}` is {got}; {reason}{}", Help::possible(expected))]
    Augmentation {
        /// The dataset.
        path: PathBuf,
        /// The key of the run file.
        key: &'static str,
        /// Its value.
        got: String,
        /// Why it is not possible.
        reason: String,
        /// What would be possible.
        expected: String,
    },
    /// Volumes of different extents, and no crops.
    #[error(
        "volumes of {} have different extents, from {smallest:?} to {largest:?} (D, H, W), so that samples have to be \
         crops of them; valid is `crop = {crop:?}` in `[augmentation]` of the run file",
        path.display()
    )]
    NoCrop {
        /// The dataset.
        path: PathBuf,
        /// The smallest extents along each dim.
        smallest: [usize; 3],
        /// The largest.
        largest: [usize; 3],
        /// Extents of a crop.
        crop: [usize; 3],
    },
    /// Predictions of different extents, and a format of one array.
    #[error(
        "{} would hold one array, and the predictions have different extents, from {smallest:?} to {largest:?} \
         (D, H, W){}",
        path.display(),
        Help::possible("files that end in .nii.gz or .nii, one for each sample, and .h5, with an array for each")
            .code(path.with_extension("h5").display())
    )]
    OneArray {
        /// The file of predictions.
        path: PathBuf,
        /// The smallest extents along each dim.
        smallest: [usize; 3],
        /// The largest.
        largest: [usize; 3],
    },
    /// A dataset folder that was not completely written, or lacks files.
    #[error("the dataset {path} is incomplete: {found}; make it again or restore what is missing")]
    Incomplete {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        found: String,
    },
    /// An invalid index file.
    #[error("the index {path} is not valid: {found}{}", Help::possible(expected))]
    BadIndex {
        /// The index file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What would be valid.
        expected: String,
    },
    /// The path of a new dataset exists.
    #[error("{path} cannot be written: {found}; name a path that does not exist yet")]
    Occupied {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// An invalid value given to a writer.
    #[error("{what}: got {got}{}", Help::possible(expected))]
    BadValue {
        /// What the value is for.
        what: &'static str,
        /// The value given.
        got: String,
        /// What would be valid.
        expected: String,
    },
    /// The system or the HDF5 library could not write.
    #[error("{path} cannot be written: {reason}; a writable folder with enough room is needed")]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// The reason given.
        reason: String,
    },
    /// Too little room for the outputs of a network.
    #[error(
        "{outputs} of outputs are written to {path} first, and {free} are free there; free some, or name a file on \
         another file system"
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Bytes of the outputs.
        outputs: Bytes,
        /// Bytes that are free.
        free: Bytes,
    },
    /// A tensor of a weight file that differs from its checksum.
    #[error(
        "the weight file {path} is damaged: bytes {} to {} of tensor `{tensor}` differ from their checksum; take another \
         copy of it, or a checkpoint of its training. If another program changed its tensors, have it leave out the \
         metadata `partita.crc32c`",
        bytes.start, bytes.end
    )]
    DamagedTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Of the tensor, the block whose checksum differs.
        bytes: Range<usize>,
    },
    /// An invalid weight file.
    #[error(
        "the weight file {path} cannot be read: {reason}; a safetensors file of F32 or F64 \
         tensors is needed"
    )]
    BadWeights {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
}

/// A number in the place of a class that is none of the dataset's or of the model's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path}: key `{key}`, sample {sample} of split {split}{}, {position}: {class} is not a class index{}",
    beside(.name),
    Help::possible(format_args!("the whole numbers 0 to {last}, the classes of the {owner}"))
        .nearest(nearest)
        .advise(format_args!("mend or leave out the sample, or {remedy}"))
)]
pub struct NoClass {
    /// The file.
    pub path: PathBuf,
    /// The key.
    pub key: String,
    /// The split.
    pub split: &'static str,
    /// The sample within the split.
    pub sample: usize,
    /// Its name, where the index gives it.
    pub name: Option<Box<str>>,
    /// Where in the sample it is.
    pub position: String,
    /// What is stored.
    pub class: String,
    /// The largest class.
    pub last: usize,
    /// The class nearest to what is stored.
    pub nearest: usize,
    /// `dataset` or `model`.
    pub owner: &'static str,
    /// What would make it a class.
    pub remedy: String,
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_string(),
        names => names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// What others have of the budget.
fn in_use(shortage: &Shortage) -> String {
    match shortage.claimed {
        Bytes(0) => String::new(),
        claimed => format!(" ({claimed} of it in use)"),
    }
}

/// How an error names a sample beside its number: nothing without a name.
fn beside(name: &Option<Box<str>>) -> String {
    name.as_ref()
        .map_or_else(String::new, |name| format!(" (`{name}`)"))
}

fn valid_samples(samples: usize) -> String {
    match samples {
        0 => "that split is empty".to_string(),
        samples => format!("valid samples are 0 to {}", samples - 1),
    }
}

/// The place in front of what is found there.
fn place_of(key: &Option<String>, sample: Option<usize>) -> String {
    match key {
        Some(_) => format!("{}: ", place(key, sample)),
        None => String::new(),
    }
}

fn place(key: &Option<String>, sample: Option<usize>) -> String {
    match (key, sample) {
        (None, _) => "its structure".to_string(),
        (Some(key), None) => format!("key `{key}`"),
        (Some(key), Some(sample)) => format!("key `{key}`, sample {sample} of the file"),
    }
}
