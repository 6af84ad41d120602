//! `doctor`: processor, memory, MPI and libraries of this machine, and how to install what is missing.

use partita_gpu::{Device, DeviceError, DeviceFacts};
use partita_mpi::{Library as Mpi, LoadError, World, WorldOptions};
use partita_onednn::LoadError as OneDnnError;
use partita_site::cores::{CoreHolder, holders};
use partita_site::foreign::{Found, LIBRARIES, Library, Loader, ONEDNN};
use partita_site::kernel_set::KernelSet;
use partita_site::{Context, Host};
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Longest time for MPI to start.
const START_LIMIT: Seconds = Seconds(30.0);

/// Hardware and libraries of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Processor and memory.
    #[serde(flatten)]
    pub host: Host,
    /// Cores that processes hold, on which their ranks are pinned.
    pub pinned: Vec<CoreHolder>,
    /// Optional libraries.
    pub libraries: Vec<LibraryFinding>,
    /// Devices of OpenCL.
    pub devices: Vec<DeviceFinding>,
    /// How to get one, where OpenCL is there without any.
    pub devices_remedy: Option<String>,
    /// MPI.
    pub mpi: MpiFinding,
}

/// The MPI library that ranks would load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MpiFinding {
    /// File; null if none can be loaded.
    pub file: Option<PathBuf>,
    /// Family of its constants.
    pub family: Option<&'static str>,
    /// Version text.
    pub version: Option<String>,
    /// Thread level; known only under a launcher, which starts MPI.
    pub thread_level: Option<&'static str>,
    /// Processes of the job; known only under a launcher.
    pub processes: Option<usize>,
    /// Why none can be loaded, and how to install one.
    pub remedy: Option<String>,
}

/// A device of OpenCL.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFinding {
    /// Name.
    pub name: String,
    /// The platform of its driver.
    pub platform: String,
    /// Versions of OpenCL and of the driver.
    pub version: String,
    /// The word of `--device` that takes it.
    pub device: &'static str,
    /// Its memory.
    pub memory_bytes: Bytes,
    /// The largest arena of a rank.
    pub allocation_bytes_max: Bytes,
    /// Multiprocessors.
    pub units: usize,
    /// Why it cannot be used.
    pub lacks: Option<&'static str>,
}

/// An optional library.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryFinding {
    /// Name.
    pub name: &'static str,
    /// Purpose.
    pub purpose: &'static str,
    /// File; null if not found.
    pub path: Option<PathBuf>,
    /// Whether the loader finds it by name.
    pub loadable: bool,
    /// How to install it; null if nothing is missing.
    pub remedy: Option<String>,
}

/// Inspects this machine. Under a launcher this initializes and finalizes MPI.
pub fn doctor(context: &Context) -> Diagnosis {
    let environment = context.environment();
    let loader = Loader::of_this_machine(&environment.loader);
    let libraries = LIBRARIES.iter();
    let (devices, devices_remedy) = match Device::list() {
        Ok(devices) => (devices, None),
        // Where the library is missing, its finding tells.
        Err(error) => (
            Vec::new(),
            matches!(error, DeviceError::Driver).then(|| error.to_string()),
        ),
    };
    Diagnosis {
        host: Host::local(environment.level),
        pinned: environment
            .core_locks
            .as_deref()
            .map_or(Vec::new(), holders),
        libraries: libraries
            .map(|library| match library.name {
                ONEDNN => onednn_finding(library, context),
                _ => finding(library, loader.find(library)),
            })
            .collect(),
        devices: devices.into_iter().map(device_finding).collect(),
        devices_remedy,
        mpi: mpi_finding(context),
    }
}

/// oneDNN is loaded, since a file may be named that the loader does not find, or be of another version.
fn onednn_finding(library: &Library, context: &Context) -> LibraryFinding {
    let processing = context.processing(1);
    let loaded = processing.onednn.library();
    let remedy = |error: &OneDnnError| match error {
        OneDnnError::Off => "PARTITA_ONEDNN=off switches it off".to_owned(),
        OneDnnError::File { .. } => library.remedy.to_owned(),
        OneDnnError::Unsupported { .. } => error.to_string(),
    };
    LibraryFinding {
        name: library.name,
        purpose: library.purpose,
        path: loaded.ok().map(|loaded| loaded.file.clone()),
        loadable: loaded.is_ok(),
        remedy: loaded.err().map(remedy),
    }
}

fn device_finding(facts: DeviceFacts) -> DeviceFinding {
    DeviceFinding {
        name: facts.name,
        platform: facts.platform,
        version: facts.version,
        device: KernelSet::of_devices(facts.kind).map_or("", KernelSet::name),
        memory_bytes: facts.memory,
        allocation_bytes_max: facts.largest,
        units: facts.units,
        lacks: (!facts.has_f64).then_some("arithmetic in f64"),
    }
}

fn finding(library: &Library, found: Option<Found>) -> LibraryFinding {
    let remedy = match &found {
        Some(found) if found.is_on_path => None,
        Some(found) => {
            let folder = found.path.parent().unwrap_or(Path::new("/")).display();
            Some(format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"))
        }
        None => Some(library.remedy.to_owned()),
    };
    LibraryFinding {
        name: library.name,
        purpose: library.purpose,
        loadable: found.as_ref().is_some_and(|found| found.is_on_path),
        path: found.map(|found| found.path),
        remedy,
    }
}

fn mpi_finding(context: &Context) -> MpiFinding {
    let environment = context.environment();
    let library = match Mpi::load(&environment.mpi()) {
        Ok(library) => library,
        Err(error) => return lacking(&error),
    };
    let mut finding = MpiFinding {
        file: Some(library.file.clone()),
        family: Some(library.family.name()),
        version: Some(library.version.clone()),
        ..MpiFinding::default()
    };
    if environment.launcher.is_none() {
        return finding;
    }
    let options = WorldOptions {
        limit: START_LIMIT,
        on_timeout: context.on_timeout(),
    };
    let started = World::open(library, options).and_then(|world| {
        finding.thread_level = Some(world.thread_level());
        finding.processes = Some(world.size());
        world.close()
    });
    finding.remedy = started.err().map(|error| error.to_string());
    finding
}

fn lacking(error: &LoadError) -> MpiFinding {
    let remedy = match error {
        LoadError::Missing { .. } => {
            let library = LIBRARIES.iter().find(|library| library.name == "MPI");
            library.map_or(String::new(), |library| library.remedy.to_owned())
        }
        LoadError::File { .. } | LoadError::Unsupported { .. } => {
            format!("{error}; name another, like export PARTITA_MPI=/path/to/libmpi.so")
        }
    };
    MpiFinding {
        remedy: Some(remedy),
        ..MpiFinding::default()
    }
}
