//! Errors of the text form.

use super::GraphError;
use partita_space::Help;
use partita_space::help::indent;
use thiserror::Error;

/// Why a text is not a model. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TextError {
    /// The text does not begin with its model line.
    #[error(
        "line {line}: {asked:?} is not possible here: the first line is `model NAME`{}",
        Help::none().code(nearest)
    )]
    Model {
        /// Where.
        line: usize,
        /// What stands there.
        asked: String,
        /// As it could be.
        nearest: String,
    },
    /// A line that is neither an input nor a node.
    #[error("line {line}: {asked:?} is no node{}", Help::possible(possible).code(nearest))]
    Form {
        /// Where.
        line: usize,
        /// What stands there.
        asked: String,
        /// The forms of a line.
        possible: &'static str,
        /// As it could be.
        nearest: String,
    },
    /// An operation that does not exist.
    #[error(
        "line {line}: there is no operation `{asked}`{}",
        Help::possible(possible).code(nearest)
    )]
    UnknownOperation {
        /// Where.
        line: usize,
        /// As given.
        asked: String,
        /// All operations.
        possible: String,
        /// The most similar of them.
        nearest: String,
    },
    /// A key that the operation does not have.
    #[error(
        "line {line}: {operation} has no key `{asked}`{}",
        Help::possible(possible).nearest(nearest)
    )]
    UnknownKey {
        /// Where.
        line: usize,
        /// The operation.
        operation: &'static str,
        /// As given.
        asked: String,
        /// Its keys.
        possible: String,
        /// What to write instead: that of the same meaning, or the most similar, with its quotes.
        nearest: String,
    },
    /// A key given twice.
    #[error(
        "line {line}: key `{key}` is given twice{}",
        Help::none().code(format_args!("{key}={nearest}"))
    )]
    DuplicateKey {
        /// Where.
        line: usize,
        /// The key.
        key: String,
        /// Its first value.
        nearest: String,
    },
    /// A key that must be given.
    #[error(
        "line {line}: {operation} needs the key `{key}`{}",
        Help::possible(possible).code(format_args!("{key}={nearest}"))
    )]
    MissingKey {
        /// Where.
        line: usize,
        /// The operation.
        operation: &'static str,
        /// The key.
        key: &'static str,
        /// What its value may be.
        possible: String,
        /// A customary value.
        nearest: String,
    },
    /// A value that its key cannot have.
    #[error(
        "line {line}: `{key}={asked}` is not possible{}",
        Help::possible(possible).code(format_args!("{key}={nearest}"))
    )]
    Value {
        /// Where.
        line: usize,
        /// The key.
        key: &'static str,
        /// As given.
        asked: String,
        /// What the value may be.
        possible: String,
        /// The nearest of them.
        nearest: String,
    },
    /// A value that belongs to another key.
    #[error(
        "line {line}: `{key}={asked}` is not possible{}",
        Help::possible(possible).code(nearest)
    )]
    OtherKey {
        /// Where.
        line: usize,
        /// The key.
        key: &'static str,
        /// As given.
        asked: String,
        /// What the value may be.
        possible: String,
        /// The other key, with the value.
        nearest: String,
    },
    /// A line that does not fit the graph.
    #[error("line {line}: {error}")]
    Graph {
        /// Where.
        line: usize,
        /// Why.
        error: Box<GraphError>,
    },
    /// Several faults.
    #[error("{} faults:{}", .faults.len(), listed(faults))]
    Several {
        /// In the order of the lines.
        faults: Vec<Self>,
    },
}

/// Most faults that are shown.
const SHOWN: usize = 20;

impl TextError {
    /// One fault as it is, or several.
    pub(crate) fn of(mut faults: Vec<Self>) -> Self {
        match faults.len() {
            1 => faults.remove(0),
            _ => Self::Several { faults },
        }
    }
}

/// Each fault on lines of its own, with its help below it.
fn listed(faults: &[TextError]) -> String {
    let shown = faults.iter().take(SHOWN);
    let mut text: String = shown
        .map(|fault| format!("\n  {}", indent(&indent(fault))))
        .collect();
    if let Some(more) = faults.len().checked_sub(SHOWN + 1) {
        text += &format!("\n  and {} more", more + 1);
    }
    text
}
