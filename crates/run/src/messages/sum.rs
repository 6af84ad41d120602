//! Sums over ranks, taken in rank order.

use super::members::{CollectiveMembers, key};
use super::packet::Packet;
use super::point_to_point::{Endpoint, MessageKind, PointToPoint};
use crate::Memory;
use crate::element::with_type;
use crate::packed_tensor::Number;
use partita_program::{BufferId, Dtype, View};
use partita_space::Rank;
use std::ops::Range;
use std::sync::Arc;

/// This rank's operand and result of a reduction: in place in its view where that is contiguous and the only
/// one, which saves a pass over memory, else packed.
pub(super) struct Accumulator {
    views: Vec<View>,
    /// Where the operand is, which on a device is not copied to a result in another place before it is summed.
    source: View,
    pub(super) dtype: Dtype,
    /// The elements of several views, or of one that is not contiguous.
    packed: Option<Packet>,
}

impl Accumulator {
    /// Starts with the contents of `source`; the result goes to `view`, which equals or does not overlap it.
    pub(super) fn new(
        source: &View,
        view: View,
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        let is_dense = memory.is_dense(source) && memory.is_dense(&view);
        if is_dense && memory.device().is_none() {
            copy(source, &view, memory, endpoint);
        }
        Self {
            views: vec![view],
            source: *source,
            dtype: memory.body().buffer(view.buffer).dtype,
            packed: (!is_dense).then(|| endpoint.packed(memory, source)),
        }
    }

    /// Of views that become the sum of their contents.
    pub(super) fn in_place(
        views: &[View],
        memory: &Memory<'_>,
        endpoint: &mut Endpoint<'_>,
    ) -> Self {
        if let [view] = views {
            return Self::new(view, *view, memory, endpoint);
        }
        Self {
            views: views.to_vec(),
            source: views[0],
            dtype: memory.body().buffer(views[0].buffer).dtype,
            packed: Some(endpoint.packed_all(memory, views)),
        }
    }

    /// Elements of all views.
    pub(super) fn volume(&self) -> usize {
        self.views.iter().map(View::volume).sum()
    }

    /// Copies operands from the first one on.
    pub(super) fn read<T: Number>(&self, memory: &Memory<'_>, first: usize, to: &mut [T]) {
        let elements = first..first + to.len();
        match &self.packed {
            Some(packed) => to.copy_from_slice(&packed.elements::<T>()[elements]),
            None if memory.device().is_some() => {
                let (buffer, start) = start_of(&self.source, memory);
                memory.pack_range(buffer, start + first, to);
            }
            None => to.copy_from_slice(&memory.read::<T>(&self.source).data()[elements]),
        }
    }

    /// Sets results from the first one on.
    pub(super) fn write<T: Number>(&mut self, memory: &Memory<'_>, first: usize, from: &[T]) {
        let elements = first..first + from.len();
        match &mut self.packed {
            Some(packed) => packed.elements_mut::<T>()[elements].copy_from_slice(from),
            None if memory.device().is_some() => {
                let (buffer, start) = start_of(&self.views[0], memory);
                memory.unpack_range(buffer, start + first, from);
            }
            None => memory.write::<T>(&self.views[0]).data_mut()[elements].copy_from_slice(from),
        }
    }

    /// Turns operands into results; copies of those that a device has.
    pub(super) fn update<T: Number>(
        &mut self,
        memory: &Memory<'_>,
        elements: Range<usize>,
        run: impl FnOnce(&mut [T]),
    ) {
        match &mut self.packed {
            Some(packed) => run(&mut packed.elements_mut::<T>()[elements]),
            None if memory.device().is_some() => {
                let mut copy = vec![T::default(); elements.len()];
                self.read(memory, elements.start, &mut copy);
                run(&mut copy);
                self.write(memory, elements.start, &copy);
            }
            None => run(&mut memory.write::<T>(&self.views[0]).data_mut()[elements]),
        }
    }

