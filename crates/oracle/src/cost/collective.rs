//! Collectives by the formulas of their algorithms. p members, n bytes, alpha seconds per message,
//! beta seconds per byte sent, gamma seconds per byte reduced.
//!
//! Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
//! MPICH (2005), sections 4.1 and 4.3 to 4.5.

use std::ops::Add;

/// A time split into what does not depend on the bytes and what does, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Latencies.
    pub latency: f64,
    /// Bytes sent and reduced.
    pub transfer: f64,
}

impl Parts {
    /// Both together.
    pub fn total(self) -> f64 {
        self.latency + self.transfer
    }

    /// The shorter of the two.
    pub fn min(self, other: Self) -> Self {
        if other.total() < self.total() {
            other
        } else {
            self
        }
    }
}

impl Add for Parts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            latency: self.latency + other.latency,
            transfer: self.transfer + other.transfer,
        }
    }
}

/// What lies between neighbors of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte sent.
    pub beta: f64,
    /// Seconds per byte reduced.
    pub gamma: f64,
}

/// Ring reduce-scatter: `(p-1) alpha + (p-1)/p n (beta + gamma)`. Where shares are unequal, the
/// largest holds each step up, and n is p times that one.
pub fn reduce_scatter_ring(p: usize, n: f64, hop: Hop) -> Parts {
    let steps = (p - 1) as f64;
    Parts {
        latency: steps * hop.alpha,
        transfer: steps / p as f64 * n * (hop.beta + hop.gamma),
    }
}

/// Reduce-scatter by recursive halving: `lg p alpha + (p-1)/p n (beta + gamma)`. Where p is no power
/// of two, those beyond it hand their vector to a partner before, and get their share after.
pub fn reduce_scatter_halving(p: usize, n: f64, hop: Hop) -> Parts {
    let power = 1usize << p.ilog2();
    let share = (power - 1) as f64 / power as f64;
    let halving = Parts {
        latency: f64::from(p.ilog2()) * hop.alpha,
        transfer: share * n * (hop.beta + hop.gamma),
    };
    if p.is_power_of_two() {
        return halving;
    }
    let partners = Parts {
        latency: 2.0 * hop.alpha,
        transfer: n * (hop.beta + hop.gamma) + n / p as f64 * hop.beta,
    };
    halving + partners
}

/// The best flat reduce-scatter; `ring` and `tree` as in [`allreduce_flat`].
pub fn reduce_scatter_flat(p: usize, n: f64, ring: Hop, tree: Hop) -> Parts {
    if p <= 1 {
        return Parts::default();
    }
    reduce_scatter_ring(p, n, ring).min(reduce_scatter_halving(p, n, tree))
}

/// Reduce-scatter in two stages: among the `q` members of a node, then of each `n / q` between the
/// `nodes`. The first of the three stages of [`allreduce_hierarchical`], and half of the second.
pub fn reduce_scatter_hierarchical(
    nodes: usize,
    q: usize,
    n: f64,
    intra: Hop,
    inter: Hop,
) -> Parts {
    let part = n / q as f64;
    reduce_scatter_ring(q, n, intra) + reduce_scatter_flat(nodes, part, inter, inter)
}

/// The law of the ring allreduce without its second half: `(p-1) (alpha + n beta / p)`.
///
/// Source: as for [`allreduce_law`], whose first `p-1` steps these are.
pub fn reduce_scatter_law(p: usize, n: f64, alpha: f64, beta: f64) -> Parts {
    let Parts { latency, transfer } = allreduce_law(p, n, alpha, beta);
    Parts {
        latency: latency / 2.0,
        transfer: transfer / 2.0,
    }
}

/// All-to-all by pairwise exchange: in every step each member exchanges a block with another one, and
/// the largest holds the step up: `(p-1) (alpha + largest beta)`.
pub fn alltoall_pairwise(p: usize, largest: f64, hop: Hop) -> Parts {
    let steps = p.saturating_sub(1) as f64;
    Parts {
        latency: steps * hop.alpha,
        transfer: steps * largest * hop.beta,
    }
}

