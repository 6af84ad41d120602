//! Spreads from the basis of the facts of a machine, and from the errors of fits.

use super::{Skew, Spread, TimeSource, Uncertainty, table};
use crate::cost::SoftwareCosts;
use partita_cluster::{Basis, ConvEfficiency, LayerPrecision, LinkKind, Machine};

/// Standard deviation of a normal distribution by its mean absolute deviation.
const SIGMA_BY_MEAN: f64 = 1.2533;

/// Of costs measured on the machine itself, within one node.
pub fn of_measurements() -> Uncertainty {
    Uncertainty {
        sources: TimeSource::ALL.map(|source| of_measurement(source, table::ESTIMATED_KERNEL)),
        model: table::MODEL_HERE,
        split: Skew::even(0.0),
        own: table::OWN_HERE,
        assumed: Uncertainty::NONE.assumed,
    }
}

/// What the costs of a machine file rest on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The software that runs on it.
    pub software: &'a SoftwareCosts,
    /// Precision of the layers.
    pub precision: LayerPrecision,
}

/// Of software on the machine of a file, for a program on this many nodes.
pub fn of_machine(facts: Facts<'_>, nodes: usize) -> Uncertainty {
    let Facts {
        machine, software, ..
    } = facts;
    let sources = TimeSource::ALL.map(|source| of_source(facts, nodes, source));
    let assumed = TimeSource::ALL.map(|source| basis(facts, source) == Some(Basis::Assumed));
    if machine.calibration.is_some() && nodes <= 1 {
        return Uncertainty {
            sources,
            assumed,
            ..of_measurements()
        };
    }
    let doublings = (nodes.max(1) as f64).log2();
    let by_file = table::MODEL_BY_FILE;
    Uncertainty {
        sources,
        model: Skew {
            up: by_file
                .up
                .hypot(table::MODEL_PER_DOUBLING_OF_NODES * doublings),
            ..by_file
        },
        split: if has_fitted_messages(machine, software) {
            Skew::even(0.0)
        } else {
            table::UNFITTED_SPLIT
        },
        own: table::OWN_BY_FILE,
        assumed,
    }
}

/// Whether messages were fitted to runs of the software whose steps are predicted.
fn has_fitted_messages(machine: &Machine, software: &SoftwareCosts) -> bool {
    let exchange = software.exchange(LinkKind::Intra);
    let calibration = machine.calibration.as_ref();
    exchange.is_some_and(|fit| match fit.latency.basis {
        Basis::Measured | Basis::Fitted => true,
        Basis::Stated | Basis::Derived | Basis::Assumed => false,
    }) || calibration.is_some_and(|one| one.message.is_some())
}

fn shared(shared: f64) -> Spread {
    Spread {
        shared,
        single: 0.0,
    }
}

/// `estimate` is the mean relative error of the estimate of a kernel.
fn of_measurement(source: TimeSource, estimate: f64) -> Spread {
    let single = SIGMA_BY_MEAN * estimate;
    match source {
        TimeSource::MeasuredKernels => Spread {
            shared: table::MEASURED_KERNELS,
            single: table::MEASURED_KERNEL,
        },
        TimeSource::EstimatedKernels => Spread {
            shared: table::ESTIMATED_KERNELS,
            single,
        },
        TimeSource::ExtrapolatedKernels
        // Such kernels have no formula where others are measured.
        | TimeSource::Convolutions2d
        | TimeSource::Convolutions3d
        | TimeSource::MemoryBoundKernels => Spread {
            shared: table::EXTRAPOLATION * table::ESTIMATED_KERNELS,
            single: table::EXTRAPOLATION * single,
        },
        TimeSource::HostOverhead => shared(table::HOST_OVERHEAD),
        TimeSource::MessageLatencyWithin
        | TimeSource::MessageTransferWithin
        | TimeSource::MessageLatencyBetween
        | TimeSource::MessageTransferBetween
        | TimeSource::CollectiveLatencyWithin
        | TimeSource::CollectiveTransferWithin
        | TimeSource::CollectiveLatencyBetween
        | TimeSource::CollectiveTransferBetween
        | TimeSource::Reads => shared(table::FITTED_LINE),
    }
}

