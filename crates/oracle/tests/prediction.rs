//! Predictions, costs of machines, and comparisons with traces.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests lie outside test functions"
)]

use crate::fixed_costs;

use fixed_costs::{FixedCosts, spatial, view};
use partita_cluster::LinkFit;
use partita_oracle::{
    AlltoallBlocks, CompareError, Contention, CostError, Costs, KernelCost, MachineCosts,
    MeasuredCosts, Mode, Prediction, PredictionFault, Progress, SampleRead, SimulateError, compare,
    predict, simulate,
};
use partita_program::{Algorithm, Count, Dtype, Kernel, KernelShape, Taps, View};
use partita_run::Trace;
use partita_space::{Bytes, Seconds};
use std::collections::BTreeMap;

const COSTS: FixedCosts = FixedCosts {
    contention: Contention::Units,
    progress: Progress::Queued,
    per_node: 4,
    host: 0.0,
};

#[test]
fn a_prediction_has_the_promised_keys_and_reads_back() {
    let program = spatial([2, 4, 1, 1, 1, 1, 1], 4, 5);
    let prediction = predict(&program, &COSTS, Mode::Classes, 2, true).unwrap();
    let json = serde_json::to_value(&prediction).unwrap();
    for key in [
        "digest",
        "ranks",
        "iteration_seconds",
        "interval",
        "samples_per_second",
        "memory_bytes_max",
        "breakdown",
        "bottleneck",
        "limits",
    ] {
        assert!(json.get(key).is_some(), "{key}");
    }
    let parts = json["breakdown"].as_object().unwrap();
    assert_eq!(parts.len(), 8);
    let sum: f64 = parts.values().map(|value| value.as_f64().unwrap()).sum();
    assert!((sum / prediction.iteration_seconds.0 - 1.0).abs() < 1e-12);
    let expected = 8.0 / prediction.iteration_seconds.0;
    assert_eq!(prediction.samples_per_second, expected);
    assert_eq!(prediction.memory_bytes_max, Bytes(256));
    let mut again: Prediction = serde_json::from_value(json).unwrap();
    // Not in files.
    again.uncertainty = prediction.uncertainty.clone();
    assert_eq!(again, prediction);
    assert!(prediction.bottleneck.contains("% of the critical path"));
    assert!(prediction.limits.len() >= 3, "{:?}", prediction.limits);
    let busiest: f64 = prediction.by_kind.values().map(|seconds| seconds.0).sum();
    assert!(busiest > 0.0 && busiest < prediction.iteration_seconds.0);
}

/// Traces of all ranks over two steps, every duration stretched.
fn stretched(simulation: &partita_oracle::Simulation, factor: f64) -> Vec<Trace> {
    let mut traces: Vec<Trace> = simulation.traces.iter().flatten().cloned().collect();
    for event in traces.iter_mut().flat_map(|trace| &mut trace.events) {
        event.start = event.start * factor;
        event.end = event.end * factor;
    }
    traces
}

#[test]
fn a_comparison_finds_a_slowdown_and_refuses_other_programs() {
    let program = spatial([1, 4, 1, 1, 1, 1, 1], 4, 5);
    let prediction = predict(&program, &COSTS, Mode::Classes, 1, true).unwrap();
    let simulation = simulate(&program, &COSTS, Mode::Ranks, 1).unwrap();
    let digest = program.digest();

    let exact = compare(&prediction, &program, &digest, &stretched(&simulation, 1.0)).unwrap();
    assert!((exact.iteration.accuracy - 1.0).abs() < 1e-9);
    for (kind, pair) in &exact.by_kind {
        assert!((pair.accuracy - 1.0).abs() < 1e-9, "{kind} {pair:?}");
    }
    let slower = compare(
        &prediction,
        &program,
        &digest,
        &stretched(&simulation, 1.25),
    )
    .unwrap();
    assert!((slower.iteration.accuracy - 0.8).abs() < 1e-9);
    assert!((slower.compute.accuracy - 0.8).abs() < 1e-9);
    assert!((slower.by_phase["backward"].accuracy - 0.8).abs() < 1e-9);
    assert_eq!((slower.steps, slower.tasks_unmeasured), (1, 0));

    let other = spatial([1, 4, 1, 1, 1, 1, 1], 4, 6);
    let traces = stretched(&simulation, 1.0);
    let others = [
        compare(&prediction, &other, &digest, &traces),
        compare(&prediction, &program, &other.digest(), &traces),
    ];
    for comparison in others {
        assert!(matches!(comparison, Err(CompareError::Digests { .. })));
    }
    assert_eq!(
        compare(&prediction, &program, &digest, &[]),
        Err(CompareError::NoTraces)
    );
    for tasks in [None, Some(Vec::new())] {
        let bare = Prediction {
            tasks,
            ..prediction.clone()
        };
        assert_eq!(
            compare(&bare, &program, &digest, &traces),
            Err(CompareError::Prediction(PredictionFault::NoTasks))
        );
    }
}

