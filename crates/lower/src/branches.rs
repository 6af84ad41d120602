//! Branches of a network between a fork and a join, and the ranks on which each of them runs.
//!
//! Example: a block of Inception forks into four branches. With `branch=4` the ranks of that axis form up to
//! four groups, and each runs one branch for all samples of its part of the mini-batch, while the layers
//! around the block split these samples over the whole axis. Ranks that differ along it are neighbors, so
//! that communication at the fork and the join stays within a node.

use crate::placement::{Placement, RankSet, weights};
use crate::strategy::Branches;
use crate::{LayerChoice, Strategy, StrategyError};
use partita_graph::{Graph, NodeId, Op, readers};
use partita_space::{Axis, Submesh};

/// Nodes of each branch between a fork and a join.
pub(crate) type Block = Vec<Vec<usize>>;

/// The outermost blocks of a network, in their order: the nodes between a fork and its join, if they form
/// several branches.
pub(crate) fn blocks(graph: &Graph) -> Vec<Block> {
    let readers = readers(graph.nodes.iter().map(|node| &node.inputs[..]));
    let joins = joins(graph, &readers);
    let mut blocks = Vec::new();
    let mut fork = 0;
    while fork < graph.nodes.len() {
        let join = joins[fork];
        let branches = if readers[fork].len() > 1 {
            parts(graph, &between(&readers, fork, join))
        } else {
            Vec::new()
        };
        if branches.len() > 1 {
            blocks.push(branches);
            fork = join;
        } else {
            fork += 1;
        }
    }
    blocks
}

/// For each node the first one on all paths from it to the loss (its immediate post-dominator).
fn joins(graph: &Graph, readers: &[Vec<NodeId>]) -> Vec<usize> {
    let last = graph.nodes.len() - 1;
    let mut joins = vec![last; graph.nodes.len()];
    for id in (0..last).rev() {
        // Paths to auxiliary losses do not count.
        let is_way =
            |reader: &&NodeId| !matches!(graph.node(**reader).op, Op::AuxiliaryLoss { .. });
        let ways = readers[id].iter().filter(is_way).map(|reader| reader.0);
        joins[id] = ways
            .reduce(|mut a, mut b| {
                while a != b {
                    if a < b { a = joins[a] } else { b = joins[b] }
                }
                a
            })
            .unwrap_or(last);
    }
    joins
}

/// Nodes on paths from a fork to its join.
fn between(readers: &[Vec<NodeId>], fork: usize, join: usize) -> Vec<usize> {
    let mut reached = vec![false; join - fork + 1];
    reached[0] = true;
    let mut nodes = Vec::new();
    for id in fork..join {
        if !reached[id - fork] {
            continue;
        }
        if id > fork {
            nodes.push(id);
        }
        for reader in readers[id].iter().filter(|reader| reader.0 <= join) {
            reached[reader.0 - fork] = true;
        }
    }
    nodes
}

/// Connected components of some nodes.
fn parts(graph: &Graph, nodes: &[usize]) -> Block {
    // Of each node an earlier one of its part, or itself.
    let mut part_of: Vec<usize> = (0..nodes.len()).collect();
    for (at, &id) in nodes.iter().enumerate() {
        for input in &graph.nodes[id].inputs {
            let Ok(other) = nodes.binary_search(&input.0) else {
                continue;
            };
            let (a, b) = (first_of(&mut part_of, at), first_of(&mut part_of, other));
            part_of[a.max(b)] = a.min(b);
        }
    }
    let mut parts: Block = Vec::new();
    let mut number_of = vec![usize::MAX; nodes.len()];
    for (at, &id) in nodes.iter().enumerate() {
        let number = &mut number_of[first_of(&mut part_of, at)];
        if *number == usize::MAX {
            *number = parts.len();
            parts.push(Vec::new());
        }
        parts[*number].push(id);
    }
    parts
}

/// The first node of a component (union-find with path halving).
fn first_of(part_of: &mut [usize], mut at: usize) -> usize {
    while part_of[at] != at {
        part_of[at] = part_of[part_of[at]];
        at = part_of[at];
    }
    at
}

/// Branches of a block by group of ranks: first coordinate along the axis, number of coordinates, nodes.
type Groups = Vec<(usize, usize, Vec<usize>)>;

impl Placement {
    /// The rank sets of stages and branches.
    ///
    /// Errors: stages that the model or its layers cannot give.
    pub fn new(graph: &Graph, strategy: &Strategy) -> Result<Self, StrategyError> {
        let mut placement = Self::of_stages(graph, strategy)?;
        place_branches(graph, strategy, &mut placement)?;
        Ok(placement)
    }
}

