//! A program made by hand: a convolution of width 3 over a line that is split over ranks, trained for
//! a step. Halo exchange, reverse halo exchange, allgather, allreduce and shared memory occur.

#![allow(
    dead_code,
    reason = "each test file that includes this uses a part of it"
)]

use partita_program::*;
use partita_space::{Axis, AxisList, AxisSet, Bytes, Mesh, Offset};

/// Elements of the line per rank.
pub const SHARE: usize = 4;
/// Channels.
pub const CHANNELS: usize = 2;

// Buffers.
pub const W: u32 = 0;
pub const SAMPLE: u32 = 1;
pub const ANSWER: u32 = 2;
pub const X: u32 = 3;
pub const Y: u32 = 4;
pub const DX: u32 = 5;
pub const DY: u32 = 6;
pub const GOAL: u32 = 7;
pub const SCRATCH: u32 = 8;
pub const DW: u32 = 9;
pub const LOSS: u32 = 10;
pub const TOTAL: u32 = 11;
pub const LINE: u32 = 12;

// Tasks.
pub const LOAD: usize = 0;
pub const IMPORT: usize = 2;
pub const PAD: usize = 3;
pub const HALO: usize = 4;
pub const COPY_GOAL: usize = 5;
pub const FORWARD: usize = 6;
pub const GATHER: usize = 7;
pub const ERROR: usize = 8;
pub const SUM_LOSS: usize = 9;
pub const BACKWARD: usize = 10;
pub const REVERSE: usize = 11;
pub const WEIGHT: usize = 12;
pub const SUM_WEIGHT: usize = 13;
pub const NORM: usize = 14;
pub const SUM_TOTAL: usize = 15;
pub const UPDATE: usize = 16;

/// The offset of this many ranks along the line.
pub fn along(step: i32) -> Offset {
    Offset([0, 0, 0, step, 0, 0, 0])
}

/// The program for a line of ranks. They differ in how far they are from its ends, so each is a class.
pub fn line(ranks: usize) -> Program {
    let mut program = Program {
        title: format!("a line over {ranks} ranks"),
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        batch: 1,
        mesh: Mesh::new([1, 1, 1, ranks, 1, 1, 1]),
        local_statistics: partita_space::AxisSet::NONE,
        bodies: (0..ranks)
            .map(|rank| body(ranks, rank > 0, rank + 1 < ranks))
            .collect(),
        class_of: (0..ranks as u32).collect(),
    };
    for body in &mut program.bodies {
        body.staging = Staging::of(body, &program.mesh);
    }
    program
}

/// Several such lines, side by side along `data`, that have nothing to do with each other.
pub fn lines(count: usize, ranks: usize) -> Program {
    let mut program = line(ranks);
    program.mesh = Mesh::new([count, 1, 1, ranks, 1, 1, 1]);
    program.class_of = program.class_of.repeat(count);
    program
}

/// The part of a buffer from `start` to `end` along the line.
pub fn part(buffer: u32, start: usize, end: usize) -> View {
    View {
        buffer: BufferId(buffer),
        start: [0, 0, 0, start, 0],
        extent: [1, 1, 1, end - start, CHANNELS],
    }
}

fn whole(buffer: u32, extent: [usize; 5]) -> View {
    View {
        buffer: BufferId(buffer),
        start: [0; 5],
        extent,
    }
}

fn distribution(ranks: usize) -> Distribution {
    let mut distribution = Distribution::replicated([1, 1, 1, SHARE * ranks, CHANNELS]);
    distribution.axes[3] = AxisList::of([Axis::Width]);
    distribution
}

fn buffers(ranks: usize) -> Vec<Buffer> {
    use Dtype::{F32, F64};
    let (weight, share) = ([1, 1, 3, CHANNELS, CHANNELS], [1, 1, 1, SHARE, CHANNELS]);
    let stored = [1, CHANNELS, 1, 1, SHARE];
    let (framed, line) = (
        [1, 1, 1, SHARE + 2, CHANNELS],
        [1, 1, 1, SHARE * ranks, CHANNELS],
    );
    let tensor = |id, low| {
        Some(TensorRegion {
            id,
            distribution: distribution(ranks),
            halo_low: [0, 0, 0, low, 0],
            redundant: false,
        })
    };
    let everywhere = Some(TensorRegion {
        id: 1,
        distribution: Distribution::replicated(line),
        halo_low: [0; 5],
        redundant: false,
    });
    // The gradient of x takes the place of y, and that of w the place of the scratch.
    let list = [
        ("w", Role::Parameter, F32, weight, None, 0),
        ("sample", Role::Staging, F32, stored, None, 1),
        ("answer", Role::Staging, F32, share, None, 2),
        ("x", Role::Activation, F32, framed, tensor(0, 1), 3),
        ("y", Role::Activation, F32, share, tensor(1, 0), 4),
        ("dx", Role::ActivationGradient, F32, framed, tensor(2, 1), 4),
        ("dy", Role::ActivationGradient, F32, share, tensor(3, 0), 5),
        ("goal", Role::Activation, F32, share, None, 6),
        ("scratch", Role::Workspace, F32, [1, 1, 1, 1, 16], None, 7),
        ("dw", Role::Gradient, F32, weight, None, 7),
        ("loss", Role::Statistics, F64, [1; 5], None, 8),
        ("total", Role::Statistics, F64, [1; 5], None, 9),
        ("line", Role::Activation, F32, line, everywhere, 10),
    ];
    let buffer = |(name, role, dtype, dims, tensor, slot): (&str, _, _, _, _, u64)| Buffer {
        name: name.to_owned(),
        role,
        dtype,
        dims,
        tensor,
        offset: Bytes(slot * 64),
    };
    list.map(buffer).into()
}

