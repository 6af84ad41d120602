//! Trainings on a device equal one exact rank under every strategy, where there is a device. Its ranks share it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::device;

use device::device;
use partita_gpu::{GpuKernels, GpuMenu};
use partita_program::{Dtype, Menu};
use partita_run::Kernels;
use partita_space::{Mesh, Rank};
use partita_testkit::{
    KernelFactory, OPTIMIZERS, ReferenceMenu, Setup, Trial, Verdict, any_random_case,
    reference_kernels, run, seeds,
};
use std::sync::Arc;

const CASES: u64 = 80;
const CASES_LONG: u64 = 1000;

#[test]
fn every_strategy_on_a_device_equals_one_exact_rank() {
    let Some(device) = device("every_strategy_on_a_device_equals_one_exact_rank") else {
        return;
    };
    let menu = GpuMenu {
        units: device.facts().units,
    };
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        Box::new(GpuKernels::new(Arc::clone(&device), mesh, rank).unwrap())
    };
    let (mut equal, mut others) = (0, 0);
    for seed in seeds(CASES, 4, CASES_LONG) {
        let case = any_random_case(seed);
        let Some(trial) = Trial::new(&case) else {
            others += 1;
            continue;
        };
        match trial.drawn(&case.strategy, &menu, &kernels) {
            Verdict::Equal => equal += 1,
            Verdict::IllConditioned(_) | Verdict::Refused(_) => others += 1,
            Verdict::Wrong(what) => panic!("seed {seed}, strategy {}: {what}", case.strategy),
        }
    }
    assert!(
        equal > 4 * others,
        "{equal} equal, {others} without a verdict"
    );
}

/// Half the distance of neighbors below 1, and the factor of gradients.
const HALVES: [(Dtype, f64, Option<f64>); 2] = [
    (Dtype::Bf16, 1.0 / 512.0, None),
    (Dtype::F16, 1.0 / 4096.0, Some(64.0)),
];

#[test]
fn losses_of_two_bytes_are_as_exact_as_those_of_the_reference_kernels() {
    let Some(device) = device("losses_of_two_bytes_are_as_exact_as_those_of_the_reference_kernels")
    else {
        return;
    };
    let menu = GpuMenu {
        units: device.facts().units,
    };
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        Box::new(GpuKernels::new(Arc::clone(&device), mesh, rank).unwrap())
    };
    for (dtype, rounding, loss_scale) in HALVES {
        let mut compared = 0;
        let range = seeds(CASES / 2, 4, CASES / 2);
        let few = (range.end - range.start) / 2;
        for seed in range {
            let case = any_random_case(seed);
            // The second loss is that after an update.
            let losses = |dtype: Dtype, kernels: KernelFactory<'_>, menu: &dyn Menu| {
                let setup = Setup {
                    dtype,
                    menu,
                    steps: 2,
                    learning_rate: 0.01,
                    loss_scale: loss_scale.filter(|_| dtype == Dtype::F16),
                    ..Setup::of_case(&case, kernels)
                };
                run(&setup).map(|outcome| outcome.losses)
            };
            let exact = losses(Dtype::F64, &reference_kernels(Dtype::F64), &ReferenceMenu).unwrap();
            let half = losses(dtype, &reference_kernels(dtype), &ReferenceMenu).unwrap();
            let Ok(got) = losses(dtype, &kernels, &menu) else {
                continue;
            };
            for ((got, half), exact) in got.iter().zip(&half).zip(&exact) {
                let allowed = 4.0 * (half - exact).abs() + 8.0 * rounding * exact.abs().max(1e-2);
                assert!(
                    (got - exact).abs() <= allowed,
                    "seed {seed}, {dtype:?}, strategy {}: {got}, by the reference {half}, exact {exact}",
                    case.strategy
                );
            }
            compared += 1;
        }
        assert!(compared > few, "{compared} compared");
    }
}

#[test]
fn an_update_whose_gradients_overflow_changes_nothing() {
    let Some(device) = device("an_update_whose_gradients_overflow_changes_nothing") else {
        return;
    };
    let menu = GpuMenu {
        units: device.facts().units,
    };
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        Box::new(GpuKernels::new(Arc::clone(&device), mesh, rank).unwrap())
    };
    let mut compared = 0;
    let range = seeds(16, 2, 16);
    let few = (range.end - range.start) / 2;
    for seed in range {
        let case = any_random_case(seed);
        let setup = Setup {
            dtype: Dtype::F16,
            menu: &menu,
            optimizer: OPTIMIZERS[seed as usize % 4],
            steps: 1,
            loss_scale: Some(1e30),
            ..Setup::of_case(&case, &kernels)
        };
        let Ok(outcome) = run(&setup) else {
            continue;
        };
        let [before, after] = [0, 1].map(|steps| outcome.trained(&case.graph, steps));
        assert_eq!(before, after, "seed {seed}, strategy {}", case.strategy);
        compared += 1;
    }
    assert!(compared > few, "{compared} compared");
}
