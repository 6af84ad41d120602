//! Figure: how a strategy partitions the model.

use super::svg::{Anchor, Stroke, Svg, WIDTH, color, shortened};
use partita::figures::Best;
use partita_program::{Buffer, Distribution, Item, Program, Role, Work};
use partita_space::{AXES, Axis, DIMS, Interval, Mesh, Rank, Region};
use std::collections::BTreeMap;
use std::ops::Range;

/// Light colors of the palette, on which black text is readable.
const TINTS: [&str; 7] = [
    "#abd9f4", "#f2cf80", "#80ceb9", "#f7f1a0", "#eaae80", "#e5bcd3", "#80b8d8",
];
/// Most slabs that are drawn: the first ones and the last.
const SLABS_MAX: usize = 16;
const COLUMNS_MAX: usize = 8;
/// Side of a face.
const FACE_MAX: f64 = 220.0;
/// Least and greatest drawn depth of a slab.
const BACK: [f64; 2] = [10.0, 40.0];
/// Least drawn width of a halo, on each side of a cut.
const HALO_MIN: f64 = 2.0;

/// Width and height of a stage.
const BOX: [f64; 2] = [190.0, 108.0];
/// Most letters in a line of a stage.
const LETTERS_MAX: usize = 23;

/// The partition of a sample over ranks.
pub struct Partition {
    /// Distribution of the samples.
    distribution: Distribution,
    /// Regions of the first samples, each with the ranks that hold it.
    shares: Vec<(Region, Vec<Rank>)>,
    /// Parts of the mini-batch.
    pub sample_parts: usize,
    /// Width of the halo below and above, per dim.
    pub halo: [[usize; 2]; 5],
}

impl Partition {
    /// None if the program reads no samples.
    pub fn of(program: &Program) -> Option<Self> {
        let tasks = program.bodies.iter().flat_map(|body| &body.tasks);
        let mut distributions = tasks.filter_map(|task| match &task.work {
            Work::Load(load) if load.item == Item::Sample => Some(load.distribution),
            Work::Load(_)
            | Work::Store(_)
            | Work::Compute { .. }
            | Work::Exchange(_)
            | Work::Collective(_) => None,
        });
        let distribution = distributions.next()?;
        let mesh = &program.mesh;
        let mut by_region: BTreeMap<[[i64; 2]; 5], (Region, Vec<Rank>)> = BTreeMap::new();
        for rank in 0..mesh.ranks() {
            let region = distribution.owned(mesh, &mesh.coord(rank));
            if !region.is_empty() {
                let key = region.0.map(|interval| [interval.start, interval.end]);
                let entry = by_region.entry(key).or_insert((region, Vec::new()));
                entry.1.push(rank);
            }
        }
        let samples = |key: &[[i64; 2]; 5]| key[0];
        let mut parts: Vec<[i64; 2]> = by_region.keys().map(samples).collect();
        parts.dedup();
        let first = *parts.first()?;
        let shares = by_region.into_iter().filter(|(key, _)| key[0] == first);
        Some(Self {
            distribution,
            shares: shares.map(|(_, share)| share).collect(),
            sample_parts: parts.len(),
            halo: halo(program, |buffer| {
                buffer
                    .tensor
                    .is_some_and(|tensor| tensor.distribution.shape == distribution.shape)
            }),
        })
    }

    /// Samples of the ranks that are shown.
    fn samples(&self) -> Interval {
        self.shares[0].0.0[0]
    }

    /// The parts of a dim, in order.
    fn parts(&self, dim: usize) -> Vec<Interval> {
        let mut parts: Vec<Interval> = self.shares.iter().map(|share| share.0.0[dim]).collect();
        parts.sort_by_key(|part| part.start);
        parts.dedup();
        parts
    }

