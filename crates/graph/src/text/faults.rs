//! What is wrong with a text, of all its lines.
//!
//! A line that reads a faulty one, or shares its parameters, may fail only because of that: of such a line only the words
//! and values are checked.

use super::TextError;
use super::parse::{check_values, parse_line};
use crate::{GraphBuilder, NodeId};
use std::collections::HashSet;

/// Most faults that are told of one line.
const FAULTS_PER_LINE: usize = 16;
/// Faults after which no more lines are read.
const FAULTS_MAX: usize = 1000;

/// Reads lines into a builder, and goes on after a faulty one.
pub(super) struct Reader {
    pub(super) builder: GraphBuilder,
    pub(super) faults: Vec<TextError>,
    /// The line of each node, after that of the model.
    pub(super) places: Vec<usize>,
    /// Names of lines that are faulty, or read one that is.
    doubtful: HashSet<String>,
}

impl Reader {
    /// With what the first line says.
    pub(super) fn new(builder: GraphBuilder, faults: Vec<TextError>, line: usize) -> Self {
        Self {
            builder,
            faults,
            places: vec![line],
            doubtful: HashSet::new(),
        }
    }

    /// Reads a line. False if those after it are not to be read: the spatial dims of the model are not known, or there are
    /// too many faults.
    pub(super) fn read(&mut self, line: usize, words: &[&str]) -> bool {
        let mut rest = words.iter().skip(3);
        if rest.any(|word| self.is_doubtful(word)) {
            self.check_words(line, words, None);
            return self.faults.len() < FAULTS_MAX;
        }
        match parse_line(&mut self.builder, line, words) {
            // A line may add the padding of its input before.
            Ok(NodeId(last)) => self.places.resize(last + 2, line),
            Err(error) => self.check_words(line, words, Some(error)),
        }
        self.builder.spatial_rank() > 0 && self.faults.len() < FAULTS_MAX
    }

    /// Whether a word is the name of a doubtful line, or of a parameter of one.
    fn is_doubtful(&self, word: &str) -> bool {
        let value = word.split_once('=').map_or(word, |(_, value)| value);
        let layer = value.rsplit_once('.').map_or(value, |(layer, _)| layer);
        self.doubtful.contains(value) || self.doubtful.contains(layer)
    }

    /// Adds the faults of a line, of which one may be known. Each is corrected as it suggests, so that the next is found.
    fn check_words(&mut self, line: usize, words: &[&str], mut known: Option<TextError>) {
        let [name, "=", operation, rest @ ..] = words else {
            self.faults.extend(known);
            return;
        };
        self.doubtful.insert((*name).to_owned());
        let mut rest: Vec<String> = rest.iter().map(|&word| word.to_owned()).collect();
        for _ in 0..FAULTS_PER_LINE {
            let words: Vec<&str> = rest.iter().map(String::as_str).collect();
            let is_known = known.is_some();
            let found = || check_values(&self.builder, line, operation, &words).err();
            let Some(error) = known.take().or_else(found) else {
                return;
            };
            let is_of_graph = matches!(error, TextError::Graph { .. });
            // What its correction did not mend is told once, and what a correction broke is not told.
            if !is_known && (is_of_graph || self.faults.last() == Some(&error)) {
                return;
            }
            let is_corrected = is_of_graph || correct(&mut rest, &error);
            self.faults.push(error);
            if !is_corrected {
                return;
            }
        }
    }
}

/// Corrects the words of a line as an error suggests; false if it suggests no word.
fn correct(words: &mut Vec<String>, error: &TextError) -> bool {
    let is_of = |key: &str, word: &String| {
        let found = word.split_once('=');
        found.is_some_and(|(other, _)| other == key)
    };
    match error {
        TextError::UnknownKey { asked, nearest, .. } => {
            let meant = nearest
                .strip_prefix('`')
                .and_then(|key| key.strip_suffix('`'));
            let has_it = meant.is_some_and(|key| words.iter().any(|word| is_of(key, word)));
            match (meant, words.iter_mut().find(|word| is_of(asked, word))) {
                (Some(key), Some(word)) if !has_it => word.replace_range(..asked.len(), key),
                _ => words.retain(|word| !is_of(asked, word)),
            }
        }
        TextError::OtherKey { key, nearest, .. } => {
            words.retain(|word| !is_of(key, word));
            words.push(nearest.clone());
        }
        TextError::DuplicateKey { key, .. } => {
            if let Some(last) = words.iter().rposition(|word| is_of(key, word)) {
                words.remove(last);
            }
        }
        TextError::MissingKey { key, nearest, .. } => words.push(format!("{key}={nearest}")),
        TextError::Value { key, nearest, .. } => {
            words.retain(|word| !is_of(key, word));
            if !nearest.starts_with('(') {
                words.push(format!("{key}={nearest}"));
            }
        }
        TextError::Model { .. }
        | TextError::Form { .. }
        | TextError::UnknownOperation { .. }
        | TextError::Graph { .. }
        | TextError::Several { .. } => return false,
    }
    true
}
