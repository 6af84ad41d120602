//! The network in a machine file: a table whose keys depend on its kind.

use super::{Dragonfly, IntraKind, Network, Reduction, SwitchLevel, Torus};
use crate::entry::{At, Entry, Table, join, plain_words, push_line, table};
use crate::error::MachineError;
use crate::words::{Choice, choose};

plain_words!(IntraKind, Reduction);

/// Kinds of networks.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    FatTree,
    Dragonfly,
    Torus,
}

impl Choice for Kind {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("fat-tree", Self::FatTree),
        ("dragonfly", Self::Dragonfly),
        ("torus", Self::Torus),
    ];
}

impl Kind {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::FatTree => &["levels"],
            Self::Dragonfly => &["nodes_per_group", "group_bandwidth", "latency"],
            Self::Torus => &["extents", "link_bandwidth", "hop_latency"],
        }
    }
}

table!(SwitchLevel {
    nodes,
    oversubscription,
    latency
});

impl Entry for Network {
    fn read(at: &At<'_>) -> Result<Self, MachineError> {
        let kinds = Kind::CHOICES.iter().flat_map(|(_, kind)| kind.keys());
        let possible: Vec<&str> = ["kind"].iter().chain(kinds).copied().collect();
        let table = at.table(&possible)?;
        let Some(word) = table.get("kind") else {
            return Err(at.missing("kind"));
        };
        let kind: Kind = word.quantity(&word.key, choose)?;
        let offset = word.offset();
        let network = match kind {
            Kind::FatTree => Self::FatTree(levels(&table, offset)?),
            Kind::Dragonfly => Self::Dragonfly(Dragonfly {
                nodes_per_group: needed(&table, "nodes_per_group", offset)?,
                group_bandwidth: needed(&table, "group_bandwidth", offset)?,
                latency: needed(&table, "latency", offset)?,
            }),
            Kind::Torus => Self::Torus(Torus {
                extents: needed(&table, "extents", offset)?,
                link_bandwidth: needed(&table, "link_bandwidth", offset)?,
                hop_latency: needed(&table, "hop_latency", offset)?,
            }),
        };
        refuse_others(&table, kind, &possible[1..])?;
        Ok(network)
    }

    fn write_tables(&self, key: &str, text: &mut String) {
        let kind = match self {
            Self::FatTree(_) => Kind::FatTree,
            Self::Dragonfly(_) => Kind::Dragonfly,
            Self::Torus(_) => Kind::Torus,
        };
        push_line(text, format_args!("\n[{key}]"));
        push_line(text, format_args!("kind = \"{}\"", kind.word()));
        match self {
            Self::FatTree(levels) => {
                for level in levels {
                    push_line(text, format_args!("\n[[{}]]", join(key, "levels")));
                    level.nodes.write_line("nodes", text);
                    level.oversubscription.write_line("oversubscription", text);
                    level.latency.write_line("latency", text);
                }
            }
            Self::Dragonfly(one) => {
                one.nodes_per_group.write_line("nodes_per_group", text);
                one.group_bandwidth.write_line("group_bandwidth", text);
                one.latency.write_line("latency", text);
            }
            Self::Torus(torus) => {
                torus.extents.write_line("extents", text);
                torus.link_bandwidth.write_line("link_bandwidth", text);
                torus.hop_latency.write_line("hop_latency", text);
            }
        }
    }
}

/// A fact that the kind needs; without it the fault is at `offset`.
fn needed<T: Entry>(table: &Table<'_>, key: &str, offset: usize) -> Result<T, MachineError> {
    if table.get(key).is_none() {
        return Err(table.bad_at((key, offset), "missing", "a number with its source"));
    }
    table.entry(key)
}

/// Refuses keys of other kinds.
fn refuse_others(table: &Table<'_>, kind: Kind, possible: &[&str]) -> Result<(), MachineError> {
    let is_other = |key: &&&str| !kind.keys().contains(key) && table.get(key).is_some();
    let Some(&key) = possible.iter().find(is_other) else {
        return Ok(());
    };
    let expected = format!("no such key in a network of kind \"{}\"", kind.word());
    let at = match table.get(key).and_then(|at| at.first("nodes")) {
        Some(first) => first,
        None => table.offset(&[key]),
    };
    Err(table.bad_at((key, at), "given", expected))
}

/// Levels from the leaves up, each of more nodes than the one below.
fn levels(table: &Table<'_>, offset: usize) -> Result<Vec<SwitchLevel>, MachineError> {
    let mut levels: Vec<SwitchLevel> = Vec::new();
    for at in table.list("levels")? {
        let level = SwitchLevel::read(&at)?;
        let below = levels.last().map_or(0, |below| below.nodes.value);
        if level.nodes.value <= below {
            let expected = format!("more than the {below} nodes of the level below");
            let fields = at.table(&["nodes", "oversubscription", "latency"])?;
            return Err(fields.bad(&["nodes"], &level.nodes.value.to_string(), expected));
        }
        levels.push(level);
    }
    if levels.is_empty() {
        let expected = "at least one table [[network.levels]]";
        return Err(table.bad_at(("levels", offset), "missing", expected));
    }
    Ok(levels)
}