    /// A row for each region: ranks, and first and last index of each dim.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |(region, ranks): &(Region, Vec<Rank>)| {
            let mut cells = vec![ranges(ranks.iter().copied())];
            cells.extend(region.0[..4].iter().map(inclusive));
            cells
        };
        self.shares.iter().map(row).collect()
    }

    /// A sample cut in slabs of depth, each with its tiles; the front of a slab shows H down and W
    /// across.
    pub fn figure(&self) -> String {
        let slabs = self.parts(1);
        let shown: Vec<usize> = if slabs.len() <= SLABS_MAX {
            (0..slabs.len()).collect()
        } else {
            (0..SLABS_MAX - 1).chain([slabs.len() - 1]).collect()
        };
        let [_, depth, height, width, _] = self.distribution.shape;
        let columns = shown.len().min(COLUMNS_MAX);
        let pitch = (WIDTH - 90.0) / columns as f64;
        let longest = slabs.iter().map(Interval::len).max().unwrap_or(1);
        let back_max = back(depth, (pitch - 16.0) / width as f64, longest);
        let across = (pitch - 16.0 - back_max).min(FACE_MAX);
        let face = across.min(FACE_MAX * width as f64 / height.max(width) as f64);
        let pitch = pitch.min(face + back_max + 40.0);
        let scale = face / width as f64;
        let tall = (scale * height as f64).max(30.0);
        let sketch = Sketch {
            partition: self,
            scales: [scale, tall / height as f64],
            face: [face, tall],
        };
        let samples = self.samples();
        let title = format!("Partition of samples {}", inclusive(&samples));
        let description = format!(
            "A sample of {depth} x {height} x {width} positions in {} parts along depth, {} along \
             height and {} along width; each tile has its ranks, halos are hatched.",
            slabs.len(),
            self.parts(2).len(),
            self.parts(3).len()
        );
        let mut svg = Svg::new("partition", &title, &description, 0.0);
        svg.define_hatch();
        let row = tall + back_max + 44.0;
        for (at, &index) in shown.iter().enumerate() {
            let left = 70.0 + pitch * (at % COLUMNS_MAX) as f64;
            let top = 10.0 + back_max + row * (at / COLUMNS_MAX) as f64;
            sketch.draw_slab(&mut svg, [left, top], &slabs, index);
            if at % COLUMNS_MAX == 0 {
                svg.upward((left - 34.0, top + tall / 2.0), &format!("H, {height}"));
            }
            let mut words = Vec::new();
            if depth > 1 {
                words.push(format!("D {}", inclusive(&slabs[index])));
            }
            let middle = left + face / 2.0;
            if at == 0 {
                svg.styled(
                    (middle, top + tall + 32.0),
                    Anchor::Middle,
                    "small",
                    format!("W, {width}"),
                );
            }
            svg.styled(
                (middle, top + tall + 16.0),
                Anchor::Middle,
                "small",
                words.join(", "),
            );
        }
        let rows = shown.len().div_ceil(COLUMNS_MAX);
        svg.grow(10.0 + row * rows as f64 + 4.0);
        svg.finish()
    }
}

/// Drawn depth of a slab of this many planes; 0 for images.
fn back(depth: usize, scale: f64, planes: usize) -> f64 {
    if depth > 1 {
        (0.5 * scale * planes as f64).clamp(BACK[0], BACK[1])
    } else {
        0.0
    }
}

/// First and last index.
pub fn inclusive(interval: &Interval) -> String {
    match interval.len() {
        0 => "none".to_owned(),
        1 => interval.start.to_string(),
        _ => format!("{}–{}", interval.start, interval.end - 1),
    }
}

/// A partition at the size at which it is drawn.
struct Sketch<'p> {
    partition: &'p Partition,
    /// Width and height of a position.
    scales: [f64; 2],
    /// Width and height of a slab.
    face: [f64; 2],
}