#[test]
fn measured_costs_refuse_what_was_not_measured() {
    let program = spatial([1, 2, 1, 1, 1, 1, 1], 2, 5);
    let mut costs = MeasuredCosts::default();
    let error = simulate(&program, &costs, Mode::Ranks, 1).unwrap_err();
    let SimulateError::Cost(CostError::Kernel { signature, .. }) = &error else {
        panic!("{error}");
    };
    assert!(signature.starts_with("k1 fill "), "{signature}");
    for body in &program.bodies {
        for task in &body.tasks {
            if let partita_program::Work::Compute {
                kernel, algorithm, ..
            } = &task.work
            {
                let shape = KernelShape {
                    kernel,
                    buffers: &body.buffers,
                };
                let key = (shape.signature(), algorithm.0.clone());
                let cost = KernelCost::uncontended(Seconds(0.001));
                costs.kernels.insert(key, cost);
            }
        }
    }
    let error = simulate(&program, &costs, Mode::Ranks, 1).unwrap_err();
    assert!(
        matches!(error, SimulateError::Cost(CostError::Fit { .. })),
        "{error}"
    );
    let fit = LinkFit::line(Seconds(1e-4), 1e-6, 1e-7);
    costs.message = Some(fit.clone());
    costs.load = Some(fit.clone());
    let fits = BTreeMap::from([(2, fit)]);
    (costs.allreduce, costs.allgather) = (fits.clone(), fits.clone());
    let simulation = simulate(&program, &costs, Mode::Classes, 1).unwrap();
    assert!(simulation.makespan.0 > 0.001 && simulation.makespan.0 < 0.1);
    assert_eq!(
        costs.allreduce(&[0, 1, 2], Bytes(4), 1.0),
        Err(CostError::Collective {
            kind: "allreduce",
            members: 3,
            fitted: vec![2],
        })
    );
    let shares = [Bytes(4), Bytes(12)];
    let blocks = AlltoallBlocks {
        largest: Bytes(5),
        given: Bytes(16),
    };
    let both = |costs: &MeasuredCosts| {
        let scatter = costs.reduce_scatter(&[0, 1], &shares, 1.0);
        [scatter, costs.alltoall(&[0, 1], blocks, 1.0)]
    };
    for (cost, name) in both(&costs).into_iter().zip(["reduce_scatter", "alltoall"]) {
        let is_it = |error: &CostError| matches!(error, CostError::Collective { kind, members: 2, .. } if *kind == name);
        assert!(cost.as_ref().is_err_and(is_it), "{name}: {cost:?}");
    }
    (costs.reduce_scatter, costs.alltoall) = (fits.clone(), fits);
    let [scatter, alltoall] = both(&costs).map(Result::unwrap);
    assert_eq!(scatter, alltoall);
    assert!((scatter.seconds().0 - 1.16e-4).abs() < 1e-12, "{scatter:?}");
}

