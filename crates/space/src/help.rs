//! What errors suggest: the lines `help: ...` at the end of their texts.
//!
//! The text of an error is its message, and below it what to type. A wrapper of an error ends with its text, as in
//! `#[error("line {line}: {error}")]`, so that help stays last; [`extend`] says more about an error, and [`full_text`]
//! renders one with its sources.

use crate::printable;
use std::error::Error;
use std::fmt;

/// Begins a line of help.
const MARK: &str = "help: ";

/// Begins help with the nearest valid choice.
const TRY: &str = "try ";

/// What may be given in place of what was asked.
///
/// Displays as a line of its own below a message, `help: try NEAREST; possible values: POSSIBLE`, or as nothing
/// where there is no help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Help {
    advice: Option<String>,
    nearest: Option<String>,
    possible: Option<String>,
}

impl Help {
    /// None so far.
    pub fn none() -> Self {
        Self::default()
    }

    /// Valid values, as a list or in words.
    pub fn possible(values: impl fmt::Display) -> Self {
        Self {
            possible: Some(values.to_string()),
            ..Self::default()
        }
    }

    /// What to do, in words.
    pub fn advice(advice: impl fmt::Display) -> Self {
        Self {
            advice: Some(advice.to_string()),
            ..Self::default()
        }
    }

    /// With the nearest valid choice, as it stands.
    pub fn nearest(self, choice: impl fmt::Display) -> Self {
        Self {
            nearest: Some(choice.to_string()),
            ..self
        }
    }

    /// With the nearest valid choice, in backticks: a word to type.
    pub fn code(self, choice: impl fmt::Display) -> Self {
        self.nearest(format_args!("`{choice}`"))
    }

    /// With what to do, in words.
    pub fn advise(self, advice: impl fmt::Display) -> Self {
        Self {
            advice: Some(advice.to_string()),
            ..self
        }
    }

    /// With the word to type that is nearest, if there is one.
    pub fn maybe_code(self, choice: Option<impl fmt::Display>) -> Self {
        match choice {
            Some(choice) => self.code(choice),
            None => self,
        }
    }

    /// With the nearest valid choice, if there is one.
    pub fn maybe_nearest(self, choice: Option<impl fmt::Display>) -> Self {
        match choice {
            Some(choice) => self.nearest(choice),
            None => self,
        }
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (TRY, &self.nearest),
            ("", &self.advice),
            ("possible values: ", &self.possible),
        ];
        let mut before = format!("\n{MARK}");
        for (word, part) in parts {
            if let Some(part) = part {
                write!(f, "{before}{word}{part}")?;
                before = "; ".to_owned();
            }
        }
        Ok(())
    }
}

/// What was expected in place of a value.
///
/// Displays as `expected VALUES`, with the nearest one as help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Valid values, in words.
    pub text: String,
    /// The one nearest to what is given, if one is near.
    pub nearest: Option<String>,
}

impl Expected {
    /// Valid values, in words.
    pub fn new(text: impl fmt::Display) -> Self {
        Self {
            text: text.to_string(),
            nearest: None,
        }
    }

    /// With the nearest of them.
    pub fn nearest(self, choice: impl fmt::Display) -> Self {
        self.maybe_nearest(Some(choice))
    }

    /// With the nearest of them, if one is near.
    pub fn maybe_nearest(self, choice: Option<impl fmt::Display>) -> Self {
        Self {
            nearest: choice.map(|choice| choice.to_string()),
            ..self
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let help = Help::none().maybe_nearest(self.nearest.as_ref());
        write!(f, "expected {}{help}", self.text)
    }
}

impl Error for Expected {}

impl From<&str> for Expected {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Expected {
    fn from(text: String) -> Self {
        Self {
            text,
            nearest: None,
        }
    }
}

/// A message, and its lines of help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What is wrong, and where.
    pub text: String,
    /// What to type, a line each.
    pub help: Vec<String>,
}

impl Message {
    /// The parts of the text of an error.
    pub fn of(error: &(impl fmt::Display + ?Sized)) -> Self {
        let whole = error.to_string();
        let (help, text): (Vec<&str>, Vec<&str>) =
            whole.split('\n').partition(|line| line.starts_with(MARK));
        let mut message = Self {
            text: text.join("\n"),
            help: Vec::new(),
        };
        for line in help {
            message.add(&line[MARK.len()..]);
        }
        message
    }

