//! Trainings with activations in bf16 and f16: every strategy is as far from one exact rank as one rank in that type is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use half::bf16;
use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_lower::{Strategy, WorkspaceLimit};
use partita_program::{Dtype, Kernel, Menu, PoolKind, ProgramKind, Role, Taps, View};
use partita_reference::ReferenceMenu;
use partita_run::{Inputs, Kernels};
use partita_space::{Mesh, Rank};
use partita_testkit::{
    Bench, Case, DrawnMenu, Draws, KernelFactory, KernelOutput, OPTIMIZERS, Outcome,
    ReferenceKernels, Setup, any_random_case, random_layer_case, reference_kernels, run, seeds,
};

/// Allowed ratio of the error of a strategy to that of one rank, both of two bytes. Roundings are at other places.
const RATIO: f64 = 4.0;
/// Errors in units of [`rounding`] that are always allowed.
const UNITS: f64 = 8.0;
/// Factor of gradients in f16, by which those of these cases are neither too small nor too large.
const LOSS_SCALE: f64 = 64.0;

/// Half the distance of neighbors below 1.
fn rounding(dtype: Dtype) -> f64 {
    if dtype == Dtype::F16 {
        1.0 / 4096.0
    } else {
        1.0 / 512.0
    }
}

/// Losses and the update of all parameters by the first step.
struct FirstStep {
    loss: f64,
    update: Vec<f64>,
}

impl FirstStep {
    fn of(outcome: &Outcome) -> Self {
        let [before, after] = [&outcome.parameters[0], &outcome.parameters[1]];
        let pairs = before.iter().zip(after);
        let differences = pairs.flat_map(|((_, before), (_, after))| {
            let pairs = before.iter().zip(after);
            pairs.map(|(before, after)| after - before)
        });
        Self {
            loss: outcome.losses[0],
            update: differences.collect(),
        }
    }

    /// The distance to exact results, relative to these.
    fn error(&self, exact: &Self) -> f64 {
        let square = |value: f64| value * value;
        let pairs = self.update.iter().zip(&exact.update);
        let error: f64 = pairs.map(|(own, exact)| square(own - exact)).sum();
        let norm: f64 = exact.update.iter().copied().map(square).sum();
        let loss = (self.loss - exact.loss).abs() / exact.loss.abs().max(1e-3);
        loss.max((error / norm.max(1e-12)).sqrt())
    }
}

fn alone(case: &Case) -> Strategy {
    let mut alone = Strategy::single();
    alone.micro = case.strategy.micro;
    alone
}

/// A step on these kernels.
fn step(
    case: &Case,
    strategy: &Strategy,
    dtype: Dtype,
    menu: &dyn Menu,
    kernels: KernelFactory<'_>,
) -> FirstStep {
    let setup = Setup {
        strategy: strategy.clone(),
        dtype,
        menu,
        steps: 1,
        loss_scale: (dtype == Dtype::F16).then_some(LOSS_SCALE),
        ..Setup::of_case(case, kernels)
    };
    let outcome = run(&setup)
        .unwrap_or_else(|error| panic!("PARTITA_SEED={} {strategy}: {error}", case.seed));
    FirstStep::of(&outcome)
}

fn on_cpu(case: &Case, dtype: Dtype, level: Level) -> FirstStep {
    let threads = 1 + usize::from(case.seed.is_multiple_of(3));
    let menu = CpuMenu { threads, level };
    let drawn = DrawnMenu {
        menu: &menu,
        seed: case.seed,
    };
    let mut strategy = case.strategy.clone();
    if case.seed.is_multiple_of(2) {
        strategy.workspace = WorkspaceLimit::Off;
    }
    step(case, &strategy, dtype, &drawn, &|mesh: Mesh, rank: Rank| {
        let team = Team::new(threads, level).expect("the level is available");
        Box::new(CpuKernels::new(mesh, rank, team)) as Box<dyn Kernels>
    })
}

#[test]
fn strategies_in_bf16_are_as_exact_as_one_rank() {
    strategies_are_as_exact_as_one_rank(Dtype::Bf16, [160, 2000]);
}

#[test]
fn strategies_in_f16_are_as_exact_as_one_rank() {
    strategies_are_as_exact_as_one_rank(Dtype::F16, [160, 2000]);
}

/// On this many cases; the second number is for the long test.
fn strategies_are_as_exact_as_one_rank(half: Dtype, [cases, many]: [u64; 2]) {
    let range = seeds(cases, 4, many);
    let cases = range.end - range.start;
    let mut failures = Vec::new();
    for seed in range {
        let case = any_random_case(seed);
        let single = alone(&case);
        let of = |strategy: &Strategy, dtype| {
            step(
                &case,
                strategy,
                dtype,
                &ReferenceMenu,
                &reference_kernels(dtype),
            )
        };
        let exact = of(&single, Dtype::F64);
        let mut unfused = single.clone();
        unfused.fuse = false;
        let one_rank = [&single, &unfused].map(|strategy| of(strategy, half).error(&exact));
        let least = one_rank[0].max(one_rank[1]);
        let limit = (RATIO * least).max(UNITS * rounding(half));
        let levels = Level::all_available().collect::<Vec<_>>();
        let level = levels[seed as usize % levels.len()];
        let errors = [
            of(&case.strategy, half).error(&exact),
            on_cpu(&case, half, level).error(&exact),
        ];
        if errors.iter().any(|&error| error.is_nan() || error > limit) {
            failures.push(format!(
                "PARTITA_SEED={seed} {} batch {}: errors {errors:?} on reference and CPU kernels ({level:?}), {least:.1e} on \
                 one rank\n{}",
                case.strategy,
                case.batch,
                partita_graph::text::print(&case.graph)
            ));
        }
    }
    let few: Vec<String> = failures.iter().take(3).cloned().collect();
    assert!(
        failures.is_empty(),
        "{} of {cases} cases differ; the first:\n{}",
        failures.len(),
        few.join("\n")
    );
}

