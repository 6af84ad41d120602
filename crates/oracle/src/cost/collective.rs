//! Costs of collectives, by the library that runs them.

pub mod fitted;
pub mod mpi;
pub mod nccl;

use std::ops::Add;

/// The two terms of a time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommTime {
    /// The part that is independent of the bytes.
    pub latency: f64,
    /// The time of the bytes that are sent and reduced.
    pub transfer: f64,
    /// The least `transfer` of the algorithms of which this is the fastest: what keeps links busy in any case.
    pub transfer_min: f64,
}

impl CommTime {
    /// Of one algorithm.
    pub fn new(latency: f64, transfer: f64) -> Self {
        Self {
            latency,
            transfer,
            transfer_min: transfer,
        }
    }

    /// The sum of both.
    pub fn total(self) -> f64 {
        self.latency + self.transfer
    }

    /// The shorter of the two.
    pub fn min(self, other: Self) -> Self {
        let faster = if other.total() < self.total() {
            other
        } else {
            self
        };
        Self {
            transfer_min: self.transfer_min.min(other.transfer_min),
            ..faster
        }
    }
}

impl Add for CommTime {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            latency: self.latency + other.latency,
            transfer: self.transfer + other.transfer,
            transfer_min: self.transfer_min + other.transfer_min,
        }
    }
}

/// Parameters of the slowest link that an algorithm uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlphaBeta {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte sent.
    pub beta: f64,
    /// Seconds per byte reduced.
    pub gamma: f64,
}

/// Steps of a tree over this many members.
pub(crate) fn log2_ceil(p: usize) -> f64 {
    f64::from(p.max(1).next_power_of_two().ilog2())
}
