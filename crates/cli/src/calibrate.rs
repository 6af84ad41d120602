use crate::args::{CalibrateArgs, KindName, OptimizerName, SampleName, TrainingArgs};
use crate::error::CliError;
use crate::here::{Calibrated, Ranks};
use crate::host::Host;
use crate::lowered::request;
use crate::model;
use crate::table::{Side, Table, write_json, write_pairs};
use crate::train::company::Company;
use crate::train::kernel_set::KernelSet;
use crate::train::write_whole;
use partita_cluster::{
    Basis, Calibration, CalibrationError, ConvEfficiency, Device, DeviceKind, Efficiency, Fact,
    InterLink, IntraLink, Io, Law, Links, Machine, MeasuredKernel, Share,
};
use partita_lower::{Request, Strategy, lower};
use partita_oracle::{Efficiency as Laws, Errors, LinkFit, Sample, Validation};
use partita_program::Program;
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

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

/// How they are split, so that kernels of borders and of parts of the channels are among those measured.
const STRATEGIES: [&str; 4] = ["data=1", "depth=2", "height=2", "filter=2"];

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
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
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
    let Some(found) = company.calibrate(kernels, &ranks, &programs)? else {
        return Ok(());
    };
    let validation = Laws::validate(&found.kernels);
    let machine = machine(&name, &host, &ranks, &found, &validation);
    write_whole(&path, &text(&machine))?;
    answer(args, &path, &machine, &validation, out)
}

/// What is asked for, or a set of all kinds.
fn asked(models: &[String]) -> Result<Vec<(String, usize)>, CliError> {
    if models.is_empty() {
        let own = |&(model, batch): &(&str, usize)| (model.to_owned(), batch);
        return Ok(MODELS.iter().map(own).collect());
    }
    let one = |text: &String| match text.rsplit_once(':') {
        None => Ok((text.clone(), 1)),
        Some((model, batch)) => match batch.parse() {
            Ok(batch) if batch > 0 => Ok((model.to_owned(), batch)),
            Ok(_) | Err(_) => Err(CliError::User(format!(
                "`{text}`: `{batch}` is no batch; after the colon stands a number of samples from 1 on, \
                 like `{model}:1`"
            ))),
        },
    };
    models.iter().map(one).collect()
}

/// The programs of the models that fit, split in several ways where they can be.
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
        let training = TrainingArgs {
            model: name.clone(),
            ranks: 1,
            batch: *batch,
            optimizer: OptimizerName::Adam,
            samples: SampleName::Float32,
        };
        for text in STRATEGIES {
            let strategy: Strategy = text.parse().map_err(|error| CliError::user(&error))?;
            let is_possible = strategy.check(&graph, *batch).is_ok();
            if !is_possible || strategy.ranks() > ranks.count {
                continue;
            }
            let request = request(&graph, &strategy, &training, KindName::Train, &*menu);
            let program = lower(&Request { ..request }).map_err(|error| CliError::user(&error))?;
            if program.memory_max().0 as f64 <= room {
                programs.push(program);
            }
        }
    }
    if programs.is_empty() {
        return Err(CliError::User(format!(
            "none of the models fits in {} a rank, half of what is free; possible are smaller ones, \
             like `--models cosmoflow@32`",
            Bytes(room as u64)
        )));
    }
    Ok(programs)
}

fn fact<T>(value: T, basis: Basis, source: &str) -> Fact<T> {
    Fact {
        value,
        basis,
        source: source.to_owned(),
    }
}

fn machine(
    name: &str,
    host: &Host,
    ranks: &Ranks,
    found: &Calibrated,
    validation: &Validation,
) -> Machine {
    let world = ranks
        .library
        .clone()
        .unwrap_or_else(|| "threads".to_owned());
    let message = found.costs.message.unwrap_or_default();
    let bandwidth = 1.0 / message.seconds_per_byte.max(1e-12);
    let link = |basis, source: &str| {
        let latency = fact(message.latency.max(Seconds(1e-9)), basis, source);
        (latency, fact(BytesPerSecond(bandwidth), basis, source))
    };
    let (latency, rate) = link(
        Basis::Fitted,
        &format!("messages between neighbors, {world}"),
    );
    let alone =
        "there is one node, so no network was measured; the link within the node stands for it";
    let (between, between_rate) = link(Basis::Assumed, alone);
    let reads = found.costs.load.unwrap_or_default();
    let file_rate = BytesPerSecond(1.0 / reads.seconds_per_byte.max(1e-12));
    let file = "reads of a file that the system holds in memory, all ranks at once";
    Machine {
        name: name.to_owned(),
        nodes: fact(1, Basis::Measured, "the machine on which it was measured"),
        devices_per_node: fact(
            ranks.count,
            Basis::Measured,
            "ranks that were at work together",
        ),
        device: device(host, ranks, found),
        links: Links {
            intra: IntraLink {
                latency,
                bandwidth: rate,
            },
            inter: InterLink {
                latency: between,
                bandwidth: between_rate.clone(),
                node_bandwidth: between_rate,
                nics_per_node: fact(1, Basis::Assumed, alone),
            },
        },
        allreduce: None,
        exchange: None,
        io: Some(Io {
            bandwidth_total: fact(
                BytesPerSecond(file_rate.0 * ranks.count as f64),
                Basis::Fitted,
                file,
            ),
            bandwidth_per_node: fact(
                BytesPerSecond(file_rate.0 * ranks.count as f64),
                Basis::Fitted,
                file,
            ),
            latency: fact(reads.latency.max(Seconds(1e-9)), Basis::Fitted, file),
        }),
        calibration: Some(calibration(host, ranks, found, validation, world)),
    }
}

