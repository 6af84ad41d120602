//! Tables of a run file, and their errors.
//!
//! Not serde's derive, which stops at the first fault: a fault needs its key, so that the other ones are found too, and
//! the nearest valid value.

mod all;
pub mod suggest;
mod syntax;

pub use all::all_faults;
pub use syntax::syntax;

use partita_files::line_at;
use partita_site::size::parse_bytes;
use partita_site::{ErrorKind, Fault};
use partita_space::help::{self, Expected, Help};
use partita_space::{Bytes, Seconds};
use std::io;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// An error in a run file: its line, key, valid values and the nearest one.
#[derive(Debug, thiserror::Error)]
pub enum RunFileError {
    /// It cannot be read.
    #[error(
        "{file} cannot be read: {source}{}",
        Help::advice("a run file is needed there").maybe_code(nearest.as_ref())
    )]
    Unreadable {
        /// The file.
        file: String,
        /// The error of the system.
        source: io::Error,
        /// A file like it, if there is one.
        nearest: Option<String>,
    },
    /// It is not TOML.
    #[error("{file}, line {line}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The error.
        reason: String,
    },
    /// An unknown key.
    #[error(
        "{file}, line {line}: there is no key `{key}`{}{}",
        of_kind(key, kinds),
        Help::possible(possible).maybe_code(nearest.as_ref())
    )]
    UnknownKey {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key with its section.
        key: String,
        /// Keys of that section.
        possible: String,
        /// Words of the kinds that have this key; then there is no nearest one.
        kinds: Box<[String]>,
        /// The most similar key.
        nearest: Option<String>,
    },
    /// A missing key.
    #[error("{file}, line {line}: key `{key}` is missing, {expected}")]
    Missing {
        /// The file.
        file: String,
        /// Line of its section, from 1.
        line: usize,
        /// The key with its section.
        key: String,
        /// Valid values.
        expected: Box<Expected>,
    },
    /// An invalid value.
    #[error("{file}, line {line}: key `{key}` is {given}, {expected}")]
    Value {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key with its section.
        key: String,
        /// The value in the file.
        given: String,
        /// Valid values.
        expected: Box<Expected>,
    },
    /// Several faults.
    #[error("{}", listed(.0))]
    Several(Vec<Self>),
    /// A default that is invalid with the other values.
    #[error("{file}: key `{key}`: {expected}")]
    Default {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Valid values.
        expected: Box<Expected>,
    },
}

impl RunFileError {
    /// The key that is at fault, with its section; none where it is not one key, or not in the file.
    fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { key, .. } | Self::Missing { key, .. } | Self::Value { key, .. } => {
                Some(key)
            }
            Self::Unreadable { .. }
            | Self::Syntax { .. }
            | Self::Default { .. }
            | Self::Several(_) => None,
        }
    }

    /// Its line in the run file; 0 for none.
    fn line(&self) -> usize {
        match self {
            Self::Syntax { line, .. }
            | Self::UnknownKey { line, .. }
            | Self::Missing { line, .. }
            | Self::Value { line, .. } => *line,
            Self::Unreadable { .. } | Self::Default { .. } | Self::Several(_) => 0,
        }
    }
}

/// Each fault with its own help below it.
fn listed(faults: &[RunFileError]) -> String {
    let texts: Vec<String> = faults.iter().map(help::indent).collect();
    texts.join("\n")
}

fn of_kind(key: &str, kinds: &[String]) -> String {
    if kinds.is_empty() {
        String::new()
    } else {
        let (_, name) = key.rsplit_once('.').unwrap_or(("", key));
        format!("; `{name}` is a key of kind {}", kinds.join(", "))
    }
}

impl Fault for RunFileError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// A table of a TOML text; its errors name file, line, key and what is possible.
pub struct Section<'t> {
    file: &'t str,
    text: &'t str,
    /// Its name and a dot, or empty.
    prefix: String,
    /// Its start, for errors of missing keys.
    offset: usize,
    table: &'t DeTable<'t>,
}

impl<'t> Section<'t> {
    /// The top-level table. Errors: a key that is not among `known`.
    pub fn top(
        file: &'t str,
        text: &'t str,
        table: &'t DeTable<'t>,
        known: &[&str],
    ) -> Result<Self, RunFileError> {
        let prefix = String::new();
        let section = Self {
            file,
            text,
            prefix,
            offset: 0,
            table,
        };
        section.check(known)?;
        Ok(section)
    }

    /// Errors: a key that is not among `known`.
    pub fn check(&self, known: &[&str]) -> Result<(), RunFileError> {
        self.check_kind(known, |_| Vec::new())
    }

