//! Labels that a network can be trained on, but hardly is meant to: masks of 0 and 255, numbers of instances,
//! intensities, splits of one class or of none.

use partita_formats::Samples;

use crate::split::Split;

/// More classes per position than these are rarely classes.
const CLASSES_USUAL: usize = 32;
/// Samples of one class each before that is worth a warning.
const ONE_CLASS_SAMPLES: usize = 8;
/// Labels that are listed.
const SHOWN_MAX: usize = 8;

/// The name of a class that nobody has named.
pub(crate) fn made_up(class: usize) -> String {
    format!("class{class}")
}

/// Class numbers that occur.
#[derive(Clone)]
pub struct ClassSet(Box<[u64; 1024]>);

impl Default for ClassSet {
    fn default() -> Self {
        Self(Box::new([0; 1024]))
    }
}

impl ClassSet {
    /// The numbers of class indices.
    pub fn of(labels: &Samples) -> Self {
        let mut set = Self::default();
        if let Samples::I16(values) = labels {
            values.iter().for_each(|&class| set.add(class));
        }
        set
    }

    /// Adds a class index.
    pub(crate) fn add(&mut self, class: i16) {
        let at = class as u16 as usize;
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// Adds all of another set.
    pub fn join(&mut self, other: &Self) {
        let words = self.0.iter_mut().zip(other.0.iter());
        words.for_each(|(word, more)| *word |= more);
    }

    /// Whether a class index occurs.
    pub(crate) fn has(&self, class: i16) -> bool {
        let at = class as u16 as usize;
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = i16> + '_ {
        (i16::MIN..=i16::MAX).filter(|&class| self.has(class))
    }

    /// The numbers, of many some.
    pub(crate) fn text(&self) -> String {
        let all: Vec<i16> = self.iter().collect();
        let shown: Vec<String> = all.iter().take(SHOWN_MAX).map(i16::to_string).collect();
        match all.last() {
            None => "none".to_owned(),
            Some(last) if all.len() > SHOWN_MAX => {
                format!("{}, ..., {last} ({} in all)", shown.join(", "), all.len())
            }
            Some(_) => shown.join(", "),
        }
    }
}

/// Labels of a split.
#[derive(Clone)]
pub struct SplitLabels {
    /// The split.
    pub split: Split,
    /// Which occur.
    pub classes: ClassSet,
    /// Samples with these labels.
    pub samples: usize,
    /// Whether these are all labels of the split.
    pub is_whole: bool,
}

/// Labels of a dataset.
pub struct Occurrence<'o> {
    /// Names of its classes; none if unknown.
    pub names: &'o [String],
    /// The index of positions that do not count.
    pub ignored: Option<i64>,
    /// Whether each position has a label, and not each sample.
    pub is_per_position: bool,
    /// Splits without samples are left out.
    pub splits: &'o [SplitLabels],
    /// The stored numbers that became a label; itself where nothing was renamed.
    pub stored: &'o dyn Fn(i16) -> Vec<i16>,
}