/// All-to-all by Bruck's algorithm: step k passes on the blocks whose distance has bit k, so that a
/// block travels as often as its distance has bits; `lg p (alpha + n/2 beta)` for a power of two and
/// equal blocks. Unequal ones are taken to be as large as the largest.
pub fn alltoall_bruck(p: usize, largest: f64, hop: Hop) -> Parts {
    let passed: u32 = (0..p).map(usize::count_ones).sum();
    Parts {
        latency: log2_ceil(p) * hop.alpha,
        transfer: f64::from(passed) * largest * hop.beta,
    }
}

/// Ring allgather: every step passes a block on, and the largest block holds each step up:
/// `(p-1) (alpha + largest beta)`. With equal blocks, `(p-1) alpha + (p-1)/p n beta`.
pub fn allgather_ring(blocks: &[f64], hop: Hop) -> Parts {
    let steps = blocks.len().saturating_sub(1) as f64;
    let largest = blocks.iter().copied().fold(0.0, f64::max);
    Parts {
        latency: steps * hop.alpha,
        transfer: steps * largest * hop.beta,
    }
}

/// Allgather by recursive doubling, or by Bruck's algorithm where p is no power of two:
/// `ceil(lg p) alpha + (n - own) beta`, for the member that receives most.
pub fn allgather_doubling(blocks: &[f64], hop: Hop) -> Parts {
    let total: f64 = blocks.iter().sum();
    let smallest = blocks.iter().copied().fold(f64::INFINITY, f64::min);
    Parts {
        latency: log2_ceil(blocks.len()) * hop.alpha,
        transfer: (total - smallest.min(total)) * hop.beta,
    }
}

/// Ring allreduce: `2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma`.
pub fn allreduce_ring(p: usize, n: f64, hop: Hop) -> Parts {
    let blocks = vec![n / p as f64; p];
    reduce_scatter_ring(p, n, hop) + allgather_ring(&blocks, hop)
}

/// Allreduce by recursive doubling: `lg p (alpha + n beta + n gamma)`, with a step before and after
/// where p is no power of two.
pub fn allreduce_doubling(p: usize, n: f64, hop: Hop) -> Parts {
    let steps = f64::from(p.ilog2());
    Parts {
        latency: steps * hop.alpha,
        transfer: steps * n * (hop.beta + hop.gamma),
    } + fold(p, n, hop)
}

/// Allreduce by recursive halving and doubling (Rabenseifner):
/// `2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma`, with a step before and after where p is no
/// power of two.
pub fn allreduce_halving(p: usize, n: f64, hop: Hop) -> Parts {
    let power = 1usize << p.ilog2();
    let share = (power - 1) as f64 / power as f64;
    Parts {
        latency: 2.0 * f64::from(p.ilog2()) * hop.alpha,
        transfer: share * n * (2.0 * hop.beta + hop.gamma),
    } + fold(p, n, hop)
}

/// Before: those beyond the power of two hand their vector to a partner; after: they get the sum.
fn fold(p: usize, n: f64, hop: Hop) -> Parts {
    if p.is_power_of_two() {
        return Parts::default();
    }
    Parts {
        latency: 2.0 * hop.alpha,
        transfer: n * (2.0 * hop.beta + hop.gamma),
    }
}

/// The best flat allreduce. `ring` and `tree` differ where several members of a node send at once:
/// a ring in rank order leaves a node once, the other algorithms with every member.
pub fn allreduce_flat(p: usize, n: f64, ring: Hop, tree: Hop) -> Parts {
    if p <= 1 {
        return Parts::default();
    }
    allreduce_ring(p, n, ring)
        .min(allreduce_doubling(p, n, tree))
        .min(allreduce_halving(p, n, tree))
}

