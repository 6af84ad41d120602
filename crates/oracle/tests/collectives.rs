//! Collectives on described machines: public figures, and what must hold of any.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::fixed_costs;

use fixed_costs::spatial;
use partita_cluster::{
    Basis, CollectiveLibrary, Fact, IntraKind, Machine, Network, Ratio, Reduction, Software,
    SwitchLevel, Torus,
};
use partita_oracle::cost::collective::{CommTime, nccl};
use partita_oracle::{AlltoallBlocks, CollectiveCost, Costs, MachineCosts, Mode, simulate};
use partita_space::{Bytes, BytesPerSecond, Rank, Seconds};
use serde::Deserialize;
use std::fs;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Use {
    Predict,
    Show,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Size {
    Small,
    Medium,
    Large,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Allreduce,
    Allgather,
    ReduceScatter,
    Alltoall,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    source: String,
    r#use: Use,
    size: Size,
    machine: String,
    nodes: usize,
    per_node: usize,
    collective: Kind,
    bytes: u64,
    microseconds: Option<f64>,
    bus_bandwidth: Option<f64>,
    switches_add: Option<bool>,
    adapters: Option<usize>,
    adapter_gigabytes: Option<f64>,
    bus_gigabytes: Option<f64>,
}

impl Kind {
    /// Bytes that each member sends at least, of those of all.
    fn share(self, ranks: usize) -> f64 {
        let once = (ranks - 1) as f64 / ranks as f64;
        match self {
            Kind::Allreduce => 2.0 * once,
            Kind::Allgather | Kind::ReduceScatter | Kind::Alltoall => once,
        }
    }

    /// Of `bytes` in the vector of an allreduce or in all blocks of another.
    fn cost(
        self,
        costs: &MachineCosts,
        members: &[Rank],
        bytes: u64,
        flows: f64,
    ) -> CollectiveCost {
        let block = Bytes(bytes / members.len() as u64);
        let blocks = vec![block; members.len()];
        let cost = match self {
            Kind::Allreduce => costs.allreduce(members, Bytes(bytes), flows),
            Kind::Allgather => costs.allgather(members, &blocks, flows),
            Kind::ReduceScatter => costs.reduce_scatter(members, &blocks, flows),
            Kind::Alltoall => {
                let blocks = AlltoallBlocks {
                    largest: block,
                    given: Bytes(bytes),
                };
                costs.alltoall(members, blocks, flows)
            }
        };
        cost.unwrap()
    }
}

const KINDS: [Kind; 4] = [
    Kind::Allreduce,
    Kind::Allgather,
    Kind::ReduceScatter,
    Kind::Alltoall,
];

fn load(name: &str) -> Machine {
    Machine::load(name, &[]).unwrap()
}

impl Row {
    fn published(&self) -> f64 {
        let ranks = self.nodes * self.per_node;
        let moved = self.collective.share(ranks) * self.bytes as f64;
        let by_rate = self.bus_bandwidth.map(|rate| moved / (rate * 1e9));
        self.microseconds.map(|one| one * 1e-6).or(by_rate).unwrap()
    }

    fn machine(&self) -> Machine {
        let mut machine = load(&self.machine);
        let inter = &mut machine.links.inter;
        if let Some(adapters) = self.adapters {
            inter.nics_per_node.value = adapters;
        }
        if let Some(rate) = self.adapter_gigabytes {
            inter.bandwidth.value = BytesPerSecond(rate * 1e9);
        }
        let all = inter.nics_per_node.value as f64 * inter.bandwidth.value.0;
        inter.node_bandwidth.value = BytesPerSecond(all);
        if let Some(rate) = self.bus_gigabytes {
            let intra = &mut machine.links.intra;
            intra.bandwidth.value = BytesPerSecond(rate * 1e9);
            intra.bus_bandwidth = None;
        }
        if self.switches_add == Some(false) {
            machine.links.intra.kind = Some(IntraKind::NvLink);
        }
        machine
    }

    fn predicted(&self) -> f64 {
        let machine = self.machine();
        let per_node = machine.devices_per_node.value;
        let members: Vec<Rank> = (0..self.nodes)
            .flat_map(|node| (0..self.per_node).map(move |device| node * per_node + device))
            .collect();
        let costs = costs_of(machine);
        let cost = self.collective.cost(&costs, &members, self.bytes, 1.0);
        cost.seconds().0
    }
}

/// Mean and largest relative error of the rows of a size.
fn errors(rows: &[Row], size: Size) -> [f64; 2] {
    let bounded = |row: &&Row| row.r#use == Use::Predict && row.size == size;
    let errors: Vec<f64> = rows
        .iter()
        .filter(bounded)
        .map(|row| (row.predicted() / row.published() - 1.0).abs())
        .collect();
    let largest = errors.iter().copied().fold(0.0, f64::max);
    [errors.iter().sum::<f64>() / errors.len() as f64, largest]
}

/// Of the machine alone.
fn costs_of(machine: Machine) -> MachineCosts {
    MachineCosts::new(machine, Software::load("partita-cudnn", &[]).unwrap())
}

#[test]
fn public_figures_of_nccl() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../published/collectives/nccl.toml"
    );
    let table: Table = toml::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    for row in &table.rows {
        let (ours, theirs) = (row.predicted(), row.published());
        let (kind, bytes) = (row.collective, row.bytes);
        let [nodes, here] = [row.nodes, row.per_node];
        println!(
            "{kind:?} {bytes} B on {nodes} x {here} {}: {:.1} us, predicted {:.1} us, {:+.1} %{} ({})",
            row.machine,
            theirs * 1e6,
            ours * 1e6,
            100.0 * (ours / theirs - 1.0),
            if row.r#use == Use::Show {
                " not bounded"
            } else {
                ""
            },
            row.source
        );
    }
    let large = errors(&table.rows, Size::Large);
    let medium = errors(&table.rows, Size::Medium);
    let small = errors(&table.rows, Size::Small);
    println!("large {large:.3?}, medium {medium:.3?}, small {small:.3?}: mean and largest error");
    assert!(large[0] < 0.10 && large[1] < 0.20, "{large:?}");
    assert!(medium[0] < 0.45 && medium[1] < 0.50, "{medium:?}");
    assert!(small[0] < 0.20 && small[1] < 0.30, "{small:?}");
}

