use super::mailbox::{Key, Mail, Stage};
use super::packet::Packet;
use partita_program::View;
use partita_run::Memory;
use partita_space::{Rank, Split};
use std::ops::Range;
use std::sync::Arc;

/// Sums up to this size are added by every member from the parts of all: one round trip fewer.
const SMALL_BYTES: u64 = 4096;

/// The members of a group of ranks, ascending.
pub(super) struct Group {
    members: Vec<Rank>,
    me: usize,
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

    /// Places and ranks of all members but this one.
    fn others(&self) -> impl Iterator<Item = (usize, Rank)> {
        let members = self.members.iter().copied().enumerate();
        members.filter(|&(place, _)| place != self.me)
    }
}

fn key(stage: Stage, sequence: u32, from: Rank) -> Key {
    Key {
        stage,
        sequence,
        from,
        part: 0,
    }
}

fn range(split: &Split, place: usize) -> Range<usize> {
    let part = split.part(place);
    part.start as usize..part.end as usize
}

/// An allreduce: every member owns a chunk, adds the parts of all to it in rank order, and sends the
/// sum to all. A small one is a single chunk that everyone owns.
pub(super) struct Reduction {
    group: Arc<Group>,
    sequence: u32,
    view: View,
    /// This member's part, chunk by chunk replaced by the sum.
    own: Packet,
    is_small: bool,
    /// Parts of this member's chunk, by place in the group; this member's own stays empty.
    addends: Vec<Option<Packet>>,
    is_added: bool,
    /// Whose finished chunks are still to come.
    open: Vec<(usize, Rank)>,
}

impl Reduction {
    pub(super) fn start(
        group: Arc<Group>,
        sequence: u32,
        view: View,
        own: Packet,
        mail: &mut Mail,
    ) -> Self {
        let is_small = own.bytes() <= SMALL_BYTES;
        let open = if is_small {
            Vec::new()
        } else {
            group.others().collect()
        };
        let reduction = Self {
            addends: group.members.iter().map(|_| None).collect(),
            group,
            sequence,
            view,
            own,
            is_small,
            is_added: false,
            open,
        };
        for (place, rank) in reduction.group.others() {
            let chunk = reduction.chunk(place);
            let mut addend = mail.blank(&reduction.own, chunk.len());
            addend.copy_from(&reduction.own, chunk);
            mail.post(rank, key(Stage::Addend, sequence, mail.rank()), addend);
        }
        reduction
    }

    /// The elements that a member adds.
    fn chunk(&self, place: usize) -> Range<usize> {
        if self.is_small {
            return 0..self.own.len();
        }
        let split = Split {
            extent: self.own.len(),
            parts: self.group.len(),
        };
        range(&split, place)
    }

    pub(super) fn advance(&mut self, mail: &mut Mail) {
        if !self.is_added {
            self.take_addends(mail);
        }
        let (own, sequence) = (&mut self.own, self.sequence);
        let split = Split {
            extent: own.len(),
            parts: self.group.len(),
        };
        // A finished chunk overwrites what was sent at the start; the chunk that this member adds is
        // another one, so the order of arrival does not matter.
        self.open.retain(|&(place, rank)| {
            let Some(sum) = mail.take(&key(Stage::Sum, sequence, rank)) else {
                return true;
            };
            own.set_at(range(&split, place), &sum);
            mail.give_back(rank, sum);
            false
        });
    }

    fn take_addends(&mut self, mail: &mut Mail) {
        let mut is_complete = true;
        for (place, rank) in self.group.others() {
            let addend = &mut self.addends[place];
            if addend.is_none() {
                *addend = mail.take(&key(Stage::Addend, self.sequence, rank));
            }
            is_complete &= addend.is_some();
        }
        if is_complete {
            self.add(mail);
        }
    }