/// Allreduce in three stages: reduce-scatter among the `q` members of a node, allreduce of each
/// `n / q` between the `nodes`, allgather in the node.
pub fn allreduce_hierarchical(nodes: usize, q: usize, n: f64, intra: Hop, inter: Hop) -> Parts {
    let part = n / q as f64;
    let between = allreduce_flat(nodes, part, inter, inter);
    reduce_scatter_ring(q, n, intra) + between + allgather_ring(&vec![part; q], intra)
}

/// The law `2 (p-1) (alpha + n beta / p)`.
///
/// Source: ParaDL technical report (October 2020), section on communication primitives.
pub fn allreduce_law(p: usize, n: f64, alpha: f64, beta: f64) -> Parts {
    let steps = 2.0 * p.saturating_sub(1) as f64;
    Parts {
        latency: steps * alpha,
        transfer: steps * n / p.max(1) as f64 * beta,
    }
}

/// A law between ring and tree: the latency of a tree up and down, the bytes of a ring,
/// `2 lg p alpha + 2 (p-1)/p n beta`.
///
/// What grows with the group beyond that is in beta. Source: NCCL 2.4 takes double binary trees for
/// latency (Jeaugey, Massively Scale Your Deep Learning Training with NCCL 2.4, 2019).
pub fn allreduce_tree_law(p: usize, n: f64, alpha: f64, beta: f64) -> Parts {
    let p = p.max(1);
    Parts {
        latency: 2.0 * log2_ceil(p) * alpha,
        transfer: 2.0 * (p - 1) as f64 / p as f64 * n * beta,
    }
}

/// The first half of [`allreduce_tree_law`].
pub fn reduce_scatter_tree_law(p: usize, n: f64, alpha: f64, beta: f64) -> Parts {
    let Parts { latency, transfer } = allreduce_tree_law(p, n, alpha, beta);
    Parts {
        latency: latency / 2.0,
        transfer: transfer / 2.0,
    }
}

