//! Every geometry of windows, extents and meshes is right or refused, never silently different.
//!
//! One rank with the reference kernels in f64 equals the definitions of the operations; under a split
//! they equal one rank but for the order of sums; the fast kernels in f32, alone and under a split,
//! equal it but for rounding.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod layers;
mod ledger;
mod naive;
mod named;
mod resampling;

use layers::{GROUPINGS, KERNELS, Layer, Operation, POOLINGS, STRIDES, Tower};
use ledger::{Ledger, Refusal, meshes, too_fine};
use partita_graph::{Graph, GraphError, Loss};
use partita_lower::Strategy;
use partita_space::Window;
use partita_testkit::{Case, Draws, Share};

/// Narrower than many a halo once they are split, and wide enough for an interior; even and odd.
const NARROW: [usize; 5] = [4, 5, 7, 8, 11];
const BROAD: [usize; 5] = [15, 16, 19, 23, 30];

/// Where the seeds start, and by how much the samples grow.
fn seeds() -> (u64, u64) {
    let start = std::env::var("PARTITA_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let long = std::env::var("PARTITA_TEST_LONG").is_ok();
    (start, if long { 10 } else { 1 })
}

/// In this many runs of different days all cases run. Instruction levels, of which there are four at most, have turns of their own.
const PARTS: u64 = 5;

/// The windows of an operation in 1D: every kernel, stride, dilation and padding.
fn windows(operation: Operation) -> Vec<(Window, bool)> {
    let mut all = Vec::new();
    for kernel in KERNELS {
        for stride in STRIDES {
            for &dilation in operation.dilations() {
                for &(padding, periodic) in operation.paddings() {
                    let steps = [kernel, stride, dilation];
                    all.push((operation.window(steps, padding), periodic));
                }
            }
        }
    }
    all
}

/// The layer between two pointwise convolutions, sometimes after a leaky ReLU or before a batch norm.
fn sandwich(
    layer: &Layer,
    extent: usize,
    channels: usize,
    seed: u64,
) -> Result<Graph, Box<GraphError>> {
    let mut draws = Draws::new(seed);
    let mut tower = Tower::new("sandwich", &[extent], 2).pointwise(channels, false);
    if draws.one_in(4) {
        tower = tower.relu(0.1);
    }
    tower.layer("op", layer)?;
    if draws.one_in(3) {
        tower = tower.norm();
    }
    Ok(tower.pointwise(2, true).finish(Loss::MeanSquaredError))
}

/// A round takes its share of the windows, so that each window meets its seed in some run.
fn sweep(operation: Operation, ledger: &mut Ledger, seed: u64) {
    let share = Share::of(PARTS);
    let windows = windows(operation).into_iter().enumerate();
    for (number, (window, periodic)) in windows.filter(|&(number, _)| share.has(number as u64)) {
        for extents in [NARROW, BROAD] {
            let mut draws = Draws::new(seed * 100_003 + number as u64);
            let (channels, filters, groups) = draws.pick(&GROUPINGS);
            let extra = match operation {
                Operation::Transposed => draws.between(0, window.stride.max(window.dilation) - 1),
                Operation::Convolution | Operation::Maximum | Operation::Mean { .. } => 0,
            };
            let layer = Layer {
                operation,
                windows: vec![window],
                extras: vec![extra],
                periodic,
                filters,
                groups,
                bias: draws.one_in(2),
            };
            let asked = draws.pick(&extents);
            let case_seed = seed + number as u64;
            if let Err(error) = sandwich(&layer, asked, channels, case_seed) {
                ledger.refused("op", layer.refusal(&[asked]), &error);
            }
            let extent = layer.fit(vec![asked])[0];
            let graph = sandwich(&layer, extent, channels, case_seed).unwrap();
            let case = Case {
                batch: trainable(&graph, draws.between(1, 3)),
                graph,
                strategy: Strategy::single(),
                seed: case_seed,
            };
            let mut strategies = [2, 3, 5, 1].map(|width| Strategy::hybrid(1, [1, 1, width]));
            strategies[3] = Strategy::hybrid(2, [1, 1, draws.between(2, 3)]);
            for strategy in &mut strategies {
                strategy.overlap = !draws.one_in(3);
            }
            let name = format!("PARTITA_SEED={seed} {operation:?} {number}");
            ledger.compare(&name, &case, &strategies);
        }
    }
}

#[test]
fn every_convolution_in_one_dim() {
    let (start, rounds) = seeds();
    let mut ledger = Ledger::default();
    for seed in start..start + rounds {
        sweep(Operation::Convolution, &mut ledger, seed);
    }
    let expected = [
        Refusal::WindowTooLarge,
        Refusal::PeriodicPadding,
        Refusal::TooFine,
    ];
    ledger.close_share("convolutions in 1D", 2500 * rounds as usize, &expected);
}

#[test]
fn every_transposed_convolution_in_one_dim() {
    let (start, rounds) = seeds();
    let mut ledger = Ledger::default();
    for seed in start..start + rounds {
        sweep(Operation::Transposed, &mut ledger, seed);
    }
    let expected = [Refusal::NothingLeft, Refusal::TooFine];
    let least = 1500 * rounds as usize;
    ledger.close_share("transposed convolutions in 1D", least, &expected);
}

#[test]
fn every_pooling_in_one_dim() {
    let (start, rounds) = seeds();
    let mut ledger = Ledger::default();
    for seed in start..start + rounds {
        for operation in POOLINGS {
            sweep(operation, &mut ledger, seed);
        }
    }
    let expected = [Refusal::WindowTooLarge, Refusal::TooFine];
    ledger.close_share("poolings in 1D", 1200 * rounds as usize, &expected);
}

/// As many samples, or one more where a batch norm would be over a single value.
fn trainable(graph: &Graph, batch: usize) -> usize {
    match Strategy::single().check_norms(graph, batch) {
        Ok(()) => batch,
        Err(_) => batch + 1,
    }
}

/// One to three layers of any windows, batch norms and activations between, and some end.
fn random_tower(draws: &mut Draws, rank: usize) -> Graph {
    let most = [16, 10, 7][rank - 1];
    let extent: Vec<usize> = (0..rank).map(|_| draws.between(2, most)).collect();
    let mut tower = Tower::new("random", &extent, draws.between(1, 3));
    tower = tower.pointwise(draws.pick(&[1, 2, 3, 4, 6, 9]), draws.one_in(2));
    let count = draws.between(1, 3);
    let mut added = 0;
    while added < count {
        let channels = tower.shape().channels;
        let layer = Layer::random(draws, rank, channels, [7, 49, 75][rank - 1]);
        if layer.refusal(&tower.extent()).is_some() {
            continue;
        }
        // A wide padding makes extents grow.
        if layer.outputs(&tower.extent()).iter().product::<usize>() > 600 {
            continue;
        }
        tower = tower.then(layer);
        added += 1;
        match draws.between(0, 5) {
            0 => tower = tower.norm(),
            1 => tower = tower.relu(0.1),
            2 => tower = tower.norm().relu(0.0),
            _ => {}
        }
    }
    match draws.between(0, 2) {
        0 => tower.pointwise(2, true).finish(Loss::MeanSquaredError),
        1 => tower.pointwise(3, true).finish(Loss::CROSS_ENTROPY),
        _ => tower.linear(2).finish(Loss::MeanSquaredError),
    }
}

/// One of these, seldom one that is too fine.
fn pick(draws: &mut Draws, all: &[Strategy], case: &Case) -> Strategy {
    let strategy = all[draws.between(0, all.len() - 1)].clone();
    if too_fine(case, &strategy) && !draws.one_in(8) {
        return pick(draws, all, case);
    }
    strategy
}

fn sample(rank: usize, cases: u64) {
    let range = partita_testkit::seeds(cases, PARTS, 10 * cases);
    let count = (range.end - range.start) as usize;
    let all: Vec<Strategy> = (2..=8).flat_map(|ranks| meshes(rank, ranks)).collect();
    let mut ledger = Ledger::default();
    for seed in range {
        let mut draws = Draws::new(seed + 1_000_000 * rank as u64);
        let graph = random_tower(&mut draws, rank);
        let case = Case {
            batch: trainable(&graph, draws.between(1, 4)),
            graph,
            strategy: Strategy::single(),
            seed,
        };
        let mut strategies = [(); 3].map(|()| pick(&mut draws, &all, &case));
        strategies[0].overlap = false;
        let name = format!("PARTITA_SEED={seed}");
        ledger.compare(&name, &case, &strategies);
    }
    ledger.close(
        &format!("random models in {rank}D"),
        count * 5 / 2,
        &[Refusal::TooFine],
    );
}

#[test]
fn random_models_in_one_dim() {
    sample(1, 300);
}

#[test]
fn random_models_in_two_dims() {
    sample(2, 400);
}

#[test]
fn random_models_in_three_dims() {
    sample(3, 250);
}
