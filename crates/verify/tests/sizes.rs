//! Numbers of any size in a program that is read are answered with an error, never with a panic, a wrapped
//! size or an allocation of what they name.

use crate::hand;

use hand::*;
use partita_program::*;
use partita_space::{Mesh, Offset, Submesh};
use partita_verify::{Fault, Faults, verify};

/// Where the numbers of a text stand.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let (bytes, mut at) = (text.as_bytes(), 0);
    while at < bytes.len() {
        let end = (at..bytes.len())
            .find(|&end| !bytes[end].is_ascii_digit())
            .unwrap_or(bytes.len());
        if end > at {
            found.push((at, end));
        }
        at = end.max(at + 1);
    }
    found
}

#[test]
fn hostile_numbers_in_a_text_are_refused_or_harmless() {
    let text = line(2).to_text();
    let hostile = ["0", "4294967295", "2274450605487904", "9223372036854775807"];
    let mut refused = 0;
    for (start, end) in numbers(&text) {
        for number in hostile {
            let changed = format!("{}{number}{}", &text[..start], &text[end..]);
            let sound = Program::parse(&changed).is_ok_and(|program| {
                verify(&program).is_ok() && {
                    program.count();
                    let bodies = program.bodies.iter();
                    bodies
                        .map(|body| body.bytes_of(Role::Activation))
                        .sum::<partita_space::Bytes>();
                    true
                }
            });
            refused += usize::from(!sound);
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn classes_are_those_of_the_ranks_of_the_mesh() {
    let text = line(3).to_text();
    assert!(text.contains("classes 0*1 1*1 2*1\n"), "{text}");
    let read = |classes: &str| Program::parse(&text.replacen("0*1 1*1 2*1", classes, 1));
    let line = text.lines().position(|line| line.starts_with("classes"));
    for classes in ["0*99999999999", "0*1 1*1", "0*2 1*2"] {
        let error = read(classes).unwrap_err();
        assert_eq!(Some(error.line - 1), line, "{classes}: {error}");
    }
    let Err(Faults(faults)) = verify(&read("5*3").unwrap()) else {
        panic!("there is no class 5");
    };
    assert!(matches!(faults[0], Fault::NoSuchClass { class: 5, .. }));
}

#[test]
fn sizes_beyond_the_limits_are_named() {
    let refused = |what: &str, change: &dyn Fn(&mut Program)| {
        let mut program = line(5);
        change(&mut program);
        assert_too_large(&program, what);
    };
    refused("elements", &|program| {
        program.bodies[1].buffers[X as usize].dims[0] = usize::MAX;
    });
    refused("elements of its tensor", &|program| {
        let tensor = program.bodies[1].buffers[X as usize].tensor.as_mut();
        tensor.expect("x is part of a tensor").distribution.shape[1] = 1 << 49;
    });
    refused("bytes of the arena", &|program| {
        program.bodies[1].arena.0 = u64::MAX;
    });
    refused("ranks to a peer", &|program| {
        if let Work::Exchange(exchange) = &mut program.bodies[1].tasks[HALO].work {
            exchange.sends[0].to = Offset([i32::MIN; 7]);
        }
    });
    refused("inputs along its window", &|program| {
        if let Kernel::ConvolutionForward { taps, .. } = kernel_of(program, 1, FORWARD) {
            taps.stride[2] = usize::MAX;
        }
    });
    refused("largest rank of its mesh", &|program| {
        if let Work::Collective(collective) = &mut program.bodies[1].tasks[GATHER].work {
            let five = Mesh::new([1, 1, 1, 5, 1, 1, 1]);
            collective.submesh = Some(Submesh::repeated(&five, 1, 1, 5));
        }
    });
    // Eight ranks of 2^62 flops are more than 64 bits hold.
    let mut program = lines(8, 2);
    for body in &mut program.bodies {
        for buffer in [X, Y] {
            body.buffers[buffer as usize].dims = [1, 1, 1, 1 << 24, 1 << 22];
        }
        let view = |buffer| View {
            buffer: BufferId(buffer),
            start: [0; 5],
            extent: [1, 1, 1, 1 << 24, 1 << 22],
        };
        if let Work::Compute { kernel, .. } = &mut body.tasks[FORWARD].work
            && let Kernel::ConvolutionForward { x, y, taps, .. } = kernel
        {
            (*x, *y) = (view(X), view(Y));
            taps.kernel = [1; 3];
        }
    }
    assert_too_large(&program, "flops");
}

/// The program is refused for just this size, and can be told so without `verify`.
fn assert_too_large(program: &Program, size: &str) {
    let Faults(found) = verify(program).expect_err("a size is too large");
    let is_it =
        |fault: &Fault| matches!(fault, Fault::Size(SizeFault { what, .. }) if *what == size);
    assert!(
        found.iter().all(|fault| matches!(fault, Fault::Size(_))),
        "{found:#?}"
    );
    assert!(found.iter().any(is_it), "{size}: {found:#?}");
    assert_eq!(
        program
            .check_sizes()
            .expect_err("a size is too large")
            .0
            .len(),
        found.len()
    );
}
