//! What a changed machine would bring: the same program with other costs.

use crate::cost::{CostBasis, Costs, Scaled, Speeds};
use crate::simulate::{Mode, SimulateError, simulate};
use partita_program::Program;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Links are made faster and slower up to here.
const LINKS_MAX: f64 = 16.0;
/// Halvings of the range of exponents, after which a factor is known to within 3 %.
const HALVINGS: usize = 7;

/// One change of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Twice the bandwidth between ranks.
    LinkBandwidth,
    /// Half the latency of messages and collectives.
    LinkLatency,
    /// Twice the rates of arithmetic.
    Arithmetic,
    /// Twice the rate of memory.
    MemoryBandwidth,
    /// Kernels that take half as long.
    Kernels,
    /// Reading in half the time.
    Reading,
}

/// What a change brings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// The change.
    pub change: Change,
    /// Of a step then.
    pub iteration_seconds: Seconds,
    /// How many times as fast as now.
    pub speedup: f64,
}

/// The bandwidth of links at which one program takes as long as another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Times the bandwidth at hand.
    pub bandwidth: f64,
    /// Of a step of the first one then.
    pub iteration_seconds: Seconds,
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

    /// Measured times of kernels do not tell arithmetic from memory.
    fn is_known(self, basis: CostBasis) -> bool {
        match self {
            Change::Arithmetic | Change::MemoryBandwidth => basis == CostBasis::Modelled,
            Change::LinkBandwidth | Change::LinkLatency | Change::Kernels | Change::Reading => true,
        }
    }

    fn speeds(self) -> Speeds {
        let mut speeds = Speeds::default();
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

/// What each change alone would bring to a program that takes `now` a step.
///
/// Errors: those of [`simulate`].
pub fn what_ifs(
    program: &Program,
    costs: &dyn Costs,
    mode: Mode,
    now: Seconds,
) -> Result<Vec<WhatIf>, SimulateError> {
    let changes = Change::ALL.into_iter();
    let known = changes.filter(|change| change.is_known(costs.basis()));
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

/// At which bandwidth of links, from a sixteenth of the one at hand to sixteen times that, a second
/// program passes a first one that is faster now; none where it does not. Each comes with its costs.
///
/// Where it does for slower links and for faster ones, the nearer turn is told.
/// Errors: those of [`simulate`].
pub fn turning_point(
    first: (&Program, &dyn Costs),
    second: (&Program, &dyn Costs),
    mode: Mode,
) -> Result<Option<Turn>, SimulateError> {
    let speeds = |exponent: f64| Speeds {
        links: exponent.exp2(),
        ..Speeds::default()
    };
    let is_passed = |exponent: f64| -> Result<bool, SimulateError> {
        let one = seconds(first, mode, speeds(exponent))?;
        let other = seconds(second, mode, speeds(exponent))?;
        Ok(other < one)
    };
    let end = LINKS_MAX.log2();
    let mut nearest: Option<f64> = None;
    for side in [-end, end] {
        if !is_passed(side)? {
            continue;
        }
        let (mut near, mut far) = (0.0, side);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(near, far);
            if is_passed(middle)? {
                far = middle;
            } else {
                near = middle;
            }
        }
        if nearest.is_none_or(|nearest| far.abs() < nearest.abs()) {
            nearest = Some(far);
        }
    }
    let turn = |exponent: f64| {
        Ok(Turn {
            bandwidth: exponent.exp2(),
            iteration_seconds: seconds(first, mode, speeds(exponent))?,
        })
    };
    nearest.map(turn).transpose()
}

fn seconds(
    (program, costs): (&Program, &dyn Costs),
    mode: Mode,
    speeds: Speeds,
) -> Result<Seconds, SimulateError> {
    let costs = Scaled::new(costs, speeds);
    Ok(simulate(program, &costs, mode, 1)?.makespan)
}
