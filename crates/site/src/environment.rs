//! The environment of the process: variables, folders, and how it may be ended.
//!
//! All environment variables are interpreted here, and only here. The caller passes a function that reads them.
//!
//! A process that was started alone runs its ranks as threads. A process that a launcher (mpirun of Open MPI, hydra
//! of MPICH, PRRTE, srun) started as one of several is one rank, and loads the MPI library of the launcher's
//! environment.

use crate::foreign::{HINT_VARIABLES, LoaderPaths};
use crate::launcher::{self, Launcher};
use partita_cpu::Level;
use partita_mpi::LibrarySearch;
use partita_onednn::LibrarySearch as OneDnnSearch;
use partita_space::Help;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Selects a lower instruction level than the processor has, to compare with another machine.
const VECTORS: &str = "PARTITA_VECTORS";
/// Folders of machine files, separated by colons.
const MACHINES: &str = "PARTITA_MACHINES";
/// Folders of software profiles, separated by colons.
const SOFTWARE: &str = "PARTITA_SOFTWARE";
/// The MPI library to load instead of the one that would be found.
const MPI_FILE: &str = "PARTITA_MPI";

/// The oneDNN library to load instead of the one that would be found, or [`OFF`].
const ONEDNN: &str = "PARTITA_ONEDNN";
/// Folder of the locks of cores, the same for all processes of a node, or [`OFF`].
const CORE_LOCKS: &str = "PARTITA_CORE_LOCKS";
/// Value of [`ONEDNN`] and [`CORE_LOCKS`] for none.
const OFF: &str = "off";

/// The environment of a process.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Folders in which machine files are looked for by name.
    pub machine_folders: Vec<PathBuf>,
    /// Folders in which software profiles are looked for by name.
    pub software_folders: Vec<PathBuf>,
    /// File of measured times; `None` keeps them in memory only.
    pub measured_times: Option<PathBuf>,
    /// File of the secret that processes which load or validate share with the trainings of the user; it is made where it is
    /// missing.
    pub secret: Option<PathBuf>,
    /// Instruction level of the CPU kernels.
    pub level: Level,
    /// The launcher that started this process as one of several.
    pub launcher: Option<Launcher>,
    /// The MPI library to load instead of the one that would be found.
    pub mpi_file: Option<PathBuf>,
    /// Where to look for oneDNN.
    pub onednn: OneDnnSearch,
    /// Folder of the locks of cores that ranks are pinned to; `None` pins without locks.
    pub core_locks: Option<PathBuf>,
    /// Search paths of the loader.
    pub loader: LoaderPaths,
    /// Home folder of the user.
    pub home: Option<PathBuf>,
    /// Folder of temporary files.
    pub temporary: PathBuf,
    /// The command that starts a process which loads samples or validates, as `partita serve` does: a training appends
    /// `--with-parent --listen ADDRESS --role ROLE --secret FILE`, perhaps `--cores CORES`, and the run file. It calls
    /// `serve` of the library, prints a line that ends in `LISTENING` and the address, and ends when its
    /// standard input closes. Empty where there is none.
    pub serve_command: Vec<OsString>,
    /// Whether MPI that a verb has started stays so at its end, for verbs after it in this process. Whoever asks for it
    /// calls `finalize_mpi` of the library at the end.
    pub keeps_mpi: bool,
    /// Called with a message, on another thread, when a call of a foreign library does not return; it may end the
    /// process. Without it that is an [`Event::Failure`](crate::Event::Failure), and the call goes on waiting.
    pub on_timeout: Option<fn(&str)>,
}

/// An environment variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The processor lacks the instruction level.
    #[error(
        "{VECTORS}={word}: this processor has no {level}{}",
        Help::possible(possible).nearest(highest)
    )]
    Unavailable {
        /// The value.
        word: String,
        /// The instruction level.
        level: &'static str,
        /// Levels of this processor.
        possible: String,
        /// The default level.
        highest: &'static str,
    },
    /// There is no such instruction level.
    #[error(
        "{VECTORS}={word} names no instruction level{}",
        Help::possible(possible).code(nearest)
    )]
    NoLevel {
        /// The value.
        word: String,
        /// Levels of this processor.
        possible: String,
        /// The most similar one.
        nearest: String,
    },
}

impl Default for Environment {
    /// No variables: built-in machines and software, those in `machines/` and `software/`, times kept in memory, the highest instruction
    /// level, no launcher.
    fn default() -> Self {
        Self {
            machine_folders: vec![PathBuf::from("machines")],
            software_folders: vec![PathBuf::from("software")],
            measured_times: None,
            secret: None,
            level: Level::detect(),
            launcher: None,
            mpi_file: None,
            onednn: OneDnnSearch::Loader,
            core_locks: Some(PathBuf::from("/tmp/partita-cores")),
            loader: LoaderPaths::default(),
            home: None,
            temporary: PathBuf::from("/tmp"),
            serve_command: Vec::new(),
            keeps_mpi: false,
            on_timeout: None,
        }
    }
}

