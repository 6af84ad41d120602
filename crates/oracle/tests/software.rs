//! Every number of a software profile moves what it should, and nothing else.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests lie outside test functions"
)]

use partita_cluster::{
    AdaptersUsed, Basis, Exchange, Exponent, Fact, Factor, KernelSplit, LayerPrecision, Machine,
    NeighborExchange, Redistribution, Share, Software, SoftwareKernels, SoftwareSums, SumFit,
};
use partita_oracle::{Costs, MachineCosts, SampleRead};
use partita_program::{
    Algorithm, Buffer, BufferId, Count, Distribution, Dtype, Kernel, KernelShape, Role, Taps,
    TensorRegion, View,
};
use partita_space::{Axis, AxisList, Bytes, BytesPerSecond, Seconds};

fn fact<T>(value: T) -> Fact<T> {
    Fact {
        value,
        basis: Basis::Assumed,
        source: "an example".to_owned(),
    }
}

/// Lassen, with rates that no shape changes.
fn machine() -> Machine {
    let mut machine = Machine::load("lassen", &[]).unwrap();
    machine.device.tiles = None;
    machine.device.efficiency.winograd = None;
    machine
}

/// This runtime, without its store.
fn own() -> Software {
    let mut software = Software::load("partita-cudnn", &[]).unwrap();
    software.data_store.value = false;
    software
}

fn read(bytes: u64) -> SampleRead {
    SampleRead {
        bytes: Bytes(bytes),
        bytes_f32: Bytes(2 * bytes),
        readers: 64,
        parts: 1,
    }
}

fn costs(software: Software) -> MachineCosts {
    MachineCosts::new(machine(), software)
}

/// Seconds of a message within a node and between nodes, a sum with its overhead, a gather, a read.
fn seconds(software: Software) -> [f64; 6] {
    let costs = costs(software);
    let members: Vec<usize> = (0..64).collect();
    let message = |to| costs.message(0, to, Bytes(1 << 20), 1.0).unwrap();
    let sum = costs.allreduce(&members, Bytes(1 << 24), 1.0).unwrap();
    let gather = costs.allgather(&members, &[Bytes(1 << 20); 64], 1.0);
    [
        message(1).seconds().0,
        message(4).seconds().0,
        sum.seconds().0,
        sum.host.0,
        gather.unwrap().seconds().0,
        costs.load(0, read(1 << 20)).unwrap().seconds.0,
    ]
}

/// Indices of what differs from this runtime.
fn moved(software: Software) -> Vec<usize> {
    let (usual, other) = (seconds(own()), seconds(software));
    (0..usual.len())
        .filter(|&at| usual[at] != other[at])
        .collect()
}

#[test]
fn each_number_moves_its_part_alone() {
    assert!(moved(own()).is_empty());
    let slow = |latency| Exchange {
        latency: fact(Seconds(latency)),
        bandwidth: fact(BytesPerSecond(1e9)),
    };
    let mut software = own();
    software.exchange = Some(NeighborExchange {
        intra: slow(1e-3),
        inter: slow(2e-3),
    });
    assert_eq!(moved(software.clone()), [0, 1]);
    let [near, far, ..] = seconds(software);
    let transfer = f64::from(1 << 20) / 1e9;
    assert!((near - 1e-3 - transfer).abs() < 1e-12 && (far - 2e-3 - transfer).abs() < 1e-12);

    let mut software = own();
    let mut sums = SoftwareSums {
        occupancy: Some(fact(Share(0.5))),
        fit: None,
    };
    software.allreduce = Some(sums.clone());
    assert_eq!(moved(software.clone()), [3]);
    sums.fit = Some(SumFit {
        latency_intra: fact(Seconds(1e-5)),
        latency_inter: fact(Seconds(1e-5)),
        adapters: fact(AdaptersUsed::AtMost(1)),
        growth: Some(fact(Share(0.5))),
    });
    software.allreduce = Some(sums);
    assert_eq!(moved(software.clone()), [2, 3]);
    // 2 lg p latency, and twice the bytes over one of two adapters, by the root of 16 nodes.
    let sum = seconds(software)[2];
    let expected = 12.0 * 1e-5 + 2.0 * 63.0 / 64.0 * f64::from(1 << 24) / 12.5e9 * 4.0;
    assert!((sum / expected - 1.0).abs() < 1e-9, "{sum} {expected}");

    let mut software = own();
    software.redistribution = Some(Redistribution {
        backward: fact(Factor(0.5)),
    });
    assert_eq!(moved(software.clone()), [4]);
    assert!((seconds(software)[4] / seconds(own())[4] - 1.5).abs() < 1e-9);
}

