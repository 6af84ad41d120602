//! Closed forms of ParaDL: a step's time and memory from a table of layers, nothing lowered or played.
//!
//! Source: the technical report of October 2020 on the ParaDL oracle, table III and equations 3 to 22, of
//! which `Source` names what differs; data with spatial parallelism as its public tool computes it. The
//! report's forms are those of an epoch; ours are those of a step, an epoch being as many as it has.
//!
//! Symbols: `B` samples of a step; `p = p1 p2` ranks, `p1` groups of `p2`; `|x|`, `|y|`, `|w|` elements of
//! the input and output of a layer for a sample and of its weights; `FW`, `BW` seconds of a sample, `WU`
//! of an update; `d` bytes of an element; `a + m b` seconds of a message of `m` bytes.
//!
//! Assumptions: nothing overlaps; samples are in memory; kernels are as fast in parts as whole; all sums
//! and gathers go round a ring whose slowest link counts; the input of a layer and the output of the one
//! before are counted twice, and each with its gradient.

use partita_space::{Bytes, Seconds};
use std::ops::Range;

/// What is known of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerRow {
    /// Elements of the input for a sample.
    pub inputs: f64,
    /// Elements of the output for a sample.
    pub outputs: f64,
    /// Elements of the weights.
    pub weights: f64,
    /// Seconds of the forward pass of a sample on one rank.
    pub forward: Seconds,
    /// Seconds of the backward pass of a sample on one rank.
    pub backward: Seconds,
    /// Seconds of an update on one rank.
    pub update: Seconds,
    /// Whether strategies that split layers split this one; else each rank of a group computes all of it.
    pub is_split: bool,
    /// Elements of the input of a sample that a rank gets from neighbors where samples are split as asked.
    pub halo_inputs: f64,
    /// The same of the gradient of the output.
    pub halo_outputs: f64,
    /// The most ranks over which the positions of a sample can be split here.
    pub positions: usize,
    /// Channels that are read.
    pub channels: usize,
    /// Channels that are computed.
    pub filters: usize,
}

/// A message of `m` bytes takes `start + m * byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wire {
    /// Seconds of an empty message.
    pub start: Seconds,
    /// Seconds of a byte.
    pub byte: Seconds,
}

/// The slowest link of each kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wires {
    /// Between neighbors: halos, and what passes from stage to stage.
    pub pair: Wire,
    /// The ring within a group of ranks that share samples, filters or channels.
    pub group: Wire,
    /// The ring over groups, or over all ranks where there is no group.
    pub across: Wire,
}

/// How a training is split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Not at all.
    Serial,
    /// Samples over so many ranks.
    Data(usize),
    /// The positions of every sample over so many ranks.
    Spatial(usize),
    /// Layers over ranks, as ranges of the table, with so many segments of a mini-batch.
    Pipeline(Vec<Range<usize>>, usize),
    /// The filters of each layer over so many ranks.
    Filter(usize),
    /// The channels that each layer reads over so many ranks.
    Channel(usize),
    /// Samples over `[p1, _]` groups, filters over the `[_, p2]` ranks of a group.
    DataFilter([usize; 2]),
    /// Samples over `[p1, _]` groups, positions of each over the `[_, p2]` ranks of a group, up to the last
    /// layer that is split; its output is gathered.
    DataSpatial([usize; 2]),
}

impl Split {
    /// Its name in lower case.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Data(_) => "data",
            Self::Spatial(_) => "spatial",
            Self::Pipeline(..) => "pipeline",
            Self::Filter(_) => "filter",
            Self::Channel(_) => "channel",
            Self::DataFilter(_) => "data and filter",
            Self::DataSpatial(_) => "data and spatial",
        }
    }
}

/// What the closed forms say of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Seconds of computation.
    pub compute: Seconds,
    /// Seconds of communication.
    pub communication: Seconds,
    /// Memory of the rank that needs most.
    pub memory: Bytes,
    /// The most ranks that can be used.
    pub ranks_max: usize,
}

impl Estimate {
    /// Seconds of a step.
    pub fn seconds(&self) -> Seconds {
        self.compute + self.communication
    }
}

/// About how long a step takes under a mixture of forms, which no form describes: the computation in
/// equal parts, and the longer of the communication of samples with positions (`by_tiles`) and of samples
/// with filters (`by_shares`), of which the first moves a part alone where filters are shared by `shares`
/// ranks. `serial` is the step of one of `ranks` ranks alone.
pub fn of_mixture(
    serial: &Estimate,
    [by_tiles, by_shares]: [&Estimate; 2],
    ranks: usize,
    shares: usize,
) -> Seconds {
    let parts = 1.0 / ranks as f64;
    let by_tiles = by_tiles.communication;
    let moved = match shares {
        1 => by_tiles,
        _ => by_shares
            .communication
            .max(by_tiles * (1.0 / shares as f64)),
    };
    serial.compute * parts + moved
}

