//! Reads a software profile.

use super::{RawFact, RawLink, Reader};
use crate::error::MachineError;
use crate::machine::Fact;
use crate::network::CollectiveLibrary;
use crate::software::{
    GpuKernels, GpuMemory, KernelSplit, NeighborExchange, Redistribution, Software, SoftwareSums,
    SumFit,
};
use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSoftware {
    name: Spanned<String>,
    strategy: Option<RawFact>,
    collectives: RawFact,
    data_store: RawFact,
    spatial_io: Option<RawFact>,
    exchange: Option<RawExchange>,
    allreduce: Option<RawSums>,
    redistribution: Option<RawRedistribution>,
    kernels: Option<RawKernels>,
    memory: Option<RawMemory>,
    built: Option<RawFact>,
    staging: Option<RawLink>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExchange {
    intra: RawLink,
    inter: RawLink,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSums {
    occupancy: Option<RawFact>,
    fit: Option<RawSumFit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSumFit {
    latency_intra: RawFact,
    latency_inter: RawFact,
    adapters: RawFact,
    growth: Option<RawFact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRedistribution {
    backward: RawFact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKernels {
    batch_norm: Option<RawFact>,
    pointwise: Option<RawFact>,
    split: Option<RawSplit>,
    gpu: Option<RawGpuKernels>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGpuKernels {
    conv2d: RawFact,
    conv3d: RawFact,
    memory_bound: RawFact,
    start: RawFact,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSplit {
    filter: Option<RawFact>,
    channel: Option<RawFact>,
    space: Option<RawFact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMemory {
    context: RawFact,
    workspace: RawFact,
}

/// Keys that every software profile has, and no machine file.
pub(super) const KEYS: [&str; 2] = ["collectives", "data_store"];

impl Software {
    /// Reads the text of a software profile; `file` is the name that errors give it.
    ///
    /// Errors: the first fault, with its line, its key and what is possible there.
    pub fn parse(text: &str, file: &str) -> Result<Software, MachineError> {
        let reader = Reader { text, file };
        let other = |file| MachineError::IsMachine { file };
        reader.software(reader.raw((&KEYS, &super::KEYS), other)?)
    }
}

impl Reader<'_> {
    fn software(&self, raw: RawSoftware) -> Result<Software, MachineError> {
        let exchange = raw.exchange.map(|raw| self.neighbors(raw));
        let allreduce = raw.allreduce.map(|raw| self.sums(raw));
        let redistribution = raw.redistribution.map(|raw| self.redistribution(raw));
        let memory = raw.memory.map(|raw| self.gpu_memory(raw));
        let (batch_norm, pointwise, split, gpu) = match raw.kernels {
            None => (None, None, None, None),
            Some(raw) => (raw.batch_norm, raw.pointwise, raw.split, raw.gpu),
        };
        Ok(Software {
            name: self.word("name", raw.name)?,
            strategy: self.maybe("strategy", raw.strategy)?,
            collectives: self.library(raw.collectives)?,
            data_store: self.fact("data_store", raw.data_store)?,
            spatial_io: self.maybe("spatial_io", raw.spatial_io)?,
            exchange: exchange.transpose()?,
            allreduce: allreduce.transpose()?,
            redistribution: redistribution.transpose()?,
            batch_norm: batch_norm
                .map(|raw| self.fitted("kernels.batch_norm", raw))
                .transpose()?,
            pointwise: pointwise
                .map(|raw| self.fitted("kernels.pointwise", raw))
                .transpose()?,
            split: match split {
                None => KernelSplit::default(),
                Some(raw) => self.split(raw)?,
            },
            memory: memory.transpose()?,
            built: self.maybe("built", raw.built)?,
            gpu_kernels: gpu.map(|raw| self.gpu_kernels(raw)).transpose()?,
            staging: raw
                .staging
                .map(|raw| self.exchange_at("staging", raw))
                .transpose()?,
        })
    }

    /// The word of a library, with the nearest one if it is unknown.
    fn library(&self, raw: RawFact) -> Result<Fact<CollectiveLibrary>, MachineError> {
        let words = CollectiveLibrary::ALL.map(|library| (library.name(), library));
        let library = self.plain_choice("collectives", &raw.value, &words)?;
        let fact: Fact<String> = self.fact("collectives", raw)?;
        Ok(Fact {
            value: library,
            basis: fact.basis,
            source: fact.source,
        })
    }

    fn neighbors(&self, raw: RawExchange) -> Result<NeighborExchange, MachineError> {
        Ok(NeighborExchange {
            intra: self.exchange_at("exchange.intra", raw.intra)?,
            inter: self.exchange_at("exchange.inter", raw.inter)?,
        })
    }

    fn sums(&self, raw: RawSums) -> Result<SoftwareSums, MachineError> {
        let why = "a sum takes no more than all of a device";
        let occupancy = raw
            .occupancy
            .map(|raw| self.at_most_all("allreduce.occupancy", raw, why));
        let fit = raw.fit.map(|raw| self.sum_fit(raw));
        Ok(SoftwareSums {
            occupancy: occupancy.transpose()?,
            fit: fit.transpose()?,
        })
    }

    fn sum_fit(&self, raw: RawSumFit) -> Result<SumFit, MachineError> {
        let why = "twice the nodes at most double the time of a byte";
        let growth = raw
            .growth
            .map(|raw| self.at_most_all("allreduce.fit.growth", raw, why));
        Ok(SumFit {
            latency_intra: self.fact("allreduce.fit.latency_intra", raw.latency_intra)?,
            latency_inter: self.fact("allreduce.fit.latency_inter", raw.latency_inter)?,
            adapters: self.fact("allreduce.fit.adapters", raw.adapters)?,
            growth: growth.transpose()?,
        })
    }

    fn redistribution(&self, raw: RawRedistribution) -> Result<Redistribution, MachineError> {
        Ok(Redistribution {
            backward: self.fitted("redistribution.backward", raw.backward)?,
        })
    }

    fn split(&self, raw: RawSplit) -> Result<KernelSplit, MachineError> {
        let exponent = |key: &str, raw: Option<RawFact>| {
            raw.map(|raw| self.fitted(&format!("kernels.split.{key}"), raw))
                .transpose()
        };
        Ok(KernelSplit {
            filter: exponent("filter", raw.filter)?,
            channel: exponent("channel", raw.channel)?,
            space: exponent("space", raw.space)?,
        })
    }

    fn gpu_kernels(&self, raw: RawGpuKernels) -> Result<GpuKernels, MachineError> {
        let why = "kernels are no faster than the peak";
        let share = |key: &str, raw| self.at_most_all(&format!("kernels.gpu.{key}"), raw, why);
        Ok(GpuKernels {
            conv2d: share("conv2d", raw.conv2d)?,
            conv3d: share("conv3d", raw.conv3d)?,
            memory_bound: share("memory_bound", raw.memory_bound)?,
            start: self.fact("kernels.gpu.start", raw.start)?,
        })
    }

    fn gpu_memory(&self, raw: RawMemory) -> Result<GpuMemory, MachineError> {
        Ok(GpuMemory {
            context: self.fact("memory.context", raw.context)?,
            workspace: self.fact("memory.workspace", raw.workspace)?,
        })
    }
}
