//! The text of a program says all of it, and its digest changes with all but the title.

use crate::hand;

use hand::*;
use partita_program::*;
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh};

#[test]
fn a_program_reads_as_it_prints() {
    for ranks in [3, 5, 16] {
        let program = line(ranks);
        let text = program.to_text();
        let read = Program::parse(&text).unwrap();
        assert_eq!(read, program);
        assert_eq!(read.to_text(), text);
        assert_eq!(read.digest(), program.digest());
    }
}

/// Split along every second dim.
fn distribution() -> Distribution {
    let mut distribution = Distribution::replicated([1, 2, 3, 4, 5]);
    distribution.axes = [
        Some(Axis::Data),
        None,
        Some(Axis::Height),
        None,
        Some(Axis::Filter),
    ]
    .map(AxisList::from);
    distribution
}

/// Kernels with every kind of constant.
fn kernels() -> Vec<Kernel> {
    let view = part(X, 1, 3);
    let taps = Taps {
        kernel: [1, 2, 3],
        stride: [3, 2, 1],
        dilation: [1, 1, 2],
    };
    let shift = [-1, 0, 2];
    let pool = |kind, x| Kernel::PoolBackward {
        kind,
        x,
        dy: view,
        dx: view,
        taps,
        shift,
        accumulate: true,
    };
    vec![
        Kernel::Fill {
            target: view,
            value: -0.1,
        },
        Kernel::Fill {
            target: view,
            value: f64::MIN_POSITIVE,
        },
        Kernel::Import {
            source: view,
            target: view,
            transform: Transform::LogOnePlus,
        },
        Kernel::Import {
            source: view,
            target: view,
            transform: Transform::Identity,
        },
        pool(PoolKind::Max, Some(view)),
        pool(PoolKind::AverageAll, None),
        pool(PoolKind::AverageInside, None),
        Kernel::BatchNormRunning {
            sums: view,
            mean: view,
            variance: view,
            count: u64::MAX,
            momentum: 1.0 / 3.0,
        },
        Kernel::Dropout {
            x: view,
            y: view,
            rate: 0.5,
            mask: partita_program::DropoutMask::Element,
            operation: 7,
            distribution: distribution(),
            halo_low: [0; 5],
            accumulate: false,
        },
        update(view),
        average(view),
    ]
}

fn update(view: View) -> Kernel {
    Kernel::Update {
        rule: Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        },
        parameter: view,
        gradient: view,
        moments: vec![view, view],
        norms: None,
        clip: Some((view, 1e300)),
    }
}

fn average(view: View) -> Kernel {
    Kernel::Average {
        parameter: view,
        average: view,
        decay: 1.0 / 3.0,
        total: Some(view),
    }
}

#[test]
fn every_kind_of_constant_survives() {
    let mut program = line(3);
    for kernel in kernels() {
        let mut task = program.bodies[1].tasks[FORWARD].clone();
        task.work = Work::Compute {
            kernel,
            algorithm: Algorithm("direct w8".to_owned()),
            workspace: None,
        };
        program.bodies[1].tasks.push(task);
    }
    program.mesh = Mesh::new([1, 2, 3, 4, 5, 6, 7]);
    program.class_of = (0..5040).map(|rank| rank % 3).collect();
    for phase in [Phase::Reduce, Phase::Report, Phase::Update] {
        let mut task = program.bodies[1].tasks[GATHER].clone();
        task.origin.phase = phase;
        if let Work::Collective(collective) = &mut task.work {
            collective.group = AxisSet::of([Axis::Data, Axis::Branch]);
        }
        program.bodies[1].tasks.push(task);
    }
    program.kind = ProgramKind::Evaluate;
    program.dtype = Dtype::F64;
    program.title = "  a title of several words: 1 = 2  ".to_owned();
    assert_eq!(Program::parse(&program.to_text()).unwrap(), program);
    program.kind = ProgramKind::Fetch;
    program.local_statistics = AxisSet::of([Axis::Data]);
    program.title = String::new();
    program.bodies.push(Body::default());
    assert_eq!(Program::parse(&program.to_text()).unwrap(), program);
}

#[test]
fn the_digest_is_the_same_everywhere() {
    assert_eq!(line(3).digest(), "35cd262e4fbab74a");
}

#[test]
fn the_digest_changes_with_all_but_the_title() {
    let changes: &[fn(&mut Program)] = &[
        |p| p.kind = ProgramKind::Evaluate,
        |p| p.dtype = Dtype::F64,
        |p| p.batch = 2,
        |p| p.mesh = Mesh::new([3, 1, 1, 1, 1, 1, 1]),
        |p| p.class_of[0] = 1,
        |p| p.bodies[0].arena = Bytes(1 << 20),
        |p| p.bodies[0].buffers[0].name = "v".to_owned(),
        |p| p.bodies[0].buffers[0].role = Role::State,
        |p| p.bodies[0].buffers[0].offset = Bytes(64),
        |p| p.bodies[0].buffers[X as usize].tensor = None,
        |p| p.bodies[0].outputs[0].name = "error".to_owned(),
        |p| p.bodies[0].tasks[HALO].after.clear(),
        |p| p.bodies[0].tasks[HALO].origin.phase = Phase::Backward,
        |p| exchange(p, 0, HALO).sequence = 9,
        |p| exchange(p, 0, HALO).receives[0].accumulate = true,
        |p| collective(p, 0, GATHER).group = AxisSet::NONE,
        |p| p.bodies[0].tasks.swap(IMPORT, PAD),
        |p| drop(p.bodies[2].tasks.pop()),
    ];
    let mut seen = vec![line(3).digest()];
    for change in changes {
        let mut program = line(3);
        change(&mut program);
        seen.push(program.digest());
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
    let mut program = line(3);
    program.title = "another".to_owned();
    assert_eq!(program.digest(), line(3).digest());
}

#[test]
fn a_text_that_is_no_program_is_refused_with_its_line() {
    let text = line(3).to_text();
    let number = |start: &str| {
        let found = text
            .lines()
            .position(|line| line.trim_start().starts_with(start));
        found.unwrap() + 1
    };
    for (start, from, to) in [
        ("kind", "train", "play"),
        ("dtype", "f32", "f8"),
        ("mesh", "3", "x"),
        ("classes", "0*1", "0x1"),
        ("buffer b3", "1x1x1x6x2", "1x1x6x2"),
        ("output loss", "b10[", "10["),
        ("t4 ", "exchange forward", "compute forward"),
        ("t4 ", "forward", "sideways"),
        ("t4 ", "sequence", "number"),
    ] {
        let line = number(start);
        let changed: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(i, old)| {
                if i + 1 == line {
                    old.replacen(from, to, 1)
                } else {
                    old.to_owned()
                }
            })
            .collect();
        assert_ne!(changed.join("\n"), text.trim_end(), "{start} {from}");
        let error = Program::parse(&changed.join("\n")).unwrap_err();
        assert_eq!(error.line, line, "{start} {to}: {error}");
    }
    assert!(Program::parse("").is_err());
}