/// A training as the closed forms see it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Its layers in order.
    pub layers: &'a [LayerRow],
    /// Samples of a step, of all ranks.
    pub batch: usize,
    /// Bytes of an element.
    pub item: usize,
}

impl Table<'_> {
    /// A step under this split.
    pub fn estimate(&self, split: &Split, wires: &Wires) -> Estimate {
        let [compute, communication] = match split {
            Split::Serial => [self.compute(1.0, 1.0) + self.update(1.0), 0.0],
            Split::Data(ranks) => self.data(*ranks as f64, wires),
            Split::Spatial(ranks) => self.spatial(*ranks as f64, wires),
            Split::Pipeline(stages, segments) => self.pipeline(stages, *segments as f64, wires),
            Split::Filter(ranks) | Split::Channel(ranks) => self.shares(1.0, *ranks as f64, wires),
            Split::DataFilter([groups, ranks]) => self.shares(*groups as f64, *ranks as f64, wires),
            Split::DataSpatial([groups, ranks]) => self.tiles(*groups as f64, *ranks as f64, wires),
        };
        Estimate {
            compute: Seconds(compute),
            communication: Seconds(communication),
            memory: Bytes(self.memory(split) as u64),
            ranks_max: self.ranks_max(split),
        }
    }

    /// `B/p1 sum (FW + BW)`, of split layers by `p2`.
    fn compute(&self, groups: f64, ranks: f64) -> f64 {
        let seconds = |layer: &LayerRow| {
            let whole = (layer.forward + layer.backward).0;
            if layer.is_split { whole / ranks } else { whole }
        };
        self.batch as f64 / groups * self.sum(seconds)
    }

    /// `sum WU`, of split layers by `p2`.
    fn update(&self, ranks: f64) -> f64 {
        self.sum(|layer| {
            if layer.is_split {
                layer.update.0 / ranks
            } else {
                layer.update.0
            }
        })
    }

    /// `B/p sum (FW + BW) + sum WU`; `2 (p-1) (a + |w|/p d b)`.
    fn data(&self, ranks: f64, wires: &Wires) -> [f64; 2] {
        [
            self.compute(ranks, 1.0) + self.update(1.0),
            self.allreduce(ranks, self.weights(), wires.across),
        ]
    }

    /// As data parallelism, and for each layer with a halo `2 (2 a + B (halo(x) + halo(dy)) d b)`.
    fn spatial(&self, ranks: f64, wires: &Wires) -> [f64; 2] {
        let batch = self.batch as f64;
        let halos = self.sum(|layer| {
            let halo = batch * (layer.halo_inputs + layer.halo_outputs);
            if halo > 0.0 && layer.is_split {
                2.0 * (2.0 * wires.pair.start.0 + self.bytes(halo) * wires.pair.byte.0)
            } else {
                0.0
            }
        });
        let gradients = self.allreduce(ranks, self.weights(), wires.across);
        [
            self.compute(1.0, ranks) + self.update(1.0),
            gradients + halos,
        ]
    }

    /// `B (p+S-1)/S (max FW + max BW) + max WU`; `2 (p+S-2) max (a + B/S |y| d b)`.
    ///
    /// Source: equation 12 has the update within the product, though it comes once a step and not once a
    /// sample; here it is outside.
    fn pipeline(&self, stages: &[Range<usize>], segments: f64, wires: &Wires) -> [f64; 2] {
        let (ranks, batch) = (stages.len() as f64, self.batch as f64);
        let most = |of: &dyn Fn(&LayerRow) -> f64| {
            let sums = stages
                .iter()
                .map(|stage| self.layers[stage.clone()].iter().map(of).sum::<f64>());
            sums.fold(0.0, f64::max)
        };
        let forward = most(&|layer| layer.forward.0);
        let backward = most(&|layer| layer.backward.0);
        let turns = batch * (ranks + segments - 1.0) / segments;
        let borders = stages.split_last().map_or(&[][..], |(_, before)| before);
        let messages = borders.iter().filter_map(|stage| {
            let last = self.layers[stage.clone()].last()?;
            let bytes = self.bytes(batch / segments * last.outputs);
            Some(wires.pair.start.0 + bytes * wires.pair.byte.0)
        });
        let longest = messages.fold(0.0, f64::max);
        [
            turns * (forward + backward) + most(&|layer| layer.update.0),
            2.0 * (ranks + segments - 2.0) * longest,
        ]
    }

    /// `B/p sum (FW + BW) + sum WU / p2`; `3 (p2-1) sum (a + B |y|/p d b) + 2 (p1-1) (a + |w|/p d b)`,
    /// the first sum without the last layer.
    ///
    /// Of the factor 3 one is an allgather of the filters, two are an allreduce of what they give to the
    /// gradient of the input; of channels it is the other way round. The printed form takes shares of all
    /// gradients, those of layers that are not split too.
    fn shares(&self, groups: f64, ranks: f64, wires: &Wires) -> [f64; 2] {
        let (batch, all) = (self.batch as f64, groups * ranks);
        let inner = self.layers.split_last().map_or(&[][..], |(_, inner)| inner);
        let gathers = inner.iter().filter(|layer| layer.is_split).map(|layer| {
            let bytes = self.bytes(batch * layer.outputs / all);
            wires.group.start.0 + bytes * wires.group.byte.0
        });
        let gathers = 3.0 * (ranks - 1.0) * gathers.sum::<f64>();
        let weights = self.weights() / ranks;
        [
            self.compute(groups, ranks) + self.update(ranks),
            gathers + self.allreduce(groups, weights, wires.across),
        ]
    }

    /// `B/p1 (sum of split (FW + BW)/p2 + sum of others) + sum WU`; for each split layer with a halo
    /// `4 (a + B/p1 halo(x) d b)`; a gather of the output of the last of them, `2 (p2-1) (a + B/p1 |y|/p2 d b)`;
    /// sums of gradients within groups, `2 (p2-1) (a + |w|/p2 d b)`, and between these,
    /// `2 (p1-1) (a + |w|/p1 d b)`.
    ///
    /// Source: the public tool; the report has no such row.
    fn tiles(&self, groups: f64, ranks: f64, wires: &Wires) -> [f64; 2] {
        let samples = self.batch as f64 / groups;
        let halos = self.sum(|layer| {
            if layer.halo_inputs > 0.0 && layer.is_split {
                let bytes = self.bytes(samples * layer.halo_inputs);
                4.0 * (wires.pair.start.0 + bytes * wires.pair.byte.0)
            } else {
                0.0
            }
        });
        let last = self.layers.iter().rfind(|layer| layer.is_split);
        let gather = last.map_or(0.0, |layer| {
            let bytes = self.bytes(samples * layer.outputs / ranks);
            2.0 * (ranks - 1.0) * (wires.group.start.0 + bytes * wires.group.byte.0)
        });
        let within = self.allreduce(ranks, self.weights(), wires.group);
        let between = self.allreduce(groups, self.weights(), wires.across);
        [
            self.compute(groups, ranks) + self.update(1.0),
            halos + gather + within + between,
        ]
    }

    /// `2 (p-1) (a + m/p b)`, `m` being the bytes of so many elements.
    fn allreduce(&self, ranks: f64, elements: f64, wire: Wire) -> f64 {
        let part = self.bytes(elements) / ranks;
        2.0 * (ranks - 1.0) * (wire.start.0 + part * wire.byte.0)
    }

    /// `2 d sum (samples (|x| + |y|) + |w|)`, each by the ranks that share it.
    fn memory(&self, split: &Split) -> f64 {
        let [samples, positions, weights] = match split {
            Split::Serial => [1, 1, 1],
            Split::Data(ranks) => [*ranks, 1, 1],
            Split::Spatial(ranks) => [1, *ranks, 1],
            Split::Filter(ranks) | Split::Channel(ranks) => [1, 1, *ranks],
            Split::DataFilter([groups, ranks]) => [*groups, 1, *ranks],
            Split::DataSpatial([groups, ranks]) => [*groups, *ranks, 1],
            Split::Pipeline(stages, _) => {
                let stages = stages.iter().map(|stage| Table {
                    layers: &self.layers[stage.clone()],
                    ..*self
                });
                let each = stages.map(|stage| stage.memory(&Split::Serial));
                return each.fold(0.0, f64::max);
            }
        };
        let samples = self.batch as f64 / samples as f64;
        let elements = self.sum(|layer| {
            let [positions, weights] = if layer.is_split {
                [positions as f64, weights as f64]
            } else {
                [1.0; 2]
            };
            samples * (layer.inputs + layer.outputs) / positions + layer.weights / weights
        });
        2.0 * self.bytes(elements)
    }

    /// Over how many ranks a mini-batch, the smallest layer or all layers can be split.
    fn ranks_max(&self, split: &Split) -> usize {
        let least = |of: &dyn Fn(&LayerRow) -> usize| {
            let split = self.layers.iter().filter(|layer| layer.is_split);
            split.map(of).min().unwrap_or(1)
        };
        match split {
            Split::Serial => 1,
            Split::Data(_) => self.batch,
            Split::Spatial(_) => least(&|layer| layer.positions),
            Split::Pipeline(..) => self.layers.len(),
            Split::Filter(_) => least(&|layer| layer.filters),
            Split::Channel(_) => least(&|layer| layer.channels),
            Split::DataFilter(_) => self.batch * least(&|layer| layer.filters),
            Split::DataSpatial(_) => self.batch * least(&|layer| layer.positions),
        }
    }

    fn weights(&self) -> f64 {
        self.sum(|layer| layer.weights)
    }

    fn sum(&self, of: impl Fn(&LayerRow) -> f64) -> f64 {
        self.layers.iter().map(of).sum()
    }

    fn bytes(&self, elements: f64) -> f64 {
        elements * self.item as f64
    }
}