fn of_source(facts: Facts<'_>, nodes: usize, source: TimeSource) -> Spread {
    let Facts {
        machine,
        software,
        precision,
    } = facts;
    let shares = |spatial_dims| {
        let efficiency = &machine.device.efficiency;
        convolutions(machine, efficiency.by_precision(precision, spatial_dims))
    };
    let calibration = machine.calibration.as_ref();
    let message = calibration.and_then(|one| one.message.as_ref());
    let collectives = calibration.filter(|one| !one.collectives.is_empty());
    let fitted = shared(table::FITTED_LINE);
    match source {
        TimeSource::MeasuredKernels
        | TimeSource::EstimatedKernels
        | TimeSource::ExtrapolatedKernels => {
            let error = calibration.map(|one| one.validation.mean_by_time);
            of_measurement(source, error.unwrap_or(table::ESTIMATED_KERNEL))
        }
        TimeSource::Convolutions2d => shares(2),
        TimeSource::Convolutions3d => shares(3),
        TimeSource::MemoryBoundKernels => {
            let device = &machine.device;
            let reached = table::rate(device.efficiency.memory_bound.basis);
            shared(reached.hypot(table::peak(device.memory_bandwidth.basis)))
        }
        TimeSource::HostOverhead => shared(table::HOST_OVERHEAD),
        TimeSource::MessageLatencyWithin | TimeSource::MessageTransferWithin
            if message.is_some() =>
        {
            fitted
        }
        TimeSource::CollectiveLatencyWithin | TimeSource::CollectiveTransferWithin
            if collectives.is_some() =>
        {
            fitted
        }
        TimeSource::MessageLatencyWithin | TimeSource::CollectiveLatencyWithin => {
            shared(table::latency(basis_of_link(machine, software, source)))
        }
        TimeSource::MessageTransferWithin | TimeSource::CollectiveTransferWithin => {
            shared(table::bandwidth(basis_of_link(machine, software, source)))
        }
        TimeSource::MessageLatencyBetween | TimeSource::CollectiveLatencyBetween => between(
            table::latency(basis_of_link(machine, software, source)),
            nodes,
        ),
        TimeSource::MessageTransferBetween | TimeSource::CollectiveTransferBetween => between(
            table::bandwidth(basis_of_link(machine, software, source)),
            nodes,
        ),
        TimeSource::Reads => {
            let least = basis(facts, source).unwrap_or(Basis::Assumed);
            if software.software().data_store.value {
                between(table::bandwidth(least), nodes)
            } else {
                shared(table::reads(least))
            }
        }
    }
}

/// The least sure of the facts that a source rests on; none for what was measured or follows from no fact.
fn basis(facts: Facts<'_>, source: TimeSource) -> Option<Basis> {
    let Facts {
        machine,
        software,
        precision,
    } = facts;
    let device = &machine.device;
    let calibration = machine.calibration.as_ref();
    let shares = |spatial_dims| device.efficiency.by_precision(precision, spatial_dims);
    match source {
        TimeSource::MeasuredKernels
        | TimeSource::EstimatedKernels
        | TimeSource::ExtrapolatedKernels
        | TimeSource::HostOverhead => None,
        TimeSource::Convolutions2d => Some(least_sure(shares(2))),
        TimeSource::Convolutions3d => Some(least_sure(shares(3))),
        TimeSource::MemoryBoundKernels => {
            let reached = device.efficiency.memory_bound.basis;
            Some(reached.max(device.memory_bandwidth.basis))
        }
        TimeSource::MessageLatencyWithin | TimeSource::MessageTransferWithin
            if calibration.is_some_and(|one| one.message.is_some()) =>
        {
            None
        }
        TimeSource::CollectiveLatencyWithin | TimeSource::CollectiveTransferWithin
            if calibration.is_some_and(|one| !one.collectives.is_empty()) =>
        {
            None
        }
        TimeSource::MessageLatencyWithin
        | TimeSource::MessageTransferWithin
        | TimeSource::MessageLatencyBetween
        | TimeSource::MessageTransferBetween
        | TimeSource::CollectiveLatencyWithin
        | TimeSource::CollectiveTransferWithin
        | TimeSource::CollectiveLatencyBetween
        | TimeSource::CollectiveTransferBetween => Some(basis_of_link(machine, software, source)),
        TimeSource::Reads if software.software().data_store.value => {
            let inter = &machine.links.inter;
            Some(inter.bandwidth.basis.max(inter.node_bandwidth.basis))
        }
        TimeSource::Reads => {
            let io = machine.io.as_ref();
            io.map(|io| io.bandwidth_total.basis.max(io.bandwidth_per_node.basis))
        }
    }
}

