//! Memory: initialization before reads, races, sharing, and halos.

use crate::order::{Ends, Order};
use crate::structure::end_of;
use crate::{Case, Fault, adjoint};
use partita_program::descriptor::{Extents, Flow, Operand};
use partita_program::{
    Access, Body, Buffer, Collective, CollectiveKind, Kernel, Lane, Role, TensorRegion, View, Work,
};
use partita_space::Region;
use std::collections::{BTreeMap, BTreeSet};

/// Checks for races, for buffers that share memory while in use, and for uninitialized reads.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for (class, body) in case.checked() {
        let body = Memory {
            case,
            class,
            body,
            order: Order::new(body),
            accesses: accesses(body),
        };
        body.overlaps(faults);
        body.races(faults);
        body.sharing(faults);
        body.initialization(faults);
        body.contributions(faults);
        body.receives(faults);
        body.gradient_halos(faults);
    }
}

/// An access to a buffer. The one past the last task is the reader of the outputs.
#[derive(Clone, Copy)]
struct BufferAccess {
    task: usize,
    region: Region,
    access: Access,
    by: Accessor,
}

/// Kind of task that accesses a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accessor {
    /// A kernel that sets a constant.
    Fill,
    /// Any other kernel.
    Kernel,
    /// A kernel's workspace.
    Workspace,
    /// Exchanges, collectives, loads, and the reader of the outputs.
    Other,
}

fn accesses(body: &Body) -> Vec<Vec<BufferAccess>> {
    let mut accesses = vec![Vec::new(); body.buffers.len()];
    let mut push = |task: usize, view: &View, access: Access, by: Accessor| {
        if !view.is_empty() {
            accesses[view.buffer.0 as usize].push(BufferAccess {
                task,
                region: view.region(),
                access,
                by,
            });
        }
    };
    for (id, task) in body.tasks.iter().enumerate() {
        match &task.work {
            Work::Compute {
                kernel, workspace, ..
            } => {
                let is_fill = matches!(kernel.descriptor().flow, Flow::Clears { .. });
                let by = if is_fill {
                    Accessor::Fill
                } else {
                    Accessor::Kernel
                };
                for (view, access) in kernel.accesses() {
                    push(id, &view, access, by);
                }
                if let Some(view) = workspace {
                    push(id, view, Access::Write, Accessor::Workspace);
                }
            }
            Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => {
                for (view, access) in task.accesses() {
                    push(id, &view, access, Accessor::Other);
                }
            }
        }
    }
    for output in &body.outputs {
        push(
            body.tasks.len(),
            &output.view,
            Access::Read,
            Accessor::Other,
        );
    }
    accesses
}

struct Memory<'a, 'p> {
    case: &'a Case<'p>,
    class: usize,
    body: &'p Body,
    order: Order,
    accesses: Vec<Vec<BufferAccess>>,
}

impl Memory<'_, '_> {
    fn label(&self, buffer: usize) -> String {
        format!("b{buffer} ({})", self.body.buffers[buffer].name)
    }

    fn use_of(&self, task: usize) -> String {
        match self.body.tasks.get(task) {
            Some(known) => format!("t{task} {} of {}", known.work.name(), known.origin.layer),
            None => "the reading of the outputs".to_owned(),
        }
    }

    /// Overlapping accesses of one task: an elementwise kernel may read and write a view in place, and messages
    /// of one exchange may accumulate into the same elements.
    fn overlaps(&self, faults: &mut Vec<Fault>) {
        for (buffer, touches) in self.accesses.iter().enumerate() {
            for (i, second) in touches.iter().enumerate() {
                let earlier = touches[..i].iter().rev();
                for first in earlier.take_while(|first| first.task == second.task) {
                    let writes = first.access.writes() || second.access.writes();
                    let touches = first.region.touches(&second.region);
                    if writes && touches && !self.may_overlap(first, second) {
                        let common = first.region.intersect(&second.region);
                        faults.push(Fault::Overlap {
                            site: self.case.site(self.class, second.task),
                            spot: self.case.buffer_region_at(self.class, buffer, common),
                        });
                    }
                }
            }
        }
    }

