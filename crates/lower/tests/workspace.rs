//! Limits of the workspace of kernels.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::zoo;
use partita_lower::{Request, Strategy, lower};
use partita_program::{
    Algorithm, Choice, KernelShape, Menu, MenuError, Program, ProgramKind, Work,
};
use partita_space::Bytes;
use partita_testkit::verify;
use request::request;

/// Every kernel as `any` without workspace; convolutions were measured, and are the faster the more workspace they
/// have, up to a size that grows with their outputs.
struct Measured;

/// Workspaces that `Measured` offers, in halves of the largest.
const SIZES: u32 = 12;

impl Measured {
    fn most(shape: &KernelShape<'_>) -> Option<u64> {
        let extents = shape.cut_extents()?;
        Some(16 * extents.iter().product::<usize>() as u64)
    }
}

impl Menu for Measured {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm("any".to_owned()),
            workspace: Bytes(0),
            packed_weights: 0,
        })
    }

    fn fastest_within(&self, shape: &KernelShape<'_>, limit: Bytes) -> Option<Choice> {
        let most = Self::most(shape)?;
        let sizes = (0..SIZES).map(|halves| most >> halves);
        let workspace = sizes.filter(|&bytes| bytes <= limit.0).max()?;
        Some(Choice {
            algorithm: Algorithm(format!("with{workspace}")),
            workspace: Bytes(workspace),
            packed_weights: 0,
        })
    }

    fn divide(&self, shapes: &[KernelShape<'_>], total: Bytes) -> Vec<Option<Choice>> {
        let each = Bytes(total.0 / shapes.len() as u64);
        let choices = shapes.iter().map(|shape| self.fastest_within(shape, each));
        choices.collect()
    }
}

fn program(model: &str, batch: usize, strategy: &str, kind: ProgramKind) -> Program {
    let graph = zoo::build(model).unwrap();
    let strategy: Strategy = strategy.parse().unwrap();
    let request = Request {
        kind,
        menu: &Measured,
        ..request(&graph, &strategy, batch)
    };
    let program = lower(&request).unwrap();
    verify::verify(&program).unwrap();
    program
}

/// Workspaces of the kernels that were measured, and how many others there are that could have been.
fn workspaces(program: &Program) -> (Vec<u64>, usize) {
    let (mut measured, mut others) = (Vec::new(), 0);
    for body in &program.bodies {
        for task in &body.tasks {
            let Work::Compute {
                kernel,
                algorithm,
                workspace,
            } = &task.work
            else {
                continue;
            };
            let shape = KernelShape {
                kernel,
                buffers: &body.buffers,
            };
            if let Some(named) = algorithm.0.strip_prefix("with") {
                let bytes = body.buffer(workspace.unwrap().buffer).bytes().0;
                let named: u64 = named.parse().unwrap();
                assert_eq!(bytes, named.next_multiple_of(4));
                measured.push(bytes);
            } else if shape.cut_extents().is_some() {
                others += 1;
            }
        }
    }
    (measured, others)
}

/// `verify` proves that no two tasks race, and that memory is not overwritten before it is read.
#[test]
fn kernels_use_what_the_arena_leaves_free() {
    for (model, batch, strategy) in [
        ("cosmoflow@32", 2, "data=1"),
        ("cosmoflow@32", 2, "depth=2"),
        ("unet3d@32", 1, "height=2"),
        ("resnet50@64", 4, "data=2"),
        ("resnet50@64", 4, "stages=2,micro=2,schedule=1f1b"),
        ("vgg16@224", 4, "filter=2"),
    ] {
        for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
            let off = program(model, batch, &format!("{strategy},workspace=off"), kind);
            let live = program(model, batch, strategy, kind);
            assert_eq!(workspaces(&off).0, [0u64; 0], "{model} {strategy}");
            let arena = |program: &Program| -> Vec<Bytes> {
                program.bodies.iter().map(|body| body.arena).collect()
            };
            assert_eq!(arena(&live), arena(&off), "{model} {strategy}");
            let (measured, others) = workspaces(&live);
            assert!(
                measured.len() > others,
                "{model} {strategy}: {measured:?} {others}"
            );
            assert!(
                measured.iter().any(|&bytes| bytes > 1 << 16),
                "{model} {strategy}"
            );
        }
    }
}

#[test]
fn a_limit_holds_for_each_kernel_and_a_total_for_all() {
    let limit = 1 << 18;
    let kind = ProgramKind::Train;
    let each = program("resnet50@64", 4, "data=2,workspace=256KiB", kind);
    let (measured, others) = workspaces(&each);
    assert_eq!(others, 0);
    assert!(measured.iter().all(|&bytes| bytes <= limit));
    assert!(measured.iter().any(|&bytes| 2 * bytes > limit));
    let all = program("resnet50@64", 4, "data=2,workspace_total=64MiB", kind);
    let (measured, _) = workspaces(&all);
    let bodies = all.bodies.len() as u64;
    assert!(measured.len() > 100);
    assert!(measured.iter().sum::<u64>() <= bodies * (64 << 20));
}
