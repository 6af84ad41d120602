//! Reduce-scatters and all-to-alls of programs made by hand: sound ones pass, broken ones are refused
//! for the right reason.
#![allow(clippy::panic, reason = "helpers of tests lie outside test functions")]

use partita_program::*;
use partita_space::{Axis, AxisList, AxisSet, Bytes, Interval, Mesh, Region, Split};
use partita_verify::{BufferRegion, Fault, Faults, verify};

const GRADIENT: u32 = 0;
const SHARE: u32 = 1;
const ROWS: u32 = 2;
const COLUMNS: u32 = 3;

const SUM: usize = 2;
const TURN: usize = 3;

/// A gradient of this many elements of which every rank keeps a share, and a table whose split moves
/// from its rows to its columns.
#[derive(Clone, Copy)]
struct Form {
    lines: usize,
    ranks: usize,
    elements: usize,
    table: [usize; 2],
    dtype: Dtype,
    /// All ranks have one body.
    one_class: bool,
}

const EVEN: Form = Form {
    lines: 1,
    ranks: 4,
    elements: 8,
    table: [4, 12],
    dtype: Dtype::F32,
    one_class: true,
};

/// Each rank in a class of its own.
const CLASSES: Form = Form {
    one_class: false,
    ..EVEN
};

/// Some shares are empty.
const UNEVEN: Form = Form {
    lines: 1,
    ranks: 3,
    elements: 2,
    table: [5, 2],
    dtype: Dtype::F64,
    one_class: false,
};

impl Form {
    fn program(&self) -> Program {
        let classes = if self.one_class { 1 } else { self.ranks };
        let class_of = |rank: usize| (rank % self.ranks).min(classes - 1) as u32;
        Program {
            title: "shares".to_owned(),
            kind: ProgramKind::Train,
            dtype: self.dtype,
            batch: 1,
            mesh: Mesh::new([self.lines, 1, 1, self.ranks, 1, 1, 1]),
            local_statistics: partita_space::AxisSet::NONE,
            bodies: (0..classes).map(|rank| self.body(rank)).collect(),
            class_of: (0..self.lines * self.ranks).map(class_of).collect(),
        }
    }

    fn part(&self, extent: usize, part: usize) -> [usize; 2] {
        let parts = self.ranks;
        let part = Split { extent, parts }.part(part);
        [part.start as usize, part.len()]
    }

    fn buffers(&self, rank: usize) -> Vec<Buffer> {
        let [height, width] = self.table;
        let (gradient, table) = (
            [1, 1, 1, 1, self.elements],
            [self.lines, 1, height, width, 1],
        );
        let tensor = |id, shape, dim: Option<usize>| {
            let mut distribution = Distribution::replicated(shape);
            if let Some(dim) = dim {
                distribution.axes[dim] = AxisList::of([Axis::Width]);
            }
            if id == 1 {
                distribution.axes[0] = AxisList::of([Axis::Data]);
            }
            let halo_low = [0; 5];
            Some(TensorRegion {
                id,
                distribution,
                halo_low,
                redundant: false,
            })
        };
        let list = [
            ("gradient", Role::Gradient, tensor(0, gradient, None)),
            ("share", Role::Gradient, tensor(0, gradient, Some(4))),
            ("rows", Role::Statistics, tensor(1, table, Some(2))),
            ("columns", Role::Statistics, tensor(1, table, Some(3))),
        ];
        let dims = [
            gradient,
            [1, 1, 1, 1, self.part(self.elements, rank)[1]],
            [1, 1, self.part(height, rank)[1], width, 1],
            [1, 1, height, self.part(width, rank)[1], 1],
        ];
        let mut offset = Bytes(0);
        let buffers = list.into_iter().zip(dims);
        buffers
            .map(|((name, role, tensor), dims)| {
                let buffer = Buffer {
                    name: name.to_owned(),
                    role,
                    dtype: self.dtype,
                    dims,
                    tensor,
                    offset,
                };
                offset = Bytes((offset + buffer.bytes()).0.next_multiple_of(64));
                buffer
            })
            .collect()
    }

