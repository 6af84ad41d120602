//! Writes the weights of a run from the arenas to a file, in any folder that can be written.

use super::output::{Output, WEIGHTS, rescue_folders};
use super::run::Run;
use crate::weights::{DIMS, ORDER, WeightNames};
use partita_formats::DataError;
use partita_input::DataRecord;
use partita_program::Dtype;
use partita_run::PackedTensor;
use partita_session::{PersistentTensor, Session};
use partita_site::launch::{Launch, NotSaved, TensorSink};
use partita_site::{Context, Event};
use partita_weights::{ElementType, Entry, Values, Writer};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the weights tensor by tensor to the output folder. If that fails, it requests all tensors again for
/// another folder, so the weights are lost only if no folder can be written.
pub struct WeightSink<'c> {
    context: &'c Context,
    /// `None` on a rank that does not write, and where the weights stay in memory.
    output: Option<Output>,
    /// The weights, where they stay in memory.
    memory: Option<Vec<WeightTensor>>,
    /// Alternative folders, the next one last.
    folders: Vec<PathBuf>,
    /// The current folder; `None` for the output folder.
    rescue: Option<PathBuf>,
    metadata: BTreeMap<String, String>,
    tensors: Vec<Entry>,
    /// The writer, from the first tensor on.
    writer: Option<Writer>,
    /// Errors of earlier folders, and of the current one.
    faults: Vec<String>,
    has_failed: bool,
}

/// Values of a parameter or running statistic, by its name in the model.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightTensor {
    /// Its name.
    pub name: String,
    /// Its shape, in the order of dims of weight files.
    pub shape: Vec<usize>,
    /// Its values, the last dim fastest.
    pub values: Values,
}

/// A folder cannot hold the weights.
#[derive(Debug, thiserror::Error)]
enum FolderFault {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("nothing was trained")]
    NothingTrained,
    #[error("it was removed or replaced while the run trained")]
    Gone,
}

/// Weights that were saved.
pub struct SavedWeights {
    /// The requested folder; none where they are in memory.
    pub output: Option<Output>,
    /// The weights in memory.
    pub tensors: Vec<WeightTensor>,
    /// The actual folder, if it is another.
    pub rescue: Option<PathBuf>,
    /// Why.
    pub faults: Vec<String>,
}

impl SavedWeights {
    /// The folder of the weights; none where they are in memory.
    pub fn folder(&self) -> Option<&Path> {
        let asked = self.output.as_ref().map(Output::path);
        self.rescue.as_deref().or(asked)
    }
}

impl<'c> WeightSink<'c> {
    /// A sink without a file yet, of weights with this record of their data. Without an output folder rank 0 keeps them.
    pub fn new(
        launch: &Launch<'c>,
        run: &Run,
        session: &Session<'_>,
        record: &DataRecord,
        output: Option<Output>,
    ) -> Self {
        let entry = |tensor: PersistentTensor| Entry {
            element: element(&tensor),
            name: tensor.name,
            shape: tensor.dims.to_vec(),
        };
        let context = launch.context();
        let rescue = |output: &Path| rescue_folders(output, context.environment());
        let mut folders = run.output.as_deref().map_or_else(Vec::new, rescue);
        folders.reverse();
        Self {
            context,
            output,
            memory: (launch.is_first() && run.output.is_none()).then(Vec::new),
            folders,
            rescue: None,
            metadata: metadata(run, session, record),
            tensors: session
                .persistent_tensors()
                .into_iter()
                .map(entry)
                .collect(),
            writer: None,
            faults: Vec::new(),
            has_failed: false,
        }
    }

    /// The output folder, on the rank that writes.
    pub fn output_folder(&self) -> Option<&Path> {
        self.output.as_ref().map(Output::path)
    }

    /// The saved weights; `None` on a rank that does not write.
    pub fn saved(self) -> Option<SavedWeights> {
        if self.output.is_none() && self.memory.is_none() {
            return None;
        }
        Some(SavedWeights {
            output: self.output,
            tensors: self.memory.unwrap_or_default(),
            rescue: self.rescue,
            faults: self.faults,
        })
    }

    fn folder(&self) -> &Path {
        let output = self
            .output
            .as_ref()
            .expect("the rank that writes has an output folder");
        self.rescue.as_deref().unwrap_or(output.path())
    }

