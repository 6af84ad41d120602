//! What bounds a program on a machine: limitations of the strategy and bottlenecks of the machine and the
//! implementation, found in the program and its simulation.
//!
//! Source: the categories are those of the table of limitations and bottlenecks in the ParaDL technical
//! report (October 2020).

mod changes;
mod memory;
mod redundancy;
mod replication;
mod time;

pub use changes::{Change, Crossover, CrossoverSearch, WhatIf, crossover, what_ifs};

use crate::cost::Costs;
use crate::simulate::{SimulateError, Simulation};
use partita_program::{Phase, Program};
use partita_space::{Bytes, Flops, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Least share of a step or of memory for a finding.
const SHARE_MIN: f64 = 0.001;

/// What limits time, memory or number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitingFactor {
    /// Reduction of gradients over ranks; with sharded training state, its allgathers too.
    GradientExchange,
    /// Collectives over activations, their gradients, and statistics.
    LayerCollectives,
    /// Messages between ranks: halos, and activations between stages.
    Messages,
    /// Contention at the network adapters of a node.
    Congestion,
    /// Reading of samples and moving them into the network.
    Reading,
    /// Replicas in memory of what other ranks hold.
    MemoryRedundancy,
    /// Fragmentation: unused memory between buffers at the peak.
    MemoryGaps,
    /// The optimizer.
    WeightUpdate,
    /// Ranks that wait for others: load imbalance, pipeline bubbles.
    WorkloadBalance,
    /// Redundant computation.
    ComputationRedundancy,
    /// The most ranks that a strategy can use.
    Ranks,
}

/// What is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Time of messages, collectives and reads.
    Communication,
    /// Memory of a rank.
    Memory,
    /// Time of kernels.
    Computation,
    /// Number of ranks.
    Scaling,
}

/// What a bound is due to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// The strategy; every machine and implementation has it.
    Limitation,
    /// The machine or the implementation.
    Bottleneck,
}

/// A limiting factor of a program with its numbers. Seconds are those of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The limiting factor.
    #[serde(rename = "item")]
    pub factor: LimitingFactor,
    /// What is bounded.
    pub area: Area,
    /// What it is due to.
    pub nature: Nature,
    /// Whether inference with the same strategy would have it, too.
    pub in_inference: bool,
    /// Phases in which it occurs; empty if it applies to the whole step.
    pub phases: Vec<Phase>,
    /// Its part of the critical path; of waiting, the mean over ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Seconds>,
    /// Its time on the rank with most of it, overlapped or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_seconds: Option<Seconds>,
    /// Its bytes on the rank with the most memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// Its flops over all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<Flops>,
    /// The most ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// `seconds` by the time of a step, or `bytes` by the memory of that rank; from 0 to 1.
    pub share: f64,
    /// The same in words.
    #[serde(rename = "says")]
    pub message: String,
}

impl LimitingFactor {
    /// All, in the order of reports.
    pub const ALL: [LimitingFactor; 11] = [
        LimitingFactor::GradientExchange,
        LimitingFactor::LayerCollectives,
        LimitingFactor::Messages,
        LimitingFactor::Congestion,
        LimitingFactor::Reading,
        LimitingFactor::MemoryRedundancy,
        LimitingFactor::MemoryGaps,
        LimitingFactor::WeightUpdate,
        LimitingFactor::WorkloadBalance,
        LimitingFactor::ComputationRedundancy,
        LimitingFactor::Ranks,
    ];

    /// What it bounds.
    pub fn area(self) -> Area {
        match self {
            LimitingFactor::GradientExchange
            | LimitingFactor::LayerCollectives
            | LimitingFactor::Messages
            | LimitingFactor::Congestion
            | LimitingFactor::Reading => Area::Communication,
            LimitingFactor::MemoryRedundancy | LimitingFactor::MemoryGaps => Area::Memory,
            LimitingFactor::WeightUpdate
            | LimitingFactor::WorkloadBalance
            | LimitingFactor::ComputationRedundancy => Area::Computation,
            LimitingFactor::Ranks => Area::Scaling,
        }
    }

    /// What it is due to.
    pub fn nature(self) -> Nature {
        match self {
            LimitingFactor::GradientExchange
            | LimitingFactor::LayerCollectives
            | LimitingFactor::WeightUpdate
            | LimitingFactor::WorkloadBalance
            | LimitingFactor::Ranks => Nature::Limitation,
            LimitingFactor::Messages
            | LimitingFactor::Congestion
            | LimitingFactor::Reading
            | LimitingFactor::MemoryRedundancy
            | LimitingFactor::MemoryGaps
            | LimitingFactor::ComputationRedundancy => Nature::Bottleneck,
        }
    }
}

impl fmt::Display for LimitingFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LimitingFactor::GradientExchange => "gradient exchange",
            LimitingFactor::LayerCollectives => "collectives of layers",
            LimitingFactor::Messages => "messages between ranks",
            LimitingFactor::Congestion => "network congestion",
            LimitingFactor::Reading => "reading",
            LimitingFactor::MemoryRedundancy => "memory redundancy",
            LimitingFactor::MemoryGaps => "memory gaps",
            LimitingFactor::WeightUpdate => "weight update",
            LimitingFactor::WorkloadBalance => "workload balance",
            LimitingFactor::ComputationRedundancy => "computation redundancy",
            LimitingFactor::Ranks => "number of ranks",
        })
    }
}

impl fmt::Display for Nature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Nature::Limitation => "limitation",
            Nature::Bottleneck => "bottleneck",
        })
    }
}

impl Finding {
    fn new(factor: LimitingFactor, phases: Vec<Phase>, share: f64, message: String) -> Self {
        Self {
            factor,
            area: factor.area(),
            nature: factor.nature(),
            in_inference: phases.is_empty() || phases.contains(&Phase::Forward),
            phases,
            seconds: None,
            rank_seconds: None,
            bytes: None,
            flops: None,
            ranks: None,
            share,
            message,
        }
    }

    /// The most ranks that the strategy can use, and why.
    pub fn of_ranks(ranks: usize, why: String) -> Self {
        Self {
            ranks: Some(ranks),
            ..Self::new(LimitingFactor::Ranks, Vec::new(), 0.0, why)
        }
    }
}

/// What bounds a program, in the order of [`LimitingFactor::ALL`], except for the number of ranks. `simulation`
/// must be of this program with these costs. Factors below a thousandth of the step or of the memory are left
/// out.
///
/// Simulates the program once more without contention.
/// Errors: those of [`crate::simulate()`].
pub fn explain(
    program: &Program,
    simulation: &Simulation,
    costs: &dyn Costs,
) -> Result<Vec<Finding>, SimulateError> {
    let mut findings = time::findings(program, simulation);
    findings.extend(time::congestion(program, simulation, costs)?);
    findings.extend(memory::findings(program));
    findings.extend(time::waiting(program, simulation));
    findings.extend(redundancy::finding(program, simulation));
    findings.sort_by_key(|finding| finding.factor);
    Ok(findings)
}
