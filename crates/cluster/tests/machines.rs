//! The machine files of the repository: they load, they survive writing, their arithmetic holds.

use partita_cluster::{
    Basis, Calibration, CalibrationError, ConvPass, Dragonfly, Fact, HostGroup, IntraKind, LinkFit,
    LinkKind, Machine, MachineError, MeasuredKernel, Network, NetworkCalibration, ProcessorKind,
    Reduction, Torus, TransferTime,
};
use partita_space::{Bytes, BytesPerSecond, Seconds};
use std::path::PathBuf;

fn load(name: &str) -> Machine {
    Machine::load(name, &[]).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn built_in_machines_survive_writing() {
    for name in Machine::available(&[]) {
        let machine = load(&name);
        assert_eq!(machine.name, name);
        let text = machine.to_toml();
        let again = Machine::parse(&text, "again").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again, machine);
        assert_eq!(again.to_toml(), text);
    }
}

#[test]
fn every_file_in_the_folder_is_built_in() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    assert_eq!(Machine::available(&[folder]), Machine::available(&[]));
}

/// On processors the ranks compute in the host memory, so it is the devices' memory.
#[test]
fn every_machine_says_its_host_memory() {
    for name in Machine::available(&[]) {
        let machine = load(&name);
        let host = machine.host_memory.unwrap().value;
        let devices = machine.device.memory.value * machine.devices_per_node.value as u64;
        match machine.device.kind {
            ProcessorKind::Cpu => assert_eq!(host, devices, "{name}"),
            ProcessorKind::Gpu => assert!(2 * host.0 > devices.0, "{name}: {host}"),
        }
    }
    let without = include_str!("../../../machines/lassen.toml").lines();
    let without = without.filter(|line| !line.starts_with("host_memory"));
    let text: Vec<&str> = without.collect();
    let machine = Machine::parse(&text.join("\n"), "without").unwrap();
    assert_eq!(machine.host_memory, None);
    assert_eq!(
        load("lassen").host_memory.unwrap().value,
        Bytes(256_000_000_000)
    );
}

#[test]
fn links_follow_the_nodes() {
    let lassen = load("lassen");
    assert_eq!(lassen.devices(), 2048);
    assert_eq!(lassen.link(5, 5), LinkKind::Same);
    assert_eq!(lassen.link(4, 7), LinkKind::Intra);
    assert_eq!(lassen.link(3, 4), LinkKind::Inter);
    assert_eq!(lassen.link(4, 3), LinkKind::Inter);
    assert_eq!(lassen.bandwidth(LinkKind::Inter).0, 12.5e9);
    assert_eq!(lassen.latency(LinkKind::Same).0, 0.0);
    assert_eq!(lassen.bandwidth(LinkKind::Same).0, 0.8 * 900e9);
}

/// Forward flops of CosmoFlow's seven 3D convolutions: (inputs, outputs, kernel, output extent).
fn conv3d_flops(layers: &[(f64, f64, i32, f64)]) -> f64 {
    let flops = |&(inputs, outputs, kernel, extent): &(f64, f64, i32, f64)| {
        2.0 * f64::from(kernel.pow(3)) * inputs * outputs * extent.powi(3)
    };
    layers.iter().map(flops).sum()
}

fn within(a: f64, b: f64, tolerance: f64) {
    assert!((a / b - 1.0).abs() <= tolerance, "{a} against {b}");
}

