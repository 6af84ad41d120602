//! Entries of machine and software files, each declared once: read with the line of a fault, and written.
//!
//! [`table!`] declares the keys of a table in the order in which they are written; what stands under a key is the
//! [`Entry`] of its field.

use crate::error::MachineError;
use crate::words::bare;
use partita_files::line_at;
use partita_space::help::Expected;
use partita_space::{BytesPerSecond, UnitTable, near};
use serde::Deserialize;
use std::ops::Range;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

/// What stands under a key.
pub(crate) trait Entry: Sized {
    /// Errors: the first fault.
    fn read(at: &At<'_>) -> Result<Self, MachineError>;

    /// What it means that the key is not there; none where it must be.
    fn absent() -> Option<Self> {
        None
    }

    /// Its line, if it is none of tables.
    fn write_line(&self, _key: &str, _text: &mut String) {}

    /// Its tables, if it is some; `key` has the path.
    fn write_tables(&self, _key: &str, _text: &mut String) {}
}

/// Declares a table by its keys, which are the names of the fields.
///
/// `if CHECK(..)` checks a value before it is read, by a method of [`Table`]. `or default` is for a table that may be
/// absent. `then CHECK` checks the whole.
macro_rules! table {
    ($type:ident $(or $default:ident)? {
        $($field:ident $(if $check:ident($($given:expr),*))?),+ $(,)?
    } $(then $whole:ident)?) => {
        impl $crate::entry::Entry for $type {
            fn read(at: &$crate::entry::At<'_>) -> Result<Self, $crate::MachineError> {
                let table = at.table(&[$(stringify!($field)),+])?;
                let read = Self { $($field: {
                    $(table.$check(stringify!($field), $($given),*)?;)?
                    table.entry(stringify!($field))?
                }),+ };
                $(read.$whole(&table)?;)?
                Ok(read)
            }

            $(fn absent() -> Option<Self> {
                Some(Self::$default())
            })?

            fn write_tables(&self, key: &str, text: &mut String) {
                let [mut lines, mut tables] = [String::new(), String::new()];
                $(self.$field.write_line(stringify!($field), &mut lines);)+
                $(self.$field.write_tables(
                    &$crate::entry::join(key, stringify!($field)),
                    &mut tables,
                );)+
                let is_said = Self::absent().is_none() && tables.is_empty();
                $crate::entry::write_table(key, (lines, tables, is_said), text);
            }
        }
    };
}
pub(crate) use table;

/// The path of a key in a table; that of the file is empty.
pub(crate) fn join(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
    }
}

/// Writes a table with its lines, then those in it. One without lines needs its name only if `is_said`.
pub(crate) fn write_table(
    key: &str,
    (lines, tables, is_said): (String, String, bool),
    text: &mut String,
) {
    if !key.is_empty() && (is_said || !lines.is_empty()) {
        push_line(text, format_args!("\n[{key}]"));
    }
    text.push_str(&lines);
    text.push_str(&tables);
}

pub(crate) fn push_line(text: &mut String, content: std::fmt::Arguments<'_>) {
    text.push_str(&content.to_string());
    text.push('\n');
}

/// A text as TOML.
pub(crate) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// Keys that every machine file has, and no software profile.
pub(crate) const MACHINE_KEYS: [&str; 3] = ["nodes", "device", "links"];
/// Keys that every software profile has, and no machine file.
pub(crate) const SOFTWARE_KEYS: [&str; 2] = ["collectives", "data_store"];

/// The text of a file, for the lines of faults.
#[derive(Clone, Copy)]
pub(crate) struct FileText<'a> {
    pub(crate) text: &'a str,
    pub(crate) file: &'a str,
}

