//! Cases: images, of several modalities perhaps, with the labels that lie in a folder beside theirs.
//!
//! Folders are named as in the Medical Segmentation Decathlon and in nnU-Net (`imagesTr`, `labelsTr`, `imagesTs`,
//! `labelsTs`), or `images` with `labels` or `masks`. In nnU-Net an image of channel 1 of a case is `CASE_0001.END`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use partita_formats::DataError;

use crate::convert::ConvertSpec;
use crate::convert::source_files::{ENDS, FoundFile};
use crate::convert::task::Task;
use crate::split::Split;

/// Digits of the number of a channel.
const DIGITS: usize = 4;

/// What a sample is made of.
pub(super) struct Case {
    /// The image, or that of channel 0; `below` is the path without the number of a channel.
    pub(super) image: FoundFile,
    /// Images of further channels, in order.
    pub(super) more: Vec<PathBuf>,
    pub(super) labels: Option<PathBuf>,
    /// Whether the case is for a test, or else may be drawn to any split.
    pub(super) split: Option<Split>,
}

/// All cases of a conversion.
#[derive(Default)]
pub(super) struct Cases {
    pub(super) all: Vec<Case>,
    pub(super) task: Option<Task>,
    /// Lines for the user.
    pub(super) notes: Vec<String>,
    /// Whether samples alone are converted, without labels.
    pub(super) are_alone: bool,
}

/// Images by the name of their case and the end of their names, then by the number of their channel.
type Numbered = BTreeMap<(String, String), BTreeMap<usize, FoundFile>>;

/// A folder of images, and what was found for it.
struct Folder<'f> {
    path: &'f Path,
    name: &'f str,
    task: Option<Task>,
    files: Vec<FoundFile>,
}

impl Cases {
    /// Errors: images without labels, cases without all channels, tasks that differ.
    pub(super) fn of(files: Vec<FoundFile>, asked: &ConvertSpec) -> Result<Self, DataError> {
        let mut cases = Self {
            are_alone: asked.no_targets,
            ..Self::default()
        };
        let order: BTreeMap<PathBuf, usize> = (files.iter().map(|file| file.path.clone()))
            .zip(0..)
            .collect();
        let mut folders: BTreeMap<PathBuf, Vec<FoundFile>> = BTreeMap::new();
        for file in files {
            let folder = file.path.parent().map(Path::to_path_buf);
            folders
                .entry(folder.unwrap_or_default())
                .or_default()
                .push(file);
        }
        let all_folders: BTreeSet<PathBuf> = folders.keys().cloned().collect();
        let mut unlabeled = Vec::new();
        let mut label_files = Vec::new();
        for (path, files) in folders {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if are_labels(&path, name, &all_folders) {
                label_files.extend(files.into_iter().map(|file| file.path));
                continue;
            }
            let is_images = label_folders(name).is_some();
            let task = if is_images || asked.no_targets {
                Task::of_images(&path)?
            } else {
                None
            };
            let mut folder = Folder {
                path: &path,
                name,
                task,
                files,
            };
            let (labeled, bare) = folder.cases(is_images)?;
            cases.join_task(folder.task)?;
            cases.all.extend(labeled);
            unlabeled.push((path.clone(), name == "imagesTs", bare));
        }
        cases.place(unlabeled, asked)?;
        cases
            .all
            .sort_by_key(|case| order.get(&case.image.path).copied());
        cases.note_unused(label_files, asked);
        Ok(cases)
    }

    /// Tells labels that no image has.
    fn note_unused(&mut self, mut label_files: Vec<PathBuf>, asked: &ConvertSpec) {
        let used: BTreeSet<&Path> = (self.all.iter())
            .filter_map(|case| case.labels.as_deref())
            .collect();
        label_files.retain(|path| !used.contains(path.as_path()));
        if let Some(first) = label_files
            .first()
            .filter(|_| asked.targets.is_none() && !self.are_alone)
        {
            self.notes.push(format!(
                "{} files of labels belong to no image and are left out, first {}",
                label_files.len(),
                first.display()
            ));
        }
    }