/// Parameters that are trained, before and after the steps of a run with scaled gradients.
fn trained(case: &Case, setup: &Setup<'_>) -> [Vec<Vec<f64>>; 2] {
    let outcome = run(setup)
        .unwrap_or_else(|error| panic!("PARTITA_SEED={} {}: {error}", case.seed, case.strategy));
    let after = outcome.parameters.len() - 1;
    [0, after].map(|steps| {
        let trained = outcome.trained(&case.graph, steps).into_iter();
        trained.map(<[f64]>::to_vec).collect()
    })
}

#[test]
fn an_update_whose_gradients_overflow_changes_nothing() {
    let level = Level::all_available().last().unwrap();
    let cpu = |mesh: Mesh, rank: Rank| {
        let team = Team::new(1, level).expect("the level is available");
        Box::new(CpuKernels::new(mesh, rank, team)) as Box<dyn Kernels>
    };
    let reference = reference_kernels(Dtype::F16);
    for seed in seeds(48, 4, 48) {
        let case = any_random_case(seed);
        let (menu, kernels): (&dyn Menu, KernelFactory<'_>) = if seed % 3 == 0 {
            (&ReferenceMenu, &reference)
        } else {
            (&CpuMenu { threads: 1, level }, &cpu)
        };
        let setup = Setup {
            dtype: Dtype::F16,
            menu,
            optimizer: OPTIMIZERS[(seed % 4) as usize],
            steps: 2,
            loss_scale: Some(1e30),
            ..Setup::of_case(&case, kernels)
        };
        let [before, after] = trained(&case, &setup);
        assert_eq!(before, after, "PARTITA_SEED={seed} {}", case.strategy);
        // With finite gradients it does.
        let [before, after] = trained(
            &case,
            &Setup {
                loss_scale: Some(1.0),
                ..setup
            },
        );
        assert_ne!(before, after, "PARTITA_SEED={seed} {}", case.strategy);
    }
}

#[test]
fn updates_take_the_factor_of_gradients_out() {
    let level = Level::all_available().last().unwrap();
    let cpu = |mesh: Mesh, rank: Rank| {
        let team = Team::new(1, level).expect("the level is available");
        Box::new(CpuKernels::new(mesh, rank, team)) as Box<dyn Kernels>
    };
    for seed in seeds(24, 4, 24) {
        let case = any_random_case(seed);
        let plain = Setup {
            dtype: Dtype::F32,
            menu: &CpuMenu { threads: 1, level },
            clip: Some([0.1, 1e3][seed as usize % 2]),
            ..Setup::of_case(&case, &cpu)
        };
        let scaled = Setup {
            loss_scale: Some(1024.0),
            parameters: plain.parameters.clone(),
            samples: plain.samples.clone(),
            strategy: plain.strategy.clone(),
            ..plain
        };
        let [[_, plain], [_, scaled]] = [&plain, &scaled].map(|setup| trained(&case, setup));
        for (plain, scaled) in plain.iter().flatten().zip(scaled.iter().flatten()) {
            let far = (plain - scaled).abs();
            assert!(
                far <= 1e-5 * plain.abs().max(0.1),
                "{seed}: {scaled}, not {plain}"
            );
        }
    }
}

#[test]
fn activations_and_their_messages_take_half_and_parameters_stay() {
    let case = random_layer_case(3);
    let kernels = reference_kernels(Dtype::F32);
    let bodies = |dtype| {
        let setup = Setup {
            dtype,
            ..Setup::of_case(&case, &kernels)
        };
        partita_lower::lower(&setup.request(ProgramKind::Train))
            .unwrap()
            .bodies
    };
    let of_roles = |dtype, roles: &[Role]| -> u64 {
        let bodies = bodies(dtype);
        let buffers = bodies.iter().flat_map(|body| &body.buffers);
        let own = buffers.filter(|buffer| roles.contains(&buffer.role));
        own.map(|buffer| buffer.bytes().0).sum()
    };
    let activations = [Role::Activation, Role::ActivationGradient];
    let halved = of_roles(Dtype::F32, &activations);
    assert!(halved > 0);
    assert_eq!(halved, 2 * of_roles(Dtype::Bf16, &activations));
    assert_eq!(halved, 2 * of_roles(Dtype::F16, &activations));
    let kept = [
        Role::Parameter,
        Role::Gradient,
        Role::Optimizer,
        Role::State,
    ];
    assert_eq!(of_roles(Dtype::F32, &kept), of_roles(Dtype::Bf16, &kept));
}

