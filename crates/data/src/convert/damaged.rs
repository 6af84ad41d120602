//! Files that are cut or damaged: decoded whole before anything is decided, and left out where that is asked for.

use std::path::{Path, PathBuf};

use partita_formats::{DataError, Elements, SourceFile, image};

use crate::convert::ConvertSpec;
use crate::convert::cases::Case;
use crate::inspect::{ValueScope, boxes};

/// Files that are named in a note, before the others are counted.
const NAMED_MAX: usize = 20;

/// Samples that are left out.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    /// The file, and what is wrong with it.
    files: Vec<(PathBuf, DataError)>,
    /// Cases that there were.
    cases: usize,
}

impl Damaged {
    /// Takes cases whose files cannot be decoded out of all, where that is asked for.
    ///
    /// Errors: that of the first file where none is whole.
    pub(super) fn take_out(cases: &mut Vec<Case>, asked: &ConvertSpec) -> Result<Self, DataError> {
        if !asked.skip_damaged {
            return Ok(Self::default());
        }
        let mut found = Self {
            files: Vec::new(),
            cases: cases.len(),
        };
        cases.retain(|case| match first_fault(case, asked) {
            None => true,
            Some(fault) => {
                found.files.push(fault);
                false
            }
        });
        if cases.is_empty() && !found.files.is_empty() {
            return Err(found.files.swap_remove(0).1);
        }
        Ok(found)
    }

    /// What is said of them.
    pub(super) fn notes(&self) -> Vec<String> {
        let count = self.files.len();
        if count == 0 {
            return Vec::new();
        }
        let first = format!(
            "{count} of {} files or cases are damaged and left out (`--skip-damaged`)",
            self.cases
        );
        let named = self.files.iter().take(NAMED_MAX);
        let named = named.map(|(_, error)| format!("left out: {error}"));
        let more = (count > NAMED_MAX).then(|| {
            format!(
                "left out: {} more; `spec.damaged` of the index names all",
                count - NAMED_MAX
            )
        });
        [first].into_iter().chain(named).chain(more).collect()
    }

    /// Their files, as the index keeps them.
    pub(super) fn names(&self) -> Vec<String> {
        let files = self.files.iter();
        files.map(|(path, _)| path.display().to_string()).collect()
    }
}

/// Whether an error says that the bytes of a file are not what its format demands.
fn is_damage(error: &DataError) -> bool {
    matches!(
        error,
        DataError::Unreadable { .. } | DataError::NotHdf5 { .. }
    )
}

/// The error with what leaves the sample out, where that would help.
pub(super) fn skippable(error: DataError) -> DataError {
    if is_damage(&error) {
        return DataError::Skippable(Box::new(error));
    }
    error
}

/// The first file of a case that is damaged.
fn first_fault(case: &Case, asked: &ConvertSpec) -> Option<(PathBuf, DataError)> {
    let files = [case.image.path.as_path()]
        .into_iter()
        .chain(case.more.iter().map(PathBuf::as_path))
        .chain(case.labels.as_deref());
    let mut faults = files.filter_map(|path| {
        let error = decode(path, asked).err().filter(is_damage)?;
        Some((path.to_path_buf(), error))
    });
    faults.next()
}

/// Decodes the arrays of a file that a conversion reads.
///
/// Errors: those of the file; other kinds than damage are for those who read it again.
fn decode(path: &Path, asked: &ConvertSpec) -> Result<(), DataError> {
    if partita_formats::is_image(path) {
        let image = image::read(path).map_err(|error| error.of(path, None, None))?;
        drop(image);
        return Ok(());
    }
    let file = SourceFile::open(path)?.reading(asked.keys.access());
    let keys = &asked.keys;
    let wanted = [&keys.volume, &keys.target, &keys.label];
    let is_wanted = |key: &String| {
        // TFRecord has its own usual names.
        file.is_nameless() || wanted.contains(&key) || key == "x" || key == "y"
    };
    for key in file.keys().iter().filter(|key| is_wanted(key)) {
        let array = file.array(key)?;
        let elements: usize = array.shape.iter().product();
        if array.check_element().is_err() || elements == 0 {
            continue;
        }
        let mut buffer = Elements::new(&array.element);
        for ranges in boxes(&array, ValueScope::All) {
            array.read_box(&ranges, &mut buffer)?;
        }
    }
    Ok(())
}
