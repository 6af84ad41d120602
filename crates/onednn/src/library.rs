//! Finds and loads oneDNN.

use crate::affinity::on_one_core;
use crate::api::{Api, Engine, OneDnnError, VersionRecord};
use crate::open_mp::OpenMp;
use crate::problem::Problem;
use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The name under which the loader of the system looks for the library.
const FILE: &str = "libdnnl.so.3";
/// The major version whose functions are known.
const MAJOR: i32 = 3;

/// Where to look for the library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LibrarySearch {
    /// Where the loader of the system looks, under the name `libdnnl.so.3`.
    #[default]
    Loader,
    /// This file and no other.
    File(PathBuf),
    /// Nowhere: the library is not used.
    Off,
}

/// The highest instructions that the library may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Those of any processor of 64 bits that it supports.
    Least,
    /// AVX2 and FMA.
    Avx2,
    /// All that the processor has.
    All,
}

/// The library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is not to be used.
    #[error("oneDNN is switched off")]
    Off,
    /// The loader does not find it, or cannot load it.
    #[error("oneDNN cannot be loaded: {reason}")]
    File {
        /// The loader's message, which names the file.
        reason: String,
    },
    /// It is of another version, lacks a function, or its threads cannot be counted.
    #[error("{} is not a supported oneDNN: {reason}", .file.display())]
    Unsupported {
        /// The file or name.
        file: PathBuf,
        /// What it is, or what it lacks.
        reason: String,
    },
}

/// The version of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Number of the interface.
    pub major: i32,
    /// Number of the release.
    pub minor: i32,
    /// Number of the correction.
    pub patch: i32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The threads of primitives.
enum Threads {
    /// The calling one.
    One,
    /// As many as OpenMP uses.
    OpenMp(OpenMp),
}

/// The library of a process, looked for when it is first needed.
#[derive(Debug)]
pub struct OneDnn {
    search: LibrarySearch,
    instructions: Instructions,
    found: OnceLock<Result<Arc<Library>, LoadError>>,
}

impl OneDnn {
    /// A library that is not looked for yet.
    pub fn new(search: LibrarySearch, instructions: Instructions) -> Self {
        Self {
            search,
            instructions,
            found: OnceLock::new(),
        }
    }

    /// Whether the library has been loaded.
    pub fn is_loaded(&self) -> bool {
        self.found.get().is_some_and(Result::is_ok)
    }

    /// The library, loaded by the first call.
    ///
    /// Errors: there is none, or it cannot be used.
    pub fn library(&self) -> Result<&Arc<Library>, &LoadError> {
        let load = || Library::load(&self.search, self.instructions).map(Arc::new);
        self.found.get_or_init(load).as_ref()
    }
}

/// A loaded oneDNN. It stays loaded until the process ends.
pub struct Library {
    /// The file or the name that was loaded.
    pub file: PathBuf,
    /// Its version.
    pub version: Version,
    pub(crate) api: Api,
    pub(crate) engine: Engine,
    threads: Threads,
    /// Bytes of workspace by problem and threads; none where the library has no fast code.
    workspaces: Mutex<HashMap<(Problem, usize), Option<usize>>>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oneDNN {} of {}", self.version, self.file.display())
    }
}

impl Library {
    /// Finds and loads the library, and starts its engine.
    ///
    /// Errors: there is none, or it cannot be used.
    pub fn load(search: &LibrarySearch, instructions: Instructions) -> Result<Self, LoadError> {
        let path = match search {
            LibrarySearch::Loader => Path::new(FILE),
            LibrarySearch::File(path) => path,
            LibrarySearch::Off => return Err(LoadError::Off),
        };
        let object = open(path)?;
        let library = prepare(&object, path, instructions);
        // Threads of the library may live as long as the process.
        std::mem::forget(object);
        library.map_err(|why| LoadError::Unsupported {
            file: path.to_owned(),
            reason: why.to_string(),
        })
    }

    /// Whether its primitives can run on this many threads.
    pub fn runs_on(&self, threads: usize) -> bool {
        match self.threads {
            Threads::One => threads == 1,
            Threads::OpenMp(_) => threads > 0,
        }
    }

    /// Runs work whose primitives are made for, and run on, `threads` threads.
    pub(crate) fn with_threads<R>(&self, threads: usize, work: impl FnOnce() -> R) -> R {
        match &self.threads {
            Threads::One => work(),
            Threads::OpenMp(open_mp) => open_mp.with_threads(threads, work),
        }
    }

