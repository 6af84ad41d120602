//! Finds machine files: those of this repository, and those of the user.

use crate::entry::{Entry, FileText, MACHINE_KEYS, SOFTWARE_KEYS};
use crate::error::MachineError;
use crate::files::{self, FileSource};
use crate::machine::Machine;
use crate::software::Software;
use partita_files::read_piped_text;
use std::path::{Path, PathBuf};

/// The machine files of this repository, so that the binary works from any folder.
const BUILT_IN: [(&str, &str); 16] = [
    ("abci", include_str!("../../../machines/abci.toml")),
    ("dgx-1", include_str!("../../../machines/dgx-1.toml")),
    ("dgx-a100", include_str!("../../../machines/dgx-a100.toml")),
    ("dgx-b200", include_str!("../../../machines/dgx-b200.toml")),
    ("dgx-h100", include_str!("../../../machines/dgx-h100.toml")),
    ("dgx-h200", include_str!("../../../machines/dgx-h200.toml")),
    (
        "el-capitan",
        include_str!("../../../machines/el-capitan.toml"),
    ),
    ("frontera", include_str!("../../../machines/frontera.toml")),
    ("frontier", include_str!("../../../machines/frontier.toml")),
    ("fugaku", include_str!("../../../machines/fugaku.toml")),
    (
        "juwels-booster",
        include_str!("../../../machines/juwels-booster.toml"),
    ),
    ("lassen", include_str!("../../../machines/lassen.toml")),
    (
        "pascal-roce",
        include_str!("../../../machines/pascal-roce.toml"),
    ),
    (
        "perlmutter",
        include_str!("../../../machines/perlmutter.toml"),
    ),
    ("summit", include_str!("../../../machines/summit.toml")),
    (
        "tesla-p40",
        include_str!("../../../machines/tesla-p40.toml"),
    ),
];

impl Machine {
    /// A machine by its name or by the path of its file.
    ///
    /// A text with a separator or that ends in `.toml` is a path. A name is `NAME.toml` in the first of
    /// `search_dirs` that has it, else one of the machines that are compiled in.
    /// Errors: an unknown name (with those that exist), a file that cannot be read, and all that
    /// [`Machine::parse`] refuses.
    pub fn load(name_or_path: &str, search_dirs: &[PathBuf]) -> Result<Machine, MachineError> {
        match files::find(name_or_path, search_dirs, &BUILT_IN) {
            Some(FileSource::File(path)) => read_file(&path),
            Some(FileSource::BuiltIn(text)) => {
                Machine::parse(text, &format!("machines/{name_or_path}.toml"))
            }
            None => Err(unknown(name_or_path, search_dirs)),
        }
    }

    /// Reads the text of a machine file; `file` is the name that errors give it.
    ///
    /// Errors: the first fault, with its line, its key and what is possible there.
    pub fn parse(text: &str, file: &str) -> Result<Machine, MachineError> {
        let other = |file| MachineError::IsSoftware { file };
        FileText { text, file }.read((&MACHINE_KEYS, &SOFTWARE_KEYS), other)
    }

    /// The text of a machine file; reading it back gives an equal machine.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        self.write_tables("", &mut text);
        text
    }

    /// Whether a machine of this name is compiled in.
    pub(crate) fn is_built_in(name: &str) -> bool {
        files::built_in(name, &BUILT_IN).is_some()
    }

    /// The names that [`Machine::load`] knows, sorted: those in `search_dirs` and those compiled in.
    ///
    /// A folder that cannot be listed has none.
    pub fn available(search_dirs: &[PathBuf]) -> Vec<String> {
        files::available(search_dirs, &BUILT_IN)
    }
}

fn read_file(path: &Path) -> Result<Machine, MachineError> {
    let text = read_piped_text(path).map_err(|source| MachineError::Unreadable {
        path: path.to_owned(),
        source,
        nearest: files::nearest_of_path(path, &BUILT_IN),
    })?;
    Machine::parse(&text, &path.display().to_string())
}

fn unknown(asked: &str, search_dirs: &[PathBuf]) -> MachineError {
    let available = Machine::available(search_dirs);
    MachineError::Unknown {
        asked: asked.to_owned(),
        nearest: files::nearest(asked, &available),
        is_software: Software::is_built_in(asked),
        available,
    }
}
