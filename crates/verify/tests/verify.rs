//! Every way in which a program made by hand is broken is refused for the right reason.

use crate::hand;

use hand::*;
use partita_program::*;
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh};
use partita_verify::{Fault, Faults, verify};

/// Names of the kinds of all faults.
fn kinds(program: &Program) -> Vec<String> {
    match verify(program) {
        Ok(()) => Vec::new(),
        Err(Faults(faults)) => faults.iter().map(kind).collect(),
    }
}

fn kind(fault: &Fault) -> String {
    let text = format!("{fault:?}");
    text.split([' ', '{']).take(1).collect()
}

/// A way to break the program over five ranks, and a fault that must be among those found.
type Break = (&'static str, fn(&mut Program), &'static str);

fn assert_refused(breaks: &[Break]) {
    for (what, change, expected) in breaks {
        let mut program = line(5);
        change(&mut program);
        let found = kinds(&program);
        assert!(
            found.iter().any(|kind| kind == expected),
            "{what}: {found:?}"
        );
    }
}

#[test]
fn the_program_itself_is_sound() {
    for program in [line(2), line(3), line(7), lines(2, 4)] {
        assert!(
            verify(&program).is_ok(),
            "{}",
            verify(&program).unwrap_err()
        );
    }
}

#[test]
fn broken_structure() {
    assert_refused(&[
        (
            "a rank has no class",
            |p| p.class_of.truncate(4),
            "ClassCount",
        ),
        ("a class has no body", |p| p.class_of[2] = 9, "NoSuchClass"),
        ("a body has no rank", |p| p.class_of[0] = 1, "ClassUnused"),
        (
            "a kernel writes to no buffer",
            |p| {
                *kernel_of(p, 1, PAD) = Kernel::Fill {
                    target: part(40, 0, 1),
                    value: 0.0,
                }
            },
            "NoSuchBuffer",
        ),
        (
            "a kernel writes outside",
            |p| {
                *kernel_of(p, 1, PAD) = Kernel::Fill {
                    target: part(X, 6, 7),
                    value: 0.0,
                }
            },
            "ViewOutside",
        ),
        (
            "an output lies outside",
            |p| p.bodies[1].outputs[0].view.start[4] = 1,
            "ViewOutside",
        ),
        (
            "a task waits for itself",
            |p| p.bodies[1].tasks[HALO].after = vec![TaskId(HALO as u32)],
            "WaitsForLater",
        ),
        (
            "a task waits twice",
            |p| p.bodies[1].tasks[HALO].after.push(TaskId(IMPORT as u32)),
            "WaitsUnsorted",
        ),
    ]);
}

#[test]
fn broken_buffers_and_outputs() {
    assert_refused(&[
        (
            "the arena is small",
            |p| p.bodies[2].arena = Bytes(700),
            "OutsideArena",
        ),
        (
            "a buffer is not aligned",
            |p| p.bodies[0].buffers[LOSS as usize].offset.0 += 8,
            "Misaligned",
        ),
        (
            "two buffers have one name",
            |p| p.bodies[0].buffers[Y as usize].name = "x".to_owned(),
            "Name",
        ),
        (
            "a layer has two words",
            |p| p.bodies[0].tasks[HALO].origin.layer = "conv 1".to_owned(),
            "Name",
        ),
        (
            "a persistent buffer comes late",
            |p| p.bodies[0].buffers[LINE as usize].role = Role::State,
            "PersistentLate",
        ),
        (
            "a parameter lies elsewhere in one class",
            |p| p.bodies[1].buffers[W as usize].offset = Bytes(1024),
            "PersistentDiffers",
        ),
        (
            "a parameter is larger in one class",
            |p| p.bodies[1].buffers[W as usize].dims[0] = 2,
            "PersistentDiffers",
        ),
        (
            "an output is of f32",
            |p| p.bodies[1].outputs[0].view.buffer = BufferId(X),
            "Output",
        ),
        (
            "an output is missing",
            |p| drop(p.bodies[2].outputs.pop()),
            "Output",
        ),
    ]);
}

