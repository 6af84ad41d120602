//! All faults of a run file at once: what is wrong is replaced by a valid value or removed, and the rest is read again.

use super::RunFileError;
use std::borrow::Cow;
use std::collections::BTreeSet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Faults that are reported together.
const FAULTS_MAX: usize = 64;
/// Valid values of keys that must be there or on which others depend, so that no fault of another key follows.
const STAND_INS: &str = r#"
model = "-"
data = "-"
output = "-"
batch = 1048576
epochs = 1000000
kernels = "reference"
precision = "f16"
watchdog = "1000000 h"
schedule = { learning_rate = 0.1 }
"schedule.learning_rate" = 0.1
"schedule.gamma" = 0.5
"schedule.period" = 1
"schedule.every" = 1
"schedule.milestones" = [1]
"schedule.warmup_epochs" = 1
"optimizer.momentum" = 0.5
"early_stopping.patience" = 1
"weights.file" = "-"
"data.path" = "-"
"augmentation.crop" = [1, 1, 1]
"augmentation.crop.extent" = [1, 1, 1]
"augmentation.elastic.magnitude" = 1
"augmentation.elastic.spacing" = 1
"#;

/// Reads a table; of one with faults, all that do not follow from one another, in the order of their lines.
///
/// Errors: the fault, or `Several`.
pub fn all_faults<'t, T>(
    table: &DeTable<'t>,
    mut read: impl FnMut(&DeTable<'t>) -> Result<T, RunFileError>,
) -> Result<T, RunFileError> {
    let first = match read(table) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let mut rest = Rest {
        table: table.clone(),
        stand_ins: BTreeSet::new(),
    };
    let mut faults: Vec<RunFileError> = Vec::new();
    let mut next = Some(first);
    while let Some(error) = next.take().filter(|_| faults.len() < FAULTS_MAX) {
        let is_own = error.key().is_some_and(|key| !rest.is_stand_in(key))
            && !faults.iter().any(|other| explains(other, &error));
        let goes_on = rest.mend(&error);
        if is_own || faults.is_empty() {
            faults.push(error);
        }
        if goes_on {
            next = read(&rest.table).err();
        }
    }
    faults.sort_by_key(RunFileError::line);
    match faults.len() {
        1 => Err(faults.remove(0)),
        _ => Err(RunFileError::Several(faults)),
    }
}

/// Whether a fault follows from another one: of a key in the same table, of an invalid kind of the table, or the key
/// was meant by an unknown one.
fn explains(other: &RunFileError, fault: &RunFileError) -> bool {
    let (Some(other_key), Some(key)) = (other.key(), fault.key()) else {
        return false;
    };
    let is_of_kind = match fault {
        RunFileError::UnknownKey { kinds, .. } => !kinds.is_empty(),
        RunFileError::Missing { .. } => true,
        _ => false,
    };
    let kind_of = other_key.strip_suffix("kind").unwrap_or("-");
    other_key.starts_with(&format!("{key}."))
        || is_of_kind && key.starts_with(kind_of)
        || meant(other).is_some_and(|meant| meant == key || meant.starts_with(&format!("{key}.")))
}

/// The key that was probably meant by an unknown one.
fn meant(fault: &RunFileError) -> Option<&str> {
    match fault {
        RunFileError::UnknownKey { nearest, .. } => nearest.as_deref(),
        _ => None,
    }
}

fn unquoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.strip_suffix('"')
}

/// What is left of a table without its faults.
struct Rest<'t> {
    table: DeTable<'t>,
    /// Keys whose values are not those of the file.
    stand_ins: BTreeSet<String>,
}

