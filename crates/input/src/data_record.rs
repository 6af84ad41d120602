//! What trained weights keep of the data that they were trained on.

use std::collections::BTreeMap;
use std::path::Path;

use partita_data::{TargetRecord, VoxelRecord};
use partita_formats::DataError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::prepare::Preparation;

/// Entry of the metadata of a weight file with the steps of `transform`, as JSON.
const PREPARATION: &str = "partita.preparation";
/// Entry of the metadata of a weight file with what the targets are, as JSON.
const TARGETS: &str = "partita.targets";
/// Entry of the metadata of a weight file with spacing and orientation, as JSON.
const VOXELS: &str = "partita.voxels";

/// Entry of the metadata of a weight file with the names of the channels, as JSON.
const CHANNELS: &str = "partita.channels";

/// Entry of the metadata of a weight file with the names of the features, as JSON.
const FEATURES: &str = "partita.features";

/// Entry of the metadata of a weight file with the weights of the classes in its loss, as JSON.
const CLASS_WEIGHTS: &str = "partita.class_weights";

/// What weights and checkpoints keep of the data that they were trained on. Those of other programs keep nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataRecord {
    /// The steps of `transform` with their statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<Preparation>,
    /// What the targets are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetRecord>,
    /// Spacing and orientation, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voxels: Option<VoxelRecord>,
    /// Names of the channels, in the order in which the network reads them; empty where they are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
    /// Names of the features, in the order in which the network reads them; empty where it reads none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// The weights of classes that followed from the labels, one per class; empty where none did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_weights: Vec<f64>,
}

impl DataRecord {
    /// The entries of the metadata of a weight file.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let entries = [
            (
                PREPARATION,
                self.preparation.as_ref().map(|it| serde_json::json!(it)),
            ),
            (
                TARGETS,
                self.targets.as_ref().map(|it| serde_json::json!(it)),
            ),
            (VOXELS, self.voxels.as_ref().map(|it| serde_json::json!(it))),
            (
                CHANNELS,
                (!self.channels.is_empty()).then(|| serde_json::json!(self.channels)),
            ),
            (
                FEATURES,
                (!self.features.is_empty()).then(|| serde_json::json!(self.features)),
            ),
            (
                CLASS_WEIGHTS,
                (!self.class_weights.is_empty()).then(|| serde_json::json!(self.class_weights)),
            ),
        ];
        let entries = entries.into_iter();
        entries
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_string())))
            .collect()
    }

    /// Reads the entries of the metadata of the weight file at `path`.
    ///
    /// Errors: `BadWeights` for an entry that cannot be read.
    pub fn of_metadata(
        path: &Path,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self, DataError> {
        Ok(Self {
            preparation: entry(path, metadata, PREPARATION)?,
            targets: entry(path, metadata, TARGETS)?,
            voxels: entry(path, metadata, VOXELS)?,
            channels: entry(path, metadata, CHANNELS)?.unwrap_or_default(),
            features: entry(path, metadata, FEATURES)?.unwrap_or_default(),
            class_weights: entry(path, metadata, CLASS_WEIGHTS)?.unwrap_or_default(),
        })
    }
}

fn entry<T: DeserializeOwned>(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    key: &str,
) -> Result<Option<T>, DataError> {
    let Some(text) = metadata.get(key) else {
        return Ok(None);
    };
    let found = serde_json::from_str(text);
    found.map(Some).map_err(|error| DataError::BadWeights {
        path: path.to_path_buf(),
        reason: format!("the entry `{key}` of its metadata cannot be read: {error}"),
    })
}
