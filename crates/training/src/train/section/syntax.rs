//! Faults of the TOML text itself.

use super::RunFileError;
use partita_files::line_at;
use toml::de::{DeTable, Error};

/// The error of a text that is not TOML; of a key that is there twice it names both lines.
pub fn syntax(file: &str, text: &str, error: &Error) -> RunFileError {
    let start = error.span().map_or(0, |span| span.start);
    let line = line_at(text, start);
    let twice = error
        .message()
        .contains("duplicate key")
        .then(|| twice(text, error))
        .flatten();
    RunFileError::Syntax {
        file: file.to_owned(),
        line,
        reason: twice.unwrap_or_else(|| error.message().to_owned()),
    }
}

/// Names a key that is there twice, and the line where it was first.
fn twice(text: &str, error: &Error) -> Option<String> {
    let span = error.span()?;
    let key = text
        .get(span.clone())?
        .trim_matches(['"', '\'', '[', ']', ' ']);
    let before = text.get(..span.start)?;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let header = |line: &str| Some(line.trim().strip_prefix('[')?.split(']').next()?.to_owned());
    let is_header = text.get(start..span.start)?.contains('[');
    let table = if is_header {
        None
    } else {
        before.get(..start)?.lines().rev().find_map(header)
    };
    // What stands above is valid TOML.
    let above = DeTable::parse(before.get(..start)?).ok()?;
    let mut within = above.get_ref();
    for name in table.iter().flat_map(|table| table.split('.')) {
        within = within.get(name.trim())?.get_ref().as_table()?;
    }
    let (first, _) = within.iter().find(|(name, _)| name.get_ref() == key)?;
    let first = line_at(text, first.span().start);
    let full = table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}"));
    Some(if is_header {
        format!(
            "the table `[{full}]` is there twice, first in line {first}; put its keys in one of them"
        )
    } else {
        format!("the key `{full}` is there twice, first in line {first}; leave one of them out")
    })
}
