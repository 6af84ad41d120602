//! Agreement of the members of collectives.

use crate::{Case, Fault, matching::region_difference};
use partita_program::{Collective, CollectiveKind, Dtype, Group, View, Views, Work};
use partita_space::{Rank, Region};
use std::collections::HashMap;

/// For each class, the task of each collective by its sequence; the first where one comes twice.
pub(crate) fn collectives(case: &Case<'_>) -> Vec<HashMap<u32, usize>> {
    case.bodies()
        .map(|(class, _)| {
            let mut tasks = HashMap::new();
            for (id, collective) in collectives_of(case, class) {
                tasks.entry(collective.sequence).or_insert(id);
            }
            tasks
        })
        .collect()
}

/// Collectives of a body with their tasks.
pub(crate) fn collectives_of<'p>(
    case: &Case<'p>,
    class: usize,
) -> impl Iterator<Item = (usize, &'p Collective)> + use<'p> {
    let tasks = case.program.bodies[class].tasks.iter().enumerate();
    tasks.filter_map(|(id, task)| match &task.work {
        Work::Collective(collective) => Some((id, collective)),
        Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => None,
    })
}

/// The members of a group.
pub(crate) struct Members {
    /// All members, ascending.
    pub members: Vec<Rank>,
    /// The first member of each class among them.
    pub firsts: Vec<Rank>,
}

/// Members of groups, cached by first member.
#[derive(Default)]
pub(crate) struct GroupMembers(HashMap<(Rank, Group), Members>);

impl GroupMembers {
    /// Of the group of a rank.
    pub fn of(&mut self, case: &Case<'_>, rank: Rank, kind: Group) -> &Members {
        let mesh = &case.program.mesh;
        let first = kind.first(mesh, rank);
        self.0.entry((first, kind)).or_insert_with(|| {
            let members = kind.members(mesh, first);
            let mut seen = vec![false; case.program.bodies.len()];
            let firsts = members
                .iter()
                .copied()
                .filter(|&rank| !std::mem::replace(&mut seen[case.class_of(rank)], true))
                .collect();
            Members { members, firsts }
        })
    }
}

/// Sequences ascend, and all members of a group take part in the same collective.
pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let tasks = collectives(case);
    let mut groups = GroupMembers::default();
    let mut agreed: HashMap<(Rank, Group, u32), bool> = HashMap::new();
    for (class, _) in case.checked() {
        let mut previous: Option<u32> = None;
        for (id, collective) in collectives_of(case, class) {
            let sequence = collective.sequence;
            if let Some(previous) = previous.filter(|&previous| previous >= sequence) {
                faults.push(Fault::SequenceDescends {
                    site: case.site(class, id),
                    sequence,
                    previous,
                });
            }
            previous = Some(sequence);
            let kind = collective.group();
            for &rank in case.ranks_in(class, kind) {
                let at = At {
                    case,
                    tasks: &tasks,
                    class,
                    rank,
                    id,
                    collective,
                };
                let group = groups.of(case, rank, kind);
                let all_agree = agreed.entry((group.members[0], kind, sequence));
                if !*all_agree.or_insert_with(|| at.all_agree(group)) {
                    at.check(group, faults);
                }
            }
        }
    }
}

/// What the members of an allreduce must agree in.
#[derive(PartialEq)]
struct Summand<'p> {
    group: Group,
    dtype: Dtype,
    volume: usize,
    what: What<'p>,
}

#[derive(PartialEq)]
enum What<'p> {
    /// Of a tensor of this number and shape.
    Part(u32, [usize; 5], Region),
    /// The buffer of this name.
    Named(&'p str),
}

struct At<'a, 'p> {
    case: &'a Case<'p>,
    tasks: &'a [HashMap<u32, usize>],
    class: usize,
    /// A rank of the class, in the group that is checked.
    rank: Rank,
    id: usize,
    collective: &'p Collective,
}