/// The shapes of CosmoFlow 512^3, 8 ways: channels read, flops of a pass in a sample, planes of a slab.
#[test]
fn lassen_is_slow_where_its_paper_says() {
    let lassen = load("lassen");
    let fit = lassen.device.efficiency.conv3d.saturation.as_ref();
    let fit = fit.unwrap_or_else(|| panic!("saturation constants"));
    let reached = |channels: f64, half: f64| channels / (channels + half);
    let forward = |channels| reached(channels, fit.channels_forward.value.0);
    let backward = |channels| reached(channels, fit.channels_backward.value.0);
    assert!(forward(4.0) < forward(16.0) / 2.0);
    let seconds = |channels: f64, flops: f64, pass| {
        let part = match pass {
            ConvPass::Forward => forward(channels),
            ConvPass::BackwardData | ConvPass::BackwardWeight => backward(channels),
        };
        flops / 8.0 / (lassen.device.conv_rate(3, pass).0 * part)
    };
    let weights_and_forward = |channels, flops| {
        seconds(channels, flops, ConvPass::Forward)
            + seconds(channels, flops, ConvPass::BackwardWeight)
    };
    let layer = |inputs, outputs, extent| conv3d_flops(&[(inputs, outputs, 3, extent)]);
    let first = weights_and_forward(4.0, layer(4.0, 16.0, 512.0));
    let (second, third) = (layer(16.0, 32.0, 256.0), layer(32.0, 64.0, 128.0));
    let others = weights_and_forward(16.0, second)
        + seconds(16.0, second, ConvPass::BackwardData)
        + weights_and_forward(32.0, third)
        + seconds(32.0, third, ConvPass::BackwardData);
    // Oyama et al., Table 2, 8-way: 73.9 of 142.9 ms are the first layer's. Nothing of that table was
    // fitted to, and the model gives that layer too much.
    within(first / (first + others), 73.9 / 142.9, 0.2);
}

#[test]
fn abci_reproduces_the_times_it_was_derived_from() {
    let abci = load("abci");
    let device = &abci.device;
    let cosmoflow = conv3d_flops(&[
        (4.0, 16.0, 3, 256.0),
        (16.0, 32.0, 3, 128.0),
        (32.0, 64.0, 3, 64.0),
        (64.0, 128.0, 3, 16.0),
        (128.0, 256.0, 2, 8.0),
        (256.0, 256.0, 2, 4.0),
        (256.0, 128.0, 2, 2.0),
    ]);
    let training = |flops: f64, dims: usize, memory_bytes: f64| {
        let passes = [
            ConvPass::Forward,
            ConvPass::BackwardData,
            ConvPass::BackwardWeight,
        ];
        let conv: f64 = passes
            .map(|pass| flops / device.conv_rate(dims, pass).0)
            .iter()
            .sum();
        conv + memory_bytes / device.memory_rate().0
    };
    within(training(cosmoflow, 3, 10.24e9), 0.263_517_898, 0.01);
    // One share for both 2D networks: it may not fit either exactly.
    within(training(9.249e9, 2, 0.767e9), 0.003_119_502, 0.07);
    within(training(30.86e9, 2, 0.277e9), 0.008_245_589, 0.07);
}

#[test]
fn no_share_is_stated() {
    for name in Machine::available(&[]) {
        let efficiency = load(&name).device.efficiency;
        for conv in [efficiency.conv2d, efficiency.conv3d] {
            for share in [conv.forward, conv.backward_data, conv.backward_weight] {
                assert_ne!(share.basis, Basis::Stated, "{name}");
            }
        }
    }
}

/// A transfer, half of whose time is host overhead.
fn transfer(bytes: u64, seconds: f64) -> TransferTime {
    TransferTime {
        bytes: Bytes(bytes),
        seconds: Seconds(seconds),
        host: Seconds(0.5 * seconds),
    }
}

