//! Which weights of a file a model takes, and under which names.

use super::error::WeightsError;
use super::{KernelAxes, LoadedWeights, WeightFile, WeightNames, closest};
use partita_graph::Graph;
use partita_space::fits;
use std::collections::btree_map::{BTreeMap, Entry};
use std::path::Path;

/// Which weights of a file a model takes. Patterns are names of tensors as the file has them, or as the model would; `*`
/// stands for any characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Tensors that are not taken; those of the model keep their initial values.
    pub skip: Vec<String>,
    /// Names, or beginnings of names up to a dot, in the file, and what they are in the model: nothing to drop them. The
    /// longest that fits counts.
    pub rename: Vec<(String, String)>,
    /// Tensors of the model that the file need not have; they keep their initial values.
    pub new: Vec<String>,
    /// Whether all tensors may keep their initial values.
    pub initial: bool,
    /// Whether all parameters are taken, as where nothing has initial values. Errors then advise options of the command
    /// line, not keys of a run file.
    pub is_whole: bool,
    /// Names and axis order of a file (default: what its metadata, names and shapes say).
    pub order: Option<WeightNames>,
    /// Along which dims of samples the kernels of a PyTorch file lie (default: D, H, W).
    pub axes: Option<KernelAxes>,
}

impl Selection {
    /// Whether a tensor is not taken.
    pub fn skips(&self, name: &str) -> bool {
        self.skip.iter().any(|pattern| fits(pattern, name))
    }

    /// Whether the file need not have a tensor.
    pub fn is_new(&self, name: &str) -> bool {
        self.new.iter().any(|pattern| fits(pattern, name))
    }

    /// The names in the file of the tensors, under those of the model.
    ///
    /// Errors: a renaming that fits nothing; two tensors of one name.
    pub fn renamed<'t>(
        &self,
        file: &Path,
        tensors: &[&'t str],
    ) -> Result<BTreeMap<String, &'t str>, WeightsError> {
        let mut all = BTreeMap::new();
        let mut used = vec![false; self.rename.len()];
        for &name in tensors {
            let rules = self.rename.iter().enumerate();
            let fitting =
                rules.filter_map(|(at, (old, new))| Some((at, replaced(name, old, new)?)));
            let mut target = name.to_owned();
            if let Some((at, renamed)) = fitting.max_by_key(|&(at, _)| self.rename[at].0.len()) {
                used[at] = true;
                target = renamed;
            }
            match all.entry(target) {
                Entry::Vacant(free) => drop(free.insert(name)),
                Entry::Occupied(taken) => {
                    return Err(WeightsError::Twice {
                        file: file.to_owned(),
                        first: (*taken.get()).to_owned(),
                        second: name.to_owned(),
                        target: taken.key().clone(),
                    });
                }
            }
        }
        match used.iter().position(|used| !used) {
            None => Ok(all),
            Some(index) => Err(WeightsError::Pattern {
                file: file.to_owned(),
                key: "rename",
                pattern: self.rename[index].0.clone(),
                nearest: closest(&self.rename[index].0, tensors.iter().copied()),
                others: 0,
            }),
        }
    }

    /// Checks that each pattern fits a tensor of the file or of the model.
    ///
    /// Errors: the first that does not.
    pub fn check<'n>(
        &self,
        file: &Path,
        of_file: impl Iterator<Item = &'n str>,
        of_model: &'n [String],
    ) -> Result<(), WeightsError> {
        let of_model: Vec<&str> = of_model.iter().map(String::as_str).collect();
        let all: Vec<&str> = of_file.chain(of_model.iter().copied()).collect();
        let skip = self.skip.iter().map(|pattern| ("skip", pattern, &all));
        let new = self.new.iter().map(|pattern| ("new", pattern, &of_model));
        for (key, pattern, names) in skip.chain(new) {
            if !names.iter().any(|name| fits(pattern, name)) {
                return Err(WeightsError::Pattern {
                    file: file.to_owned(),
                    key,
                    pattern: pattern.clone(),
                    nearest: closest(pattern, names.iter().copied()),
                    others: 0,
                });
            }
        }
        Ok(())
    }

    /// Leaves out what this error says does not fit a file, and gives it as its key and text. None if the error is another.
    fn leave_out(&mut self, error: &WeightsError) -> Option<(&'static str, String)> {
        if let WeightsError::NoAxes { axes, .. } = error {
            self.axes = None;
            return Some(("axes", axes.clone()));
        }
        let WeightsError::Pattern { key, pattern, .. } = error else {
            return None;
        };
        match *key {
            "rename" => self.rename.retain(|(old, _)| old != pattern),
            "skip" => self.skip.retain(|it| it != pattern),
            _ => self.new.retain(|it| it != pattern),
        }
        Some((key, pattern.clone()))
    }

    /// Whether the selection has this entry, by the key and text of [`leave_out`](Self::leave_out).
    fn asks(&self, key: &str, text: &str) -> bool {
        match key {
            "rename" => self.rename.iter().any(|(old, _)| old == text),
            "skip" => self.skip.iter().any(|pattern| pattern == text),
            "new" => self.new.iter().any(|pattern| pattern == text),
            _ => self.axes.is_some(),
        }
    }

    /// How to leave out a tensor of the file.
    pub fn skip_advice(&self, name: &str) -> String {
        if self.is_whole {
            format!("`--skip {name}` leaves it out")
        } else {
            format!("`skip = [\"{name}\"]` in `[weights]` of a run file leaves it out")
        }
    }

    /// How to take a tensor under another name; ends as a list that goes on.
    pub fn rename_advice(&self, (old, new): (&str, &str)) -> String {
        if self.is_whole {
            format!("`--rename {old}={new}` takes it; ")
        } else {
            format!("`rename = {{ \"{old}\" = \"{new}\" }}` takes it, ")
        }
    }

    /// How to do without tensors of these layers, after other advice.
    pub fn new_advice<'l>(&self, rename: &str, layers: impl Iterator<Item = &'l str>) -> String {
        let mut patterns: Vec<String> = layers.map(|layer| format!("\"{layer}*\"")).collect();
        patterns.dedup();
        let new = format!("`new = [{}]` keeps initial values", patterns.join(", "));
        if self.is_whole {
            format!("{rename}in `[weights]` of a training {new}")
        } else {
            format!("in `[weights]` of a run file, {rename}{new}")
        }
    }
}