fn machines() -> Vec<Machine> {
    let mut switched = load("dgx-h100");
    switched.links.inter.reduction = Some(Reduction::Switches);
    switched.name = "dgx-h100 with SHARP".to_owned();
    let names = ["dgx-h100", "dgx-a100", "summit", "frontera"];
    names.map(load).into_iter().chain([switched]).collect()
}

/// Contiguous and strided groups, within a node and of several.
fn groups(machine: &Machine) -> Vec<Vec<Rank>> {
    let here = machine.devices_per_node.value;
    vec![
        (0..2).collect(),
        (0..here).collect(),
        (0..2 * here).collect(),
        (0..3 * here).collect(),
        (0..64 * here).collect(),
        (0..33).map(|at| at * here).collect(),
        (0..16).map(|at| at * 3 * here).collect(),
        (0..here + 1).collect(),
    ]
}

const BYTES: [u64; 9] = [
    0,
    1 << 7,
    1 << 12,
    3 << 14,
    1 << 20,
    5 << 22,
    1 << 26,
    1 << 28,
    1 << 32,
];

/// All groups and sizes of all machines.
fn each(mut check: impl FnMut(&Machine, &[Rank], Kind, u64)) {
    for machine in machines() {
        for members in groups(&machine) {
            for kind in KINDS {
                for bytes in BYTES {
                    check(&machine, &members, kind, bytes);
                }
            }
        }
    }
}

fn seconds(machine: &Machine, members: &[Rank], kind: Kind, bytes: u64) -> f64 {
    let costs = costs_of(machine.clone());
    kind.cost(&costs, members, bytes, 1.0).seconds().0
}

#[test]
fn a_group_of_one_costs_nothing() {
    for machine in machines() {
        let costs = costs_of(machine);
        for kind in KINDS {
            let cost = kind.cost(&costs, &[3], 1 << 20, 1.0);
            assert_eq!(cost, CollectiveCost::default());
        }
    }
}

#[test]
fn more_bytes_take_longer() {
    for machine in machines() {
        let costs = costs_of(machine.clone());
        for members in groups(&machine) {
            for kind in KINDS {
                let mut last = 0.0;
                // Between the powers of two as well.
                for step in 0..140 {
                    let bytes = 2f64.powf(6.0 + f64::from(step) / 5.0) as u64;
                    let seconds = kind.cost(&costs, &members, bytes, 1.0).seconds().0;
                    assert!(seconds >= last, "{kind:?} {bytes} {}", machine.name);
                    last = seconds;
                }
            }
        }
    }
}

#[test]
fn better_links_are_never_slower() {
    type Change = fn(&mut Machine);
    let changes: [Change; 5] = [
        |machine| machine.links.intra.bandwidth.value.0 *= 2.0,
        |machine| {
            if let Some(bus) = &mut machine.links.intra.bus_bandwidth {
                bus.value.0 *= 2.0;
            }
        },
        |machine| {
            machine.links.inter.bandwidth.value.0 *= 2.0;
            machine.links.inter.node_bandwidth.value.0 *= 2.0;
        },
        |machine| machine.links.intra.latency.value.0 /= 2.0,
        |machine| machine.links.inter.latency.value.0 /= 2.0,
    ];
    each(|machine, members, kind, bytes| {
        let before = seconds(machine, members, kind, bytes);
        for (at, change) in changes.iter().enumerate() {
            let mut better = machine.clone();
            change(&mut better);
            let after = seconds(&better, members, kind, bytes);
            let name = &machine.name;
            assert!(
                after <= before,
                "{kind:?} {bytes} {name} {at}: {before} {after}"
            );
        }
    });
}

