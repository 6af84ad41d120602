//! Trained weights as the state dict of a module of PyTorch, and as an ONNX model.

use crate::weights::{Layout, LoadedWeights, ORDER, WeightNames, WeightsError};
use partita_files::write_whole;
use partita_formats::DataError;
use partita_graph::{Graph, Parameter};
use partita_import::{Element, Imported, OnnxTensor, read_weights, write_onnx};
use partita_weights::Values;
use partita_weights::state_dict::save_bytes;
use partita_weights::{ElementType, Entry};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest whole number beyond which not all are numbers of double precision.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Writes the state dict of a module, and gives the number of its tensors.
///
/// The types of the file are kept: trained weights are rounded to them. Errors: a layer of the model that the module
/// lacks; files that cannot be read or written.
pub(crate) fn like(
    out: &Path,
    (path, like): (&Path, &Imported),
    graph: &Graph,
    weights: &LoadedWeights,
) -> Result<usize, WeightsError> {
    let failed = |reason: String| WeightsError::Like {
        file: path.to_owned(),
        reason,
    };
    let mut all = read_weights(path).map_err(|error| failed(error.to_string()))?;
    let layout = Layout::pytorch(graph);
    for parameter in graph.stored_parameters() {
        let name = layout.name(parameter);
        let Some((_, values)) = trained(&layout, parameter, weights)? else {
            continue;
        };
        let stored = like.stored.iter().find(|one| one.name == name);
        let original = stored.map(|one| one.original.as_str());
        let found = all.iter().find(|one| Some(one.name.as_str()) == original);
        let found = found.ok_or_else(|| failed(format!("it has no tensor for `{name}`")))?;
        if found.values.len() != values.len() {
            return Err(failed(format!(
                "`{}` has the extents {:?}, and `{name}` of the model {:?}",
                found.name,
                found.shape,
                layout.shape(parameter)
            )));
        }
        // Names that share their numbers.
        let storage = found.storage.clone();
        let shared = all.iter_mut().filter(|one| one.storage == storage);
        shared.for_each(|one| one.values.clone_from(&values));
    }
    let mut tensors = BTreeMap::new();
    for one in all.into_iter().filter(|one| one.is_in_state_dict) {
        if one.element == Element::I64 && one.values.iter().any(|one| one.abs() >= WHOLE_MAX) {
            return Err(failed(format!(
                "`{}` has numbers that are too large",
                one.name
            )));
        }
        let entry = Entry {
            name: one.name.clone(),
            element: ElementType::Other(one.element.name(), one.element.bytes()),
            shape: one.shape,
        };
        tensors.insert(one.name, (entry, one.element.encode(&one.values)));
    }
    let mut metadata = weights.record().metadata();
    metadata.insert(ORDER.to_owned(), WeightNames::PyTorch.name().to_owned());
    save_bytes(out, &tensors, metadata)?;
    Ok(tensors.len())
}

/// The values of a parameter in PyTorch's order, and their type.
fn trained(
    layout: &Layout,
    parameter: &Parameter,
    weights: &LoadedWeights,
) -> Result<Option<(Element, Vec<f64>)>, WeightsError> {
    let values = weights.whole(&parameter.name)?;
    Ok(values.map(|values| match values {
        Values::F64(values) => (Element::F64, layout.to_file(parameter, &values)),
        Values::F32(values) => {
            let values = layout.to_file(parameter, &values);
            (Element::F32, values.into_iter().map(f64::from).collect())
        }
    }))
}

/// Writes a model with its weights as ONNX, and gives the number of its tensors.
///
/// Errors: layers that ONNX lacks, all of them; a file that cannot be written.
pub(crate) fn onnx(
    out: &Path,
    graph: &Graph,
    weights: &LoadedWeights,
) -> Result<usize, WeightsError> {
    let layout = Layout::pytorch(graph);
    let mut tensors = BTreeMap::new();
    for parameter in graph.stored_parameters() {
        let Some((element, values)) = trained(&layout, parameter, weights)? else {
            continue;
        };
        let tensor = OnnxTensor {
            name: layout.name(parameter),
            shape: layout.shape(parameter),
            element,
            values,
        };
        tensors.insert(parameter.name.clone(), tensor);
    }
    let bytes = write_onnx(graph, &tensors).map_err(|layers| WeightsError::Onnx { layers })?;
    write_whole(out, &bytes).map_err(|error| DataError::Unwritable {
        path: out.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(tensors.len())
}