impl FileText<'_> {
    /// Reads all of the file. One that has keys of another kind of file and none of this one's is called so.
    pub(crate) fn read<T: Entry>(
        self,
        (own, others): (&[&str], &[&str]),
        other: fn(String) -> MachineError,
    ) -> Result<T, MachineError> {
        let table = DeTable::parse(self.text).map_err(|error| self.refuse(&error))?;
        let has_any = |keys: &[&str]| keys.iter().any(|key| table.get_ref().contains_key(*key));
        if has_any(others) && !has_any(own) {
            return Err(other(self.file.to_owned()));
        }
        let (span, table) = (table.span(), DeValue::Table(table.into_inner()));
        T::read(&At {
            file: self,
            key: String::new(),
            value: &Spanned::new(span, table),
        })
    }

    pub(crate) fn bad(
        self,
        key: &str,
        offset: usize,
        given: &str,
        expected: impl Into<Expected>,
    ) -> MachineError {
        MachineError::BadValue {
            file: self.file.to_owned(),
            line: self.line(offset).0,
            key: key.to_owned(),
            given: given.to_owned(),
            expected: Box::new(expected.into()),
        }
    }

    pub(crate) fn unknown_key(self, key: &str, offset: usize, possible: &[&str]) -> MachineError {
        MachineError::UnknownKey {
            file: self.file.to_owned(),
            line: self.line(offset).0,
            key: key.to_owned(),
            possible: possible.iter().map(|&name| name.to_owned()).collect(),
            nearest: near(key, possible.iter().copied()).map(str::to_owned),
        }
    }

    fn malformed(self, offset: usize, message: String) -> MachineError {
        let (line, text) = self.line(offset);
        MachineError::Malformed {
            file: self.file.to_owned(),
            line,
            text: text.to_owned(),
            message,
        }
    }

    /// The error of the TOML reader, as [`MachineError::UnknownKey`] or [`MachineError::MissingKey`] if it is one.
    pub(crate) fn refuse(self, error: &toml::de::Error) -> MachineError {
        let span = error.span().unwrap_or_default();
        // serde has no structured form of these errors: the names are in backticks.
        let mut names = error.message().split('`').skip(1).step_by(2);
        let key = names.next().unwrap_or_default();
        if error.message().starts_with("unknown field") {
            return self.unknown_key(key, span.start, &names.collect::<Vec<_>>());
        }
        if error.message().starts_with("missing field") {
            return self.missing(key, Some(span));
        }
        // Whole numbers of TOML have 64 bits; the reader names types of its own beyond them.
        let message = if error.message().contains("` as i128") {
            "a whole number of more than 64 bits"
        } else {
            error.message()
        };
        self.malformed(span.start, message.to_owned())
    }

    /// `table` is where the table of the key begins; none for the file itself.
    fn missing(self, key: &str, table: Option<Range<usize>>) -> MachineError {
        let table = table.map(|span| {
            let (line, text) = self.line(span.start);
            (line, text.to_owned())
        });
        MachineError::MissingKey {
            file: self.file.to_owned(),
            key: key.to_owned(),
            table,
        }
    }

    /// The line (from 1) of a byte offset, and its text.
    fn line(&self, offset: usize) -> (usize, &str) {
        let line = line_at(self.text, offset);
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        (line, text.trim())
    }
}

/// A value of a file.
pub(crate) struct At<'a> {
    pub(crate) file: FileText<'a>,
    /// The key with its path, `links.inter.latency`; empty for the file itself.
    pub(crate) key: String,
    pub(crate) value: &'a Spanned<DeValue<'a>>,
}

impl<'a> At<'a> {
    pub(crate) fn offset(&self) -> usize {
        self.value.span().start
    }

    /// Its table, which has no other keys than these.
    pub(crate) fn table(&self, possible: &[&str]) -> Result<Table<'_>, MachineError> {
        let Some(entries) = self.value.get_ref().as_table() else {
            let kind = self.value.get_ref().type_str();
            let is_fact = possible == FACT;
            let expected = if is_fact { A_FACT } else { "a table" };
            let message = format!("invalid type: {kind}, expected {expected}");
            return Err(self.file.malformed(self.offset(), message));
        };
        match entries
            .keys()
            .find(|key| !possible.contains(&&**key.get_ref()))
        {
            None => Ok(Table { at: self, entries }),
            Some(key) => Err(self
                .file
                .unknown_key(key.get_ref(), key.span().start, possible)),
        }
    }

    /// The error of a key that its table lacks.
    pub(crate) fn missing(&self, key: &str) -> MachineError {
        let is_file = self.key.is_empty();
        let table = (!is_file).then(|| self.value.span());
        self.file.missing(key, table)
    }

    /// Where this fact of the first table of a list stands, if it is one.
    pub(crate) fn first(&self, key: &str) -> Option<usize> {
        let first = self.value.get_ref().as_array()?.first()?;
        let value = first.get_ref().get(key)?.get_ref().get("value")?;
        Some(value.span().start)
    }

    /// It as a value of TOML, or by serde.
    pub(crate) fn by_serde<T: for<'de> Deserialize<'de>>(&self) -> Result<T, MachineError> {
        T::deserialize(ValueDeserializer::from(self.value.clone()))
            .map_err(|error| self.file.refuse(&error))
    }

    /// Errors: as of `read`, with what is expected.
    pub(crate) fn quantity<T>(
        &self,
        key: &str,
        read: fn(&Value) -> Result<T, Expected>,
    ) -> Result<T, MachineError> {
        let value: Value = self.by_serde()?;
        read(&value).map_err(|expected| {
            let given = shown(&value);
            self.file.bad(key, self.offset(), &given, expected)
        })
    }

    /// A text that is not blank.
    fn word(&self) -> Result<String, MachineError> {
        let Some(text) = self.value.get_ref().as_str() else {
            let kind = self.value.get_ref().type_str();
            let message = format!("invalid type: {kind}, expected a string");
            return Err(self.file.malformed(self.offset(), message));
        };
        if text.trim().is_empty() {
            let expected = "a text that is not blank";
            return Err(self.file.bad(&self.key, self.offset(), "empty", expected));
        }
        Ok(text.to_owned())
    }
}

