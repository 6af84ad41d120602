//! Finding the files of samples, and what a sample is.

use std::path::{Component, Path, PathBuf};

use crate::array::{SourceArray, SourceFile};
use crate::axes::DimOrder;
use crate::convert::ConvertSpec;
use crate::error::DataError;
use crate::files::FileEntry;
use crate::formats;
use crate::keys::Keys;
use crate::samples::{DType, VolumeShape};
use crate::split::Split;

/// Ends of file names that are looked at in folders.
const ENDS: [&str; 14] = [
    ".h5",
    ".hdf5",
    ".he5",
    ".hdf",
    ".npy",
    ".npz",
    ".nii",
    ".nii.gz",
    ".png",
    ".jpg",
    ".jpeg",
    ".tfrecord",
    ".tfrecords",
    ".tfrecord.gz",
];
/// Folders inside of folders that are looked into.
const DEPTH_MAX: usize = 16;

/// All samples, and what they have in common.
pub(super) struct Found {
    pub(super) samples: Vec<Sample>,
    pub(super) shape: VolumeShape,
    pub(super) dtype: DType,
    pub(super) keys: Keys,
    pub(super) are_images: bool,
}

/// A sample of a file.
pub(super) struct Sample {
    pub(super) entry: FileEntry,
    /// Its number in a file of several.
    pub(super) place: Option<usize>,
    /// The split that a folder is named after.
    pub(super) split: Option<Split>,
    /// Number of the subject; samples of one are in one split.
    pub(super) subject: usize,
    /// The path below the source.
    pub(super) below: PathBuf,
}

impl Found {
    /// The files, each once, in order.
    pub(super) fn entries(&self) -> Vec<FileEntry> {
        let firsts = self
            .samples
            .iter()
            .filter(|sample| sample.place.is_none_or(|place| place == 0));
        firsts.map(|sample| sample.entry.clone()).collect()
    }
}

/// A file, and its path below the source it was found in.
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    pub(super) below: PathBuf,
}

pub(super) fn find(asked: &ConvertSpec) -> Result<Found, DataError> {
    let pairs = pair(files_of(asked)?)?;
    let Some((first, _)) = pairs.first() else {
        return Err(DataError::Missing {
            path: asked.sources[0].clone(),
            valid: format!(
                "no samples were found there: files that end in {}, or Zarr stores, are needed",
                ENDS.join(", ")
            ),
        });
    };
    let sample = SampleKind::of(&first.path, asked)?;
    let mut samples = Vec::new();
    let mut subjects = std::collections::BTreeMap::new();
    for (file, labels) in &pairs {
        let count = if sample.is_stacked {
            Some(sample.count(&file.path)?)
        } else {
            None
        };
        for place in 0..count.unwrap_or(1) {
            // What is stacked in one file is told apart by its place.
            let name = subject(&file.below);
            let name = if count.unwrap_or(1) > 1 {
                format!("{name}/{place}")
            } else {
                name
            };
            let next = subjects.len();
            samples.push(Sample {
                entry: FileEntry {
                    volumes: file.path.clone(),
                    targets: labels.clone(),
                    stacked: count,
                },
                place: count.map(|_| place),
                split: split_of(&file.below),
                subject: *subjects.entry(name).or_insert(next),
                below: file.below.clone(),
            });
        }
    }
    let shape = match asked.size {
        Some([height, width]) if sample.are_images => [sample.shape[0], 1, height, width],
        Some([height, width]) => {
            let [_, d, h, w] = sample.shape;
            return Err(DataError::NoImages {
                path: first.path.clone(),
                height,
                width,
                extents: format!("{d}x{h}x{w}"),
            });
        }
        None => sample.shape,
    };
    Ok(Found {
        samples,
        shape,
        dtype: asked.dtype.unwrap_or(sample.dtype),
        keys: sample.keys,
        are_images: sample.are_images,
    })
}