    pub(super) fn finish(&mut self, memory: &Memory<'_>, endpoint: &mut Endpoint<'_>) {
        if let Some(packed) = self.packed.take() {
            let mut start = 0;
            for view in &self.views {
                let elements = start..start + view.volume();
                start = elements.end;
                packed.unpack_part(memory, view, elements);
            }
            endpoint.give_back(endpoint.rank(), packed);
        }
    }
}

/// The buffer of a view, and the number of the view's first element in it.
fn start_of(view: &View, memory: &Memory<'_>) -> (BufferId, usize) {
    let pitch = memory.body().buffer(view.buffer).pitches();
    let first = (0..5).map(|dim| view.start[dim] * pitch[dim]).sum();
    (view.buffer, first)
}

/// Copies between views that do not overlap, without a packet where both are dense.
pub(super) fn copy(source: &View, target: &View, memory: &Memory<'_>, endpoint: &mut Endpoint<'_>) {
    if source == target {
        return;
    }
    if memory.is_dense(source) && memory.is_dense(target) {
        with_type!(memory.body().buffer(source.buffer).dtype, T => {
            if memory.device().is_some() {
                let mut copy = Vec::new();
                memory.pack::<T>(source, &mut copy);
                return memory.unpack(target, &copy, false);
            }
            let from = memory.read::<T>(source);
            memory.write::<T>(target).data_mut().copy_from_slice(from.data());
        });
        return;
    }
    let contents = endpoint.packed(memory, source);
    contents.unpack(memory, target, false);
    endpoint.give_back(endpoint.rank(), contents);
}

/// The partial sums of other members for a reduction of this rank.
pub(super) struct PartialSums {
    group: Arc<CollectiveMembers>,
    pub(super) sequence: u32,
    /// Received packets, by index in the group; this member's own stays empty.
    parts: Vec<Option<Packet>>,
    pub(super) are_added: bool,
}

impl PartialSums {
    pub(super) fn new(group: Arc<CollectiveMembers>, sequence: u32) -> Self {
        Self {
            parts: group.members.iter().map(|_| None).collect(),
            group,
            sequence,
            are_added: false,
        }
    }

    /// Announces receives of this many elements.
    pub(super) fn expect(&self, dtype: Dtype, elements: usize, endpoint: &mut Endpoint<'_>) {
        for (_, rank) in self.group.others() {
            endpoint.expect(
                key(MessageKind::PartialSum, self.sequence, rank),
                dtype,
                elements,
            );
        }
    }

    /// Takes the packets that have arrived; whether all have and are not added yet.
    pub(super) fn are_complete(&mut self, endpoint: &mut Endpoint<'_>) -> bool {
        if self.are_added {
            return false;
        }
        let mut is_complete = true;
        for (index, rank) in self.group.others() {
            let part = &mut self.parts[index];
            if part.is_none() {
                *part = endpoint.take(&key(MessageKind::PartialSum, self.sequence, rank));
            }
            is_complete &= part.is_some();
        }
        is_complete
    }

    /// Ranks whose partial sum has not arrived.
    pub(super) fn missing(&self, messages: &dyn PointToPoint) -> Vec<Rank> {
        let missing = self.group.others().filter(|&(index, rank)| {
            !self.are_added
                && self.parts[index].is_none()
                && !messages.has(&key(MessageKind::PartialSum, self.sequence, rank))
        });
        missing.map(|(_, rank)| rank).collect()
    }

    /// Adds in rank order, so that the bits depend neither on this member's index nor on the order of
    /// arrival. With `answers`, each packet goes back to its sender with the sum.
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
        add_in_order(own, &mut parts, self.group.own_index, answers);
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

/// Block size in elements: small enough for the L1 cache. Smaller under Miri, so that its small tests have
/// several blocks.
const BLOCK: usize = if cfg!(miri) { 32 } else { 2048 };

/// `own` becomes the sum of the parts in order, itself at index `own_index` among them, and so does each
/// part if `answers`.
fn add_in_order<T: Number>(own: &mut [T], parts: &mut [&mut [T]], own_index: usize, answers: bool) {
    fn add<T: Number>(to: &mut [T], from: &[T]) {
        to.iter_mut()
            .zip(from)
            .for_each(|(sum, &part)| *sum += part);
    }
    let (before, after) = parts.split_at_mut(own_index);
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
