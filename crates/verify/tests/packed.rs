//! Packed weights in a program made by hand: counted, printed, and every misuse refused.

use crate::hand;

use hand::*;
use partita_program::*;
use partita_space::Bytes;
use partita_verify::{Faults, verify};

const PACKED: u32 = LINE + 1;
const ELEMENTS: usize = 48;
/// Where the weights are packed; every later task comes one later than by hand.
const PACK: usize = COPY_GOAL;

/// The line over three ranks, with weights packed before the convolution.
fn packed() -> Program {
    let mut program = line(3);
    for body in &mut program.bodies {
        let offset = Bytes(body.arena.0.next_multiple_of(64));
        body.buffers.push(Buffer {
            name: "w.packed".to_owned(),
            role: Role::PackedWeights,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 1, ELEMENTS],
            tensor: None,
            offset,
        });
        body.arena = offset + Bytes(4 * ELEMENTS as u64);
        let packed = body.buffer(BufferId(PACKED)).view(BufferId(PACKED));
        let task = &mut body.tasks[FORWARD];
        let Work::Compute { kernel, .. } = &mut task.work else {
            panic!("the convolution is a kernel");
        };
        let Kernel::ConvolutionForward {
            w, taps, groups, ..
        } = kernel
        else {
            panic!("{} is no convolution", kernel.name());
        };
        let pack = Kernel::PackWeights {
            w: std::mem::replace(w, packed),
            packed,
            direction: Direction::Forward,
            taps: *taps,
            groups: *groups,
        };
        let mut task = body.tasks[COPY_GOAL].clone();
        task.after.clear();
        if let Work::Compute { kernel, .. } = &mut task.work {
            *kernel = pack;
        }
        body.tasks.insert(PACK, task);
        for task in &mut body.tasks {
            let late = task.after.iter_mut().filter(|id| id.0 >= PACK as u32);
            late.for_each(|id| id.0 += 1);
        }
    }
    program
}

#[test]
fn a_program_with_packed_weights_is_sound_and_reads_as_it_prints() {
    let program = packed();
    let found = verify(&program);
    assert!(found.is_ok(), "{}", found.unwrap_err());
    let text = program.to_text();
    assert!(text.contains("PackWeights(w:") && text.contains("packed_weights f32 1x1x1x1x48"));
    assert_eq!(Program::parse(&text), Ok(program));
}

#[test]
fn packing_moves_bytes_and_computes_nothing() {
    let (plain, packed) = (line(3), packed());
    let count = |program: &Program, task: usize| {
        Count::of(&program.bodies[1].tasks[task], &program.bodies[1].buffers)
    };
    let weights = 4 * 3 * (CHANNELS * CHANNELS) as u64;
    let pack = count(&packed, PACK);
    assert_eq!((pack.flops.0, pack.read.0), (0, weights));
    assert_eq!(pack.written.0, 4 * ELEMENTS as u64);
    let (before, after) = (count(&plain, FORWARD), count(&packed, FORWARD + 1));
    assert_eq!(after.flops, before.flops);
    assert_eq!(after.written, before.written);
    assert_eq!(after.read.0, before.read.0 - weights + 4 * ELEMENTS as u64);
}

#[test]
fn a_kernel_with_packed_weights_is_another_one_to_measure() {
    let mut program = packed();
    let body = &mut program.bodies[1];
    let signature = |body: &Body| {
        let Work::Compute { kernel, .. } = &body.tasks[FORWARD + 1].work else {
            panic!("the convolution is a kernel");
        };
        let buffers = &body.buffers;
        KernelShape { kernel, buffers }.signature()
    };
    let with = signature(body);
    assert!(with.contains("packed:f32:1x1x1x1x48"), "{with}");
    body.buffers[PACKED as usize].role = Role::Parameter;
    assert_ne!(signature(body), with);
}

/// A way to break the program, and a fault that must be among those found.
type Break = (&'static str, fn(&mut Program, BufferId), &'static str);

fn assert_refused(breaks: &[Break]) {
    for (what, change, expected) in breaks {
        let mut program = packed();
        change(&mut program, BufferId(PACKED));
        let Err(Faults(faults)) = verify(&program) else {
            panic!("{what} is accepted");
        };
        let kinds: Vec<String> = faults.iter().map(|fault| format!("{fault:?}")).collect();
        let is_it = |kind: &String| kind.split([' ', '{']).next() == Some(expected);
        assert!(kinds.iter().any(is_it), "{what}: {kinds:?}");
    }
}

#[test]
fn weights_packed_wrongly_are_refused() {
    assert_refused(&[
        (
            "packed for another direction",
            |p, _| {
                if let Kernel::PackWeights { direction, .. } = kernel_of(p, 1, PACK) {
                    *direction = Direction::BackwardData;
                }
            },
            "Packed",
        ),
        (
            "packed for other taps",
            |p, _| {
                if let Kernel::PackWeights { taps, .. } = kernel_of(p, 1, PACK) {
                    taps.stride[2] = 2;
                }
            },
            "Packed",
        ),
        (
            "packed for two groups",
            |p, _| {
                if let Kernel::PackWeights { groups, .. } = kernel_of(p, 1, PACK) {
                    *groups = 2;
                }
            },
            "Packed",
        ),
        (
            "a part is taken",
            |p, _| {
                if let Kernel::ConvolutionForward { w, .. } = kernel_of(p, 1, FORWARD + 1) {
                    w.extent[4] -= 1;
                }
            },
            "Packed",
        ),
        (
            "a part is packed",
            |p, _| {
                if let Kernel::PackWeights { packed, .. } = kernel_of(p, 1, PACK) {
                    packed.extent[4] -= 1;
                }
            },
            "Packed",
        ),
        (
            "packed into scratch",
            |p, _| {
                if let Kernel::PackWeights { packed, .. } = kernel_of(p, 1, PACK) {
                    packed.buffer = BufferId(SCRATCH);
                    packed.extent[4] = 16;
                }
            },
            "Packed",
        ),
        (
            "weights of another window are packed",
            |p, _| {
                if let Kernel::PackWeights { w, .. } = kernel_of(p, 1, PACK) {
                    w.extent[2] = 2;
                }
            },
            "Shape",
        ),
    ]);
}

#[test]
fn packed_weights_used_wrongly_are_refused() {
    assert_refused(&[
        (
            "a constant instead of packed weights",
            |p, all| {
                let target = p.bodies[1].buffer(all).view(all);
                *kernel_of(p, 1, PACK) = Kernel::Fill { target, value: 0.0 };
            },
            "Packed",
        ),
        (
            "packed weights as a gradient",
            |p, all| {
                let packed = p.bodies[1].buffer(all).view(all);
                if let Kernel::Update { gradient, .. } = kernel_of(p, 1, UPDATE + 1) {
                    *gradient = packed;
                }
            },
            "Packed",
        ),
        (
            "packed twice",
            |p, _| {
                let again = kernel_of(p, 1, PACK).clone();
                *kernel_of(p, 1, NORM + 1) = again;
            },
            "Packed",
        ),
        (
            "packed after they are used",
            |p, _| {
                let late = kernel_of(p, 1, PACK).clone();
                let early = std::mem::replace(kernel_of(p, 1, NORM + 1), late);
                *kernel_of(p, 1, PACK) = early;
            },
            "Uninitialized",
        ),
        (
            "the weights move after they are packed",
            |p, _| {
                let update = kernel_of(p, 1, UPDATE + 1).clone();
                *kernel_of(p, 1, PACK + 1) = update;
            },
            "PackedStale",
        ),
    ]);
}
