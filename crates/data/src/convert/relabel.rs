//! Renaming of stored class numbers.

use std::collections::BTreeMap;
use std::str::FromStr;

use partita_formats::{DataError, Samples};
use partita_space::Help;

use crate::classes::ClassSet;

/// The class index of positions that do not count where nothing says another one.
const IGNORED: i16 = -1;

/// A stored class number, and the one that it becomes: `255=1`, or `255=ignore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelPair {
    /// As it is stored.
    pub from: i16,
    /// What it becomes; `None` if such positions do not count.
    pub to: Option<i16>,
}

/// A text that renames no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` renames no label{help}",
    help = Help::possible(format_args!(
        "FROM=TO with whole numbers from {} to {}, such as 255=1, and FROM=ignore",
        i16::MIN,
        i16::MAX
    ))
)]
pub struct NoLabelPair(String);

impl FromStr for LabelPair {
    type Err = NoLabelPair;

    fn from_str(text: &str) -> Result<Self, NoLabelPair> {
        let parse = || {
            let (from, to) = text.split_once('=')?;
            let to = match to.trim() {
                "ignore" => None,
                number => Some(number.parse().ok()?),
            };
            let from = from.trim().parse().ok()?;
            Some(Self { from, to })
        };
        parse().ok_or_else(|| NoLabelPair(text.to_owned()))
    }
}

/// All renaming of a conversion. Numbers are replaced at once: `0=1,1=0` swaps two.
#[derive(Clone, Debug, Default)]
pub(super) struct Relabel {
    map: BTreeMap<i16, i16>,
    /// The class index of positions that do not count, after mapping.
    ignored: Option<i64>,
}

impl Relabel {
    /// From what was asked for; `of_task` is the label of a task that does not count.
    ///
    /// Errors: a number that becomes two others.
    pub(super) fn new(
        pairs: &[LabelPair],
        asked: Option<i64>,
        of_task: Option<i16>,
    ) -> Result<Self, DataError> {
        let in_range = |class: i64| i16::try_from(class).ok();
        if let Some(asked) = asked.filter(|&class| in_range(class).is_none()) {
            return Err(DataError::BadValue {
                what: "`--ignore`",
                got: asked.to_string(),
                expected: format!("a whole number from {} to {}", i16::MIN, i16::MAX),
            });
        }
        let ignores = pairs.iter().any(|pair| pair.to.is_none());
        let ignored = asked
            .or(of_task.map(i64::from))
            .or(ignores.then_some(IGNORED.into()));
        let mut map = BTreeMap::new();
        if let (Some(of_task), Some(ignored)) = (of_task, ignored.and_then(in_range)) {
            map.insert(of_task, ignored);
        }
        let mut named = std::collections::BTreeSet::new();
        for pair in pairs {
            if !named.insert(pair.from) {
                return Err(DataError::BadValue {
                    what: "`--map`",
                    got: format!("two numbers for label {}", pair.from),
                    expected: "each stored label once, such as 1=1,2=1,255=ignore".to_owned(),
                });
            }
            let to = pair.to.or(ignored.and_then(in_range));
            map.insert(pair.from, to.unwrap_or(IGNORED));
        }
        map.retain(|from, to| from != to);
        Ok(Self { map, ignored })
    }

    /// The class index of positions that do not count, after mapping.
    pub(super) fn ignored(&self) -> Option<i64> {
        self.ignored
    }

    /// Whether labels stay as they are, and all count.
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty() && self.ignored.is_none()
    }

    /// What a stored number becomes.
    pub(super) fn of(&self, stored: i16) -> i16 {
        self.map.get(&stored).copied().unwrap_or(stored)
    }

    /// Replaces stored numbers.
    pub(super) fn apply(&self, labels: &mut Samples) {
        let Samples::I16(values) = labels else {
            panic!("class indices are int16");
        };
        if self.map.is_empty() {
            return;
        }
        // Labels come in long runs.
        let mut last = (0, self.of(0));
        for value in values {
            if *value != last.0 {
                last = (*value, self.of(*value));
            }
            *value = last.1;
        }
    }

    /// Those of the numbers to be renamed that never occur.
    pub(super) fn unused(pairs: &[LabelPair], stored: &ClassSet) -> Option<String> {
        let unused = pairs.iter().filter(|pair| !stored.has(pair.from));
        let unused: Vec<String> = unused.map(|pair| pair.from.to_string()).collect();
        (!unused.is_empty()).then(|| {
            format!(
                "`--map` renames {}, and no label is that; labels are {}",
                unused.join(", "),
                stored.text()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_replaced_at_once() {
        let pairs = ["0=1", "1=0", "255=ignore"].map(|text| text.parse().unwrap());
        let map = Relabel::new(&pairs, None, None).unwrap();
        assert_eq!(map.ignored(), Some(-1));
        let mut labels = Samples::I16(vec![0, 1, 255, 7, 0]);
        map.apply(&mut labels);
        assert_eq!(labels, Samples::I16(vec![1, 0, -1, 7, 1]));
        // The label of a task that does not count joins the one that is asked for.
        let map = Relabel::new(&[], Some(255), Some(4)).unwrap();
        assert_eq!((map.ignored(), map.of(4)), (Some(255), 255));
        let twice = ["3=1", "3=2"].map(|text| text.parse().unwrap());
        let error = Relabel::new(&twice, None, None).unwrap_err().to_string();
        assert!(error.contains("two numbers for label 3"), "{error}");
        for text in ["3", "=1", "3=", "3=x", "1.5=1", "40000=1"] {
            let error = text.parse::<LabelPair>().unwrap_err().to_string();
            assert!(error.contains("FROM=TO"), "{error}");
        }
    }
}
