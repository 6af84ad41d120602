//! What channels and targets stand for, and how those of one dataset are read as those of another.

use partita_formats::DataError;

use crate::dataset::Dataset;
use crate::split::Split;
use crate::target_map::{Meaning, TargetMap};
use crate::target_record::{ROUNDING, TargetRecord, is_other, key, same_names};

/// Prefixes of names that are made up where nothing names a class, a number or a channel.
const PLACEHOLDERS: [&str; 4] = ["class", "target", "label", "channel"];
/// Samples of which ranges are derived.
const SAMPLES_MAX: usize = 64;
impl Dataset {
    /// What its targets stand for. Ranges are those of the index, else of up to 64 samples with physical values.
    pub fn target_record(&self) -> TargetRecord {
        let are_classes = self.labels().is_some();
        let meaning = self.meaning();
        let of_index = meaning.ranges.iter().copied().map(Some);
        let ranges: Vec<Option<[f64; 2]>> = match (are_classes, meaning.ranges.is_empty()) {
            (true, _) => Vec::new(),
            (false, false) => of_index.collect(),
            (false, true) => derived_ranges(self).unwrap_or_default(),
        };
        TargetRecord {
            are_classes,
            names: named(self.targets()),
            ranges: if ranges.iter().any(Option::is_some) {
                ranges
            } else {
                Vec::new()
            },
            units: meaning.units.clone(),
        }
    }

    /// Names of its channels in the order in which they are read; none where they are unknown, made up or shared by several.
    pub fn channels(&self) -> Vec<String> {
        let names = named(&self.stored_channels().names);
        if places(&names, &names).is_some() {
            names
        } else {
            Vec::new()
        }
    }

    /// The dataset with its channels read in the order of those of weights, which are matched by name, and a line that says
    /// so, or that names are missing on one side.
    ///
    /// Errors: `OtherTargets` for names that do not match.
    pub fn in_channel_order(self, names: &[String]) -> Result<(Self, Option<String>), DataError> {
        let (own, path) = (self.channels(), self.path().display());
        let list = |names: &[String]| names.join(", ");
        if own.is_empty() != names.is_empty() && self.shape()[0] > 1 {
            let text = if own.is_empty() {
                format!(
                    "{path} does not give each channel a name of its own; they are taken for {} of the weights",
                    list(names)
                )
            } else {
                format!(
                    "the weights keep no names of channels; those of {path} are taken in its order: {}",
                    list(&own)
                )
            };
            return Ok((self, Some(text)));
        }
        if own.is_empty() || names.is_empty() || same_names(&own, names) {
            return Ok((self, None));
        }
        let places = places(names, &own).filter(|places| places.len() == own.len());
        let places = places.ok_or_else(|| DataError::OtherTargets {
            path: self.path().to_path_buf(),
            what: "channels",
            found: list(&own),
            expected: list(names),
            remedy: "channels are matched by name, in any order: correct the names `channels` under [spec] of its \
                     dataset.toml, or take them out to read channels in their order",
        })?;
        let text = format!(
            "channels of {path} are read in the order of the weights, by name: {}",
            list(names)
        );
        let channels = self.stored_channels().ordered(&places);
        Ok((self.with_channels(channels), Some(text)))
    }

    /// The dataset with its targets read as those of weights, which `record` describes, and a line that says how.
    ///
    /// Classes are matched by name, if they are some of those of the weights; numbers are, if they are all of these, and are
    /// scaled to their ranges. Names that were made up match nothing.
    /// Errors: `OtherTargets` for names or units that do not match.
    pub fn answering(self, record: &TargetRecord) -> Result<(Self, Option<String>), DataError> {
        let own = self.target_record();
        if own.are_classes != record.are_classes {
            return Ok((self, None));
        }
        let (map, said) = if own.are_classes {
            match class_map(self.path(), &own, record)? {
                Some(found) => found,
                None => return Ok((self, None)),
            }
        } else {
            match number_map(&self, &own, record)? {
                (Some(map), said) => (map, said),
                (None, said) => return Ok((self, (!said.is_empty()).then_some(said))),
            }
        };
        let text = format!("{} of {} {said}", what(record), self.path().display());
        let names = match &map {
            TargetMap::Numbers(..) if record.names.is_empty() => self.targets().to_vec(),
            TargetMap::Numbers(..) | TargetMap::Classes(_) => record.names.clone(),
        };
        let map = Some(map);
        Ok((
            self.reading(
                names,
                Meaning {
                    map,
                    ..Meaning::default()
                },
            ),
            Some(text),
        ))
    }
}

