//! Norms of whole parameters for LARS and LAMB, where ranks hold parts of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::request;

use partita_graph::text;
use partita_lower::{Request, Strategy, lower};
use partita_program::{Kernel, Optimizer, Program, Work};
use partita_testkit::verify::{self, Fault};
use request::request;

/// Weights, biases, and the scale and shift of a norm.
const MODEL: &str = "model tower
input x channels=4 extent=8x8
c1 = conv x filters=8 kernel=3 pad=1 bias=true
n1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = relu n1
f = flatten a1
l = linear f features=6 bias=true
loss = mse l
";

const LARS: Optimizer = Optimizer::Lars {
    momentum: 0.9,
    weight_decay: 1e-4,
    trust: 1e-3,
    epsilon: 0.0,
};
const LAMB: Optimizer = Optimizer::Lamb {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-6,
    weight_decay: 1e-2,
};

fn program(optimizer: Optimizer, strategy: &str, decay_norms: bool) -> Program {
    let graph = text::parse(MODEL).unwrap();
    let strategy: Strategy = strategy.parse().unwrap();
    lower(&Request {
        optimizer,
        decay_norms,
        ema: None,
        ..request(&graph, &strategy, 8)
    })
    .unwrap()
}

/// Faults but for open kernels.
fn faults(program: &Program) -> Vec<Fault> {
    let Err(verify::Faults(mut faults)) = verify::verify(program) else {
        return Vec::new();
    };
    faults.retain(|fault| !matches!(fault, Fault::Unpinned { .. }));
    faults
}

fn kernels(program: &Program) -> Vec<&Kernel> {
    let tasks = program.bodies[0].tasks.iter();
    tasks.flat_map(|task| task.work.kernels()).collect()
}

fn sums_of_norms(program: &Program) -> usize {
    let tasks = program.bodies[0].tasks.iter();
    let are_norms = |work: &Work| matches!(work, Work::Collective(_));
    tasks
        .filter(|task| task.origin.layer == "trust_norms" && are_norms(&task.work))
        .count()
}

#[test]
fn norms_are_summed_where_parameters_are_split() {
    for optimizer in [LARS, LAMB] {
        for (strategy, sums) in [
            ("data=2", 0),
            ("depth=1,height=2", 0),
            ("filter=2", 1),
            ("data=2,shard=optimizer", 1),
            ("data=2,shard=parameters", 1),
        ] {
            let program = program(optimizer, strategy, false);
            let found = faults(&program);
            assert!(found.is_empty(), "{strategy}: {found:?}");
            assert_eq!(sums_of_norms(&program), sums, "{strategy}");
        }
    }
}

/// The proof notices a ratio of local norms.
#[test]
fn norms_of_parts_alone_are_refused() {
    let mut program = program(LARS, "filter=2", false);
    for body in &mut program.bodies {
        for task in &mut body.tasks {
            if task.origin.layer == "trust_norms"
                && let Work::Collective(collective) = &mut task.work
            {
                let partita_program::CollectiveKind::AllReduce { views } = &mut collective.kind
                else {
                    continue;
                };
                views.clear();
            }
        }
    }
    let found = faults(&program);
    let is_partial = |fault: &Fault| matches!(fault, Fault::PartialSumRead { .. });
    assert!(found.iter().any(is_partial), "{found:?}");
}

#[test]
fn biases_and_norms_may_be_exempt_from_decay_and_ratio() {
    for (optimizer, decay_norms, measured) in [(LARS, false, 2), (LARS, true, 6), (LAMB, false, 2)]
    {
        let program = program(optimizer, "data=2", decay_norms);
        let kernels = kernels(&program);
        let norms = kernels
            .iter()
            .filter(|kernel| matches!(kernel, Kernel::UpdateNorms { .. }));
        assert_eq!(norms.count(), measured, "{optimizer:?}");
        let updates = kernels.iter().filter_map(|kernel| match kernel {
            Kernel::Update { rule, norms, .. } => Some((rule, norms)),
            _ => None,
        });
        let updates: Vec<_> = updates.collect();
        assert_eq!(updates.len(), 6);
        for (rule, norms) in updates {
            let expected = if norms.is_some() {
                optimizer
            } else {
                optimizer.without_decay()
            };
            assert_eq!(*rule, expected);
        }
    }
}
