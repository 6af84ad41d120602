//! Partial sums: before its reduction, a partial sum over ranks is read only by kernels that are linear in
//! it, is never mixed with values that are no partial sum of the same reduction, and is reduced once, over
//! just its ranks.
//!
//! Which values are partial sums follows from the program itself. A product with weights whose channels are split
//! is partial over the axes of the split, and so is a sum over split samples and positions; a reduction removes
//! the axes of its group. Copies and messages preserve them.

use crate::collectives::GroupMembers;
use crate::lost::unread;
use crate::{BufferRegion, Case, Fault};
use partita_program::descriptor::{Flow, Layout, Operand, Over, SumRole};
use partita_program::{
    Body, BufferId, Collective, CollectiveKind, Exchange, Group, Kernel, TaskSite, View, Work,
};
use partita_space::{AxisList, AxisSet, Offset, Rank, Region};
use std::collections::HashMap;

/// Abstract state of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Zeros, or no contents yet: a partial sum of any reduction.
    Nothing,
    /// Partial sums over these axes; complete values where there are none.
    Partial(AxisSet),
    /// Partial sums of different reductions.
    Mixed,
}

const COMPLETE: State = State::Partial(AxisSet::NONE);

impl State {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (State::Nothing, state) | (state, State::Nothing) => state,
            (a, b) if a == b => a,
            _ => State::Mixed,
        }
    }

    /// After a local sum of parts that differ along more axes.
    fn along(self, more: AxisSet) -> Self {
        match self {
            State::Partial(axes) if axes.minus(more) == axes => State::Partial(axes.union(more)),
            State::Partial(_) | State::Mixed => State::Mixed,
            State::Nothing => State::Nothing,
        }
    }

    /// Of products; at most one factor may be partial.
    fn times(self, other: Self) -> Self {
        match (self, other) {
            (State::Nothing, _) | (_, State::Nothing) => State::Nothing,
            (state, COMPLETE) | (COMPLETE, state) => state,
            _ => State::Mixed,
        }
    }
}

/// What each class sends: by message number, and for messages by receiver and part.
type Sent = HashMap<(usize, u32, [i32; 7], u32), State>;

/// What all members of a group send to a collective, by first member, group, message number and part.
type Sums = HashMap<(Rank, Group, u32, u32), State>;

pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut groups = GroupMembers::default();
    let mut given = Sent::new();
    let unread: Vec<Vec<(usize, View)>> = case.bodies().map(|(_, body)| unread(body)).collect();
    // Fixed-point iteration over a lattice of nothing, partial sums and mixtures, since what ranks receive
    // depends on what others have received.
    loop {
        let (mut next, mut found) = (Sent::new(), Vec::new());
        let mut sums = Sums::new();
        for (class, body) in case.bodies() {
            let mut interpreter = Interpreter {
                case,
                class,
                body,
                unread: &unread[class],
                states: initial(body),
                packed: HashMap::new(),
                groups: &mut groups,
                given: &given,
                next: &mut next,
                sums: &mut sums,
                faults: &mut found,
                task: 0,
            };
            interpreter.run();
        }
        if next == given {
            faults.append(&mut found);
            return;
        }
        given = next;
    }
}

/// Initial states: disjoint regions of each buffer.
fn initial(body: &Body) -> Vec<Vec<(Region, State)>> {
    let buffers = body.buffers.iter().enumerate();
    let of = buffers.map(|(id, buffer)| {
        if buffer.role.is_persistent() {
            vec![(buffer.view(BufferId(id as u32)).region(), COMPLETE)]
        } else {
            Vec::new()
        }
    });
    of.collect()
}

struct Interpreter<'a, 'p> {
    case: &'a Case<'p>,
    class: usize,
    body: &'p Body,
    /// Gradients that are not read after their last write.
    unread: &'a [(usize, View)],
    states: Vec<Vec<(Region, State)>>,
    /// Original weights of packed ones.
    packed: HashMap<BufferId, View>,
    groups: &'a mut GroupMembers,
    given: &'a Sent,
    next: &'a mut Sent,
    sums: &'a mut Sums,
    faults: &'a mut Vec<Fault>,
    /// The current task.
    task: usize,
}

