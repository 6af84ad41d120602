//! Which weights of a file a model takes, and under which names.

use super::closest;
use super::error::WeightsError;
use std::collections::BTreeMap;
use std::path::Path;

/// Which weights of a file a model takes. Patterns are names of tensors as the file has them, or their beginnings
/// followed by `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Tensors that are not taken; those of the model keep their initial values.
    pub skip: Vec<String>,
    /// Names, or beginnings of names up to a dot, in the file, and what they are in the model.
    pub rename: Vec<(String, String)>,
    /// Tensors of the model that the file need not have; they keep their initial values.
    pub new: Vec<String>,
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
    /// Errors: a renaming that fits nothing.
    pub fn renamed<'t>(
        &self,
        file: &Path,
        tensors: &[&'t str],
    ) -> Result<BTreeMap<String, &'t str>, WeightsError> {
        let mut all = BTreeMap::new();
        let mut used = vec![false; self.rename.len()];
        for &name in tensors {
            let mut renamed: Option<String> = None;
            for (index, (old, new)) in self.rename.iter().enumerate() {
                let rest = name.strip_prefix(old.as_str());
                let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('.'));
                if let (Some(rest), None) = (rest, &renamed) {
                    used[index] = true;
                    renamed = Some(format!("{new}{rest}"));
                }
            }
            all.insert(renamed.unwrap_or_else(|| name.to_owned()), name);
        }
        match used.iter().position(|used| !used) {
            None => Ok(all),
            Some(index) => Err(WeightsError::Pattern {
                file: file.to_owned(),
                key: "rename",
                pattern: self.rename[index].0.clone(),
                nearest: closest(&self.rename[index].0, tensors.iter().copied()),
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
                });
            }
        }
        Ok(())
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}
