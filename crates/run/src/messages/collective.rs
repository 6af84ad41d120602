//! Collectives over point-to-point messages.

use super::point_to_point::{Endpoint, Key, MessageKind, PointToPoint};
use super::sum::{Addends, Own, copy};
use crate::Memory;
use crate::packed_tensor::{Number, with_type};
use partita_program::{SMALL_SUM, View};
use partita_space::{Rank, Split};
use std::ops::Range;
use std::sync::Arc;

/// The members of a group of ranks, ascending.
pub(super) struct Group {
    pub(super) members: Vec<Rank>,
    pub(super) me: usize,
}

impl Group {
    pub(super) fn new(members: Vec<Rank>, rank: Rank) -> Self {
        let me = members.iter().position(|&member| member == rank);
        let me = me.unwrap_or_else(|| panic!("rank {rank} is no member of {members:?}"));
        Self { members, me }
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    fn check(&self, views: &[View], what: &str) {
        assert_eq!(
            views.len(),
            self.len(),
            "{what} and members of a collective"
        );
    }

    /// Places and ranks of all members but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, Rank)> {
        let members = self.members.iter().copied().enumerate();
        members.filter(|&(place, _)| place != self.me)
    }
}

pub(super) fn key(kind: MessageKind, sequence: u32, from: Rank) -> Key {
    Key {
        kind,
        sequence,
        from,
        part: 0,
    }
}

/// An allreduce: every member owns a chunk, adds the parts of all to it in rank order, and sends the
/// sum to all. A small one is a single chunk that everyone owns.
pub(super) struct Reduction {
    group: Arc<Group>,
    own: Own,
    addends: Addends,
    /// Whose finished chunks are still to come.
    open: Vec<(usize, Rank)>,
}

impl Reduction {
    pub(super) fn start(
        group: Arc<Group>,
        sequence: u32,
        view: View,
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        let mut reduction = Self {
            open: Vec::new(),
            own: Own::new(&view, view, memory, endpoint),
            addends: Addends::new(Arc::clone(&group), sequence),
            group: Arc::clone(&group),
        };
        if !reduction.is_small() {
            reduction.open = group.others().collect();
        }
        reduction.expect(endpoint);
        for (place, rank) in group.others() {
            let chunk = reduction.chunk(place);
            let mut addend = endpoint.blank(reduction.own.dtype, chunk.len());
            with_type!(reduction.own.dtype, T => reduction.own.with::<T>(memory, |own| {
                addend.elements_mut::<T>().copy_from_slice(&own[chunk]);
            }));
            endpoint.post(
                rank,
                key(MessageKind::Addend, sequence, endpoint.rank()),
                addend,
            );
        }
        reduction
    }

    fn expect(&self, endpoint: &mut Endpoint<'_>) {
        let dtype = self.own.dtype;
        self.addends
            .expect(dtype, self.chunk(self.group.me).len(), endpoint);
        for &(place, rank) in &self.open {
            let sum = self.chunk(place).len();
            endpoint.expect(
                key(MessageKind::Sum, self.addends.sequence, rank),
                dtype,
                sum,
            );
        }
    }

    fn is_small(&self) -> bool {
        (self.own.view.volume() * self.own.dtype.size()) as u64 <= SMALL_SUM.0
    }

    /// The elements that a member adds.
    fn chunk(&self, place: usize) -> Range<usize> {
        let extent = self.own.view.volume();
        if self.is_small() {
            return 0..extent;
        }
        let parts = self.group.len();
        let part = Split { extent, parts }.part(place);
        part.start as usize..part.end as usize
    }

    fn add<T: Number>(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) {
        let chunk = self.chunk(self.group.me);
        let answers = !self.is_small();
        self.own.with(memory, |own| {
            self.addends.add::<T>(&mut own[chunk], answers, endpoint);
        });
    }

