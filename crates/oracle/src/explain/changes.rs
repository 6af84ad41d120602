//! What-if analysis: the same program on a changed machine.

use crate::cost::{CostBasis, Costs, ScaledCosts, SpeedFactors};
use crate::simulate::{Mode, SimulateError, simulate};
use partita_program::Program;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest factor by which links are made faster or slower.
const LINKS_MAX: f64 = 16.0;
/// Steps of the bisection over exponents, which find a factor to within 3 %.
const HALVINGS: usize = 7;

/// A change of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Twice the bandwidth between ranks.
    LinkBandwidth,
    /// Half the latency of messages and collectives.
    LinkLatency,
    /// Twice the arithmetic throughput.
    Arithmetic,
    /// Twice the memory bandwidth.
    MemoryBandwidth,
    /// Kernels that take half as long.
    Kernels,
    /// Reading in half the time.
    Reading,
}

/// The effect of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The change.
    pub change: Change,
    /// Time of a step with the change.
    pub iteration_seconds: Seconds,
    /// Speedup of a step.
    pub speedup: f64,
}

/// The link bandwidth at which two programs take equally long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossover {
    /// As a multiple of the bandwidth of the machine.
    pub bandwidth: f64,
    /// Time of a step of the first program at this bandwidth.
    pub iteration_seconds: Seconds,
}

/// What a search for a [`Crossover`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CrossoverSearch {
    /// The second program is faster beyond this.
    Found(Crossover),
    /// The second program is slower at all bandwidths that were looked at.
    Never,
    /// It was ended before.
    Ended,
}

impl Change {
    /// All, in the order of reports.
    pub const ALL: [Change; 6] = [
        Change::LinkBandwidth,
        Change::LinkLatency,
        Change::Arithmetic,
        Change::MemoryBandwidth,
        Change::Kernels,
        Change::Reading,
    ];

    /// Measured times of kernels do not separate arithmetic from memory traffic.
    fn is_separable(self, basis: CostBasis) -> bool {
        match self {
            Change::Arithmetic | Change::MemoryBandwidth => basis == CostBasis::Modeled,
            Change::LinkBandwidth | Change::LinkLatency | Change::Kernels | Change::Reading => true,
        }
    }

    fn speeds(self) -> SpeedFactors {
        let mut speeds = SpeedFactors::default();
        let changed = match self {
            Change::LinkBandwidth => &mut speeds.links,
            Change::LinkLatency => &mut speeds.latency,
            Change::Arithmetic => &mut speeds.arithmetic,
            Change::MemoryBandwidth => &mut speeds.memory,
            Change::Kernels => &mut speeds.kernels,
            Change::Reading => &mut speeds.reading,
        };
        *changed = 2.0;
        speeds
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Change::LinkBandwidth => "twice the bandwidth of links",
            Change::LinkLatency => "half the latency of links",
            Change::Arithmetic => "twice the arithmetic",
            Change::MemoryBandwidth => "twice the bandwidth of memory",
            Change::Kernels => "kernels twice as fast",
            Change::Reading => "reading twice as fast",
        })
    }
}

/// The effect of each change alone on a program whose step takes `now`; of those that are looked at before it is late.
///
/// Errors: those of [`simulate`].
pub fn what_ifs(
    (program, costs): (&Program, &dyn Costs),
    mode: Mode,
    now: Seconds,
    is_late: &dyn Fn() -> bool,
) -> Result<Vec<WhatIf>, SimulateError> {
    let changes = Change::ALL.into_iter().take_while(|_| !is_late());
    let known = changes.filter(|change| change.is_separable(costs.basis()));
    let what_if = |change: Change| {
        let then = seconds((program, costs), mode, change.speeds())?;
        Ok(WhatIf {
            change,
            iteration_seconds: then,
            speedup: if then.0 > 0.0 { now.0 / then.0 } else { 1.0 },
        })
    };
    known.map(what_if).collect()
}

/// The link bandwidth, from 1/16 to 16 times that of the machine, beyond which `second` is faster than
/// `first`, which is faster now; the nearer one, if there is one below and one above. Each program comes
/// with its costs. The search ends when it is late.
///
/// Errors: those of [`simulate`].
pub fn crossover(
    first: (&Program, &dyn Costs),
    second: (&Program, &dyn Costs),
    mode: Mode,
    is_late: &dyn Fn() -> bool,
) -> Result<CrossoverSearch, SimulateError> {
    let speeds = |exponent: f64| SpeedFactors {
        links: exponent.exp2(),
        ..SpeedFactors::default()
    };
    let is_second_faster = |exponent: f64| -> Result<bool, SimulateError> {
        let one = seconds(first, mode, speeds(exponent))?;
        let other = seconds(second, mode, speeds(exponent))?;
        Ok(other < one)
    };
    let end = LINKS_MAX.log2();
    let mut nearest: Option<f64> = None;
    for side in [-end, end] {
        if is_late() {
            return Ok(CrossoverSearch::Ended);
        }
        if !is_second_faster(side)? {
            continue;
        }
        let (mut near, mut far) = (0.0, side);
        for _ in 0..HALVINGS {
            if is_late() {
                return Ok(CrossoverSearch::Ended);
            }
            let middle = f64::midpoint(near, far);
            if is_second_faster(middle)? {
                far = middle;
            } else {
                near = middle;
            }
        }
        if nearest.is_none_or(|nearest| far.abs() < nearest.abs()) {
            nearest = Some(far);
        }
    }
    match nearest {
        None => Ok(CrossoverSearch::Never),
        Some(exponent) => Ok(CrossoverSearch::Found(Crossover {
            bandwidth: exponent.exp2(),
            iteration_seconds: seconds(first, mode, speeds(exponent))?,
        })),
    }
}

fn seconds(
    (program, costs): (&Program, &dyn Costs),
    mode: Mode,
    speeds: SpeedFactors,
) -> Result<Seconds, SimulateError> {
    let costs = ScaledCosts::new(costs, speeds);
    Ok(simulate(program, &costs, mode, 1)?.makespan)
}
