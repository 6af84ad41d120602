//! Trained weights of a model, from a file into the names and the axis order of the model, and back.

mod error;
mod pytorch;
mod selection;
#[cfg(test)]
mod tests;

pub use error::WeightsError;
pub use selection::Selection;

use partita_data::checkpoint::{Checkpoint, MANIFEST, TensorKind};
use partita_data::state_dict::{self, StateDict};
use partita_data::weights::{Tensor, Values, Weights, save};
use partita_graph::{Graph, Parameter, ParameterRole};
use partita_program::Dtype;
use partita_space::nearest;
use pytorch::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// File of the weights in an output folder.
pub const WEIGHTS_FILE: &str = "weights.safetensors";

/// Metadata that tells a file in Partita's names and axis order from one in PyTorch's.
const DIMS: (&str, &str) = ("dims", "Kd, Kh, Kw, C, F");

/// Names and axis order of a weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightNames {
    /// Those of the model.
    Partita,
    /// Those of PyTorch's state dicts.
    PyTorch,
}

/// Values of the parameters of a model, by name, in Partita's axis order.
#[derive(Clone, Debug, Default)]
pub struct LoadedWeights {
    values: BTreeMap<String, Values>,
}

impl LoadedWeights {
    /// Values of a range of elements of a parameter, in memory order; `None` for a parameter that was not loaded.
    pub fn part(&self, name: &str, elements: Range<usize>) -> Option<Vec<f64>> {
        Some(match self.values.get(name)? {
            Values::F32(values) => values[elements].iter().map(|&v| f64::from(v)).collect(),
            Values::F64(values) => values[elements].to_vec(),
        })
    }
}

/// A file of weights that was read.
pub struct WeightFile {
    path: PathBuf,
    contents: StateDict,
}

impl WeightFile {
    /// Reads a weight file, that of an output folder, or a checkpoint.
    ///
    /// Errors: an unreadable or damaged file.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        let (path, contents) = if path.join(MANIFEST).is_file() {
            (path.to_owned(), of_checkpoint(path)?)
        } else if path.is_dir() {
            let file = path.join(WEIGHTS_FILE);
            let contents = state_dict::load(&file)?;
            (file, contents)
        } else {
            (path.to_owned(), state_dict::load(path)?)
        };
        Ok(Self { path, contents })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model that it was trained with, if it says so.
    pub fn model(&self) -> Option<&str> {
        self.contents
            .floats
            .metadata
            .get("model")
            .map(String::as_str)
    }

    /// The weights of a model, all but those that the selection leaves out.
    ///
    /// Errors: a missing or an unexpected tensor, or one of another shape; a pattern of the selection that fits
    /// nothing.
    pub fn load(
        &self,
        graph: &Graph,
        selection: &Selection,
    ) -> Result<LoadedWeights, WeightsError> {
        let layout = self.layout(graph);
        let tensors = selection.renamed(&self.path, &self.contents.floats.tensors)?;
        let names: Vec<String> = graph
            .parameters
            .iter()
            .map(|one| layout.name(one))
            .collect();
        selection.check(&self.path, tensors.keys().map(String::as_str), &names)?;
        let mut loaded = LoadedWeights::default();
        let mut used = BTreeSet::new();
        for (parameter, name) in graph.parameters.iter().zip(&names) {
            if selection.skips(name) {
                continue;
            }
            let Some(tensor) = tensors.get(name) else {
                if selection.is_new(name) {
                    continue;
                }
                return Err(WeightsError::Missing {
                    file: self.path.clone(),
                    tensor: name.clone(),
                    parameter: parameter.name.clone(),
                    nearest: closest(name, tensors.keys().map(String::as_str)),
                });
            };
            let values = self.convert(&layout, parameter, (name, tensor))?;
            loaded.values.insert(parameter.name.clone(), values);
            used.insert(name.as_str());
        }
        let integers = self.contents.integers.iter().map(String::as_str);
        let integers = integers.filter(|name| !layout.is_counter(name));
        let is_unexpected = |name: &&str| !used.contains(name) && !selection.skips(name);
        match tensors
            .keys()
            .map(String::as_str)
            .chain(integers)
            .find(is_unexpected)
        {
            None => Ok(loaded),
            Some(name) => Err(WeightsError::Unexpected {
                file: self.path.clone(),
                tensor: name.to_owned(),
                nearest: closest(name, names.iter().map(String::as_str)),
            }),
        }
    }

    fn layout<'g>(&self, graph: &'g Graph) -> Layout<'g> {
        if self.contents.floats.metadata.contains_key(DIMS.0) {
            Layout::Partita
        } else {
            Layout::pytorch(graph)
        }
    }

    fn convert(
        &self,
        layout: &Layout<'_>,
        parameter: &Parameter,
        (name, tensor): (&str, &Tensor),
    ) -> Result<Values, WeightsError> {
        let expected = layout.shape(parameter);
        if tensor.shape != expected {
            return Err(WeightsError::Shape {
                file: self.path.clone(),
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected,
            });
        }
        Ok(match &tensor.values {
            Values::F32(values) => Values::F32(layout.to_partita(parameter, values)),
            Values::F64(values) => Values::F64(layout.to_partita(parameter, values)),
        })
    }
}

