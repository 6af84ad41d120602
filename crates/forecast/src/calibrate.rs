//! `calibrate`: measures this machine and writes a machine file.

mod error;
mod machine;

pub use error::CalibrateError;

use crate::launched;
use crate::local_machine::{PASSES, THREADS};
use crate::model;
use crate::training::{COUNTS, FLOATS, SCALED_COUNTS, Training, request};
use machine::{error_of, machine, text};
use partita_cluster::{Calibration, CalibrationError, Machine};
use partita_lower::{SampleFormat, Strategy, lower};
use partita_oracle::{CrossValidation, ErrorStatistics, KernelModel};
use partita_program::{Program, ProgramKind};
use partita_site::kernel_set::{KernelSet, Precision};
use partita_site::launch::Launch;
use partita_site::{Context, Host, RankConfig, Ranks};
use partita_space::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Models of all kinds, with batches, whose kernels are measured.
const MODELS: [(&str, usize); 10] = [
    ("cosmoflow@32+bn", 4),
    ("cosmoflow@64", 1),
    ("unet3d@32", 2),
    ("resnet50@64", 8),
    ("resnet50@128", 2),
    ("vgg16@224", 1),
    ("alexnet@224", 2),
    ("inceptionv3@128", 2),
    ("resnet110v2@32", 8),
    ("t5-2-64-4@32", 16),
];

/// Strategies and sample formats of the models, chosen so that the measured kernels include those of borders,
/// of shards of the channels, of micro-batches with and without gradient accumulation, and all imports.
const STRATEGIES: [(&str, SampleFormat); 6] = [
    ("data=1", FLOATS),
    ("depth=2", COUNTS),
    ("height=2", SCALED_COUNTS),
    ("filter=2", FLOATS),
    ("micro=2", COUNTS),
    ("micro=4", SCALED_COUNTS),
];

/// Fraction of the available memory that the programs of a calibration may use.
const MEMORY_SHARE: f64 = 0.5;

/// A calibration of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrateRequest {
    /// Name of the machine (default: that of the host).
    pub name: Option<String>,
    /// Machine file to write (default: `NAME.toml`).
    pub output: Option<PathBuf>,
    /// Replace a file that exists.
    pub replace: bool,
    /// Concurrent ranks (default: as many as there are cores for). Under a launcher, its processes.
    pub ranks: Option<usize>,
    /// Threads of a rank.
    pub threads: usize,
    /// Where kernels compute.
    pub device: KernelSet,
    /// Models whose kernels are measured, like `cosmoflow@64:2` with the batch (default: a set of all
    /// kinds).
    pub models: Vec<String>,
    /// Passes over all kernels; the median of each counts.
    pub passes: usize,
}

impl Default for CalibrateRequest {
    fn default() -> Self {
        Self {
            name: None,
            output: None,
            replace: false,
            ranks: None,
            threads: THREADS,
            device: KernelSet::CPU,
            models: Vec::new(),
            passes: PASSES,
        }
    }
}

/// A calibrated machine.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The machine.
    pub machine: Machine,
    /// Its calibration.
    pub calibration: Calibration,
    /// The machine file that was written.
    pub file: PathBuf,
    /// Errors of the fit on kernels that it had not seen.
    pub validation: CrossValidation,
}

/// Summary of a calibration.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationSummary {
    /// Name of the machine.
    pub machine: String,
    /// The machine file that was written.
    pub file: String,
    /// Measured kernels.
    pub kernels: usize,
    /// Hosts whose network was measured; 1 where there is none.
    pub hosts: usize,
    /// Concurrent ranks of a host.
    pub ranks: usize,
    /// Transport: `threads`, or the MPI library.
    pub world: String,
    /// Errors of the fit on kernels that it had not seen.
    pub validation: CalibrationError,
    /// The same for each family of kernels.
    pub families: BTreeMap<String, CalibrationError>,
}

impl Calibrated {
    /// The summary.
    pub fn summary(&self) -> CalibrationSummary {
        let one =
            |(family, errors): (&String, &ErrorStatistics)| (family.clone(), error_of(errors));
        CalibrationSummary {
            machine: self.machine.name.clone(),
            file: self.file.display().to_string(),
            kernels: self.calibration.measured.len(),
            hosts: self.machine.nodes.value,
            ranks: self.calibration.ranks,
            world: self.calibration.world.clone(),
            validation: self.calibration.validation,
            families: self.validation.families.iter().map(one).collect(),
        }
    }
}

/// Measures kernels, messages, collectives, memory and reads; fits; validates on kernels that were not
/// fitted; writes a machine file.
///
/// Under a launcher this process is one rank of many, and all but that of rank 0 get nothing.
///
/// Errors: a file that exists, a model that does not, something that cannot be measured.
pub fn calibrate(
    context: &Context,
    request: &CalibrateRequest,
) -> Result<Option<Calibrated>, CalibrateError> {
    let launch = Launch::join(context)?;
    let done = calibrate_with(&launch, request).and_then(|found| {
        launch.close()?;
        Ok(found)
    });
    done.map_err(|error| launch.shut_down(error))
}

