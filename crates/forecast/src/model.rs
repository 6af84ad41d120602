//! Models by name or file.

use partita_files::read_piped_text;
use partita_graph::{Graph, text, zoo};
use partita_import::{ImportError, Imported, Options};
use partita_site::near_file::{files_in, near_file};
use partita_site::{ErrorKind, Fault};
use partita_space::help::{Help, extend};
use partita_space::near;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What the name of a model file ends in.
const END: &str = "model";
/// What a model may be.
const POSSIBLE: &str = "a file in the form that `partita inspect MODEL --text` prints, a .pt2 file of torch.export.save, an \
                        .onnx file, or a name that `partita models` lists";

/// A model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The zoo has no model of this name and size.
    #[error(transparent)]
    Zoo(#[from] zoo::ModelError),
    /// Nor is there a file of this name, but one like it.
    #[error("{}", extend(source, Help::none().nearest(format_args!("the file `{file}`"))))]
    NearFile {
        /// The nearest of the zoo.
        source: Box<zoo::ModelError>,
        /// The file.
        file: String,
    },
    /// There is no such file.
    #[error(
        "there is no model file {path}{missing}{}",
        Help::possible(POSSIBLE).maybe_nearest(nearest.as_ref())
    )]
    Missing {
        /// The file.
        path: String,
        /// A folder of its path that does not exist either, in words.
        missing: String,
        /// Files and names of the zoo like it, if there are some.
        nearest: Option<String>,
    },
    /// A folder.
    #[error(
        "{path} is a folder, and a model is a file{}",
        Help::possible(POSSIBLE).maybe_code(nearest.as_ref())
    )]
    Folder {
        /// The folder.
        path: String,
        /// A model in it, if there is one.
        nearest: Option<String>,
    },
    /// A file of another kind.
    #[error("{path} is {kind}{}", Help::possible(POSSIBLE).advise(more))]
    Foreign {
        /// The file.
        path: String,
        /// What it is.
        kind: &'static str,
        /// What to do, and where to read on.
        more: &'static str,
    },
    /// The file cannot be read.
    #[error(
        "the model file {path} cannot be read: {source}{}",
        Help::possible(POSSIBLE)
    )]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a model.
    #[error("{path}, {source}")]
    Text {
        /// The file.
        path: String,
        /// The first error in its text.
        source: Box<text::TextError>,
    },
    /// An exported network cannot be imported.
    #[error("{path}: {source}")]
    Import {
        /// The file.
        path: String,
        /// Why.
        source: Box<ImportError>,
    },
    /// An exported network whose loss nothing names.
    #[error(
        "{path} has no loss, as exported networks have none{}",
        Help::possible("the losses of the page \"Models\"").nearest(format_args!("`loss = \"{nearest}\"` in the run file"))
    )]
    NoLoss {
        /// The file.
        path: String,
        /// The loss that its output suggests.
        nearest: String,
    },
}

/// The model of a training: a graph, or one of the zoo or of a file, which is read when it is first needed, and once.
#[derive(Clone, Debug)]
pub struct TrainModel {
    name: String,
    graph: Arc<OnceLock<Graph>>,
}

impl TrainModel {
    /// The model of a text in the form of model files.
    ///
    /// Errors: the first fault of the text.
    pub fn of_text(model: &str) -> Result<Self, ModelError> {
        let graph = text::parse(model).map_err(|source| ModelError::Text {
            path: "the text of the model".to_owned(),
            source: Box::new(source),
        })?;
        Ok(graph.into())
    }

    /// The name of the zoo or the path of the model file; of a graph, its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its graph.
    ///
    /// Errors: a model that cannot be read.
    pub fn graph(&self) -> Result<&Graph, ModelError> {
        if let Some(known) = self.graph.get() {
            return Ok(known);
        }
        let graph = resolve(&self.name)?;
        Ok(self.graph.get_or_init(|| graph))
    }
}

impl From<Graph> for TrainModel {
    fn from(graph: Graph) -> Self {
        Self {
            name: graph.name.clone(),
            graph: Arc::new(OnceLock::from(graph)),
        }
    }
}

