//! Epilogue fusion.

use super::{Fusion, compute};
use partita_program::descriptor::FusionRole;
use partita_program::{Kernel, Task, View, restricted, set_accumulate};
use partita_space::Region;

/// Largest number of parts of a fused kernel, as the time of fusion is quadratic in it.
const PARTS_MAX: usize = 64;

/// The operand through which a kernel can be fused, and the view of the result; none if it only reads.
struct Link {
    on: View,
    to: Option<View>,
}

/// The operands through which a kernel can be fused into an earlier one.
fn links(kernel: &Kernel) -> Vec<Link> {
    let link = |on: &View, to: Option<&View>| Link {
        on: *on,
        to: to.copied(),
    };
    match kernel.descriptor().fusion {
        FusionRole::No => Vec::new(),
        FusionRole::Reads(on) => vec![link(on, None)],
        FusionRole::Changes(on, to) => vec![link(on, Some(to))],
        FusionRole::ChangesEither(both, to) => both.map(|on| link(on, Some(to))).into(),
    }
}

/// The last writers of a view, by region.
struct Writers {
    /// Slots of kernels, in their order, each with a region.
    kernels: Vec<(usize, Region)>,
    /// Regions written by messages, or by no single kernel.
    rest: Vec<Region>,
}

impl Fusion<'_> {
    /// Fuses the kernel of a slot into the writers of its operand. Regions changed by messages since stay in
    /// the slot.
    pub(super) fn attach(&mut self, slot: usize) {
        let Some(kernel) = self.kernel(slot).cloned() else {
            return;
        };
        for link in links(&kernel) {
            if link.to.is_none() && self.has_replicas(&link.on) {
                return;
            }
            if self.attach_by(slot, &kernel, &link) {
                return;
            }
        }
    }

    /// Whether other ranks compute the same tensor. Their sums must be taken in the same order, and messages
    /// arrive in different regions.
    fn has_replicas(&self, on: &View) -> bool {
        let tensor = self.body.buffer(on.buffer).tensor;
        tensor.is_none_or(|tensor| {
            tensor.distribution.split_axes() != tensor.distribution.mesh(&self.world).split_axes()
        })
    }

    fn attach_by(&mut self, slot: usize, kernel: &Kernel, link: &Link) -> bool {
        let on = link.on;
        let writers = self.writers(&on, slot);
        let by_kernels = writers.kernels.iter().map(|(_, region)| region);
        let mut regions = by_kernels.chain(&writers.rest);
        // Inputs of a concatenation are computed by different kernels.
        if regions.any(|region| region.0[4].len() != on.extent[4]) {
            return false;
        }
        let moved = link.to.filter(|to| *to != on);
        if moved.is_some() && !self.is_only_between(&on, slot, &writers) {
            return false;
        }
        let (mut fused, mut rest) = (Vec::new(), writers.rest);
        for (writer, region) in writers.kernels {
            let mut part = restricted(kernel, &self.body.buffers, &on, &region);
            set_accumulate(&mut part, !fused.is_empty());
            match self.joined(writer, slot, part, moved.map(|to| (on, to))) {
                Some(kernel) => fused.push((writer, kernel)),
                None => rest.push(region),
            }
        }
        let left: usize = rest.iter().map(Region::volume).sum();
        if 2 * left >= on.volume() || (moved.is_some() && left > 0) {
            return false;
        }
        let origin = &self.slots[slot][0].origin;
        let rest: Vec<Task> = rest
            .iter()
            .map(|region| {
                let mut part = restricted(kernel, &self.body.buffers, &on, region);
                set_accumulate(&mut part, true);
                compute(origin.clone(), part)
            })
            .collect();
        for (writer, kernel) in fused {
            let task = self.with_kernel(writer, kernel);
            self.put(writer, vec![task]);
        }
        self.put(slot, rest);
        true
    }

    /// The kernel of an earlier slot with one more part, if it can be fused.
    fn joined(
        &self,
        writer: usize,
        slot: usize,
        mut part: Kernel,
        moved: Option<(View, View)>,
    ) -> Option<Kernel> {
        let mut parts = self.kernel(writer)?.parts().to_vec();
        if parts.len() >= PARTS_MAX {
            return None;
        }
        if let Some((on, to)) = moved {
            let all = parts.iter_mut().chain([&mut part]);
            all.for_each(|part| redirect(part, &on, &to));
        }
        if self.conflicts(&part, writer, slot) {
            return None;
        }
        parts.push(part);
        self.offered(parts)
    }

    /// The last writers of a view before a slot.
    fn writers(&self, on: &View, slot: usize) -> Writers {
        let (mut open, mut kernels, mut rest) = (vec![on.region()], Vec::new(), Vec::new());
        for &earlier in self.users(on.buffer).range(..slot).rev() {
            if open.is_empty() {
                break;
            }
            let single = self
                .kernel(earlier)
                .filter(|kernel| !matches!(kernel, Kernel::Fill { .. }));
            for (view, access) in &self.accesses[earlier] {
                if view.buffer != on.buffer || !access.writes() {
                    continue;
                }
                let common = open.iter().map(|open| open.intersect(&view.region()));
                let mut common: Vec<Region> = common.filter(|part| !part.is_empty()).collect();
                if common.is_empty() {
                    continue;
                }
                common.sort_by_key(Region::volume);
                let is_known = kernels.iter().any(|(known, _)| *known == earlier);
                if single.is_some() && !is_known {
                    kernels.extend(common.pop().map(|largest| (earlier, largest)));
                }
                rest.append(&mut common);
                let hole = view.region();
                open = open.iter().flat_map(|open| open.minus(&hole)).collect();
            }
        }
        rest.append(&mut open);
        kernels.reverse();
        Writers { kernels, rest }
    }

    /// Whether the buffer of a view is used only between its writers and a slot, so that the writers can be
    /// redirected.
    fn is_only_between(&self, on: &View, slot: usize, writers: &Writers) -> bool {
        let users = self.users(on.buffer);
        let is_writer =
            |user: &usize| *user == slot || writers.kernels.iter().any(|(known, _)| known == user);
        let writes_inside = |writer: usize| {
            let mut own = self.accesses[writer]
                .iter()
                .filter(|(view, _)| view.buffer == on.buffer);
            own.all(|(view, _)| on.region().holds(&view.region()))
        };
        let buffer = self.body.buffer(on.buffer);
        let is_output = |output: &partita_program::Output| output.view.buffer == on.buffer;
        !buffer.role.is_persistent()
            && !self.body.outputs.iter().any(is_output)
            && writers.rest.is_empty()
            && users.iter().all(is_writer)
            && writers.kernels.iter().all(|&(id, _)| writes_inside(id))
    }
}

/// Redirects views of the buffer of `on` to the corresponding views of `to`.
fn redirect(kernel: &mut Kernel, on: &View, to: &View) {
    kernel.each_view_mut(&mut |view| {
        if view.buffer == on.buffer {
            view.buffer = to.buffer;
            for dim in 0..5 {
                view.start[dim] = view.start[dim] - on.start[dim] + to.start[dim];
            }
        }
    });
}
