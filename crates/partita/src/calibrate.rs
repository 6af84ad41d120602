mod day;
mod machine;

use crate::args::{CalibrateArgs, KindName, OptimizerName, SampleName, TrainingArgs};
use crate::error::CliError;
use crate::host::Host;
use crate::kernel_set::KernelSet;
use crate::launch::Company;
use crate::local_machine::Ranks;
use crate::model;
use crate::table::{Side, Table, write_json, write_pairs};
use crate::train::write_whole;
use crate::training::request;
use machine::{error, machine, text};
use partita_cluster::{CalibrationError, Machine};
use partita_lower::{Strategy, lower};
use partita_oracle::{Efficiency, Errors, Validation};
use partita_program::Program;
use partita_space::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
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

/// How they are split, so that kernels of borders, of parts of the channels and of parts of the batch are
/// among those measured, the latter with and without adding to gradients of the part before; and how
/// their samples are stored, so that all ways to import them are.
const STRATEGIES: [(&str, SampleName); 6] = [
    ("data=1", SampleName::Float32),
    ("depth=2", SampleName::Int16),
    ("height=2", SampleName::Int16Scaled),
    ("filter=2", SampleName::Float32),
    ("micro=2", SampleName::Int16),
    ("micro=4", SampleName::Int16Scaled),
];

/// Share of the memory that the programs of a calibration may fill.
const MEMORY_SHARE: f64 = 0.5;

/// The answer.
#[derive(Serialize)]
struct Answer<'a> {
    machine: &'a str,
    file: String,
    kernels: usize,
    ranks: usize,
    world: &'a str,
    validation: CalibrationError,
    families: BTreeMap<&'a str, CalibrationError>,
}

/// Measures kernels, messages, collectives, memory and reads; fits; validates on kernels that were not
/// fitted; writes a machine file.
///
/// Errors: a file that exists, a model that does not, something that cannot be measured.
pub fn run(args: &CalibrateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let company = Company::of_this_process()?;
    let done = run_with(&company, args, out).and_then(|()| company.close());
    done.map_err(|error| company.part(error))
}

fn run_with(company: &Company, args: &CalibrateArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let host = Host::here();
    let name = args.name.clone().unwrap_or_else(host_name);
    if name.trim().is_empty() {
        return Err(CliError::User(
            "a machine needs a name; possible is any other than an empty one, like `--name mine`"
                .to_owned(),
        ));
    }
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    if path.exists() && !path.is_file() {
        return Err(CliError::User(format!(
            "{} is no regular file that could be replaced; possible is another `--output`",
            path.display()
        )));
    }
    if path.exists() && !args.replace {
        return Err(CliError::User(format!(
            "{} exists, and a calibration does not write over it unasked; possible are `--replace` \
             and another `--output`",
            path.display()
        )));
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(CliError::User(format!(
            "{} cannot be written: there is no folder {}; make it first",
            path.display(),
            folder.display()
        )));
    }
    let count = company.ranks(args.ranks, (host.cores_usable / args.threads).max(1))?;
    let ranks = company.on_this_host(count, args.threads)?;
    let models = asked(&args.models)?;
    let kernels = KernelSet::Cpu;
    let programs = company.prepare(|| programs(&models, kernels, &ranks))?;
    let Some(found) = company.calibrate(kernels, &ranks, &programs, args.passes)? else {
        return Ok(());
    };
    let validation = Efficiency::validate(&found.kernels);
    let machine = machine(&name, &host, &ranks, &found, &validation);
    write_whole(&path, &text(&machine, args.passes))?;
    answer(args, &path, &machine, &validation, out)
}

/// What is asked for, or a set of all kinds.
fn asked(models: &[String]) -> Result<Vec<(String, usize)>, CliError> {
    if models.is_empty() {
        let own = |&(model, batch): &(&str, usize)| (model.to_owned(), batch);
        return Ok(MODELS.iter().map(own).collect());
    }
    let one = |text: &str| match text.rsplit_once(':') {
        None if text.is_empty() => Err(CliError::User(
            "`--models` has an empty entry; possible are names with or without batches, \
             separated by commas, like `cosmoflow@32:4,resnet50@64`"
                .to_owned(),
        )),
        None => Ok((text.to_owned(), 1)),
        Some((model, batch)) => match batch.parse() {
            Ok(batch) if batch > 0 => Ok((model.to_owned(), batch)),
            Ok(_) | Err(_) => Err(CliError::User(format!(
                "`{text}`: `{batch}` is no batch; after the colon stands a number of samples from 1 on, \
                 like `{model}:1`"
            ))),
        },
    };
    models.iter().map(|text| one(text.trim())).collect()
}