impl<'p> At<'_, 'p> {
    /// Whether all members of an allreduce agree, so that they need not be compared pairwise.
    fn all_agree(&self, group: &Members) -> bool {
        let mut summands = group.firsts.iter().map(|&member| self.summands(member));
        let Some(Some(first)) = summands.next() else {
            return false;
        };
        let has_one_type = first.iter().all(|one| one.dtype == first[0].dtype);
        has_one_type && summands.all(|other| other.as_ref() == Some(&first))
    }

    /// What a member sums, view by view.
    fn summands(&self, member: Rank) -> Option<Vec<Summand<'p>>> {
        let collective = self.of(member)?;
        let CollectiveKind::AllReduce { views } = &collective.kind else {
            return None;
        };
        let (case, class) = (self.case, self.case.class_of(member));
        let coord = case.program.mesh.coord(member);
        let summand = |view: &View| {
            let buffer = case.program.bodies[class].buffer(view.buffer);
            Summand {
                group: collective.group(),
                dtype: buffer.dtype,
                volume: view.volume(),
                what: match &buffer.tensor {
                    None => What::Named(&buffer.name),
                    Some(tensor) => What::Part(
                        tensor.id,
                        tensor.distribution.shape,
                        tensor.region(view, &case.program.mesh, &coord),
                    ),
                },
            }
        };
        Some(views.iter().map(summand).collect())
    }

    fn check(&self, group: &Members, faults: &mut Vec<Fault>) {
        let (site, sequence) = (
            || self.case.site_at(self.class, self.rank, self.id),
            self.collective.sequence,
        );
        let differs = |member, reason| Fault::CollectiveDiffers {
            site: site(),
            sequence,
            member,
            reason,
        };
        for &member in &group.firsts {
            match self.of(member) {
                None => faults.push(Fault::MemberMissing {
                    site: site(),
                    sequence,
                    member,
                }),
                Some(other) => {
                    let reason = self.difference(other);
                    faults.extend(reason.map(|reason| differs(member, reason)));
                }
            }
        }
        let kind = &self.collective.kind;
        let expected = group.members.len();
        let counts = match kind {
            CollectiveKind::AllReduce { .. } => [None, None],
            CollectiveKind::AllGather { .. } => [None, Some(kind.targets().len())],
            CollectiveKind::ReduceScatter { .. } => [Some(kind.sources().len()), None],
            CollectiveKind::AllToAll { .. } => {
                [kind.sources(), kind.targets()].map(|views| Some(views.len()))
            }
        };
        for (what, got) in ["sources", "targets"].into_iter().zip(counts) {
            let wrong = got.filter(|&got| got != expected);
            faults.extend(wrong.map(|got| Fault::PartCount {
                site: site(),
                sequence,
                what,
                expected,
                got,
            }));
        }
        let parts = self.part_differences(group);
        faults.extend(parts.map(|(member, reason)| differs(member, reason)));
    }

    /// The collective of the same sequence on another rank.
    fn of(&self, member: Rank) -> Option<&'p Collective> {
        let class = self.case.class_of(member);
        let &task = self.tasks[class].get(&self.collective.sequence)?;
        match &self.case.program.bodies[class].tasks[task].work {
            Work::Collective(collective) => Some(collective),
            Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) | Work::Store(_) => None,
        }
    }

    fn difference(&self, other: &Collective) -> Option<String> {
        let mine = self.collective;
        if mine.group() != other.group() {
            return Some(format!("along {} against {}", mine.group, other.group));
        }
        let (name, others) = (mine.kind.name(), other.kind.name());
        if name != others {
            return Some(format!("{name} against {others}"));
        }
        let [mine, others] = [&mine.kind, &other.kind].map(|kind| kind.parts().len());
        (mine != others).then(|| format!("{mine} sums against {others}"))
    }

    /// Members with whose views those of this rank do not agree, each with the first reason.
    fn part_differences(&self, group: &Members) -> impl Iterator<Item = (Rank, String)> {
        let kind = &self.collective.kind;
        // With the index of the view in a bucket.
        let each = |views: Views<'_>| {
            let views = group.members.iter().zip(views.iter());
            views.map(|(&member, view)| (member, 0, view)).collect()
        };
        let mine: Vec<(Rank, usize, View)> = match kind {
            CollectiveKind::AllReduce { views } => {
                let firsts = group.firsts.iter();
                let views = |&member| (0..views.len()).map(move |at| (member, at, views[at]));
                firsts.flat_map(views).collect()
            }
            CollectiveKind::AllGather { .. } => each(kind.targets()),
            CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                each(kind.sources())
            }
        };
        let rank = self.rank;
        let positions = group.members.iter().copied().enumerate();
        // What a member of an all-to-all sends goes where the receiver has it from this very member,
        // so no member stands for others of its class.
        let senders: Vec<(usize, Rank)> = positions
            .filter(|&(_, member)| match kind {
                CollectiveKind::AllReduce { .. }
                | CollectiveKind::AllGather { .. }
                | CollectiveKind::ReduceScatter { .. } => member == rank,
                CollectiveKind::AllToAll { .. } => self.case.class_of(member) == self.class,
            })
            .collect();
        mine.into_iter().filter_map(move |(member, at, view)| {
            let reasons = senders.iter().filter_map(|&(position, sender)| {
                let theirs = self.counterpart(member, position, at)?;
                self.part_difference((sender, &view), (member, &theirs))
            });
            Some((member, reasons.into_iter().next()?))
        })
    }

    /// The view of another member that meets one of the member at this place, or that at this index of its bucket;
    /// none where that one takes part in something else.
    fn counterpart(&self, member: Rank, position: usize, at: usize) -> Option<View> {
        let other = self.of(member)?;
        if self.difference(other).is_some() {
            return None;
        }
        match &other.kind {
            CollectiveKind::AllReduce { views } => views.get(at).copied(),
            CollectiveKind::AllGather { source, .. } => Some(*source),
            CollectiveKind::ReduceScatter { target, .. } => Some(*target),
            CollectiveKind::AllToAll { targets, .. } => targets.views().get(position),
        }
    }

    fn part_difference(
        &self,
        (rank, view): (Rank, &View),
        (member, other): (Rank, &View),
    ) -> Option<String> {
        let (case, there) = (self.case, self.case.class_of(member));
        let dtype =
            |class: usize, view: &View| case.program.bodies[class].buffer(view.buffer).dtype;
        let (a, b) = (dtype(self.class, view), dtype(there, other));
        if a != b {
            return Some(format!("{a:?} against {b:?}"));
        }
        let agree = match &self.collective.kind {
            CollectiveKind::AllReduce { .. } => view.volume() == other.volume(),
            CollectiveKind::AllGather { .. }
            | CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::AllToAll { .. } => view.extent == other.extent,
        };
        let is_nothing = view.is_empty() && other.is_empty();
        if !agree && !is_nothing {
            let (mine, theirs) = (view.extent, other.extent);
            return Some(format!("extents {mine:?} against {theirs:?}"));
        }
        if let CollectiveKind::AllReduce { .. } = &self.collective.kind
            && let Some(reason) = self.name_difference(view, (there, other))
        {
            return Some(reason);
        }
        let coords = [rank, member].map(|rank| case.program.mesh.coord(rank));
        region_difference(
            case,
            (self.class, view),
            (there, other),
            (&coords[0], &coords[1]),
        )
    }

    /// Sums that are no part of a tensor, such as the gradient of a parameter, are the same where they
    /// have the same name.
    fn name_difference(&self, view: &View, (there, other): (usize, &View)) -> Option<String> {
        let case = self.case;
        let is_in_tensor =
            case.tensor(self.class, view).is_some() || case.tensor(there, other).is_some();
        let name = |class: usize, view: &View| &case.program.bodies[class].buffer(view.buffer).name;
        let (a, b) = (name(self.class, view), name(there, other));
        (!is_in_tensor && a != b).then(|| format!("`{a}` against `{b}`"))
    }
}
