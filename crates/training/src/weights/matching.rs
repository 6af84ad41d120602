//! Which tensors of a file are the parameters of a model, by their names.

use super::error::WeightsError;
use super::pytorch::Layout;
use super::selection::Selection;
use super::{WeightSource, closest, renamed};
use partita_graph::{Graph, Parameter};
use partita_space::nearest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Names that an error lists.
const NAMES_MAX: usize = 8;

/// The names of a file, and what a model wants of them.
pub(super) struct Matching<'m> {
    pub file: &'m Path,
    pub source: &'m WeightSource,
    pub layout: &'m Layout,
    pub selection: &'m Selection,
    pub wanted: Vec<Wanted<'m>>,
}

/// A parameter, and its names in a file: that of its first layer, and those of others that share it.
pub(super) struct Wanted<'m> {
    pub parameter: &'m Parameter,
    names: Vec<String>,
}

/// The tensors of parameters.
pub(super) struct Matched {
    /// The parameters, and the names of their tensors in the file.
    pub taken: BTreeMap<String, (Parameter, String)>,
    /// What was taken and left.
    pub summary: Summary,
}

/// What was taken of a file, and left.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Tensors of the model that were taken.
    loaded: usize,
    /// Tensors of the model.
    wanted: usize,
    /// Tensors of the file that were left.
    left: usize,
    /// The beginning of its names that was dropped.
    prefix: Option<String>,
}

impl Summary {
    /// Whether all tensors were taken under their names.
    pub fn is_whole(&self) -> bool {
        self.left == 0 && self.prefix.is_none()
    }

    /// In words.
    pub fn text(&self) -> String {
        let Self {
            loaded,
            wanted,
            left,
            prefix,
        } = self;
        let mut text = format!("{loaded} of the {wanted} tensors of the model are loaded");
        if loaded < wanted {
            text += &format!(", {} keep initial values", wanted - loaded);
        }
        text += &format!("; {left} of the file are left");
        if let Some(prefix) = prefix {
            text += &format!("; the prefix `{prefix}` of its names was dropped");
        }
        text
    }
}

/// Tensors of the file by the names that they have for the model.
pub(super) type Tensors<'t> = BTreeMap<String, &'t str>;

impl<'m> Matching<'m> {
    pub fn new(
        (file, source): (&'m Path, &'m WeightSource),
        (graph, layout): (&'m Graph, &'m Layout),
        selection: &'m Selection,
    ) -> Self {
        let wanted = graph.stored_parameters().map(|parameter| Wanted {
            parameter,
            names: layout.names(parameter),
        });
        Self {
            file,
            source,
            layout,
            selection,
            wanted: wanted.collect(),
        }
    }

    /// Finds the tensors of all parameters.
    ///
    /// Errors: missing or unexpected tensors, or one of another shape; a pattern of the selection that fits nothing; a
    /// parameter of two tensors; nothing is taken.
    pub fn run(&self) -> Result<Matched, WeightsError> {
        let stored = self.source.names();
        let (tensors, prefix) = self.tensors()?;
        let of_file = tensors.keys().map(String::as_str).chain(stored);
        let of_file = of_file.chain(self.integers());
        self.selection.check(self.file, of_file, &self.names())?;
        let mut taken = BTreeMap::new();
        let mut used = BTreeSet::new();
        let mut missing = Vec::new();
        for wanted in &self.wanted {
            if self.skips(&wanted.names[0], &tensors) {
                self.refuse_tied(wanted, &tensors)?;
                self.refuse_skipped(wanted)?;
            } else if self.is_missing(wanted, &tensors) {
                missing.push(wanted);
            } else if let Some((first, _)) = self.found(wanted, &tensors).next() {
                for (name, stored) in self.found(wanted, &tensors) {
                    self.check_shape(wanted.parameter, (name, stored))?;
                    self.check_equal(wanted.parameter, [tensors[first], stored])?;
                    used.insert(name);
                }
                let entry = (wanted.parameter.clone(), tensors[first].to_owned());
                taken.insert(wanted.parameter.name.clone(), entry);
            }
        }
        if let [first, more @ ..] = &missing[..] {
            return Err(self.missing(first, more, &tensors));
        }
        self.refuse_unexpected(&tensors, prefix.as_deref(), &used)?;
        let summary = Summary {
            loaded: taken.len(),
            wanted: self.wanted.len(),
            left: tensors.len() - used.len(),
            prefix,
        };
        if taken.is_empty() && !self.wanted.is_empty() && !self.selection.initial {
            let (file, left) = (self.file.to_owned(), summary.left);
            return Err(WeightsError::NothingLoaded { file, left });
        }
        Ok(Matched { taken, summary })
    }