impl Environment {
    /// The environment given by variables.
    ///
    /// Errors: `PARTITA_VECTORS` names no instruction level, or one that this processor lacks.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, EnvironmentError> {
        let path = |name: &str| {
            variable(name)
                .filter(|it| !it.is_empty())
                .map(PathBuf::from)
        };
        let level = path(VECTORS).map(|word| level(&word.to_string_lossy()));
        let folders = |name: &str, own: &str| {
            let listed = variable(name).unwrap_or_default();
            let listed = paths(&listed).filter(|path| !path.as_os_str().is_empty());
            listed.chain([PathBuf::from(own)]).collect()
        };
        let hint = |name: &&'static str| Some((*name, variable(name).map(PathBuf::from)?));
        Ok(Self {
            machine_folders: folders(MACHINES, "machines"),
            software_folders: folders(SOFTWARE, "software"),
            measured_times: cache_file(variable, "measured.sqlite"),
            secret: cache_file(variable, "offload-secret"),
            level: level.transpose()?.unwrap_or_else(Level::detect),
            launcher: launcher::started_by(&|name| variable(name)?.into_string().ok()),
            mpi_file: path(MPI_FILE),
            onednn: match path(ONEDNN) {
                None => OneDnnSearch::Loader,
                Some(word) if word == Path::new(OFF) => OneDnnSearch::Off,
                Some(file) => OneDnnSearch::File(file),
            },
            core_locks: match path(CORE_LOCKS) {
                None => Self::default().core_locks,
                Some(word) if word == Path::new(OFF) => None,
                folder => folder,
            },
            loader: LoaderPaths {
                listed: paths(&variable("LD_LIBRARY_PATH").unwrap_or_default()).collect(),
                roots: HINT_VARIABLES.iter().filter_map(hint).collect(),
            },
            ..Self::default()
        })
    }

    /// The MPI library that this process should load.
    pub fn mpi(&self) -> LibrarySearch {
        LibrarySearch {
            file: self.mpi_file.clone(),
            folders: launcher::folders(),
            family: self.launcher.as_ref().and_then(|launcher| launcher.family),
        }
    }
}

/// The paths of a colon-separated list.
fn paths(list: &OsStr) -> impl Iterator<Item = PathBuf> {
    let parts = list.as_bytes().split(|&byte| byte == b':');
    parts.map(|part| PathBuf::from(OsStr::from_bytes(part)))
}

/// A file in `$XDG_CACHE_HOME/partita`, else in `~/.cache/partita`.
fn cache_file(variable: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(cache?.join("partita").join(name))
}

fn level(word: &str) -> Result<Level, EnvironmentError> {
    let names: Vec<&str> = Level::all_available().map(Level::name).collect();
    let possible = names.join(", ");
    let word = word.to_owned();
    match Level::named(&word) {
        Some(level) if level.available() => Ok(level),
        Some(level) => Err(EnvironmentError::Unavailable {
            word,
            level: level.name(),
            possible,
            highest: Level::detect().name(),
        }),
        None => {
            let nearest = partita_space::nearest(&word, names).unwrap_or_default();
            let nearest = nearest.to_owned();
            Err(EnvironmentError::NoLevel {
                word,
                possible,
                nearest,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_available_levels_are_read() {
        for one in Level::all_available() {
            assert_eq!(level(one.name()), Ok(one));
            assert_eq!(level(&one.name().to_uppercase()), Ok(one));
        }
    }

    #[test]
    fn unknown_levels_are_refused_with_the_nearest() {
        let refusal = level("portabel").unwrap_err();
        let is_nearest =
            matches!(&refusal, EnvironmentError::NoLevel { nearest, .. } if nearest == "portable");
        assert!(is_nearest, "{refusal}");
        let lacking = Level::ALL.into_iter().find(|level| !level.available());
        let lacking = lacking.expect("no processor has the vectors of two makers");
        let refusal = level(lacking.name()).unwrap_err();
        assert!(matches!(refusal, EnvironmentError::Unavailable { .. }));
    }

    #[test]
    fn variables_are_interpreted() {
        let environment = |pairs: &'static [(&str, &str)]| {
            let lookup = |name: &str| {
                let found = pairs.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            Environment::from_variables(&lookup).unwrap()
        };
        let plain = environment(&[("HOME", "relative"), ("PARTITA_VECTORS", "")]);
        assert_eq!(plain.measured_times, None);
        assert_eq!(plain.machine_folders, [PathBuf::from("machines")]);
        assert_eq!(plain.level, Level::detect());
        assert_eq!(plain.onednn, OneDnnSearch::Loader);
        let set = environment(&[
            ("HOME", "/home/one"),
            ("PARTITA_MACHINES", "a::b"),
            ("PARTITA_SOFTWARE", "c"),
            ("PARTITA_ONEDNN", "/opt/libdnnl.so"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ]);
        let times = PathBuf::from("/home/one/.cache/partita/measured.sqlite");
        assert_eq!(set.measured_times, Some(times));
        assert_eq!(
            set.machine_folders,
            ["a", "b", "machines"].map(PathBuf::from)
        );
        assert_eq!(set.software_folders, ["c", "software"].map(PathBuf::from));
        assert_eq!(set.onednn, OneDnnSearch::File("/opt/libdnnl.so".into()));
        let off = environment(&[("PARTITA_ONEDNN", "off")]);
        assert_eq!(off.onednn, OneDnnSearch::Off);
        assert_eq!(set.launcher.and_then(|one| one.processes), Some(4));
    }
}