/// All files of the sources.
fn files_of(asked: &ConvertSpec) -> Result<Vec<Candidate>, DataError> {
    let mut files = Vec::new();
    for source in &asked.sources {
        if !source.exists() {
            return Err(DataError::Missing {
                path: source.clone(),
                valid: "a file or folder with samples is needed".to_owned(),
            });
        }
        if source.is_dir() && !formats::is_store(source) {
            walk(source, Path::new(""), 0, &mut files)?;
        } else {
            let below = source.file_name().map(PathBuf::from).unwrap_or_default();
            files.push(Candidate {
                path: source.clone(),
                below,
            });
        }
    }
    Ok(files)
}

/// Files of known names, in the order of their names.
fn walk(
    folder: &Path,
    below: &Path,
    depth: usize,
    files: &mut Vec<Candidate>,
) -> Result<(), DataError> {
    let unopenable = |error: std::io::Error| DataError::Unopenable {
        path: folder.to_path_buf(),
        reason: error.to_string(),
    };
    let entries = std::fs::read_dir(folder).map_err(unopenable)?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(unopenable)?.path());
    }
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        // Hidden files are of systems and tools, such as `._scan.nii.gz`.
        if name.starts_with('.') {
            continue;
        }
        let under = below.join(&name);
        if path.is_dir() && !formats::is_store(&path) {
            if depth < DEPTH_MAX {
                walk(&path, &under, depth + 1, files)?;
            }
        } else if path.is_dir() || ENDS.iter().any(|end| name.to_lowercase().ends_with(end)) {
            files.push(Candidate { path, below: under });
        }
    }
    Ok(())
}

/// The folder of labels that stands beside a folder of images.
fn labels_of(folder: &str) -> Option<&'static [&'static str]> {
    Some(match folder {
        "imagesTr" => &["labelsTr"],
        "imagesTs" => &["labelsTs"],
        "images" => &["labels", "masks"],
        _ => return None,
    })
}

/// Where the class indices of an image would lie.
fn expected_labels(image: &Path) -> PathBuf {
    let parent = image.parent().unwrap_or(image);
    let name = parent.file_name().and_then(|name| name.to_str());
    let beside = name.and_then(labels_of).and_then(|names| names.first());
    let folder = parent.with_file_name(beside.copied().unwrap_or("labels"));
    let names = label_names(image);
    names
        .last()
        .map_or(folder.clone(), |name| folder.join(name))
}

/// Finds for each file of a folder of images its file of class indices. Images for a test without labels are
/// left out.
fn pair(files: Vec<Candidate>) -> Result<Vec<(Candidate, Option<PathBuf>)>, DataError> {
    let folder = |file: &Candidate| {
        let parent = file.path.parent()?;
        Some((
            parent.to_path_buf(),
            parent.file_name()?.to_str()?.to_owned(),
        ))
    };
    let all: std::collections::BTreeSet<PathBuf> =
        files.iter().map(|file| file.path.clone()).collect();
    let is_labels = |name: &str| ["labelsTr", "labelsTs", "labels", "masks"].contains(&name);
    let mut pairs = Vec::new();
    let mut has_pairs = false;
    for file in files {
        let Some((parent, name)) = folder(&file) else {
            pairs.push((file, None));
            continue;
        };
        let Some(beside) = labels_of(&name) else {
            pairs.push((file, None));
            continue;
        };
        let labels = beside.iter().find_map(|labels| {
            let names = label_names(&file.path);
            let folder = parent.with_file_name(labels);
            names
                .into_iter()
                .map(|name| folder.join(name))
                .find(|path| all.contains(path))
        });
        if labels.is_none() && name == "imagesTs" {
            continue;
        }
        has_pairs |= labels.is_some();
        pairs.push((file, labels));
    }
    if !has_pairs {
        return Ok(pairs);
    }
    pairs.retain(|(file, _)| folder(file).is_none_or(|(_, name)| !is_labels(&name)));
    match pairs.iter().find(|(_, labels)| labels.is_none()) {
        None => Ok(pairs),
        Some((file, _)) => Err(DataError::Missing {
            path: expected_labels(&file.path),
            valid: format!(
                "a file with the class indices of {} is needed there",
                file.path.display()
            ),
        }),
    }
}

