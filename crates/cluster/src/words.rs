//! Words of a few in files, and bare numbers.

use partita_space::help::Expected;
use partita_space::near;
use toml::Value;

/// A word of a few.
pub(crate) trait Choice: Copy + 'static {
    /// All, by their words in files.
    const CHOICES: &'static [(&'static str, Self)];

    /// Its word.
    fn word(self) -> &'static str
    where
        Self: PartialEq,
    {
        let mut all = Self::CHOICES.iter();
        all.find(|(_, one)| *one == self)
            .map_or("", |(word, _)| word)
    }
}

/// The words of a choice in files: gives it `ALL` and `name`.
macro_rules! words {
    ($type:ident, $all:literal { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $type {
            #[doc = $all]
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word used in files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::words::Choice for $type {
            const CHOICES: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }
    };
}
pub(crate) use words;

/// Reads a word of a few.
///
/// Errors: what is expected instead of the value.
pub(crate) fn choose<C: Choice>(value: &Value) -> Result<C, Expected> {
    let words = || C::CHOICES.iter().map(|&(word, _)| word);
    let quoted = |word: &str| format!("\"{word}\"");
    let listed = words().map(quoted).collect::<Vec<_>>().join(", ");
    let Some(given) = value.as_str() else {
        return Err(format!("a text alone, one of {listed}").into());
    };
    let choice = C::CHOICES.iter().find(|(word, _)| *word == given);
    choice.map(|&(_, choice)| choice).ok_or_else(|| Expected {
        text: format!("one of {listed}"),
        nearest: near(given, words()).map(quoted),
    })
}

/// A number without a unit, or NaN.
pub(crate) fn bare(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        Value::Integer(number) => *number as f64,
        Value::String(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => f64::NAN,
    }
}