/// The programs of the models, split in all ways that they can be and that fit.
///
/// Errors: a model of which none fits.
fn programs(
    models: &[(String, usize)],
    kernels: KernelSet,
    ranks: &Ranks,
) -> Result<Vec<Program>, CliError> {
    let menu = kernels.menu(ranks.threads);
    let host = Host::here();
    let free = host
        .memory_bytes_available
        .map_or(f64::INFINITY, |bytes| bytes.0 as f64);
    let room = free * MEMORY_SHARE / ranks.count as f64;
    let mut programs = Vec::new();
    for (name, batch) in models {
        let graph = model::resolve(name)?;
        let before = programs.len();
        let mut least = Bytes(u64::MAX);
        for (text, samples) in STRATEGIES {
            let strategy: Strategy = text.parse().map_err(|error| CliError::user(&error))?;
            let is_possible = strategy.check(&graph, *batch).is_ok();
            if !is_possible || strategy.ranks() > ranks.count {
                continue;
            }
            let training = TrainingArgs {
                model: name.clone(),
                ranks: 1,
                batch: *batch,
                optimizer: OptimizerName::Adam,
                samples,
            };
            let request = request(&graph, &strategy, &training, KindName::Train, &*menu);
            let program = lower(&request).map_err(|error| CliError::user(&error))?;
            let needed = program.memory_max();
            if needed.0 as f64 <= room {
                programs.push(program);
            } else {
                least = least.min(needed);
            }
        }
        if programs.len() == before {
            return Err(CliError::User(format!(
                "`{name}` with {batch} samples needs at least {least} a rank, and half of what is free is {} for \
                 each of {} ranks; possible are fewer samples, a smaller model, and fewer `--ranks`",
                Bytes(room as u64),
                ranks.count
            )));
        }
    }
    Ok(programs)
}

fn answer(
    args: &CalibrateArgs,
    path: &Path,
    machine: &Machine,
    validation: &Validation,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let Some(calibration) = &machine.calibration else {
        return Ok(());
    };
    let families = validation.families.iter();
    if args.json {
        let one = |(family, errors): (&'_ String, &Errors)| (family.clone(), error(errors));
        let families: BTreeMap<String, CalibrationError> = families.map(one).collect();
        let families = families.iter().map(|(name, error)| (name.as_str(), *error));
        return write_json(
            out,
            &Answer {
                machine: &machine.name,
                file: path.display().to_string(),
                kernels: calibration.measured.len(),
                ranks: calibration.ranks,
                world: &calibration.world,
                validation: calibration.validation,
                families: families.collect(),
            },
        );
    }
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut table = Table::new(&[
        ("kernels", Side::Left),
        ("number", Side::Right),
        ("median error", Side::Right),
        ("by time", Side::Right),
        ("total", Side::Right),
    ]);
    let all = ("all".to_owned(), validation.all);
    let rows = families.map(|(name, errors)| (name.clone(), *errors));
    for (name, errors) in rows.chain([all]) {
        table.row(vec![
            name,
            errors.kernels.to_string(),
            percent(errors.median),
            percent(errors.mean_by_time),
            percent(errors.total),
        ]);
    }
    writeln!(out, "Each kernel estimated by laws that had not seen it:\n")?;
    table.write(out)?;
    writeln!(out)?;
    write_pairs(
        out,
        &[
            ("machine", machine.name.clone()),
            ("file", path.display().to_string()),
            (
                "ranks",
                format!("{}, {}", calibration.ranks, calibration.world),
            ),
            (
                "peak",
                format!(
                    "{:.1} Gflop/s a rank",
                    machine.device.peak_flops_f32.value.0 / 1e9
                ),
            ),
            (
                "memory",
                format!(
                    "{:.1} GB/s a rank",
                    machine.device.memory_bandwidth.value.0 / 1e9
                ),
            ),
        ],
    )
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "this-machine".to_owned(),
        name => name.to_owned(),
    }
}
