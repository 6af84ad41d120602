//! `dataset.json` of a task folder in the form of the Medical Segmentation Decathlon or of nnU-Net.
//!
//! Source: nnU-Net, `documentation/dataset_format.md`, `region_based_training.md` and `ignore_label.md`; nnU-Net 1 and
//! the Decathlon name labels by numbers, and channels `modality`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partita_files::RECORD_BYTES_MAX;
use partita_formats::DataError;
use serde_json::Value;

use crate::classes::CLASSES_MAX;
use crate::convert::relabel::Relabel;

/// Name of the file.
const FILE: &str = "dataset.json";
/// Name of the label of positions that do not count.
const IGNORE: &str = "ignore";

/// What a task says of its images and labels.
pub(super) struct Task {
    pub(super) path: PathBuf,
    /// Names of the channels, in order; empty where it names none.
    pub(super) channels: Vec<String>,
    /// Names of labels in order, each with its numbers: several where it is a region.
    labels: Vec<(String, Vec<i16>)>,
    /// The number of each region but the background in a map of integers; later ones overwrite earlier ones.
    region_order: Option<Vec<i16>>,
}

impl Task {
    /// The task that a folder of images belongs to: its file lies beside the folder, or in it.
    ///
    /// Errors: a file that cannot be read, or says something else than such files do.
    pub(super) fn of_images(folder: &Path) -> Result<Option<Self>, DataError> {
        let beside = folder.parent().map(|parent| parent.join(FILE));
        let found = beside.into_iter().chain([folder.join(FILE)]);
        let Some(path) = found.into_iter().find(|path| path.is_file()) else {
            return Ok(None);
        };
        let bytes = partita_files::read(&path, RECORD_BYTES_MAX).map_err(|error| {
            DataError::Unopenable {
                path: path.clone(),
                reason: error.to_string(),
            }
        })?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| DataError::BadTask {
            path: path.clone(),
            found: format!("it is no JSON: {error}"),
            valid: "a file as nnU-Net and the Medical Segmentation Decathlon describe it is needed"
                .to_owned(),
        })?;
        Self::parse(path, &value).map(Some)
    }

    fn parse(path: PathBuf, value: &Value) -> Result<Self, DataError> {
        let bad = |key: &str, found: &Value, valid: &str| DataError::BadTask {
            path: path.clone(),
            found: format!("`{key}` is {found}"),
            valid: valid.to_owned(),
        };
        let mut channels = BTreeMap::new();
        for key in ["channel_names", "modality"] {
            let Some(named) = value.get(key).filter(|_| channels.is_empty()) else {
                continue;
            };
            let form = "the names of the channels by their numbers from 0 on are needed, as in \
                        {\"0\": \"T1\", \"1\": \"T2\"}";
            let names = named.as_object().ok_or_else(|| bad(key, named, form))?;
            for (number, name) in names {
                let number: usize = number.parse().map_err(|_| bad(key, named, form))?;
                let name = name
                    .as_str()
                    .map_or_else(|| name.to_string(), str::to_owned);
                channels.insert(number, name);
            }
            if !channels.keys().copied().eq(0..channels.len()) {
                return Err(bad(key, named, form));
            }
        }
        let mut labels = Vec::new();
        if let Some(named) = value.get("labels") {
            let form = "numbers by names are needed, as in {\"background\": 0, \"organ\": 1}, or names by numbers; a \
                        region is a list of numbers";
            let all = named
                .as_object()
                .ok_or_else(|| bad("labels", named, form))?;
            for (key, value) in all {
                let label = label(key, value);
                labels.push(label.ok_or_else(|| bad(&format!("labels.{key}"), value, form))?);
            }
        }
        let form = "a list of the numbers of the regions is needed, as in [1, 2, 3]";
        let order = value.get("regions_class_order");
        let region_order = order
            .map(|order| numbers(order).ok_or_else(|| bad("regions_class_order", order, form)))
            .transpose()?;
        Ok(Self {
            channels: channels.into_values().collect(),
            labels,
            region_order,
            path,
        })
    }

    /// Whether labels and channels of two tasks mean the same.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        let meaning = |task: &Self| {
            (
                task.labels.clone(),
                task.channels.clone(),
                task.region_order.clone(),
            )
        };
        meaning(self) == meaning(other)
    }

    /// The label of positions that do not count.
    pub(super) fn ignored(&self) -> Option<i16> {
        let all = self.labels.iter().find(|(name, _)| is_ignore(name));
        all.and_then(|(_, numbers)| numbers.first().copied())
    }

    /// Whether labels are unions of numbers.
    pub(super) fn has_regions(&self) -> bool {
        self.labels.iter().any(|(_, numbers)| numbers.len() > 1)
    }

    /// Names of the classes from 0 on, after their numbers have been mapped; empty where it names none. The regions
    /// of a task become the single numbers of which they consist.
    ///
    /// Errors: a number with two names; regions that `regions_class_order` does not tell apart.
    pub(super) fn classes(&self, map: &Relabel) -> Result<Vec<String>, DataError> {
        let mut names = BTreeMap::new();
        for (name, number, is_unmapped) in self.singles(map)? {
            if map.ignored() == Some(number.into()) {
                continue;
            }
            let taken = names.get(&number).map(|(_, unmapped)| *unmapped);
            match taken {
                None => {}
                Some(false) if is_unmapped => {}
                Some(true) if is_unmapped => {
                    return Err(self.bad(
                        format!("`labels` has two names for {number}, one of them `{name}`"),
                        "every number needs one name".to_owned(),
                    ));
                }
                Some(_) => continue,
            }
            names.insert(number, (name, is_unmapped));
        }
        let Some((&last, _)) = names.last_key_value() else {
            return Ok(Vec::new());
        };
        if let Some(&number) = names
            .keys()
            .find(|&&number| !(0..CLASSES_MAX as i64).contains(&number.into()))
        {
            return Err(self.bad(
                format!("`labels` names {number}, which is no class"),
                format!(
                    "classes are numbered from 0 to {}; `--map {number}=N` renames it, `--ignore {number}` leaves \
                     such positions out",
                    CLASSES_MAX - 1
                ),
            ));
        }
        let name = |class: i16| match names.remove(&class) {
            Some((name, _)) => name,
            None if map.ignored() == Some(class.into()) => IGNORE.to_owned(),
            None => crate::classes::made_up(class as usize),
        };
        Ok((0..=last).map(name).collect())
    }

    /// Each name with its one number after mapping, and whether that is the number that the file says.
    fn singles(&self, map: &Relabel) -> Result<Vec<(String, i16, bool)>, DataError> {
        if self.has_regions() {
            return self.region_classes(map);
        }
        let labels = self.labels.iter().filter(|(name, _)| !is_ignore(name));
        let single = |(name, numbers): &(String, Vec<i16>)| {
            let number = *numbers.first()?;
            let mapped = map.of(number);
            Some((name.clone(), mapped, mapped == number))
        };
        Ok(labels.filter_map(single).collect())
    }

    /// The regions but the background, with their numbers after mapping.
    fn regions(&self, map: &Relabel) -> Vec<(&str, Vec<i16>)> {
        let labels = self.labels.iter().filter(|(name, _)| !is_ignore(name));
        let mapped = labels.map(|(name, numbers)| {
            let mut numbers: Vec<i16> = numbers.iter().map(|&number| map.of(number)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            (name.as_str(), numbers)
        });
        mapped.filter(|(_, numbers)| numbers != &[0]).collect()
    }

    /// The single numbers of regions, named by the last region in the order that has them.
    fn region_classes(&self, map: &Relabel) -> Result<Vec<(String, i16, bool)>, DataError> {
        let regions = self.regions(map);
        let single = "or name the single labels, from 0 on, with `--classes`: they are then trained on without regions";
        let Some(order) = &self.region_order else {
            return Err(self.bad(
                "`labels` has regions, and there is no `regions_class_order`".to_owned(),
                format!("name the number of each region there, {single}"),
            ));
        };
        let order: Vec<i16> = order.iter().map(|&number| map.of(number)).collect();
        if order.len() != regions.len() {
            return Err(self.bad(
                format!(
                    "`regions_class_order` has {} numbers for {} regions",
                    order.len(),
                    regions.len()
                ),
                format!("one for each region but the background is needed, {single}"),
            ));
        }
        let background = self.labels.iter().find(|(_, numbers)| numbers == &[0]);
        let background = background.map_or("background", |(name, _)| name);
        let mut classes = vec![(background.to_owned(), 0, true)];
        let all: std::collections::BTreeSet<i16> = regions
            .iter()
            .flat_map(|(_, numbers)| numbers)
            .copied()
            .collect();
        for number in all {
            let of_number =
                |(_, (_, numbers)): &(usize, &(&str, Vec<i16>))| numbers.contains(&number);
            let last = regions.iter().enumerate().rfind(of_number);
            let Some((at, (name, numbers))) = last else {
                continue;
            };
            if order[at] != number {
                return Err(self.bad(
                    format!(
                        "label {number} is last in region `{name}`, for which `regions_class_order` places {}",
                        order[at]
                    ),
                    format!(
                        "`--map {number}={}` makes these labels one class, as that order does, {single}",
                        order[at]
                    ),
                ));
            }
            let name = if numbers.len() == 1 {
                (*name).to_owned()
            } else {
                format!("{name}_rest")
            };
            classes.push((name, number, true));
        }
        Ok(classes)
    }

    /// What becomes of its regions, where it has some: the network learns single classes.
    pub(super) fn about_regions(&self, map: &Relabel, names: &[String]) -> Option<String> {
        if !self.has_regions() {
            return None;
        }
        let union = |(region, numbers): (&str, Vec<i16>)| {
            let names = numbers
                .iter()
                .filter_map(|&number| names.get(number as usize));
            let names: Vec<&str> = names.map(String::as_str).collect();
            (numbers.len() > 1).then(|| format!("`{region}` is {}", names.join(" + ")))
        };
        let unions: Vec<String> = self.regions(map).into_iter().filter_map(union).collect();
        Some(format!(
            "{}: regions are unions of classes; the network learns the classes one by one, and metrics are of these: {}",
            self.path.display(),
            unions.join(", ")
        ))
    }

    pub(super) fn bad(&self, found: String, valid: String) -> DataError {
        DataError::BadTask {
            path: self.path.clone(),
            found,
            valid,
        }
    }
}

