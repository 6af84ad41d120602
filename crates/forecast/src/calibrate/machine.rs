//! The machine file of a calibration.

use crate::local_machine::CalibrationRun;
use partita_cluster::{
    Basis, Calibration, CalibrationError, ConvEfficiency, Device, Efficiency, Fact, HostGroup,
    InterLink, IntraLink, Io, LinkFit, Links, Machine, MeasuredKernel, NetworkCalibration,
    ProcessorKind, Rates, Share, TransferTime,
};
use partita_oracle::Features;
use partita_oracle::{CrossValidation, ErrorStatistics, KernelSample, MeasuredCosts};
use partita_site::kernel_set::KernelSet;
use partita_site::{Host, Ranks};
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds, upper_median};
use partita_tune::HostLayout;
use std::collections::BTreeMap;
use time::OffsetDateTime;

fn fact<T>(value: T, basis: Basis, source: &str) -> Fact<T> {
    Fact {
        value,
        basis,
        source: source.to_owned(),
    }
}

/// The measured machine, of as many nodes as there were hosts.
pub fn machine(
    name: &str,
    (host, kernels): (&Host, KernelSet),
    (ranks, layout): (&Ranks, HostLayout),
    found: &CalibrationRun,
    validation: &CrossValidation,
) -> (Machine, Calibration) {
    let world = ranks
        .library
        .clone()
        .unwrap_or_else(|| "threads".to_owned());
    let links = links(found, layout, &world);
    let reads = found.costs.load.clone().unwrap_or_default();
    let file_rate = ranks.count as f64 / reads.seconds_per_byte.max(1e-12);
    let file = "reads of a file that the system holds in memory, all ranks at once";
    let file_bandwidth = fact(BytesPerSecond(file_rate), Basis::Fitted, file);
    let by = (host, kernels);
    let calibration = calibration(by, (ranks, layout), found, validation, world);
    let machine = Machine {
        name: name.to_owned(),
        nodes: fact(
            layout.hosts,
            Basis::Measured,
            "the hosts on which it was measured",
        ),
        devices_per_node: fact(
            ranks.count,
            Basis::Measured,
            "ranks of a host that were at work together",
        ),
        host_memory: host.memory_total().map(|memory| {
            let source = "what the system says of itself, no more than the limit of the process";
            fact(memory, Basis::Measured, source)
        }),
        device: device((host, kernels), ranks, found),
        links,
        network: None,
        allreduce: None,
        exchange: None,
        io: Some(Io {
            bandwidth_total: file_bandwidth.clone(),
            bandwidth_per_node: file_bandwidth,
            latency: fact(reads.latency.max(Seconds(1e-9)), Basis::Fitted, file),
        }),
        calibration: Some(calibration.clone()),
    };
    (machine, calibration)
}

/// Latency and bandwidth of messages by a fit.
fn link(fit: &LinkFit, basis: Basis, source: &str) -> (Fact<Seconds>, Fact<BytesPerSecond>) {
    let bandwidth = 1.0 / fit.seconds_per_byte.max(1e-12);
    let latency = fact(fit.latency.max(Seconds(1e-9)), basis, source);
    (latency, fact(BytesPerSecond(bandwidth), basis, source))
}

/// Links within a host and between hosts. Where only one kind was measured, the other is assumed to equal it.
fn links(found: &CalibrationRun, layout: HostLayout, world: &str) -> Links {
    let within = found.costs.message.as_ref();
    let between = found.network.get(&1).and_then(|fits| fits.message.as_ref());
    let neighbors = format!("messages between neighbors, {world}");
    let (latency, bandwidth) = match (within, between) {
        (Some(fit), _) => link(fit, Basis::Fitted, &neighbors),
        (None, other) => {
            let lone = "each host has one rank; assumed equal to the network, if there is one";
            link(other.unwrap_or(&LinkFit::default()), Basis::Assumed, lone)
        }
    };
    let intra = IntraLink {
        latency,
        bandwidth,
        bus_bandwidth: None,
        kind: None,
    };
    let Some(between) = between else {
        let alone = "there is one node, so no network was measured; assumed equal to the link within the node";
        let assumed = intra.bandwidth.value;
        let bandwidth = fact(assumed, Basis::Assumed, alone);
        let inter = InterLink {
            latency: fact(intra.latency.value, Basis::Assumed, alone),
            bandwidth: bandwidth.clone(),
            node_bandwidth: bandwidth,
            nics_per_node: fact(1, Basis::Assumed, alone),
            reduction: None,
        };
        return Links { intra, inter };
    };
    let pair = format!("messages between two ranks on two hosts, {world}");
    let (latency, bandwidth) = link(between, Basis::Fitted, &pair);
    let together = found.network.get(&layout.ranks_per_host);
    let together = together
        .and_then(|fits| fits.message.as_ref())
        .unwrap_or(between);
    // Never slower than one pair alone.
    let of_all = layout.ranks_per_host as f64 / together.seconds_per_byte.max(1e-12);
    let node_bandwidth = BytesPerSecond(of_all.max(bandwidth.value.0));
    let all = format!(
        "{} messages at once between the ranks of two hosts, {world}",
        layout.ranks_per_host
    );
    let inter = InterLink {
        latency,
        node_bandwidth: fact(node_bandwidth, Basis::Fitted, &all),
        bandwidth,
        nics_per_node: fact(
            1,
            Basis::Assumed,
            "what adapters there are is not asked; their bandwidth together counts",
        ),
        reduction: None,
    };
    Links { intra, inter }
}