    /// Ranks that sent no part; where all did, ranks whose sums are due. A rank that stands still has
    /// sent no part to anyone, so the first list does not blame those that wait for it as well.
    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        let silent = self.addends.missing(messages);
        if !silent.is_empty() {
            return silent;
        }
        let sequence = self.addends.sequence;
        let is_due = |rank: Rank| !messages.has(&key(MessageKind::Sum, sequence, rank));
        let open = self.open.iter().map(|&(_, rank)| rank);
        open.filter(|&rank| is_due(rank)).collect()
    }

    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) -> bool {
        if self.addends.are_due(endpoint) {
            with_type!(self.own.dtype, T => self.add::<T>(endpoint, memory));
        }
        // A finished chunk overwrites what was sent at the start; the chunk that this member adds is
        // another one, so the order of arrival does not matter.
        for (place, rank) in std::mem::take(&mut self.open) {
            let Some(sum) = endpoint.take(&key(MessageKind::Sum, self.addends.sequence, rank))
            else {
                self.open.push((place, rank));
                continue;
            };
            let chunk = self.chunk(place);
            with_type!(self.own.dtype, T => self.own.with::<T>(memory, |own| {
                own[chunk].copy_from_slice(sum.elements::<T>());
            }));
            // It left with this member's addend.
            endpoint.give_back(endpoint.rank(), sum);
        }
        let is_finished = self.addends.are_added && self.open.is_empty();
        if is_finished {
            self.own.finish(memory, endpoint);
        }
        is_finished
    }
}

/// A reduce-scatter: every member sends each other one the addends for it, and adds its own in rank
/// order as an allreduce does, so that both give the same bits.
pub(super) struct Scatter {
    own: Own,
    addends: Addends,
}

impl Scatter {
    pub(super) fn start(
        group: Arc<Group>,
        sequence: u32,
        sources: &[View],
        target: View,
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        group.check(sources, "sources");
        let mut addends = Addends::new(Arc::clone(&group), sequence);
        // Nobody sends what has no element.
        addends.are_added = target.is_empty();
        if !target.is_empty() {
            let dtype = memory.body().buffer(target.buffer).dtype;
            addends.expect(dtype, target.volume(), endpoint);
        }
        post(
            &group,
            MessageKind::Addend,
            sequence,
            sources,
            memory,
            endpoint,
        );
        let own = Own::new(&sources[group.me], target, memory, endpoint);
        Self { own, addends }
    }

    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        self.addends.missing(messages)
    }

    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) -> bool {
        if self.addends.are_due(endpoint) {
            with_type!(self.own.dtype, T => self.own.with::<T>(memory, |own| {
                self.addends.add(own, false, endpoint);
            }));
            self.own.finish(memory, endpoint);
        }
        self.addends.are_added
    }
}

/// An allgather or an all-to-all: every member sends a part to each other one.
pub(super) struct Shuffle {
    sequence: u32,
    open: Vec<(Rank, View)>,
}

impl Shuffle {
    pub(super) fn start(
        group: &Group,
        sequence: u32,
        sources: &[View],
        targets: &[View],
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        group.check(sources, "sources");
        group.check(targets, "targets");
        let open = group.others().map(|(place, rank)| (rank, targets[place]));
        let open: Vec<(Rank, View)> = open.filter(|(_, target)| !target.is_empty()).collect();
        for (rank, target) in &open {
            let dtype = memory.body().buffer(target.buffer).dtype;
            endpoint.expect(
                key(MessageKind::Part, sequence, *rank),
                dtype,
                target.volume(),
            );
        }
        post(
            group,
            MessageKind::Part,
            sequence,
            sources,
            memory,
            endpoint,
        );
        copy(&sources[group.me], &targets[group.me], memory, endpoint);
        Self { sequence, open }
    }

    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        let ranks = self.open.iter().map(|&(rank, _)| rank);
        ranks
            .filter(|&rank| !messages.has(&key(MessageKind::Part, self.sequence, rank)))
            .collect()
    }

    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) -> bool {
        let sequence = self.sequence;
        self.open.retain(|(rank, target)| {
            let Some(part) = endpoint.take(&key(MessageKind::Part, sequence, *rank)) else {
                return true;
            };
            part.unpack(memory, target, false);
            endpoint.give_back(*rank, part);
            false
        });
        self.open.is_empty()
    }
}

/// Sends each other member its source, where that has elements.
fn post(
    group: &Group,
    kind: MessageKind,
    sequence: u32,
    sources: &[View],
    memory: &Memory<'_>,
    endpoint: &mut Endpoint<'_>,
) {
    for (place, rank) in group.others() {
        let source = &sources[place];
        if !source.is_empty() {
            let part = endpoint.packed(memory, source);
            endpoint.post(rank, key(kind, sequence, endpoint.rank()), part);
        }
    }
}
