//! The algorithms of MPI libraries in the alpha-beta model: p members, n bytes, alpha seconds per message,
//! beta seconds per byte sent, gamma seconds per byte reduced. The fastest is taken.
//!
//! Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
//! MPICH (2005), sections 4.1 and 4.3 to 4.5.

use super::{AlphaBeta, CommTime, log2_ceil};

/// Ring reduce-scatter: `(p-1) alpha + (p-1)/p n (beta + gamma)`. The largest
/// share bounds each step, so n is p times the largest.
pub fn reduce_scatter_ring(p: usize, n: f64, link: AlphaBeta) -> CommTime {
    let steps = (p - 1) as f64;
    CommTime::new(
        steps * link.alpha,
        steps / p as f64 * n * (link.beta + link.gamma),
    )
}

/// Reduce-scatter by recursive halving: `lg p alpha + (p-1)/p n (beta + gamma)`. If p is no power
/// of two, the members beyond it send their vector to a partner before, and get their share after.
pub fn reduce_scatter_halving(p: usize, n: f64, link: AlphaBeta) -> CommTime {
    let power = 1usize << p.ilog2();
    let share = (power - 1) as f64 / power as f64;
    let halving = CommTime::new(
        f64::from(p.ilog2()) * link.alpha,
        share * n * (link.beta + link.gamma),
    );
    if p.is_power_of_two() {
        return halving;
    }
    let partners = CommTime::new(
        2.0 * link.alpha,
        n * (link.beta + link.gamma) + n / p as f64 * link.beta,
    );
    halving + partners
}

/// The fastest flat reduce-scatter; `ring` and `tree` as in [`allreduce_flat`].
pub fn reduce_scatter_flat(p: usize, n: f64, ring: AlphaBeta, tree: AlphaBeta) -> CommTime {
    if p <= 1 {
        return CommTime::default();
    }
    reduce_scatter_ring(p, n, ring).min(reduce_scatter_halving(p, n, tree))
}

/// Reduce-scatter in two stages: among the `q` members of a node, then of each `n / q` between the
/// `nodes`.
pub fn reduce_scatter_hierarchical(
    nodes: usize,
    q: usize,
    n: f64,
    intra: AlphaBeta,
    inter: AlphaBeta,
) -> CommTime {
    let part = n / q as f64;
    reduce_scatter_ring(q, n, intra) + reduce_scatter_flat(nodes, part, inter, inter)
}

/// All-to-all by pairwise exchange: in every step each member exchanges a block with another one, and
/// the largest block bounds the step: `(p-1) (alpha + largest beta)`.
pub fn alltoall_pairwise(p: usize, largest: f64, link: AlphaBeta) -> CommTime {
    let steps = p.saturating_sub(1) as f64;
    CommTime::new(steps * link.alpha, steps * largest * link.beta)
}

/// All-to-all by Bruck's algorithm: step k passes on the blocks whose distance has bit k, so that a
/// block travels as often as its distance has bits; `lg p (alpha + n/2 beta)` for a power of two and
/// equal blocks. Unequal blocks count as the largest.
pub fn alltoall_bruck(p: usize, largest: f64, link: AlphaBeta) -> CommTime {
    let passed: u32 = (0..p).map(usize::count_ones).sum();
    CommTime::new(
        log2_ceil(p) * link.alpha,
        f64::from(passed) * largest * link.beta,
    )
}

/// Ring allgather: every step forwards a block, and the largest block bounds each step:
/// `(p-1) (alpha + largest beta)`. With equal blocks, `(p-1) alpha + (p-1)/p n beta`.
pub fn allgather_ring(blocks: &[f64], link: AlphaBeta) -> CommTime {
    let steps = blocks.len().saturating_sub(1) as f64;
    let largest = blocks.iter().copied().fold(0.0, f64::max);
    CommTime::new(steps * link.alpha, steps * largest * link.beta)
}

/// Allgather by recursive doubling, or by Bruck's algorithm if p is no power of two:
/// `ceil(lg p) alpha + (n - own) beta`, for the member that receives most.
pub fn allgather_doubling(blocks: &[f64], link: AlphaBeta) -> CommTime {
    let total: f64 = blocks.iter().sum();
    let smallest = blocks.iter().copied().fold(f64::INFINITY, f64::min);
    CommTime::new(
        log2_ceil(blocks.len()) * link.alpha,
        (total - smallest.min(total)) * link.beta,
    )
}

