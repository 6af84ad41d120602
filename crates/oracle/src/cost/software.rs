//! What software adds to the costs of a machine.

use super::collective::CommTime;
use partita_cluster::{Allreduce, Exchange, LinkKind, Machine, Software};
use partita_program::{Family, KernelShape};
use partita_space::{Axis, Seconds};

/// The costs of a software profile on a machine. Fits in the machine's file were measured there and come before
/// those of the profile.
#[derive(Clone, Debug)]
pub struct SoftwareCosts {
    software: Software,
    /// The fit of the allreduce on this machine.
    allreduce: Option<Allreduce>,
    /// Messages between neighbors within a node and between nodes, where they were measured on the machine.
    exchange: Option<Exchange>,
}

impl SoftwareCosts {
    /// Of a profile on a machine.
    pub fn new(machine: &Machine, software: Software) -> Self {
        Self {
            allreduce: software.allreduce_on(machine),
            exchange: machine.exchange.clone(),
            software,
        }
    }

    /// The profile.
    pub fn software(&self) -> &Software {
        &self.software
    }

    /// The fit that replaces the formulas of the allreduce, if there is one.
    pub fn allreduce(&self) -> Option<&Allreduce> {
        self.allreduce.as_ref()
    }

    /// The fit of messages over a kind of link, if there is one.
    pub fn exchange(&self, kind: LinkKind) -> Option<&Exchange> {
        let neighbors = self.software.exchange.as_ref();
        let of_profile = match kind {
            LinkKind::Same | LinkKind::Intra => neighbors.map(|neighbors| &neighbors.intra),
            LinkKind::Inter => neighbors.map(|neighbors| &neighbors.inter),
        };
        self.exchange.as_ref().or(of_profile)
    }

    /// Share of a sum's time in which it occupies the device.
    pub fn occupancy(&self) -> f64 {
        let of_machine = self
            .allreduce
            .as_ref()
            .and_then(|fit| fit.occupancy.as_ref());
        let sums = self.software.allreduce.as_ref();
        let of_profile = sums.and_then(|sums| sums.occupancy.as_ref());
        of_machine.or(of_profile).map_or(0.0, |share| share.value.0)
    }

    /// Factor on the arithmetic of a kernel, or on the traffic of one that memory bounds, by which it is slower
    /// than its shape at the rates of the device.
    ///
    /// For a layer that is split k ways it is k^e, where e is the exponent of the split.
    pub fn slowdown(&self, shape: &KernelShape<'_>) -> f64 {
        let split = &self.software.kernels.split;
        let exponents = [
            (&split.filter, &[Axis::Filter][..]),
            (&split.channel, &[Axis::Channel][..]),
            (&split.space, &[Axis::Depth, Axis::Height, Axis::Width][..]),
        ];
        let factor = match shape.kernel.parts()[0].family() {
            Family::BatchNorm => self.software.kernels.batch_norm.as_ref(),
            Family::Pointwise => self.software.kernels.pointwise.as_ref(),
            Family::LayerNorm | Family::GroupNorm => self.software.kernels.group_norm.as_ref(),
            Family::Fused
            | Family::Contents
            | Family::Convolution
            | Family::Pool
            | Family::Resample
            | Family::Linear
            | Family::Sequence
            | Family::Loss
            | Family::Update => None,
        };
        let mut slowdown = factor.map_or(1.0, |factor| factor.value.0);
        for (exponent, axes) in exponents {
            if let Some(exponent) = exponent {
                slowdown *= ways(shape, axes).powf(exponent.value.0);
            }
        }
        slowdown
    }

    /// What any kernel takes, however small, if the software says so. Updates are taken to be computed together, and
    /// padding within the kernel that reads it.
    pub fn start(&self, shape: &KernelShape<'_>) -> Option<Seconds> {
        let start = self.software.kernels.start.as_ref()?;
        let is_own = match shape.kernel.parts()[0].family() {
            Family::Update | Family::Contents => false,
            Family::BatchNorm
            | Family::Pointwise
            | Family::Fused
            | Family::Convolution
            | Family::Pool
            | Family::Resample
            | Family::LayerNorm
            | Family::GroupNorm
            | Family::Linear
            | Family::Sequence
            | Family::Loss => true,
        };
        is_own.then_some(start.value)
    }

    /// A gather with the way back.
    pub fn redistribution(&self, time: CommTime) -> CommTime {
        let Some(cost) = &self.software.redistribution else {
            return time;
        };
        let times = 1.0 + cost.backward.value.0;
        CommTime {
            latency: times * time.latency,
            transfer: times * time.transfer,
            transfer_min: times * time.transfer_min,
        }
    }
}

/// Into how many parts these axes split the tensors of a kernel: the most of any dim of any operand.
fn ways(shape: &KernelShape<'_>, axes: &[Axis]) -> f64 {
    let mut most = 1.0_f64;
    for part in shape.kernel.parts() {
        for (view, _) in part.accesses() {
            let Some(tensor) = &shape.buffers[view.buffer.0 as usize].tensor else {
                continue;
            };
            let distribution = &tensor.distribution;
            for (dim, split_by) in distribution.axes.iter().enumerate() {
                let is_split = split_by.iter().any(|axis| axes.contains(&axis));
                if is_split && view.extent[dim] > 0 {
                    let ratio = distribution.shape[dim] as f64 / view.extent[dim] as f64;
                    most = most.max(ratio);
                }
            }
        }
    }
    most
}
