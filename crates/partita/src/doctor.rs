use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::foreign::{Found, LIBRARIES, Library, Loader};
use crate::host::Host;
use crate::launcher::{self, Launcher};
use crate::table::{Side, Table, write_json, write_pairs};
use partita_mpi::{Library as Mpi, LoadError, Setting, World};
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// How long MPI may take to start.
const START_LIMIT: Seconds = Seconds(30.0);

/// What this machine offers.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    host: Host,
    libraries: Vec<Finding>,
    mpi: MpiFinding,
}

/// The MPI that a launcher's processes would load.
#[derive(Default, Serialize)]
struct MpiFinding {
    /// Its file; null if none can be loaded.
    file: Option<PathBuf>,
    /// Whose constants it has.
    family: Option<&'static str>,
    /// What it says of itself.
    version: Option<String>,
    /// Of threads; told only where a launcher started this process, as MPI has to be started.
    thread_level: Option<&'static str>,
    /// Processes of the job, likewise.
    processes: Option<usize>,
    /// Why there is none, and what mends that.
    remedy: Option<String>,
}

/// A library that may be here.
#[derive(Serialize)]
struct Finding {
    name: &'static str,
    purpose: &'static str,
    /// Where it lies; null if nowhere.
    path: Option<PathBuf>,
    /// Whether the loader would find it.
    loadable: bool,
    /// The line that mends what is missing; null if nothing is.
    remedy: Option<String>,
}

/// Says what this machine offers and what mends what is missing.
pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let loader = Loader::of_this_machine();
    let report = Report {
        host: Host::here(),
        libraries: LIBRARIES
            .iter()
            .map(|library| finding(library, loader.find(library)))
            .collect(),
        mpi: mpi_finding(launcher::started_by().as_ref()),
    };
    if args.json {
        return write_json(out, &report);
    }
    write_host(&report.host, out)?;
    writeln!(out)?;
    write_libraries(&report.libraries, out)?;
    write_mpi(&report.mpi, out)
}

fn finding(library: &Library, found: Option<Found>) -> Finding {
    let remedy = match &found {
        Some(found) if found.is_on_path => None,
        Some(found) => {
            let folder = found.path.parent().unwrap_or(Path::new("/")).display();
            Some(format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"))
        }
        None => Some(library.remedy.to_owned()),
    };
    Finding {
        name: library.name,
        purpose: library.purpose,
        loadable: found.as_ref().is_some_and(|found| found.is_on_path),
        path: found.map(|found| found.path),
        remedy,
    }
}

fn mpi_finding(launcher: Option<&Launcher>) -> MpiFinding {
    let library = match Mpi::load(&launcher::wanted()) {
        Ok(library) => library,
        Err(error) => return lacking(&error),
    };
    let mut finding = MpiFinding {
        file: Some(library.file.clone()),
        family: Some(library.family.name()),
        version: Some(library.version.clone()),
        ..MpiFinding::default()
    };
    if launcher.is_none() {
        return finding;
    }
    let setting = Setting {
        limit: START_LIMIT,
        end: crate::end_stuck,
    };
    let told = World::open(library, setting).and_then(|world| {
        finding.thread_level = Some(world.thread_level());
        finding.processes = Some(world.size());
        world.close()
    });
    finding.remedy = told.err().map(|error| error.to_string());
    finding
}

fn lacking(error: &LoadError) -> MpiFinding {
    let remedy = match error {
        LoadError::Missing { .. } => {
            let library = LIBRARIES.iter().find(|library| library.name == "MPI");
            library.map_or(String::new(), |library| library.remedy.to_owned())
        }
        LoadError::File { .. } | LoadError::Strange { .. } => {
            format!("{error}; name another, like export PARTITA_MPI=/path/to/libmpi.so")
        }
    };
    MpiFinding {
        remedy: Some(remedy),
        ..MpiFinding::default()
    }
}

fn write_mpi(finding: &MpiFinding, out: &mut dyn Write) -> Result<(), CliError> {
    if let (Some(file), Some(family)) = (&finding.file, finding.family) {
        writeln!(out)?;
        let threads = finding
            .thread_level
            .unwrap_or("told under a launcher: mpirun -n 1 partita doctor");
        write_pairs(
            out,
            &[
                ("MPI library", file.display().to_string()),
                ("family", family.to_owned()),
                ("version", finding.version.clone().unwrap_or_default()),
                ("thread level", threads.to_owned()),
            ],
        )?;
    }
    Ok(())
}

fn write_host(host: &Host, out: &mut dyn Write) -> Result<(), CliError> {
    let told =
        |bytes: Option<Bytes>| bytes.map_or("not told".to_owned(), |bytes| bytes.to_string());
    let count = |cores: Option<usize>| cores.map_or("?".to_owned(), |cores| cores.to_string());
    let cores = format!(
        "{} usable, {} in the machine ({} physical)",
        host.cores_usable,
        count(host.cores_logical),
        count(host.cores_physical)
    );
    let memory = format!(
        "{}, available {}",
        told(host.memory_bytes),
        told(host.memory_bytes_available)
    );
    let mut limits = Vec::new();
    limits.extend(host.cores_limit.map(|cores| format!("{cores:.2} cores")));
    limits.extend(host.memory_bytes_limit.map(|bytes| bytes.to_string()));
    if limits.is_empty() {
        limits.push("none".to_owned());
    }
    let processor = host.processor.as_deref().unwrap_or("not told");
    let mut pairs = vec![
        ("processor", processor.to_owned()),
        ("cores", cores),
        (
            "vectors",
            format!("{}, {} of f32", host.simd, host.simd_lanes_f32),
        ),
    ];
    for cache in &host.caches {
        let text = format!(
            "level {} {}, {}, shared by cores {}",
            cache.level,
            cache.kind.to_lowercase(),
            cache.bytes,
            cache.cores
        );
        pairs.push(("cache", text));
    }
    pairs.push(("memory", memory));
    pairs.push(("group limits", limits.join(", ")));
    pairs.push(("GPUs", host.gpus.to_string()));
    write_pairs(out, &pairs)
}

fn write_libraries(findings: &[Finding], out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("library", Side::Left),
        ("for", Side::Left),
        ("found", Side::Left),
    ]);
    for finding in findings {
        let path = finding.path.as_ref();
        table.row(vec![
            finding.name.to_owned(),
            finding.purpose.to_owned(),
            path.map_or("no".to_owned(), |path| path.display().to_string()),
        ]);
    }
    table.write(out)?;
    for finding in findings {
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "- {}: {remedy}", finding.name)?;
        }
    }
    writeln!(out, "Training on this machine alone needs none of them.")?;
    Ok(())
}