#[test]
fn broken_kernels() {
    assert_refused(&[
        (
            "the convolution reads too little",
            |p| {
                if let Kernel::ConvolutionForward { x, .. } = kernel_of(p, 1, FORWARD) {
                    *x = part(X, 0, 5);
                }
            },
            "Shape",
        ),
        (
            "the channels do not split",
            |p| {
                if let Kernel::ConvolutionBackwardWeight { groups, .. } = kernel_of(p, 0, WEIGHT) {
                    *groups = 3;
                }
            },
            "Shape",
        ),
        (
            "Adam without moments",
            |p| {
                if let Kernel::Update { rule, .. } = kernel_of(p, 0, UPDATE) {
                    *rule = Optimizer::Adam {
                        beta1: 0.9,
                        beta2: 0.999,
                        epsilon: 1e-8,
                        weight_decay: 0.0,
                    };
                }
            },
            "Shape",
        ),
        (
            "a copy to less",
            |p| {
                *kernel_of(p, 1, COPY_GOAL) = Kernel::Copy {
                    source: part(X, 1, 4),
                    target: part(GOAL, 0, 4),
                    accumulate: false,
                }
            },
            "Shape",
        ),
    ]);
}

#[test]
fn broken_types_and_implementations() {
    assert_refused(&[
        (
            "a copy to another type",
            |p| {
                let mut source = part(X, 1, 2);
                source.extent[4] = 1;
                let mut target = part(TOTAL, 0, 1);
                target.extent[4] = 1;
                *kernel_of(p, 1, NORM) = Kernel::Copy {
                    source,
                    target,
                    accumulate: false,
                }
            },
            "Dtype",
        ),
        (
            "a load brings too much",
            |p| {
                if let Work::Load(load) = &mut p.bodies[1].tasks[LOAD].work {
                    load.distribution.axes[3] = AxisList::NONE;
                }
            },
            "Shape",
        ),
        (
            "a tensor in f64",
            |p| p.bodies[0].buffers[Y as usize].dtype = Dtype::F64,
            "Dtype",
        ),
        (
            "a loss in f32",
            |p| p.bodies[0].buffers[LOSS as usize].dtype = Dtype::F32,
            "Dtype",
        ),
        (
            "no implementation",
            |p| {
                if let Work::Compute { algorithm, .. } = &mut p.bodies[1].tasks[FORWARD].work {
                    *algorithm = Algorithm::unpinned();
                }
            },
            "Unpinned",
        ),
        (
            "scratch in a tensor",
            |p| {
                if let Work::Compute { workspace, .. } = &mut p.bodies[1].tasks[FORWARD].work {
                    *workspace = Some(part(LINE, 0, 1));
                }
            },
            "WorkspaceRole",
        ),
        (
            "a convolution in place",
            |p| {
                if let Kernel::ConvolutionForward { y, .. } = kernel_of(p, 1, FORWARD) {
                    *y = part(X, 1, 5);
                }
            },
            "Overlap",
        ),
    ]);
}

#[test]
fn broken_messages() {
    assert_refused(&[
        (
            "one number for two",
            |p| exchange(p, 1, REVERSE).sequence = 0,
            "SequenceTwice",
        ),
        (
            "a message twice",
            |p| {
                let halo = exchange(p, 1, HALO);
                halo.sends.push(halo.sends[0].clone());
            },
            "PartTwice",
        ),
        (
            "to nobody",
            |p| exchange(p, 1, HALO).sends[0].to = along(-2),
            "NoPeer",
        ),
        (
            "to another",
            |p| exchange(p, 1, HALO).sends[0].to = along(2),
            "SendUnmatched",
        ),
        (
            "another part",
            |p| exchange(p, 0, HALO).receives[0].part = 1,
            "ReceiveUnmatched",
        ),
        (
            "the wrong element",
            |p| exchange(p, 1, HALO).sends[0].view = part(X, 2, 3),
            "MessageDiffers",
        ),
        (
            "two elements",
            |p| exchange(p, 1, HALO).sends[0].view = part(X, 1, 3),
            "MessageDiffers",
        ),
        (
            "another tensor",
            |p| exchange(p, 1, REVERSE).sends[0].view = part(Y, 0, 1),
            "MessageDiffers",
        ),
        (
            "the wrong target in all classes",
            |p| {
                exchange(p, 1, HALO)
                    .receives
                    .iter_mut()
                    .for_each(|m| m.view = part(X, 5, 6));
            },
            "MessageDiffers",
        ),
        (
            "nobody to and from",
            |p| {
                let exchange = exchange(p, 0, HALO);
                exchange.receives[0].from = along(-1);
            },
            "NoPeer",
        ),
    ]);
}

