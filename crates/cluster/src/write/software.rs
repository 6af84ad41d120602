//! Writes a software profile as a file that reads back equal.

use super::{fact, table, word};
use crate::machine::{Exchange, Fact};
use crate::software::{KernelSplit, Software, SoftwareSums};

impl Software {
    /// The text of a profile; reading it back gives an equal one.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        word(&mut text, "name", &self.name);
        if let Some(strategy) = &self.strategy {
            fact(&mut text, "strategy", strategy);
        }
        let collectives = Fact {
            value: self.collectives.value.name().to_owned(),
            basis: self.collectives.basis,
            source: self.collectives.source.clone(),
        };
        fact(&mut text, "collectives", &collectives);
        fact(&mut text, "data_store", &self.data_store);
        if let Some(built) = &self.built {
            fact(&mut text, "built", built);
        }
        if let Some(spatial) = &self.spatial_io {
            fact(&mut text, "spatial_io", spatial);
        }
        if let Some(exchange) = &self.exchange {
            write_link(&mut text, "exchange.intra", &exchange.intra);
            write_link(&mut text, "exchange.inter", &exchange.inter);
        }
        if let Some(staging) = &self.staging {
            write_link(&mut text, "staging", staging);
        }
        if let Some(sums) = &self.allreduce {
            write_sums(&mut text, sums);
        }
        if let Some(redistribution) = &self.redistribution {
            table(&mut text, "redistribution");
            fact(&mut text, "backward", &redistribution.backward);
        }
        let factors = [
            ("batch_norm", &self.batch_norm),
            ("pointwise", &self.pointwise),
        ];
        if factors.iter().any(|(_, factor)| factor.is_some()) {
            table(&mut text, "kernels");
        }
        for (key, factor) in factors {
            if let Some(factor) = factor {
                fact(&mut text, key, factor);
            }
        }
        write_split(&mut text, &self.split);
        if let Some(kernels) = &self.gpu_kernels {
            table(&mut text, "kernels.gpu");
            fact(&mut text, "conv2d", &kernels.conv2d);
            fact(&mut text, "conv3d", &kernels.conv3d);
            fact(&mut text, "memory_bound", &kernels.memory_bound);
            fact(&mut text, "start", &kernels.start);
        }
        if let Some(memory) = &self.memory {
            table(&mut text, "memory");
            fact(&mut text, "context", &memory.context);
            fact(&mut text, "workspace", &memory.workspace);
        }
        text
    }
}

fn write_link(text: &mut String, name: &str, link: &Exchange) {
    table(text, name);
    fact(text, "latency", &link.latency);
    fact(text, "bandwidth", &link.bandwidth);
}

fn write_sums(text: &mut String, sums: &SoftwareSums) {
    table(text, "allreduce");
    if let Some(occupancy) = &sums.occupancy {
        fact(text, "occupancy", occupancy);
    }
    if let Some(fit) = &sums.fit {
        table(text, "allreduce.fit");
        fact(text, "latency_intra", &fit.latency_intra);
        fact(text, "latency_inter", &fit.latency_inter);
        fact(text, "adapters", &fit.adapters);
        if let Some(growth) = &fit.growth {
            fact(text, "growth", growth);
        }
    }
}

fn write_split(text: &mut String, split: &KernelSplit) {
    if *split == KernelSplit::default() {
        return;
    }
    table(text, "kernels.split");
    for (key, exponent) in [
        ("filter", &split.filter),
        ("channel", &split.channel),
        ("space", &split.space),
    ] {
        if let Some(exponent) = exponent {
            fact(text, key, exponent);
        }
    }
}