fn calibrate_with(
    launch: &Launch<'_>,
    request: &CalibrateRequest,
) -> Result<Option<Calibrated>, CalibrateError> {
    let context = launch.context();
    let host = Host::local(context.level());
    let name = request.name.clone().unwrap_or_else(usual_name);
    if name.trim().is_empty() {
        return Err(CalibrateError::NoName);
    }
    let path = request.output.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    check_path(&path, request.replace)?;
    let threads = request.threads;
    let kernels = KernelSet::CPU.on(request.device, Precision::F32)?;
    let usual = kernels.devices().unwrap_or(host.cores_usable / threads);
    let rank_config = RankConfig {
        ranks: launch.ranks(request.ranks, usual.max(1))?,
        threads,
        kernels,
    };
    let (ranks, layout) = launch.calibrated_ranks(rank_config)?;
    let models = asked(&request.models)?;
    let programs = launch.prepare(|| programs(context, &models, rank_config.kernels, &ranks))?;
    let of_ranks = (&ranks, layout);
    let found = launched::calibrate::<CalibrateError>(
        launch,
        rank_config,
        of_ranks,
        &programs,
        request.passes,
    )?;
    let Some(found) = found else {
        return Ok(None);
    };
    let validation = KernelModel::validate(&found.kernels);
    let by = (&host, rank_config.kernels);
    let (machine, calibration) = machine(&name, by, (&ranks, layout), &found, &validation);
    let written = text(&machine, &calibration, request.passes);
    let written = partita_files::write_whole(&path, written.as_bytes());
    written.map_err(|source| CalibrateError::Unwritable {
        file: path.clone(),
        source,
    })?;
    Ok(Some(Calibrated {
        machine,
        calibration,
        file: path,
        validation,
    }))
}

/// Whether the machine file can be written.
fn check_path(path: &Path, replace: bool) -> Result<(), CalibrateError> {
    let file = || path.to_owned();
    if path.exists() && !path.is_file() {
        return Err(CalibrateError::NoFile { file: file() });
    }
    if path.exists() && !replace {
        return Err(CalibrateError::Exists { file: file() });
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        None => Ok(()),
        Some(folder) => Err(CalibrateError::NoFolder {
            file: file(),
            folder: folder.to_owned(),
        }),
    }
}

/// The requested models, or a set of all kinds.
fn asked(models: &[String]) -> Result<Vec<(String, usize)>, CalibrateError> {
    if models.is_empty() {
        let own = |&(model, batch): &(&str, usize)| (model.to_owned(), batch);
        return Ok(MODELS.iter().map(own).collect());
    }
    let one = |text: &str| match text.rsplit_once(':') {
        None if text.is_empty() => Err(CalibrateError::EmptyModel),
        None => Ok((text.to_owned(), 1)),
        Some((model, batch)) => match batch.parse() {
            Ok(batch) if batch > 0 => Ok((model.to_owned(), batch)),
            Ok(_) | Err(_) => Err(CalibrateError::NoBatch {
                text: text.to_owned(),
                batch: batch.to_owned(),
                model: model.to_owned(),
            }),
        },
    };
    models.iter().map(|text| one(text.trim())).collect()
}

/// The programs of the models under all strategies that are valid and fit.
///
/// Errors: a model of which none fits.
fn programs(
    context: &Context,
    models: &[(String, usize)],
    kernels: KernelSet,
    ranks: &Ranks,
) -> Result<Vec<Program>, CalibrateError> {
    let menu = kernels.menu(ranks.threads, context.level());
    let host = Host::local(context.level());
    let free = host
        .memory_bytes_available
        .map_or(f64::INFINITY, |bytes| bytes.0 as f64);
    let free = free / ranks.count as f64;
    let of_device = kernels.device_memory(ranks.count);
    let room = MEMORY_SHARE * of_device.map_or(free, |bytes| bytes.0 as f64);
    let mut programs = Vec::new();
    for (name, batch) in models {
        let graph = model::resolve(name)?;
        let before = programs.len();
        let mut least = Bytes(u64::MAX);
        for (text, samples) in STRATEGIES {
            let strategy: Strategy = text.parse()?;
            let is_possible = strategy.check(&graph, *batch).is_ok();
            if !is_possible || strategy.ranks() > ranks.count {
                continue;
            }
            let training = Training {
                samples,
                ..Training::new(name, 1, *batch)
            };
            let request = request(&graph, &strategy, &training, ProgramKind::Train, &*menu);
            let program = lower(&request)?;
            let needed = program.memory_max();
            if needed.0 as f64 <= room {
                programs.push(program);
            } else {
                least = least.min(needed);
            }
        }
        if programs.len() == before {
            return Err(CalibrateError::TooLarge {
                model: name.clone(),
                batch: *batch,
                needed: least,
                room: Bytes(room as u64),
                ranks: ranks.count,
            });
        }
    }
    Ok(programs)
}

/// The name of a machine that is given none.
fn usual_name() -> String {
    match &*partita_files::host_name() {
        "" => "this-machine".to_owned(),
        name => name.to_owned(),
    }
}