fn body(ranks: usize, left: bool, right: bool) -> Body {
    let weight = [1, 1, 3, CHANNELS, CHANNELS];
    let task = |layer: &str, phase, after: &[usize], work| Task {
        origin: Origin {
            layer: layer.to_owned(),
            phase,
            turn: 0,
        },
        after: after.iter().map(|&id| TaskId(id as u32)).collect(),
        work,
    };
    let mut tasks = Vec::new();
    let stored = whole(SAMPLE, [1, CHANNELS, 1, 1, SHARE]);
    for (item, target) in [(Item::Sample, stored), (Item::Target, part(ANSWER, 0, 4))] {
        let load = Load {
            item,
            when: When::Now,
            distribution: distribution(ranks),
            target,
        };
        tasks.push(task("input", Phase::Load, &[], Work::Load(load)));
    }
    let import = kernel(Kernel::Import {
        source: stored,
        target: part(X, 1, 5),
        transform: Transform::Scale { factor: 0.1 },
    });
    let copy = kernel(Kernel::Copy {
        source: part(ANSWER, 0, 4),
        target: part(GOAL, 0, 4),
        accumulate: false,
    });
    let (forward, backward) = (Phase::Forward, Phase::Backward);
    tasks.extend([
        task("input", Phase::Load, &[0], import),
        task("input", forward, &[], kernel(padding(left, right))),
        task("conv", forward, &[IMPORT], halo(left, right)),
        task("input", Phase::Load, &[1], copy),
        task("conv", forward, &[HALO], convolution()),
        task("line", forward, &[FORWARD], gather(ranks)),
        task("loss", forward, &[], kernel(error(ranks))),
        task("loss", Phase::Report, &[ERROR], sum(1, whole(LOSS, [1; 5]))),
        task("conv", backward, &[GATHER], kernel(data(left, right))),
        task("conv", backward, &[BACKWARD], reverse_halo(left, right)),
        task("conv", backward, &[], kernel(weights())),
        task("w", Phase::Reduce, &[WEIGHT], sum(2, whole(DW, weight))),
        task("line", Phase::Report, &[REVERSE], kernel(norm())),
        task("line", Phase::Report, &[NORM], sum(3, whole(TOTAL, [1; 5]))),
        task("w", Phase::Update, &[SUM_WEIGHT], kernel(update())),
    ]);
    let output = |name: &str, buffer| Output {
        name: name.to_owned(),
        view: whole(buffer, [1; 5]),
    };
    Body {
        staging: Staging::default(),
        buffers: buffers(ranks),
        tasks,
        outputs: vec![output("loss", LOSS), output("total", TOTAL)],
        arena: Bytes(10 * 64 + (4 * CHANNELS * SHARE * ranks) as u64),
    }
}

fn kernel(kernel: Kernel) -> Work {
    Work::Compute {
        kernel,
        algorithm: Algorithm("plain".to_owned()),
        workspace: None,
    }
}

/// What of x lies around the line; in the middle of it, nothing.
fn padding(left: bool, right: bool) -> Kernel {
    let target = match (left, right) {
        (false, true) => part(X, 0, 1),
        (true, false) => part(X, 5, 6),
        (true, true) => part(X, 0, 0),
        (false, false) => panic!("a line has two ends"),
    };
    Kernel::Fill { target, value: 0.0 }
}

fn halo(left: bool, right: bool) -> Work {
    let sides = [(left, -1, 1, 0), (right, 1, 4, 5)]
        .into_iter()
        .filter(|side| side.0);
    let (sends, receives) = sides
        .map(|(_, step, own, frame)| {
            let (view, to, part_view) = (part(X, own, own + 1), along(step), frame);
            let receive = Receive {
                from: to,
                part: 0,
                view: part(X, part_view, part_view + 1),
                accumulate: false,
            };
            (Send { to, part: 0, view }, receive)
        })
        .unzip();
    Work::Exchange(Exchange {
        sequence: 0,
        sends,
        receives,
    })
}