/// Names that the labels of a volume may have: its own, or that without the number of the modality.
fn label_names(path: &Path) -> Vec<String> {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let without = name.replacen("_0000.", ".", 1);
    vec![name, without]
}

/// Who or what a file shows. Crops of one universe of CosmoFlow end in `_NNN.tfrecord`.
fn subject(below: &Path) -> String {
    let name = below.to_string_lossy().into_owned();
    match name.split_once(".tfrecord") {
        Some((stem, _)) => stem
            .rsplit_once('_')
            .map_or(stem, |(universe, _)| universe)
            .to_owned(),
        None => name,
    }
}

/// The split that one of the folders is named after.
fn split_of(below: &Path) -> Option<Split> {
    let folders = below.parent()?.components();
    folders
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .find_map(|name| match name.to_lowercase().as_str() {
            "train" | "training" => Some(Split::Train),
            "val" | "valid" | "validation" | "dev" => Some(Split::Validation),
            "test" | "testing" => Some(Split::Test),
            _ => None,
        })
}

/// What the first file says of all.
struct SampleKind {
    keys: Keys,
    shape: VolumeShape,
    dtype: DType,
    are_images: bool,
    is_stacked: bool,
}

impl SampleKind {
    fn of(path: &Path, asked: &ConvertSpec) -> Result<Self, DataError> {
        let name = path.to_string_lossy().to_lowercase();
        let are_images = [".png", ".jpg", ".jpeg"]
            .iter()
            .any(|end| name.ends_with(end));
        let is_record = name.contains(".tfrecord");
        let mut keys = asked.keys.clone();
        let usual = Keys::default();
        if is_record && keys.volume == usual.volume {
            keys.volume = "x".to_owned();
        }
        if is_record && keys.target == usual.target {
            keys.target = "y".to_owned();
        }
        let file = SourceFile::open(path)?;
        let array = file.array(&keys.volume)?;
        let rank = array.shape.len();
        let usual = match rank {
            3 if are_images => "HWC",
            5 if is_record => "NDHWC",
            1 => "W",
            2 => "HW",
            3 => "DHW",
            4 => "CDHW",
            _ => "NCDHW",
        };
        let usual: DimOrder = usual.parse().unwrap_or_default();
        let order = keys.order.get_or_insert(usual).clone();
        let (samples, mut shape) = read_shape(&array, &order)?;
        if are_images {
            // Transparency is left out.
            shape[0] = if shape[0] > 2 { 3 } else { 1 };
        }
        Ok(Self {
            dtype: array.delivered()?,
            keys,
            shape,
            are_images,
            is_stacked: samples.is_some(),
        })
    }

    /// Samples of a file.
    fn count(&self, path: &Path) -> Result<usize, DataError> {
        let array = SourceFile::open(path)?.array(&self.keys.volume)?;
        let order = self.keys.order.clone().unwrap_or_default();
        Ok(read_shape(&array, &order)?.0.unwrap_or(1))
    }
}

fn read_shape(
    array: &SourceArray,
    order: &DimOrder,
) -> Result<(Option<usize>, VolumeShape), DataError> {
    let read = order.read_shape(&array.shape);
    let (samples, shape) = read
        .ok_or_else(|| array.wrong_rank(&format!("({}), or another `--layout`", order.dims())))?;
    if shape.contains(&0) || samples == Some(0) {
        let valid = "at least one sample, and extents of at least 1";
        return Err(array.wrong_shape(valid.to_owned()));
    }
    Ok((samples, shape))
}
