//! Collectives over point-to-point messages.

use super::members::{CollectiveMembers, key};
use super::point_to_point::{Endpoint, MessageKind, PointToPoint};
use super::sum::{Accumulator, PartialSums, copy};
use crate::Memory;
use crate::element::with_type;
use crate::packed_tensor::Number;
use partita_program::{SMALL_SUM, View};
use partita_space::{Rank, Split};
use std::ops::Range;
use std::sync::Arc;

/// An allreduce: every member reduces one chunk in rank order, and sends the result to all. Below
/// [`SMALL_SUM`] every member reduces the whole.
pub(super) struct AllReduce {
    group: Arc<CollectiveMembers>,
    own: Accumulator,
    partial_sums: PartialSums,
    /// Members whose reduced chunks are pending.
    open: Vec<(usize, Rank)>,
}

impl AllReduce {
    pub(super) fn start(
        group: Arc<CollectiveMembers>,
        sequence: u32,
        views: &[View],
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        let mut reduction = Self {
            open: Vec::new(),
            own: Accumulator::in_place(views, memory, endpoint),
            partial_sums: PartialSums::new(Arc::clone(&group), sequence),
            group: Arc::clone(&group),
        };
        if !reduction.is_small() {
            reduction.open = group.others().collect();
        }
        reduction.expect(endpoint);
        for (index, rank) in group.others() {
            let chunk = reduction.chunk(index);
            let mut partial_sum = endpoint.blank(reduction.own.dtype, chunk.len());
            with_type!(reduction.own.dtype, T => {
                reduction.own.read::<T>(memory, chunk.start, partial_sum.elements_mut());
            });
            endpoint.post(
                rank,
                key(MessageKind::PartialSum, sequence, endpoint.rank()),
                partial_sum,
            );
        }
        reduction
    }

    fn expect(&self, endpoint: &mut Endpoint<'_>) {
        let dtype = self.own.dtype;
        self.partial_sums
            .expect(dtype, self.chunk(self.group.own_index).len(), endpoint);
        for &(index, rank) in &self.open {
            let sum = self.chunk(index).len();
            endpoint.expect(
                key(MessageKind::Sum, self.partial_sums.sequence, rank),
                dtype,
                sum,
            );
        }
    }

    fn is_small(&self) -> bool {
        (self.own.volume() * self.own.dtype.size()) as u64 <= SMALL_SUM.0
    }

    /// The elements that a member reduces.
    fn chunk(&self, index: usize) -> Range<usize> {
        let extent = self.own.volume();
        if self.is_small() {
            return 0..extent;
        }
        let parts = self.group.len();
        let part = Split { extent, parts }.part(index);
        part.start as usize..part.end as usize
    }

    fn add<T: Number>(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) {
        let chunk = self.chunk(self.group.own_index);
        let answers = !self.is_small();
        self.own.update::<T>(memory, chunk, |own| {
            self.partial_sums.add(own, answers, endpoint);
        });
    }

    /// Ranks that sent no partial sum; if all did, ranks whose reduced chunks are pending. A stalled rank has
    /// sent no partial sum to anyone, so the first list does not blame ranks that wait for it as well.
    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        let missing = self.partial_sums.missing(messages);
        if !missing.is_empty() {
            return missing;
        }
        let sequence = self.partial_sums.sequence;
        let is_due = |rank: Rank| !messages.has(&key(MessageKind::Sum, sequence, rank));
        let open = self.open.iter().map(|&(_, rank)| rank);
        open.filter(|&rank| is_due(rank)).collect()
    }

    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) -> bool {
        if self.partial_sums.are_complete(endpoint) {
            with_type!(self.own.dtype, T => self.add::<T>(endpoint, memory));
        }
        // A reduced chunk overwrites what was sent at the start, never the chunk that this member reduces,
        // so the order of arrival does not matter.
        for (index, rank) in std::mem::take(&mut self.open) {
            let Some(sum) = endpoint.take(&key(MessageKind::Sum, self.partial_sums.sequence, rank))
            else {
                self.open.push((index, rank));
                continue;
            };
            let chunk = self.chunk(index);
            with_type!(self.own.dtype, T => {
                self.own.write(memory, chunk.start, sum.elements::<T>());
            });
            // The packet is the one that carried this member's partial sum.
            endpoint.give_back(endpoint.rank(), sum);
        }
        let is_finished = self.partial_sums.are_added && self.open.is_empty();
        if is_finished {
            self.own.finish(memory, endpoint);
        }
        is_finished
    }
}

/// A reduce-scatter: every member sends the others their partial sums, and reduces its own in rank order, so
/// the result is bitwise equal to that of an allreduce.
pub(super) struct ReduceScatter {
    own: Accumulator,
    partial_sums: PartialSums,
}

impl ReduceScatter {
    pub(super) fn start(
        group: Arc<CollectiveMembers>,
        sequence: u32,
        sources: &[View],
        target: View,
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        group.check(sources, "sources");
        let mut partial_sums = PartialSums::new(Arc::clone(&group), sequence);
        // Empty parts are not sent.
        partial_sums.are_added = target.is_empty();
        if !target.is_empty() {
            let dtype = memory.body().buffer(target.buffer).dtype;
            partial_sums.expect(dtype, target.volume(), endpoint);
        }
        post(
            &group,
            MessageKind::PartialSum,
            sequence,
            sources,
            memory,
            endpoint,
        );
        let own = Accumulator::new(&sources[group.own_index], target, memory, endpoint);
        Self { own, partial_sums }
    }

    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        self.partial_sums.missing(messages)
    }

    pub(super) fn deliver(&mut self, endpoint: &mut Endpoint<'_>, memory: &Memory<'_>) -> bool {
        if self.partial_sums.are_complete(endpoint) {
            let all = 0..self.own.volume();
            with_type!(self.own.dtype, T => self.own.update::<T>(memory, all, |own| {
                self.partial_sums.add(own, false, endpoint);
            }));
            self.own.finish(memory, endpoint);
        }
        self.partial_sums.are_added
    }
}

/// An allgather or an all-to-all: every member sends a part to each other member.
pub(super) struct PairwiseExchange {
    sequence: u32,
    open: Vec<(Rank, View)>,
}

impl PairwiseExchange {
    pub(super) fn start(
        group: &CollectiveMembers,
        sequence: u32,
        sources: &[View],
        targets: &[View],
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        group.check(sources, "sources");
        group.check(targets, "targets");
        let open = group.others().map(|(index, rank)| (rank, targets[index]));
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
        copy(
            &sources[group.own_index],
            &targets[group.own_index],
            memory,
            endpoint,
        );
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

/// Sends each other member its source unless that is empty.
fn post(
    group: &CollectiveMembers,
    kind: MessageKind,
    sequence: u32,
    sources: &[View],
    memory: &Memory<'_>,
    endpoint: &mut Endpoint<'_>,
) {
    for (index, rank) in group.others() {
        let source = &sources[index];
        if !source.is_empty() {
            let part = endpoint.packed(memory, source);
            endpoint.post(rank, key(kind, sequence, endpoint.rank()), part);
        }
    }
}