    fn may_overlap(&self, first: &BufferAccess, second: &BufferAccess) -> bool {
        let same = first.region == second.region;
        let both_write = first.access.writes() && second.access.writes();
        match &self.body.tasks[second.task].work {
            Work::Compute { kernel, .. } => {
                let is_operand =
                    first.by != Accessor::Workspace && second.by != Accessor::Workspace;
                same && !both_write && is_operand && kernel.is_elementwise()
            }
            Work::Exchange(_) => first.access == Access::Update && second.access == Access::Update,
            Work::Collective(collective) => same && !both_write && self.is_in_place(collective),
            Work::Load(_) | Work::Store(_) => false,
        }
    }

    /// Whether a collective reads and writes in place only the part of this member. All ranks of the class must
    /// have the same position in their group.
    fn is_in_place(&self, collective: &Collective) -> bool {
        let (one, each) = match &collective.kind {
            CollectiveKind::AllGather { source, targets } => (source, targets.views()),
            CollectiveKind::ReduceScatter { sources, target } => (target, sources.views()),
            CollectiveKind::AllReduce { .. } | CollectiveKind::AllToAll { .. } => return false,
        };
        let (case, kind) = (self.case, collective.group());
        let shared = each.iter().enumerate().filter(|(_, view)| view == one);
        let shared: Vec<usize> = shared.map(|(position, _)| position).collect();
        case.ranks_in(self.class, kind).iter().all(|&rank| {
            let members = kind.members(&case.program.mesh, rank);
            let positions = 0..members.len();
            let own: Vec<usize> = positions
                .filter(|&position| case.class_of(members[position]) == self.class)
                .collect();
            shared.iter().all(|&position| own == [position])
        })
    }

    fn races(&self, faults: &mut Vec<Fault>) {
        for (buffer, touches) in self.accesses.iter().enumerate() {
            // In a serial lane only the last accesses can be concurrent.
            let mut serial: [Vec<usize>; Lane::ALL.len()] = Default::default();
            // In other lanes, writers and readers; readers conflict with writers only.
            let mut others: [Vec<usize>; 2] = Default::default();
            for (i, second) in touches.iter().enumerate() {
                let is_open = |&first: &usize| {
                    let first = touches[first].task;
                    !self.order.is_before(first, second.task)
                };
                let writes = usize::from(second.access.writes());
                let in_the_way = others[..=writes].iter().flatten().copied();
                let mut open: Vec<usize> = in_the_way.filter(is_open).collect();
                for lane in &serial {
                    open.extend(lane.iter().rev().copied().take_while(is_open));
                }
                open.sort_unstable();
                for first in open {
                    self.race(buffer, &touches[first], second, faults);
                }
                match self.order.serial_lane(second.task) {
                    Some(lane) => serial[lane].push(i),
                    None => others[usize::from(!second.access.writes())].push(i),
                }
            }
        }
    }

    fn race(
        &self,
        buffer: usize,
        first: &BufferAccess,
        second: &BufferAccess,
        faults: &mut Vec<Fault>,
    ) {
        let common = first.region.intersect(&second.region);
        let writes = first.access.writes() || second.access.writes();
        if first.task != second.task && writes && !common.is_empty() {
            faults.push(Fault::Race {
                first: self.case.site(self.class, first.task),
                second: self.case.site(self.class, second.task),
                spot: self.case.buffer_region_at(self.class, buffer, common),
            });
        }
    }

    /// Of buffers with overlapping memory, all accesses to one must come before all accesses to the other. Unused
    /// buffers need no memory.
    fn sharing(&self, faults: &mut Vec<Fault>) {
        let mut used: Vec<Used> = Vec::new();
        for (buffer, touches) in self.accesses.iter().enumerate() {
            let held = &self.body.buffers[buffer];
            let is_kept = held.role.is_persistent();
            if touches.is_empty() && !is_kept {
                continue;
            }
            let tasks = touches.iter().map(|touch| touch.task);
            used.push(Used {
                buffer,
                start: u128::from(held.offset.0),
                end: end_of(held),
                ends: self.order.ends(self.body, tasks),
            });
        }
        used.sort_by_key(|used| (used.start, used.buffer));
        self.kept_apart(&used, faults);
        self.successors(&mut used, faults);
    }