    /// Errors: a key that is not among `known`; `kinds` says which kinds have a key that another one lacks.
    pub fn check_kind(
        &self,
        known: &[&str],
        kinds: impl Fn(&str) -> Vec<String>,
    ) -> Result<(), RunFileError> {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let kinds = kinds(name);
                let nearest = suggest::key(name, &self.prefix, known);
                return Err(RunFileError::UnknownKey {
                    file: self.file.to_owned(),
                    line: self.line(key.span().start),
                    key: self.full(name),
                    possible: known.join(", "),
                    nearest: kinds.is_empty().then_some(nearest),
                    kinds: kinds.into(),
                });
            }
        }
        Ok(())
    }

    /// The table under a key, if it is there.
    pub fn section(&self, key: &str) -> Result<Option<Section<'t>>, RunFileError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::Table(table) = value.get_ref() else {
            let table = format!("a table, `[{}{key}]`", self.prefix);
            let has_kinds = ["optimizer", "schedule"].contains(&key);
            let word = value.get_ref().as_str().filter(|_| has_kinds);
            let with = |word| format!(" with `kind = \"{word}\"`");
            let expected = table + &word.map_or_else(String::new, with);
            return Err(self.bad(key, value, expected));
        };
        Ok(Some(Section {
            file: self.file,
            text: self.text,
            prefix: format!("{}{key}.", self.prefix),
            offset: value.span().start,
            table,
        }))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        let found = self.table.iter().find(|(name, _)| name.get_ref() == key);
        found.map(|(_, value)| value)
    }

    /// A required value.
    pub fn need<T>(
        &self,
        key: &str,
        value: Option<T>,
        expected: impl Into<Expected>,
    ) -> Result<T, RunFileError> {
        value.ok_or_else(|| RunFileError::Missing {
            file: self.file.to_owned(),
            line: self.line(self.offset),
            key: self.full(key),
            expected: Box::new(expected.into()),
        })
    }

    /// A text.
    pub fn text(
        &self,
        key: &str,
        expected: impl Into<Expected>,
    ) -> Result<Option<String>, RunFileError> {
        self.read(key, expected, |value| value.as_str().map(str::to_owned))
    }

    /// A size, like `"16GiB"`.
    pub fn bytes(&self, key: &str) -> Result<Option<Bytes>, RunFileError> {
        let value = self.get(key).map(Spanned::get_ref);
        let number = value
            .filter(|value| !value.is_str())
            .and_then(suggest::number);
        let text = match number {
            Some(number) => Some(number.to_string()),
            None => self.text(key, "a size like \"16GiB\"")?,
        };
        let Some(text) = text else {
            return Ok(None);
        };
        let refuse = |expected: Expected| {
            let quoted = |text: String| text.replace('`', "\"");
            let nearest = expected.nearest.map(quoted);
            self.refuse(
                key,
                Expected::new(quoted(expected.text)).maybe_nearest(nearest),
            )
        };
        parse_bytes(&text).map(Some).map_err(refuse)
    }

    /// One of a list of words.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, RunFileError> {
        let names: Vec<String> = choices
            .iter()
            .map(|(name, _)| format!("\"{name}\""))
            .collect();
        let word = |value: &DeValue<'_>| match value {
            DeValue::Boolean(flag) => flag.to_string(),
            value => value.as_str().unwrap_or_default().to_owned(),
        };
        let given = self.get(key).map(|value| word(value.get_ref()));
        let names_only = choices.iter().map(|(name, _)| *name);
        let close = suggest::word(given.as_deref().unwrap_or_default(), names_only);
        let expected = Expected::new(format_args!("one of {}", names.join(", ")));
        self.read(
            key,
            expected.nearest(format_args!("\"{close}\"")),
            |value| {
                let found = choices
                    .iter()
                    .find(|(name, _)| value.as_str() == Some(name));
                found.map(|(_, choice)| *choice)
            },
        )
    }

    /// True or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, RunFileError> {
        let expected = Expected::from("true or false").maybe_nearest(self.hint(key, suggest::flag));
        self.read(key, expected, DeValue::as_bool)
    }

    /// A time with its unit; `like` is an example.
    pub fn time(&self, key: &str, like: &str) -> Result<Option<Seconds>, RunFileError> {
        let hint = self.hint(key, suggest::time);
        let expected = Expected::new(format_args!(
            "a time above 0 in ms, s, min or h, like \"{like}\""
        ));
        self.read(key, expected.maybe_nearest(hint), |value| {
            duration(value.as_str()?)
        })
    }

    /// What was probably meant by the value of a key.
    fn hint<T>(&self, key: &str, suggest: impl Fn(&DeValue<'_>) -> Option<T>) -> Option<T> {
        self.get(key).and_then(|value| suggest(value.get_ref()))
    }

    /// A whole number from 1 on.
    pub fn count(&self, key: &str) -> Result<Option<usize>, RunFileError> {
        let most = 1 << 24;
        let hint = self.hint(key, |value| suggest::whole_number(value, 1, most));
        let expected = Expected::new(format_args!("a whole number from 1 to {most}"));
        self.read(key, expected.maybe_nearest(hint), |value| {
            let number = u64::try_from(whole(value)?).ok();
            number
                .filter(|number| (1..=most).contains(number))
                .map(|number| number as usize)
        })
    }

    /// A whole number from 0 on.
    pub fn natural(&self, key: &str) -> Result<Option<u64>, RunFileError> {
        let most = i64::MAX as u64;
        let hint = self.hint(key, |value| suggest::whole_number(value, 0, most));
        let expected = Expected::new(format_args!("a whole number from 0 to {most}"));
        self.read(key, expected.maybe_nearest(hint), |value| {
            u64::try_from(whole(value)?).ok()
        })
    }

    /// A number under a condition; `expected` describes it.
    pub fn number(
        &self,
        key: &str,
        expected: impl Into<Expected>,
        holds: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, RunFileError> {
        self.read(key, expected, |value| {
            float(value).filter(|&number| holds(number))
        })
    }

    /// A number above 0 that is neither 0 nor infinite in f32, which kernels use; `usual` is an example.
    pub fn single(&self, key: &str, usual: f64) -> Result<Option<f64>, RunFileError> {
        let expected = match self.asked(key) {
            Some(asked) if asked > 0.0 => beyond_single(asked, usual),
            Some(_) | None => Expected::new(format_args!(
                "a number greater than 0, like {}",
                short(usual)
            )),
        };
        // A suggestion is rounded to f32, so it may lie just outside.
        self.number(key, expected, |number| {
            number > 0.0 && (number as f32).is_normal()
        })
    }

    /// As [`Self::single`], or 0.
    pub fn single_or_zero(&self, key: &str, usual: f64) -> Result<Option<f64>, RunFileError> {
        let expected = match self.asked(key) {
            Some(asked) if asked > 0.0 => {
                let expected = beyond_single(asked, usual);
                Expected {
                    text: format!("0 or {}", expected.text),
                    ..expected
                }
            }
            asked => Expected::new(format_args!(
                "a number of at least 0, like {}",
                short(usual)
            ))
            .maybe_nearest(asked.map(|_| 0)),
        };
        self.number(key, expected, |number| {
            number == 0.0 || number > 0.0 && (number as f32).is_normal()
        })
    }

    /// The number of a key, infinite or in quotes too.
    fn asked(&self, key: &str) -> Option<f64> {
        suggest::number(self.get(key)?.get_ref())
    }

    /// A value with its own parser.
    pub fn read<T>(
        &self,
        key: &str,
        expected: impl Into<Expected>,
        read: impl FnOnce(&DeValue<'t>) -> Option<T>,
    ) -> Result<Option<T>, RunFileError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let read = read(value.get_ref());
        read.map(Some).ok_or_else(|| self.bad(key, value, expected))
    }

    /// The error of a key whose value is well-formed but invalid here.
    pub fn refuse(&self, key: &str, expected: impl Into<Expected>) -> RunFileError {
        match self.get(key) {
            Some(value) => self.bad(key, value, expected),
            None => RunFileError::Default {
                file: self.file.to_owned(),
                key: key.to_owned(),
                expected: Box::new(expected.into()),
            },
        }
    }

    fn bad(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        expected: impl Into<Expected>,
    ) -> RunFileError {
        let given = self.text.get(value.span()).unwrap_or("?");
        RunFileError::Value {
            file: self.file.to_owned(),
            line: self.line(value.span().start),
            key: self.full(key),
            given: given.to_owned(),
            expected: Box::new(expected.into()),
        }
    }

    /// A key with its section.
    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn line(&self, offset: usize) -> usize {
        line_at(self.text, offset)
    }
}

/// What is possible where a positive number is none that single precision holds, or is in quotes.
fn beyond_single(asked: f64, usual: f64) -> Expected {
    let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
    let held = asked.clamp(least, most);
    let nearest = if held == asked {
        short(asked)
    } else {
        format!("{:e}", held as f32)
    };
    Expected::new(format_args!(
        "a number from {:e} to {:e}, which single precision holds, like {}",
        least as f32,
        most as f32,
        short(usual)
    ))
    .nearest(nearest)
}

/// A number as one would write it.
pub fn short(number: f64) -> String {
    let is_small = number != 0.0 && number.abs() < 1e-3;
    if is_small || number.abs() >= 1e7 {
        format!("{number:e}")
    } else {
        number.to_string()
    }
}

/// A time above 0 with its unit.
pub fn duration(text: &str) -> Option<Seconds> {
    let text = text.trim();
    let split = text.find(|letter: char| letter.is_alphabetic())?;
    let number: f64 = text[..split].trim().parse().ok()?;
    let unit = match &text[split..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    (number > 0.0 && number.is_finite()).then_some(Seconds(number * unit))
}

/// A whole number.
pub fn whole(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A finite number, whole or not.
pub fn float(value: &DeValue<'_>) -> Option<f64> {
    any_float(value).filter(|number| number.is_finite())
}

/// A number, infinities and NaN included.
fn any_float(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(_) => Some(whole(value)? as f64),
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::String(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => None,
    }
}