    /// Adds in rank order, whatever this member's place, so that small and large sums are the same bits.
    fn add(&mut self, mail: &mut Mail) {
        let chunk = self.chunk(self.group.me);
        let mut mine = mail.blank(&self.own, chunk.len());
        mine.copy_from(&self.own, chunk.clone());
        self.addends[self.group.me] = Some(mine);
        let addends = self.addends.iter_mut().zip(&self.group.members);
        for (place, (addend, &rank)) in addends.enumerate() {
            let addend = addend.take();
            let addend = addend.unwrap_or_else(|| panic!("the part of rank {rank} has come"));
            if place == 0 {
                self.own.set_at(chunk.clone(), &addend);
            } else {
                self.own.add_at(chunk.clone(), &addend);
            }
            mail.give_back(rank, addend);
        }
        self.is_added = true;
        if !self.is_small {
            self.send_sum(chunk, mail);
        }
    }

    fn send_sum(&self, chunk: Range<usize>, mail: &mut Mail) {
        for (_, rank) in self.group.others() {
            let mut sum = mail.blank(&self.own, chunk.len());
            sum.copy_from(&self.own, chunk.clone());
            mail.post(rank, key(Stage::Sum, self.sequence, mail.rank()), sum);
        }
    }

    /// Ranks that sent no part; where all did, ranks whose sums are due. A rank that stands still has
    /// sent no part to anyone, so the first list does not blame those that wait for it as well.
    pub(super) fn missing(&self, mail: &Mail) -> Vec<Rank> {
        let silent = self.group.others().filter(|&(place, rank)| {
            !self.is_added
                && self.addends[place].is_none()
                && !mail.has(&key(Stage::Addend, self.sequence, rank))
        });
        let silent: Vec<Rank> = silent.map(|(_, rank)| rank).collect();
        if !silent.is_empty() {
            return silent;
        }
        let is_due = |rank: Rank| !mail.has(&key(Stage::Sum, self.sequence, rank));
        let open = self.open.iter().map(|&(_, rank)| rank);
        open.filter(|&rank| is_due(rank)).collect()
    }

    pub(super) fn deliver(&mut self, mail: &mut Mail, memory: &Memory<'_>) -> bool {
        let is_finished = self.is_added && self.open.is_empty();
        if is_finished {
            self.own.unpack(memory, &self.view, false);
            let empty = Packet::with_room(self.own.dtype(), 0);
            mail.give_back(mail.rank(), std::mem::replace(&mut self.own, empty));
        }
        is_finished
    }
}

/// An allgather: every member sends its part to all.
pub(super) struct Gather {
    sequence: u32,
    open: Vec<(Rank, View)>,
    /// This member's own part and where it goes.
    own: Option<(Packet, View)>,
}

impl Gather {
    pub(super) fn start(
        group: Arc<Group>,
        sequence: u32,
        targets: &[View],
        own: Packet,
        mail: &mut Mail,
    ) -> Self {
        assert_eq!(
            targets.len(),
            group.len(),
            "targets and members of an allgather"
        );
        for (_, rank) in group.others() {
            let mut copy = mail.blank(&own, own.len());
            copy.copy_from(&own, 0..own.len());
            mail.post(rank, key(Stage::Gather, sequence, mail.rank()), copy);
        }
        let others = group.others();
        Self {
            sequence,
            open: others.map(|(place, rank)| (rank, targets[place])).collect(),
            own: Some((own, targets[group.me])),
        }
    }

    pub(super) fn missing(&self, mail: &Mail) -> Vec<Rank> {
        let ranks = self.open.iter().map(|&(rank, _)| rank);
        ranks
            .filter(|&rank| !mail.has(&key(Stage::Gather, self.sequence, rank)))
            .collect()
    }

    pub(super) fn deliver(&mut self, mail: &mut Mail, memory: &Memory<'_>) -> bool {
        if let Some((own, target)) = self.own.take() {
            own.unpack(memory, &target, false);
            mail.give_back(mail.rank(), own);
        }
        let sequence = self.sequence;
        self.open.retain(|(rank, target)| {
            let Some(part) = mail.take(&key(Stage::Gather, sequence, *rank)) else {
                return true;
            };
            part.unpack(memory, target, false);
            mail.give_back(*rank, part);
            false
        });
        self.open.is_empty()
    }
}
