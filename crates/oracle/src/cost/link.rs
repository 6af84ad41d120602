//! Messages: a latency and a time per byte, with contention at the network adapters of a node.

use partita_space::{Bytes, BytesPerSecond, Seconds};

/// Time of the bytes of a message on its link.
///
/// `contention` divides the bandwidth of the node's adapters alone: a link that is slower than its share
/// of them remains the bound.
pub fn transfer(
    bytes: Bytes,
    link: BytesPerSecond,
    node: Option<BytesPerSecond>,
    contention: f64,
) -> Seconds {
    let alone = bytes / link;
    match node {
        Some(node) => alone.max(bytes / node * contention),
        None => alone,
    }
}

/// The factor by which a message takes longer if it shares a link fairly with `flows`, the bytes of all
/// messages including itself, which start at the same time.
///
/// Under fair sharing a message of `b` bytes ends when `sum over flows of min(b, flow)` bytes have
/// passed. 1 for an empty message.
pub fn fair_sharing(bytes: u64, flows: &[u64]) -> f64 {
    if bytes == 0 {
        return 1.0;
    }
    let passed: u64 = flows.iter().map(|&flow| flow.min(bytes)).sum();
    (passed as f64 / bytes as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_flows_share_evenly_and_short_ones_leave_early() {
        assert_eq!(fair_sharing(10, &[10, 10, 10]), 3.0);
        assert_eq!(fair_sharing(30, &[30, 10]), 40.0 / 30.0);
        assert_eq!(fair_sharing(10, &[30, 10]), 2.0);
        assert_eq!(fair_sharing(0, &[5]), 1.0);
    }

    #[test]
    fn the_adapters_bound_only_what_exceeds_them() {
        let (link, node) = (BytesPerSecond(10.0), Some(BytesPerSecond(20.0)));
        assert_eq!(transfer(Bytes(100), link, node, 1.0), Seconds(10.0));
        assert_eq!(transfer(Bytes(100), link, node, 2.0), Seconds(10.0));
        assert_eq!(transfer(Bytes(100), link, node, 4.0), Seconds(20.0));
        assert_eq!(transfer(Bytes(100), link, None, 4.0), Seconds(10.0));
    }

    /// DiHydrogen's `perfmodel.py`: send-receive is alpha + n 4 beta.
    #[test]
    fn a_message_by_published_constants() {
        let beta = 3.893e-11;
        let seconds = transfer(Bytes(4_000_000), BytesPerSecond(1.0 / beta), None, 1.0);
        let with_latency = 1.2e-6 + seconds.0;
        assert!((with_latency - 1.5692e-4).abs() < 1e-9);
    }
}