/// A machine that was calibrated.
fn calibrated() -> Machine {
    let fit = LinkFit::line(Seconds(2.5e-6), 1.5e-10, 1e-10);
    let of_sizes = LinkFit {
        points: [64, 256].map(|bytes| transfer(bytes, 3e-6)).to_vec(),
        ..fit.clone()
    };
    let row = |family: &str, alone: f64| {
        let shape = vec![0.5, 1.0, f64::ln(3.0)];
        MeasuredKernel(
            family.to_owned(),
            2e9,
            1e6,
            shape,
            Seconds(alone),
            Seconds(2.0 * alone),
        )
    };
    let mut machine = load("lassen");
    machine.calibration = Some(Calibration {
        date: "2026-11-22".to_owned(),
        processor: "Some CPU".to_owned(),
        cores: 2,
        simd: "AVX2".to_owned(),
        kernels: "cpu 0.1.0".to_owned(),
        world: "threads".to_owned(),
        ranks: 2,
        threads: 1,
        validation: CalibrationError {
            kernels: 2,
            median: 0.05,
            mean_by_time: 0.04,
            total: -0.01,
        },
        message: Some(of_sizes.clone()),
        collectives: [(
            "allreduce".to_owned(),
            [("2".to_owned(), fit.clone())].into(),
        )]
        .into(),
        network: Some(NetworkCalibration {
            message: fit.clone(),
            messages_together: of_sizes,
            collectives: [(
                "allgather".to_owned(),
                [(
                    HostGroup {
                        hosts: 2,
                        ranks_per_host: 4,
                    },
                    fit,
                )]
                .into(),
            )]
            .into(),
        }),
        coordinates: ["rows", "row", "taps"].map(str::to_owned).to_vec(),
        measured: vec![row("convolution_forward", 1e-3), row("fill", 1e-7)],
    });
    machine.exchange = None;
    machine
}

#[test]
fn a_calibration_reads_back() {
    let machine = calibrated();
    let text = machine.to_toml();
    assert_eq!(Machine::parse(&text, "mine.toml").unwrap(), machine);
}

#[test]
fn transfers_between_measured_sizes_take_a_time_between_theirs() {
    let mut fit = LinkFit::line(Seconds(1.0), 0.25, 0.125);
    let seconds = |fit: &LinkFit, bytes| fit.seconds(Bytes(bytes)).0;
    assert_eq!((seconds(&fit, 0), seconds(&fit, 8)), (1.0, 3.0));
    assert_eq!((fit.start().0, fit.host(Bytes(8)).0), (1.0, 1.0));
    // A point is no line.
    fit.points = vec![transfer(10, 2.0)];
    assert_eq!((seconds(&fit, 8), fit.start().0), (3.0, 1.0));
    fit.points.extend([transfer(20, 4.0), transfer(40, 5.0)]);
    let times = [0, 10, 15, 20, 30, 40, 80].map(|bytes| seconds(&fit, bytes));
    assert_eq!(times, [2.0, 2.0, 3.0, 4.0, 4.5, 5.0, 7.0]);
    assert_eq!((fit.start().0, fit.host(Bytes(30)).0), (2.0, 2.25));
}

#[test]
fn invalid_values_of_a_calibration_are_refused() {
    let text = calibrated().to_toml();
    let key = |name: &str| format!("calibration.{name}");
    for (from, to, key) in [
        ("1e-7", "-1e-7", key("measured")),
        ("1e-7", "1e30", key("measured")),
        ("[0.5, 1.0, ", "[1e308, 1.0, ", key("measured")),
        ("[\"fill\"", "[\"\"", key("measured")),
        ("2.5e-6", "1e300", key("message.latency")),
        ("2.5e-6", "nan", key("message.latency")),
        ("ranks = 2", "ranks = 0", key("ranks")),
        ("ranks = 2", "ranks = -2", key("ranks")),
        ("\n2 = {", "\ntwo = {", key("collectives.allreduce")),
        ("\n2 = {", "\n1 = {", key("collectives.allreduce")),
        ("2x4", "1x4", key("network.collectives.allgather")),
        ("2x4", "2x0", key("network.collectives.allgather")),
        ("2x4", "8", key("network.collectives.allgather")),
        (
            "messages_together",
            "messages_alone",
            "messages_alone".to_owned(),
        ),
        (
            "collectives.allreduce",
            "collectives.alreduce",
            "alreduce".to_owned(),
        ),
        ("simd", "sind", "sind".to_owned()),
        ("\"2026-11-22\"", "\"2026-22-11\"", key("date")),
        ("\"threads\"", "\" \"", key("world")),
        ("median = 0.05", "median = -0.05", key("validation")),
        (
            "256, seconds = 3e-6",
            "256, seconds = -3e-6",
            key("message.points"),
        ),
        (
            "256, seconds = 3e-6",
            "64, seconds = 3e-6",
            key("message.points"),
        ),
    ] {
        let at = text.find(from).unwrap_or_else(|| panic!("no `{from}`"));
        let at = at + usize::from(from.starts_with('\n'));
        let line = 1 + text[..at].matches('\n').count();
        assert_eq!(fault(&text.replacen(from, to, 1)), (line, key));
    }
    // The second row has fewer features than the first, which is the one that changes.
    let first = 1 + text[..text.find("[0.5, 1.0, ").unwrap()]
        .matches('\n')
        .count();
    let fewer = text.replacen("[0.5, 1.0, ", "[0.5, ", 1);
    assert_eq!(fault(&fewer), (first + 1, key("measured")));
}

