//! All faults of a run file at once: what is wrong is taken out of its table, and the rest is read again.

use super::RunFileError;
use std::collections::BTreeSet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Faults that are told at once.
const FAULTS_MAX: usize = 20;
/// Keys whose values decide about others.
const DEPENDENT: [(&str, &[&str]); 4] = [
    ("kernels", &["precision", "loss_scale"]),
    ("device", &["precision", "loss_scale"]),
    ("precision", &["loss_scale"]),
    ("watchdog", &["offload"]),
];
/// Values of keys that must be there, so that what follows a missing one is read.
const IN_PLACE: &str = "model = \"-\"\ndata = \"-\"\noutput = \"-\"\nbatch = 1048576\nepochs = 1000000\n\
                        schedule.learning_rate = 0.1";

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
    let in_place = DeTable::parse(IN_PLACE).expect("it is TOML").into_inner();
    let mut rest = table.clone();
    let mut faults: Vec<RunFileError> = Vec::new();
    let mut missing = BTreeSet::new();
    let mut next = Some(first);
    while let Some(error) = next.take().filter(|_| faults.len() < FAULTS_MAX) {
        let goes_on = match &error {
            RunFileError::UnknownKey { key, .. } | RunFileError::Value { key, .. } => {
                take_out(&mut rest, key)
            }
            RunFileError::Missing { key, .. } => {
                let home = key.split('.').next().unwrap_or(key);
                let value = in_place.get_key_value(home);
                let value = value.filter(|_| missing.insert(key.clone()));
                rest.remove(home);
                rest.extend(value.map(|(key, value)| (key.clone(), value.clone())));
                value.is_some()
            }
            RunFileError::Default { .. }
            | RunFileError::Unreadable { .. }
            | RunFileError::Syntax { .. }
            | RunFileError::Several(_) => false,
        };
        if faults.is_empty() || is_own(&error, &faults) {
            faults.push(error);
        }
        if goes_on {
            next = read(&rest).err();
        }
    }
    faults.sort_by_key(RunFileError::line);
    match faults.len() {
        1 => Err(faults.remove(0)),
        _ => Err(RunFileError::Several(faults)),
    }
}

/// Whether a fault does not follow from others.
fn is_own(fault: &RunFileError, others: &[RunFileError]) -> bool {
    match fault {
        RunFileError::UnknownKey { .. } | RunFileError::Value { .. } => true,
        RunFileError::Missing { key, .. } => !others.iter().any(|other| explains(other, key)),
        RunFileError::Default { .. }
        | RunFileError::Unreadable { .. }
        | RunFileError::Syntax { .. }
        | RunFileError::Several(_) => false,
    }
}

/// Whether a key is missing because of another fault: it was written otherwise, or taken out.
fn explains(fault: &RunFileError, missing: &str) -> bool {
    match fault {
        RunFileError::UnknownKey { key, hint, .. } => {
            let meant = [format!("`{missing}`"), format!("`{missing}.")];
            meant.iter().any(|meant| hint.contains(meant))
                || missing.starts_with(&format!("{key}."))
        }
        RunFileError::Value { key, .. } => {
            let table = key
                .rsplit_once('.')
                .map_or(key.as_str(), |(table, _)| table);
            missing == key || missing == table || missing.starts_with(&format!("{table}."))
        }
        RunFileError::Unreadable { .. }
        | RunFileError::Syntax { .. }
        | RunFileError::Missing { .. }
        | RunFileError::Default { .. }
        | RunFileError::Several(_) => false,
    }
}

/// Takes a key out of a table, and what depends on it: with `kind`, on which the other keys depend, its whole table.
/// Whether it was there.
fn take_out(table: &mut DeTable<'_>, key: &str) -> bool {
    let key = key.strip_suffix(".kind").unwrap_or(key);
    for (_, dependent) in DEPENDENT.iter().filter(|(of, _)| *of == key) {
        for other in *dependent {
            remove(table, other);
        }
    }
    remove(table, key)
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
        error.lines().map(str::to_owned).collect()
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
                (4, "nearest is `batch`"),
                (5, "`epochs` is 2.5"),
                (6, "`ranks` is 0"),
                (8, "nearest is `schedule.learning_rate`"),
                (11, "`checkpoint.every_epoch`"),
                (13, "`optimizer.kind` is \"adm\""),
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
            &format!("{rest}[schedule]\nlearning_rate = \"fast\"\n"),
            &[(7, "`schedule.learning_rate`")],
        );
    }
}