/// What was measured between hosts.
fn network(found: &CalibrationRun, layout: HostLayout) -> Option<NetworkCalibration> {
    let message = found.network.get(&1)?.message.as_ref()?;
    let together = found
        .network
        .get(&layout.ranks_per_host)?
        .message
        .as_ref()?;
    let mut collectives: BTreeMap<String, BTreeMap<HostGroup, LinkFit>> = BTreeMap::new();
    for (&ranks_per_host, costs) in &found.network {
        for (name, fits) in by_name(costs) {
            let group = |members: usize| HostGroup {
                hosts: members / ranks_per_host,
                ranks_per_host,
            };
            let all = fits.iter();
            let all = all.map(|(&members, fit)| (group(members), with_rounded_points(fit)));
            collectives.entry(name.to_owned()).or_default().extend(all);
        }
    }
    Some(NetworkCalibration {
        message: with_rounded_points(message),
        messages_together: with_rounded_points(together),
        collectives,
    })
}

/// Fits of collectives by their name.
fn by_name(costs: &MeasuredCosts) -> [(&'static str, &BTreeMap<usize, LinkFit>); 4] {
    [
        ("allreduce", &costs.allreduce),
        ("allgather", &costs.allgather),
        ("reduce_scatter", &costs.reduce_scatter),
        ("alltoall", &costs.alltoall),
    ]
}

/// Rates of kernels, with all ranks at work, by what each does: of those that do much, if there are such.
fn rates<'s>(
    samples: impl Iterator<Item = &'s KernelSample>,
    does: impl Fn(&KernelSample) -> f64,
    much: f64,
) -> Vec<f64> {
    let all: Vec<&KernelSample> = samples.filter(|sample| does(sample) > 0.0).collect();
    let has_large = all.iter().any(|sample| does(sample) > much);
    let counts = |sample: &&&KernelSample| !has_large || does(sample) > much;
    let counted = all.iter().filter(counts);
    counted
        .map(|sample| does(sample) / sample.cost.together.0)
        .collect()
}

/// Rates of the kernels of a family.
fn rates_of(found: &CalibrationRun, family: &str) -> Vec<f64> {
    let of_family = found
        .kernels
        .iter()
        .filter(|sample| sample.features.family == family);
    rates(of_family, |sample| sample.features.flops, 1e7)
}

/// What a rank computes on: a share of the processor, or a device.
struct Unit {
    name: String,
    kind: ProcessorKind,
    memory: Fact<Bytes>,
    bandwidth: Fact<BytesPerSecond>,
}

fn unit((host, kernels): (&Host, KernelSet), ranks: &Ranks, found: &CalibrationRun) -> Unit {
    if let (Some(facts), Some(memory)) =
        (kernels.device_facts(), kernels.device_memory(ranks.count))
    {
        let rates = rates(found.kernels.iter(), |sample| sample.features.bytes, 1e6);
        let own = "what its driver says, shared by the ranks that it has";
        let fastest = "the kernel that moves the most bytes in a second, with all ranks at work";
        return Unit {
            name: facts.name.clone(),
            kind: ProcessorKind::Gpu,
            memory: fact(memory, Basis::Measured, own),
            bandwidth: fact(
                BytesPerSecond(rates.into_iter().fold(1.0, f64::max)),
                Basis::Measured,
                fastest,
            ),
        };
    }
    let memory = host.memory_bytes_available.unwrap_or(Bytes(1 << 30));
    let processor = host.processor.clone().unwrap_or_default();
    Unit {
        name: format!("{} thread(s) of {processor}", ranks.threads),
        kind: ProcessorKind::Cpu,
        memory: fact(
            Bytes(memory.0 / ranks.count as u64),
            Basis::Measured,
            "an equal share of what was free",
        ),
        bandwidth: fact(
            found.memory,
            Basis::Measured,
            "a copy, read and written bytes, with all ranks at work",
        ),
    }
}