    /// Adds a line of help once, what to try before all else.
    fn add(&mut self, help: &str) {
        if !self.help.iter().any(|line| line == help) {
            self.help.push(help.to_owned());
            self.help.sort_by_key(|line| !line.starts_with(TRY));
        }
    }

    /// The same with all help on one line.
    #[must_use]
    pub fn with_one_help(mut self) -> Self {
        if self.help.len() > 1 {
            self.help = vec![self.help.join("; ")];
        }
        self
    }

    /// As a part of a line: help follows the message behind a semicolon.
    pub fn inline(&self) -> String {
        let parts: Vec<&str> = [&self.text]
            .into_iter()
            .chain(&self.help)
            .map(String::as_str)
            .collect();
        parts.join("; ")
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text)?;
        self.help
            .iter()
            .try_for_each(|line| write!(f, "\n{MARK}{line}"))
    }
}

/// The text of an error with more behind its message, and its help last.
pub fn extend(error: &(impl fmt::Display + ?Sized), more: impl fmt::Display) -> Message {
    let mut message = Message::of(error);
    let more = Message::of(&more);
    message.text += &more.text;
    more.help.iter().for_each(|line| message.add(line));
    message
}

/// The text of an error among others, with its help indented below it.
pub fn indent(error: &(impl fmt::Display + ?Sized)) -> String {
    error.to_string().replace("\n", "\n  ")
}

/// The texts of an error and its sources, without repetitions, and the help of all of them last, for a terminal or a log.
pub fn full_text(error: &(dyn Error + '_)) -> String {
    let mut message = Message::of(error);
    let mut source = error.source();
    while let Some(cause) = source {
        let inner = Message::of(cause);
        if !message.text.contains(&inner.text) {
            message.text.push_str(": ");
            message.text.push_str(&inner.text);
        }
        inner.help.iter().for_each(|line| message.add(line));
        source = cause.source();
    }
    printable::message(&message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_nearest_choice_first() {
        let both = Help::possible("1, 2, 4").nearest(2);
        assert_eq!(both.to_string(), "\nhelp: try 2; possible values: 1, 2, 4");
        let code = Help::none().code("data=2");
        assert_eq!(code.to_string(), "\nhelp: try `data=2`");
        assert_eq!(Help::none().maybe_code(None::<&str>).to_string(), "");
        let advice = Help::advice("add a loss").maybe_nearest(Some("`mse`"));
        assert_eq!(advice.to_string(), "\nhelp: try `mse`; add a loss");
    }

    #[derive(Debug)]
    struct Failed(&'static str, Option<Box<Failed>>);

    impl fmt::Display for Failed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|inner| inner as _)
        }
    }

    #[test]
    fn help_of_nested_errors_is_last() {
        let inner = |text| Some(Box::new(Failed(text, None)));
        let error = Failed("outer\nhelp: first", inner("inner\nhelp: second"));
        let text = "outer: inner\nhelp: first\nhelp: second";
        assert_eq!(full_text(&error), text);
        let error = Failed("outer: inner\nhelp: second", inner("inner\nhelp: second"));
        assert_eq!(full_text(&error), "outer: inner\nhelp: second");
    }

    #[test]
    fn more_is_said_before_help() {
        let more = Help::advice("use `--resume`");
        let message = extend("no kernel\nhelp: try 3", format_args!("; stopped{more}"));
        let text = "no kernel; stopped\nhelp: try 3\nhelp: use `--resume`";
        assert_eq!(message.to_string(), text);
        let nearest = extend(&message, Help::none().nearest(2));
        let text = "no kernel; stopped\nhelp: try 3\nhelp: try 2\nhelp: use `--resume`";
        assert_eq!(nearest.to_string(), text);
        assert_eq!(
            message.inline(),
            "no kernel; stopped; try 3; use `--resume`"
        );
    }
}