/// The least sure share of the three passes of convolutions.
fn least_sure(shares: &ConvEfficiency) -> Basis {
    let [forward, data, weight] = [
        &shares.forward,
        &shares.backward_data,
        &shares.backward_weight,
    ]
    .map(|fact| fact.basis);
    forward.max(data).max(weight)
}

/// Rates of convolutions: their shares, of which the least sure counts, and the peak.
fn convolutions(machine: &Machine, shares: &ConvEfficiency) -> Spread {
    let reached = table::rate(least_sure(shares));
    shared(reached.hypot(table::peak(machine.device.peak_flops_f32.basis)))
}

/// What was measured on few nodes holds less on many.
fn between(spread: f64, nodes: usize) -> Spread {
    let doublings = (nodes.max(1) as f64).log2();
    shared(spread.hypot(table::PER_DOUBLING_OF_NODES * doublings))
}

/// Basis of the latency or bandwidth of communication: of the fits that replace the links, if there are some.
fn basis_of_link(machine: &Machine, software: &SoftwareCosts, source: TimeSource) -> Basis {
    let (intra, inter) = (&machine.links.intra, &machine.links.inter);
    let exchange = |kind| software.exchange(kind);
    let allreduce = software.allreduce();
    let within = allreduce.map(|fits| &fits.intra);
    let among = allreduce.map(|fits| &fits.inter);
    match source {
        TimeSource::MessageLatencyWithin => {
            exchange(LinkKind::Intra).map_or(intra.latency.basis, |fit| fit.latency.basis)
        }
        TimeSource::MessageTransferWithin => {
            exchange(LinkKind::Intra).map_or(intra.bandwidth.basis, |fit| fit.bandwidth.basis)
        }
        TimeSource::MessageLatencyBetween => {
            exchange(LinkKind::Inter).map_or(inter.latency.basis, |fit| fit.latency.basis)
        }
        TimeSource::MessageTransferBetween => {
            exchange(LinkKind::Inter).map_or(inter.bandwidth.basis, |fit| fit.bandwidth.basis)
        }
        TimeSource::CollectiveLatencyWithin => {
            within.map_or(intra.latency.basis, |fit| fit.latency.basis)
        }
        TimeSource::CollectiveTransferWithin => {
            within.map_or(intra.bandwidth.basis, |fit| fit.bandwidth.basis)
        }
        TimeSource::CollectiveLatencyBetween => {
            among.map_or(inter.latency.basis, |fit| fit.latency.basis)
        }
        TimeSource::CollectiveTransferBetween => among.map_or(inter.bandwidth.basis, |fit| {
            let growth = fit.growth.as_ref();
            growth.map_or(fit.bandwidth.basis, |growth| growth.basis)
        }),
        TimeSource::MeasuredKernels
        | TimeSource::EstimatedKernels
        | TimeSource::ExtrapolatedKernels
        | TimeSource::Convolutions2d
        | TimeSource::Convolutions3d
        | TimeSource::MemoryBoundKernels
        | TimeSource::HostOverhead
        | TimeSource::Reads => Basis::Assumed,
    }
}