/// Places branches on groups of ranks along the axis `branch`.
///
/// Errors: branches where there are none, sizes that are not those of the axis.
fn place_branches(
    graph: &Graph,
    strategy: &Strategy,
    placement: &mut Placement,
) -> Result<(), StrategyError> {
    let mut blocks: Vec<(Block, Option<&LayerChoice>)> = Vec::new();
    for choice in strategy.layers.iter().rev() {
        if choice.branches.is_none() {
            continue;
        }
        let layers = crate::lay_out::layers(graph, strategy, choice)?;
        blocks.extend(
            specified_blocks(graph, strategy, choice, layers)?
                .into_iter()
                .map(|block| (block, Some(choice))),
        );
    }
    let is_free = |block: &Block, known: &[(Block, Option<&LayerChoice>)]| {
        let mut taken = known.iter().flat_map(|(block, _)| block.iter().flatten());
        !taken.any(|id| block.iter().flatten().any(|of| of == id))
    };
    for block in self::blocks(graph) {
        if is_free(&block, &blocks) {
            blocks.push((block, None));
        }
    }
    let costs = weights(graph);
    for (block, choice) in blocks {
        let rank_set_of = |id: &usize| placement.rank_set_of[*id];
        let mut rank_sets = block.iter().flatten().map(rank_set_of);
        let Some(rank_set) = rank_sets.next() else {
            continue;
        };
        let others: Vec<usize> = rank_sets.filter(|&other| other != rank_set).collect();
        if !others.is_empty() {
            let stage = |at: usize| placement.rank_sets[at].stage;
            let is_cut = others.iter().any(|&other| stage(other) != stage(rank_set));
            match choice.filter(|choice| choice.branches != Some(Branches::Off) && !is_cut) {
                Some(choice) => return Err(inner_first(strategy, choice)),
                // A block cut by stages runs on the ranks of the stages.
                None => continue,
            }
        }
        let extent = placement.rank_sets[rank_set].mesh.extent(Axis::Branch);
        if extent == 1 && choice.is_none() {
            continue;
        }
        let specified = choice.and_then(|choice| choice.branches.as_ref());
        let groups = match specified {
            Some(Branches::Off) => continue,
            Some(Branches::Groups(groups)) => groups_of(&block, &costs, extent, *groups),
            Some(Branches::Sizes(sizes)) => with_sizes(&block, &costs, sizes),
            None => groups_of(&block, &costs, extent, extent),
        };
        if let Some(choice) = choice {
            check(strategy, choice, &block, extent)?;
        }
        for (first, size, nodes) in groups {
            let sliced = slice(&placement.rank_sets[rank_set], strategy, first, size);
            placement.rank_sets.push(sliced);
            for id in nodes {
                placement.rank_set_of[id] = placement.rank_sets.len() - 1;
            }
        }
    }
    Ok(())
}

/// A later entry has placed an inner block already.
fn inner_first(strategy: &Strategy, choice: &LayerChoice) -> StrategyError {
    StrategyError::NoBranches {
        strategy: strategy.to_string(),
        layers: choice.layers(),
        reason: "contains branches that a later entry places".to_owned(),
    }
}

/// The blocks among some layers: those of the network, or else their connected components.
fn specified_blocks(
    graph: &Graph,
    strategy: &Strategy,
    choice: &LayerChoice,
    nodes: Vec<usize>,
) -> Result<Vec<Block>, StrategyError> {
    let inside = |block: &Block| block.iter().flatten().all(|id| nodes.contains(id));
    let known: Vec<Block> = blocks(graph).into_iter().filter(inside).collect();
    if !known.is_empty() {
        return Ok(known);
    }
    // A block may be named with its fork, its join or both.
    let last = nodes.len() - 1;
    let within = [0..last + 1, 1..last + 1, 0..last, 1..last.max(1)];
    let cut = within.into_iter().map(|range| parts(graph, &nodes[range]));
    if let Some(parts) = cut.into_iter().find(|parts| parts.len() > 1) {
        return Ok(vec![parts]);
    }
    if choice.branches == Some(Branches::Off) {
        return Ok(Vec::new());
    }
    let others = if blocks(graph).is_empty() {
        ", and no layers of the model have any"
    } else {
        ""
    };
    Err(StrategyError::NoBranches {
        strategy: strategy.to_string(),
        layers: choice.layers(),
        reason: format!("has no branches{others}"),
    })
}