impl Rest<'_> {
    fn is_stand_in(&self, key: &str) -> bool {
        let mut all = self.stand_ins.iter();
        all.any(|stand_in| key == stand_in || key.starts_with(&format!("{stand_in}.")))
    }

    /// Removes a fault. Whether there may be others.
    fn mend(&mut self, fault: &RunFileError) -> bool {
        match fault {
            RunFileError::UnknownKey { key, .. } => {
                let is_removed = remove(&mut self.table, key);
                let put = meant(fault).filter(|key| !has(&self.table, key));
                put.is_some_and(|key| self.stand_in(key, None)) || is_removed
            }
            RunFileError::Value { key, expected, .. } => {
                let nearest = expected.nearest.as_deref().and_then(unquoted);
                let kind = nearest.filter(|_| key.ends_with(".kind"));
                let is_removed = remove(&mut self.table, key);
                self.stand_in(key, kind) || is_removed
            }
            RunFileError::Missing { key, .. } => {
                let table = key
                    .rsplit_once('.')
                    .map_or(key.as_str(), |(table, _)| table);
                self.stand_in(key, None) || remove(&mut self.table, table)
            }
            RunFileError::Default { .. }
            | RunFileError::Unreadable { .. }
            | RunFileError::Syntax { .. }
            | RunFileError::Several(_) => false,
        }
    }

    /// Gives a key a valid value, if there is one and it does not have it yet.
    fn stand_in(&mut self, key: &str, word: Option<&str>) -> bool {
        let known = DeTable::parse(STAND_INS).expect("it is TOML").into_inner();
        let value = match word {
            Some(word) => Some(DeValue::String(Cow::Owned(word.to_owned()))),
            None => known.get(key).map(|value| value.get_ref().clone()),
        };
        value.is_some_and(|value| {
            !self.stand_ins.contains(key)
                && insert(&mut self.table, key, value)
                && self.stand_ins.insert(key.to_owned())
        })
    }
}

fn has(table: &DeTable<'_>, key: &str) -> bool {
    match key.split_once('.') {
        _ if table.contains_key(key) => true,
        Some((first, rest)) => match table.get(first).map(Spanned::get_ref) {
            Some(DeValue::Table(inner)) => has(inner, rest),
            Some(_) | None => false,
        },
        None => false,
    }
}

fn insert<'t>(table: &mut DeTable<'t>, key: &str, value: DeValue<'t>) -> bool {
    match key.split_once('.') {
        None => {
            let key = Spanned::new(0..0, Cow::Owned(key.to_owned()));
            table.insert(key, Spanned::new(0..0, value));
            true
        }
        Some((first, rest)) => match table.get_mut(first).map(Spanned::get_mut) {
            Some(DeValue::Table(inner)) => insert(inner, rest, value),
            Some(_) | None => false,
        },
    }
}