    /// One task says what labels and channels mean.
    fn join_task(&mut self, task: Option<Task>) -> Result<(), DataError> {
        match (&self.task, task) {
            (Some(first), Some(other)) if !first.agrees(&other) => Err(other.bad(
                format!(
                    "its labels or channels are others than those of {}",
                    first.path.display()
                ),
                "convert each task by itself".to_owned(),
            )),
            (None, task) => {
                self.task = task;
                Ok(())
            }
            (Some(_), _) => Ok(()),
        }
    }

    /// Decides about cases without labels: those of a test are left out beside others, or converted alone.
    fn place(
        &mut self,
        unlabeled: Vec<(PathBuf, bool, Vec<Case>)>,
        asked: &ConvertSpec,
    ) -> Result<(), DataError> {
        let has_targets = asked.targets.is_some();
        let has_labels = !self.all.is_empty();
        if self.are_alone {
            self.all.iter_mut().for_each(|case| case.labels = None);
        }
        let has_others = has_labels
            || unlabeled
                .iter()
                .any(|(_, is_test, bare)| !is_test && !bare.is_empty());
        for (folder, is_test, bare) in unlabeled {
            let Some(first) = bare.first() else {
                continue;
            };
            if self.are_alone {
                self.all.extend(bare);
            } else if is_test && has_others {
                self.notes.push(format!(
                    "{}: {} cases without labels are left out; `partita data convert {} --out NEW{}` makes a dataset of them \
                     for `partita infer`",
                    folder.display(),
                    bare.len(),
                    folder.display(),
                    asked.sample_options()
                ));
            } else if is_test {
                self.notes.push(format!(
                    "{}: there are no labels, so that the dataset holds samples alone, for `partita infer`",
                    folder.display()
                ));
                self.are_alone = true;
                self.all.extend(bare);
            } else if !has_targets && (has_labels || lacks_labels(&folder)) {
                return Err(DataError::Missing {
                    path: expected_labels(first),
                    valid: format!(
                        "a file with the class indices of {} is needed there{}",
                        first.image.path.display(),
                        other_name(first)
                    ),
                });
            } else {
                self.all.extend(bare);
            }
        }
        Ok(())
    }
}