impl From<&str> for TrainModel {
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl From<String> for TrainModel {
    fn from(name: String) -> Self {
        let graph = Arc::default();
        Self { name, graph }
    }
}

impl Fault for ModelError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// The graph of a model: of a file if `asked` exists or looks like a path, else of the zoo.
///
/// Errors: a file that cannot be read, a text that is no model, a name that the zoo does not have.
pub fn resolve(asked: &str) -> Result<Graph, ModelError> {
    let path = Path::new(asked);
    if !is_path(asked) {
        return zoo::build(asked).map_err(|error| match near_file(path, END) {
            Some(file) if matches!(error, zoo::ModelError::UnknownModel { .. }) => {
                ModelError::NearFile {
                    source: Box::new(error),
                    file,
                }
            }
            Some(_) | None => error.into(),
        });
    }
    if is_exported(path) {
        return Ok(import(asked, &Options::default())?.graph);
    }
    if let Some((kind, more)) = foreign(path) {
        return Err(ModelError::Foreign {
            path: asked.to_owned(),
            kind,
            more,
        });
    }
    let text = read_piped_text(path).map_err(|error| unreadable(asked, error))?;
    let not_a_model = |source| ModelError::Text {
        path: asked.to_owned(),
        source: Box::new(source),
    };
    text::parse(&text).map_err(not_a_model)
}

/// Imports an exported network.
///
/// Errors: a file that cannot be read or expressed.
pub fn import(path: &str, options: &Options) -> Result<Imported, ModelError> {
    partita_import::read(path.as_ref(), options).map_err(|source| ModelError::Import {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// Checks that the loss of a model is not only assumed.
///
/// Errors: an exported network, which has none.
pub fn check_loss(name: &str, graph: &Graph) -> Result<(), ModelError> {
    if !is_exported(Path::new(name)) {
        return Ok(());
    }
    let nearest = graph.nodes.last().map_or("", |loss| loss.op.keyword());
    Err(ModelError::NoLoss {
        path: name.to_owned(),
        nearest: nearest.to_owned(),
    })
}

fn is_exported(path: &Path) -> bool {
    let mut ends = partita_import::ENDS.into_iter();
    ends.any(|known| path.extension().is_some_and(|end| end == known))
}

/// Where the page of the manual is that says how a network is written.
const PYTORCH_PAGE: &str = "\"From PyTorch\" in the page \"Models\" of the manual (docs/src/model.md) has the text of each layer \
                            of PyTorch";

/// What a file of another kind is, by the end of its name, and where to read on.
fn foreign(path: &Path) -> Option<(&'static str, &'static str)> {
    let end = path.extension()?.to_str()?.to_lowercase();
    Some(match end.as_str() {
        "py" | "ipynb" => (
            "Python, and a model is a text that lists its layers",
            PYTORCH_PAGE,
        ),
        "pb" | "tflite" => (
            "a network of another format, which is not read",
            PYTORCH_PAGE,
        ),
        "pt" | "pth" | "ckpt" | "safetensors" => (
            "a file of weights, and a model is a text that lists its layers",
            "its weights are named in `weights` of the run file; \"PyTorch\" in the page \"Trained weights\" \
             (docs/src/weights.md) says how they come in",
        ),
        _ => return None,
    })
}

/// Names of the zoo have no dot before the `@`.
fn is_path(asked: &str) -> bool {
    let path = Path::new(asked);
    let has_end = path.extension().is_some() && !asked.contains('@');
    path.exists()
        || has_end
        || path.extension().is_some_and(|end| end == END)
        || asked.contains(std::path::is_separator)
}

fn unreadable(asked: &str, source: io::Error) -> ModelError {
    let path = Path::new(asked);
    if path.is_dir() {
        let found = files_in(path, END).into_iter().next();
        return ModelError::Folder {
            path: asked.to_owned(),
            nearest: found.map(|file| path.join(file).display().to_string()),
        };
    }
    if source.kind() != io::ErrorKind::NotFound {
        return ModelError::Unreadable {
            path: asked.to_owned(),
            source,
        };
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let of_zoo = zoo::names();
    let named = of_zoo.iter().find(|known| path.ends_with(known)).cloned();
    let similar = || near(&name, of_zoo.iter().map(String::as_str)).map(str::to_owned);
    let nearest = [near_file(path, END), named.or_else(similar)];
    let nearest: Vec<String> = nearest
        .into_iter()
        .flatten()
        .map(|one| format!("`{one}`"))
        .collect();
    let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
    let missing = path
        .parent()
        .filter(|parent| folder.is_some_and(|found| found != *parent));
    ModelError::Missing {
        path: asked.to_owned(),
        missing: match missing.filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => format!(", nor a folder {}", parent.display()),
            None => String::new(),
        },
        nearest: (!nearest.is_empty()).then(|| nearest.join(" or ")),
    }
}