/// Allgather in two stages: between the nodes, `q` at once, each the blocks of one member per node; then
/// within a node what each has gathered.
pub fn allgather_hierarchical(
    nodes: usize,
    q: usize,
    largest: f64,
    intra: AlphaBeta,
    inter: AlphaBeta,
) -> CommTime {
    let blocks = vec![largest; nodes];
    let between = allgather_ring(&blocks, inter).min(allgather_doubling(&blocks, inter));
    between + allgather_ring(&vec![largest * nodes as f64; q], intra)
}

/// Ring allreduce: `2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma`.
pub fn allreduce_ring(p: usize, n: f64, link: AlphaBeta) -> CommTime {
    let blocks = vec![n / p as f64; p];
    reduce_scatter_ring(p, n, link) + allgather_ring(&blocks, link)
}

/// Allreduce by recursive doubling: `lg p (alpha + n beta + n gamma)`, with a step before and after
/// if p is no power of two.
pub fn allreduce_doubling(p: usize, n: f64, link: AlphaBeta) -> CommTime {
    let steps = f64::from(p.ilog2());
    CommTime::new(steps * link.alpha, steps * n * (link.beta + link.gamma)) + fold(p, n, link)
}

/// Allreduce by recursive halving and doubling (Rabenseifner):
/// `2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma`, with a step before and after where p is no
/// power of two.
pub fn allreduce_halving(p: usize, n: f64, link: AlphaBeta) -> CommTime {
    let power = 1usize << p.ilog2();
    let share = (power - 1) as f64 / power as f64;
    CommTime::new(
        2.0 * f64::from(p.ilog2()) * link.alpha,
        share * n * (2.0 * link.beta + link.gamma),
    ) + fold(p, n, link)
}

/// The steps before and after an allreduce if p is no power of two: the members beyond it send their vector
/// to a partner, and get the result.
fn fold(p: usize, n: f64, link: AlphaBeta) -> CommTime {
    if p.is_power_of_two() {
        return CommTime::default();
    }
    CommTime::new(2.0 * link.alpha, n * (2.0 * link.beta + link.gamma))
}

/// The fastest flat allreduce. `ring` and `tree` differ if a node has several members: a ring in rank
/// order sends one message at a time out of a node, the other algorithms one per member.
pub fn allreduce_flat(p: usize, n: f64, ring: AlphaBeta, tree: AlphaBeta) -> CommTime {
    if p <= 1 {
        return CommTime::default();
    }
    allreduce_ring(p, n, ring)
        .min(allreduce_doubling(p, n, tree))
        .min(allreduce_halving(p, n, tree))
}

