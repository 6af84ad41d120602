//! Loads of samples: from a shared file system, or from the host memory of the ranks that keep them.

use partita_cluster::{LinkKind, Machine, ProcessorKind};
use partita_program::{self as program, Body};
use partita_space::{Bytes, BytesPerSecond, Seconds};

/// What a rank loads at once of samples or targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRead {
    /// Bytes of its own part, as they are stored.
    pub bytes: Bytes,
    /// Bytes of its own part as the network reads it, in f32.
    pub bytes_f32: Bytes,
    /// Ranks that load as much at the same time.
    pub readers: usize,
    /// Ranks over which a sample is split; 1 where each loads whole samples.
    pub parts: usize,
}

impl SampleRead {
    /// A load of a program in which this many ranks load.
    pub fn of(load: &program::Load, body: &Body, readers: usize) -> Self {
        let extent = load.target.extent;
        let own: usize = extent[1..].iter().product();
        let whole: usize = load.distribution.shape[1..].iter().product();
        let values = extent.iter().product::<usize>() as u64;
        Self {
            bytes: load.target.bytes(&body.buffers),
            bytes_f32: Bytes(4 * values),
            readers,
            parts: (whole as f64 / own.max(1) as f64).round().max(1.0) as usize,
        }
    }
}

/// The cost of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadCost {
    /// From the start to the end, while all ranks load and nothing else moves; behind computation.
    pub seconds: Seconds,
    /// Of these, what the link of a rank to other nodes is busy, in each direction.
    pub link: Seconds,
    /// Of these, what the adapters of a node are busy with the samples of one rank, in each direction.
    pub adapters: Seconds,
    /// Time after the load, before the rank can compute: nothing hides it.
    pub exposed: Seconds,
}

impl LoadCost {
    /// A load that shares nothing and is hidden.
    pub fn alone(seconds: Seconds) -> Self {
        Self {
            seconds,
            ..Self::default()
        }
    }

    /// With all parts this many times as fast.
    pub fn faster(self, times: f64) -> Self {
        let by = 1.0 / times;
        Self {
            seconds: self.seconds * by,
            link: self.link * by,
            adapters: self.adapters * by,
            exposed: self.exposed * by,
        }
    }
}

/// Latency and bandwidth of a file system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileSystem {
    /// Time of an empty read.
    pub latency: Seconds,
    /// Bandwidth of all nodes together.
    pub total: BytesPerSecond,
    /// Bandwidth of one node.
    pub per_node: BytesPerSecond,
}

/// Time of a read of `bytes` on each of `readers` ranks, `readers_on_node` of them on this node.
pub fn files(
    bytes: Bytes,
    readers: usize,
    readers_on_node: usize,
    file_system: FileSystem,
) -> Seconds {
    let all = bytes * readers as u64 / file_system.total;
    let node = bytes * readers_on_node as u64 / file_system.per_node;
    file_system.latency + all.max(node)
}

/// A load on a machine.
#[derive(Clone, Copy, Debug)]
pub struct Load<'m> {
    /// The machine.
    pub machine: &'m Machine,
    /// What each rank loads.
    pub read: SampleRead,
    /// Ranks on the node.
    pub on_node: usize,
    /// Whether each rank loads its own part; otherwise one of the ranks of a sample loads it whole and scatters it.
    pub is_spatial: bool,
}