#[test]
fn broken_collectives() {
    let breaks: &[Break] = &[
        (
            "one stays away",
            |p| collective(p, 1, SUM_LOSS).sequence = 7,
            "MemberMissing",
        ),
        (
            "out of order",
            |p| collective(p, 1, SUM_LOSS).sequence = 2,
            "SequenceDescends",
        ),
        (
            "along another axis",
            |p| collective(p, 1, SUM_LOSS).group = AxisSet::of([Axis::Width, Axis::Data]),
            "CollectiveDiffers",
        ),
        (
            "less of it",
            |p| {
                let task = &mut p.bodies[1].tasks[SUM_WEIGHT];
                task.each_view_mut(&mut |view| view.extent[4] = 1);
            },
            "CollectiveDiffers",
        ),
        (
            "another kind",
            |p| {
                let source = part(LINE, 0, 0);
                let targets = vec![source; 5].into();
                collective(p, 1, SUM_LOSS).kind = CollectiveKind::AllGather { source, targets };
            },
            "CollectiveDiffers",
        ),
        (
            "a member too few",
            |p| {
                if let CollectiveKind::AllGather { targets, .. } =
                    &mut collective(p, 1, GATHER).kind
                {
                    targets.each_mut().pop();
                }
            },
            "PartCount",
        ),
        (
            "members in the wrong order",
            |p| {
                if let CollectiveKind::AllGather { targets, .. } =
                    &mut collective(p, 1, GATHER).kind
                {
                    targets.each_mut().swap(1, 3);
                }
            },
            "CollectiveDiffers",
        ),
        (
            "a sum of different parts",
            |p| {
                for class in 0..5 {
                    let views = vec![part(Y, 0, 4)];
                    collective(p, class, SUM_WEIGHT).kind = CollectiveKind::AllReduce { views };
                }
            },
            "CollectiveDiffers",
        ),
    ];
    assert_refused(breaks);
}

/// How many faults tell that two ranks differ in this.
fn differences(program: &Program, what: &str) -> usize {
    let found = verify(program).expect_err("the classes are none");
    assert!(
        found.0.iter().any(|fault| kind(fault) == "NotEquivalent"),
        "{found}"
    );
    found.to_string().matches(what).count()
}

#[test]
fn inner_ranks_are_one_class_whatever_their_peers_are() {
    // Not all have inner ranks on both sides.
    let mut program = line(5);
    program.class_of = vec![0, 1, 1, 1, 2];
    program.bodies = [0, 1, 4].map(|class| program.bodies[class].clone()).into();
    assert_eq!(kinds(&program), Vec::<String>::new());

    // Two lines whose groups are alike, and one whose middle is of a class of its own.
    let mut program = lines(3, 3);
    program.class_of[7] = 3;
    program.bodies.push(program.bodies[1].clone());
    assert_eq!(kinds(&program), Vec::<String>::new());
}

/// What is broken between two classes is found at whichever ranks they meet.
#[test]
fn every_two_classes_that_meet_are_looked_at() {
    let mut program = line(6);
    program.class_of = vec![0, 1, 1, 1, 1, 2];
    program.bodies = [0, 1, 5].map(|class| program.bodies[class].clone()).into();
    let sound = program.clone();
    assert_eq!(kinds(&sound), Vec::<String>::new());

    // The last rank lacks the message that only one of the inner ranks sends to it.
    exchange(&mut program, 2, HALO).receives.clear();
    let Faults(faults) = verify(&program).unwrap_err();
    let unmatched = |fault: &Fault| match fault {
        Fault::SendUnmatched { site, peer, .. } => Some((site.rank, *peer)),
        _ => None,
    };
    assert_eq!(faults.iter().find_map(unmatched), Some((4, 5)));

    // The first rank as one of the inner ones.
    let mut program = sound;
    program.class_of[1] = 0;
    let found = kinds(&program);
    assert!(found.contains(&"SendUnmatched".to_owned()), "{found:?}");
}

