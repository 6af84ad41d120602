//! Completeness of data gradients.

use crate::{Case, Fault};
use partita_program::descriptor::{Cost, Pass, Window};
use partita_program::{Body, Kernel, TensorRegion, View, Work};
use partita_space::{Coord, Interval, Rank, Region};
use std::sync::PoisonError;

/// A data gradient that reads zeros in a halo omits the contributions of the owners; then each owner must
/// compute them: its own data gradient of the layer must cover all inputs of its outputs.
///
/// `zeros` are regions of the buffer of `dy`, in its indices.
pub(crate) fn check<'p>(
    case: &Case<'p>,
    class: usize,
    task: usize,
    zeros: &[Region],
    faults: &mut Vec<Fault>,
) {
    let body = &case.program.bodies[class];
    let Work::Compute { kernel, .. } = &body.tasks[task].work else {
        return;
    };
    let Some(DataGradient { dy, .. }) = data_gradient(kernel) else {
        return;
    };
    let Some(tensor) = case.tensor(class, dy) else {
        return;
    };
    let layer = &body.tasks[task].origin.layer;
    if zeros.is_empty()
        || case
            .bodies()
            .all(|(class, _)| class_reaches(case, class, layer))
    {
        return;
    }
    let program = case.program;
    let ranks = (0..program.mesh.ranks()).filter(|&rank| case.class_of(rank) == class);
    for (rank, zero) in ranks.flat_map(|rank| zeros.iter().map(move |zero| (rank, zero))) {
        let owners = owners(case, tensor, &program.mesh.coord(rank), zero);
        let mut missing = owners
            .into_iter()
            .filter(|&owner| !reaches_all(case, owner, layer));
        if let Some(owner) = missing.next() {
            faults.push(Fault::ContributionMissing {
                site: case.site_at(class, rank, task),
                spot: case.buffer_region_at(class, dy.buffer.0 as usize, *zero),
                owner,
            });
            return;
        }
    }
}

/// Whether the data gradients of all ranks of a class reach all; not where the class lacks the layer.
fn class_reaches<'p>(case: &Case<'p>, class: usize, layer: &'p str) -> bool {
    let known = || case.reaching.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&known) = known().get(&(class, layer)) {
        return known;
    }
    let mut ranks = (0..case.program.mesh.ranks()).filter(|&rank| case.class_of(rank) == class);
    let reaches = ranks.all(|rank| reaches_all(case, rank, layer));
    known().insert((class, layer), reaches);
    reaches
}

struct DataGradient<'p> {
    dy: &'p View,
    dx: &'p View,
    window: Window<'p>,
}

/// The data gradient of a convolution among the parts of a kernel.
fn data_gradient(kernel: &Kernel) -> Option<DataGradient<'_>> {
    kernel.parts().iter().find_map(|part| {
        let descriptor = part.descriptor();
        let Cost::Convolution {
            pass: Pass::BackwardData,
            input: dx,
            output: dy,
            ..
        } = descriptor.cost
        else {
            return None;
        };
        let window = descriptor.window?;
        Some(DataGradient { dy, dx, window })
    })
}

/// Ranks that own a part of a region of a buffer, at the coordinates of this rank along other axes.
fn owners(case: &Case<'_>, tensor: &TensorRegion, coord: &Coord, region: &Region) -> Vec<Rank> {
    let world = &case.program.mesh;
    let (distribution, mesh) = (&tensor.distribution, &tensor.distribution.mesh(world));
    let Some(there) = distribution.local_coord(world, coord) else {
        return Vec::new();
    };
    let owned = distribution.owned_at(mesh, &there);
    let mut coords = vec![there];
    for dim in 0..5 {
        let axes = distribution.axes[dim];
        let global = region.0[dim].shift(owned.0[dim].start - tensor.halo_low[dim]);
        let has_some = |&part: &usize| {
            let owned = distribution.part(mesh, dim, part);
            owned.touches(&global)
        };
        let range = distribution.part_range(mesh, dim, &global);
        let parts: Vec<usize> = range.filter(has_some).collect();
        coords = coords
            .into_iter()
            .flat_map(|coord| {
                parts.clone().into_iter().map(move |part| {
                    let mut coord = coord;
                    mesh.go_to_part(axes, part, &mut coord);
                    coord
                })
            })
            .collect();
    }
    let coords = coords.iter();
    coords
        .map(|there| distribution.rank(world, there))
        .collect()
}

/// Whether a rank's data gradients of a layer cover every input of the rank's outputs: the first one all of them, or, of
/// redundant copies, which may be slabs, all together.
fn reaches_all(case: &Case<'_>, rank: Rank, layer: &str) -> bool {
    let class = case.class_of(rank);
    let body: &Body = &case.program.bodies[class];
    let of_layer = body.tasks.iter().filter(|task| task.origin.layer == layer);
    let mut found = of_layer.filter_map(|task| match &task.work {
        Work::Compute { kernel, .. } => data_gradient(kernel),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    });
    let coord = &case.program.mesh.coord(rank);
    let Some(first) = found.next() else {
        return false;
    };
    let Some(tensor) = case.tensor(class, first.dy) else {
        return false;
    };
    let outputs = tensor.distribution.owned(&case.program.mesh, coord);
    if outputs.is_empty() {
        return true;
    }
    let mut open = vec![outputs];
    for one in std::iter::once(first).chain(found.filter(|_| tensor.redundant)) {
        if let Some(reached) = outputs_reached(case, class, coord, &one) {
            open = open
                .iter()
                .flat_map(|region| region.minus(&reached))
                .collect();
        }
    }
    open.is_empty()
}

/// The owned outputs all of whose inputs a data gradient covers.
fn outputs_reached(
    case: &Case<'_>,
    class: usize,
    coord: &Coord,
    DataGradient { dy, dx, window }: &DataGradient<'_>,
) -> Option<Region> {
    let Window { taps, shift, .. } = window;
    let (dy_tensor, dx_tensor) = (case.tensor(class, dy)?, case.tensor(class, dx)?);
    let mut outputs = dy_tensor.distribution.owned(&case.program.mesh, coord);
    let inputs = dx_tensor.region(dx, &case.program.mesh, coord);
    let read = dy_tensor.region(dy, &case.program.mesh, coord);
    for dim in 0..3 {
        let own = &mut outputs.0[dim + 1];
        let (inputs, read) = (inputs.0[dim + 1], read.0[dim + 1]);
        // Input i of dx belongs to output o of dy and tap k if i + shift = o * stride + k * dilation.
        let stride = taps.stride[dim] as i64;
        let by = inputs.start - read.start * stride - shift[dim];
        let span = ((taps.kernel[dim] - 1) * taps.dilation[dim]) as i64;
        let (mut start, mut end) = (own.start, own.end);
        if inputs.start > 0 {
            start = start.max(-(by - inputs.start).div_euclid(stride));
        }
        if inputs.end < dx_tensor.distribution.shape[dim + 1] as i64 {
            end = end.min((inputs.end - span - 1 - by).div_euclid(stride) + 1);
        }
        if start >= end {
            return None;
        }
        *own = Interval::new(start, end);
    }
    Some(outputs)
}