/// A table of a file.
pub(crate) struct Table<'a> {
    at: &'a At<'a>,
    entries: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    /// What stands under a key, if it is there.
    pub(crate) fn get(&self, key: &str) -> Option<At<'a>> {
        self.entries.get(key).map(|value| At {
            file: self.at.file,
            key: join(&self.at.key, key),
            value,
        })
    }

    /// Errors: a missing key, a fault of the entry.
    pub(crate) fn entry<T: Entry>(&self, key: &str) -> Result<T, MachineError> {
        match self.get(key) {
            Some(at) => T::read(&at),
            None => T::absent().ok_or_else(|| self.at.missing(key)),
        }
    }

    /// The values of a list.
    pub(crate) fn list(&self, key: &str) -> Result<Vec<At<'a>>, MachineError> {
        let Some(at) = self.get(key) else {
            return Ok(Vec::new());
        };
        let Some(values) = at.value.get_ref().as_array() else {
            let message = "invalid type, expected a list of tables".to_owned();
            return Err(at.file.malformed(at.offset(), message));
        };
        let within = |value| At {
            file: at.file,
            key: at.key.clone(),
            value,
        };
        Ok(values.iter().map(within).collect())
    }

    /// Where the number of a fact stands; the table itself without one.
    pub(crate) fn offset(&self, path: &[&str]) -> usize {
        let mut value = self.at.value;
        for key in path.iter().chain(&["value"]) {
            let Some(within) = value.get_ref().get(*key) else {
                break;
            };
            value = within;
        }
        value.span().start
    }

    /// An invalid value of a fact below the table.
    pub(crate) fn bad(
        &self,
        path: &[&str],
        given: &str,
        expected: impl Into<Expected>,
    ) -> MachineError {
        self.bad_at((&path.join("."), self.offset(path)), given, expected)
    }

    /// A fault of a key, which is reported at an offset.
    pub(crate) fn bad_at(
        &self,
        (key, offset): (&str, usize),
        given: &str,
        expected: impl Into<Expected>,
    ) -> MachineError {
        let key = join(&self.at.key, key);
        self.at.file.bad(&key, offset, given, expected)
    }

    /// Checks that a share is of all at most; `why` says why it is.
    pub(crate) fn at_most_all(&self, key: &str, why: &str) -> Result<(), MachineError> {
        let value = self
            .entries
            .get(key)
            .and_then(|fact| fact.get_ref().get("value"));
        let Some(value) = value else {
            return Ok(());
        };
        let at = At {
            file: self.at.file,
            key: String::new(),
            value,
        };
        let number: Value = at.by_serde()?;
        if bare(&number) > 0.0 && bare(&number) <= 1.0 {
            return Ok(());
        }
        let expected = format!("a number such as 0.5, above 0 and at most 1, since {why}");
        Err(self.bad(&[key], &shown(&number), expected))
    }

    /// Checks that a rate is no more than that of the whole.
    pub(crate) fn at_most(
        &self,
        (part_key, part): (&str, BytesPerSecond),
        (whole_key, whole): (&str, BytesPerSecond),
    ) -> Result<(), MachineError> {
        if part.0 <= whole.0 {
            return Ok(());
        }
        let shown = |rate: BytesPerSecond| quoted(&UnitTable::BYTES_PER_SECOND.exact(rate.0));
        let part_key = join(&self.at.key, part_key);
        let expected = format!("at least {part_key}, which is {}", shown(part));
        Err(self.bad(&[whole_key], &shown(whole), expected))
    }
}

impl<T: Entry> Entry for Option<T> {
    fn read(at: &At<'_>) -> Result<Self, MachineError> {
        T::read(at).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn write_line(&self, key: &str, text: &mut String) {
        if let Some(entry) = self {
            entry.write_line(key, text);
        }
    }

    fn write_tables(&self, key: &str, text: &mut String) {
        if let Some(entry) = self {
            entry.write_tables(key, text);
        }
    }
}

impl Entry for String {
    fn read(at: &At<'_>) -> Result<Self, MachineError> {
        at.word()
    }

    fn write_line(&self, key: &str, text: &mut String) {
        push_line(text, format_args!("{key} = {}", quoted(self)));
    }
}

/// Words that stand without a source.
macro_rules! plain_words {
    ($($type:ident),+) => {
        $(impl $crate::entry::Entry for $type {
            fn read(at: &$crate::entry::At<'_>) -> Result<Self, $crate::MachineError> {
                at.quantity(&at.key, $crate::words::choose)
            }

            fn write_line(&self, key: &str, text: &mut String) {
                $crate::entry::push_line(text, format_args!("{key} = \"{}\"", self.name()));
            }
        })+
    };
}
pub(crate) use plain_words;

/// Keys of a fact.
pub(crate) const FACT: &[&str] = &["value", "basis", "source"];
const A_FACT: &str = "a number with its source, { value = ..., source = \"...\" }";

/// A value as it is given; a long one is cut.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match value {
        _ if text.chars().count() <= SHOWN_MAX => text,
        Value::Float(number) => format!("{number:e}"),
        Value::String(_)
        | Value::Integer(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => text.chars().take(SHOWN_MAX).collect::<String>() + "...",
    }
}

/// Characters of a value that a message shows.
const SHOWN_MAX: usize = 60;
