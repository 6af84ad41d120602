//! Groups of ranks that do the same: the coarsest partition in which members have equal bodies and
//! peers in equal classes.

use crate::storage::{Storages, contributors, transposed_window, window};
use partita_graph::{Graph, NodeId, Op};
use partita_program::Place;
use partita_space::{AXES, Axis, Interval, Mesh, Rank};
use std::collections::HashMap;
use std::hash::Hash;

/// The class of each rank, numbered by first appearance, and the first rank of each class.
///
/// A body is a product of what its rank does along each axis, so classes are products of classes of
/// coordinates.
pub(crate) fn classes(
    mesh: &Mesh,
    graph: &Graph,
    places: &[Place],
    storages: &Storages,
) -> (Vec<u32>, Vec<Rank>) {
    let colors = AXES.map(|axis| axis_colors(mesh, axis, graph, places, storages));
    let mut known: HashMap<[usize; 7], u32> = HashMap::new();
    let mut class_of = Vec::with_capacity(mesh.ranks());
    let mut representatives = Vec::new();
    for rank in 0..mesh.ranks() {
        let coord = mesh.coord(rank);
        let key = std::array::from_fn(|axis| colors[axis][coord[axis]]);
        let next = known.len() as u32;
        let class = *known.entry(key).or_insert_with(|| {
            representatives.push(rank);
            next
        });
        class_of.push(class);
    }
    (class_of, representatives)
}

/// A color for each coordinate of an axis, such that equal colors mean equal work and equal peers.
fn axis_colors(
    mesh: &Mesh,
    axis: Axis,
    graph: &Graph,
    places: &[Place],
    storages: &Storages,
) -> Vec<usize> {
    let parts = mesh.extent(axis);
    let signatures: Vec<Signature> = (0..parts)
        .map(|i| signature(i, axis, graph, places, storages))
        .collect();
    let mut colors = number(&signatures);
    loop {
        let refined: Vec<(usize, Vec<(i64, usize)>)> = (0..parts)
            .map(|i| {
                let peers = signatures[i].peers.iter();
                let seen = peers.map(|&step| (step, colors[(i as i64 + step) as usize]));
                (colors[i], seen.collect())
            })
            .collect();
        let next = number(&refined);
        if next == colors {
            return colors;
        }
        colors = next;
    }
}

fn number<T: Hash + Eq>(items: &[T]) -> Vec<usize> {
    let mut known: HashMap<&T, usize> = HashMap::new();
    items
        .iter()
        .map(|item| {
            let next = known.len();
            *known.entry(item).or_insert(next)
        })
        .collect()
}

/// Everything that lowering derives from one coordinate, relative to what the coordinate owns.
#[derive(PartialEq, Eq, Hash)]
struct Signature {
    numbers: Vec<i64>,
    /// Steps to every coordinate with which something is exchanged, ascending.
    peers: Vec<i64>,
}

fn signature(
    i: usize,
    axis: Axis,
    graph: &Graph,
    places: &[Place],
    storages: &Storages,
) -> Signature {
    let mut numbers = Vec::new();
    let mut peers = Vec::new();
    for storage in &storages.all {
        for geometry in [&storage.value, &storage.partial, &storage.around] {
            let Some(dim) = dim_on(&geometry.place, axis) else {
                continue;
            };
            let lines = geometry.lines(dim);
            let own = &lines[i];
            let inside = own
                .held
                .intersect(&Interval::all(geometry.place.shape[dim]));
            push(
                &mut numbers,
                own.owned.start,
                &[own.owned, own.held, inside],
            );
            for piece in &own.pieces {
                let step = piece.source as i64 - i as i64;
                numbers.push(step);
                push(&mut numbers, own.owned.start, &[piece.at, piece.from]);
                peers.push(step);
            }
            for (j, line) in lines.iter().enumerate() {
                for piece in line.pieces.iter().filter(|piece| piece.source == i) {
                    let step = j as i64 - i as i64;
                    numbers.push(step);
                    push(&mut numbers, own.owned.start, &[piece.from]);
                    peers.push(step);
                }
            }
            numbers.push(i64::MIN);
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if matches!(node.op, Op::Flatten) {
            // Where the own part lies in what is gathered.
            let input = &storages.of(node.inputs[0]).value;
            let gathered = dim_on(&input.place, axis).filter(|&dim| dim > 0);
            numbers.extend(gathered.map(|dim| input.lines(dim)[i].owned.start));
        }
        let Some(dim) = dim_on(&places[index], axis) else {
            continue;
        };
        let transposed = transposed_window(node, dim);
        let Some(window) = window(node, dim).or(transposed) else {
            continue;
        };
        let input = storages.of(node.inputs[0]).value.lines(dim)[i].owned;
        let output = storages.of(NodeId(index)).value.lines(dim)[i].owned;
        let extent = Interval::all(places[node.inputs[0].0].shape[dim]);
        if transposed.is_some() {
            let reads = contributors(window, &output, &extent);
            push(&mut numbers, input.start, &[reads]);
            push(&mut numbers, output.start, &[window.inputs_of(&input)]);
            numbers.push(output.start - input.start * window.stride as i64);
            continue;
        }
        let reads = window.inputs_of(&output);
        push(
            &mut numbers,
            input.start,
            &[reads, reads.intersect(&extent)],
        );
        push(&mut numbers, output.start, &[window.outputs_of(&input)]);
        numbers.push(input.start - output.start * window.stride as i64);
    }
    peers.sort_unstable();
    peers.dedup();
    Signature { numbers, peers }
}

fn dim_on(place: &Place, axis: Axis) -> Option<usize> {
    place.axes.iter().position(|&on| on == Some(axis))
}

fn push(numbers: &mut Vec<i64>, origin: i64, intervals: &[Interval]) {
    for interval in intervals {
        numbers.extend([interval.start - origin, interval.end - origin]);
    }
}
