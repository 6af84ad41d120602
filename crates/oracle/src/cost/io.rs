//! Reading of samples from a shared file system.

use partita_space::{Bytes, BytesPerSecond, Seconds};

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
pub fn read(
    bytes: Bytes,
    readers: usize,
    readers_on_node: usize,
    file_system: FileSystem,
) -> Seconds {
    let all = bytes * readers as u64 / file_system.total;
    let node = bytes * readers_on_node as u64 / file_system.per_node;
    file_system.latency + all.max(node)
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
        let shared = read(Bytes(125_000_000), 512, 4, file_system);
        assert!((shared.0 - 0.001 - 64.0 / 240.0).abs() < 1e-12);
        let single = read(Bytes(125_000_000), 4, 4, file_system);
        assert!((single.0 - 0.001 - 0.02).abs() < 1e-12);
    }
}