impl Load<'_> {
    /// From files.
    pub fn from_files(&self, file_system: FileSystem) -> LoadCost {
        let (bytes, readers, on_node) = self.per_reader();
        LoadCost {
            exposed: self.scatter(),
            ..LoadCost::alone(files(bytes, readers, on_node, file_system))
        }
    }

    /// From the host memory of the ranks. A part of a sample is kept by one of the ranks that load the same part of
    /// other samples, each with the same probability, so that groups - 1 of groups parts come from another rank.
    ///
    /// Source: Oyama et al., section on I/O.
    pub fn from_store(&self) -> LoadCost {
        let machine = self.machine;
        let (bytes, _, loading_on_node) = self.per_reader();
        let groups = self.read.readers.div_ceil(self.read.parts).max(1);
        let groups_on_node = (self.on_node / self.read.parts).clamp(1, groups);
        let remote = (groups - groups_on_node) as f64 / groups as f64;
        let remote = Bytes((bytes.0 as f64 * remote).round() as u64);
        let link = remote / machine.bandwidth(LinkKind::Inter);
        let adapters = remote / machine.links.inter.node_bandwidth.value;
        let network = link.max(adapters * loading_on_node as f64);
        let latency = match remote {
            Bytes(0) => Seconds(0.0),
            Bytes(_) => machine.latency(LinkKind::Inter),
        };
        let copy = if self.is_spatial {
            self.copy(bytes)
        } else {
            // It is counted with the scatter.
            Seconds(0.0)
        };
        LoadCost {
            seconds: latency + network + copy,
            link,
            adapters,
            exposed: self.scatter(),
        }
    }

    /// Bytes that a loading rank loads, the number of those ranks, and those of them on the node.
    fn per_reader(&self) -> (Bytes, usize, usize) {
        let SampleRead {
            bytes,
            readers,
            parts,
            ..
        } = self.read;
        if self.is_spatial {
            return (bytes, readers, self.on_node);
        }
        let of_node = self.on_node.div_ceil(parts);
        (bytes * parts as u64, readers.div_ceil(parts), of_node)
    }

    /// From the host memory of a node into that of a device of it; on processors, a copy in memory.
    fn copy(&self, bytes: Bytes) -> Seconds {
        let device = &self.machine.device;
        match (&device.host_bandwidth, device.kind) {
            (Some(bandwidth), _) => bytes / bandwidth.value,
            (None, ProcessorKind::Cpu) => (bytes * 2) / device.memory_rate(),
            (None, ProcessorKind::Gpu) => bytes / self.machine.bandwidth(LinkKind::Intra),
        }
    }

    /// A whole sample goes to the device of the rank that has loaded it, in f32, and from there to the others of the
    /// sample, one after the other.
    fn scatter(&self) -> Seconds {
        let SampleRead {
            bytes_f32, parts, ..
        } = self.read;
        if self.is_spatial || parts == 1 {
            return Seconds(0.0);
        }
        let near = self.on_node.min(parts) - 1;
        let far = parts - 1 - near;
        let send = |kind, count: usize| {
            let one = self.machine.latency(kind) + bytes_f32 / self.machine.bandwidth(kind);
            one * count as f64
        };
        let whole = bytes_f32 * parts as u64;
        self.copy(whole) + send(LinkKind::Intra, near) + send(LinkKind::Inter, far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 samples of 1 GiB at 240 GB/s take at least 256 ms in GB (Oyama et al., section on I/O).
    #[test]
    fn the_slower_of_node_and_file_system_counts() {
        let file_system = FileSystem {
            latency: Seconds(0.001),
            total: BytesPerSecond(240e9),
            per_node: BytesPerSecond(25e9),
        };
        let shared = files(Bytes(125_000_000), 512, 4, file_system);
        assert!((shared.0 - 0.001 - 64.0 / 240.0).abs() < 1e-12);
        let single = files(Bytes(125_000_000), 4, 4, file_system);
        assert!((single.0 - 0.001 - 0.02).abs() < 1e-12);
    }

    fn load(machine: &Machine, readers: usize, parts: usize, is_spatial: bool) -> Load<'_> {
        Load {
            machine,
            read: SampleRead {
                bytes: Bytes((1 << 30) / parts as u64),
                bytes_f32: Bytes((2 << 30) / parts as u64),
                readers,
                parts,
            },
            on_node: readers.min(4),
            is_spatial,
        }
    }

    /// Lassen: 12.5 GB/s of a message, 25 GB/s of a node with 4 devices, 75 GB/s to a device.
    #[test]
    fn stored_samples_come_from_other_nodes() {
        let machine = Machine::load("lassen", &[]).unwrap();
        // 64 groups of 8 ranks: 63 of 64 parts come from other nodes, and 4 ranks share the adapters.
        let cost = load(&machine, 512, 8, true).from_store();
        let part = f64::from(1 << 27);
        let network = 4.0 * part * 63.0 / 64.0 / 25e9;
        let expected = 1.2e-6 + network + part / 75e9;
        assert!((cost.seconds.0 - expected).abs() < 1e-9, "{cost:?}");
        assert!((4.0 * cost.adapters.0 - network).abs() < 1e-9 && cost.exposed == Seconds(0.0));
        // One group keeps what it needs.
        let cost = load(&machine, 8, 8, true).from_store();
        assert_eq!((cost.link, cost.adapters), (Seconds(0.0), Seconds(0.0)));
        assert!((cost.seconds.0 - part / 75e9).abs() < 1e-12);
        // Groups of one rank: 3 of 4 others are on the node.
        let cost = load(&machine, 8, 1, true).from_store();
        assert!((cost.link.0 - 0.5 * f64::from(1 << 30) / 12.5e9).abs() < 1e-9);
    }

    #[test]
    fn whole_samples_are_scattered() {
        let machine = Machine::load("lassen", &[]).unwrap();
        let file_system = FileSystem {
            latency: Seconds(0.0),
            total: BytesPerSecond(240e9),
            per_node: BytesPerSecond(25e9),
        };
        let whole = load(&machine, 32, 8, false).from_files(file_system);
        let parts = load(&machine, 32, 8, true).from_files(file_system);
        // One reader on every second node instead of 4 on each.
        assert!((whole.seconds.0 - f64::from(1 << 30) / 25e9).abs() < 1e-9);
        assert!((parts.seconds.0 - f64::from(1 << 29) / 25e9).abs() < 1e-9);
        let part = f64::from(1 << 28);
        let sends = 3.0 * (8e-6 + part / 37.58e9) + 4.0 * (1.2e-6 + part / 12.5e9);
        let expected = 8.0 * part / 75e9 + sends;
        assert!((whole.exposed.0 / expected - 1.0).abs() < 1e-3, "{whole:?}");
        assert_eq!(parts.exposed, Seconds(0.0));
        assert_eq!(
            load(&machine, 4, 1, false).from_store().exposed,
            Seconds(0.0)
        );
    }
}
