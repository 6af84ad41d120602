//! Reads the text form of a model line by line, and tells all that is wrong with it.
//!
//! A line that reads a faulty one, or shares its parameters, may fail only because of that: of such a line only the words
//! and values are checked.

use super::TextError;
use super::parse::{check_values, parse_line, refuse};
use crate::unused::unused;
use crate::{Graph, GraphBuilder, GraphError, NodeId};
use std::collections::HashSet;

/// Most faults that are told of one line.
const FAULTS_PER_LINE: usize = 16;
/// Faults after which no more lines are read.
const FAULTS_MAX: usize = 1000;

/// Reads a model from its text form, see the module.
///
/// Errors: all faulty lines, what was asked, what is possible and the nearest of it.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    let mut lines = text.lines().enumerate().filter_map(|(i, line)| {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        let words: Vec<&str> = line.split_whitespace().collect();
        (!words.is_empty()).then_some((i + 1, words))
    });
    let (line, words) = lines.next().unwrap_or((1, Vec::new()));
    let (builder, fault) = parse_model(line, &words);
    let is_input = fault.is_some() && words.first() == Some(&"input");
    let mut reader = Reader::new(builder, fault.into_iter().collect(), line);
    // Without the line of the model the first one may be the input.
    let first = is_input.then_some((line, words));
    for (line, words) in first.into_iter().chain(lines) {
        if !reader.read(line, &words) {
            break;
        }
    }
    let Reader {
        builder,
        mut faults,
        places,
        ..
    } = reader;
    let unused = unused(&builder.graph);
    let last = places[places.len() - 1];
    match builder.build() {
        _ if !faults.is_empty() => {}
        Ok(graph) => return Ok(graph),
        Err(GraphError::Unused { .. }) => {
            let each = unused.into_iter();
            faults.extend(each.map(|(NodeId(id), error)| refuse(places[id + 1], error)));
        }
        Err(error) => faults.push(refuse(last, error)),
    }
    Err(TextError::of(faults))
}

/// The builder, and what is wrong with the line. A model of which that is all has another name.
fn parse_model(line: usize, words: &[&str]) -> (GraphBuilder, Option<TextError>) {
    let misplaced = |nearest: String| TextError::Model {
        line,
        asked: words.join(" "),
        nearest,
    };
    let fault = match words {
        ["model", name] => match GraphBuilder::new(name) {
            Ok(builder) => return (builder, None),
            Err(error) => refuse(line, error),
        },
        ["model", first, ..] => misplaced(format!("model {first}")),
        _ => misplaced("model unnamed".to_owned()),
    };
    (GraphBuilder::unnamed(), Some(fault))
}

/// Reads lines into a builder, and goes on after a faulty one.
struct Reader {
    builder: GraphBuilder,
    faults: Vec<TextError>,
    /// The line of each node, after that of the model.
    places: Vec<usize>,
    /// Names of lines that are faulty, or read one that is.
    doubtful: HashSet<String>,
}

impl Reader {
    /// With what the first line says.
    fn new(builder: GraphBuilder, faults: Vec<TextError>, line: usize) -> Self {
        Self {
            builder,
            faults,
            places: vec![line],
            doubtful: HashSet::new(),
        }
    }

    /// Reads a line. False if those after it are not to be read: the spatial dims of the model are not known, or there are
    /// too many faults.
    fn read(&mut self, line: usize, words: &[&str]) -> bool {
        let mut rest = words.iter().skip(3);
        if rest.any(|word| self.is_doubtful(word)) {
            let unknown = self.unknown_inputs(line, words);
            self.faults.extend(unknown);
            self.check_words(line, words, None);
            return self.faults.len() < FAULTS_MAX;
        }
        if self.builder.spatial_rank() == 0 && words.first() != Some(&"input") {
            let node = words[0].to_owned();
            self.faults.push(refuse(line, GraphError::NoInput { node }));
            return false;
        }
        match parse_line(&mut self.builder, line, words) {
            // A line may add the padding of its input before.
            Ok(NodeId(last)) => self.places.resize(last + 2, line),
            Err(error) => {
                let unknown = self.unknown_inputs(line, words);
                let others = unknown.into_iter().filter(|one| *one != error);
                let others: Vec<TextError> = others.collect();
                self.check_words(line, words, Some(error));
                self.faults.extend(others);
            }
        }
        self.builder.spatial_rank() > 0 && self.faults.len() < FAULTS_MAX
    }

    /// Inputs of a line that no line before has.
    fn unknown_inputs(&self, line: usize, words: &[&str]) -> Vec<TextError> {
        let [_, "=", _, rest @ ..] = words else {
            return Vec::new();
        };
        let inputs = rest.iter().filter(|word| !word.contains('='));
        let unknown = inputs.filter(|word| !self.is_doubtful(word));
        let errors = unknown.filter_map(|word| self.builder.find(word).err());
        errors.map(|error| refuse(line, error)).collect()
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
            if let ["input", name, ..] = words {
                self.doubtful.insert((*name).to_owned());
            }
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
            // An error that its correction did not mend is reported once, and one that a correction caused is not.
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
