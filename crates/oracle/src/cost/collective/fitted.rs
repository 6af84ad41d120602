//! Reductions with fitted parameters, as a machine file gives them in `[allreduce]`.

use super::{CommTime, log2_ceil};

/// Ring allreduce with fitted parameters: `2 (p-1) (alpha + n beta / p)`.
///
/// Source: ParaDL technical report (October 2020), section on communication primitives.
pub fn allreduce_ring(p: usize, n: f64, alpha: f64, beta: f64) -> CommTime {
    let steps = 2.0 * p.saturating_sub(1) as f64;
    CommTime::new(steps * alpha, steps * n / p.max(1) as f64 * beta)
}

/// Tree allreduce with fitted parameters: the latency of a tree up and down, the bytes of a ring,
/// `2 lg p alpha + 2 (p-1)/p n beta`. The caller lets beta grow with the group.
///
/// Source: NCCL 2.4 takes double binary trees for
/// latency (Jeaugey, Massively Scale Your Deep Learning Training with NCCL 2.4, 2019).
pub fn allreduce_tree(p: usize, n: f64, alpha: f64, beta: f64) -> CommTime {
    let p = p.max(1);
    CommTime::new(
        2.0 * log2_ceil(p) * alpha,
        2.0 * (p - 1) as f64 / p as f64 * n * beta,
    )
}

/// The first half of [`allreduce_tree`].
pub fn reduce_scatter_tree(p: usize, n: f64, alpha: f64, beta: f64) -> CommTime {
    let both = allreduce_tree(p, n, alpha, beta);
    CommTime::new(both.latency / 2.0, both.transfer / 2.0)
}

/// The first half of [`allreduce_ring`]: `(p-1) (alpha + n beta / p)`.
pub fn reduce_scatter_ring(p: usize, n: f64, alpha: f64, beta: f64) -> CommTime {
    let both = allreduce_ring(p, n, alpha, beta);
    CommTime::new(both.latency / 2.0, both.transfer / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(time: CommTime, latency: f64, transfer: f64) {
        assert!((time.latency - latency).abs() < 1e-9, "{time:?}");
        assert!((time.transfer - transfer).abs() < 1e-9, "{time:?}");
    }

    #[test]
    fn hand_values_of_fits() {
        close(reduce_scatter_ring(4, 64.0, 3.0, 0.5), 9.0, 24.0);
        close(allreduce_ring(4, 64.0, 3.0, 0.5), 18.0, 48.0);
        close(allreduce_tree(8, 64.0, 3.0, 0.5), 18.0, 56.0);
        close(reduce_scatter_tree(8, 64.0, 3.0, 0.5), 9.0, 28.0);
        close(allreduce_tree(1, 64.0, 3.0, 0.5), 0.0, 0.0);
    }
}
