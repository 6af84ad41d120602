use super::mailbox::{Key, Mail, Stage};
use super::packet::{Number, Packet, on_elements};
use partita_program::{Dtype, View};
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
///
/// The view itself is where this member's part stands and the sums arrive: nothing else may touch it
/// until the task is done, and every pass over it that is saved is time of a core that computes.
pub(super) struct Reduction {
    group: Arc<Group>,
    sequence: u32,
    view: View,
    dtype: Dtype,
    /// Contents of the view, where these do not lie side by side in memory.
    packed: Option<Packet>,
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
        memory: &Memory<'_>,
        mail: &mut Mail,
    ) -> Self {
        let packed = (!memory.is_dense(&view)).then(|| mail.pack(memory, &view));
        let mut reduction = Self {
            addends: group.members.iter().map(|_| None).collect(),
            open: Vec::new(),
            group: Arc::clone(&group),
            sequence,
            view,
            dtype: memory.body().buffer(view.buffer).dtype,
            packed,
            is_added: false,
        };
        if !reduction.is_small() {
            reduction.open = group.others().collect();
        }
        for (place, rank) in group.others() {
            let chunk = reduction.chunk(place);
            let mut addend = mail.blank(reduction.dtype, chunk.len());
            on_elements!(&mut addend, elements => {
                elements.clear();
                reduction.own(memory, |own| elements.extend_from_slice(&own[chunk]));
            });
            mail.post(rank, key(Stage::Addend, sequence, mail.rank()), addend);
        }
        reduction
    }

    /// Bytes of this member's part.
    pub(super) fn bytes(&self) -> u64 {
        (self.view.volume() * self.dtype.size()) as u64
    }

    fn is_small(&self) -> bool {
        self.bytes() <= SMALL_BYTES
    }

    /// The elements that a member adds.
    fn chunk(&self, place: usize) -> Range<usize> {
        if self.is_small() {
            return 0..self.view.volume();
        }
        let split = Split {
            extent: self.view.volume(),
            parts: self.group.len(),
        };
        range(&split, place)
    }

    /// Runs on this member's elements, where they are.
    fn own<T: Number>(&mut self, memory: &Memory<'_>, run: impl FnOnce(&mut [T])) {
        match &mut self.packed {
            Some(packed) => run(T::of(packed)),
            None => run(memory.write::<T>(&self.view).data),
        }
    }

    fn take_addends(&mut self, mail: &mut Mail, memory: &Memory<'_>) {
        let mut is_complete = true;
        for (place, rank) in self.group.others() {
            let addend = &mut self.addends[place];
            if addend.is_none() {
                *addend = mail.take(&key(Stage::Addend, self.sequence, rank));
            }
            is_complete &= addend.is_some();
        }
        if is_complete {
            match self.dtype {
                Dtype::F32 => self.add::<f32>(mail, memory),
                Dtype::F64 => self.add::<f64>(mail, memory),
                Dtype::I16 => self.add::<i16>(mail, memory),
            }
        }
    }

    /// Adds in rank order, whatever this member's place, so that small and large sums are the same bits.
    fn add<T: Number>(&mut self, mail: &mut Mail, memory: &Memory<'_>) {
        let group = Arc::clone(&self.group);
        let chunk = self.chunk(group.me);
        let mut parts: Vec<Packet> = self.addends.iter_mut().filter_map(Option::take).collect();
        let mut sums: Vec<Packet> = match self.is_small() {
            true => Vec::new(),
            false => group
                .others()
                .map(|_| mail.blank(self.dtype, chunk.len()))
                .collect(),
        };
        {
            let mut parts: Vec<&mut [T]> = parts
                .iter_mut()
                .map(|part| T::of(part).as_mut_slice())
                .collect();
            let lengths = parts.iter().all(|part| part.len() == chunk.len());
            assert!(lengths, "length of a part of a sum");
            let mut sums: Vec<&mut Vec<T>> = sums.iter_mut().map(T::of).collect();
            sums.iter_mut().for_each(|sum| sum.clear());
            self.own(memory, |own| {
                add_in_order(&mut own[chunk], &mut parts, group.me, &mut sums);
            });
        }
        for ((_, rank), part) in group.others().zip(parts) {
            mail.give_back(rank, part);
        }
        for ((_, rank), sum) in group.others().zip(sums) {
            mail.post(rank, key(Stage::Sum, self.sequence, mail.rank()), sum);
        }
        self.is_added = true;
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
        if !self.is_added {
            self.take_addends(mail, memory);
        }
        // A finished chunk overwrites what was sent at the start; the chunk that this member adds is
        // another one, so the order of arrival does not matter.
        for (place, rank) in std::mem::take(&mut self.open) {
            let Some(mut sum) = mail.take(&key(Stage::Sum, self.sequence, rank)) else {
                self.open.push((place, rank));
                continue;
            };
            let chunk = self.chunk(place);
            on_elements!(&mut sum, elements => {
                self.own(memory, |own| own[chunk].copy_from_slice(elements));
            });
            mail.give_back(rank, sum);
        }
        let is_finished = self.is_added && self.open.is_empty();
        if let Some(packed) = self.packed.take_if(|_| is_finished) {
            packed.unpack(memory, &self.view, false);
            mail.give_back(mail.rank(), packed);
        }
        is_finished
    }
}

/// Elements that are added before the next ones: few enough to stay in the nearest cache.
const BLOCK: usize = 2048;

/// `own` becomes the sum of the parts in order, itself at place `me` among them; the sums are appended
/// to each of `copies`.
fn add_in_order<T: Number>(
    own: &mut [T],
    parts: &mut [&mut [T]],
    me: usize,
    copies: &mut [&mut Vec<T>],
) {
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
        copies
            .iter_mut()
            .for_each(|copy| copy.extend_from_slice(own));
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
            let mut copy = mail.blank(own.dtype(), own.len());
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