/// Line and key of the fault in a machine file.
fn fault(text: &str) -> (usize, String) {
    match Machine::parse(text, "mine.toml").expect_err("a fault") {
        MachineError::BadValue { line, key, .. } | MachineError::UnknownKey { line, key, .. } => {
            (line, key)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn networks_of_all_kinds_survive_writing() {
    let mut lassen = load("lassen");
    fn fact<T>(value: T) -> Fact<T> {
        Fact {
            value,
            basis: Basis::Assumed,
            source: "a hand example".to_owned(),
        }
    }
    let networks = [
        Network::Dragonfly(Dragonfly {
            nodes_per_group: fact(128),
            group_bandwidth: fact(BytesPerSecond(1e12)),
            latency: fact(Seconds(5e-7)),
        }),
        Network::Torus(Torus {
            extents: fact(vec![24, 23, 24, 2, 3, 2]),
            link_bandwidth: fact(BytesPerSecond(6.8e9)),
            hop_latency: fact(Seconds(1e-7)),
        }),
    ];
    lassen.links.intra.bus_bandwidth = Some(fact(BytesPerSecond(1e11)));
    lassen.links.intra.kind = Some(IntraKind::NvLinkSharp);
    lassen.links.inter.reduction = Some(Reduction::Switches);
    for network in networks {
        lassen.network = Some(network);
        let again = Machine::parse(&lassen.to_toml(), "again");
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}")), lassen);
    }
}

#[test]
fn paths_are_as_long_as_the_nodes_are_apart() {
    let abci = load("abci");
    let network = abci
        .network
        .as_ref()
        .unwrap_or_else(|| panic!("no network"));
    for (nodes, nanoseconds) in [
        (17, 0.0),
        (18, 180.0),
        (34, 180.0),
        (35, 670.0),
        (1024, 670.0),
    ] {
        assert!((network.latency(nodes).0 - nanoseconds * 1e-9).abs() < 1e-12);
    }
    let levels = network.levels(abci.links.inter.node_bandwidth.value);
    within(levels[1].bandwidth.0, 34.0 * 25e9 / 3.0, 1e-12);
    // 4 x 3 nodes: of 4 in a row the farthest are two apart, of three rows one.
    let torus = Network::Torus(Torus {
        extents: Fact {
            value: vec![4, 3],
            basis: Basis::Assumed,
            source: "a hand example".to_owned(),
        },
        link_bandwidth: abci.links.inter.bandwidth.clone(),
        hop_latency: abci.links.inter.latency.clone(),
    });
    let hop = abci.links.inter.latency.value.0;
    for (nodes, hops) in [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0), (5, 2.0), (12, 2.0)] {
        assert!(
            (torus.latency(nodes).0 - hops * hop).abs() < 1e-12,
            "{nodes}"
        );
    }
}