impl Folder<'_> {
    /// The cases with labels and those without.
    fn cases(&mut self, is_images: bool) -> Result<(Vec<Case>, Vec<Case>), DataError> {
        let may_be_numbered = is_images || self.task.is_some();
        let mut plain = Vec::new();
        let mut numbered = Numbered::new();
        for file in std::mem::take(&mut self.files) {
            let name = name_of(&file.path);
            match channel_of(&name) {
                Some((case, channel, end)) if may_be_numbered && self.labels(&name).is_none() => {
                    let channels = numbered.entry((case, end)).or_default();
                    channels.insert(channel, file);
                }
                Some(_) | None => plain.push(file),
            }
        }
        if !self.are_channels(&numbered)? {
            let files = std::mem::take(&mut numbered).into_values();
            plain.extend(files.flat_map(BTreeMap::into_values));
        }
        let split = (self.name == "imagesTs").then_some(Split::Test);
        let plain = plain.into_iter().map(|image| Case {
            labels: self.labels(&name_of(&image.path)),
            image,
            more: Vec::new(),
            split,
        });
        let mut all: Vec<Case> = plain.collect();
        let named = self.task.as_ref().map_or(0, |task| task.channels.len());
        let most = numbered
            .values()
            .filter_map(|channels| channels.keys().next_back())
            .max();
        // Images in color hold all channels in one file.
        let are_single = most == Some(&0);
        let count = if named == 0 || are_single {
            most.map_or(1, |most| most + 1)
        } else {
            named
        };
        for ((case, end), channels) in numbered {
            all.push(self.joined(&case, &end, channels, count, split)?);
        }
        Ok(all.into_iter().partition(|case| case.labels.is_some()))
    }

    /// The case of images of this many channels.
    fn joined(
        &self,
        case: &str,
        end: &str,
        mut channels: BTreeMap<usize, FoundFile>,
        count: usize,
        split: Option<Split>,
    ) -> Result<Case, DataError> {
        let names = self.task.as_ref().map_or(&[][..], |task| &task.channels);
        let name = |channel: usize| {
            let name = names.get(channel);
            name.map_or_else(
                || format!("channel {channel}"),
                |name| format!("channel {channel} (`{name}`)"),
            )
        };
        if let Some((&more, file)) = channels.range(count..).next() {
            return Err(DataError::BadTask {
                path: file.path.clone(),
                found: format!("this is channel {more} of case `{case}`"),
                valid: format!(
                    "the task has {count}, from {} to {}",
                    name(0),
                    name(count - 1)
                ),
            });
        }
        if let Some(gone) = (0..count).find(|channel| !channels.contains_key(channel)) {
            let file = format!("{case}_{gone:0DIGITS$}{end}");
            let path = self.path.join(&file);
            if let Some(labels) = self.labels(&file).filter(|_| path.exists()) {
                return Err(DataError::BadTask {
                    path: labels,
                    found: format!("it is named as {} of case `{case}` is", name(gone)),
                    valid: format!("labels are of all channels of a case: name it `{case}{end}`"),
                });
            }
            return Err(DataError::Missing {
                path,
                valid: format!(
                    "{} of case `{case}` is needed there, as other cases or the task have {count}",
                    name(gone)
                ),
            });
        }
        let labels = self.labels(&format!("{case}{end}"));
        let mut images: Vec<FoundFile> = (0..count)
            .filter_map(|channel| channels.remove(&channel))
            .collect();
        let first = images.remove(0);
        Ok(Case {
            image: FoundFile {
                below: first.below.with_file_name(format!("{case}{end}")),
                path: first.path,
            },
            more: images.into_iter().map(|image| image.path).collect(),
            labels,
            split,
        })
    }

    /// Whether numbers at the end of names are those of channels, or else part of the name of a case. Labels say it,
    /// or the number of channels of the task.
    fn are_channels(&self, numbered: &Numbered) -> Result<bool, DataError> {
        let Some(((case, end), first)) = numbered.iter().next() else {
            return Ok(false);
        };
        if numbered
            .keys()
            .any(|(case, end)| self.labels(&format!("{case}{end}")).is_some())
        {
            return Ok(true);
        }
        if self.task.is_none() && self.name == "images" {
            return Ok(false);
        }
        let most = numbered
            .values()
            .filter_map(|channels| channels.keys().next_back())
            .max();
        if let Some(task) = self.task.as_ref().filter(|task| !task.channels.is_empty()) {
            return Ok(most.is_some_and(|&most| most < task.channels.len()));
        }
        if numbered.len() > 1 || first.len() == 1 {
            return Ok(numbered.values().all(|channels| channels.contains_key(&0)));
        }
        Err(DataError::BadTask {
            path: self.path.to_path_buf(),
            found: format!(
                "`{case}_0000{end}` and {} others may be channels of one case, or a case each",
                first.len() - 1
            ),
            valid: "a `dataset.json` beside the folder says it, with {\"channel_names\": {\"0\": \"NAME\", ...}} for each \
                    channel of a case"
                .to_owned(),
        })
    }

    /// The file of labels of an image of this name: with the same end, or another one, as masks of photographs have.
    fn labels(&self, name: &str) -> Option<PathBuf> {
        let folders = label_folders(self.name)?.iter();
        let (stem, _) = split_end(name)?;
        let names = || {
            [name.to_owned()]
                .into_iter()
                .chain(ENDS.map(|end| format!("{stem}{end}")))
        };
        let mut paths = folders.flat_map(|labels| {
            let labels = self.path.with_file_name(labels);
            names().map(move |name| labels.join(name))
        });
        paths.find(|path| path.exists())
    }
}