impl Sketch<'_> {
    fn draw_slab(&self, svg: &mut Svg, [left, top]: [f64; 2], slabs: &[Interval], index: usize) {
        let slab = &slabs[index];
        let depth = self.partition.distribution.shape[1];
        let back = back(depth, self.scales[0], slab.len());
        let edge = Stroke::solid(color::QUIET, 0.8);
        if depth > 1 {
            self.draw_back(svg, [left, top], [0.0, back], "#f4f4f4", edge);
            // Planes near a cut are those that the slab before or behind holds, too.
            let plane = back / slab.len() as f64;
            let [low, high] = self.partition.halo[1];
            let none = Stroke::solid("none", 0.0);
            if index > 0 && high > 0 {
                let near = (plane * high as f64).clamp(HALO_MIN.min(back), back);
                self.draw_back(svg, [left, top], [0.0, near], HATCH, none);
            }
            if index + 1 < slabs.len() && low > 0 {
                let far = (plane * low as f64).clamp(HALO_MIN.min(back), back);
                self.draw_back(svg, [left, top], [back - far, back], HATCH, none);
            }
        }
        for (number, (region, ranks)) in self.partition.shares.iter().enumerate() {
            if region.0[1] == *slab {
                self.draw_tile(svg, [left, top], region, ranks, TINTS[number % TINTS.len()]);
            }
        }
        for dim in [2, 3] {
            for cut in self.partition.parts(dim).iter().skip(1) {
                self.draw_cut(svg, [left, top], dim, cut.start as f64);
            }
        }
    }

    /// The top and the right side of a slab between two distances from its front.
    fn draw_back(
        &self,
        svg: &mut Svg,
        [left, top]: [f64; 2],
        [near, far]: [f64; 2],
        fill: &str,
        edge: Stroke,
    ) {
        let [face, tall] = self.face;
        let at = |x: f64, y: f64, back: f64| (left + x + back, top + y - back);
        let roof = [
            at(0.0, 0.0, near),
            at(face, 0.0, near),
            at(face, 0.0, far),
            at(0.0, 0.0, far),
        ];
        let side = [
            at(face, 0.0, near),
            at(face, tall, near),
            at(face, tall, far),
            at(face, 0.0, far),
        ];
        svg.polygon(&roof, fill, edge);
        svg.polygon(&side, fill, edge);
    }

    fn draw_tile(
        &self,
        svg: &mut Svg,
        [left, top]: [f64; 2],
        region: &Region,
        ranks: &[Rank],
        fill: &str,
    ) {
        let [across, down] = self.scales;
        let (rows, columns) = (&region.0[2], &region.0[3]);
        let frame = [
            left + across * columns.start as f64,
            top + down * rows.start as f64,
            across * columns.len() as f64,
            down * rows.len() as f64,
        ];
        let [x, y, width, height] = frame;
        let words = ranges(ranks.iter().copied());
        svg.bar(frame, fill, &format!("ranks {words}"));
        let corners = [
            (x, y),
            (x + width, y),
            (x + width, y + height),
            (x, y + height),
        ];
        svg.polygon(&corners, "none", Stroke::solid(color::QUIET, 0.8));
        let room = (width / 7.0) as usize;
        if room >= words.chars().count().min(4) && height >= 13.0 {
            let middle = (x + width / 2.0, y + height / 2.0 + 4.5);
            svg.label(middle, Anchor::Middle, shortened(&words, room.max(3)));
        }
    }

    /// Both sides of a cut of H or W, as wide as the halos.
    fn draw_cut(&self, svg: &mut Svg, [left, top]: [f64; 2], dim: usize, cut: f64) {
        let scale = self.scales[if dim == 2 { 1 } else { 0 }];
        let [low, high] = self.partition.halo[dim].map(|width| match width {
            0 => 0.0,
            width => (scale * width as f64).max(HALO_MIN),
        });
        if low + high == 0.0 {
            return;
        }
        let frame = match dim {
            2 => [left, top + scale * cut - low, self.face[0], low + high],
            _ => [left + scale * cut - low, top, low + high, self.face[1]],
        };
        svg.area(frame, HATCH);
    }
}

const HATCH: &str = "url(#hatch)";

/// The widest halos of some buffers along split dims; along others there is only padding.
fn halo(program: &Program, is_meant: impl Fn(&Buffer) -> bool) -> [[usize; 2]; 5] {
    let mut widest = [[0; 2]; 5];
    for (body, rank) in program.bodies.iter().zip(program.representatives()) {
        let coord = program.mesh.coord(rank);
        let tensors = body
            .buffers
            .iter()
            .filter(|buffer| buffer.role == Role::Activation);
        for buffer in tensors.filter(|buffer| is_meant(buffer)) {
            let Some(tensor) = &buffer.tensor else {
                continue;
            };
            let (owned, mesh) = (
                tensor.distribution.owned(&program.mesh, &coord),
                tensor.distribution.mesh(&program.mesh),
            );
            for dim in 1..4 {
                if mesh.group_size(tensor.distribution.axes[dim].set()) > 1 {
                    let [low, high] = tensor.around(dim, buffer.dims[dim], owned.0[dim].len());
                    widest[dim] = [widest[dim][0].max(low), widest[dim][1].max(high)];
                }
            }
        }
    }
    widest
}

/// `D 1 + 1, H 1 + 1`: positions below and above; empty without a halo.
pub fn halo_words(halo: &[[usize; 2]; 5]) -> String {
    let dims = DIMS
        .iter()
        .zip(halo)
        .filter(|(_, [low, high])| low + high > 0);
    let words = dims.map(|(dim, [low, high])| format!("{dim:?} {low} + {high}"));
    words.collect::<Vec<_>>().join(", ")
}

/// Tensors of the network by the width of their halos, in the order of the network.
pub fn halos(program: &Program) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let mut known: BTreeMap<&str, ()> = BTreeMap::new();
    let buffers = program.bodies.iter().flat_map(|body| &body.buffers);
    for buffer in
        buffers.filter(|buffer| buffer.role == Role::Activation && buffer.tensor.is_some())
    {
        if known.insert(&buffer.name, ()).is_some() {
            continue;
        }
        let words = halo_words(&halo(program, |other| other.name == buffer.name));
        if words.is_empty() {
            continue;
        }
        match groups.iter_mut().find(|(width, _)| *width == words) {
            Some((_, names)) => names.push(buffer.name.clone()),
            None => groups.push((words, vec![buffer.name.clone()])),
        }
    }
    groups
}