/// Allreduce in three stages: reduce-scatter among the `q` members of a node, allreduce of each
/// `n / q` between the `nodes`, allgather in the node.
pub fn allreduce_hierarchical(
    nodes: usize,
    q: usize,
    n: f64,
    intra: AlphaBeta,
    inter: AlphaBeta,
) -> CommTime {
    let part = n / q as f64;
    let between = allreduce_flat(nodes, part, inter, inter);
    reduce_scatter_ring(q, n, intra) + between + allgather_ring(&vec![part; q], intra)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: AlphaBeta = AlphaBeta {
        alpha: 3.0,
        beta: 0.5,
        gamma: 0.25,
    };

    fn close(time: CommTime, latency: f64, transfer: f64) {
        assert!((time.latency - latency).abs() < 1e-9, "{time:?}");
        assert!((time.transfer - transfer).abs() < 1e-9, "{time:?}");
    }

    #[test]
    fn hand_values_for_eight_members_and_64_bytes() {
        close(allreduce_ring(8, 64.0, LINK), 42.0, 56.0 + 14.0);
        close(allreduce_doubling(8, 64.0, LINK), 9.0, 3.0 * 48.0);
        close(allreduce_halving(8, 64.0, LINK), 18.0, 70.0);
        close(allgather_ring(&[8.0; 8], LINK), 21.0, 28.0);
        close(allgather_doubling(&[8.0; 8], LINK), 9.0, 28.0);
        close(reduce_scatter_ring(8, 64.0, LINK), 21.0, 42.0);
    }

    #[test]
    fn hand_values_of_shares_and_blocks() {
        close(reduce_scatter_halving(8, 64.0, LINK), 9.0, 42.0);
        // Halved among four, and 64 (0.5 + 0.25) before, 12.8 x 0.5 after.
        close(
            reduce_scatter_halving(5, 64.0, LINK),
            12.0,
            36.0 + 48.0 + 6.4,
        );
        close(alltoall_pairwise(8, 8.0, LINK), 21.0, 28.0);
        close(alltoall_bruck(8, 8.0, LINK), 9.0, 3.0 * 16.0);
        // Of the distances 1 to 4, those of one bit travel once and 3 travels twice.
        close(alltoall_bruck(5, 8.0, LINK), 9.0, 5.0 * 4.0);
        close(alltoall_pairwise(1, 8.0, LINK), 0.0, 0.0);
        close(alltoall_bruck(1, 8.0, LINK), 0.0, 0.0);
        let slow_tree = AlphaBeta { beta: 2.0, ..LINK };
        let best = |n, tree| reduce_scatter_flat(8, n, LINK, tree);
        assert_eq!(best(64.0, LINK), reduce_scatter_halving(8, 64.0, LINK));
        assert_eq!(best(64.0, slow_tree), reduce_scatter_ring(8, 64.0, LINK));
        assert_eq!(reduce_scatter_flat(1, 9.0, LINK, LINK), CommTime::default());
    }

    #[test]
    fn without_a_power_of_two_there_is_a_step_before_and_after() {
        close(allreduce_doubling(5, 64.0, LINK), 6.0 + 6.0, 96.0 + 80.0);
        close(allreduce_halving(5, 64.0, LINK), 12.0 + 6.0, 60.0 + 80.0);
        close(allgather_doubling(&[2.0, 4.0, 6.0], LINK), 6.0, 5.0);
        close(allgather_ring(&[2.0, 4.0, 6.0], LINK), 6.0, 6.0);
    }

    #[test]
    fn short_vectors_double_and_long_ones_halve() {
        let best = |n| allreduce_flat(8, n, LINK, LINK);
        let (short, doubled) = (best(1.0), allreduce_doubling(8, 1.0, LINK));
        close(short, doubled.latency, doubled.transfer);
        // Links are not kept busy for what another algorithm would not send.
        let halved = allreduce_halving(8, 1.0, LINK);
        assert_eq!(short.transfer_min, halved.transfer);
        assert_eq!(best(4096.0), allreduce_halving(8, 4096.0, LINK));
        let slow_tree = AlphaBeta { beta: 2.0, ..LINK };
        let ring = allreduce_flat(8, 4096.0, LINK, slow_tree);
        assert_eq!(ring, allreduce_ring(8, 4096.0, LINK));
        assert_eq!(allreduce_flat(1, 9.0, LINK, LINK), CommTime::default());
    }

    /// DiHydrogen's `perfmodel.py` on 8 ranks: 4-byte words, 512 words doubled, a million halved.
    /// Its gamma is per word; ours per byte.
    #[test]
    fn published_constants() {
        let link = AlphaBeta {
            alpha: 1.2e-6,
            beta: 3.893e-11,
            gamma: 1.075e-13 / 4.0,
        };
        let short = allreduce_flat(8, 2048.0, link, link).total();
        let expected_short = 3.0 * (1.2e-6 + 512.0 * 4.0 * 3.893e-11 + 512.0 * 1.075e-13);
        assert!((short / expected_short - 1.0).abs() < 1e-12);
        let long = allreduce_flat(8, 4e6, link, link).total();
        let expected_long = 7.2e-6 + 1.75 * 4e6 * 3.893e-11 + 0.875 * 1e6 * 1.075e-13;
        assert!((long / expected_long - 1.0).abs() < 1e-12);
    }

    #[test]
    fn three_stages_add_up() {
        let inter = AlphaBeta {
            alpha: 10.0,
            beta: 2.0,
            gamma: 0.25,
        };
        let time = allreduce_hierarchical(2, 4, 64.0, LINK, inter);
        // In the node 2 x 9 and 48 (0.5 + 0.25) + 48 x 0.5; between two nodes 16 bytes, doubled once.
        close(time, 18.0 + 10.0, 36.0 + 24.0 + 16.0 * 2.25);
        // Of the sum between the nodes, half: one step with 8 of 16 bytes.
        let time = reduce_scatter_hierarchical(2, 4, 64.0, LINK, inter);
        close(time, 9.0 + 10.0, 36.0 + 8.0 * 2.25);
    }
}
