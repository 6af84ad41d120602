//! Finds and loads an MPI library.

use crate::abi::{Family, Predefined};
use crate::call::{Mpi, Resolved};
use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens a library only if it is loaded. Source: dlopen(3) of Linux.
const RTLD_NOLOAD: c_int = 4;

/// Where to look for an MPI library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibrarySearch {
    /// This file and no other.
    pub file: Option<PathBuf>,
    /// Folders searched before those of the loader, like those of the launcher.
    pub folders: Vec<PathBuf>,
    /// The family of the launcher, which comes first.
    pub family: Option<Family>,
}

/// No MPI library could be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The loader finds none.
    #[error("no MPI library was found; tried {}", .tried.join(", "))]
    Missing {
        /// Files and names.
        tried: Vec<String>,
    },
    /// A file cannot be loaded.
    #[error("{} cannot be loaded: {reason}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// The library is of an unknown family or lacks a function.
    #[error("{} is not a supported MPI library: {reason}", .file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// Its version text, or what it lacks.
        reason: String,
    },
}

/// A loaded MPI, not started. It stays loaded until the process ends.
pub struct Library {
    /// The file that the loader mapped.
    pub file: PathBuf,
    /// The family of its constants.
    pub family: Family,
    /// The first line of `MPI_Get_library_version`.
    pub version: String,
    pub(crate) mpi: Arc<Mpi>,
}

impl Library {
    /// The index of the level that a value of this library stands for.
    pub(crate) fn thread_level(&self, provided: c_int) -> usize {
        let levels = self.mpi.constants.thread_levels;
        let found = levels.iter().rposition(|&level| level <= provided);
        found.unwrap_or(0)
    }

    /// Finds and loads the library that fits best.
    ///
    /// Loading runs the library's initialization code, which is nearly empty in MPI libraries.
    /// Errors: none is found, or it is not supported.
    pub fn load(search: &LibrarySearch) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        let mut first_failure = None;
        let candidates = candidates(search);
        // Whoever initialized MPI in this process has loaded it, and no other one can be used.
        let loaded = candidates.iter().filter(|_| search.file.is_none());
        if let Some((object, path)) = loaded
            .filter_map(|path| Some((loaded_already(path)?, path)))
            .next()
        {
            return identify(object, path);
        }
        for path in candidates {
            match open(&path) {
                Ok(object) => return identify(object, &path),
                Err(error) => {
                    // Names that the loader does not find are expected; files that do not load are not.
                    if path.is_file() && first_failure.is_none() {
                        first_failure = Some((path.clone(), error.to_string()));
                    }
                    tried.push(path.display().to_string());
                }
            }
        }
        match (first_failure, &search.file) {
            (Some((file, reason)), _) => Err(LoadError::File { file, reason }),
            (None, Some(file)) => Err(LoadError::File {
                file: file.clone(),
                reason: "there is no such file".to_owned(),
            }),
            (None, None) => Err(LoadError::Missing { tried }),
        }
    }
}

/// Files beside the launcher first, then names for the loader; the family of the launcher first. The
/// standard ABI goes before MPICH's own, and both before what a launcher of another family brings.
fn candidates(search: &LibrarySearch) -> Vec<PathBuf> {
    if let Some(file) = &search.file {
        return vec![file.clone()];
    }
    let mut families = Family::ALL.to_vec();
    if search.family == Some(Family::OpenMpi) {
        families.rotate_right(1);
    }
    let names: Vec<&str> = families
        .iter()
        .flat_map(|family| family.files())
        .copied()
        .collect();
    let beside = search.folders.iter().flat_map(|folder| {
        let files = names.iter().map(move |name| folder.join(name));
        files.filter(|file| file.is_file())
    });
    beside.chain(names.iter().map(PathBuf::from)).collect()
}