#[test]
fn kernels_of_a_machine_follow_the_roofline() {
    let machine = partita_cluster::Machine::load("lassen", &[]).unwrap();
    let costs = MachineCosts::new(machine, own_software());
    let buffer = |dtype| partita_program::Buffer {
        name: "b".to_owned(),
        role: partita_program::Role::Activation,
        dtype,
        dims: [1, 64, 64, 64, 32],
        tensor: None,
        offset: Bytes(0),
    };
    let at = |extent| View { extent, ..view(1) };
    let kernel = Kernel::ConvolutionForward {
        x: at([1, 64, 64, 64, 32]),
        w: at([3, 3, 3, 32, 32]),
        bias: None,
        y: at([1, 62, 62, 62, 32]),
        taps: Taps {
            kernel: [3; 3],
            stride: [1; 3],
            dilation: [1; 3],
        },
        groups: 1,
        accumulate: false,
    };
    let single = [buffer(Dtype::F32)];
    let shape = KernelShape {
        kernel: &kernel,
        buffers: &single,
    };
    let count = Count::of_kernel(&kernel, &single);
    let seconds = costs
        .kernel(&shape, &Algorithm::unpinned(), &count)
        .unwrap()
        .alone;
    let flops = 2.0 * 62f64.powi(3) * 32.0 * 32.0 * 27.0;
    // 32 channels read, 62 planes: half of the share at 18.7 channels, and at 1.13 planes.
    let share = 0.844 * (32.0 / 50.7) * (62.0 / 63.13);
    assert!((seconds.0 - 5e-6 - flops / (share * 15.7e12)).abs() < 1e-9);
    let double = [buffer(Dtype::F64)];
    let shape = KernelShape {
        kernel: &kernel,
        buffers: &double,
    };
    let refused = costs.kernel(&shape, &Algorithm::unpinned(), &count);
    assert!(matches!(refused, Err(CostError::Dtype { .. })));
    // Sums in f64 that end a convolution in f32 need no rate of their own.
    let Kernel::ConvolutionForward { y, .. } = &kernel else {
        unreachable!()
    };
    let mut sums = *y;
    sums.buffer.0 = 1;
    let statistics = Kernel::BatchNormStatistics {
        x: *y,
        sums,
        accumulate: false,
    };
    let fused = Kernel::Fused {
        parts: vec![kernel.clone(), statistics],
    };
    let mixed = [buffer(Dtype::F32), buffer(Dtype::F64)];
    let shape = KernelShape {
        kernel: &fused,
        buffers: &mixed,
    };
    let with_sums = costs.kernel(&shape, &Algorithm::unpinned(), &count);
    assert!(with_sums.unwrap().alone >= seconds);
}

#[test]
fn communication_and_reads_of_a_machine_follow_the_formulas() {
    let mut machine = partita_cluster::Machine::load("lassen", &[]).unwrap();
    (machine.exchange, machine.allreduce) = (None, None);
    let costs = MachineCosts::new(machine.clone(), own_software());
    let mpi = MachineCosts::new(machine, own_software())
        .with_library(partita_cluster::CollectiveLibrary::Mpi);
    let near = costs.message(0, 3, Bytes(1_000_000), 4.0).unwrap();
    assert!((near.latency.0 - 8e-6).abs() < 1e-12 && near.host == Seconds(0.0));
    let far = costs.message(3, 4, Bytes(1_000_000), 4.0).unwrap();
    assert!((far.transfer.0 - 4.0 * 4e-5).abs() < 1e-9, "{far:?}");

    // CosmoFlow's 9.44 M parameters over 512 GPUs: at least twice the bytes over a node's network.
    let members: Vec<usize> = (0..512).collect();
    let sum = costs
        .allreduce(&members, Bytes(4 * 9_440_000), 1.0)
        .unwrap();
    assert!(sum.seconds().0 > 2.0 * 4.0 * 9.44e6 / 37.6e9, "{sum:?}");
    assert!(sum.seconds().0 < 0.02, "{sum:?}");
    let one = costs.allreduce(&[7], Bytes(400), 1.0).unwrap();
    assert_eq!(one.seconds(), Seconds(0.0));

    // Half of an allreduce or little more, as only that has trees; more where shares differ.
    let share = |bytes: u64| vec![Bytes(bytes); 512];
    let scatter = |shares: &[Bytes]| costs.reduce_scatter(&members, shares, 1.0).unwrap();
    let half = scatter(&share(4 * 9_440_000 / 512)).seconds().0 / sum.seconds().0;
    assert!((0.4..0.8).contains(&half), "{half}");
    let mut uneven = share(4 * 9_440_000 / 512);
    (uneven[0], uneven[1]) = (Bytes(0), uneven[1] * 2);
    let ratio = scatter(&uneven).transfer.0 / scatter(&share(4 * 9_440_000 / 512)).transfer.0;
    assert!((ratio - 2.0).abs() < 1e-3, "{ratio}");
    // By MPI, four GPUs of a node exchange 3 blocks of 1 MB each, in 2 steps where they are small.
    let alltoall = |largest: u64| {
        let blocks = AlltoallBlocks {
            largest: Bytes(largest),
            given: Bytes(4 * largest),
        };
        mpi.alltoall(&[0, 1, 2, 3], blocks, 1.0).unwrap()
    };
    assert!((alltoall(1_000_000).latency.0 - 3.0 * 8e-6).abs() < 1e-12);
    let message = costs.message(0, 3, Bytes(1_000_000), 1.0).unwrap();
    let ratio = alltoall(1_000_000).transfer.0 / message.transfer.0;
    assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
    assert!((alltoall(4).latency.0 - 2.0 * 8e-6).abs() < 1e-12);
    assert!(matches!(
        costs.check_capacity(4096),
        Err(CostError::Capacity { devices: 2048, .. })
    ));
    assert!(costs.load(0, read(1 << 30, 1)).unwrap().seconds.0 > 0.04);

    // A fit of the allreduce replaces the formulas: 2 (p - 1) (alpha + m beta / p).
    let mut machine = partita_cluster::Machine::load("abci", &[]).unwrap();
    machine.allreduce = Some(ring());
    let abci = MachineCosts::new(machine, own_software());
    let allreduce = abci
        .allreduce(&[0, 1, 2, 3], Bytes(100_000_000), 1.0)
        .unwrap();
    assert!((allreduce.seconds().0 - 6.0 * (9e-6 + 25e6 / 50e9)).abs() < 1e-9);
    let shares = [Bytes(25_000_000); 4];
    let scatter = abci.reduce_scatter(&[0, 1, 2, 3], &shares, 1.0).unwrap();
    assert!((scatter.seconds().0 - allreduce.seconds().0 / 2.0).abs() < 1e-9);
    assert!(matches!(
        abci.load(0, read(1, 1)),
        Err(CostError::Missing { key: "io", .. })
    ));
}