#[test]
fn classes_that_are_none() {
    // Two lines of three in one of six: the third rank fills what the fourth owns.
    let mut program = line(6);
    program.class_of = vec![0, 1, 2, 0, 1, 2];
    program.bodies = [0, 1, 5].map(|class| program.bodies[class].clone()).into();
    assert!(differences(&program, "rest of") > 0);

    // Three samples on two lines.
    let mut program = lines(2, 3);
    let tensors = program.bodies[1].buffers.iter_mut();
    for tensor in tensors.filter_map(|buffer| buffer.tensor.as_mut()) {
        tensor.distribution.shape[0] = 3;
        tensor.distribution.axes[0] = AxisList::of([Axis::Data]);
    }
    assert_eq!(differences(&program, "share of 3 along data"), 1);

    // In all three classes, a sum over lines of what belongs to different samples, and a gather from
    // what belongs to no sample in particular.
    let mut program = lines(2, 3);
    for class in 0..3 {
        tensor_of(&mut program, class, LINE).distribution.shape[0] = 2;
        tensor_of(&mut program, class, LINE).distribution.axes[0] = AxisList::of([Axis::Data]);
        let sum = collective(&mut program, class, SUM_WEIGHT);
        sum.group = AxisSet::of([Axis::Data]);
        let view = part(LINE, 0, 4);
        sum.kind = CollectiveKind::AllReduce { views: vec![view] };
    }
    assert_eq!(differences(&program, "from its part of 2 along data"), 6);
}

fn tensor_of(program: &mut Program, class: usize, buffer: u32) -> &mut TensorRegion {
    let tensor = &mut program.bodies[class].buffers[buffer as usize].tensor;
    tensor.as_mut().expect("the buffer holds a tensor")
}

#[test]
fn an_end_that_never_comes() {
    let mut program = line(5);
    exchange(&mut program, 1, HALO).sequence = 1;
    exchange(&mut program, 1, REVERSE).sequence = 0;
    let Faults(faults) = verify(&program).unwrap_err();
    let cycle = faults.iter().find_map(|fault| match fault {
        Fault::Cycle { chain, one_by_one } => Some((chain, *one_by_one)),
        _ => None,
    });
    let (chain, one_by_one) = cycle.expect("a cycle is found");
    assert!(
        !one_by_one && chain.first() == chain.last() && chain.len() > 3,
        "{chain:?}"
    );

    let mut program = line(5);
    collective(&mut program, 1, SUM_LOSS).sequence = 2;
    collective(&mut program, 1, SUM_WEIGHT).sequence = 1;
    assert!(kinds(&program).contains(&"SequenceDescends".to_owned()));
}

/// Two ranks that exchange nothing, in these orders of (sequence, tasks to wait for).
fn pair(orders: [&[(u32, &[u32])]; 2]) -> Program {
    let mut program = line(3);
    program.mesh = Mesh::new([1, 1, 1, 2, 1, 1, 1]);
    program.class_of = vec![0, 1];
    program.bodies = vec![Body::default(), Body::default()];
    for (class, order) in orders.into_iter().enumerate() {
        let to = along(if class == 0 { 1 } else { -1 });
        let body = &mut program.bodies[class];
        body.buffers = line(3).bodies[0].buffers[..5].to_vec();
        body.buffers
            .iter_mut()
            .for_each(|buffer| buffer.tensor = None);
        body.arena = Bytes(1024);
        let (view, part) = (part(X, 0, 0), 0);
        body.tasks = order
            .iter()
            .map(|&(sequence, after)| Task {
                origin: Origin {
                    layer: "none".to_owned(),
                    phase: Phase::Forward,
                    turn: 0,
                },
                after: after.iter().map(|&id| TaskId(id)).collect(),
                work: Work::Exchange(Exchange {
                    sequence,
                    sends: vec![Send { to, part, view }],
                    receives: vec![Receive {
                        from: to,
                        part,
                        view,
                        accumulate: false,
                    }],
                }),
            })
            .collect();
        body.staging = Staging::of(body, &program.mesh);
    }
    program
}

