//! Packed weights: packed once, used as packed, and not stale.

use crate::order::Order;
use crate::{Case, Fault};
use partita_program::descriptor::{Cost, Extents, Flow, Pass, Window};
use partita_program::{Access, Body, BufferId, Direction, Kernel, Role, Taps, View};

/// The convolutions for which weights are packed.
#[derive(Clone, Copy, PartialEq)]
struct Use<'p> {
    direction: Direction,
    taps: &'p Taps,
    groups: usize,
    channels: [usize; 2],
}

impl<'p> Use<'p> {
    fn of(window: &Window<'p>, direction: Direction, channels: [usize; 2]) -> Self {
        Self {
            direction,
            taps: window.taps,
            groups: window.groups,
            channels,
        }
    }
}

/// A kernel that packs weights.
struct Packer<'p> {
    task: usize,
    w: &'p View,
    packed: &'p View,
    of: Use<'p>,
    /// Tasks that change `w`.
    changes: Vec<usize>,
}

/// Packed weights have one packer and matching readers, and the weights do not change between them.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.checked() {
        let packers = packers(body);
        let is_packed = |role| role == Role::PackedWeights;
        if packers.is_empty() && !body.buffers.iter().any(|buffer| is_packed(buffer.role)) {
            continue;
        }
        let order = Order::new(body);
        let packing = Packing {
            case,
            class,
            body,
            packers,
            order,
        };
        packing.targets(faults);
        packing.touches(faults);
    }
}

fn packers(body: &Body) -> Vec<Packer<'_>> {
    let mut packers = Vec::new();
    for (task, entry) in body.tasks.iter().enumerate() {
        for kernel in entry.work.kernels() {
            let descriptor = kernel.descriptor();
            if let Flow::Packs {
                w,
                packed,
                direction,
            } = descriptor.flow
                && let Some(window) = descriptor.window
            {
                let [.., inputs, outputs] = w.extent;
                let channels = [inputs.saturating_mul(window.groups), outputs];
                packers.push(Packer {
                    task,
                    w,
                    packed,
                    of: Use::of(&window, direction, channels),
                    changes: changes(body, w),
                });
            }
        }
    }
    packers
}

/// Tasks that change some of a view.
fn changes(body: &Body, of: &View) -> Vec<usize> {
    let changes = |(view, access): &(View, Access)| {
        let shared = view.region().intersect(&of.region());
        access.writes() && view.buffer == of.buffer && !shared.is_empty()
    };
    let tasks = body.tasks.iter().enumerate();
    let changing = tasks.filter(|(_, task)| task.accesses().iter().any(changes));
    changing.map(|(id, _)| id).collect()
}

/// The weights of a convolution, which may be packed, and their use.
fn wanted(kernel: &Kernel) -> Option<(&View, Use<'_>)> {
    let descriptor = kernel.descriptor();
    let Cost::Convolution {
        pass,
        input,
        output,
        ..
    } = descriptor.cost
    else {
        return None;
    };
    let direction = match pass {
        Pass::Forward => Direction::Forward,
        Pass::BackwardData => Direction::BackwardData,
        Pass::BackwardWeight => return None,
    };
    let channels = [input.extent[4], output.extent[4]];
    let of = Use::of(&descriptor.window?, direction, channels);
    let mut operands = descriptor.operands.into_iter();
    let w = operands.find(|operand| matches!(operand.extents, Extents::Weights { .. }))?;
    Some((w.view, of))
}

struct Packing<'a, 'p> {
    case: &'a Case<'p>,
    class: usize,
    body: &'p Body,
    packers: Vec<Packer<'p>>,
    order: Order,
}

impl Packing<'_, '_> {
    fn fault(&self, task: usize, view: &View, reason: &str) -> Fault {
        Fault::Packed {
            site: self.case.site(self.class, task),
            spot: self.case.spot(self.class, view),
            reason: reason.to_owned(),
        }
    }

    fn is_packed(&self, buffer: BufferId) -> bool {
        self.body.buffer(buffer).role == Role::PackedWeights
    }

    /// Each packer fills a buffer of its own.
    fn targets(&self, faults: &mut Vec<Fault>) {
        for (index, packer) in self.packers.iter().enumerate() {
            let buffer = packer.packed.buffer;
            let same = |other: &Packer<'_>| other.packed.buffer == buffer;
            let reason = if !self.is_packed(buffer) {
                "its buffer has another role"
            } else if self.body.buffer(buffer).view(buffer) != *packer.packed {
                "they are not all of the buffer"
            } else if self.packers[..index].iter().any(same) {
                "others are packed there too"
            } else {
                continue;
            };
            faults.push(self.fault(packer.task, packer.packed, reason));
        }
    }

    /// All other accesses to packed weights are by convolutions.
    fn touches(&self, faults: &mut Vec<Fault>) {
        for (id, task) in self.body.tasks.iter().enumerate() {
            let touched = task.accesses().into_iter().map(|(view, _)| view);
            let Some(view) = touched.into_iter().find(|view| self.is_packed(view.buffer)) else {
                continue;
            };
            let parts = task.work.kernels();
            if parts.is_empty() || parts.iter().any(|part| !self.is_proper(part)) {
                let reason = "only packing and convolutions know what to do with them";
                faults.push(self.fault(id, &view, reason));
            }
            for (w, of) in parts.iter().filter_map(wanted) {
                if self.is_packed(w.buffer) {
                    self.reader(id, w, &of, faults);
                }
            }
        }
    }

    /// Whether a kernel accesses packed weights only to pack them or as its weights.
    fn is_proper(&self, kernel: &Kernel) -> bool {
        let descriptor = kernel.descriptor();
        let operands = descriptor.operands.iter();
        let touched = operands.filter(|operand| self.is_packed(operand.view.buffer));
        let proper = match descriptor.flow {
            Flow::Packs { packed, .. } => self.is_packed(packed.buffer),
            Flow::Computes
            | Flow::Clears { .. }
            | Flow::Copies { .. }
            | Flow::Updates { .. }
            | Flow::Averages { .. }
            | Flow::Measures { .. }
            | Flow::Tracks => wanted(kernel).is_some_and(|(w, _)| self.is_packed(w.buffer)),
        };
        touched.count() == usize::from(proper)
    }

    fn reader(&self, task: usize, w: &View, of: &Use<'_>, faults: &mut Vec<Fault>) {
        let mut packers = self.packers.iter();
        let Some(packer) = packers.find(|packer| packer.packed.buffer == w.buffer) else {
            faults.push(self.fault(task, w, "nothing packs them"));
            return;
        };
        if packer.packed != w {
            faults.push(self.fault(task, w, "they are not taken whole"));
        }
        if packer.of != *of {
            let reason = "they are packed for another direction, window or number of channels";
            faults.push(self.fault(task, w, reason));
        }
        for &writer in &packer.changes {
            let is_before = |a: usize, b: usize| self.order.is_before(a, b);
            if !is_before(writer, packer.task) && !is_before(task, writer) {
                faults.push(Fault::PackedStale {
                    site: self.case.site(self.class, task),
                    weights: self.case.spot(self.class, packer.w),
                    writer: self.case.site(self.class, writer),
                });
            }
        }
    }
}