fn device(host: &Host, ranks: &Ranks, found: &Calibrated) -> Device {
    let rate = |sample: &&Sample| sample.features.flops / sample.cost.together.0;
    let of = |family: &str| -> Vec<f64> {
        let all = found.kernels.iter();
        let mut rates: Vec<f64> = all
            .filter(|sample| sample.features.family == family)
            .filter(|sample| sample.features.flops > 1e7)
            .map(|sample| rate(&sample))
            .collect();
        rates.sort_by(f64::total_cmp);
        rates
    };
    let passes = [
        "convolution_forward",
        "convolution_backward_data",
        "convolution_backward_weight",
    ];
    let peak = passes.iter().flat_map(|family| of(family));
    let peak = peak.fold(1.0, f64::max);
    let share = |family: &str| {
        let rates = of(family);
        let middle = rates.get(rates.len() / 2).copied().unwrap_or(peak);
        let source = "the middle of the measured kernels; with a calibration they go before it";
        fact(
            Share((middle / peak).clamp(1e-6, 1.0)),
            Basis::Fitted,
            source,
        )
    };
    let efficiency = || ConvEfficiency {
        forward: share("convolution_forward"),
        backward_data: share("convolution_backward_data"),
        backward_weight: share("convolution_backward_weight"),
        saturation: None,
    };
    let memory = host.memory_bytes_available.unwrap_or(Bytes(1 << 30));
    let processor = host.processor.clone().unwrap_or_default();
    Device {
        name: format!("{} thread(s) of {processor}", ranks.threads),
        kind: DeviceKind::Cpu,
        memory: fact(
            Bytes(memory.0 / ranks.count as u64),
            Basis::Measured,
            "an equal share of what was free",
        ),
        peak_flops_f32: fact(
            FlopsPerSecond(peak),
            Basis::Measured,
            "the fastest convolution, with all ranks at work",
        ),
        memory_bandwidth: fact(
            found.memory,
            Basis::Measured,
            "a copy, read and written bytes, with all ranks at work",
        ),
        kernel_start: None,
        efficiency: Efficiency {
            conv2d: efficiency(),
            conv3d: efficiency(),
            memory_bound: fact(
                Share(1.0),
                Basis::Measured,
                "the rate of the memory is that of a kernel, a copy",
            ),
        },
    }
}

fn calibration(
    host: &Host,
    ranks: &Ranks,
    found: &Calibrated,
    validation: &Validation,
    world: String,
) -> Calibration {
    let row = |sample: &Sample| {
        let Sample { features, cost } = sample;
        MeasuredKernel(
            features.family.clone(),
            features.flops,
            features.bytes,
            features.shape.iter().map(|at| rounded(*at)).collect(),
            Seconds(rounded(cost.alone.0)),
            Seconds(rounded(cost.together.0)),
        )
    };
    let laws = |fits: &BTreeMap<usize, LinkFit>| -> BTreeMap<String, Law> {
        let one = |(members, fit): (&usize, &LinkFit)| (members.to_string(), law(fit));
        fits.iter().map(one).collect()
    };
    let costs = &found.costs;
    let collectives = [
        ("allreduce", laws(&costs.allreduce)),
        ("allgather", laws(&costs.allgather)),
        ("reduce_scatter", laws(&costs.reduce_scatter)),
        ("alltoall", laws(&costs.alltoall)),
    ];
    let known = collectives.into_iter().filter(|(_, laws)| !laws.is_empty());
    Calibration {
        date: today(),
        processor: host.processor.clone().unwrap_or_default(),
        cores: ranks.cores.len(),
        simd: host.simd.to_owned(),
        kernels: format!("{} {}", KernelSet::Cpu.name(), env!("CARGO_PKG_VERSION")),
        world,
        ranks: ranks.count,
        threads: ranks.threads,
        validation: error(&validation.all),
        message: costs.message.as_ref().map(law),
        collectives: known.map(|(name, laws)| (name.to_owned(), laws)).collect(),
        measured: found.kernels.iter().map(row).collect(),
    }
}

fn law(fit: &LinkFit) -> Law {
    Law {
        latency: fit.latency.0,
        seconds_per_byte: fit.seconds_per_byte,
        host_seconds_per_byte: fit.host_seconds_per_byte,
    }
}

fn error(errors: &Errors) -> CalibrationError {
    CalibrationError {
        kernels: errors.kernels,
        median: rounded(errors.median),
        mean_by_time: rounded(errors.mean_by_time),
        total: rounded(errors.total),
    }
}

/// To five digits: more are noise, and make the file long.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

fn text(machine: &Machine) -> String {
    let mut head = "# Measured by `partita calibrate`".to_owned();
    if let Some(calibration) = &machine.calibration {
        let CalibrationError {
            kernels, median, ..
        } = calibration.validation;
        head.push_str(&format!(
            " on {}, {}.\n# Of {kernels} kernels that the laws had not seen, half are estimated within \
             {:.1} %.",
            calibration.date,
            calibration.world,
            100.0 * median
        ));
    }
    format!("{head}\n\n{}", machine.to_toml())
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

/// In UTC, as in 2026-11-22.
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date(since.map_or(0, |since| since.as_secs() / 86_400) as i64)
}

/// So many days after 1970-01-01.
///
/// Source: Hinnant, chrono-compatible low-level date algorithms, `civil_from_days`.
fn date(days: i64) -> String {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + 400 * era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_779), "2026-11-22");
    }
}