impl Occurrence<'_> {
    /// What is doubtful about the labels, each with the remedy to type.
    pub fn doubts(&self) -> Vec<String> {
        let each = self.splits.iter().filter_map(|split| self.of_split(split));
        self.of_numbers().into_iter().chain(each).collect()
    }

    /// Labels that count.
    fn counted(&self, classes: &ClassSet) -> Vec<i16> {
        let is_counted = |class: &i16| self.ignored != Some((*class).into());
        classes.iter().filter(is_counted).collect()
    }

    /// Numbers that are no classes, as far as one can see.
    fn of_numbers(&self) -> Option<String> {
        let mut all = ClassSet::default();
        self.splits
            .iter()
            .for_each(|split| all.join(&split.classes));
        let present = self.counted(&all);
        let last = usize::try_from(*present.last()?).ok()?;
        // A table may name classes by their numbers.
        let is_unnamed = |class: &usize| match self.names.get(*class) {
            Some(name) => [made_up(*class), class.to_string()].contains(name),
            None => self.names.is_empty(),
        };
        let remedy = "`--map FROM=TO,...` of `partita data convert` joins labels, `--label-key` names another array, and \
                      `--classes` names the classes if they are meant";
        let is_dense = self.is_per_position;
        if is_dense
            && present.len() > CLASSES_USUAL
            && (0..=last).filter(is_unnamed).count() > CLASSES_USUAL
        {
            return Some(format!(
                "{} labels occur ({}), as intensities and numbers of instances do; {remedy}",
                present.len(),
                all.text()
            ));
        }
        let is_missing = |class: &usize| !all.has(*class as i16) && is_unnamed(class);
        let missing = (0..last).filter(is_missing).count();
        let is_whole = self.splits.iter().all(|split| split.is_whole);
        // A part of the samples need not have all classes, the less so where each has one.
        let is_telling = match (is_dense, is_whole) {
            (true, true) => missing > 0,
            (true, false) | (false, true) => missing > present.len(),
            (false, false) => false,
        };
        if !is_telling {
            return None;
        }
        // A conversion starts from what is stored, whatever was renamed before.
        let pairs = present.iter().enumerate().flat_map(|(at, &class)| {
            let stored = (self.stored)(class).into_iter();
            stored.map(move |stored| (stored, at))
        });
        let pairs = pairs.filter(|&(stored, at)| at as i64 != i64::from(stored));
        let pairs: Vec<String> = pairs.map(|(from, to)| format!("{from}={to}")).collect();
        let listed: Vec<String> = present.iter().take(SHOWN_MAX).map(i16::to_string).collect();
        let listed = listed.join(", ");
        let more = if present.len() > SHOWN_MAX {
            ", ..."
        } else {
            ""
        };
        Some(format!(
            "labels are {listed}{more}, so a model needs {} channels, and {missing} of its classes never occur; convert with `--map {}` to \
             number classes from 0 on, or with `--ignore {last}` if positions of label {last} do not count",
            last + 1,
            pairs.join(",")
        ))
    }

    /// A split that teaches nothing.
    fn of_split(&self, labels: &SplitLabels) -> Option<String> {
        let all = if labels.is_whole {
            format!("all labels of split {}", labels.split)
        } else {
            format!(
                "all labels of split {} that were looked at ({} samples)",
                labels.split, labels.samples
            )
        };
        let counted = self.counted(&labels.classes);
        let occurring = labels.classes.iter().count();
        match (counted.as_slice(), self.ignored) {
            ([], Some(ignored)) if occurring > 0 => Some(format!(
                "{all} are {ignored}, which is ignored, so none counts; convert without `--ignore`, or with \
                 `--map {ignored}=N` where {ignored} is a class"
            )),
            (&[class], _) if self.is_per_position || labels.samples >= ONE_CLASS_SAMPLES => {
                let ignored = if occurring > 1 { " or ignored" } else { "" };
                Some(format!(
                    "{all} are class {class}{ignored}, and a classifier needs others, too; `--label-key` of `partita data \
                     convert` takes another array, and `--ignore` and `--map` leave out or join classes"
                ))
            }
            (_, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(classes: &[i16]) -> ClassSet {
        let mut set = ClassSet::default();
        classes.iter().for_each(|&class| set.add(class));
        set
    }

    fn doubts(classes: &[i16], names: &[String], ignored: Option<i64>, is_whole: bool) -> String {
        doubts_of(classes, names, ignored, (is_whole, true))
    }

    fn doubts_of(
        classes: &[i16],
        names: &[String],
        ignored: Option<i64>,
        (is_whole, is_per_position): (bool, bool),
    ) -> String {
        let splits = [SplitLabels {
            split: Split::Train,
            classes: set(classes),
            samples: 2,
            is_whole,
        }];
        let occurrence = Occurrence {
            names,
            ignored,
            is_per_position,
            splits: &splits,
            stored: &|class| vec![class],
        };
        occurrence.doubts().join("\n")
    }

    #[test]
    fn implausible_labels_are_told_with_the_remedy() {
        let masks = doubts(&[0, 255], &[], None, true);
        let remedies = "254 of its classes never occur; convert with `--map 255=1`";
        assert!(
            masks.contains(remedies) && masks.contains("`--ignore 255`"),
            "{masks}"
        );
        assert_eq!(doubts(&[0, 255], &[], None, false), masks);
        assert!(doubts(&[1, 2, 5], &[], None, true).contains("`--map 1=0,2=1,5=2`"));
        // One class for each sample, named by numbers as in a table.
        let numbers: Vec<String> = (0..256).map(|class: usize| class.to_string()).collect();
        assert_eq!(doubts_of(&[0, 255], &numbers, None, (true, false)), masks);
        assert_eq!(doubts_of(&[0, 255], &numbers, None, (false, false)), "");
        assert_eq!(doubts_of(&[0, 1, 3], &[], None, (true, false)), "");
        // A part of the samples need not have all classes, nor named ones.
        assert_eq!(doubts(&[0, 1, 3], &[], None, false), "");
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(doubts(&[0, 1, 3], &names, None, true), "");
        assert_eq!(doubts(&[0, 1, 255], &[], Some(255), true), "");
        let many: Vec<i16> = (0..40).collect();
        let told = doubts(&many, &[], None, true);
        assert!(
            told.contains("40 labels occur (0, 1, 2, 3, 4, 5, 6, 7, ..., 39"),
            "{told}"
        );
        let named: Vec<String> = many.iter().map(|class| format!("n{class}")).collect();
        assert_eq!(doubts(&many, &named, None, true), "");
        let one = doubts(&[0, 255], &[], Some(255), true);
        assert!(
            one.contains("all labels of split train are class 0 or ignored,"),
            "{one}"
        );
        let none = doubts(&[255], &[], Some(255), true);
        assert!(
            none.contains("are 255, which is ignored") && none.contains("`--map 255=N`"),
            "{none}"
        );
        assert_eq!(doubts(&[], &[], Some(255), true), "");
    }

    #[test]
    fn a_set_has_what_was_added() {
        let some = [i16::MIN, -1, 0, 255, i16::MAX];
        assert_eq!(set(&some).iter().collect::<Vec<_>>(), some);
        let mut joined = set(&[3]);
        joined.join(&set(&[4]));
        assert_eq!(joined.text(), "3, 4");
    }
}
