//! A machine as a software profile uses it: other rates of kernels, and links through the memory of the host.

use super::{GpuKernels, Software};
use crate::machine::{
    Basis, ConvEfficiency, Device, Efficiency, Exchange, Fact, Machine, ProcessorKind, Rates, Share,
};
use partita_space::{BytesPerSecond, Seconds};

impl Software {
    /// The machine with the rates and links that this software reaches.
    ///
    /// Machines of processors, and those whose kernels and links were measured, stay as they are.
    pub fn on(&self, mut machine: Machine) -> Machine {
        if machine.device.kind != ProcessorKind::Gpu || machine.calibration.is_some() {
            return machine;
        }
        if let Some(kernels) = &self.kernels.gpu {
            kernels.apply(&mut machine.device);
        }
        if let Some(staging) = &self.staging {
            stage(&mut machine, staging);
        }
        machine
    }
}

impl GpuKernels {
    fn apply(&self, device: &mut Device) {
        let f32_peak = Fact {
            basis: Basis::Derived,
            source: "computed in f32".to_owned(),
            ..device.peak_flops_f32.clone()
        };
        device.rates = Rates {
            tf32: None,
            bf16: Some(f32_peak.clone()),
            f16: Some(f32_peak),
        };
        device.kernel_start = Some(self.start.clone());
        // Tiles of the vendor's libraries.
        device.tiles = None;
        device.efficiency = Efficiency::in_f32(
            in_all_passes(&self.conv2d),
            in_all_passes(&self.conv3d),
            self.memory_bound.clone(),
        );
    }
}

fn in_all_passes(share: &Fact<Share>) -> ConvEfficiency {
    ConvEfficiency {
        forward: share.clone(),
        backward_data: share.clone(),
        backward_weight: share.clone(),
        saturation: None,
    }
}

/// Sends all messages through the memory of the hosts: each takes two copies beside the link.
fn stage(machine: &mut Machine, staging: &Exchange) {
    let latency = |link: &mut Fact<Seconds>| {
        link.value += staging.latency.value;
        link.basis = link.basis.max(staging.latency.basis);
    };
    let bandwidth = |link: &mut Fact<BytesPerSecond>| {
        if staging.bandwidth.value < link.value {
            link.clone_from(&staging.bandwidth);
        }
    };
    let devices = machine.devices_per_node.value as f64;
    let links = &mut machine.links;
    latency(&mut links.intra.latency);
    bandwidth(&mut links.intra.bandwidth);
    links.intra.bus_bandwidth = None;
    links.intra.kind = None;
    latency(&mut links.inter.latency);
    bandwidth(&mut links.inter.bandwidth);
    links.inter.reduction = None;
    let of_node = BytesPerSecond(devices * staging.bandwidth.value.0);
    if of_node < links.inter.node_bandwidth.value {
        links.inter.node_bandwidth = Fact {
            value: of_node,
            ..staging.bandwidth.clone()
        };
    }
}