/// Values that bf16 holds, as do fourths of them.
fn short(count: usize, draws: &mut Draws) -> Vec<f64> {
    let value = |draws: &mut Draws| f64::from(draws.between(0, 255) as i16 - 128) / 64.0;
    (0..count).map(|_| value(draws)).collect()
}

fn on_reference(bench: &Bench, kernel: &Kernel) -> KernelOutput {
    let mut kernels = ReferenceKernels::<f32>::new(Mesh::new([1; 7]), 0);
    let (menu, inputs) = (&ReferenceMenu, &Inputs::default());
    bench
        .run(kernel, menu, &mut kernels, inputs, &mut || true)
        .unwrap()
}

/// A leaky ReLU and the sums of its results over positions, as one kernel, on a part of a buffer.
fn rectified_sums(dtype: Dtype) -> KernelOutput {
    let (mut bench, mut draws) = (Bench::default(), Draws::new(7));
    let extent = [2, 3, 70, 111, 7];
    let whole = extent.map(|extent| extent + 1);
    let values = short(whole.iter().product(), &mut draws);
    let x = View {
        start: [1, 0, 1, 0, 1],
        extent,
        ..bench.put(dtype, whole, values)
    };
    let y = bench.put(dtype, extent, vec![0.0; extent.iter().product()]);
    let sums = bench.put(
        Dtype::F64,
        [1, 1, 1, 2, extent[4]],
        vec![0.0; 2 * extent[4]],
    );
    let rectify = Kernel::LeakyReluForward {
        x,
        y,
        negative_slope: 0.25,
    };
    let sum = Kernel::BatchNormStatistics {
        x: y,
        sums,
        accumulate: false,
    };
    let parts = vec![rectify, sum];
    on_reference(&bench, &Kernel::Fused { parts })
}

/// A pooling with stride 2, and its gradient: by windows of two, with inputs left over, or overlapping ones with padding.
fn pooled(dtype: Dtype, kind: PoolKind, kernel: usize) -> [KernelOutput; 2] {
    let (mut bench, mut draws) = (Bench::default(), Draws::new(8));
    let (inputs, stride, pad) = ([2, 21, 61, 71, 3], 2, kernel - 2);
    let outputs = inputs.map(|extent| (extent + 2 * pad - kernel) / stride + 1);
    let outputs = [inputs[0], outputs[1], outputs[2], outputs[3], inputs[4]];
    let [more, fewer] = [inputs, outputs].map(|extent| extent.iter().product::<usize>());
    let x = bench.put(dtype, inputs, short(more, &mut draws));
    let dy = bench.put(dtype, outputs, short(fewer, &mut draws));
    let y = bench.put(dtype, outputs, vec![0.0; fewer]);
    let dx = bench.put(dtype, inputs, vec![0.0; more]);
    let taps = Taps {
        kernel: [kernel; 3],
        stride: [stride; 3],
        dilation: [1; 3],
    };
    let shift = [pad as i64; 3];
    let forward = Kernel::PoolForward {
        kind,
        x,
        y,
        taps,
        shift,
    };
    let backward = Kernel::PoolBackward {
        kind,
        x: (kind == PoolKind::Max).then_some(x),
        dy,
        dx,
        taps,
        shift,
        accumulate: false,
    };
    [forward, backward].map(|kernel| on_reference(&bench, &kernel))
}

/// Sums of such values are exact, and only the gradients of overlapping windows are rounded.
#[test]
fn tensors_that_are_cut_into_slabs_give_what_whole_ones_give() {
    let [wide, narrow] = [Dtype::F32, Dtype::Bf16].map(rectified_sums);
    assert_eq!(wide.contents, narrow.contents);
    assert_eq!(wide.worked.flops, narrow.worked.flops);
    use PoolKind::{AverageAll, AverageInside, Max};
    for (kind, kernel) in [
        (Max, 2),
        (Max, 3),
        (AverageAll, 2),
        (AverageAll, 3),
        (AverageInside, 3),
    ] {
        let [wide, narrow] = [Dtype::F32, Dtype::Bf16].map(|dtype| pooled(dtype, kind, kernel));
        for (mut wide, narrow) in wide.into_iter().zip(narrow) {
            let values = wide.contents.iter_mut().flatten();
            values.for_each(|value| *value = f64::from(bf16::from_f64(*value)));
            assert!(wide.contents == narrow.contents, "{kind:?} {kernel}");
            assert_eq!(wide.worked.flops, narrow.worked.flops);
        }
    }
}

#[test]
fn empty_tensors_need_no_workspace() {
    let mut bench = Bench::default();
    let [x, y] = [0; 2].map(|_| bench.put(Dtype::Bf16, [1, 0, 2, 3, 4], Vec::new()));
    let negative_slope = 0.25;
    let kernel = Kernel::LeakyReluForward {
        x,
        y,
        negative_slope,
    };
    assert_eq!(on_reference(&bench, &kernel).worked.flops, 0);
}