fn check(
    strategy: &Strategy,
    choice: &LayerChoice,
    block: &Block,
    extent: usize,
) -> Result<(), StrategyError> {
    let fail = |asked: String| {
        Err(StrategyError::NoBranches {
            strategy: strategy.to_string(),
            layers: choice.layers(),
            reason: format!(
                "has {} branches for branch={extent}, and {asked} are asked for",
                block.len()
            ),
        })
    };
    let most = block.len().min(extent);
    let needed = match &choice.branches {
        Some(Branches::Groups(groups)) => *groups,
        Some(Branches::Sizes(sizes)) => sizes.iter().sum(),
        Some(Branches::Off) | None => 1,
    };
    if extent == 1 && needed > 1 {
        return Err(StrategyError::NoBranches {
            strategy: strategy.to_string(),
            layers: choice.layers(),
            reason: "splits branches, and there is no axis whose ranks they could share out"
                .to_owned(),
        });
    }
    match &choice.branches {
        Some(Branches::Groups(groups)) if *groups > most => fail(format!("{groups} groups")),
        Some(Branches::Sizes(sizes)) => {
            if sizes.len() <= block.len() && sizes.iter().sum::<usize>() == extent {
                return Ok(());
            }
            let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
            fail(format!("groups of `branches=[{}]`", sizes.join("|")))
        }
        Some(Branches::Groups(_) | Branches::Off) | None => Ok(()),
    }
}

fn cost(costs: &[f64], nodes: &[usize]) -> f64 {
    nodes.iter().map(|&id| costs[id]).sum()
}

/// At most `groups` groups, with numbers of ranks in proportion to the cost of their branches.
fn groups_of(block: &Block, costs: &[f64], extent: usize, groups: usize) -> Groups {
    let groups = groups.min(block.len()).min(extent).max(1);
    let mut loads: Vec<f64> = vec![0.0; groups];
    // Greedy: the most expensive branch first, each to the group with the least load.
    let mut order: Vec<&Vec<usize>> = block.iter().collect();
    order.sort_by(|a, b| cost(costs, b).total_cmp(&cost(costs, a)));
    for branch in order {
        let least = (0..groups).min_by(|&a, &b| loads[a].total_cmp(&loads[b]));
        loads[least.unwrap_or(0)] += cost(costs, branch);
    }
    let mut sizes = vec![1; groups];
    for _ in groups..extent {
        let per_rank = |at: usize| loads[at] / sizes[at] as f64;
        let most = (0..groups).max_by(|&a, &b| per_rank(a).total_cmp(&per_rank(b)));
        sizes[most.unwrap_or(0)] += 1;
    }
    with_sizes(block, costs, &sizes)
}

/// Greedy: the most expensive branch first, each to the group that would then finish first.
fn with_sizes(block: &Block, costs: &[f64], sizes: &[usize]) -> Groups {
    let mut first = 0;
    let mut groups: Groups = sizes
        .iter()
        .map(|&size| {
            first += size;
            (first - size, size, Vec::new())
        })
        .collect();
    let mut loads = vec![0.0; sizes.len()];
    let mut order: Vec<&Vec<usize>> = block.iter().collect();
    order.sort_by(|a, b| cost(costs, b).total_cmp(&cost(costs, a)));
    for (at, branch) in order.iter().enumerate() {
        let own = cost(costs, branch);
        let time = |group: usize| (loads[group] + own) / sizes[group] as f64;
        // No group stays empty.
        let left = order.len() - at;
        let empty: Vec<usize> = (0..sizes.len())
            .filter(|&g| groups[g].2.is_empty())
            .collect();
        let possible: Vec<usize> = if empty.len() >= left {
            empty
        } else {
            (0..sizes.len()).collect()
        };
        let best = possible
            .into_iter()
            .min_by(|&a, &b| time(a).total_cmp(&time(b)))
            .unwrap_or(0);
        loads[best] += own;
        groups[best].2.extend(branch.iter().copied());
    }
    groups.retain(|(_, _, nodes)| !nodes.is_empty());
    groups
}

/// The ranks of a site with these coordinates along `branch`.
fn slice(rank_set: &RankSet, strategy: &Strategy, first: usize, size: usize) -> RankSet {
    let world = strategy.mesh();
    let whole = Submesh::repeated(&world, 0, 1, world.ranks());
    let submeshes = rank_set.submeshes.map(|submesh| {
        let submesh = submesh.unwrap_or(whole);
        Some(submesh.slice(Axis::Branch, first, size))
    });
    RankSet {
        stage: rank_set.stage,
        mesh: submeshes[0].map_or(rank_set.mesh, |submesh| submesh.mesh()),
        submeshes,
    }
}