/// The weights of a model in each of these files. A pattern or axes for several of them are left out for those that they
/// do not fit.
///
/// Errors: those of [`WeightFile::load`]; a pattern or axes that fit none of the files for which they were asked.
pub fn load_all(
    files: &[(WeightFile, Selection)],
    graph: &Graph,
) -> Result<Vec<LoadedWeights>, WeightsError> {
    let (mut loaded, mut failed) = (Vec::with_capacity(files.len()), None);
    let mut unfit: BTreeMap<(&str, String), (usize, WeightsError)> = BTreeMap::new();
    for (file, selection) in files {
        let mut own = selection.clone();
        loop {
            let error = match file.load(graph, &own) {
                Ok(weights) => {
                    loaded.push(weights);
                    break;
                }
                Err(error) => error,
            };
            let Some(part) = own.leave_out(&error) else {
                failed.get_or_insert(error);
                break;
            };
            unfit.entry(part).or_insert((0, error)).0 += 1;
        }
    }
    let of_all = unfit.into_iter().find(|((key, text), (count, _))| {
        let asked = files.iter().filter(|(_, one)| one.asks(key, text));
        *count == asked.count()
    });
    if let Some((_, (count, error))) = of_all {
        return Err(error.of_files(count));
    }
    failed.map_or(Ok(loaded), Err)
}

/// A name in which a beginning up to a dot is another, or dropped; none if it does not begin so.
fn replaced(name: &str, old: &str, new: &str) -> Option<String> {
    let [old, new] = [old, new].map(|end| end.strip_suffix('.').unwrap_or(end));
    let rest = match name.strip_prefix(old)? {
        rest if old.is_empty() => rest,
        "" => "",
        rest => rest.strip_prefix('.')?,
    };
    let parts = [new, rest].into_iter().filter(|part| !part.is_empty());
    Some(parts.collect::<Vec<_>>().join("."))
}
