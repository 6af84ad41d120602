//! Features: numbers of each sample beside its volume, such as age and weight, which a network reads as a second input.

use std::collections::HashMap;
use std::path::Path;

use partita_files::read_text;
use partita_formats::DataError;
use partita_space::nearest;
use serde::Serialize;

use crate::dataset::Dataset;
use crate::index::{INDEX_FILE, Index};
use crate::split::Split;
use crate::target_record::key;

/// Most features of a sample.
const FEATURES_MAX: usize = 4096;

impl Dataset {
    /// Names of the features in the order in which they are read; none where samples have none.
    pub fn features(&self) -> &[String] {
        &self.inner().features.names
    }

    /// The features of a sample, as many as [`features`](Self::features), finite.
    ///
    /// Errors: those of a source; another number of values, or one that is not finite.
    pub fn read_features(&self, split: Split, sample: usize) -> Result<Vec<f32>, DataError> {
        let (inner, features) = (self.inner(), &self.inner().features);
        let row = match &inner.source {
            Some(source) => {
                let row = source.0.read_features((split, sample));
                features.arranged(
                    &row.map_err(|error| self.bad_features((split, sample), error.to_string()))?,
                )
            }
            None => features.arranged(&features.rows[split as usize][sample]),
        };
        if row.len() != features.names.len() || row.iter().any(|value| !value.is_finite()) {
            return Err(self.bad_features((split, sample), format!("{row:?}")));
        }
        Ok(row)
    }

    /// The features of its index as a text; empty where a source has them.
    pub fn stored_features(&self) -> String {
        format!("{:?}", self.inner().features.rows)
    }

    fn bad_features(&self, (split, sample): (Split, usize), found: String) -> DataError {
        DataError::BadValue {
            what: "features of a sample",
            got: format!(
                "{found} for sample {sample} of the split `{split}` of {}",
                self.path().display()
            ),
            expected: format!("{} finite numbers", self.features().len()),
        }
    }

    /// The dataset with its features in the order of those of weights, which are matched by name, and a line that says so.
    ///
    /// Errors: `OtherTargets` for names that do not match.
    pub fn in_feature_order(self, names: &[String]) -> Result<(Self, Option<String>), DataError> {
        let own = self.features();
        if own.is_empty() || names.is_empty() || own == names {
            return Ok((self, None));
        }
        // A name in other case counts where no other column has it.
        let exact = |name: &String| own.iter().position(|other| other == name);
        let alike = |name: &String| {
            let mut places = (0..own.len()).filter(|&at| key(&own[at]) == key(name));
            places.next().filter(|_| places.next().is_none())
        };
        let place = |name: &String| exact(name).or_else(|| alike(name));
        let places: Option<Vec<usize>> = names.iter().map(place).collect();
        let Some(places) = places else {
            return Err(DataError::OtherTargets {
                path: self.path().to_path_buf(),
                what: "features",
                found: own.join(", "),
                expected: names.join(", "),
                remedy: "features are matched by name, in any order: give the dataset a table with these columns, by \
                         `partita data features`",
            });
        };
        if places.iter().copied().eq(0..own.len()) {
            return Ok((self, None));
        }
        let text = format!(
            "features of {} are read in the order of the weights, by name: {}",
            self.path().display(),
            names.join(", ")
        );
        let mut features = self.inner().features.clone();
        let stored = |&place: &usize| features.order.as_ref().map_or(place, |order| order[place]);
        features.order = Some(places.iter().map(stored).collect());
        features.names = names.to_vec();
        Ok((self.with_features(features), Some(text)))
    }
}

/// What [`write_features`] did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WrittenFeatures {
    /// Names of the features, in the order of the columns.
    pub names: Vec<String>,
    /// Samples that have them.
    pub samples: usize,
    /// Rows of the table that are of no sample.
    pub unused: usize,
}