fn what(record: &TargetRecord) -> &'static str {
    if record.are_classes {
        "classes"
    } else {
        "targets"
    }
}

/// Names that say something; none where all were made up.
fn named(names: &[String]) -> Vec<String> {
    let is_made_up = |(at, name): (usize, &String)| {
        let name = name.to_lowercase();
        PLACEHOLDERS.iter().any(|prefix| {
            let number = name.strip_prefix(prefix);
            let number = number.map(|rest| rest.trim_start_matches([' ', '_', '-']));
            number.is_some_and(|number| number == at.to_string())
        })
    };
    if names.iter().enumerate().all(is_made_up) {
        Vec::new()
    } else {
        names.to_vec()
    }
}

/// The place of each name in a list; `None` if one is not in it, or more than once in one of both.
fn places(names: &[String], list: &[String]) -> Option<Vec<usize>> {
    let list: Vec<String> = list.iter().map(|name| key(name)).collect();
    let place = |name: &String| {
        let name = key(name);
        let mut all = list.iter().enumerate().filter(|(_, other)| **other == name);
        all.next()
            .map(|(at, _)| at)
            .filter(|_| all.next().is_none())
    };
    let places: Vec<usize> = names.iter().map(place).collect::<Option<_>>()?;
    let distinct: std::collections::BTreeSet<&usize> = places.iter().collect();
    (distinct.len() == places.len()).then_some(places)
}

fn class_map(
    path: &std::path::Path,
    own: &TargetRecord,
    record: &TargetRecord,
) -> Result<Option<(TargetMap, String)>, DataError> {
    let (names, others) = (&own.names, &record.names);
    let count = names.len();
    // The first classes in their order need no map.
    let is_prefix = count <= others.len() && same_names(names, &others[..count]);
    if names.is_empty() || others.is_empty() || is_prefix {
        return Ok(None);
    }
    let Some(places) = places(names, others) else {
        return Err(DataError::OtherTargets {
            path: path.to_path_buf(),
            what: "classes",
            found: names.join(", "),
            expected: others.join(", "),
            remedy: "classes are matched by name, in any order, if they are some of those of the weights: correct the \
                     names under `targets` of its dataset.toml, or take weights of these classes",
        });
    };
    let classes = places
        .iter()
        .filter_map(|&at| i16::try_from(at).ok())
        .collect();
    let pairs: Vec<String> = places
        .iter()
        .enumerate()
        .filter(|(at, place)| at != *place)
        .map(|(at, place)| format!("{} {at} -> {place}", names[at]))
        .collect();
    let said = format!(
        "are read as those of the weights by name: {}",
        pairs.join(", ")
    );
    Ok(Some((TargetMap::Classes(classes), said)))
}

