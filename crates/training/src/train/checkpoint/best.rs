//! The weights of the best checkpoint, as a file of their own in the output folder.

use super::config::BestMetric;
use crate::weights::BEST_FILE;
use partita_formats::DataError;
use partita_program::Dtype;
use partita_weights::checkpoint::{Checkpoint, CheckpointError, TensorEntry};
use partita_weights::state_dict::StateDictFile;
use partita_weights::{ElementType, Entry, Values, Writer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Elements that are copied at a time.
const PIECE: usize = 1 << 16;

/// The best checkpoint so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Name of the metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// Number of its epoch, from 1; 0 where a version did not write it.
    #[serde(default)]
    pub epoch: u64,
    /// Name of the checkpoint's folder.
    pub checkpoint: String,
}

/// The best weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum BestError {
    /// The checkpoint cannot be read.
    Checkpoint(#[from] CheckpointError),
    /// The file cannot be written.
    Data(#[from] DataError),
}

/// The file of the best weights of a run.
#[derive(Debug)]
pub struct BestFile {
    path: PathBuf,
    /// What the file says of the run.
    metadata: BTreeMap<String, String>,
}

impl BestFile {
    /// The file in an output folder. `metadata` is what weight files say of the run.
    pub fn new(output: &Path, metadata: BTreeMap<String, String>) -> Self {
        Self {
            path: output.join(BEST_FILE),
            metadata,
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the weights of an epoch are in it.
    pub fn holds(&self, best: &Best) -> bool {
        StateDictFile::open(&self.path).is_ok_and(|file| {
            let mut pairs = words(best).into_iter();
            pairs.all(|(key, word)| file.metadata().get(key) == Some(&word))
        })
    }

    /// Writes the weights of the best checkpoint as a whole, unless they are there already.
    ///
    /// Errors: why they cannot be read or written.
    pub fn ensure(&self, best: &Best, checkpoint: &Path) -> Result<(), BestError> {
        if self.holds(best) {
            return Ok(());
        }
        let checkpoint = Checkpoint::open(checkpoint)?;
        let tensors: BTreeMap<&str, &TensorEntry> = checkpoint.evaluated().collect();
        let entries = checkpoint.evaluated().map(entry);
        let mut metadata = self.metadata.clone();
        metadata.extend(words(best).map(|(key, word)| (key.to_owned(), word)));
        let mut writer = Writer::create(&self.path, entries.collect(), &metadata)?;
        let mut reader = checkpoint.reader();
        while let Some(Entry {
            name,
            element,
            shape,
        }) = writer.next()
        {
            let elements: usize = shape.iter().product();
            let stored = &tensors[name.as_str()].name;
            // A tensor without elements is given once, too.
            for piece in 0..elements.div_ceil(PIECE).max(1) {
                let start = piece * PIECE;
                let values = reader.read(stored, start..elements.min(start + PIECE))?;
                let values = match element {
                    ElementType::F64 => Values::F64(values),
                    ElementType::F32 | ElementType::I64 | ElementType::Other(..) => {
                        Values::F32(values.into_iter().map(|value| value as f32).collect())
                    }
                };
                writer.push_part(&values)?;
            }
        }
        Ok(writer.finish()?)
    }
}

/// What the file says of its epoch.
fn words(best: &Best) -> [(&'static str, String); 4] {
    [
        ("epoch", best.epoch.to_string()),
        ("metric", best.metric.clone()),
        ("value", best.value.to_string()),
        ("checkpoint", best.checkpoint.clone()),
    ]
}

fn entry((name, tensor): (&str, &TensorEntry)) -> Entry {
    Entry {
        name: name.to_owned(),
        element: if tensor.dtype == Dtype::F64 {
            ElementType::F64
        } else {
            ElementType::F32
        },
        shape: tensor.shape.to_vec(),
    }
}

/// Why a resumed run does not compare its epochs with the best of those before.
#[derive(Debug, thiserror::Error)]
pub enum BeginsAnew {
    /// It looks for no best epoch.
    #[error(
        "`best` was \"{}\" in the checkpoint and is not set from here on: {} stays that of epoch {}",
        best.metric, file.display(), best.epoch
    )]
    Unset {
        /// That of the checkpoint.
        best: Best,
        /// Its weights.
        file: PathBuf,
    },
    /// It looks for another one.
    #[error(
        "`best` was \"{before}\" in the checkpoint and is \"{now}\" from here on: the best epoch is one of those to \
         come"
    )]
    OtherMetric {
        /// What was compared.
        before: String,
        /// What is compared.
        now: &'static str,
    },
    /// Its weights are lost.
    #[error(
        "the weights of the best epoch so far, {epoch}, cannot be had ({error}): the best epoch is one of those to come"
    )]
    Lost {
        /// The epoch.
        epoch: u64,
        /// Why.
        error: Box<BestError>,
    },
}

/// The best epoch with which a resumed run compares its own, its weights put in place: `None` where it has to begin anew.
///
/// `from` is the checkpoint from which it resumes. Errors: why it begins anew.
pub fn resumed(
    file: &BestFile,
    metric: Option<BestMetric>,
    best: Option<Best>,
    from: &Path,
) -> Result<Option<Best>, BeginsAnew> {
    let Some(best) = best else {
        // That of a run that this one replaced.
        let _ = fs::remove_file(file.path());
        return Ok(None);
    };
    let Some(metric) = metric else {
        let file = file.path().to_owned();
        return Err(BeginsAnew::Unset { best, file });
    };
    if best.metric != metric.name() {
        return Err(BeginsAnew::OtherMetric {
            before: best.metric,
            now: metric.name(),
        });
    }
    let folder = from.parent().unwrap_or(from);
    match file.ensure(&best, &folder.join(&best.checkpoint)) {
        Ok(()) => Ok(Some(best)),
        Err(error) => Err(BeginsAnew::Lost {
            epoch: best.epoch,
            error: Box::new(error),
        }),
    }
}
