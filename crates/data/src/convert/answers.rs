//! What samples are answered with: in their files or files beside, in a table, or the names of folders.

use std::path::Path;

use partita_formats::{DType, DataError, Samples, SourceArray, SourceFile, slab};

use crate::classes::{CLASSES_MAX, ClassSet, Classes, made_up};
use crate::convert::ConvertSpec;
use crate::convert::find::{Found, Sample};
use crate::convert::relabel::Relabel;
use crate::opened::Inner;
use crate::reader::Reader;
use crate::split::Split;

/// Columns of a table that name the subject of a sample.
const SUBJECT_COLUMNS: [&str; 4] = ["subject", "patient", "universe", "group"];
/// Columns of a table that hold classes even where these are numbers.
const CLASS_COLUMNS: [&str; 2] = ["class", "label"];

/// The answers of all samples.
pub(super) struct Answers {
    /// Names of the numbers or classes; empty where they are still to be counted.
    pub(super) names: Vec<String>,
    /// Extents of class indices; `None` where answers are numbers.
    pub(super) labels: Option<[usize; 3]>,
    /// Whether they are arrays of the files.
    pub(super) are_in_files: bool,
    /// Class numbers of a table, as they stand there.
    pub(super) numbered: Option<ClassSet>,
    classes: Vec<i16>,
    numbers: Vec<Vec<f32>>,
    /// Least and most of each number.
    ranges: Vec<(f32, f32)>,
}

impl Answers {
    fn of_classes(names: Vec<String>, classes: Vec<i16>) -> Self {
        Self {
            names,
            labels: Some([1; 3]),
            are_in_files: false,
            numbered: None,
            classes,
            numbers: Vec::new(),
            ranges: Vec::new(),
        }
    }

    fn none() -> Self {
        Self {
            labels: None,
            ..Self::of_classes(Vec::new(), Vec::new())
        }
    }

    fn in_files(names: Vec<String>, labels: Option<[usize; 3]>) -> Self {
        Self {
            labels,
            are_in_files: true,
            ..Self::of_classes(names, Vec::new())
        }
    }

    pub(super) fn class(&self, sample: usize) -> Option<i16> {
        self.classes.get(sample).copied()
    }

    pub(super) fn numbers(&self, sample: usize) -> Option<&[f32]> {
        self.numbers.get(sample).map(Vec::as_slice)
    }

    /// Each number brought to [-1, 1] by the least and most of all samples.
    pub(super) fn normalized(&self, numbers: &[f32]) -> Vec<f32> {
        let each = numbers.iter().zip(&self.ranges);
        each.map(|(&value, &(least, most))| {
            let span = f64::from(most) - f64::from(least);
            if span > 0.0 {
                (2.0 * (f64::from(value) - f64::from(least)) / span - 1.0) as f32
            } else {
                0.0
            }
        })
        .collect()
    }
}

pub(super) fn find(
    asked: &ConvertSpec,
    found: &mut Found,
    map: &Relabel,
) -> Result<Answers, DataError> {
    let answers = match &asked.targets {
        _ if found.are_alone => Ok(Answers::none()),
        Some(path) if path.extension().is_some_and(|end| end == "csv") => {
            of_table(path, asked, found, map)
        }
        Some(path) => {
            for sample in &mut found.samples {
                sample.entry.targets = Some(path.clone());
            }
            of_files(asked, found, map)
        }
        None if found.are_images && found.samples[0].entry.targets.is_none() => {
            of_folders(asked, found)
        }
        None => of_files(asked, found, map),
    }?;
    let are_numbered =
        answers.labels.is_some() && (answers.are_in_files || answers.numbered.is_some());
    if !asked.map.is_empty() && !are_numbered {
        return Err(DataError::BadValue {
            what: "`--map`",
            got: "answers that are no class numbers".to_owned(),
            expected: "`--map` renames class numbers in files or in a table; leave it out where classes have names, or \
                       answers are numbers or none"
                .to_owned(),
        });
    }
    Ok(answers)
}