/// The folders of labels that may stand beside a folder of images.
fn label_folders(images: &str) -> Option<&'static [&'static str]> {
    Some(match images {
        "imagesTr" => &["labelsTr"],
        "imagesTs" => &["labelsTs"],
        "images" => &["labels", "masks"],
        _ => return None,
    })
}

/// Whether an image is one of a training, beside which those of a test may lie.
pub(super) fn is_for_training(image: &Path) -> bool {
    image
        .parent()
        .is_some_and(|folder| folder.ends_with("imagesTr"))
}

/// Whether a folder of this name has the labels of one of the folders beside it.
fn are_labels(folder: &Path, name: &str, all: &BTreeSet<PathBuf>) -> bool {
    let images = ["imagesTr", "imagesTs", "images"].into_iter();
    let mut of_images =
        images.filter(|images| label_folders(images).is_some_and(|names| names.contains(&name)));
    of_images.any(|images| all.contains(&folder.with_file_name(images)))
}

/// Whether labels lie beside a folder of images.
fn lacks_labels(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    let labels = name.and_then(label_folders).unwrap_or_default();
    let has_files = |labels: &&str| {
        let entries = folder.with_file_name(labels).read_dir();
        let mut names = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| name_of(&entry.path()));
        names.any(|name| ENDS.iter().any(|end| name.to_lowercase().ends_with(end)))
    };
    labels.iter().any(has_files)
}

/// Where the labels of a case would lie.
fn expected_labels(case: &Case) -> PathBuf {
    let parent = case.image.path.parent().unwrap_or(&case.image.path);
    let name = parent.file_name().and_then(|name| name.to_str());
    let beside = name.and_then(label_folders).and_then(|names| names.first());
    let folder = beside.map(|labels| parent.with_file_name(labels));
    let folder = folder.unwrap_or_else(|| parent.with_file_name("labels"));
    case.image
        .below
        .file_name()
        .map_or(folder.clone(), |name| folder.join(name))
}

/// What is said of an image without labels that may be a further channel of a case whose labels are named as the first.
fn other_name(case: &Case) -> String {
    let numbered = channel_of(&name_of(&case.image.path));
    let Some((name, channel, end)) = numbered.filter(|&(_, channel, _)| channel > 0) else {
        return String::new();
    };
    let labels = expected_labels(case).with_file_name(format!("{name}_{:0DIGITS$}{end}", 0));
    if !labels.exists() {
        return String::new();
    }
    format!(
        "; if it is channel {channel} of case `{name}`, name the labels `{name}{end}`, which are {} now",
        labels.display()
    )
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// A name without its end, and the end.
fn split_end(name: &str) -> Option<(&str, &str)> {
    let lower = name.to_lowercase();
    let ends = ENDS.iter().filter(|end| lower.ends_with(**end));
    let end = ends.map(|end| end.len()).max()?;
    name.split_at_checked(name.len() - end)
}

/// Case, channel and end of the name of an image such as `case_0001.nii.gz`.
fn channel_of(name: &str) -> Option<(String, usize, String)> {
    let (stem, end) = split_end(name)?;
    let (case, channel) = stem.rsplit_once('_')?;
    let is_number = channel.len() == DIGITS && channel.bytes().all(|byte| byte.is_ascii_digit());
    let channel = channel
        .parse()
        .ok()
        .filter(|_| is_number && !case.is_empty())?;
    Some((case.to_owned(), channel, end.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_before_the_end_number_a_channel() {
        let found =
            |name| channel_of(name).map(|(case, channel, end)| format!("{case}|{channel}|{end}"));
        assert_eq!(found("c_1_0002.nii.gz").as_deref(), Some("c_1|2|.nii.gz"));
        assert_eq!(found("c0_0001.nii").as_deref(), Some("c0|1|.nii"));
        for name in [
            "c_001.nii.gz",
            "c0001.nii",
            "_0000.nii",
            "c_00a1.png",
            "c_0000.txt",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
