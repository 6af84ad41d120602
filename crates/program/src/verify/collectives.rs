use super::{Case, Fault, matching::region_difference};
use crate::{Collective, CollectiveKind, View, Work};
use partita_space::{AxisSet, Rank};
use std::collections::HashMap;

/// For each class, the task of each collective by its sequence; the first where one comes twice.
pub(super) fn collectives(case: &Case<'_>) -> Vec<HashMap<u32, usize>> {
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
pub(super) fn collectives_of<'p>(
    case: &Case<'p>,
    class: usize,
) -> impl Iterator<Item = (usize, &'p Collective)> + use<'p> {
    let tasks = case.program.bodies[class].tasks.iter().enumerate();
    tasks.filter_map(|(id, task)| match &task.work {
        Work::Collective(collective) => Some((id, collective)),
        Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) => None,
    })
}

/// The group of a representative.
pub(super) struct Group {
    /// All members, ascending.
    pub members: Vec<Rank>,
    /// The first member of each class among them.
    pub firsts: Vec<Rank>,
}

/// Groups of the representatives by their first member, each made once.
#[derive(Default)]
pub(super) struct Groups(HashMap<(Rank, AxisSet), Group>);

impl Groups {
    pub fn of(&mut self, case: &Case<'_>, class: usize, axes: AxisSet) -> &Group {
        let mesh = &case.program.mesh;
        let mut coord = case.coords[class];
        axes.iter().for_each(|axis| coord[axis.index()] = 0);
        let first = mesh.rank(coord);
        self.0.entry((first, axes)).or_insert_with(|| {
            let members = mesh.group(first, axes);
            let mut seen = vec![false; case.program.bodies.len()];
            let firsts = members
                .iter()
                .copied()
                .filter(|&rank| !std::mem::replace(&mut seen[case.class_of(rank)], true))
                .collect();
            Group { members, firsts }
        })
    }
}

/// Sequences ascend, and all members of a group take part in the same collective.
pub(super) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let tasks = collectives(case);
    let mut groups = Groups::default();
    for (class, _) in case.bodies() {
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
            let at = At {
                case,
                tasks: &tasks,
                class,
                id,
                collective,
            };
            at.check(groups.of(case, class, collective.group), faults);
        }
    }
}

struct At<'a, 'p> {
    case: &'a Case<'p>,
    tasks: &'a [HashMap<u32, usize>],
    class: usize,
    id: usize,
    collective: &'p Collective,
}

impl<'p> At<'_, 'p> {
    fn check(&self, group: &Group, faults: &mut Vec<Fault>) {
        let (site, sequence) = (
            || self.case.site(self.class, self.id),
            self.collective.sequence,
        );
        for &member in &group.firsts {
            match self.of(member) {
                None => faults.push(Fault::MemberMissing {
                    site: site(),
                    sequence,
                    member,
                }),
                Some(other) => {
                    if let Some(reason) = self.difference(member, other) {
                        faults.push(Fault::CollectiveDiffers {
                            site: site(),
                            sequence,
                            member,
                            reason,
                        });
                    }
                }
            }
        }
        match &self.collective.kind {
            CollectiveKind::AllReduce { .. } => {}
            CollectiveKind::AllGather { targets, .. } => {
                let (expected, got) = (group.members.len(), targets.len());
                if expected != got {
                    faults.push(Fault::TargetCount {
                        site: site(),
                        sequence,
                        expected,
                        got,
                    });
                }
                for (&member, target) in group.members.iter().zip(targets) {
                    if let Some(reason) = self.gather_difference(member, target) {
                        faults.push(Fault::CollectiveDiffers {
                            site: site(),
                            sequence,
                            member,
                            reason,
                        });
                    }
                }
            }
        }
    }

    /// The collective of the same sequence on another rank.
    fn of(&self, member: Rank) -> Option<&'p Collective> {
        let class = self.case.class_of(member);
        let &task = self.tasks[class].get(&self.collective.sequence)?;
        match &self.case.program.bodies[class].tasks[task].work {
            Work::Collective(collective) => Some(collective),
            Work::Compute { .. } | Work::Exchange(_) | Work::Load(_) => None,
        }
    }

    fn difference(&self, member: Rank, other: &Collective) -> Option<String> {
        let mine = self.collective;
        if mine.group != other.group {
            return Some(format!("along {} against {}", mine.group, other.group));
        }
        match (&mine.kind, &other.kind) {
            (CollectiveKind::AllGather { .. }, CollectiveKind::AllGather { .. }) => None,
            (CollectiveKind::AllReduce { view }, CollectiveKind::AllReduce { view: theirs }) => {
                let (length, expected) = (theirs.volume(), view.volume());
                if length != expected {
                    return Some(format!("{expected} elements against {length}"));
                }
                self.views_differ(view, member, theirs)
            }
            (CollectiveKind::AllReduce { .. }, CollectiveKind::AllGather { .. }) => {
                Some("an allreduce against an allgather".to_owned())
            }
            (CollectiveKind::AllGather { .. }, CollectiveKind::AllReduce { .. }) => {
                Some("an allgather against an allreduce".to_owned())
            }
        }
    }

    /// Whether the source of a member differs from where this one puts it.
    fn gather_difference(&self, member: Rank, target: &View) -> Option<String> {
        match &self.of(member)?.kind {
            CollectiveKind::AllReduce { .. } => None,
            CollectiveKind::AllGather { source, .. } => {
                let (expected, got) = (target.extent, source.extent);
                if expected != got {
                    return Some(format!("gives {got:?} for a target of {expected:?}"));
                }
                self.views_differ(target, member, source)
            }
        }
    }

    fn views_differ(&self, mine: &View, member: Rank, theirs: &View) -> Option<String> {
        let case = self.case;
        let there = case.class_of(member);
        let dtype =
            |class: usize, view: &View| case.program.bodies[class].buffer(view.buffer).dtype;
        let (a, b) = (dtype(self.class, mine), dtype(there, theirs));
        if a != b {
            return Some(format!("{a:?} against {b:?}"));
        }
        let coord = case.program.mesh.coord(member);
        region_difference(
            case,
            (self.class, mine),
            (there, theirs),
            (&case.coords[self.class], &coord),
        )
    }
}