fn read(bytes: u64, readers: usize) -> SampleRead {
    SampleRead {
        bytes: Bytes(bytes),
        bytes_f32: Bytes(2 * bytes),
        readers,
        parts: 1,
    }
}

fn own_software() -> partita_cluster::Software {
    let mut software = partita_cluster::Software::load("partita-cudnn", &[]).unwrap();
    software.data_store.value = false;
    software
}

fn fact<T>(value: T) -> partita_cluster::Fact<T> {
    partita_cluster::Fact {
        value,
        basis: partita_cluster::Basis::Assumed,
        source: "a hand example".to_owned(),
    }
}

/// A fitted ring over the links of ABCI.
fn ring() -> partita_cluster::Allreduce {
    let link = |latency, bandwidth| partita_cluster::AllreduceLink {
        latency: fact(Seconds(latency)),
        bandwidth: fact(partita_space::BytesPerSecond(bandwidth)),
        growth: None,
    };
    partita_cluster::Allreduce {
        occupancy: None,
        intra: link(9e-6, 50e9),
        inter: link(40.31e-6, 12.5e9),
    }
}

#[test]
fn fits_override_links() {
    use partita_cluster::{AllreduceLink, Exchange, Machine, Share};
    let mut machine = Machine::load("abci", &[]).unwrap();
    machine.exchange = Some(Exchange {
        latency: fact(Seconds(1e-4)),
        bandwidth: fact(partita_space::BytesPerSecond(1e9)),
    });
    let allreduce = machine.allreduce.insert(ring());
    allreduce.occupancy = Some(fact(Share(0.25)));
    allreduce.inter = AllreduceLink {
        latency: fact(Seconds(1e-5)),
        bandwidth: fact(partita_space::BytesPerSecond(1e9)),
        growth: Some(fact(Share(0.5))),
    };
    let costs = MachineCosts::new(machine, own_software());
    for to in [1, 4] {
        let message = costs.message(0, to, Bytes(1_000_000), 1.0).unwrap();
        assert_eq!(message.latency, Seconds(1e-4));
        assert!((message.transfer.0 - 1e-3).abs() < 1e-12, "{message:?}");
    }
    // Two ranks of nodes 0 and 3 span 4 nodes: 2 lg 2 alpha + 2 (1/2) m beta 4^0.5.
    let sum = costs.allreduce(&[0, 12], Bytes(1_000_000), 1.0).unwrap();
    assert!((sum.latency.0 - 2e-5).abs() < 1e-12, "{sum:?}");
    assert!((sum.transfer.0 - 2e-3).abs() < 1e-12, "{sum:?}");
    assert!(
        (sum.host.0 - 0.25 * sum.seconds().0).abs() < 1e-12,
        "{sum:?}"
    );
    let shares = [Bytes(500_000); 2];
    let half = costs.reduce_scatter(&[0, 12], &shares, 1.0).unwrap();
    assert!((half.seconds().0 - sum.seconds().0 / 2.0).abs() < 1e-12);
    // The ring was fitted to gradients and does not hold for four bytes.
    let mut machine = Machine::load("abci", &[]).unwrap();
    machine.allreduce = Some(ring());
    let abci = MachineCosts::new(machine, own_software());
    let members: Vec<usize> = (0..64).collect();
    let few = abci.allreduce(&members, Bytes(4), 1.0).unwrap();
    assert!((few.latency.0 - 6.0 * 40.31e-6).abs() < 1e-9, "{few:?}");
}