fn log2_ceil(p: usize) -> f64 {
    f64::from(p.max(1).next_power_of_two().ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP: Hop = Hop {
        alpha: 3.0,
        beta: 0.5,
        gamma: 0.25,
    };

    fn close(parts: Parts, latency: f64, transfer: f64) {
        assert!((parts.latency - latency).abs() < 1e-9, "{parts:?}");
        assert!((parts.transfer - transfer).abs() < 1e-9, "{parts:?}");
    }

    #[test]
    fn hand_values_for_eight_members_and_64_bytes() {
        close(allreduce_ring(8, 64.0, HOP), 42.0, 56.0 + 14.0);
        close(allreduce_doubling(8, 64.0, HOP), 9.0, 3.0 * 48.0);
        close(allreduce_halving(8, 64.0, HOP), 18.0, 70.0);
        close(allgather_ring(&[8.0; 8], HOP), 21.0, 28.0);
        close(allgather_doubling(&[8.0; 8], HOP), 9.0, 28.0);
        close(reduce_scatter_ring(8, 64.0, HOP), 21.0, 42.0);
    }

    #[test]
    fn hand_values_of_shares_and_blocks() {
        close(reduce_scatter_halving(8, 64.0, HOP), 9.0, 42.0);
        // Halved among four, and 64 (0.5 + 0.25) before, 12.8 x 0.5 after.
        close(
            reduce_scatter_halving(5, 64.0, HOP),
            12.0,
            36.0 + 48.0 + 6.4,
        );
        close(alltoall_pairwise(8, 8.0, HOP), 21.0, 28.0);
        close(alltoall_bruck(8, 8.0, HOP), 9.0, 3.0 * 16.0);
        // Of the distances 1 to 4, those of one bit travel once and 3 travels twice.
        close(alltoall_bruck(5, 8.0, HOP), 9.0, 5.0 * 4.0);
        close(alltoall_pairwise(1, 8.0, HOP), 0.0, 0.0);
        close(alltoall_bruck(1, 8.0, HOP), 0.0, 0.0);
        close(reduce_scatter_law(4, 64.0, 3.0, 0.5), 9.0, 24.0);
        let slow_tree = Hop { beta: 2.0, ..HOP };
        let best = |n, tree| reduce_scatter_flat(8, n, HOP, tree);
        assert_eq!(best(64.0, HOP), reduce_scatter_halving(8, 64.0, HOP));
        assert_eq!(best(64.0, slow_tree), reduce_scatter_ring(8, 64.0, HOP));
        assert_eq!(reduce_scatter_flat(1, 9.0, HOP, HOP), Parts::default());
    }

    #[test]
    fn what_is_no_power_of_two_takes_a_step_before_and_after() {
        close(allreduce_doubling(5, 64.0, HOP), 6.0 + 6.0, 96.0 + 80.0);
        close(allreduce_halving(5, 64.0, HOP), 12.0 + 6.0, 60.0 + 80.0);
        close(allgather_doubling(&[2.0, 4.0, 6.0], HOP), 6.0, 5.0);
        close(allgather_ring(&[2.0, 4.0, 6.0], HOP), 6.0, 6.0);
    }

    #[test]
    fn short_vectors_double_and_long_ones_halve() {
        let best = |n| allreduce_flat(8, n, HOP, HOP);
        assert_eq!(best(1.0), allreduce_doubling(8, 1.0, HOP));
        assert_eq!(best(4096.0), allreduce_halving(8, 4096.0, HOP));
        let slow_tree = Hop { beta: 2.0, ..HOP };
        let ring = allreduce_flat(8, 4096.0, HOP, slow_tree);
        assert_eq!(ring, allreduce_ring(8, 4096.0, HOP));
        assert_eq!(allreduce_flat(1, 9.0, HOP, HOP), Parts::default());
    }

    /// DiHydrogen's `perfmodel.py` on 8 ranks: 4-byte words, 512 words doubled, a million halved.
    /// Its gamma is per word; ours per byte.
    #[test]
    fn published_constants() {
        let hop = Hop {
            alpha: 1.2e-6,
            beta: 3.893e-11,
            gamma: 1.075e-13 / 4.0,
        };
        let short = allreduce_flat(8, 2048.0, hop, hop).total();
        let expected_short = 3.0 * (1.2e-6 + 512.0 * 4.0 * 3.893e-11 + 512.0 * 1.075e-13);
        assert!((short / expected_short - 1.0).abs() < 1e-12);
        let long = allreduce_flat(8, 4e6, hop, hop).total();
        let expected_long = 7.2e-6 + 1.75 * 4e6 * 3.893e-11 + 0.875 * 1e6 * 1.075e-13;
        assert!((long / expected_long - 1.0).abs() < 1e-12);
    }

    #[test]
    fn three_stages_add_up() {
        let inter = Hop {
            alpha: 10.0,
            beta: 2.0,
            gamma: 0.25,
        };
        let parts = allreduce_hierarchical(2, 4, 64.0, HOP, inter);
        // In the node 2 x 9 and 48 (0.5 + 0.25) + 48 x 0.5; between two nodes 16 bytes, doubled once.
        close(parts, 18.0 + 10.0, 36.0 + 24.0 + 16.0 * 2.25);
        // Of the sum between the nodes, half: one step with 8 of 16 bytes.
        let parts = reduce_scatter_hierarchical(2, 4, 64.0, HOP, inter);
        close(parts, 9.0 + 10.0, 36.0 + 8.0 * 2.25);
        close(allreduce_law(4, 64.0, 3.0, 0.5), 18.0, 48.0);
        close(allreduce_tree_law(8, 64.0, 3.0, 0.5), 18.0, 56.0);
        close(reduce_scatter_tree_law(8, 64.0, 3.0, 0.5), 9.0, 28.0);
        close(allreduce_tree_law(1, 64.0, 3.0, 0.5), 0.0, 0.0);
    }
}