    fn push(&mut self, values: &Values) -> Result<(), FolderFault> {
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                self.check_folder()?;
                let path = self.folder().join(WEIGHTS);
                Writer::create(path, self.tensors.clone(), &self.metadata)?
            }
        };
        writer.push(values)?;
        self.writer = Some(writer);
        Ok(())
    }

    fn place(&mut self) -> Result<(), FolderFault> {
        let writer = self.writer.take().ok_or(FolderFault::NothingTrained)?;
        let file = writer.complete()?;
        self.check_folder()?;
        match &mut self.output {
            Some(output) if self.rescue.is_none() => output.place_weights(file)?,
            Some(_) | None => file.place()?,
        }
        Ok(())
    }

    /// Checks that the output folder is still the locked one.
    fn check_folder(&self) -> Result<(), FolderFault> {
        let output = self.output.as_ref().filter(|_| self.rescue.is_none());
        if output.is_some_and(Output::is_gone) {
            Err(FolderFault::Gone)
        } else {
            Ok(())
        }
    }

    /// Switches to the next folder that can be created.
    fn move_on(&mut self) -> Result<(), NotSaved> {
        if let Some(rescue) = self.rescue.take() {
            // Empty, because the writer has removed its file.
            let _ = fs::remove_dir(rescue);
        }
        while let Some(folder) = self.folders.pop() {
            match partita_files::create_private(&folder) {
                Ok(()) => {
                    self.rescue = Some(folder);
                    return Ok(());
                }
                Err(error) => self.faults.push(fault(&folder, &error)),
            }
        }
        let faults = self.faults.clone();
        Err(NotSaved { faults })
    }

    fn fail(&mut self, reason: &FolderFault) {
        let text = fault(self.folder(), reason);
        let warning = format!("{text}; looking for another place");
        self.context.report(Event::Warning(&warning));
        self.faults.push(text);
        self.writer = None;
        self.has_failed = true;
    }
}

/// What weight files say of their run.
pub fn metadata(run: &Run, session: &Session<'_>, record: &DataRecord) -> BTreeMap<String, String> {
    let own = [
        ("model", run.model.name().to_owned()),
        (DIMS.0, DIMS.1.to_owned()),
        (ORDER, WeightNames::Partita.name().to_owned()),
        ("seed", run.seed.to_string()),
        ("epochs", run.epochs.to_string()),
        ("digest", session.main_program().digest()),
    ];
    let ema = run.ema.map(|decay| ("ema", decay.to_string()));
    let own = own.into_iter().chain(ema);
    let own = own.map(|(key, value)| (key.to_owned(), value));
    own.chain(record.metadata()).collect()
}

fn element(tensor: &PersistentTensor) -> ElementType {
    match tensor.dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F64 => ElementType::F64,
        Dtype::Bf16 | Dtype::F16 | Dtype::I16 => panic!("`{}` is kept in f32 or f64", tensor.name),
    }
}

fn fault(folder: &Path, reason: &dyn Error) -> String {
    format!("{} cannot hold the results ({reason})", folder.display())
}

impl TensorSink for WeightSink<'_> {
    fn keep(&mut self, tensor: &PersistentTensor, values: PackedTensor) {
        if self.has_failed {
            return;
        }
        let values = match values {
            PackedTensor::F32(values) => Values::F32(values),
            PackedTensor::F64(values) => Values::F64(values),
            PackedTensor::Bf16(_) | PackedTensor::F16(_) | PackedTensor::I16(_) => {
                panic!("`{}` is kept in f32 or f64", tensor.name)
            }
        };
        if let Some(memory) = &mut self.memory {
            return memory.push(WeightTensor {
                name: tensor.name.clone(),
                shape: tensor.dims.to_vec(),
                values,
            });
        }
        if let Err(error) = self.push(&values) {
            self.fail(&error);
        }
    }

    fn finish(&mut self) -> Result<bool, NotSaved> {
        if !self.has_failed
            && self.memory.is_none()
            && let Err(reason) = self.place()
        {
            self.fail(&reason);
        }
        if !std::mem::take(&mut self.has_failed) {
            return Ok(true);
        }
        self.move_on()?;
        Ok(false)
    }
}