fn remove(table: &mut DeTable<'_>, key: &str) -> bool {
    if table.remove(key).is_some() {
        return true;
    }
    let Some((first, rest)) = key.split_once('.') else {
        return false;
    };
    match table.get_mut(first).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => remove(inner, rest),
        Some(_) => table.remove(first).is_some(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::train::run_file::RunFile;

    /// Lines and keys of the faults of a run file.
    fn faults(text: &str) -> Vec<String> {
        let error = RunFile::parse(text, "run.toml").unwrap_err().to_string();
        error
            .replace("\n  help: ", "; ")
            .replace("\nhelp: ", "; ")
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[track_caller]
    fn are(text: &str, expected: &[(usize, &str)]) {
        let found = faults(text);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (fault, (line, part)) in found.iter().zip(expected) {
            let start = format!("run.toml, line {line}: ");
            assert!(fault.starts_with(&start) && fault.contains(part), "{fault}");
        }
    }

    #[test]
    fn wrong_keys_are_told_together() {
        are(
            "model = \"m\"\ndat = \"d\"\noutput = \"o\"\nbatch_size = 4\nepochs = 2.5\nranks = 0\n\
             [schedule]\nlr = 0.1\nkind = \"cosine\"\n[checkpoint]\nevery_epoch = 1\n[optimizer]\nkind = \"adm\"\nbeta3 = 1\n",
            &[
                (2, "`dat`"),
                (4, "try `batch`"),
                (5, "`epochs` is 2.5"),
                (6, "`ranks` is 0"),
                (8, "try `schedule.learning_rate`"),
                (11, "`checkpoint.every_epoch`"),
                (13, "`optimizer.kind` is \"adm\""),
                (14, "`optimizer.beta3`"),
            ],
        );
    }

    /// Keys and values of every table, one inside another too.
    #[test]
    fn faults_of_all_tables_are_told_together() {
        are(
            "model = \"m\"\ndata = { stor = \"memory\", preload = 1 }\noutput = \"o\"\nbatch = 4\nepochs = 2\n\
             kernels = \"cpuu\"\nprecision = \"fp17\"\nloss_scale = 0\nwatchdog = 5\n\
             weights = { fil = \"w\", statistics = \"dat\" }\ntarget = { dicee = 0.9 }\n\
             [schedule]\nkind = \"cosinus\"\nlearning_rate = \"fast\"\nfinal_factor = 3\nwarmup = 1\nwarmup_factor = 2\n\
             [optimizer]\nkind = \"sdg\"\nbeta3 = 1\nmomentum = 2\nnesterov = true\n\
             [early_stopping]\nmetrik = \"accuracy\"\n\
             [checkpoint]\nevery_epoch = 1\nkeep = -1\n\
             [augmentation]\nflips = true\ncrop = 4\ncrop_positions = \"grids\"\nelastic = { magnitude = -1 }\n\
             [offload]\nloader = 1\ntimeout = \"90\"\n",
            &[
                (2, "`data.stor`"),
                (2, "`data.preload` is 1"),
                (2, "`data.path` is missing"),
                (6, "`kernels` is \"cpuu\""),
                (7, "`precision` is \"fp17\""),
                (8, "`loss_scale` is 0"),
                (9, "`watchdog` is 5"),
                (10, "`weights.fil`"),
                (10, "`weights.statistics` is \"dat\""),
                (11, "`target.dicee`"),
                (13, "`schedule.kind` is \"cosinus\""),
                (14, "`schedule.learning_rate` is \"fast\""),
                (15, "`schedule.final_factor` is 3"),
                (16, "try `schedule.warmup_epochs`"),
                (17, "`schedule.warmup_factor` is 2"),
                (19, "`optimizer.kind` is \"sdg\""),
                (20, "`optimizer.beta3`"),
                (21, "`optimizer.momentum` is 2"),
                (23, "`early_stopping.patience` is missing"),
                (24, "`early_stopping.metrik`"),
                (26, "`checkpoint.every_epoch`"),
                (27, "`checkpoint.keep` is -1"),
                (29, "`augmentation.flips`"),
                (30, "`augmentation.crop` is 4"),
                (31, "`augmentation.crop_positions`"),
                (32, "`augmentation.elastic.magnitude` is -1"),
                (32, "`augmentation.elastic.spacing` is missing"),
                (34, "`offload.loader`"),
                (35, "`offload.timeout`"),
            ],
        );
    }

    #[test]
    fn missing_keys_are_told_together() {
        are(
            "model = \"m\"\ndata = \"d\"\n",
            &[
                (1, "`epochs` is missing"),
                (1, "`output` is missing"),
                (1, "`batch` is missing"),
                (1, "`schedule` is missing"),
            ],
        );
    }

    /// What follows from a fault is none of its own.
    #[test]
    fn faults_that_follow_from_others_are_left_out() {
        let rest = "model = \"m\"\ndata = \"d\"\noutput = \"o\"\nbatch = 4\nepochs = 2\n";
        are(
            &format!("{rest}precision = \"fp17\"\nloss_scale = 8\nschedule.learning_rate = 0.1\n"),
            &[(6, "`precision`")],
        );
        are(
            &format!(
                "{rest}[schedule]\nkind = \"cosin\"\nlearning_rate = 0.1\nfinal_factor = 0.1\n"
            ),
            &[(7, "`schedule.kind`")],
        );
        are(
            &format!("{rest}schedule = \"cosine\"\n"),
            &[(6, "`schedule`")],
        );
        are(
            &format!(
                "{rest}kernels = \"gpuu\"\nprecision = \"f64\"\nwatchdog = \"x\"\n[offload]\ntimeout = \"5 min\"\n\
                 [schedule]\nkind = \"stp\"\nlearning_rate = 0.1\nevery = 0\nwarmup_epochs = 0\nwarmup_factor = 0.1\n\
                 [optimizer]\nkind = \"sgd\"\nmomentun = 0.9\nnesterov = true\n\
                 [augmentation]\ncrop = 4\ncrops_per_volume = 2\n"
            ),
            &[
                (6, "`kernels`"),
                (8, "`watchdog`"),
                (12, "`schedule.kind`"),
                (14, "`schedule.every`"),
                (15, "`schedule.warmup_epochs`"),
                (19, "`optimizer.momentun`"),
                (22, "`augmentation.crop`"),
            ],
        );
        are(
            &format!("{rest}[schedule]\nlearning_rate = \"fast\"\n"),
            &[(7, "`schedule.learning_rate`")],
        );
    }
}