/// The stages of a pipeline with their layers and ranks; none without a pipeline.
pub fn stages(best: &Best) -> Option<String> {
    const COLUMNS: usize = 4;
    let stages = best.strategy.stages.len();
    if stages == 0 {
        return None;
    }
    let [width, height] = BOX;
    let pitch = (WIDTH - 20.0) / COLUMNS as f64;
    let description = format!(
        "{stages} stages of a pipeline in the order in which samples pass them, with their \
         layers and ranks."
    );
    let mut svg = Svg::new("stages", "Stages and their ranks", &description, 0.0);
    let mut first = 0;
    for (index, stage) in best.strategy.stages.iter().enumerate() {
        let mesh = Mesh::new(stage.extents);
        let x = 10.0 + pitch * (index % COLUMNS) as f64;
        let y = 8.0 + (height + 16.0) * (index / COLUMNS) as f64;
        svg.area([x, y, width, height], TINTS[index % TINTS.len()]);
        draw_stage(
            &mut svg,
            [x + 8.0, y],
            best,
            index,
            first..first + mesh.ranks(),
        );
        first += mesh.ranks();
        if index + 1 < stages && (index + 1) % COLUMNS != 0 {
            let (tip, middle) = (x + pitch - 2.0, y + height / 2.0);
            let shaft = [(x + width, middle), (tip, middle)];
            svg.line(&shaft, Stroke::solid(color::BLACK, 1.5));
            let head = [
                (tip, middle),
                (tip - 6.0, middle - 4.0),
                (tip - 6.0, middle + 4.0),
            ];
            svg.polygon(&head, color::BLACK, Stroke::solid(color::BLACK, 0.5));
        }
    }
    svg.grow(8.0 + (height + 16.0) * stages.div_ceil(COLUMNS) as f64);
    Some(svg.finish())
}

/// The text of a stage whose ranks have these coordinates along the axis of stages.
fn draw_stage(svg: &mut Svg, [x, y]: [f64; 2], best: &Best, index: usize, on: Range<usize>) {
    let (strategy, world) = (&best.strategy, &best.program.mesh);
    let stage = &strategy.stages[index];
    let stands = |rank: &Rank| on.contains(&world.coord(*rank)[Axis::Branch.index()]);
    let ranks = ranges((0..world.ranks()).filter(stands));
    let layers = stage.layers.iter();
    let layers: Vec<String> = layers.map(|(from, to)| format!("{from}..{to}")).collect();
    let layers = layers.join(" and ");
    let lines = match layers.split_once("..") {
        Some((from, to)) if layers.chars().count() > LETTERS_MAX => {
            [format!("{from}.."), to.to_owned()]
        }
        Some(_) | None => [layers, String::new()],
    };
    let title = format!("stage {}", index + 1);
    svg.styled((x, y + 18.0), Anchor::Start, "strong", title);
    for (number, line) in lines.iter().enumerate() {
        let at = (x, y + 36.0 + 15.0 * number as f64);
        svg.styled(at, Anchor::Start, "code", shortened(line, LETTERS_MAX));
    }
    let replica = match strategy.schedule.replicas() {
        1 => String::new(),
        _ => format!("second replica: stage {}", strategy.stages.len() - index),
    };
    let mesh = Mesh::new(stage.extents);
    let words = [format!("ranks {ranks}"), split(&mesh), replica];
    for (number, line) in words.iter().enumerate() {
        let at = (x, y + 68.0 + 15.0 * number as f64);
        svg.styled(at, Anchor::Start, "small", shortened(line, LETTERS_MAX + 3));
    }
}

/// The split axes of a mesh, in words.
fn split(mesh: &Mesh) -> String {
    let axes = AXES.into_iter().filter(|&axis| mesh.extent(axis) > 1);
    let words: Vec<String> = axes
        .map(|axis| format!("{}={}", axis.name(), mesh.extent(axis)))
        .collect();
    if words.is_empty() {
        "not split".to_owned()
    } else {
        words.join(",")
    }
}

/// Ascending ranks as ranges: `0–3, 8–11`.
fn ranges(ranks: impl IntoIterator<Item = usize>) -> String {
    let mut runs: BTreeMap<usize, usize> = BTreeMap::new();
    let mut last = None;
    for rank in ranks {
        match last {
            Some((start, end)) if rank == end + 1 => {
                runs.insert(start, rank);
                last = Some((start, rank));
            }
            Some(_) | None => {
                runs.insert(rank, rank);
                last = Some((rank, rank));
            }
        }
    }
    let run = |(start, end): (usize, usize)| {
        if start == end {
            start.to_string()
        } else {
            format!("{start}–{end}")
        }
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_are_one_range() {
        assert_eq!(ranges([0, 1, 2, 5, 7, 8]), "0–2, 5, 7–8");
        assert_eq!(ranges([]), "");
    }
}