    /// Checks that no buffer overlaps a persistent one. Only pairs with a persistent buffer are compared, as many
    /// transient ones share memory.
    fn kept_apart(&self, used: &[Used], faults: &mut Vec<Fault>) {
        let is_kept = |used: &Used| self.body.buffers[used.buffer].role.is_persistent();
        // Prefix maximum of ends, to find buffers that begin before another one and overlap it.
        let mut ends: Vec<u128> = Vec::with_capacity(used.len());
        for one in used {
            ends.push(one.end.max(ends.last().copied().unwrap_or(0)));
        }
        let mut pairs = BTreeSet::new();
        for (at, kept) in used.iter().enumerate().filter(|(_, used)| is_kept(used)) {
            let before = (0..at).rev().take_while(|&other| ends[other] > kept.start);
            pairs.extend(before.map(|other| (other, at)));
            let after = at + 1..used.len();
            let after = after.take_while(|&other| used[other].start < kept.end);
            pairs.extend(after.map(|other| (at, other)));
        }
        for (first, second) in pairs {
            let (first, second) = (&used[first], &used[second]);
            if second.start < second.end && first.start < first.end && second.start < first.end {
                faults.extend(self.sharing_fault(first, second));
            }
        }
    }

    /// Compares each transient buffer with the previous users of its memory; earlier users are ordered
    /// transitively.
    fn successors(&self, used: &mut Vec<Used>, faults: &mut Vec<Fault>) {
        used.retain(|used| !self.body.buffers[used.buffer].role.is_persistent());
        used.retain(|used| used.start < used.end);
        used.sort_by_key(|used| (self.accesses[used.buffer][0].task, used.buffer));
        // Ranges of memory by start, with their end and last user.
        let mut last: BTreeMap<u128, (u128, usize)> = BTreeMap::new();
        for (at, own) in used.iter().enumerate() {
            let overlapping: Vec<(u128, u128, usize)> = last
                .range(..own.end)
                .rev()
                .map(|(&start, &(end, who))| (start, end, who))
                .take_while(|&(_, end, _)| end > own.start)
                .collect();
            let mut before: Vec<usize> = overlapping.iter().map(|&(_, _, who)| who).collect();
            before.sort_unstable();
            before.dedup();
            for who in before {
                faults.extend(self.sharing_fault(&used[who], own));
            }
            for (start, end, who) in overlapping {
                last.remove(&start);
                if start < own.start {
                    last.insert(start, (own.start, who));
                }
                if end > own.end {
                    last.insert(own.end, (end, who));
                }
            }
            last.insert(own.start, (own.end, at));
        }
    }

    fn sharing_fault(&self, a: &Used, b: &Used) -> Option<Fault> {
        let (class, rank) = (self.class, self.case.representatives[self.class]);
        let is_kept = |used: &Used| self.body.buffers[used.buffer].role.is_persistent();
        if is_kept(a) || is_kept(b) {
            let (kept, other) = if is_kept(a) { (a, b) } else { (b, a) };
            return Some(Fault::PersistentShared {
                class,
                rank,
                persistent: self.label(kept.buffer),
                other: self.label(other.buffer),
            });
        }
        if self.order.all_before(&a.ends, &b.ends) || self.order.all_before(&b.ends, &a.ends) {
            return None;
        }
        // Reported in the order of first use.
        let birth = |used: &Used| self.accesses[used.buffer].first().map(|touch| touch.task);
        let (first, second) = if birth(a) <= birth(b) { (a, b) } else { (b, a) };
        let late = self.accesses[second.buffer].iter().find_map(|touch| {
            let mut others = self.accesses[first.buffer].iter();
            let open = others.find(|other| !self.order.is_before(other.task, touch.task))?;
            Some((open.task, touch.task))
        });
        let (first_use, second_use) = late?;
        Some(Fault::Sharing {
            class,
            rank,
            first: self.label(first.buffer),
            second: self.label(second.buffer),
            first_use: self.use_of(first_use),
            second_use: self.use_of(second_use),
        })
    }