impl<'p> Interpreter<'_, 'p> {
    /// Conflicting tasks are ordered as listed, or there is a race, another fault.
    fn run(&mut self) {
        for (id, task) in self.body.tasks.iter().enumerate() {
            self.task = id;
            match &task.work {
                Work::Compute { kernel, .. } => {
                    kernel.parts().iter().for_each(|part| self.kernel(part));
                }
                Work::Exchange(exchange) => self.exchange(exchange),
                Work::Collective(collective) => self.collective(collective),
                Work::Load(load) => self.write(&load.target, COMPLETE),
                Work::Store(store) => self.need(&store.source, AxisSet::NONE),
            }
        }
        for &(id, view) in self.unread {
            if let State::Partial(axes) = self.read(&view)
                && !axes.is_empty()
            {
                self.faults.push(Fault::PartialSumLost {
                    site: self.case.site(self.class, id),
                    spot: self.case.spot(self.class, &view),
                    axes,
                });
            }
        }
        for output in &self.body.outputs {
            let state = self.read(&output.view);
            if !matches!(state, State::Nothing | COMPLETE) {
                self.faults.push(Fault::OutputPartial {
                    class: self.class,
                    rank: self.case.representatives[self.class],
                    name: output.name.clone(),
                    spot: self.case.spot(self.class, &output.view),
                });
            }
        }
    }

    /// Adds a fault of the current task.
    fn fault(&mut self, view: &View, fault: impl FnOnce(TaskSite, BufferRegion) -> Fault) {
        let site = self.case.site(self.class, self.task);
        let spot = self.case.spot(self.class, view);
        self.faults.push(fault(site, spot));
    }

    fn mixed(&mut self, view: &View) {
        self.fault(view, |site, spot| Fault::PartialSumsMixed { site, spot });
    }

    fn read(&self, view: &View) -> State {
        let region = view.region();
        let pieces = self.states[view.buffer.0 as usize].iter();
        let touched = pieces.filter(|(piece, _)| piece.touches(&region));
        touched.fold(State::Nothing, |all, (_, state)| all.join(*state))
    }

    fn write(&mut self, view: &View, state: State) {
        let mut region = view.region();
        if region.is_empty() {
            return;
        }
        let pieces = &mut self.states[view.buffer.0 as usize];
        let old = std::mem::take(pieces).into_iter();
        pieces.extend(old.flat_map(|(piece, state)| {
            let left = if piece.touches(&region) {
                piece.minus(&region)
            } else {
                vec![piece]
            };
            left.into_iter().map(move |piece| (piece, state))
        }));
        if state == State::Nothing {
            return;
        }
        // Adjacent regions with the same state are merged.
        while let Some((at, joined)) = pieces.iter().enumerate().find_map(|(at, (piece, other))| {
            let joined = (*other == state).then(|| piece.joined(&region));
            Some((at, joined.flatten()?))
        }) {
            pieces.swap_remove(at);
            region = joined;
        }
        pieces.push((region, state));
    }

    fn put(&mut self, view: &View, state: State, accumulate: bool) {
        let before = if accumulate {
            self.read(view)
        } else {
            State::Nothing
        };
        let state = state.join(before);
        if state == State::Mixed {
            self.mixed(view);
        }
        // Reported once.
        self.write(
            view,
            if state == State::Mixed {
                COMPLETE
            } else {
                state
            },
        );
    }

    /// For operands in which a kernel is not linear: they are sums of their own along these axes, and complete
    /// along all others.
    fn need(&mut self, view: &View, apart: AxisSet) {
        match self.read(view) {
            State::Nothing => {}
            State::Partial(axes) if axes == apart => {}
            COMPLETE => self.fault(view, |site, spot| Fault::StatisticsNotLocal {
                site,
                spot,
                local: apart,
            }),
            State::Partial(axes) => {
                self.fault(view, |site, spot| Fault::PartialSumRead {
                    site,
                    spot,
                    axes,
                });
            }
            State::Mixed => self.mixed(view),
        }
    }

    /// Axes that split the dims of the tensor of a view.
    fn axes(&self, view: &View) -> Option<[AxisList; 5]> {
        self.case
            .tensor(self.class, view)
            .map(|tensor| tensor.distribution.axes)
    }

    /// Axes that split samples and positions.
    fn positions(&self, view: &View) -> AxisSet {
        let axes = self.axes(view).unwrap_or_default();
        let sets = axes[..4].iter().map(|list| list.set());
        sets.fold(AxisSet::NONE, AxisSet::union)
    }

    fn kernel(&mut self, kernel: &Kernel) {
        let descriptor = kernel.descriptor();
        let summed = self.layout(&descriptor.layout);
        for operand in &descriptor.operands {
            match operand.sum_role {
                SumRole::Complete | SumRole::OfStep => self.need(operand.view, AxisSet::NONE),
                SumRole::Statistics => self.need(operand.view, self.case.program.local_statistics),
                SumRole::Linear | SumRole::Factor | SumRole::Result(_) => {}
            }
        }
        if let Flow::Packs { w, packed, .. } = descriptor.flow {
            self.packed.insert(packed.buffer, *w);
        }
        let state = self.combined(&descriptor.operands);
        if let Layout::Product {
            to,
            bias: Some(bias),
            ..
        } = descriptor.layout
            && let State::Partial(axes) = state.along(summed)
            && !self.is_first(to, axes)
        {
            self.fault(bias, |site, spot| Fault::BiasRepeated { site, spot, axes });
        }
        for operand in &descriptor.operands {
            let SumRole::Result(over) = operand.sum_role else {
                continue;
            };
            let state = match over {
                Over::Nothing => state,
                Over::Zeros => State::Nothing,
                Over::Positions(view) => state.along(self.positions(view)),
                Over::Space(view) => state.along(self.space(view)),
                Over::Channels(view) => state.along(self.channels(view)),
                Over::All(views) => {
                    let states = views.iter().map(|view| state.along(self.split(view)));
                    states.fold(State::Nothing, State::join)
                }
                Over::Products => state.along(summed),
            };
            self.put(operand.view, state, operand.access.reads());
        }
    }

    /// Joint state of the linear operands and factors.
    fn combined(&self, operands: &[Operand<'_>]) -> State {
        let mut all = None;
        for operand in operands {
            let (state, is_factor) = match operand.sum_role {
                SumRole::Complete | SumRole::Statistics | SumRole::OfStep | SumRole::Result(_) => {
                    continue;
                }
                SumRole::Linear => (self.read(operand.view), false),
                SumRole::Factor => (self.read(operand.view), true),
            };
            all = Some(match all {
                None => state,
                Some(all) if is_factor => state.times(all),
                Some(all) => state.join(all),
            });
        }
        all.unwrap_or(COMPLETE)
    }

    /// Checks the distributions of operands. Returns the axes over which products are partial.
    fn layout(&mut self, layout: &Layout<'_>) -> AxisSet {
        match *layout {
            Layout::Any => {}
            Layout::Product {
                from,
                to,
                w,
                is_forward,
                ..
            } => {
                let [rows, columns] = self.shares(w);
                let wanted = if is_forward {
                    [rows, columns]
                } else {
                    [columns, rows]
                };
                let summed = self.shared(from, to, wanted, rows.is_empty());
                return summed.unwrap_or_default();
            }
            Layout::ProductGradient { x, dy, dw } => {
                let [rows, columns] = self.shares(dw);
                self.shared(x, dy, [rows, columns], rows.is_empty());
            }
            Layout::Table { w, y } => self.columns(w, y),
            Layout::Sequences { inputs, y, bias } => {
                self.sequences(inputs, y);
                if let Some(bias) = bias {
                    self.columns(bias, y);
                }
            }
            Layout::OwnShare {
                parameter,
                gradient,
            } => {
                if self.axes(parameter) != self.axes(gradient) {
                    self.fault(gradient, |site, spot| Fault::NotOwnShare { site, spot });
                }
            }
        }
        AxisSet::NONE
    }

    /// Axes of the last two dims of weights or their gradient.
    fn shares(&self, w: &View) -> [AxisList; 2] {
        let w = self.packed.get(&w.buffer).unwrap_or(w);
        let axes = self.axes(w).unwrap_or_default();
        [axes[3], axes[4]]
    }

    /// Checks that the channels of two tensors are split as the weights between them are, or by whole groups.
    /// Returns the axes over which products are partial; none for a fault.
    fn shared(
        &mut self,
        x: &View,
        y: &View,
        wanted: [AxisList; 2],
        by_groups: bool,
    ) -> Option<AxisSet> {
        let (Some(a), Some(b)) = (self.axes(x), self.axes(y)) else {
            return Some(wanted[0].set());
        };
        if [a[4], b[4]] == wanted {
            return Some(wanted[0].set());
        }
        // Then one of the two lists is empty.
        if by_groups && [a[4], b[4]] == [wanted[0].then(wanted[1]); 2] {
            return Some(AxisSet::NONE);
        }
        let [rows, columns] = wanted;
        self.fault(x, |site, spot| Fault::WeightsMisplaced {
            site,
            spot,
            channels: a[4],
            other: b[4],
            rows,
            columns,
        });
        None
    }

    /// Whether all ranks of the class are the first along these axes of the mesh of a tensor.
    fn is_first(&self, of: &View, axes: AxisSet) -> bool {
        let program = self.case.program;
        let tensor = self.case.tensor(self.class, of);
        let submesh = tensor.and_then(|tensor| tensor.distribution.submesh);
        let of_class = program.class_of.iter().enumerate();
        let mut ranks = of_class.filter(|(_, class)| **class as usize == self.class);
        axes.is_empty()
            || ranks.all(|(rank, _)| {
                let there = match submesh {
                    None => Some(program.mesh.coord(rank)),
                    Some(submesh) => submesh.coord(rank),
                };
                there.is_some_and(|there| axes.iter().all(|axis| there[axis.index()] == 0))
            })
    }

    /// Axes that split positions.
    fn space(&self, view: &View) -> AxisSet {
        let axes = self.axes(view).unwrap_or_default();
        let sets = axes[1..4].iter().map(|list| list.set());
        sets.fold(AxisSet::NONE, AxisSet::union)
    }

    /// Axes that split the channels.
    fn channels(&self, view: &View) -> AxisSet {
        self.axes(view).unwrap_or_default()[4].set()
    }

    /// Checks that rows are not split, and columns are split as the channels are.
    fn columns(&mut self, w: &View, y: &View) {
        let [rows, columns] = self.shares(w);
        let of_y = self.axes(y).unwrap_or_default()[4];
        if !rows.is_empty() || of_y != columns {
            self.fault(y, |site, spot| Fault::TableMisplaced {
                site,
                spot,
                channels: of_y,
                rows,
                columns,
            });
        }
    }

    /// Checks that all channels are split alike, and positions are not split.
    fn sequences(&mut self, inputs: [&View; 3], y: &View) {
        let of_y = self.axes(y).unwrap_or_default()[4];
        for view in inputs {
            let axes = self.axes(view).unwrap_or_default();
            let space = axes[1..4].iter().copied().find(|list| !list.is_empty());
            if space.is_some() || axes[4] != of_y {
                self.fault(view, |site, spot| Fault::SequenceMisplaced {
                    site,
                    spot,
                    positions: space.unwrap_or_default(),
                    channels: axes[4],
                    wanted: of_y,
                });
            }
        }
    }

    /// Axes that split any dim of the tensor of a view.
    fn split(&self, view: &View) -> AxisSet {
        let axes = self.axes(view).unwrap_or_default();
        self.positions(view).union(axes[4].set())
    }

    fn exchange(&mut self, exchange: &Exchange) {
        for send in &exchange.sends {
            let state = self.read(&send.view);
            let steps = send.to.0;
            for &rank in self.case.ranks_beside(self.class, send.to) {
                self.stays(&send.view, state, self.along(send, rank));
            }
            let key = (self.class, exchange.sequence, steps, send.part);
            self.next.insert(key, state);
        }
        for receive in &exchange.receives {
            let back: Offset = receive.from.reversed();
            let mesh = &self.case.program.mesh;
            let ranks = self.case.ranks_beside(self.class, receive.from).iter();
            let peers = ranks.filter_map(|&rank| mesh.neighbor(rank, receive.from));
            let given = peers.filter_map(|peer| {
                let class = self.case.class_of(peer);
                let key = (class, exchange.sequence, back.0, receive.part);
                self.given.get(&key)
            });
            let state = given.fold(State::Nothing, |all, state| all.join(*state));
            self.put(&receive.view, state, receive.accumulate);
        }
    }

    /// The axes along which the receiver of a message has other coordinates. Partial sums may be sent to the same
    /// coordinates of another submesh, which reduces them with its own.
    fn along(&self, send: &partita_program::Send, from: Rank) -> AxisSet {
        let world = &self.case.program.mesh;
        let tensor = self.case.tensor(self.class, &send.view);
        let steps = match tensor.and_then(|tensor| tensor.distribution.submesh) {
            None => send.to.0,
            Some(submesh) => {
                let to = world.neighbor(from, send.to);
                let coords = (submesh.coord(from), to.and_then(|to| submesh.coord(to)));
                let (Some(from), Some(to)) = coords else {
                    return AxisSet::NONE;
                };
                std::array::from_fn(|axis| to[axis] as i32 - from[axis] as i32)
            }
        };
        let axes = partita_space::AXES.into_iter();
        AxisSet::of(axes.filter(|axis| steps[axis.index()] != 0))
    }

    /// Checks that partial sums are not sent along the axes of their reduction.
    fn stays(&mut self, view: &View, state: State, along: AxisSet) {
        if let State::Partial(axes) = state
            && axes.minus(along) != axes
        {
            self.fault(view, |site, spot| Fault::PartialSumSent {
                site,
                spot,
                axes,
                along,
            });
        }
    }

    fn collective(&mut self, collective: &Collective) {
        let parts = collective.kind.parts().into_iter();
        for (part, views) in (0..).zip(parts) {
            self.part_of_collective(collective, part, views);
        }
    }

    fn part_of_collective(
        &mut self,
        collective: &Collective,
        part: u32,
        (sources, targets): (&[View], &[View]),
    ) {
        let mine = sources
            .iter()
            .map(|view| self.read(view))
            .fold(State::Nothing, State::join);
        let key = |class: usize| (class, collective.sequence, [0; 7], part);
        self.next.insert(key(self.class), mine);
        let kind = collective.group();
        let mut all = mine;
        for &rank in self.case.ranks_in(self.class, kind) {
            let group = self.groups.of(self.case, rank, kind);
            let sum = self
                .sums
                .entry((group.members[0], kind, collective.sequence, part));
            let sum = sum.or_insert_with(|| {
                let classes = group.firsts.iter().map(|&rank| self.case.class_of(rank));
                let given = classes.filter_map(|class| self.given.get(&key(class)));
                given.fold(State::Nothing, |all, state| all.join(*state))
            });
            all = all.join(*sum);
        }
        let around = kind.wide(&self.case.program.mesh);
        let Some(first) = sources.first().copied() else {
            return;
        };
        match &collective.kind {
            CollectiveKind::AllReduce { .. } | CollectiveKind::ReduceScatter { .. } => {
                let state = self.reduced(&first, all, around);
                targets.iter().for_each(|target| self.write(target, state));
            }
            CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll { .. } => {
                self.stays(&first, all, around);
                targets.iter().for_each(|target| self.write(target, all));
            }
        }
    }

    /// After a reduction over a group.
    fn reduced(&mut self, view: &View, state: State, group: AxisSet) -> State {
        match state {
            State::Nothing => State::Nothing,
            State::Partial(axes) if group.minus(axes).is_empty() => {
                State::Partial(axes.minus(group))
            }
            State::Partial(axes) => {
                self.fault(view, |site, spot| {
                    if axes.is_empty() {
                        Fault::NotPartial { site, spot, group }
                    } else {
                        Fault::ReducedOverOthers {
                            site,
                            spot,
                            axes,
                            group,
                        }
                    }
                });
                COMPLETE
            }
            State::Mixed => {
                self.mixed(view);
                COMPLETE
            }
        }
    }
}
