//! Closed forms of ParaDL: time and memory of a step from a table of layers, without a program.
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

/// A layer in the closed forms.
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
    /// Whether parallelism within layers splits this one; otherwise each rank of a group computes all of it.
    pub is_split: bool,
    /// Elements of the input of a sample that a rank receives from its neighbors as halo.
    pub halo_inputs: f64,
    /// The same for the gradient of the output.
    pub halo_outputs: f64,
    /// The most ranks over which the positions of a sample can be split in this layer.
    pub positions: usize,
    /// Input channels.
    pub channels: usize,
    /// Output channels.
    pub filters: usize,
}

/// A link on which a message of `m` bytes takes `latency + m * byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Seconds of an empty message.
    pub latency: Seconds,
    /// Seconds per byte.
    pub byte: Seconds,
}

/// The slowest link of each kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// Between neighbors: halos, and activations between stages.
    pub pair: Link,
    /// The ring within a group of ranks that share samples, filters or channels.
    pub group: Link,
    /// The ring across groups, or over all ranks if there are no groups.
    pub across: Link,
}

/// How a training is parallelized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// One rank.
    Serial,
    /// Samples over this many ranks.
    Data(usize),
    /// The positions of every sample over this many ranks.
    Spatial(usize),
    /// Stages as ranges of layers, and the number of micro-batches.
    Pipeline(Vec<Range<usize>>, usize),
    /// The filters of each layer over this many ranks.
    Filter(usize),
    /// The input channels of each layer over this many ranks.
    Channel(usize),
    /// Samples over `[p1, _]` groups, filters over the `[_, p2]` ranks of a group.
    DataFilter([usize; 2]),
    /// Samples over `[p1, _]` groups, positions over the `[_, p2]` ranks of a group, up to the last layer
    /// that is split; its output is gathered.
    DataSpatial([usize; 2]),
}

impl Parallelism {
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

/// Time and memory of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Seconds of computation.
    pub compute: Seconds,
    /// Seconds of communication.
    pub communication: Seconds,
    /// Memory of the rank that needs most.
    pub memory: Bytes,
    /// The most ranks that this parallelism can use.
    pub ranks_max: usize,
}

impl Estimate {
    /// Seconds of a step.
    pub fn seconds(&self) -> Seconds {
        self.compute + self.communication
    }
}

/// An approximation for parallelism that combines data, spatial and filter, for which there is no closed
/// form. The computation is divided evenly over `ranks`. The communication is the larger of `data_spatial`,
/// divided by the `filters` ranks that split its tensors further, and of `data_filter`. `serial` is the step
/// on one rank.
pub fn hybrid_seconds(
    serial: &Estimate,
    [data_spatial, data_filter]: [&Estimate; 2],
    ranks: usize,
    filters: usize,
) -> Seconds {
    let parts = 1.0 / ranks as f64;
    let data_spatial = data_spatial.communication;
    let communication = match filters {
        1 => data_spatial,
        _ => data_filter
            .communication
            .max(data_spatial * (1.0 / filters as f64)),
    };
    serial.compute * parts + communication
}

/// The layers and the batch of a training.
#[derive(Clone, Copy, Debug)]
pub struct LayerTable<'a> {
    /// Its layers in order.
    pub layers: &'a [LayerRow],
    /// Samples of a step, of all ranks.
    pub batch: usize,
    /// Bytes of an element of an input or output.
    pub item: usize,
    /// Bytes of an element of a weight.
    pub weight_item: usize,
}