    fn body(&self, rank: usize) -> Body {
        let buffers = self.buffers(rank);
        let whole = |id: u32| buffers[id as usize].view(BufferId(id));
        let along = |id: u32, dim: usize, extent: usize| -> Vec<View> {
            let view = |part| {
                let mut view = whole(id);
                [view.start[dim], view.extent[dim]] = self.part(extent, part);
                view
            };
            (0..self.ranks).map(view).collect()
        };
        let fill = |id, value| Work::Compute {
            kernel: Kernel::Fill {
                target: whole(id),
                value,
            },
            algorithm: Algorithm("plain".to_owned()),
            workspace: None,
        };
        let collective = |sequence, kind| {
            Work::Collective(Collective {
                sequence,
                group: AxisSet::of([Axis::Width]),
                submesh: None,
                kind,
            })
        };
        let sum = CollectiveKind::ReduceScatter {
            sources: along(GRADIENT, 4, self.elements).into(),
            target: whole(SHARE),
        };
        let turn = CollectiveKind::AllToAll {
            sources: along(ROWS, 3, self.table[1]).into(),
            targets: along(COLUMNS, 2, self.table[0]).into(),
        };
        let task = |after: &[u32], work| Task {
            origin: Origin {
                layer: "layer".to_owned(),
                phase: Phase::Backward,
                turn: 0,
            },
            after: after.iter().map(|&id| TaskId(id)).collect(),
            work,
        };
        Body {
            tasks: vec![
                // Zeros are addends of any sum.
                task(&[], fill(GRADIENT, 0.0)),
                task(&[], fill(ROWS, 1.0)),
                task(&[0], collective(0, sum)),
                task(&[1], collective(1, turn)),
            ],
            arena: Bytes(1024),
            // More than any of them takes.
            staging: Staging {
                collective: Bytes(1 << 20),
                ..Staging::default()
            },
            buffers,
            ..Body::default()
        }
    }
}

fn kind_of(program: &mut Program, class: usize, task: usize) -> &mut CollectiveKind {
    match &mut program.bodies[class].tasks[task].work {
        Work::Collective(collective) => &mut collective.kind,
        other => panic!("{} is no collective", other.name()),
    }
}

fn scatter(program: &mut Program, class: usize) -> (&mut Vec<View>, &mut View) {
    match kind_of(program, class, SUM) {
        CollectiveKind::ReduceScatter { sources, target } => (sources.each_mut(), target),
        other => panic!("{} is no reduce-scatter", other.name()),
    }
}

fn turn(program: &mut Program, class: usize) -> (&mut Vec<View>, &mut Vec<View>) {
    match kind_of(program, class, TURN) {
        CollectiveKind::AllToAll { sources, targets } => (sources.each_mut(), targets.each_mut()),
        other => panic!("{} is no all-to-all", other.name()),
    }
}

/// Every rank's sum goes to where its own addend stands.
fn in_place(mut program: Program) -> Program {
    for class in 0..program.bodies.len() {
        let (sources, target) = scatter(&mut program, class);
        *target = sources[class];
    }
    program
}

fn assert_sound(program: &Program) {
    assert_eq!(verify(program), Ok(()));
}

#[test]
fn even_and_uneven_shares_are_sound() {
    let lines = |lines, form| Form { lines, ..form };
    let split = Form {
        one_class: false,
        ..EVEN
    };
    for form in [EVEN, UNEVEN, split, lines(2, EVEN), lines(3, UNEVEN)] {
        assert_sound(&form.program());
    }
    for form in [UNEVEN, split, lines(2, split)] {
        assert_sound(&in_place(form.program()));
    }
}

#[test]
fn their_text_reads_back_and_views_are_reached() {
    let mut program = UNEVEN.program();
    let text = program.to_text();
    assert_eq!(Program::parse(&text).as_ref(), Ok(&program));
    let body = &mut program.bodies[1];
    let counts = [SUM, TURN].map(|task| Count::of(&body.tasks[task], &body.buffers));
    // Two elements of gradient; two rows of two columns.
    assert_eq!(
        counts.map(|count| count.collective_bytes),
        [Bytes(16), Bytes(32)]
    );
    for (task, name, views) in [(SUM, "reduce_scatter", 4), (TURN, "alltoall", 6)] {
        let task = &mut body.tasks[task];
        assert_eq!(task.work.name(), name);
        assert_eq!(task.accesses().len(), views);
        task.each_view_mut(&mut |view| view.start[0] = 7);
        assert!(task.accesses().iter().all(|(view, _)| view.start[0] == 7));
    }
}