/// Arrays in the files, or in files beside them.
fn of_files(asked: &ConvertSpec, found: &mut Found, map: &Relabel) -> Result<Answers, DataError> {
    let sample = &found.samples[0];
    let path = sample.entry.target_path();
    let file = SourceFile::open(path)?.reading(found.keys.access());
    let is_beside = sample.entry.targets.is_some();
    let stacked = sample.entry.stacked;
    let [_, largest @ ..] = found.shape;
    let extent = sample.entry.extent.unwrap_or(largest);
    let [d, h, w] = sample
        .geometry
        .as_ref()
        .map_or(extent, |geometry| geometry.label_extent(extent));
    let order = found
        .keys
        .order
        .clone()
        .unwrap_or_default()
        .stacked(stacked.is_some());
    if file.has(&found.keys.label) || (file.is_nameless() && is_beside) {
        let array = file.array(&found.keys.label)?;
        for ([d, h, w], labels) in [([d, h, w], largest), ([1; 3], [1; 3])] {
            let fits = order
                .fit(&array.shape, stacked.unwrap_or(1), [1, d, h, w])
                .is_some();
            // Floats may be whole numbers; a row of them without a name is numbers.
            let may_be_classes = array.element.is_whole()
                || array.element.delivered().is_some()
                    && (!file.is_nameless() || [d, h, w] != [1; 3]);
            if fits && may_be_classes {
                let names = class_names_of(asked, found, map)?;
                return Ok(Answers::in_files(names, Some(labels)));
            }
        }
        // Vectors of numbers have one dim beside the samples.
        let is_vector = array.shape.len() <= 1 + usize::from(stacked.is_some());
        if !file.is_nameless() || !is_vector {
            return Err(no_classes(&array, stacked, [d, h, w]));
        }
    }
    if file.has(&found.keys.target) || (file.is_nameless() && is_beside) {
        let array = file.array(&found.keys.target)?;
        let count = match (stacked, array.shape.as_slice()) {
            (Some(samples), &[rows]) if rows == samples => 1,
            (_, shape) => shape.last().copied().unwrap_or(1),
        };
        let names = (0..count).map(|target| format!("target{target}")).collect();
        return Ok(Answers::in_files(names, None));
    }
    if distinct_parents(found) > 1 && stacked.is_none() {
        return of_folders(asked, found);
    }
    Err(DataError::NoAnswers {
        path: path.to_path_buf(),
        found: file.keys().to_vec(),
    })
}

/// Class indices of another shape or type than those of the samples.
fn no_classes(array: &SourceArray, stacked: Option<usize>, [d, h, w]: [usize; 3]) -> DataError {
    let samples = match stacked {
        Some(samples) => format!("each of {samples} samples"),
        None => "the sample".to_owned(),
    };
    let found = if array.element.is_whole() {
        String::new()
    } else {
        format!(", not {}", array.element.name())
    };
    array.wrong_shape(format!(
        "class indices of an integer type{found}, for {samples} one at each of {d}x{h}x{w} positions or one in all; \
         another `--layout` has other positions"
    ))
}

/// Class names that are asked for, or those of the task.
fn class_names_of(
    asked: &ConvertSpec,
    found: &mut Found,
    map: &Relabel,
) -> Result<Vec<String>, DataError> {
    let Some(task) = &found.task else {
        return Ok(asked.classes.clone());
    };
    let names = match asked.classes.as_slice() {
        [] => task.classes(map)?,
        classes => classes.to_vec(),
    };
    found.notes.extend(task.about_regions(map, &names));
    Ok(names)
}

/// Names for the classes that occur in files.
pub(super) fn count_classes(source: (&Found, &Inner, &Relabel)) -> Result<Vec<String>, DataError> {
    let inner = source.1;
    let mut reader = Reader::new(std::sync::Arc::new(inner.clone()), Split::Train);
    let mut labels = Samples::new(DType::Int16);
    let mut most = 1;
    for sample in 0..reader.samples() {
        read_labels(source, &mut reader, sample, &mut labels)?;
        if let Samples::I16(values) = &labels {
            let is_ignored = |class: i16| inner.ignored == Some(class.into());
            let classes = values.iter().copied().filter(|&class| !is_ignored(class));
            most = classes.fold(most, i16::max);
        }
    }
    Ok((0..=most).map(|class| made_up(class as usize)).collect())
}

/// Reads the labels of a sample on the voxels of their file, and renames them.
///
/// Errors: labels that are none of the classes of the dataset, or of as many as are counted where it has no names;
/// those of the file.
pub(super) fn read_labels(
    (found, inner, map): (&Found, &Inner, &Relabel),
    reader: &mut Reader,
    sample: usize,
    labels: &mut Samples,
) -> Result<ClassSet, DataError> {
    let [d, h, w] = found.read_labels(inner, reader, sample, labels)?;
    let whole = [0..1, 0..d, 0..h, 0..w];
    let stored = ClassSet::of(labels);
    map.apply(labels);
    let count = match inner.targets.len() {
        0 => CLASSES_MAX,
        count => count,
    };
    let possible = Classes::of_dataset(count, inner.ignored);
    let Samples::I16(values) = &*labels else {
        return Ok(stored);
    };
    let mut all = values.iter().copied().enumerate();
    let Some((at, class)) = all.find(|&(_, class)| !possible.has(class.into())) else {
        return Ok(stored);
    };
    let [_, d, h, w] = slab::position(&whole, at);
    Err(DataError::Unfit {
        path: reader.target_file(sample).to_path_buf(),
        key: inner.keys.label.clone(),
        found: format!(
            "sample {sample}, at (C, D, H, W) = (0, {d}, {h}, {w}): {class} is no class: they are numbered from 0 to {}; \
             `--ignore {class}` if these positions do not count, `--map {class}=N` if they are class N",
            count - 1
        ),
    })
}