    /// Reads are initialized in this step, or of persistent buffers; outputs are written in this step. The halos
    /// of values that kernels read must not be filled with a constant, which is for padding. (In gradients,
    /// zeros mean that a rank omits the contributions of others.)
    fn initialization(&self, faults: &mut Vec<Fault>) {
        for (id, touches) in self.accesses.iter().enumerate() {
            let buffer = &self.body.buffers[id];
            let is_kept = buffer.role.is_persistent();
            for touch in touches.iter().filter(|touch| touch.access.reads()) {
                let is_output = touch.task == self.body.tasks.len();
                if is_kept && !is_output {
                    continue;
                }
                let open = self.unwritten(touches, touch, vec![touch.region], |_| true);
                if let Some(&region) = open.first() {
                    faults.push(self.unread(id, touch, region));
                } else if touch.by == Accessor::Kernel && buffer.role == Role::Activation {
                    let foreign = self.foreign(buffer, &touch.region);
                    let by = |other: &BufferAccess| other.by != Accessor::Fill;
                    let open = self.unwritten(touches, touch, foreign, by);
                    faults.extend(open.first().map(|&region| Fault::HaloFilled {
                        site: self.case.site(self.class, touch.task),
                        spot: self.case.buffer_region_at(self.class, id, region),
                    }));
                }
            }
        }
    }

    fn unread(&self, buffer: usize, touch: &BufferAccess, region: Region) -> Fault {
        let spot = self.case.buffer_region_at(self.class, buffer, region);
        if touch.task < self.body.tasks.len() {
            let site = self.case.site(self.class, touch.task);
            return Fault::Uninitialized { site, spot };
        }
        let is_it = |output: &&partita_program::Output| {
            output.view.buffer.0 as usize == buffer && output.view.region() == touch.region
        };
        let output = self.body.outputs.iter().find(is_it);
        Fault::OutputUnwritten {
            class: self.class,
            rank: self.case.representatives[self.class],
            name: output.map(|output| output.name.clone()).unwrap_or_default(),
            spot,
        }
    }

    /// The part of `open` that no counted writer before `reader` has written.
    fn unwritten(
        &self,
        touches: &[BufferAccess],
        reader: &BufferAccess,
        mut open: Vec<Region>,
        counts: impl Fn(&BufferAccess) -> bool,
    ) -> Vec<Region> {
        for writer in touches {
            if open.is_empty() {
                break;
            }
            let is_writer = writer.access.writes() && writer.by != Accessor::Workspace;
            if is_writer && self.order.is_before(writer.task, reader.task) && counts(writer) {
                open = without(open, &writer.region);
            }
        }
        open
    }

    /// The part of a region inside the tensor that other ranks own: the halo.
    fn foreign(&self, buffer: &Buffer, region: &Region) -> Vec<Region> {
        let Some((tensor, owned, by)) = self.own(buffer) else {
            return Vec::new();
        };
        let exists = Region::all(tensor.distribution.shape).shift(by);
        region.intersect(&exists).minus(&owned)
    }

    /// The part of a region that this rank does not own: halo and padding.
    fn outside(&self, buffer: &Buffer, region: &Region) -> Vec<Region> {
        self.own(buffer)
            .map_or(Vec::new(), |(_, owned, _)| region.minus(&owned))
    }