/// Ways to break a program of ranks that are a class each, or one class, and a fault that must be among
/// those found.
type Break = (&'static str, fn(&mut Program), fn(&Fault) -> bool);

/// Whether a member is told to take part in another collective, with a reason that begins so.
fn differs(fault: &Fault, at: usize, start: &str) -> bool {
    matches!(fault, Fault::CollectiveDiffers { member, reason, .. }
        if *member == at && reason.starts_with(start))
}

/// Whether these elements of the gradient are touched twice.
fn overlaps(fault: &Fault, elements: std::ops::Range<i64>) -> bool {
    matches!(fault, Fault::Overlap { spot, .. } if is_of_gradient(spot, elements))
}

fn is_of_gradient(spot: &BufferRegion, elements: std::ops::Range<i64>) -> bool {
    let mut region = Region::all([1; 5]);
    region.0[4] = Interval::new(elements.start, elements.end);
    spot.name == "gradient" && spot.region == region
}

fn overlaps_in(fault: &Fault, name: &str) -> bool {
    matches!(fault, Fault::Overlap { spot, .. } if spot.name == name)
}

fn counts(fault: &Fault, parts: &str, numbers: [usize; 2]) -> bool {
    matches!(fault, Fault::PartCount { what, got, expected, .. }
        if *what == parts && [*got, *expected] == numbers)
}

fn mixes_types(fault: &Fault, types: &str) -> bool {
    matches!(fault, Fault::Dtype { reason, .. } if reason.contains(types))
}

fn assert_refused(form: Form, breaks: &[Break]) {
    for (what, change, expected) in breaks {
        let mut program = form.program();
        change(&mut program);
        let found = verify(&program).map_or_else(|Faults(faults)| faults, |()| Vec::new());
        assert!(found.iter().any(expected), "{what}: {found:#?}");
    }
}

#[test]
fn broken_reduce_scatters() {
    let breaks: &[Break] = &[
        (
            "a source too few",
            |p| scatter(p, 1).0.truncate(3),
            |f| counts(f, "sources", [3, 4]),
        ),
        (
            "addends for others than they are for",
            |p| scatter(p, 1).0.swap(2, 3),
            |f| differs(f, 2, "global region"),
        ),
        (
            "a longer addend",
            |p| scatter(p, 1).0[3].extent[4] = 1,
            |f| differs(f, 3, "extents"),
        ),
        (
            "a sum to another share",
            |p| *scatter(p, 1).1 = View::of(BufferId(GRADIENT), &Region::all([1, 1, 1, 1, 2])),
            |f| differs(f, 1, "global region"),
        ),
        (
            "a sum in the place of another addend",
            |p| *scatter(p, 1).1 = scatter(p, 1).0[2],
            |f| overlaps(f, 4..6),
        ),
        (
            "a sum that lies across addends",
            |p| {
                let (sources, target) = scatter(p, 1);
                *target = sources[1];
                target.start[4] += 1;
            },
            |f| overlaps(f, 3..4),
        ),
    ];
    assert_refused(CLASSES, breaks);
    // One body for all ranks cannot name the place of each.
    let one: Break = (
        "in place in one class",
        |p| *scatter(p, 0).1 = scatter(p, 0).0[0],
        |f| overlaps(f, 0..2),
    );
    assert_refused(EVEN, &[one]);
}

#[test]
fn reduce_scatters_of_other_types_and_kinds() {
    let breaks: &[Break] = &[
        (
            "another type in one place",
            |p| p.bodies[1].buffers[SHARE as usize].dtype = Dtype::F64,
            |f| mixes_types(f, "F32 and F64"),
        ),
        (
            "another type at one member",
            |p| p.bodies[1].buffers[SHARE as usize].dtype = Dtype::F64,
            |f| differs(f, 1, "F32 against F64"),
        ),
        (
            "sums of integers",
            |p| {
                for body in &mut p.bodies {
                    body.buffers[GRADIENT as usize].dtype = Dtype::I16;
                    body.buffers[SHARE as usize].dtype = Dtype::I16;
                }
            },
            |f| mixes_types(f, "I16, not floats"),
        ),
        (
            "another kind",
            |p| {
                let view = scatter(p, 1).0[1];
                *kind_of(p, 1, SUM) = CollectiveKind::AllReduce { views: vec![view] };
            },
            |f| differs(f, 1, "reduce_scatter against allreduce"),
        ),
        (
            "addends that nothing wrote",
            |p| p.bodies[1].tasks[SUM].after.clear(),
            |f| matches!(f, Fault::Uninitialized { spot, .. } if is_of_gradient(spot, 0..2)),
        ),
    ];
    assert_refused(CLASSES, breaks);
}

#[test]
fn broken_all_to_alls() {
    let breaks: &[Break] = &[
        (
            "a source too few",
            |p| turn(p, 1).0.truncate(2),
            |f| counts(f, "sources", [2, 3]),
        ),
        (
            "a target too many",
            |p| {
                let targets = turn(p, 1).1;
                targets.push(targets[0]);
            },
            |f| counts(f, "targets", [4, 3]),
        ),
        (
            "a part for another member",
            |p| turn(p, 0).0.swap(1, 2),
            |f| differs(f, 1, "global region"),
        ),
        (
            "parts in the wrong order",
            |p| turn(p, 1).1.swap(1, 2),
            |f| differs(f, 1, "global region"),
        ),
        (
            "less for a member",
            |p| turn(p, 2).0[1].extent[3] = 0,
            |f| differs(f, 1, "extents"),
        ),
        (
            "more for a member that expects nothing",
            |p| {
                let (sources, _) = turn(p, 0);
                sources[0] = sources[1];
            },
            |f| differs(f, 0, "extents"),
        ),
    ];
    assert_refused(UNEVEN, breaks);
}

#[test]
fn all_to_alls_that_overlap_or_lack_a_member() {
    let breaks: &[Break] = &[
        (
            "a part received where one is sent",
            |p| turn(p, 1).1[1] = turn(p, 1).0[1],
            |f| overlaps_in(f, "rows"),
        ),
        (
            "two parts received in one place",
            |p| turn(p, 1).1[1] = turn(p, 1).1[0],
            |f| overlaps_in(f, "columns"),
        ),
        (
            "of another tensor",
            |p| {
                let tensor = &mut p.bodies[1].buffers[COLUMNS as usize].tensor;
                tensor.as_mut().expect("it holds a tensor").id = 5;
            },
            |f| differs(f, 1, "tensor 1 against 5"),
        ),
        (
            "another type at one member",
            |p| p.bodies[1].buffers[COLUMNS as usize].dtype = Dtype::F32,
            |f| differs(f, 1, "F64 against F32"),
        ),
        (
            "one stays away",
            |p| drop(p.bodies[1].tasks.pop()),
            |f| {
                matches!(
                    f,
                    Fault::MemberMissing {
                        member: 1,
                        sequence: 1,
                        ..
                    }
                )
            },
        ),
    ];
    assert_refused(UNEVEN, breaks);
}

/// The first rank stands for its class, but what it sends and receives itself is right here.
#[test]
fn every_member_of_a_class_is_looked_at() {
    let swapped: Break = (
        "targets of two others in the wrong order",
        |p| turn(p, 0).1.swap(1, 2),
        |f| differs(f, 1, "global region"),
    );
    assert_refused(EVEN, &[swapped]);
    // Rows of which each line of ranks has a half, turned into columns that all lines have.
    let mut program = Form { lines: 2, ..EVEN }.program();
    let body = &mut program.bodies[0];
    for (buffer, axis) in [(ROWS, Some(Axis::Data)), (COLUMNS, None)] {
        let tensor = &mut body.buffers[buffer as usize].tensor;
        tensor
            .as_mut()
            .expect("it holds a tensor")
            .distribution
            .axes[0] = axis.into();
    }
    let found = verify(&program).unwrap_err();
    let is_other = |fault: &Fault| matches!(fault, Fault::NotEquivalent { .. });
    assert!(found.0.iter().any(is_other), "{found}");
}