/// Writes weights of a model in one of the names and axis orders.
///
/// Errors: a file that cannot be written.
pub fn write(
    out: &Path,
    (name, graph): (&str, &Graph),
    weights: &LoadedWeights,
    names: WeightNames,
) -> Result<usize, WeightsError> {
    let layout = match names {
        WeightNames::Partita => Layout::Partita,
        WeightNames::PyTorch => Layout::pytorch(graph),
    };
    let mut tensors = Vec::new();
    let mut counters = Vec::new();
    for parameter in &graph.parameters {
        let name = layout.name(parameter);
        let values = match &weights.values[&parameter.name] {
            Values::F32(values) => Values::F32(layout.to_file(parameter, values)),
            Values::F64(values) => Values::F64(layout.to_file(parameter, values)),
        };
        if parameter.role == ParameterRole::RunningMean {
            counters.extend(layout.counter(&name));
        }
        let shape = layout.shape(parameter);
        tensors.push((name, Tensor { shape, values }));
    }
    let count = tensors.len() + counters.len();
    match names {
        WeightNames::PyTorch => state_dict::save(out, &tensors, &counters)?,
        WeightNames::Partita => {
            let metadata = [("model", name), DIMS];
            let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let weights = Weights {
                tensors: tensors.into_iter().collect(),
                metadata: metadata.into(),
            };
            save(out, &weights)?;
        }
    }
    Ok(count)
}

/// Parameters and states of a checkpoint.
fn of_checkpoint(path: &Path) -> Result<StateDict, WeightsError> {
    let checkpoint = Checkpoint::open(path)?;
    let mut reader = checkpoint.reader();
    let mut found = StateDict::default();
    for entry in checkpoint.tensors() {
        match entry.kind {
            TensorKind::Parameter | TensorKind::State => {}
            TensorKind::Optimizer => continue,
        }
        let values = reader.read(&entry.name, 0..entry.shape.iter().product())?;
        let values = match entry.dtype {
            Dtype::F64 => Values::F64(values),
            Dtype::F32 | Dtype::I16 => {
                Values::F32(values.into_iter().map(|value| value as f32).collect())
            }
        };
        let tensor = Tensor {
            shape: entry.shape.to_vec(),
            values,
        };
        found.floats.tensors.insert(entry.name.clone(), tensor);
    }
    let (key, value) = DIMS;
    found
        .floats
        .metadata
        .insert(key.to_owned(), value.to_owned());
    Ok(found)
}

fn closest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> String {
    let found = nearest(name, names);
    found.map_or_else(String::new, |found| format!("; nearest is `{found}`"))
}