fn reverse_halo(left: bool, right: bool) -> Work {
    let Work::Exchange(halo) = halo(left, right) else {
        panic!("a halo is an exchange");
    };
    let there = |mut view: View| {
        view.buffer = BufferId(DX);
        view
    };
    let pairs = halo.sends.iter().zip(&halo.receives);
    let (sends, receives) = pairs
        .map(|(send, receive)| {
            let back = Send {
                to: send.to,
                part: 0,
                view: there(receive.view),
            };
            let added = Receive {
                from: send.to,
                part: 0,
                view: there(send.view),
                accumulate: true,
            };
            (back, added)
        })
        .unzip();
    Work::Exchange(Exchange {
        sequence: 1,
        sends,
        receives,
    })
}

const TAPS: Taps = Taps {
    kernel: [1, 1, 3],
    stride: [1; 3],
    dilation: [1; 3],
};

fn convolution() -> Work {
    Work::Compute {
        kernel: Kernel::ConvolutionForward {
            x: part(X, 0, 6),
            w: whole(W, [1, 1, 3, CHANNELS, CHANNELS]),
            bias: None,
            y: part(Y, 0, 4),
            taps: TAPS,
            groups: 1,
            accumulate: false,
        },
        algorithm: Algorithm("plain".to_owned()),
        workspace: Some(whole(SCRATCH, [1, 1, 1, 1, 16])),
    }
}

fn gather(ranks: usize) -> Work {
    let targets = (0..ranks).map(|rank| part(LINE, SHARE * rank, SHARE * (rank + 1)));
    Work::Collective(Collective {
        sequence: 0,
        group: AxisSet::of([Axis::Width]),
        submesh: None,
        kind: CollectiveKind::AllGather {
            source: part(Y, 0, 4),
            targets: targets.collect(),
        },
    })
}

fn sum(sequence: u32, view: View) -> Work {
    Work::Collective(Collective {
        sequence,
        group: AxisSet::of([Axis::Width]),
        submesh: None,
        kind: CollectiveKind::AllReduce { views: vec![view] },
    })
}

fn error(ranks: usize) -> Kernel {
    Kernel::MeanSquaredError {
        x: part(Y, 0, 4),
        target: part(GOAL, 0, 4),
        dx: Some(part(DY, 0, 4)),
        loss: whole(LOSS, [1; 5]),
        count: (SHARE * CHANNELS * ranks) as u64,
        weight: 1.0,
    }
}

/// Contributions to x of neighbors go to the frame; what lies around the line gets none.
fn data(left: bool, right: bool) -> Kernel {
    let start = usize::from(!left);
    let end = if right { 6 } else { 5 };
    Kernel::ConvolutionBackwardData {
        dy: part(DY, 0, 4),
        w: whole(W, [1, 1, 3, CHANNELS, CHANNELS]),
        bias: None,
        dx: part(DX, start, end),
        taps: TAPS,
        shift: [0, 0, start as i64],
        groups: 1,
        accumulate: false,
    }
}

fn weights() -> Kernel {
    Kernel::ConvolutionBackwardWeight {
        x: part(X, 0, 6),
        dy: part(DY, 0, 4),
        dw: whole(DW, [1, 1, 3, CHANNELS, CHANNELS]),
        taps: TAPS,
        groups: 1,
        accumulate: false,
    }
}

fn norm() -> Kernel {
    Kernel::SumOfSquares {
        sources: vec![part(DX, 1, 5)],
        total: whole(TOTAL, [1; 5]),
    }
}

fn update() -> Kernel {
    Kernel::Update {
        rule: Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 1e-4,
        },
        parameter: whole(W, [1, 1, 3, CHANNELS, CHANNELS]),
        gradient: whole(DW, [1, 1, 3, CHANNELS, CHANNELS]),
        moments: Vec::new(),
        norms: None,
        clip: None,
    }
}

/// The exchange of a task.
pub fn exchange(program: &mut Program, class: usize, task: usize) -> &mut Exchange {
    match &mut program.bodies[class].tasks[task].work {
        Work::Exchange(exchange) => exchange,
        other => panic!("{} is no exchange", other.name()),
    }
}

/// The collective of a task.
pub fn collective(program: &mut Program, class: usize, task: usize) -> &mut Collective {
    match &mut program.bodies[class].tasks[task].work {
        Work::Collective(collective) => collective,
        other => panic!("{} is no collective", other.name()),
    }
}

/// The kernel of a task.
pub fn kernel_of(program: &mut Program, class: usize, task: usize) -> &mut Kernel {
    match &mut program.bodies[class].tasks[task].work {
        Work::Compute { kernel, .. } => kernel,
        other => panic!("{} is no kernel", other.name()),
    }
}