/// Writes features to the index of a dataset folder, from a table with a header and a row for each sample, whose first column
/// names it. `columns` are the features, all others if none are named.
///
/// Errors: what [`Dataset::open_samples`] says of the folder; a table that cannot be read, samples without a row,
/// columns that are missing, values that are no finite numbers.
pub fn write_features(
    folder: &Path,
    table: &Path,
    columns: &[String],
) -> Result<WrittenFeatures, DataError> {
    let index_path = folder.join(INDEX_FILE);
    if !index_path.is_file() {
        return Err(DataError::BadValue {
            what: "dataset of the features",
            got: format!("{}, which has no `{INDEX_FILE}`", folder.display()),
            expected: "a dataset folder, as `partita data convert` writes it".to_owned(),
        });
    }
    let dataset = Dataset::open_samples(folder)?;
    let (names, mut rows) = read_table(table, columns)?;
    let mut index = Index::read(&index_path)?;
    for split in Split::ALL {
        let samples = dataset.names(split);
        let mut own = Vec::with_capacity(samples.len());
        for sample in samples {
            own.push(
                rows.remove(&sample)
                    .ok_or_else(|| unlisted(table, &sample, &rows))?,
            );
        }
        index.split_mut(split).features = (!own.is_empty()).then_some(own);
    }
    let samples = index.samples;
    index.features = Some(names.clone());
    index.write(&index_path)?;
    Ok(WrittenFeatures {
        names,
        samples,
        unused: rows.len(),
    })
}

fn unlisted(table: &Path, sample: &str, left: &Rows) -> DataError {
    let near = nearest(sample, left.keys().map(String::as_str));
    let near = near.map_or_else(String::new, |near| {
        format!("; the nearest name there is `{near}`")
    });
    let found = format!("no row for the sample `{sample}`");
    bad_table(
        table,
        &found,
        &format!("a row for each sample, whose first column names it{near}"),
    )
}

fn bad_table(table: &Path, found: &str, expected: &str) -> DataError {
    DataError::BadValue {
        what: "table of features",
        got: format!("{found} in {}", table.display()),
        expected: expected.to_owned(),
    }
}

/// The row of each sample, by its name.
type Rows = HashMap<String, Vec<f32>>;

/// Names of the features, and their rows.
fn read_table(table: &Path, columns: &[String]) -> Result<(Vec<String>, Rows), DataError> {
    let unreadable =
        |reason: String| bad_table(table, &reason, "a table of comma-separated values");
    let text = read_text(table).map_err(|error| unreadable(error.to_string()))?;
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let header = reader
        .headers()
        .map_err(|error| unreadable(error.to_string()))?
        .clone();
    let all: Vec<&str> = header.iter().skip(1).collect();
    let taken = places(table, &all, columns)?;
    let mut rows = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| unreadable(error.to_string()))?;
        let name = record.get(0).unwrap_or_default().to_owned();
        let row = taken.iter().map(|&at| {
            let text = record.get(at + 1).unwrap_or_default();
            let value = text.parse().ok().filter(|value: &f32| value.is_finite());
            value.ok_or_else(|| {
                let found = format!("`{text}` as `{}` of `{name}`", all[at]);
                bad_table(
                    table,
                    &found,
                    "finite numbers; categories as a column of 0 and 1 each",
                )
            })
        });
        let row = row.collect::<Result<Vec<f32>, DataError>>()?;
        if rows.insert(name.clone(), row).is_some() {
            return Err(bad_table(
                table,
                &format!("two rows `{name}`"),
                "one row for each sample",
            ));
        }
    }
    Ok((taken.iter().map(|&at| all[at].to_owned()).collect(), rows))
}

/// The places of columns among all behind the first one.
fn places(table: &Path, all: &[&str], columns: &[String]) -> Result<Vec<usize>, DataError> {
    for (at, name) in all.iter().enumerate() {
        if name.is_empty() || all[..at].contains(name) {
            let found = format!("the name `{name}` of column {}", at + 2);
            return Err(bad_table(
                table,
                &found,
                "a name of its own for each column",
            ));
        }
    }
    let place = |name: &String| {
        all.iter().position(|other| other == name).ok_or_else(|| {
            let found = format!("no column `{name}`");
            bad_table(table, &found, &format!("some of {}", all.join(", ")))
        })
    };
    let found: Vec<usize> = match columns {
        [] => (0..all.len()).collect(),
        columns => columns.iter().map(place).collect::<Result<_, _>>()?,
    };
    if let Some(at) = (1..found.len()).find(|&at| found[..at].contains(&found[at])) {
        let text = format!("`{}` twice among the columns", all[found[at]]);
        return Err(bad_table(table, &text, "each column once"));
    }
    if !(1..=FEATURES_MAX).contains(&found.len()) {
        let text = format!("{} columns of features", found.len());
        return Err(bad_table(
            table,
            &text,
            &format!("1 to {FEATURES_MAX} columns behind the names of samples"),
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
