//! Weights of convolutions that are cut into pieces are packed once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::{Graph, text, zoo};
use partita_lower::{Request, SampleFormat, Strategy, lower};
use partita_program::{
    Algorithm, Body, Buffer, Choice, Direction, Dtype, Kernel, KernelShape, Menu, MenuError,
    Optimizer, Program, ProgramKind, Role, Transform, View, Work,
};
use partita_space::Bytes;
use partita_testkit::verify;
use request::request;
use std::collections::BTreeMap;

/// Fuses everything, and packs the weights of convolutions with this many outputs per sample.
struct Packer {
    outputs: usize,
}

fn is_packed(view: &View, buffers: &[Buffer]) -> bool {
    buffers[view.buffer.0 as usize].role == Role::PackedWeights
}

impl Menu for Packer {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let first = &shape.kernel.parts()[0];
        let (w, out) = if let Kernel::ConvolutionForward { w, y: out, .. }
        | Kernel::ConvolutionBackwardData { w, dx: out, .. } = first
        {
            (Some(w), out.volume())
        } else {
            (None, 0)
        };
        let plain = w.filter(|w| out >= self.outputs && !is_packed(w, shape.buffers));
        let elements = plain.map_or(0, |w| w.volume().next_multiple_of(16));
        Ok(Choice {
            algorithm: Algorithm("any".to_owned()),
            workspace: Bytes(4 * elements as u64),
            packed_weights: elements,
        })
    }
}

fn program(graph: &Graph, strategy: &str, kind: ProgramKind, menu: &dyn Menu) -> Program {
    let strategy: Strategy = strategy.parse().unwrap();
    let request = Request {
        kind,
        optimizer: Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
        samples: SampleFormat {
            dtype: Dtype::I16,
            transform: Transform::LogOnePlus,
        },
        menu,
        ..request(graph, &strategy, 1)
    };
    let program = lower(&request).unwrap();
    let found = verify::verify(&program);
    assert!(found.is_ok(), "{strategy}: {}", found.unwrap_err());
    program
}

fn kernels(body: &Body) -> impl Iterator<Item = (usize, &Kernel, Option<&View>)> {
    let tasks = body.tasks.iter().enumerate();
    tasks.filter_map(|(id, task)| match &task.work {
        Work::Compute {
            kernel, workspace, ..
        } => Some((id, kernel, workspace.as_ref())),
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
    })
}

/// The weights of a convolution forward or backward to the data.
fn weights(kernel: &Kernel) -> Option<(Direction, &View)> {
    let first = &kernel.parts()[0];
    if let Kernel::ConvolutionForward { w, .. } = first {
        Some((Direction::Forward, w))
    } else if let Kernel::ConvolutionBackwardData { w, .. } = first {
        Some((Direction::BackwardData, w))
    } else {
        None
    }
}

/// Names of weights with the direction and the number of convolutions that share what is packed.
fn packings(body: &Body) -> BTreeMap<(String, bool), usize> {
    let mut packings = BTreeMap::new();
    for (id, kernel, workspace) in kernels(body) {
        let Kernel::PackWeights {
            w,
            packed,
            direction,
            ..
        } = kernel
        else {
            continue;
        };
        assert_eq!(workspace, None);
        let users: Vec<_> = kernels(body)
            .filter(|(_, user, _)| weights(user) == Some((*direction, packed)))
            .collect();
        for (user, kernel, workspace) in &users {
            assert!(*user > id, "t{user} comes before t{id}");
            assert_eq!(*workspace, None, "{} packs no more", kernel.name());
        }
        assert_eq!(users[0].0, id + 1, "packed right before the first");
        let key = (
            body.buffer(w.buffer).name.clone(),
            *direction == Direction::Forward,
        );
        assert_eq!(packings.insert(key, users.len()), None, "packed once");
    }
    packings
}