#[test]
fn a_data_store_sends_samples_over_the_network() {
    let mut software = own();
    software.data_store.value = true;
    assert_eq!(moved(software.clone()), [5]);
    // Four ranks of a node share 25 GB/s for what is not in its memory, and copy at 75 GB/s.
    let mebibyte = f64::from(1 << 20);
    let expected = 1.2e-6 + 4.0 * 60.0 / 64.0 * mebibyte / 25e9 + mebibyte / 75e9;
    assert!((seconds(software.clone())[5] - expected).abs() < 1e-12);
    // It needs no file system.
    let mut lacking = machine();
    lacking.io = None;
    let load = |software| MachineCosts::new(lacking.clone(), software).load(0, read(1));
    assert!(load(software).is_ok() && load(own()).is_err());
}

#[test]
fn what_was_measured_on_the_machine_comes_first() {
    let lbann = Software::load("lbann", &[]).unwrap();
    let mut measured = machine();
    measured.exchange = Some(Exchange {
        latency: fact(Seconds(1e-6)),
        bandwidth: fact(BytesPerSecond(1e12)),
    });
    let message = |machine| {
        let costs = MachineCosts::new(machine, lbann.clone());
        costs.message(0, 4, Bytes(1000), 1.0).unwrap()
    };
    assert_eq!(message(machine()).latency, Seconds(300e-6));
    assert_eq!(message(measured).latency, Seconds(1e-6));
}

#[derive(Clone, Copy)]
enum Kind {
    Convolution,
    BatchNorm,
    GroupNorm,
    Sum,
    Fill,
}

/// The kernel over the first three buffers, of these extents.
fn kernel_of(kind: Kind, [x, w, y]: [[usize; 5]; 3]) -> Kernel {
    let view = |at: usize, extent| View {
        buffer: BufferId(at as u32),
        start: [0; 5],
        extent,
    };
    match kind {
        Kind::BatchNorm => Kernel::BatchNormStatistics {
            x: view(2, y),
            sums: view(2, y),
            accumulate: false,
        },
        Kind::GroupNorm => Kernel::GroupNormStatistics {
            x: view(2, y),
            sums: view(2, y),
        },
        Kind::Fill => Kernel::Fill {
            target: view(2, y),
            value: 0.0,
        },
        Kind::Sum => Kernel::Add {
            a: view(2, y),
            b: view(2, y),
            y: view(2, y),
        },
        Kind::Convolution => Kernel::ConvolutionForward {
            x: view(0, x),
            w: view(1, w),
            bias: None,
            y: view(2, y),
            taps: Taps {
                kernel: [1, 3, 3],
                stride: [1; 3],
                dilation: [1; 3],
            },
            groups: 1,
            accumulate: false,
        },
    }
}

/// A convolution whose filters are split `ways` ways, or a batch norm of its output.
fn kernel(ways: usize, kind: Kind, software: Software) -> f64 {
    kernel_with(ways, kind, &costs(software))
}

fn kernel_with(ways: usize, kind: Kind, costs: &MachineCosts) -> f64 {
    let buffer = |extent: [usize; 5], split: bool| {
        let mut shape = extent;
        let mut axes = [AxisList::NONE; 5];
        if split {
            shape[4] *= ways;
            axes[4] = AxisList::of([Axis::Filter]);
        }
        let distribution = Distribution {
            axes,
            ..Distribution::replicated(shape)
        };
        Buffer {
            name: "b".to_owned(),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims: extent,
            tensor: Some(TensorRegion {
                id: 0,
                distribution,
                halo_low: [0; 5],
                redundant: false,
            }),
            offset: Bytes(0),
        }
    };
    let (x, y) = ([8, 1, 34, 34, 256], [8, 1, 32, 32, 256 / ways]);
    let w = [1, 3, 3, 256, 256 / ways];
    let buffers = [buffer(x, false), buffer(w, true), buffer(y, true)];
    let kernel = kernel_of(kind, [x, w, y]);
    let shape = KernelShape {
        kernel: &kernel,
        buffers: &buffers,
    };
    let count = Count::of_kernel(&kernel, &buffers);
    let cost = costs.kernel(&shape, &Algorithm::unpinned(), &count);
    // Without its start.
    cost.unwrap().alone.0 - 5e-6
}