#[test]
fn an_end_that_comes_unless_lanes_hold_one_task_at_a_time() {
    let alike = pair([&[(0, &[]), (1, &[])], &[(0, &[]), (1, &[])]]);
    assert_eq!(kinds(&alike), Vec::<String>::new());
    // Each would hold the packets of an exchange that the other starts when it has those of its own back.
    let swapped = pair([&[(0, &[]), (1, &[])], &[(1, &[]), (0, &[])]]);
    assert_cycle(&swapped, true);
    let crossed = pair([&[(0, &[]), (1, &[0])], &[(1, &[]), (0, &[0])]]);
    assert_cycle(&crossed, false);
    // Exchange 1 of the first completes, then 2, after which the second one starts exchange 0.
    let late = pair([
        &[(0, &[]), (1, &[]), (2, &[1])],
        &[(1, &[]), (2, &[]), (0, &[1])],
    ]);
    assert_cycle(&late, true);
}

/// There is a cycle, always or only if each lane holds one task at a time.
fn assert_cycle(program: &Program, only_one_by_one: bool) {
    let Faults(found) = verify(program).expect_err("there is a cycle");
    let is_it = |fault: &Fault| matches!(fault, Fault::Cycle { one_by_one, .. } if *one_by_one == only_one_by_one);
    assert!(found.iter().any(is_it), "{found:#?}");
}

#[test]
fn broken_memory() {
    assert_refused(&[
        (
            "a kernel does not wait",
            |p| p.bodies[1].tasks[FORWARD].after.clear(),
            "Race",
        ),
        (
            "memory is taken early",
            |p| p.bodies[1].tasks[BACKWARD].after.clear(),
            "Sharing",
        ),
        (
            "scratch lies in a gradient that lives",
            |p| {
                if let Work::Compute { workspace, .. } = &mut p.bodies[1].tasks[NORM].work {
                    let mut view = part(SCRATCH, 0, 1);
                    view.extent[4] = 16;
                    *workspace = Some(view);
                }
            },
            "Sharing",
        ),
        (
            "an output is overwritten",
            |p| p.bodies[1].buffers[LOSS as usize].offset = p.bodies[1].buffers[DY as usize].offset,
            "Sharing",
        ),
        (
            "a tensor lies in a parameter",
            |p| p.bodies[1].buffers[Y as usize].offset = Bytes(0),
            "PersistentShared",
        ),
    ]);
}

#[test]
fn broken_contents() {
    assert_refused(&[
        (
            "no padding",
            |p| {
                *kernel_of(p, 0, PAD) = Kernel::Fill {
                    target: part(X, 0, 0),
                    value: 0.0,
                }
            },
            "Uninitialized",
        ),
        (
            "scratch is read",
            |p| {
                let mut view = part(SCRATCH, 0, 1);
                view.extent[4] = 16;
                let mut total = part(TOTAL, 0, 1);
                total.extent[4] = 1;
                let sources = vec![view];
                *kernel_of(p, 1, NORM) = Kernel::SumOfSquares { sources, total };
            },
            "Uninitialized",
        ),
        (
            "an output that nobody writes",
            |p| {
                if let Kernel::SumOfSquares { total, .. } = kernel_of(p, 1, NORM) {
                    total.buffer = BufferId(LOSS);
                }
                if let CollectiveKind::AllReduce { views } = &mut collective(p, 1, SUM_TOTAL).kind {
                    views[0].buffer = BufferId(LOSS);
                }
            },
            "OutputUnwritten",
        ),
    ]);
}

