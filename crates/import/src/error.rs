//! What keeps a file from becoming a graph.

use partita_graph::GraphError;
use partita_space::Help;
use std::fmt;
use std::io;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file is no archive of `torch.export.save`, or is damaged.
    #[error(
        "it is not what torch.export.save writes: {fault}{}",
        Help::advice(
            "write it by `torch.export.save(torch.export.export(module, (example,)), FILE)`"
        )
    )]
    Damaged {
        /// What is wrong.
        fault: Reason,
    },
    /// The file is no ONNX model, or is damaged.
    #[error(
        "{fault}{}",
        Help::advice("write it by `torch.onnx.export(module, (example,), FILE, dynamo=True)`")
    )]
    DamagedOnnx {
        /// What is wrong.
        fault: Reason,
    },
    /// The operators of an ONNX model have another version.
    #[error(
        "it has opset {found} of ONNX's operators, and {least} to {most} are read{}",
        Help::advice(
            "export it again with another opset, or convert it by `onnx.version_converter`"
        )
    )]
    Opset {
        /// Its version; 0 if it says none.
        found: i64,
        /// The first that is read.
        least: i64,
        /// The last that is read.
        most: i64,
    },
    /// The file's schema has another major version.
    #[error(
        "it has version {found} of the schema of exported programs, and {possible} is read{}",
        Help::advice("export the module again with PyTorch 2.9 or later")
    )]
    Version {
        /// Its version.
        found: u64,
        /// The version that is read.
        possible: u64,
    },
    /// The network needs operators that the graph lacks.
    #[error("{} of the network's operators cannot be expressed:{}", operators.len(), listed(operators))]
    Unsupported {
        /// All of them.
        operators: Vec<Unsupported>,
    },
    /// Inputs or outputs that a training cannot have.
    #[error("{0}")]
    Interface(String),
    /// The graph refuses a layer.
    #[error(transparent)]
    Graph(Box<GraphError>),
}

impl From<GraphError> for ImportError {
    fn from(error: GraphError) -> Self {
        Self::Graph(Box::new(error))
    }
}

/// Why a part of a network cannot be read, expressed or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// An operator that cannot be expressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its name in the file.
    pub operator: String,
    /// The module that calls it; empty for the network itself.
    pub module: String,
    /// File and line of the module's source, where the export has it.
    pub source: Option<String>,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operator)?;
        if !self.module.is_empty() {
            write!(f, " in `{}`", self.module)?;
        }
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// The first of each operator on a line of its own; the others are counted.
fn listed(all: &[Unsupported]) -> String {
    let mut kinds: Vec<(&Unsupported, usize)> = Vec::new();
    for one in all {
        let is_alike = |other: &&mut (&Unsupported, usize)| other.0.operator == one.operator;
        match kinds.iter_mut().find(is_alike) {
            Some(kind) => kind.1 += 1,
            None => kinds.push((one, 0)),
        }
    }
    let lines = kinds.into_iter().map(|(first, more)| match more {
        0 => format!("\n  {first}"),
        more => format!("\n  {first}; and {more} more"),
    });
    lines.collect()
}