/// The own software with other kernels.
fn kernels(change: impl FnOnce(&mut SoftwareKernels)) -> Software {
    let mut software = own();
    change(&mut software.kernels);
    software
}

#[test]
fn kernels_of_split_layers_fall_short_by_their_exponent() {
    let with = |split: KernelSplit| kernels(|it| it.split = split);
    let whole = kernel(1, Kind::Convolution, own());
    assert!((kernel(4, Kind::Convolution, own()) / whole - 0.25).abs() < 1e-6);
    let filter = |exponent| KernelSplit {
        filter: Some(fact(Exponent(exponent))),
        ..KernelSplit::default()
    };
    // Not faster at all, or by the root.
    assert!((kernel(4, Kind::Convolution, with(filter(1.0))) / whole - 1.0).abs() < 1e-6);
    assert!((kernel(4, Kind::Convolution, with(filter(0.5))) / whole - 0.5).abs() < 1e-6);
    assert!((kernel(1, Kind::Convolution, with(filter(1.0))) / whole - 1.0).abs() < 1e-6);
    let other = KernelSplit {
        channel: Some(fact(Exponent(1.0))),
        space: Some(fact(Exponent(1.0))),
        ..KernelSplit::default()
    };
    assert!((kernel(4, Kind::Convolution, with(other)) / whole - 0.25).abs() < 1e-6);
}

#[test]
fn batch_norms_take_their_factor() {
    let software = kernels(|it| it.batch_norm = Some(fact(Factor(4.0))));
    let ratio = kernel(1, Kind::BatchNorm, software.clone()) / kernel(1, Kind::BatchNorm, own());
    assert!((ratio - 4.0).abs() < 1e-6, "{ratio}");
    assert_eq!(
        kernel(1, Kind::Convolution, software),
        kernel(1, Kind::Convolution, own())
    );
}

#[test]
fn group_norms_take_their_factor() {
    let software = kernels(|it| it.group_norm = Some(fact(Factor(2.0))));
    let ratio = kernel(1, Kind::GroupNorm, software.clone()) / kernel(1, Kind::GroupNorm, own());
    assert!((ratio - 2.0).abs() < 1e-6, "{ratio}");
    let norm = |software| kernel(1, Kind::BatchNorm, software);
    assert_eq!(norm(software), norm(own()));
}

#[test]
fn small_kernels_take_what_the_framework_takes_but_padding_does_not() {
    let with = |start: f64| kernels(|it| it.start = Some(fact(Seconds(start))));
    for kind in [Kind::Convolution, Kind::GroupNorm, Kind::Sum] {
        let more = kernel(1, kind, with(35e-6)) - kernel(1, kind, own());
        assert!((more - 30e-6).abs() < 1e-12, "{more}");
    }
    assert_eq!(
        kernel(1, Kind::Fill, with(35e-6)),
        kernel(1, Kind::Fill, own())
    );
}

#[test]
fn windows_of_3_x_3_save_arithmetic_in_f32_alone() {
    let mut saving = machine();
    saving.device.efficiency.winograd = Some(fact(Share(2.0)));
    let seconds = |machine: Machine, precision| {
        let costs = MachineCosts::new(machine, own());
        kernel_with(
            1,
            Kind::Convolution,
            &costs.with_precision(precision).unwrap(),
        )
    };
    let ratio = |precision| seconds(machine(), precision) / seconds(saving.clone(), precision);
    assert!((ratio(LayerPrecision::F32) - 2.0).abs() < 1e-6);
    assert_eq!(ratio(LayerPrecision::F16), 1.0);
}

#[test]
fn sums_are_free_where_batch_norms_compute_them() {
    let with = |factor: f64| kernels(|it| it.pointwise = Some(fact(Factor(factor))));
    let ratio = kernel(1, Kind::Sum, with(0.5)) / kernel(1, Kind::Sum, own());
    assert!((ratio - 0.5).abs() < 1e-6, "{ratio}");
    assert!(kernel(1, Kind::Sum, with(0.0)).abs() < 1e-12);
    let norm = |software| kernel(1, Kind::BatchNorm, software);
    assert_eq!(norm(with(0.0)), norm(own()));
}