    /// The owned region of a buffer, in its indices, and the shift from global indices.
    fn own<'b>(&self, buffer: &'b Buffer) -> Option<(&'b TensorRegion, Region, [i64; 5])> {
        let tensor = buffer.tensor.as_ref()?;
        let coord = &self.case.coords[self.class];
        let owned = tensor.distribution.owned(&self.case.program.mesh, coord);
        let by = std::array::from_fn(|dim| tensor.halo_low[dim] - owned.0[dim].start);
        Some((tensor, owned.shift(by), by))
    }

    /// Contributions to the halo of a gradient are used later, usually sent to the owner.
    fn contributions(&self, faults: &mut Vec<Fault>) {
        for (id, touches) in self.accesses.iter().enumerate() {
            let buffer = &self.body.buffers[id];
            if buffer.role != Role::ActivationGradient {
                continue;
            }
            let writers = touches.iter();
            let writers =
                writers.filter(|touch| touch.access.writes() && touch.by == Accessor::Kernel);
            for writer in writers {
                let mut open = self.outside(buffer, &writer.region);
                for reader in touches {
                    if reader.access.reads() && self.order.is_before(writer.task, reader.task) {
                        let seen = self.still_there(touches, writer, reader);
                        open = seen.iter().fold(open, without);
                    }
                }
                if is_redundant(buffer) {
                    open = self.unended(id, touches, writer.task, open);
                }
                faults.extend(open.first().map(|&region| Fault::ContributionLost {
                    site: self.case.site(self.class, writer.task),
                    spot: self.case.buffer_region_at(self.class, id, region),
                }));
            }
        }
    }

    /// Contributions to the gradient of a redundant copy that are never used, and may not be: those in channels
    /// without gradient, or in outputs of a transposed convolution without inputs, may.
    fn unended(
        &self,
        buffer: usize,
        touches: &[BufferAccess],
        writer: usize,
        open: Vec<Region>,
    ) -> Vec<Region> {
        let is_it = |view: &View| view.buffer.0 as usize == buffer;
        let within = self.parts(writer).iter().flat_map(Kernel::accesses);
        let within = within.filter(|(view, access)| *access == Access::Read && is_it(view));
        let mut open = within.fold(open, |open, (view, _)| without(open, &view.region()));
        let spreads = |part: &Kernel| {
            let operands = part.descriptor().operands;
            let is_window =
                |operand: &Operand<'_>| matches!(operand.extents, Extents::Window { .. });
            let mut inputs = operands.iter().filter(|operand| is_window(operand));
            inputs.any(|operand| is_it(operand.view))
        };
        open.retain(|region| {
            let common = |touch: &&BufferAccess| {
                self.order.is_before(writer, touch.task)
                    && touch.access == Access::Read
                    && touch.region.0[4].touches(&region.0[4])
            };
            let mut readers = touches.iter().filter(common).peekable();
            readers.peek().is_some()
                && !readers.any(|touch| self.parts(touch.task).iter().any(spreads))
        });
        open
    }

    /// The kernels of a task.
    fn parts(&self, task: usize) -> &[Kernel] {
        let task = self.body.tasks.get(task);
        task.map_or(&[], |task| task.work.kernels())
    }

    /// Accumulating messages go to the owned region; others overwrite only what has been read. Redundantly
    /// computed halos are neither received nor sent.
    fn receives(&self, faults: &mut Vec<Fault>) {
        for (task, entry) in self.body.tasks.iter().enumerate() {
            let Work::Exchange(exchange) = &entry.work else {
                continue;
            };
            for receive in &exchange.receives {
                let buffer = self.body.buffer(receive.view.buffer);
                let region = receive.view.region();
                let open = if receive.accumulate || is_redundant(buffer) {
                    self.outside(buffer, &region)
                } else {
                    self.unseen(receive.view.buffer.0 as usize, task, &region)
                };
                faults.extend(open.first().map(|&region| Fault::ReceiveMisplaced {
                    site: self.case.site(self.class, task),
                    spot: self.case.buffer_region_at(
                        self.class,
                        receive.view.buffer.0 as usize,
                        region,
                    ),
                    accumulate: receive.accumulate,
                }));
            }
            for send in &exchange.sends {
                let buffer = self.body.buffer(send.view.buffer);
                let open = if is_redundant(buffer) {
                    self.outside(buffer, &send.view.region())
                } else {
                    Vec::new()
                };
                faults.extend(open.first().map(|&region| {
                    let id = send.view.buffer.0 as usize;
                    Fault::CopySent {
                        site: self.case.site(self.class, task),
                        spot: self.case.buffer_region_at(self.class, id, region),
                    }
                }));
            }
        }
    }

    /// The halo of a gradient that a kernel reads was received, or is zero where the owners compute the
    /// contributions themselves; it is not the rank's own contribution, unless the halo is a redundant copy.
    fn gradient_halos(&self, faults: &mut Vec<Fault>) {
        for (id, touches) in self.accesses.iter().enumerate() {
            let buffer = &self.body.buffers[id];
            let is_reader = |touch: &&BufferAccess| {
                touch.by == Accessor::Kernel
                    && touch.access == Access::Read
                    && !self.copies(touch.task)
            };
            if buffer.role != Role::ActivationGradient {
                continue;
            }
            for reader in touches.iter().filter(is_reader) {
                let others = if is_redundant(buffer) {
                    Vec::new()
                } else {
                    self.outside(buffer, &reader.region)
                };
                let stale = self.stale(touches, reader, others);
                faults.extend(stale.first().map(|&region| Fault::HaloStale {
                    site: self.case.site(self.class, reader.task),
                    spot: self.case.buffer_region_at(self.class, id, region),
                }));
                let foreign = self.foreign(buffer, &reader.region);
                let zeros = self.unwritten(touches, reader, foreign, |by| by.by == Accessor::Other);
                adjoint::check(self.case, self.class, reader.task, &zeros, faults);
            }
        }
    }

    fn copies(&self, task: usize) -> bool {
        let first = self.parts(task).first().map(|part| part.descriptor().flow);
        matches!(first, Some(Flow::Copies { .. }))
    }

    /// The part of `regions` whose last writer before a reader is a kernel.
    fn stale(
        &self,
        touches: &[BufferAccess],
        reader: &BufferAccess,
        regions: Vec<Region>,
    ) -> Vec<Region> {
        let results = touches.iter().filter(|touch| {
            let is_result = touch.access.writes() && touch.by == Accessor::Kernel;
            is_result && self.order.is_before(touch.task, reader.task)
        });
        results
            .flat_map(|result| {
                let there = self.still_there(touches, result, reader);
                let common = |part: &Region| {
                    regions
                        .iter()
                        .map(|region| region.intersect(part))
                        .collect::<Vec<_>>()
                };
                there
                    .iter()
                    .flat_map(common)
                    .filter(|region| !region.is_empty())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// The part written by a writer that a reader sees: not overwritten between.
    fn still_there(
        &self,
        touches: &[BufferAccess],
        writer: &BufferAccess,
        reader: &BufferAccess,
    ) -> Vec<Region> {
        let common = writer.region.intersect(&reader.region);
        let open = if common.is_empty() {
            Vec::new()
        } else {
            vec![common]
        };
        touches.iter().fold(open, |open, later| {
            let replaces = later.access == Access::Write
                && later.by != Accessor::Workspace
                && self.order.is_before(later.task, reader.task)
                && self.order.is_before(writer.task, later.task);
            if replaces {
                without(open, &later.region)
            } else {
                open
            }
        })
    }

    /// Results in a region that have not been read when a task starts.
    fn unseen(&self, buffer: usize, task: usize, region: &Region) -> Vec<Region> {
        let touches = &self.accesses[buffer];
        let is_before = |done: usize| self.order.is_before(done, task);
        let results = touches.iter().filter(|touch| {
            touch.access.writes() && touch.by != Accessor::Fill && is_before(touch.task)
        });
        results
            .flat_map(|result| {
                let common = result.region.intersect(region);
                let open = if common.is_empty() {
                    Vec::new()
                } else {
                    vec![common]
                };
                touches.iter().fold(open, |open, reader| {
                    let reads = reader.access.reads()
                        && is_before(reader.task)
                        && self.order.is_before(result.task, reader.task);
                    if reads {
                        without(open, &reader.region)
                    } else {
                        open
                    }
                })
            })
            .collect()
    }
}

/// Memory and lifetime of a buffer.
struct Used {
    buffer: usize,
    start: u128,
    end: u128,
    ends: Ends,
}

fn is_redundant(buffer: &Buffer) -> bool {
    buffer
        .tensor
        .as_ref()
        .is_some_and(|tensor| tensor.redundant)
}

pub(crate) fn without(open: Vec<Region>, hole: &Region) -> Vec<Region> {
    if open.iter().all(|region| !region.touches(hole)) {
        return open;
    }
    open.iter().flat_map(|region| region.minus(hole)).collect()
}