fn parent(sample: &Sample) -> String {
    let name = sample.below.parent().and_then(Path::file_name);
    name.map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn distinct_parents(found: &Found) -> usize {
    found
        .samples
        .iter()
        .map(parent)
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

/// The folders of the files are the classes.
fn of_folders(asked: &ConvertSpec, found: &Found) -> Result<Answers, DataError> {
    let folders: Vec<String> = found.samples.iter().map(parent).collect();
    let mut names = asked.classes.clone();
    if names.is_empty() {
        names.clone_from(&folders);
        names.sort();
        names.dedup();
    }
    if names.len() < 2 {
        return Err(DataError::NoAnswers {
            path: found.samples[0].entry.volumes.clone(),
            found: Vec::new(),
        });
    }
    by_name(names, &folders, |sample| {
        found.samples[sample].entry.volumes.clone()
    })
}

fn by_name(
    names: Vec<String>,
    each: &[String],
    path: impl Fn(usize) -> std::path::PathBuf,
) -> Result<Answers, DataError> {
    let mut classes = Vec::new();
    for (sample, name) in each.iter().enumerate() {
        let at = names.iter().position(|other| other == name);
        let at = at.and_then(|at| i16::try_from(at).ok());
        classes.push(at.ok_or_else(|| DataError::Unfit {
            path: path(sample),
            key: "class".to_owned(),
            found: format!(
                "`{name}` is none of the {} classes {}",
                names.len(),
                names.join(", ")
            ),
        })?);
    }
    Ok(Answers::of_classes(names, classes))
}

/// A table with a row per sample: the name of its file first, then numbers or one class.
struct Table {
    path: std::path::PathBuf,
    head: Vec<String>,
    /// Line and cells by the name of the file.
    rows: std::collections::BTreeMap<String, (usize, Vec<String>)>,
}

impl Table {
    fn bad(&self, line: usize, found: String) -> DataError {
        DataError::BadTable {
            path: self.path.clone(),
            line,
            found,
        }
    }

    fn read(path: &Path) -> Result<Self, DataError> {
        let text = partita_files::read_record(path).map_err(|error| DataError::Unopenable {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })?;
        let cells = |line: &str| -> Vec<String> {
            let each = line.split(',');
            each.map(|cell| cell.trim().trim_matches('"').to_owned())
                .collect()
        };
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty());
        let head = lines
            .next()
            .map(|(_, head)| cells(head.trim_start_matches('\u{feff}')));
        let mut table = Self {
            path: path.to_path_buf(),
            head: head.unwrap_or_default(),
            rows: std::collections::BTreeMap::new(),
        };
        for (number, line) in lines {
            let row = cells(line);
            if row.len() != table.head.len() {
                let found = format!("{} cells, not {}", row.len(), table.head.len());
                return Err(table.bad(number + 1, found));
            }
            if table
                .rows
                .insert(row[0].clone(), (number + 1, row))
                .is_some()
            {
                return Err(table.bad(number + 1, "a file that was named before".to_owned()));
            }
        }
        Ok(table)
    }

    /// Line and answers of each sample, from these columns. Subjects are numbered by theirs, if there is one.
    fn answers(
        &self,
        columns: &[usize],
        subject: Option<usize>,
        found: &mut Found,
    ) -> Result<Vec<(usize, Vec<String>)>, DataError> {
        let mut answers = Vec::new();
        let mut subjects = std::collections::BTreeMap::new();
        for sample in &mut found.samples {
            let row = name_of(sample)
                .into_iter()
                .find_map(|name| self.rows.get(&name));
            let Some((line, row)) = row else {
                return Err(self.bad(1, format!("no row for {}", sample.below.display())));
            };
            if let Some(column) = subject {
                let next = subjects.len();
                sample.subject = *subjects.entry(row[column].clone()).or_insert(next);
            }
            let cells = columns.iter().map(|&column| row[column].clone());
            answers.push((*line, cells.collect()));
        }
        Ok(answers)
    }

    /// Classes of a column of whole numbers, all up to the largest, after these have been renamed; `None` where they
    /// are no numbers.
    ///
    /// Errors: numbers that are no classes.
    fn numbered(
        &self,
        answers: &[(usize, Vec<String>)],
        names: &[String],
        map: &Relabel,
    ) -> Option<Result<Answers, DataError>> {
        let stored: Option<Vec<i16>> = answers
            .iter()
            .map(|(_, cells)| cells[0].parse().ok())
            .collect();
        let stored = stored?;
        let mut numbered = ClassSet::default();
        stored.iter().for_each(|&class| numbered.add(class));
        let classes: Vec<i16> = stored.into_iter().map(|class| map.of(class)).collect();
        let is_counted = |class: i16| map.ignored() != Some(class.into());
        let most = classes
            .iter()
            .copied()
            .filter(|&class| is_counted(class))
            .max();
        let count = match names.len() {
            0 => usize::try_from(most.unwrap_or(0)).unwrap_or(0) + 1,
            count => count,
        };
        let possible = Classes::of_dataset(count.min(CLASSES_MAX), map.ignored());
        let no_class =
            (classes.iter().zip(answers)).find(|&(&class, _)| !possible.has(class.into()));
        // Without more these are names, as -1 and 1 may be.
        if no_class.is_some() && names.is_empty() && map.is_empty() {
            return None;
        }
        if let Some((class, (line, _))) = no_class {
            let found = format!(
                "{class} is no class: they are numbered from 0 to {}; `--ignore {class}` if such samples do not count, \
                 `--map {class}=N` if they are class N",
                count.min(CLASSES_MAX) - 1
            );
            return Some(Err(self.bad(*line, found)));
        }
        let names = match names {
            [] => (0..count).map(|class| class.to_string()).collect(),
            names => names.to_vec(),
        };
        Some(Ok(Answers {
            numbered: Some(numbered),
            ..Answers::of_classes(names, classes)
        }))
    }

    /// Finite numbers of each sample.
    fn numbers(&self, answers: Vec<(usize, Vec<String>)>) -> Result<Vec<Vec<f32>>, DataError> {
        let mut numbers = Vec::new();
        for (line, cells) in answers {
            let row: Result<Vec<f32>, _> = cells.iter().map(|cell| cell.parse::<f32>()).collect();
            let row = row
                .ok()
                .filter(|row| row.iter().all(|value| value.is_finite()));
            let found = || format!("{}, which are no finite numbers", cells.join(", "));
            numbers.push(row.ok_or_else(|| self.bad(line, found()))?);
        }
        Ok(numbers)
    }
}

fn of_table(
    path: &Path,
    asked: &ConvertSpec,
    found: &mut Found,
    map: &Relabel,
) -> Result<Answers, DataError> {
    let table = Table::read(path)?;
    let head = &table.head;
    let is_subject = |name: &String| SUBJECT_COLUMNS.contains(&name.to_lowercase().as_str());
    let subject = head.iter().position(is_subject);
    let columns: Vec<usize> = (1..head.len())
        .filter(|&column| Some(column) != subject)
        .collect();
    if columns.is_empty() {
        let columns = head.join(", ");
        let found = format!("the columns `{columns}`; the name of a file and answers are needed");
        return Err(table.bad(1, found));
    }
    let answers = table.answers(&columns, subject, found)?;
    let names: Vec<String> = columns.iter().map(|&column| head[column].clone()).collect();
    let is_class = names.len() == 1
        && (CLASS_COLUMNS.contains(&names[0].to_lowercase().as_str())
            || answers
                .iter()
                .all(|(_, cells)| cells[0].parse::<f32>().is_err()));
    if is_class {
        if let Some(numbered) = table.numbered(&answers, &asked.classes, map) {
            return numbered;
        }
        let each: Vec<String> = answers
            .into_iter()
            .map(|(_, mut cells)| cells.remove(0))
            .collect();
        let mut names = asked.classes.clone();
        if names.is_empty() {
            names.clone_from(&each);
            names.sort();
            names.dedup();
        }
        return by_name(names, &each, |_| path.to_path_buf());
    }
    let numbers = table.numbers(answers)?;
    let ranges = (0..names.len()).map(|column| {
        let values = numbers.iter().map(|row| row[column]);
        values.fold(
            (f32::INFINITY, f32::NEG_INFINITY),
            |(least, most), value| (least.min(value), most.max(value)),
        )
    });
    Ok(Answers {
        ranges: ranges.collect(),
        numbers,
        labels: None,
        ..Answers::of_classes(names, Vec::new())
    })
}

/// What a table may call a sample: path below the source, name, or name without its end; with its place in a
/// file of several.
fn name_of(sample: &Sample) -> Vec<String> {
    let name = sample
        .below
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let stem = name
        .split_once('.')
        .map_or(name.as_str(), |(stem, _)| stem)
        .to_owned();
    let place = sample
        .place
        .map_or_else(String::new, |place| format!(":{place}"));
    let names = [sample.below.to_string_lossy().into_owned(), name, stem];
    names.map(|name| format!("{name}{place}")).to_vec()
}
