//! Sums over ranks, taken in rank order.

use super::collective::{Group, key};
use super::packet::Packet;
use super::point_to_point::{Endpoint, MessageKind, PointToPoint};
use crate::Memory;
use crate::packed_tensor::{Number, with_type};
use partita_program::{Dtype, View};
use partita_space::Rank;
use std::sync::Arc;

/// Elements on which sums are taken: in their view itself, where nothing else may touch it until the
/// task is done, and every pass over it that is saved is time of a core that computes.
pub(super) struct Own {
    pub(super) view: View,
    pub(super) dtype: Dtype,
    /// The elements, where those of the view do not lie side by side in memory.
    packed: Option<Packet>,
}

impl Own {
    /// The contents of `source`, to end in `view`, which is `source` itself or apart from it.
    pub(super) fn new(
        source: &View,
        view: View,
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        let is_dense = memory.is_dense(source) && memory.is_dense(&view);
        if is_dense && *source != view {
            copy(source, &view, memory, endpoint);
        }
        Self {
            view,
            dtype: memory.body().buffer(view.buffer).dtype,
            packed: (!is_dense).then(|| endpoint.packed(memory, source)),
        }
    }

    /// Runs on the elements, where they are.
    pub(super) fn with<T: Number>(&mut self, memory: &Memory<'_>, run: impl FnOnce(&mut [T])) {
        match &mut self.packed {
            Some(packed) => run(packed.elements_mut::<T>()),
            None => run(memory.write::<T>(&self.view).data_mut()),
        }
    }

    pub(super) fn finish(&mut self, memory: &Memory<'_>, endpoint: &mut Endpoint<'_>) {
        if let Some(packed) = self.packed.take() {
            packed.unpack(memory, &self.view, false);
            endpoint.give_back(endpoint.rank(), packed);
        }
    }
}

/// Copies between views that share no element, without a packet where both are dense.
pub(super) fn copy(source: &View, target: &View, memory: &Memory<'_>, endpoint: &mut Endpoint<'_>) {
    if source == target {
        return;
    }
    if memory.is_dense(source) && memory.is_dense(target) {
        with_type!(memory.body().buffer(source.buffer).dtype, T => {
            let from = memory.read::<T>(source);
            memory.write::<T>(target).data_mut().copy_from_slice(from.data());
        });
        return;
    }
    let contents = endpoint.packed(memory, source);
    contents.unpack(memory, target, false);
    endpoint.give_back(endpoint.rank(), contents);
}

/// What other members give for a sum that this one takes.
pub(super) struct Addends {
    group: Arc<Group>,
    pub(super) sequence: u32,
    /// What has come, by place in the group; this member's own stays empty.
    parts: Vec<Option<Packet>>,
    pub(super) are_added: bool,
}

impl Addends {
    pub(super) fn new(group: Arc<Group>, sequence: u32) -> Self {
        Self {
            parts: group.members.iter().map(|_| None).collect(),
            group,
            sequence,
            are_added: false,
        }
    }

    /// Announces parts of so many elements.
    pub(super) fn expect(&self, dtype: Dtype, elements: usize, endpoint: &mut Endpoint<'_>) {
        for (_, rank) in self.group.others() {
            endpoint.expect(
                key(MessageKind::Addend, self.sequence, rank),
                dtype,
                elements,
            );
        }
    }

    /// Takes what has come, and tells whether it can be added now.
    pub(super) fn are_due(&mut self, endpoint: &mut Endpoint<'_>) -> bool {
        if self.are_added {
            return false;
        }
        let mut is_complete = true;
        for (place, rank) in self.group.others() {
            let part = &mut self.parts[place];
            if part.is_none() {
                *part = endpoint.take(&key(MessageKind::Addend, self.sequence, rank));
            }
            is_complete &= part.is_some();
        }
        is_complete
    }

    /// Ranks that have sent none.
    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        let silent = self.group.others().filter(|&(place, rank)| {
            !self.are_added
                && self.parts[place].is_none()
                && !messages.has(&key(MessageKind::Addend, self.sequence, rank))
        });
        silent.map(|(_, rank)| rank).collect()
    }

    /// Adds in rank order, whatever this member's place, so that the bits depend neither on that nor on
    /// who came first. Where it answers, each part goes back to its sender with the sum in it.
    pub(super) fn add<T: Number>(
        &mut self,
        own: &mut [T],
        answers: bool,
        endpoint: &mut Endpoint<'_>,
    ) {
        let mut packets: Vec<Packet> = self.parts.iter_mut().filter_map(Option::take).collect();
        let parts = packets.iter_mut().map(Packet::elements_mut::<T>);
        let mut parts: Vec<&mut [T]> = parts.collect();
        let lengths = parts.iter().all(|part| part.len() == own.len());
        assert!(lengths, "length of a part of a sum");
        add_in_order(own, &mut parts, self.group.me, answers);
        for ((_, rank), part) in self.group.others().zip(packets) {
            if answers {
                endpoint.post(
                    rank,
                    key(MessageKind::Sum, self.sequence, endpoint.rank()),
                    part,
                );
            } else {
                endpoint.give_back(rank, part);
            }
        }
        self.are_added = true;
    }
}

/// Elements that are added before the next ones: few enough to stay in the nearest cache. Few under Miri,
/// so that its small tests have sums of several blocks.
const BLOCK: usize = if cfg!(miri) { 32 } else { 2048 };

/// `own` becomes the sum of the parts in order, itself at place `me` among them, and so does each part
/// where `answers`.
fn add_in_order<T: Number>(own: &mut [T], parts: &mut [&mut [T]], me: usize, answers: bool) {
    fn add<T: Number>(to: &mut [T], from: &[T]) {
        to.iter_mut()
            .zip(from)
            .for_each(|(sum, &part)| *sum += part);
    }
    let (before, after) = parts.split_at_mut(me);
    for (i, own) in own.chunks_mut(BLOCK).enumerate() {
        let block = i * BLOCK..i * BLOCK + own.len();
        if let [first, rest @ ..] = &mut *before {
            let first = &mut first[block.clone()];
            rest.iter()
                .for_each(|part| add(first, &part[block.clone()]));
            add(own, first);
        }
        after.iter().for_each(|part| add(own, &part[block.clone()]));
        if answers {
            let parts = before.iter_mut().chain(&mut *after);
            parts.for_each(|part| part[block.clone()].copy_from_slice(own));
        }
    }
}