fn device(by: (&Host, KernelSet), ranks: &Ranks, found: &CalibrationRun) -> Device {
    let passes = [
        "convolution_forward",
        "convolution_backward_data",
        "convolution_backward_weight",
    ];
    let peak = passes.iter().flat_map(|family| rates_of(found, family));
    let peak = peak.fold(1.0, f64::max);
    let share = |family: &str| {
        let rates = rates_of(found, family);
        let middle = if rates.is_empty() {
            peak
        } else {
            upper_median(&rates)
        };
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
    let unit = unit(by, ranks, found);
    Device {
        name: unit.name,
        kind: unit.kind,
        memory: unit.memory,
        peak_flops_f32: fact(
            FlopsPerSecond(peak),
            Basis::Measured,
            "the fastest convolution, with all ranks at work",
        ),
        memory_bandwidth: unit.bandwidth,
        host_bandwidth: None,
        kernel_start: None,
        rates: Rates::default(),
        processors: None,
        tiles: None,
        efficiency: Efficiency::in_f32(
            efficiency(),
            efficiency(),
            fact(
                Share(1.0),
                Basis::Measured,
                "the rate of the memory is that of a kernel, a copy",
            ),
        ),
    }
}

fn calibration(
    (host, kernels): (&Host, KernelSet),
    (ranks, layout): (&Ranks, HostLayout),
    found: &CalibrationRun,
    validation: &CrossValidation,
    world: String,
) -> Calibration {
    let row = |sample: &KernelSample| {
        let KernelSample { features, cost } = sample;
        MeasuredKernel(
            features.family.clone(),
            features.flops,
            features.bytes,
            features.shape.iter().map(|at| rounded(*at)).collect(),
            Seconds(rounded(cost.alone.0)),
            Seconds(rounded(cost.together.0)),
        )
    };
    let fits = |fits: &BTreeMap<usize, LinkFit>| -> BTreeMap<String, LinkFit> {
        let one =
            |(members, fit): (&usize, &LinkFit)| (members.to_string(), with_rounded_points(fit));
        fits.iter().map(one).collect()
    };
    let costs = &found.costs;
    let collectives = by_name(costs).map(|(name, of_members)| (name, fits(of_members)));
    let known = collectives.into_iter().filter(|(_, fits)| !fits.is_empty());
    Calibration {
        // In UTC, as in 2026-11-22.
        date: OffsetDateTime::now_utc().date().to_string(),
        processor: host.processor.clone().unwrap_or_default(),
        cores: ranks.cores.len(),
        simd: host.simd.to_owned(),
        kernels: kernels.backend(),
        world,
        ranks: ranks.count,
        threads: ranks.threads,
        validation: error_of(&validation.all),
        message: costs.message.as_ref().map(with_rounded_points),
        collectives: known.map(|(name, fits)| (name.to_owned(), fits)).collect(),
        network: network(found, layout),
        coordinates: Features::NAMES.map(str::to_owned).to_vec(),
        measured: found.kernels.iter().map(row).collect(),
    }
}

fn with_rounded_points(fit: &LinkFit) -> LinkFit {
    let point = |point: &TransferTime| TransferTime {
        bytes: point.bytes,
        seconds: Seconds(rounded(point.seconds.0)),
        host: Seconds(rounded(point.host.0)),
    };
    LinkFit {
        points: fit.points.iter().map(point).collect(),
        ..fit.clone()
    }
}

/// Errors in the form of a machine file.
pub fn error_of(errors: &ErrorStatistics) -> CalibrationError {
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

/// The machine file, with a summary of the calibration at its head.
pub fn text(machine: &Machine, calibration: &Calibration, passes: usize) -> String {
    let CalibrationError {
        kernels, median, ..
    } = calibration.validation;
    format!(
        "# Measured by `partita calibrate` on {}, {}, in {passes} pass{}.\n# Cross-validation: half of \
         {kernels} kernels are estimated within {:.1} %.\n\n{}",
        calibration.date,
        calibration.world,
        if passes == 1 { "" } else { "es" },
        100.0 * median,
        machine.to_toml()
    )
}