fn is_ignore(name: &str) -> bool {
    name.eq_ignore_ascii_case(IGNORE)
}

/// A label with its numbers. One form has names by numbers, the other numbers by names.
fn label(key: &str, value: &Value) -> Option<(String, Vec<i16>)> {
    if let Some(name) = value.as_str()
        && let Ok(number) = key.parse()
    {
        return Some((name.to_owned(), vec![number]));
    }
    Some((key.to_owned(), numbers(value)?))
}

/// A number, or a list of at least one.
fn numbers(value: &Value) -> Option<Vec<i16>> {
    let number = |value: &Value| i16::try_from(value.as_i64()?).ok();
    match value {
        Value::Array(all) if !all.is_empty() => all.iter().map(number).collect(),
        value => Some(vec![number(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::relabel::LabelPair;

    fn task(text: &str) -> Result<Task, DataError> {
        Task::parse("dataset.json".into(), &serde_json::from_str(text).unwrap())
    }

    fn relabel(map: &str, ignore: Option<i64>) -> Relabel {
        let pairs = map.split(',').filter(|text| !text.is_empty());
        let pairs: Vec<LabelPair> = pairs.map(|text| text.parse().unwrap()).collect();
        Relabel::new(&pairs, ignore, None).unwrap()
    }

    fn classes(text: &str, map: &str, ignore: Option<i64>) -> Result<Vec<String>, String> {
        let task = task(text).map_err(|error| error.to_string())?;
        let classes = task.classes(&relabel(map, ignore));
        classes.map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_name_classes_by_number_after_mapping() {
        let first = r#"{"labels": {"0": "background", "1": "organ", "4": "lesion"}}"#;
        let second = r#"{"labels": {"lesion": 4, "background": 0, "organ": [1]}}"#;
        for text in [first, second] {
            let names = classes(text, "", None).unwrap();
            assert_eq!(names, ["background", "organ", "class2", "class3", "lesion"]);
            let names = classes(text, "4=2", None).unwrap();
            assert_eq!(names, ["background", "organ", "lesion"]);
            // The class that others are joined to keeps its name.
            let names = classes(text, "4=1", None).unwrap();
            assert_eq!(names, ["background", "organ"]);
        }
        let text = r#"{"labels": {"background": 0, "organ": 1, "ignore": 2, "lesion": 3}}"#;
        assert_eq!(task(text).unwrap().ignored(), Some(2));
        let names = classes(text, "", Some(2)).unwrap();
        assert_eq!(names, ["background", "organ", "ignore", "lesion"]);
        let twice = classes(r#"{"labels": {"a": 1, "b": 1}}"#, "", None);
        assert!(twice.unwrap_err().contains("two names for 1"));
        let odd = classes(r#"{"labels": {"a": {"b": 1}}}"#, "", None);
        assert!(odd.unwrap_err().contains("`labels.a` is {\"b\":1}"));
    }

    #[test]
    fn regions_become_single_classes_or_are_refused() {
        let labels = r#""labels": {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "active": [3], "ignore": 4}"#;
        let text = format!(r#"{{{labels}, "regions_class_order": [1, 2, 3]}}"#);
        let names = classes(&text, "", Some(4)).unwrap();
        assert_eq!(names, ["background", "whole_rest", "core_rest", "active"]);
        let told = task(&text)
            .unwrap()
            .about_regions(&relabel("", None), &names);
        let told = told.unwrap();
        let unions = "`whole` is whole_rest + core_rest + active, `core` is core_rest + active";
        assert!(told.contains(unions), "{told}");
        let error = classes(&format!("{{{labels}}}"), "", None).unwrap_err();
        assert!(
            error.contains("no `regions_class_order`") && error.contains("--classes"),
            "{error}"
        );
        let error = classes(&text.replace("[1, 2, 3]}", "[1, 2]}"), "", None).unwrap_err();
        assert!(error.contains("2 numbers for 3 regions"), "{error}");
        // Labels 2 and 3 are alike to the regions; the remedy makes them one class.
        let alike = r#"{"labels": {"background": 0, "whole": [1, 2, 3], "core": [2, 3]}, "regions_class_order": [1, 2]}"#;
        let error = classes(alike, "", None).unwrap_err();
        assert!(error.contains("`--map 3=2`"), "{error}");
        let names = classes(alike, "3=2", None).unwrap();
        assert_eq!(names, ["background", "whole_rest", "core"]);
    }
}