    /// The tensors of the file by the names that they have for the model, and the prefix that was dropped.
    ///
    /// Errors: a renaming that fits nothing.
    pub fn tensors(&self) -> Result<(Tensors<'m>, Option<String>), WeightsError> {
        let tensors = self.selection.renamed(self.file, &self.source.names())?;
        Ok(match self.prefix(&tensors) {
            Some((prefix, without)) => (without, Some(prefix)),
            None => (tensors, None),
        })
    }

    /// All names of the parameters.
    fn names(&self) -> Vec<String> {
        let names = self.wanted.iter().flat_map(|wanted| &wanted.names);
        names.cloned().collect()
    }

    /// The tensors of a parameter: their names for the model and in the file.
    fn found<'t>(
        &'t self,
        wanted: &'t Wanted<'_>,
        tensors: &'t Tensors<'_>,
    ) -> impl Iterator<Item = (&'t str, &'t str)> {
        let found = |name: &'t String| Some((name.as_str(), *tensors.get(name)?));
        let found = wanted.names.iter().filter_map(found);
        found.filter(|(name, _)| !self.skips(name, tensors))
    }

    /// Whether a tensor is skipped, by its name for the model or in the file.
    fn skips(&self, name: &str, tensors: &Tensors<'_>) -> bool {
        let stored = tensors.get(name);
        self.selection.skips(name) || stored.is_some_and(|stored| self.selection.skips(stored))
    }

    /// Whether a parameter is needed that has no tensor.
    fn is_missing(&self, wanted: &Wanted<'_>, tensors: &Tensors<'_>) -> bool {
        let name = &wanted.names[0];
        let is_needed = !self.skips(name, tensors) && !self.selection.is_new(name);
        is_needed && self.found(wanted, tensors).next().is_none()
    }

    /// The shortest beginning of names, up to a dot, without which all names fit, where they do not fit with it; and the
    /// tensors without it.
    fn prefix<'t>(&self, tensors: &Tensors<'t>) -> Option<(String, Tensors<'t>)> {
        let known: BTreeSet<String> = self.names().into_iter().collect();
        let fit = |tensors: &Tensors<'_>| {
            let fits = |name: &String| known.contains(name) || self.skips(name, tensors);
            let is_missing = |wanted: &Wanted<'_>| self.is_missing(wanted, tensors);
            tensors.keys().all(fits) && !self.wanted.iter().any(is_missing)
        };
        if fit(tensors) {
            return None;
        }
        // Also of parameters that may keep initial values.
        let absent = |wanted: &&Wanted<'_>| self.found(wanted, tensors).next().is_none();
        let absent = self.wanted.iter().filter(absent);
        let names = absent
            .flat_map(|wanted| &wanted.names)
            .flat_map(|name| tensors.keys().map(move |key| (name, key)));
        let prefix = |(name, key): (&String, &'_ String)| {
            let prefix = key.strip_suffix(name.as_str())?;
            prefix
                .ends_with('.')
                .then(|| (prefix.len(), prefix.to_owned()))
        };
        let prefixes: BTreeSet<(usize, String)> = names.filter_map(prefix).collect();
        prefixes.into_iter().find_map(|(_, prefix)| {
            let mut without = Tensors::new();
            for (name, stored) in tensors {
                let name = name.strip_prefix(&prefix).unwrap_or(name);
                if without.insert(name.to_owned(), *stored).is_some() {
                    return None;
                }
            }
            fit(&without).then_some((prefix, without))
        })
    }

    /// Errors: a shared parameter is skipped under some of the names that the file has.
    fn refuse_tied(&self, wanted: &Wanted<'_>, tensors: &Tensors<'_>) -> Result<(), WeightsError> {
        let Some((left, _)) = self.found(wanted, tensors).next() else {
            return Ok(());
        };
        Err(WeightsError::TiedSkipped {
            file: self.file.to_owned(),
            skipped: wanted.names[0].clone(),
            left: left.to_owned(),
            names: wanted.names.clone(),
            advice: self.selection.skip_advice(left),
        })
    }

    /// Errors: all parameters are needed.
    fn refuse_skipped(&self, wanted: &Wanted<'_>) -> Result<(), WeightsError> {
        if !self.selection.is_whole {
            return Ok(());
        }
        Err(WeightsError::Needed {
            tensor: wanted.names[0].clone(),
            parameter: wanted.parameter.name.clone(),
        })
    }

    fn check_shape(
        &self,
        parameter: &Parameter,
        (name, stored): (&str, &str),
    ) -> Result<(), WeightsError> {
        let expected = self.layout.shape(parameter);
        let found = self.source.shape(stored).unwrap_or_default();
        if found == expected {
            return Ok(());
        }
        let mut advice = if self.selection.is_whole {
            "; they are weights of another model".to_owned()
        } else {
            format!("; {}", self.selection.skip_advice(name))
        };
        if let Layout::PyTorch(_) = self.layout
            && self.layout.clone().along([2, 1, 0]).shape(parameter) == found
        {
            advice = "; kernels along W, H and D fit: `axes = \"WHD\"` in `[weights]` of a run file, or `--axes WHD`"
                .to_owned();
        }
        Err(WeightsError::Shape {
            file: self.file.to_owned(),
            tensor: name.to_owned(),
            found,
            expected,
            advice,
        })
    }

    /// Checks that two tensors of a shared parameter are equal.
    fn check_equal(&self, parameter: &Parameter, pair: [&str; 2]) -> Result<(), WeightsError> {
        let [first, second] = pair;
        let values = |name: &str| self.source.read(name, 0..parameter.volume());
        if first == second || values(first)? == values(second)? {
            return Ok(());
        }
        Err(WeightsError::TiedDiffer {
            file: self.file.to_owned(),
            advice: self.selection.skip_advice(second),
            tensors: pair.map(str::to_owned),
            parameter: parameter.name.clone(),
        })
    }

    /// Tensors that the file lacks: the first, with those of its shape that the model does not use under their names,
    /// and the names of the others.
    fn missing(
        &self,
        first: &Wanted<'_>,
        more: &[&Wanted<'_>],
        tensors: &Tensors<'_>,
    ) -> WeightsError {
        let (name, known) = (&first.names[0], self.names());
        let shape = self.layout.shape(first.parameter);
        let free = tensors.iter().filter(|(it, _)| !known.contains(it));
        let (alike, others): (Vec<_>, Vec<_>) =
            free.partition(|(_, stored)| self.source.shape(stored).as_ref() == Some(&shape));
        let mut left: Vec<&str> = alike.into_iter().map(|(name, _)| name.as_str()).collect();
        let mut alike = Vec::new();
        while let Some(next) = nearest(name, left.iter().copied()).filter(|_| alike.len() < 3) {
            left.retain(|other| *other != next);
            alike.push(next);
        }
        let more_missing = listed(
            "missing",
            more.iter().map(|it| it.names[0].as_str()).collect(),
        );
        let (nearest, others, rename) = match alike.as_slice() {
            [] => {
                let others = others.iter().map(|(name, _)| name.as_str());
                let none = format!("; none of its shape {shape:?} is left");
                (closest(name, others), more_missing + &none, String::new())
            }
            [first, more @ ..] => {
                let mut text = format!("`{first}`, of the same shape {shape:?}");
                let more: Vec<String> = more.iter().map(|name| format!("`{name}`")).collect();
                if !more.is_empty() {
                    text += &format!(", as are {}", more.join(" and "));
                }
                let rename = self.selection.rename_advice(renamed(first, name));
                (Some(text), more_missing, rename)
            }
        };
        let names = more.iter().map(|wanted| wanted.names[0].as_str());
        let all = [name.as_str()].into_iter().chain(names);
        let layers = all.map(|name| name.rsplit_once('.').map_or(name, |(layer, _)| layer));
        WeightsError::Missing {
            file: self.file.to_owned(),
            tensor: name.clone(),
            parameter: first.parameter.name.clone(),
            others: others.into(),
            nearest: nearest.map(Into::into),
            advice: self.selection.new_advice(&rename, layers).into(),
        }
    }

    /// Tensors of integers of the file.
    fn integers(&self) -> Vec<&'m str> {
        match self.source {
            WeightSource::File(file) => file.integers().collect(),
            WeightSource::Checkpoint(_) => Vec::new(),
        }
    }

    /// Errors: tensors of the file that the model does not use.
    fn refuse_unexpected(
        &self,
        tensors: &Tensors<'_>,
        prefix: Option<&str>,
        used: &BTreeSet<&str>,
    ) -> Result<(), WeightsError> {
        let integers = self.integers().into_iter();
        let integers = integers.filter(|name| !self.layout.is_counter(name));
        let integers =
            integers.map(|name| prefix.and_then(|it| name.strip_prefix(it)).unwrap_or(name));
        let names = tensors.keys().map(String::as_str).chain(integers);
        let mut unused = names.filter(|name| !used.contains(name) && !self.skips(name, tensors));
        let Some(name) = unused.next() else {
            return Ok(());
        };
        let known = self.names();
        Err(WeightsError::Unexpected {
            file: self.file.to_owned(),
            nearest: closest(name, known.iter().map(String::as_str)).map(Into::into),
            tensor: name.to_owned(),
            more: listed("unexpected", unused.collect()).into(),
            advice: self.selection.skip_advice(name).into(),
        })
    }
}

/// `; also missing: `a`, `b``.
fn listed(what: &str, names: Vec<&str>) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(NAMES_MAX).map(|name| format!("`{name}`"));
    let mut text = format!("; also {what}: {}", shown.collect::<Vec<_>>().join(", "));
    if names.len() > NAMES_MAX {
        text += &format!(" and {} more", names.len() - NAMES_MAX);
    }
    text
}