/// Bytes that the node with most of a group sends or receives at least.
fn node_bytes(machine: &Machine, members: &[Rank], kind: Kind, bytes: u64) -> f64 {
    let mut nodes: Vec<usize> = members.iter().map(|&rank| machine.node(rank)).collect();
    nodes.dedup();
    let (count, all) = (nodes.len() as f64, members.len() as f64);
    let on = |node| {
        members
            .iter()
            .filter(move |&&rank| machine.node(rank) == node)
    };
    let fewest = nodes.iter().map(|&node| on(node).count()).min().unwrap() as f64;
    let most = nodes.iter().map(|&node| on(node).count()).max().unwrap() as f64;
    let bytes = bytes as f64;
    match (kind, machine.links.inter.reduction) {
        (Kind::Allreduce, Some(Reduction::Switches)) if count > 1.0 => bytes,
        (Kind::Allreduce, Some(_) | None) => 2.0 * (count - 1.0) / count * bytes,
        (Kind::Allgather | Kind::ReduceScatter, _) => (all - fewest) / all * bytes,
        // Of `bytes` a member keeps and sends to each a part.
        (Kind::Alltoall, _) => most * (all - most) / all * bytes,
    }
}

#[test]
fn no_collective_beats_the_adapters_of_a_node() {
    each(|machine, members, kind, bytes| {
        let node = machine.links.inter.node_bandwidth.value.0;
        let bytes = bytes / members.len() as u64 * members.len() as u64;
        let costs = costs_of(machine.clone());
        for flows in [1.0, 4.0, 1e6] {
            let transfer = kind.cost(&costs, members, bytes, flows).transfer.0;
            let bound = flows * node_bytes(machine, members, kind, bytes) / node;
            let name = &machine.name;
            assert!(
                transfer >= bound * (1.0 - 1e-9),
                "{kind:?} {bytes} on {} of {name} with {flows}: {transfer} {bound}",
                members.len()
            );
        }
    });
}

fn fact<T>(value: T) -> Fact<T> {
    Fact {
        value,
        basis: Basis::Assumed,
        source: "a hand example".to_owned(),
    }
}

#[test]
fn a_tapered_fat_tree_slows_what_many_groups_send_through_it() {
    let full = load("dgx-a100");
    let mut tapered = full.clone();
    tapered.network = Some(Network::FatTree(vec![SwitchLevel {
        nodes: fact(16),
        oversubscription: fact(Ratio(3.0)),
        latency: fact(Seconds(1e-6)),
    }]));
    let here = full.devices_per_node.value;
    let ratio = |members: &[Rank], kind| {
        let bytes = 1 << 32;
        seconds(&tapered, members, kind, bytes) / seconds(&full, members, kind, bytes)
    };
    let under_one: Vec<Rank> = (0..16 * here).collect();
    let in_order: Vec<Rank> = (0..64 * here).collect();
    let across: Vec<Rank> = (0..8 * here)
        .map(|at| at / here * 16 * here + at % here)
        .collect();
    for kind in KINDS {
        assert_eq!(ratio(&under_one, kind), 1.0);
        let passed = ratio(&across, kind);
        assert!((2.0..3.01).contains(&passed), "{kind:?}: {passed}");
    }
    // One ring of a group in order passes each switch once.
    assert!(ratio(&in_order, Kind::Allgather) < 1.01);
    assert!(ratio(&in_order, Kind::Alltoall) > 2.0);
    // Messages between neighbors stay below a switch, those to the next switch share its links.
    let costs = [&full, &tapered].map(|machine| costs_of(machine.clone()));
    let [near, far] = [1, 16].map(|apart| {
        costs.each_ref().map(|costs| {
            let cost = costs.message(0, apart * here, Bytes(1 << 30), 8.0);
            cost.unwrap().seconds().0
        })
    });
    assert_eq!(near[0], near[1]);
    assert!(far[1] > 2.9 * far[0], "{far:?}");
}