fn open(path: &Path) -> Result<Object, libloading::Error> {
    // Open MPI loads parts of itself that expect its symbols to be global.
    // SAFETY: the file is an MPI library by its name or by the user's choice; its initialization code may run
    // in any process.
    unsafe { Object::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
}

/// A library that this process has loaded by this name or from this file.
fn loaded_already(path: &Path) -> Option<Object> {
    // SAFETY: nothing is loaded, so no code is run.
    unsafe { Object::open(Some(path), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) }.ok()
}

fn identify(object: Object, path: &Path) -> Result<Library, LoadError> {
    let file = loaded_file(path);
    let unsupported = |reason: String| LoadError::Unsupported {
        file: file.clone(),
        reason,
    };
    let text = library_version(&object)
        .ok_or_else(|| unsupported("it has no function MPI_Get_library_version".to_owned()))?;
    let family = family(&object, &text)
        .ok_or_else(|| unsupported(format!("it calls itself `{}`", text.trim())))?;
    let handles =
        resolve(&object, family).map_err(|name| unsupported(format!("it lacks {name}")))?;
    let are_int = family.handles().are_int;
    // SAFETY: the family was determined from the library itself, and the object is never unloaded.
    let mpi = unsafe { Mpi::load(&object, family.constants(), are_int, handles) };
    let mpi = mpi.map_err(|name| unsupported(format!("it lacks {name}")))?;
    // Unloading an MPI that was started is undefined in practice.
    std::mem::forget(object);
    let version = text.lines().next().unwrap_or_default();
    Ok(Library {
        version: version.split_whitespace().collect::<Vec<_>>().join(" "),
        file,
        family,
        mpi: Arc::new(mpi),
    })
}

/// The path under which the loader mapped a library.
fn loaded_file(path: &Path) -> PathBuf {
    #[allow(clippy::disallowed_methods, reason = "a file that the system has")]
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    let resolved = std::fs::canonicalize(path).ok();
    let mut mapped = maps.lines().filter_map(|line| {
        let start = line.find('/')?;
        Some(PathBuf::from(&line[start..]))
    });
    let is_it = |file: &PathBuf| {
        let stem = name.to_string_lossy();
        let own = file.file_name().unwrap_or_default().to_string_lossy();
        resolved.as_ref() == Some(file) || own.starts_with(&*stem)
    };
    mapped.find(is_it).unwrap_or_else(|| path.to_owned())
}

/// The text of `MPI_Get_library_version`, which may be called before `MPI_Init`.
fn library_version(object: &Object) -> Option<String> {
    type GetVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    let mut text = vec![0u8; 8193];
    let mut length = 0;
    // SAFETY: the signature is the standard's, and the text longer than that of any family.
    let code = unsafe {
        let get_version = object.get::<GetVersion>(b"MPI_Get_library_version").ok()?;
        get_version(text.as_mut_ptr().cast(), &mut length)
    };
    text.truncate(length.clamp(0, 8192) as usize);
    let text = String::from_utf8_lossy(&text)
        .trim_end_matches('\0')
        .to_owned();
    (code == 0).then_some(text)
}

fn family(object: &Object, version: &str) -> Option<Family> {
    if has_standard_abi(object) {
        return Some(Family::Standard);
    }
    // SAFETY: only the address is used.
    if unsafe { object.get::<*const u8>(b"ompi_mpi_comm_world") }.is_ok() {
        return Some(Family::OpenMpi);
    }
    let shared = ["MPICH", "Intel(R) MPI", "MVAPICH"];
    let is_mpich = shared.iter().any(|name| version.contains(name));
    is_mpich.then_some(Family::Mpich)
}

/// MPI 5.0, section 20.2: a library without the standard ABI returns -1 as its version.
fn has_standard_abi(object: &Object) -> bool {
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the signature is the standard's.
    let text = unsafe {
        object
            .get::<GetVersion>(b"MPI_Abi_get_version")
            .is_ok_and(|get_version| get_version(&mut major, &mut minor) == 0)
    };
    text && major >= 0
}

/// Errors: the name of an object that is not there.
fn resolve(object: &Object, family: Family) -> Result<Resolved, &'static str> {
    let mut resolved = [0; 7];
    for (slot, (_, handle)) in resolved.iter_mut().zip(family.handles().named()) {
        *slot = match handle {
            Predefined::Value(value) => value,
            // SAFETY: only the address is used.
            Predefined::Symbol(name) => unsafe {
                let symbol = object.get::<*mut u8>(name.as_bytes()).map_err(|_| name)?;
                symbol.into_raw() as usize as u64
            },
        };
    }
    Ok(resolved)
}