#[test]
fn each_convolution_in_pieces_packs_once() {
    let graph = zoo::build("cosmoflow@64").unwrap();
    for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
        let program = program(&graph, "depth=2", kind, &Packer { outputs: 0 });
        for body in &program.bodies {
            let mut pieces: BTreeMap<(String, bool), usize> = BTreeMap::new();
            for (_, kernel, _) in kernels(body) {
                if let Some((direction, w)) = weights(kernel) {
                    let name = body.buffer(w.buffer).name.clone();
                    let name = name.trim_end_matches(".packed").to_owned();
                    *pieces
                        .entry((name, direction == Direction::Forward))
                        .or_default() += 1;
                }
            }
            pieces.retain(|_, count| *count > 1);
            assert!(pieces.len() >= 3, "{pieces:?}");
            assert_eq!(packings(body), pieces);
        }
    }
}

#[test]
fn what_is_packed_once_anyway_stays_as_it_is() {
    let graph = zoo::build("cosmoflow@64").unwrap();
    let menu = Packer { outputs: 0 };
    for strategy in ["data=1", "depth=2,overlap=off", "depth=2,fuse=off"] {
        let program = program(&graph, strategy, ProgramKind::Train, &menu);
        for body in &program.bodies {
            assert!(packings(body).is_empty(), "{strategy}");
        }
    }
}

#[test]
fn pieces_that_take_plain_weights_do_not_count() {
    let graph = zoo::build("cosmoflow@64").unwrap();
    // Interiors pack, borders do not.
    let planes = 64 * 64 * 16 * 2;
    let program = program(
        &graph,
        "depth=2",
        ProgramKind::Train,
        &Packer { outputs: planes },
    );
    for body in &program.bodies {
        assert!(packings(body).is_empty());
        let mut all = kernels(body)
            .filter_map(|(_, kernel, workspace)| weights(kernel).map(|_| workspace.is_some()));
        assert!(all.any(|packs| packs), "some pack for themselves");
    }
}

#[test]
fn convolutions_that_share_weights_share_them_packed_in_both_directions() {
    let graph = text::parse(
        "model twice
input x channels=2 extent=6x6
c0 = conv x filters=4 kernel=3 stride=1 pad=1 bias=false
c1 = conv c0 filters=4 kernel=3 stride=1 pad=1 bias=true
c2 = conv c1 filters=4 kernel=3 stride=1 pad=1 bias=true weight=c1.weight
c3 = conv c2 filters=4 kernel=3 stride=1 dilation=2 pad=2 bias=true weight=c1.weight
loss = mse c3
",
    )
    .unwrap();
    let program = program(&graph, "data=1", ProgramKind::Train, &Packer { outputs: 0 });
    let expected = [
        (("c1.weight".to_owned(), false), 2),
        (("c1.weight".to_owned(), true), 2),
    ];
    // Another window may be packed in another way.
    assert_eq!(packings(&program.bodies[0]), BTreeMap::from(expected));
}

/// Packs at every call.
struct Alone;

impl Menu for Alone {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let choice = Packer { outputs: 0 }.choose(shape)?;
        Ok(Choice {
            packed_weights: 0,
            ..choice
        })
    }
}

#[test]
fn packed_weights_live_from_packing_to_the_last_piece() {
    let graph = zoo::build("cosmoflow@64").unwrap();
    let shared = Packer { outputs: 0 };
    let programs: [Program; 2] = [&shared as &dyn Menu, &Alone]
        .map(|menu| program(&graph, "depth=2", ProgramKind::Train, menu));
    for (with, without) in programs[0].bodies.iter().zip(&programs[1].bodies) {
        let packed = with.buffers.iter();
        let packed = packed.filter(|buffer| buffer.role == Role::PackedWeights);
        let bytes: Vec<u64> = packed.map(|buffer| buffer.bytes().0).collect();
        println!("{:?} {} {}", bytes, with.arena, without.arena);
        assert!(bytes.len() > 1 && with.arena <= without.arena);
    }
}