#[test]
fn a_library_is_chosen_by_the_device_and_can_be_another() {
    let machine = load("dgx-h100");
    let usual = costs_of(machine.clone());
    let mpi = costs_of(machine.clone()).with_library(CollectiveLibrary::Mpi);
    let members: Vec<Rank> = (0..64).collect();
    let of = |costs: &MachineCosts| Kind::Allgather.cost(costs, &members, 1 << 30, 1.0);
    assert_ne!(of(&usual), of(&mpi));
    // Both bring the bytes of all through all adapters of a node.
    for costs in [&usual, &mpi] {
        let seconds = of(costs).seconds().0;
        let bound = 0.875 * f64::from(1 << 30) / 400e9;
        assert!((1.0..2.5).contains(&(seconds / bound)), "{seconds} {bound}");
    }
}

/// On nodes of 4 and of 6 devices, under switches of 3 and 17 nodes, and on a torus.
#[test]
fn classes_meet_the_same_network_as_ranks() {
    let level = |nodes, ratio| SwitchLevel {
        nodes: fact(nodes),
        oversubscription: fact(Ratio(ratio)),
        latency: fact(Seconds(1e-3)),
    };
    let torus = Torus {
        extents: fact(vec![3, 4, 2]),
        link_bandwidth: fact(BytesPerSecond(1e8)),
        hop_latency: fact(Seconds(1e-4)),
    };
    let networks = [
        Network::FatTree(vec![level(3, 2.0), level(17, 4.0)]),
        Network::Torus(torus),
    ];
    for name in ["dgx-h100", "summit", "frontera"] {
        for network in &networks {
            let mut machine = load(name);
            machine.network = Some(network.clone());
            machine.io = load("lassen").io;
            let costs = costs_of(machine);
            for extents in [[4, 4, 2, 1, 1, 1, 1], [8, 2, 3, 1, 1, 1, 1]] {
                let program = spatial(extents, 5, 1);
                let of = |mode| simulate(&program, &costs, mode, 1).unwrap().makespan.0;
                let [ranks, classes] = [of(Mode::Ranks), of(Mode::Classes)];
                let off = (classes / ranks - 1.0).abs();
                assert!(off < 1e-9, "{name} {extents:?}: {ranks} {classes}");
            }
        }
    }
}

/// Eight devices to a node, with 240 GB/s between them and 8 x 25 GB/s to other nodes.
fn fabric(nodes: usize) -> nccl::Fabric {
    nccl::Fabric {
        ranks: 8 * nodes,
        nodes,
        kind: IntraKind::NvLink,
        intra: 240e9,
        inter: 200e9,
        latency: 1e-6,
        path: 0.0,
        reduction: Reduction::Devices,
    }
}

fn close(time: CommTime, microseconds: f64, transfer: f64) {
    assert!((time.latency * 1e6 - microseconds).abs() < 1e-6, "{time:?}");
    assert!((time.transfer / transfer - 1.0).abs() < 1e-9, "{time:?}");
}

#[test]
fn hand_values_of_nccl() {
    let (one, eight) = (fabric(1), fabric(8));
    // Long: a ring with the Simple protocol.
    close(
        nccl::allgather(&one, 8e9),
        8.4 + 7.0 * 3.4,
        0.875 * 8e9 / 240e9,
    );
    close(
        nccl::reduce_scatter(&eight, 8e9),
        8.4 + 56.0 * 3.4 + 7.0 * 14.0,
        63.0 / 64.0 * 8e9 / 190e9,
    );
    // Short: a tree with LL, down and up; of its rate a ninth, and with 1 KiB 0.9 of that.
    let short = nccl::allreduce(&eight, 1024.0);
    close(
        short,
        6.8 + 2.0 * (7.0 * 0.6 + 3.0 * 5.0),
        1024.0 / 0.9 / 10.2e9,
    );
    let far = nccl::Fabric {
        path: 1e-6,
        ..eight
    };
    let added = nccl::allreduce(&far, 1024.0).latency - short.latency;
    assert!((added - 6e-6).abs() < 1e-12, "{added}");
    // Switches that add: 5/6 of 8/9 of the links.
    let sharp = nccl::Fabric {
        kind: IntraKind::NvLinkSharp,
        ..one
    };
    close(
        nccl::allreduce(&sharp, 8e9),
        23.0,
        8e9 / (240e9 * 20.0 / 27.0),
    );
    // The network adds as fast as a node sends.
    let switched = nccl::Fabric {
        reduction: Reduction::Switches,
        kind: IntraKind::NvLinkSharp,
        intra: 480e9,
        ..eight
    };
    close(nccl::allreduce(&switched, 8e9), 23.0 + 18.0, 8e9 / 190e9);
    // Blocks to 56 devices of other nodes, those of all eight of a node.
    close(
        nccl::alltoall(&eight, 1e6),
        8.4 + 14.0 + 56.0,
        8.0 * 56.0 * 1e6 / 190e9,
    );
}
