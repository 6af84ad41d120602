//! What bounds a program on a machine: limits of the split and bottlenecks of machine and
//! implementation, each found in the program and its simulation.
//!
//! Source: the categories are those of the table of limitations and bottlenecks in the ParaDL technical
//! report (October 2020).

mod changes;
mod copies;
mod memory;
mod repeated;
mod time;

pub use changes::{Change, Turn, WhatIf, turning_point, what_ifs};

use crate::cost::Costs;
use crate::simulate::{SimulateError, Simulation};
use partita_program::{Phase, Program};
use partita_space::{Bytes, Flops, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Shares of a step, or of memory, below this are no findings.
const SHARE_MIN: f64 = 0.001;

/// What may bound a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// Sums of gradients over ranks; where training state is shared out, its gathering too.
    GradientExchange,
    /// Collectives over activations, their gradients, and statistics.
    LayerCollectives,
    /// Messages between ranks: halos, and what stages hand on.
    Messages,
    /// Messages and collectives that share the adapters of a node.
    Congestion,
    /// Reading of samples and bringing them into the network.
    Reading,
    /// Copies in memory of what other ranks hold.
    MemoryRedundancy,
    /// What lies between buffers when most is held.
    MemoryGaps,
    /// The optimizer.
    WeightUpdate,
    /// Ranks that wait for others: uneven work, bubbles of a pipeline.
    WorkloadBalance,
    /// What is computed more than once.
    ComputationRedundancy,
    /// How many ranks can take part.
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

/// Where a bound comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// From the way of splitting; no machine or implementation is without it.
    Limitation,
    /// From the machine or the implementation.
    Bottleneck,
}

/// A bound that applies to a program, with its numbers. Seconds are those of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What bounds.
    pub item: Item,
    /// What is bounded.
    pub area: Area,
    /// Where it comes from.
    pub nature: Nature,
    /// Whether inference with the same split would have it, too.
    pub in_inference: bool,
    /// Parts of the step in which it is found; none where it is a matter of the whole.
    pub phases: Vec<Phase>,
    /// By which it lengthens the critical path; of waiting the mean over ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Seconds>,
    /// On the rank that has most of it, hidden or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_seconds: Option<Seconds>,
    /// Of the largest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// Over all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<Flops>,
    /// Ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// `seconds` of the step, or `bytes` of the memory of that rank; from 0 to 1.
    pub share: f64,
    /// The same for people.
    pub says: String,
}

impl Item {
    /// All, in the order of reports.
    pub const ALL: [Item; 11] = [
        Item::GradientExchange,
        Item::LayerCollectives,
        Item::Messages,
        Item::Congestion,
        Item::Reading,
        Item::MemoryRedundancy,
        Item::MemoryGaps,
        Item::WeightUpdate,
        Item::WorkloadBalance,
        Item::ComputationRedundancy,
        Item::Ranks,
    ];

    /// What it bounds.
    pub fn area(self) -> Area {
        match self {
            Item::GradientExchange
            | Item::LayerCollectives
            | Item::Messages
            | Item::Congestion
            | Item::Reading => Area::Communication,
            Item::MemoryRedundancy | Item::MemoryGaps => Area::Memory,
            Item::WeightUpdate | Item::WorkloadBalance | Item::ComputationRedundancy => {
                Area::Computation
            }
            Item::Ranks => Area::Scaling,
        }
    }

    /// Where it comes from.
    pub fn nature(self) -> Nature {
        match self {
            Item::GradientExchange
            | Item::LayerCollectives
            | Item::WeightUpdate
            | Item::WorkloadBalance
            | Item::Ranks => Nature::Limitation,
            Item::Messages
            | Item::Congestion
            | Item::Reading
            | Item::MemoryRedundancy
            | Item::MemoryGaps
            | Item::ComputationRedundancy => Nature::Bottleneck,
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Item::GradientExchange => "gradient exchange",
            Item::LayerCollectives => "collectives of layers",
            Item::Messages => "messages between ranks",
            Item::Congestion => "network congestion",
            Item::Reading => "reading",
            Item::MemoryRedundancy => "memory redundancy",
            Item::MemoryGaps => "memory gaps",
            Item::WeightUpdate => "weight update",
            Item::WorkloadBalance => "workload balance",
            Item::ComputationRedundancy => "computation redundancy",
            Item::Ranks => "number of ranks",
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
    fn new(item: Item, phases: Vec<Phase>, share: f64, says: String) -> Self {
        Self {
            item,
            area: item.area(),
            nature: item.nature(),
            in_inference: phases.is_empty() || phases.contains(&Phase::Forward),
            phases,
            seconds: None,
            rank_seconds: None,
            bytes: None,
            flops: None,
            ranks: None,
            share,
            says,
        }
    }

    /// That no more than so many ranks can take part, and why.
    pub fn of_ranks(ranks: usize, why: String) -> Self {
        Self {
            ranks: Some(ranks),
            ..Self::new(Item::Ranks, Vec::new(), 0.0, why)
        }
    }
}

/// What bounds a program, in the order of [`Item::ALL`], found in a simulation of this very program with
/// these costs; how many ranks can take part is not found here. What makes less than a thousandth of the
/// step or of the memory is left out.
///
/// Plays the program once more, as if no message shared anything with another.
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
    findings.extend(repeated::finding(program, simulation));
    findings.sort_by_key(|finding| finding.item);
    Ok(findings)
}