#[test]
fn broken_halos() {
    assert_refused(&[
        (
            "padding instead of a halo",
            |p| {
                drop_pair(p, HALO);
                *kernel_of(p, 0, PAD) = Kernel::Fill {
                    target: part(X, 0, 6),
                    value: 0.0,
                };
            },
            "HaloFilled",
        ),
        (
            "a halo is left out",
            |p| drop_pair(p, HALO),
            "Uninitialized",
        ),
        (
            "a reverse halo is left out",
            |p| drop_pair(p, REVERSE),
            "ContributionLost",
        ),
        (
            "a message brings what the rank computes itself",
            |p| tensor_of(p, 1, X).redundant = true,
            "ReceiveMisplaced",
        ),
        (
            "the gradient of a copy is sent away",
            |p| tensor_of(p, 1, DX).redundant = true,
            "CopySent",
        ),
        (
            "the kernel runs before the load",
            |p| p.bodies[1].tasks[IMPORT].after.clear(),
            "Race",
        ),
    ]);
}

/// Leaves out the message from the second rank to the first, and its receive.
fn drop_pair(program: &mut Program, task: usize) {
    exchange(program, 0, task).receives.remove(0);
    exchange(program, 0, task).sends.remove(0);
    exchange(program, 1, task).sends.remove(0);
    exchange(program, 1, task).receives.remove(0);
}

#[test]
fn every_edge_and_every_message_is_needed() {
    let original = line(5);
    let mut mutants = 0;
    for class in 0..5 {
        for task in 0..original.bodies[class].tasks.len() {
            for edge in 0..original.bodies[class].tasks[task].after.len() {
                let mut program = original.clone();
                program.bodies[class].tasks[task].after.remove(edge);
                assert!(
                    verify(&program).is_err(),
                    "class {class} t{task} without edge {edge}"
                );
                mutants += 1;
            }
        }
        for task in [HALO, REVERSE] {
            let messages = exchange(&mut original.clone(), class, task).sends.len();
            for message in 0..messages {
                let mut program = original.clone();
                exchange(&mut program, class, task).sends.remove(message);
                assert!(
                    verify(&program).is_err(),
                    "class {class} t{task} send {message}"
                );
                let mut program = original.clone();
                exchange(&mut program, class, task).receives.remove(message);
                assert!(
                    verify(&program).is_err(),
                    "class {class} t{task} receive {message}"
                );
                mutants += 2;
            }
            if messages == 2 {
                let mut program = original.clone();
                let sends = &mut exchange(&mut program, class, task).sends;
                (sends[0].view, sends[1].view) = (sends[1].view, sends[0].view);
                assert!(kinds(&program).contains(&"MessageDiffers".to_owned()));
                let mut program = original.clone();
                let receives = &mut exchange(&mut program, class, task).receives;
                (receives[0].view, receives[1].view) = (receives[1].view, receives[0].view);
                assert!(kinds(&program).contains(&"MessageDiffers".to_owned()));
                mutants += 2;
            }
        }
    }
    assert!(mutants > 80, "{mutants} mutants");
}

#[test]
fn all_faults_are_told_and_fifty_are_printed() {
    let mut program = line(5);
    for body in &mut program.bodies {
        body.tasks.iter_mut().for_each(|task| task.after.clear());
        body.buffers
            .iter_mut()
            .for_each(|buffer| buffer.offset.0 += 4);
    }
    let faults = verify(&program).unwrap_err();
    let found = kinds(&program);
    for expected in [
        "Misaligned",
        "OutsideArena",
        "Race",
        "Sharing",
        "Uninitialized",
    ] {
        assert!(
            found.iter().any(|kind| kind == expected),
            "{expected} in {found:?}"
        );
    }
    let text = faults.to_string();
    assert!(faults.0.len() > 50 && text.lines().count() == 52, "{text}");
    assert!(
        text.ends_with(&format!("and {} more", faults.0.len() - 50)),
        "{text}"
    );
    let race = faults
        .0
        .iter()
        .find(|fault| kind(fault) == "Race")
        .unwrap()
        .to_string();
    assert!(
        race.contains("class 0 (rank 0) t") && race.contains("(sample)"),
        "{race}"
    );
}

#[test]
fn sixteen_thousand_ranks_in_few_classes() {
    let program = lines(256, 64);
    assert!(
        verify(&program).is_ok(),
        "{}",
        verify(&program).unwrap_err()
    );
}
