//! Reads links and the network between nodes.

use super::{RawFact, Reader};
use crate::error::MachineError;
use crate::machine::{Fact, InterLink, IntraLink, Links};
use crate::network::{Dragonfly, IntraKind, Network, Reduction, SwitchLevel, Torus};
use crate::quantity::Quantity;
use serde::Deserialize;
use toml::{Spanned, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLinks {
    intra: RawIntraLink,
    inter: RawInterLink,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIntraLink {
    latency: RawFact,
    bandwidth: RawFact,
    bus_bandwidth: Option<RawFact>,
    kind: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInterLink {
    latency: RawFact,
    bandwidth: RawFact,
    node_bandwidth: RawFact,
    nics_per_node: RawFact,
    reduction: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNetwork {
    kind: Spanned<Value>,
    levels: Option<Vec<RawSwitchLevel>>,
    nodes_per_group: Option<RawFact>,
    group_bandwidth: Option<RawFact>,
    latency: Option<RawFact>,
    extents: Option<RawFact>,
    link_bandwidth: Option<RawFact>,
    hop_latency: Option<RawFact>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSwitchLevel {
    nodes: RawFact,
    oversubscription: RawFact,
    latency: RawFact,
}

impl Reader<'_> {
    pub(super) fn links(&self, raw: RawLinks) -> Result<Links, MachineError> {
        let node_offset = raw.inter.node_bandwidth.value.span().start;
        let places = Reduction::ALL.map(|place| (place.name(), place));
        let reduction = raw.inter.reduction;
        let inter = InterLink {
            latency: self.fact("links.inter.latency", raw.inter.latency)?,
            bandwidth: self.fact("links.inter.bandwidth", raw.inter.bandwidth)?,
            node_bandwidth: self.fact("links.inter.node_bandwidth", raw.inter.node_bandwidth)?,
            nics_per_node: self.fact("links.inter.nics_per_node", raw.inter.nics_per_node)?,
            reduction: reduction
                .map(|raw| self.plain_choice("links.inter.reduction", &raw, &places))
                .transpose()?,
        };
        self.at_most(
            ("links.inter.bandwidth", &inter.bandwidth),
            ("links.inter.node_bandwidth", &inter.node_bandwidth),
            node_offset,
        )?;
        Ok(Links {
            intra: self.intra_link(raw.intra)?,
            inter,
        })
    }

    fn intra_link(&self, raw: RawIntraLink) -> Result<IntraLink, MachineError> {
        let kinds = IntraKind::ALL.map(|kind| (kind.name(), kind));
        Ok(IntraLink {
            latency: self.fact("links.intra.latency", raw.latency)?,
            bandwidth: self.fact("links.intra.bandwidth", raw.bandwidth)?,
            bus_bandwidth: raw
                .bus_bandwidth
                .map(|raw| self.fact("links.intra.bus_bandwidth", raw))
                .transpose()?,
            kind: raw
                .kind
                .map(|raw| self.plain_choice("links.intra.kind", &raw, &kinds))
                .transpose()?,
        })
    }

    /// The network between this many nodes.
    pub(super) fn network(
        &self,
        mut raw: RawNetwork,
        nodes: usize,
    ) -> Result<Network, MachineError> {
        let offset = raw.kind.span().start;
        let names = Network::KINDS.map(|name| (name, name));
        let kind = self.plain_choice("network.kind", &raw.kind, &names)?;
        let [fat_tree, dragonfly, _] = Network::KINDS;
        let network = if kind == fat_tree {
            Network::FatTree(self.switch_levels(raw.levels.take().unwrap_or_default(), offset)?)
        } else if kind == dragonfly {
            Network::Dragonfly(Dragonfly {
                nodes_per_group: self.needed(
                    "nodes_per_group",
                    raw.nodes_per_group.take(),
                    offset,
                )?,
                group_bandwidth: self.needed(
                    "group_bandwidth",
                    raw.group_bandwidth.take(),
                    offset,
                )?,
                latency: self.needed("latency", raw.latency.take(), offset)?,
            })
        } else {
            let extents = raw.extents.as_ref().map(|fact| fact.value.span().start);
            let torus = Torus {
                extents: self.needed("extents", raw.extents.take(), offset)?,
                link_bandwidth: self.needed("link_bandwidth", raw.link_bandwidth.take(), offset)?,
                hop_latency: self.needed("hop_latency", raw.hop_latency.take(), offset)?,
            };
            let all: u128 = torus.extents.value.iter().map(|&one| one as u128).product();
            if all < nodes as u128 {
                let given = format!("{:?}", torus.extents.value);
                let expected = format!("extents whose product is at least the {nodes} `nodes`");
                let at = extents.unwrap_or(offset);
                return Err(self.bad("network.extents", at, &given, expected));
            }
            Network::Torus(torus)
        };
        let start = |fact: &RawFact| fact.value.span().start;
        let first = |levels: &Vec<RawSwitchLevel>| {
            levels.first().map_or(offset, |level| start(&level.nodes))
        };
        let others = [
            ("nodes_per_group", raw.nodes_per_group.as_ref().map(start)),
            ("group_bandwidth", raw.group_bandwidth.as_ref().map(start)),
            ("latency", raw.latency.as_ref().map(start)),
            ("extents", raw.extents.as_ref().map(start)),
            ("link_bandwidth", raw.link_bandwidth.as_ref().map(start)),
            ("hop_latency", raw.hop_latency.as_ref().map(start)),
            ("levels", raw.levels.as_ref().map(first)),
        ];
        let mut others = others.into_iter();
        let other = others.find_map(|(key, at)| Some((key, at?)));
        if let Some((key, at)) = other {
            let expected = format!("no such key in a network of kind \"{kind}\"");
            return Err(self.bad(&format!("network.{key}"), at, "given", expected));
        }
        Ok(network)
    }

    fn switch_levels(
        &self,
        raw: Vec<RawSwitchLevel>,
        offset: usize,
    ) -> Result<Vec<SwitchLevel>, MachineError> {
        if raw.is_empty() {
            let expected = "at least one table [[network.levels]]".to_owned();
            return Err(self.bad("network.levels", offset, "missing", expected));
        }
        let mut levels: Vec<SwitchLevel> = Vec::new();
        for raw in raw {
            let at = raw.nodes.value.span().start;
            let level = SwitchLevel {
                nodes: self.fact("network.levels.nodes", raw.nodes)?,
                oversubscription: self
                    .fact("network.levels.oversubscription", raw.oversubscription)?,
                latency: self.fact("network.levels.latency", raw.latency)?,
            };
            let below = levels.last().map_or(0, |below| below.nodes.value);
            if level.nodes.value <= below {
                let given = level.nodes.value.to_string();
                let expected = format!("more than the {below} nodes of the level below");
                return Err(self.bad("network.levels.nodes", at, &given, expected));
            }
            levels.push(level);
        }
        Ok(levels)
    }

    fn needed<T: Quantity>(
        &self,
        key: &str,
        raw: Option<RawFact>,
        offset: usize,
    ) -> Result<Fact<T>, MachineError> {
        let key = format!("network.{key}");
        match raw {
            Some(raw) => self.fact(&key, raw),
            None => {
                let expected = "a number with its source".to_owned();
                Err(self.bad(&key, offset, "missing", expected))
            }
        }
    }
}