    /// Lets threads of the library sleep between primitives of the calling thread, where OpenMP has the call.
    pub(crate) fn sleep_at_once(&self) {
        match &self.threads {
            Threads::One => {}
            Threads::OpenMp(open_mp) => open_mp.sleep_at_once(),
        }
    }

    /// What `compute` says of a problem, which is asked once.
    pub(crate) fn workspace(
        &self,
        problem: &Problem,
        threads: usize,
        compute: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let known = || {
            let all = self.workspaces.lock();
            all.unwrap_or_else(PoisonError::into_inner)
        };
        let key = (problem.clone(), threads);
        if let Some(bytes) = known().get(&key) {
            return *bytes;
        }
        let bytes = compute();
        known().insert(key, bytes);
        bytes
    }
}

fn open(path: &Path) -> Result<Object, LoadError> {
    // The runtime of GCC lets idle threads spin for milliseconds, and only for a moment if it knows fewer cores than
    // threads. It counts cores when it is loaded. Spinning threads would take the cores of the next kernel.
    on_one_core(|| {
        // SAFETY: the file is oneDNN by its name or by the user's choice; its initialization code may run in any
        // process.
        unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
    })
    .map_err(|error| LoadError::File {
        reason: error.to_string(),
    })
}

/// What keeps a library from being used.
#[derive(Debug, thiserror::Error)]
enum Unsupported {
    #[error("it has version {0}; {MAJOR} is supported")]
    Version(Version),
    #[error("it lacks {0}")]
    Lacks(&'static str),
    #[error("it gives no version")]
    NoVersion,
    #[error("its OpenMP cannot be told a number of threads")]
    OpenMp,
    #[error("it was built for {0}; OpenMP or one thread are supported")]
    OtherThreads(&'static str),
    #[error("it was built for runtime {0} of threads")]
    Runtime(u32),
    #[error(transparent)]
    Call(#[from] OneDnnError),
}

fn prepare(
    object: &Object,
    path: &Path,
    instructions: Instructions,
) -> Result<Library, Unsupported> {
    let (version, runtime) = version_of(object)?;
    if version.major != MAJOR {
        return Err(Unsupported::Version(version));
    }
    let threads = threads_of(object, runtime)?;
    // SAFETY: the version is the one whose functions are known, and the object is never unloaded.
    let api = unsafe { Api::load(object) }.map_err(Unsupported::Lacks)?;
    // `dnnl_cpu_isa_t`.
    let isa: Option<c_int> = match instructions {
        Instructions::Least => Some(0x1),
        Instructions::Avx2 => Some(0x7),
        Instructions::All => None,
    };
    if let Some(isa) = isa {
        api.limit_instructions(isa)?;
    }
    let engine = api.engine()?;
    Ok(Library {
        file: path.to_owned(),
        version,
        api,
        engine,
        threads,
        workspaces: Mutex::default(),
    })
}

/// The version, and the number of the runtime of its threads.
fn version_of(object: &Object) -> Result<(Version, u32), Unsupported> {
    type GetVersion = unsafe extern "C" fn() -> *const VersionRecord;
    // SAFETY: the function has had this signature, and the record these first fields, since version 1.
    let record = unsafe {
        let get_version = object.get::<GetVersion>(b"dnnl_version");
        let get_version = get_version.map_err(|_| Unsupported::Lacks("dnnl_version"))?;
        get_version().as_ref()
    };
    let record = record.ok_or(Unsupported::NoVersion)?;
    let version = Version {
        major: record.major,
        minor: record.minor,
        patch: record.patch,
    };
    Ok((version, record.cpu_runtime))
}

fn threads_of(object: &Object, runtime: u32) -> Result<Threads, Unsupported> {
    match runtime {
        1 => Ok(Threads::One),
        2 => {
            // SAFETY: the object is never unloaded.
            let open_mp = unsafe { OpenMp::of(object) };
            Ok(Threads::OpenMp(open_mp.ok_or(Unsupported::OpenMp)?))
        }
        4 => Err(Unsupported::OtherThreads("TBB")),
        8 => Err(Unsupported::OtherThreads("threads of its user")),
        other => Err(Unsupported::Runtime(other)),
    }
}