/// How numbers are read, if not as they are, and what is said of it.
fn number_map(
    dataset: &Dataset,
    own: &TargetRecord,
    record: &TargetRecord,
) -> Result<(Option<TargetMap>, String), DataError> {
    let refuse = |what, found: &[String], expected: &[String], remedy| DataError::OtherTargets {
        path: dataset.path().to_path_buf(),
        what,
        found: found.join(", "),
        expected: expected.join(", "),
        remedy,
    };
    let stored = dataset.targets().len();
    let columns = if own.names.is_empty() || record.names.is_empty() {
        (0..stored).collect()
    } else {
        let columns = places(&record.names, &own.names);
        columns.ok_or_else(|| {
            let remedy = "numbers are matched by name, in any order: correct the names under `targets` of its dataset.toml, \
                          or take a dataset with these";
            refuse("targets", &own.names, &record.names, remedy)
        })?
    };
    let unit = |of: &TargetRecord, at: usize| of.units.get(at).cloned();
    let range = |of: &TargetRecord, at: usize| of.ranges.get(at).copied().flatten();
    let (mut numbers, mut said, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for (at, &column) in columns.iter().enumerate() {
        let name = &dataset.targets()[column];
        if let (Some(found), Some(expected)) = (unit(own, column), unit(record, at))
            && found != expected
        {
            let remedy = "convert its targets to these units";
            return Err(refuse("units", &own.units, &record.units, remedy));
        }
        let (factor, summand) = match (range(own, column), range(record, at)) {
            (Some(from), Some(to)) if is_other(from, to) => {
                said.push(format!("{name} {from:?} -> {to:?}"));
                rescaled(from, to)
            }
            (None, Some(to)) => {
                unknown.push(format!("{name} {to:?}"));
                (1.0, 0.0)
            }
            (Some(_), Some(_)) | (_, None) => (1.0, 0.0),
        };
        numbers.push((column, factor, summand));
    }
    let is_moved = columns.iter().enumerate().any(|(at, &column)| at != column);
    if !said.is_empty() || is_moved || columns.len() < stored {
        let text = if said.is_empty() {
            "are matched by name with those of the weights".to_owned()
        } else {
            let said = said.join(", ");
            format!("are scaled to the ranges of the weights: {said}")
        };
        return Ok((Some(TargetMap::Numbers(numbers, stored)), text));
    }
    let text = if unknown.is_empty() {
        String::new()
    } else {
        format!(
            "{} does not say which physical values -1 and 1 of its targets stand for; those of the weights are assumed: {}",
            dataset.path().display(),
            unknown.join(", ")
        )
    };
    Ok((None, text))
}

/// Factor and summand that bring numbers in [-1, 1] of one range to those of another.
fn rescaled(from: [f64; 2], to: [f64; 2]) -> (f64, f64) {
    let half = |[low, high]: [f64; 2]| (high - low) / 2.0;
    let middle = |[low, high]: [f64; 2]| f64::midpoint(low, high);
    (
        half(from) / half(to),
        (middle(from) - middle(to)) / half(to),
    )
}

/// Ranges of the numbers of a dataset that keeps them in both forms; `None` for one that does not, or cannot be read.
fn derived_ranges(dataset: &Dataset) -> Option<Vec<Option<[f64; 2]>>> {
    let has_samples = |split: &Split| dataset.samples(*split) > 0;
    let mut reader = dataset.reader(Split::ALL.into_iter().find(has_samples)?);
    let samples = reader.samples();
    let mut pairs: Vec<Vec<(f64, f64)>> = vec![Vec::new(); dataset.targets().len()];
    for sample in (0..samples).step_by(samples.div_ceil(SAMPLES_MAX)) {
        let physical = reader.read_physical(sample).ok()??;
        let network = reader.read_target(sample).ok()?;
        for (pairs, (x, y)) in pairs.iter_mut().zip(network.into_iter().zip(physical)) {
            pairs.push((x.into(), y.into()));
        }
    }
    Some(pairs.iter().map(|pairs| derived_range(pairs)).collect())
}

/// The physical values of -1 and 1, if pairs of both forms lie on a line other than the identity.
fn derived_range(pairs: &[(f64, f64)]) -> Option<[f64; 2]> {
    let least = pairs.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let most = pairs.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let slope = (most.1 - least.1) / (most.0 - least.0);
    let at = |x: f64| least.1 + slope * (x - least.0);
    // In single precision the ends have as many digits.
    let range = [at(-1.0), at(1.0)].map(|value| f64::from(value as f32));
    let tolerance = ROUNDING * (range[1] - range[0]).abs();
    let is_line = pairs.iter().all(|&(x, y)| (at(x) - y).abs() <= tolerance);
    let is_sound = slope.is_finite() && slope != 0.0 && range.iter().all(|end| end.is_finite());
    (is_sound && is_line && is_other(range, [-1.0, 1.0])).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn made_up_names_are_none() {
        for names in [
            ["class0", "class1"],
            ["target0", "target1"],
            ["Class 0", "class_1"],
        ] {
            assert!(named(&list(&names)).is_empty(), "{names:?}");
        }
        for names in [["class1", "class0"], ["class0", "cat"], ["0", "1"]] {
            assert_eq!(named(&list(&names)), names, "{names:?}");
        }
    }

    #[test]
    fn ranges_are_derived_from_both_forms() {
        let pairs = |low: f64, high: f64| -> Vec<(f64, f64)> {
            let at = |x: f64| (x, low + (x + 1.0) / 2.0 * (high - low));
            [-0.5, 0.25, 0.75].map(at).to_vec()
        };
        assert_eq!(derived_range(&pairs(0.0, 10.0)), Some([0.0, 10.0]));
        assert_eq!(derived_range(&pairs(3.0, -5.0)), Some([3.0, -5.0]));
        assert_eq!(derived_range(&pairs(-1.0, 1.0)), None);
        assert_eq!(derived_range(&[(0.0, 1.0), (0.0, 1.0)]), None);
        assert_eq!(derived_range(&[(0.0, 1.0), (0.5, 1.2), (1.0, 2.0)]), None);
        let (factor, summand) = rescaled([0.0, 5.0], [0.0, 10.0]);
        assert_eq!((-factor + summand, factor + summand), (-1.0, 0.0));
    }
}