impl LayerTable<'_> {
    /// Time and memory of a step.
    pub fn estimate(&self, split: &Parallelism, links: &Links) -> Estimate {
        let [compute, communication] = match split {
            Parallelism::Serial => [self.compute(1.0, 1.0) + self.update(1.0), 0.0],
            Parallelism::Data(ranks) => self.data(*ranks as f64, links),
            Parallelism::Spatial(ranks) => self.spatial(*ranks as f64, links),
            Parallelism::Pipeline(stages, micro_batches) => {
                self.pipeline(stages, *micro_batches as f64, links)
            }
            Parallelism::Filter(ranks) | Parallelism::Channel(ranks) => {
                self.data_filter(1.0, *ranks as f64, links)
            }
            Parallelism::DataFilter([groups, ranks]) => {
                self.data_filter(*groups as f64, *ranks as f64, links)
            }
            Parallelism::DataSpatial([groups, ranks]) => {
                self.data_spatial(*groups as f64, *ranks as f64, links)
            }
        };
        Estimate {
            compute: Seconds(compute),
            communication: Seconds(communication),
            memory: Bytes(self.memory(split) as u64),
            ranks_max: self.ranks_max(split),
        }
    }

    /// `B/p1 sum (FW + BW)`, divided by `p2` for split layers.
    fn compute(&self, groups: f64, ranks: f64) -> f64 {
        let seconds = |layer: &LayerRow| {
            let whole = (layer.forward + layer.backward).0;
            if layer.is_split { whole / ranks } else { whole }
        };
        self.batch as f64 / groups * self.sum(seconds)
    }

    /// `sum WU`, divided by `p2` for split layers.
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
    fn data(&self, ranks: f64, links: &Links) -> [f64; 2] {
        [
            self.compute(ranks, 1.0) + self.update(1.0),
            self.allreduce(ranks, self.weights(), links.across),
        ]
    }

    /// As data parallelism, and for each layer with a halo `2 (2 a + B (halo(x) + halo(dy)) d b)`.
    fn spatial(&self, ranks: f64, links: &Links) -> [f64; 2] {
        let batch = self.batch as f64;
        let halos = self.sum(|layer| {
            let halo = batch * (layer.halo_inputs + layer.halo_outputs);
            if halo > 0.0 && layer.is_split {
                2.0 * (2.0 * links.pair.latency.0 + self.bytes(halo) * links.pair.byte.0)
            } else {
                0.0
            }
        });
        let gradients = self.allreduce(ranks, self.weights(), links.across);
        [
            self.compute(1.0, ranks) + self.update(1.0),
            gradients + halos,
        ]
    }

    /// `B (p+S-1)/S (max FW + max BW) + max WU`; `2 (p+S-2) max (a + B/S |y| d b)`.
    ///
    /// Source: equation 12 has the update within the product, though it comes once a step and not once a
    /// sample; here it is outside.
    fn pipeline(&self, stages: &[Range<usize>], micro_batches: f64, links: &Links) -> [f64; 2] {
        let (ranks, batch) = (stages.len() as f64, self.batch as f64);
        let most = |of: &dyn Fn(&LayerRow) -> f64| {
            let sums = stages
                .iter()
                .map(|stage| self.layers[stage.clone()].iter().map(of).sum::<f64>());
            sums.fold(0.0, f64::max)
        };
        let forward = most(&|layer| layer.forward.0);
        let backward = most(&|layer| layer.backward.0);
        let turns = batch * (ranks + micro_batches - 1.0) / micro_batches;
        let borders = stages.split_last().map_or(&[][..], |(_, before)| before);
        let messages = borders.iter().filter_map(|stage| {
            let last = self.layers[stage.clone()].last()?;
            let bytes = self.bytes(batch / micro_batches * last.outputs);
            Some(links.pair.latency.0 + bytes * links.pair.byte.0)
        });
        let longest = messages.fold(0.0, f64::max);
        [
            turns * (forward + backward) + most(&|layer| layer.update.0),
            2.0 * (ranks + micro_batches - 2.0) * longest,
        ]
    }

    /// `B/p sum (FW + BW) + sum WU / p2`; `3 (p2-1) sum (a + B |y|/p d b) + 2 (p1-1) (a + |w|/p d b)`,
    /// the first sum without the last layer.
    ///
    /// Of the factor 3 one is an allgather of the filters, two are an allreduce of what they give to the
    /// gradient of the input; of channels it is the other way round. The printed form takes shares of all
    /// gradients, those of layers that are not split too.
    fn data_filter(&self, groups: f64, ranks: f64, links: &Links) -> [f64; 2] {
        let (batch, all) = (self.batch as f64, groups * ranks);
        let inner = self.layers.split_last().map_or(&[][..], |(_, inner)| inner);
        let gathers = inner.iter().filter(|layer| layer.is_split).map(|layer| {
            let bytes = self.bytes(batch * layer.outputs / all);
            links.group.latency.0 + bytes * links.group.byte.0
        });
        let gathers = 3.0 * (ranks - 1.0) * gathers.sum::<f64>();
        let weights = self.weights() / ranks;
        [
            self.compute(groups, ranks) + self.update(ranks),
            gathers + self.allreduce(groups, weights, links.across),
        ]
    }

    /// `B/p1 (sum of split (FW + BW)/p2 + sum of others) + sum WU`; for each split layer with a halo
    /// `4 (a + B/p1 halo(x) d b)`; a gather of the output of the last of them, `2 (p2-1) (a + B/p1 |y|/p2 d b)`;
    /// sums of gradients within groups, `2 (p2-1) (a + |w|/p2 d b)`, and between these,
    /// `2 (p1-1) (a + |w|/p1 d b)`.
    ///
    /// Source: the public tool; the report has no such row.
    fn data_spatial(&self, groups: f64, ranks: f64, links: &Links) -> [f64; 2] {
        let samples = self.batch as f64 / groups;
        let halos = self.sum(|layer| {
            if layer.halo_inputs > 0.0 && layer.is_split {
                let bytes = self.bytes(samples * layer.halo_inputs);
                4.0 * (links.pair.latency.0 + bytes * links.pair.byte.0)
            } else {
                0.0
            }
        });
        let last = self.layers.iter().rfind(|layer| layer.is_split);
        let gather = last.map_or(0.0, |layer| {
            let bytes = self.bytes(samples * layer.outputs / ranks);
            2.0 * (ranks - 1.0) * (links.group.latency.0 + bytes * links.group.byte.0)
        });
        let within = self.allreduce(ranks, self.weights(), links.group);
        let between = self.allreduce(groups, self.weights(), links.across);
        [
            self.compute(groups, ranks) + self.update(1.0),
            halos + gather + within + between,
        ]
    }

    /// Ring allreduce: `2 (p-1) (a + m/p b)`, with `m` the bytes of this many elements.
    fn allreduce(&self, ranks: f64, elements: f64, link: Link) -> f64 {
        let part = elements * self.weight_item as f64 / ranks;
        2.0 * (ranks - 1.0) * (link.latency.0 + part * link.byte.0)
    }

    /// `2 d sum (B (|x| + |y|) + |w|)`, each divided by the ranks that split it.
    fn memory(&self, split: &Parallelism) -> f64 {
        let [samples, positions, weights] = match split {
            Parallelism::Serial => [1, 1, 1],
            Parallelism::Data(ranks) => [*ranks, 1, 1],
            Parallelism::Spatial(ranks) => [1, *ranks, 1],
            Parallelism::Filter(ranks) | Parallelism::Channel(ranks) => [1, 1, *ranks],
            Parallelism::DataFilter([groups, ranks]) => [*groups, 1, *ranks],
            Parallelism::DataSpatial([groups, ranks]) => [*groups, *ranks, 1],
            Parallelism::Pipeline(stages, _) => {
                let stages = stages.iter().map(|stage| LayerTable {
                    layers: &self.layers[stage.clone()],
                    ..*self
                });
                let each = stages.map(|stage| stage.memory(&Parallelism::Serial));
                return each.fold(0.0, f64::max);
            }
        };
        let samples = self.batch as f64 / samples as f64;
        let bytes = self.sum(|layer| {
            let [positions, weights] = if layer.is_split {
                [positions as f64, weights as f64]
            } else {
                [1.0; 2]
            };
            let tensors = self.bytes(samples * (layer.inputs + layer.outputs) / positions);
            tensors + layer.weights * self.weight_item as f64 / weights
        });
        2.0 * bytes
    }

    /// The most ranks over which the mini-batch, the smallest layer or the list of layers can be split.
    fn ranks_max(&self, split: &Parallelism) -> usize {
        let least = |of: &dyn Fn(&LayerRow) -> usize| {
            let split = self.layers.iter().filter(|layer| layer.is_split);
            split.map(of).min().unwrap_or(1)
        };
        match split {
            Parallelism::Serial => 1,
            Parallelism::Data(_) => self.batch,
            Parallelism::Spatial(_) => least(&|layer| layer.positions),
            Parallelism::Pipeline(..) => self.layers.len(),
            Parallelism::Filter(_) => least(&|layer| layer.filters),
            Parallelism::Channel(_) => least(&|layer| layer.channels),
            Parallelism::DataFilter(_) => self.batch * least(&|layer| layer.filters),
            Parallelism::DataSpatial(_) => self.batch * least(&|layer| layer.positions),
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
