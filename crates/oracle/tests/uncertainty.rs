//! Intervals from the longest paths, against simulations in which the costs themselves are drawn.

mod fixed_costs;

use fixed_costs::{FixedCosts, spatial};
use partita_oracle::{
    Mode, Progress, ScaledCosts, SpeedFactors, Spread, StepUncertainty, TimeSource, Uncertainty,
    simulate,
};
use partita_program::Program;
use partita_space::Seconds;
use partita_space::random::{SplitMix, unit};

const COSTS: FixedCosts = FixedCosts {
    per_node: 4,
    host: 0.0,
    progress: Progress::Polled,
};

fn simulated(program: &Program, [kernels, links]: [f64; 2]) -> (f64, StepUncertainty) {
    let speeds = SpeedFactors {
        kernels: 1.0 / kernels,
        links: 1.0 / links,
        latency: 1.0 / links,
        ..SpeedFactors::default()
    };
    let costs = ScaledCosts::new(&COSTS, speeds);
    let simulation = simulate(program, &costs, Mode::Classes, 1).unwrap();
    (simulation.makespan.0, simulation.uncertainty)
}

/// One error of all kernels, and one of all messages and collectives.
fn spreads(kernels: f64, links: f64) -> Uncertainty {
    let mut costs = Uncertainty::NONE;
    for source in TimeSource::ALL {
        let shared = match source {
            TimeSource::MeasuredKernels
            | TimeSource::EstimatedKernels
            | TimeSource::ExtrapolatedKernels
            | TimeSource::Convolutions2d
            | TimeSource::Convolutions3d
            | TimeSource::MemoryBoundKernels => kernels,
            TimeSource::MessageLatencyWithin
            | TimeSource::MessageTransferWithin
            | TimeSource::MessageLatencyBetween
            | TimeSource::MessageTransferBetween
            | TimeSource::CollectiveLatencyWithin
            | TimeSource::CollectiveTransferWithin
            | TimeSource::CollectiveLatencyBetween
            | TimeSource::CollectiveTransferBetween => links,
            TimeSource::HostOverhead | TimeSource::Reads => 0.0,
        };
        costs.sources[source as usize] = Spread {
            shared,
            single: 0.0,
        };
    }
    costs
}

/// A standard normal number, by Box and Muller.
fn normal(stream: &mut SplitMix) -> f64 {
    let [u, v] = [0; 2].map(|_| unit(stream.bits()));
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[test]
fn intervals_are_near_those_of_drawn_costs() {
    let mut stream = SplitMix(5);
    for (extents, layers, seed) in [([2, 4, 1, 1, 1, 1, 1], 4, 5), ([4, 2, 2, 1, 1, 1, 1], 3, 9)] {
        let program = spatial(extents, layers, seed);
        for (kernels, links) in [(0.2, 0.05), (0.05, 0.4), (0.2, 0.4)] {
            let (predicted, mut step) = simulated(&program, [1.0; 2]);
            step.costs = spreads(kernels, links);
            let interval = step.interval(Seconds(predicted));
            let mut drawn: Vec<f64> = (0..400)
                .map(|_| {
                    let factors = [kernels, links].map(|s| (s * normal(&mut stream)).exp());
                    simulated(&program, factors).0
                })
                .collect();
            drawn.sort_by(f64::total_cmp);
            let ends = [interval.low_seconds.0, interval.high_seconds.0];
            let true_ends = [drawn[20], drawn[379]];
            println!("{kernels} {links}: {predicted:.1}, {ends:.1?}, drawn {true_ends:.1?}");
            let inside = drawn
                .iter()
                .filter(|time| (ends[0]..=ends[1]).contains(time));
            let share = inside.count() as f64 / drawn.len() as f64;
            assert!(
                (0.8..=0.97).contains(&share),
                "{share}: {ends:?} {true_ends:?}"
            );
        }
    }
}
