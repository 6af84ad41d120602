//! Trainings on a device equal one exact rank under every strategy, where there is a device. Its ranks share it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod device;

use device::device;
use partita_gpu::{GpuKernels, GpuMenu};
use partita_program::{Dtype, Menu};
use partita_run::Kernels;
use partita_space::{Mesh, Rank};
use partita_testkit::{
    Case, KernelFactory, ReferenceMenu, Setup, Trial, Verdict, random_branched_case, random_case,
    random_encoder_decoder, random_grouped_case, random_layer_case, random_sequence_case,
    random_staged_case, random_tied_case, reference_kernels, run,
};
use std::sync::Arc;

const DRAWS: [fn(u64) -> Case; 8] = [
    random_case,
    random_layer_case,
    random_grouped_case,
    random_encoder_decoder,
    random_branched_case,
    random_staged_case,
    random_tied_case,
    random_sequence_case,
];
const CASES: u64 = 80;
const CASES_LONG: u64 = 1000;

#[test]
fn every_strategy_on_a_device_equals_one_exact_rank() {
    let Some(device) = device("every_strategy_on_a_device_equals_one_exact_rank") else {
        return;
    };
    let is_long = std::env::var("PARTITA_TEST_LONG").is_ok();
    let cases = if is_long { CASES_LONG } else { CASES };
    let menu = GpuMenu {
        units: device.facts().units,
    };
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        Box::new(GpuKernels::new(Arc::clone(&device), mesh, rank).unwrap())
    };
    let (mut equal, mut others) = (0, 0);
    for seed in 0..cases {
        let case = DRAWS[seed as usize % DRAWS.len()](seed);
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

/// Half the distance of neighbors in bf16, next to 1.
const ROUNDING: f64 = 1.0 / 512.0;

#[test]
fn losses_in_bf16_are_as_exact_as_those_of_the_reference_kernels() {
    let Some(device) = device("losses_in_bf16_are_as_exact_as_those_of_the_reference_kernels")
    else {
        return;
    };
    let menu = GpuMenu {
        units: device.facts().units,
    };
    let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
        Box::new(GpuKernels::new(Arc::clone(&device), mesh, rank).unwrap())
    };
    let mut compared = 0;
    for seed in 0..CASES / 2 {
        let case = DRAWS[seed as usize % DRAWS.len()](seed);
        let loss = |dtype: Dtype, kernels: KernelFactory<'_>, menu: &(dyn Menu + Sync)| {
            let setup = Setup {
                dtype,
                menu,
                steps: 1,
                ..Setup::of_case(&case, kernels)
            };
            run(&setup).map(|outcome| outcome.losses[0])
        };
        let exact = loss(Dtype::F64, &reference_kernels(Dtype::F64), &ReferenceMenu).unwrap();
        let half = loss(Dtype::Bf16, &reference_kernels(Dtype::Bf16), &ReferenceMenu).unwrap();
        let Ok(got) = loss(Dtype::Bf16, &kernels, &menu) else {
            continue;
        };
        let allowed = 4.0 * (half - exact).abs() + 8.0 * ROUNDING * exact.abs().max(1e-2);
        assert!(
            (got - exact).abs() <= allowed,
            "seed {seed}, strategy {}: {got}, by the reference {half}, exact {exact}",
            case.strategy
        );
        compared += 1;
    }
    assert!(compared > CASES / 4, "{compared} compared");
}
