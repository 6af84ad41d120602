//! Weights packed once per step give what kernels give that pack them at every call.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_cluster::Machine;
use partita_cpu::{CpuKernels, CpuMenu, Level, Team};
use partita_graph::{Graph, text};
use partita_lower::Strategy;
use partita_oracle::{MachineCosts, Mode, simulate};
use partita_program::{
    Body, Choice, Direction, Dtype, Kernel, KernelShape, Menu, MenuError, Optimizer, Program,
    ProgramKind, TaskId, Work,
};
use partita_run::Kernels;
use partita_space::{Mesh, Rank};
use partita_testkit::{Setup, random_case, run, test_levels};

/// Convolutions of several tiles of filters, with what may end them, in pieces and with weights that
/// two layers share.
const MODEL: &str = "model pieces
input x channels=3 extent=12x6x5
c1 = conv x filters=20 kernel=3 stride=1 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
c2 = conv a1 filters=72 kernel=3 stride=1 pad=1 bias=false
b2 = batch_norm c2 epsilon=1e-3 momentum=0.1
a2 = relu b2
c3 = conv a2 filters=72 kernel=3x1x1 stride=1 pad=1x0x0 bias=true groups=2
c4 = conv c3 filters=72 kernel=3x1x1 stride=1 pad=1x0x0 bias=true groups=2 weight=c3.weight
s4 = add c4 c3
p4 = max_pool s4 kernel=2 stride=2
f = flatten p4
fc = linear f features=3 bias=true
loss = mse fc
";

/// The kernels as they are when no weights are packed for them.
struct Alone(CpuMenu);

impl Menu for Alone {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let choice = self.0.choose(shape)?;
        Ok(Choice {
            packed_weights: 0,
            ..choice
        })
    }
}

fn menus() -> Vec<CpuMenu> {
    let menu = |level| [1, 2].map(|threads| CpuMenu { threads, level });
    test_levels().into_iter().flat_map(menu).collect()
}

fn setup<'a>(
    graph: &'a Graph,
    strategy: Strategy,
    menu: &'a dyn Menu,
    kernels: &'a (dyn Fn(Mesh, Rank) -> Box<dyn Kernels> + Sync),
) -> Setup<'a> {
    let (samples, parameters) = Setup::draw(graph, 2, 5);
    Setup {
        graph,
        strategy,
        dtype: Dtype::F32,
        menu,
        kernels,
        optimizer: Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 0.01,
        },
        decay_norms: true,
        ema: None,
        clip: None,
        learning_rate: 0.01,
        loss_scale: None,
        samples,
        parameters,
        steps: 3,
        seed: 5,
    }
}

/// Directions in which each rank class packs weights.
fn packed(program: &Program) -> Vec<Vec<Direction>> {
    let direction = |body: &Body| {
        let works = body.tasks.iter().map(|task| &task.work);
        let kernels = works.filter_map(|work| match work {
            Work::Compute {
                kernel: Kernel::PackWeights { direction, .. },
                ..
            } => Some(*direction),
            Work::Compute { .. }
            | Work::Exchange(_)
            | Work::Collective(_)
            | Work::Load(_)
            | Work::Store(_) => None,
        });
        kernels.collect()
    };
    program.bodies.iter().map(direction).collect()
}

#[test]
fn results_are_those_of_kernels_that_pack_for_themselves() {
    let graph = text::parse(MODEL).unwrap();
    for menu in menus() {
        let kernels = |mesh: Mesh, rank: Rank| -> Box<dyn Kernels> {
            let team = Team::new(menu.threads, menu.level).unwrap();
            Box::new(CpuKernels::new(mesh, rank, team))
        };
        for strategy in ["depth=2", "depth=2,height=2", "data=2,depth=2"] {
            let strategy: Strategy = strategy.parse().unwrap();
            let alone = Alone(menu);
            let with = setup(&graph, strategy.clone(), &menu, &kernels);
            let without = setup(&graph, strategy.clone(), &alone, &kernels);
            for directions in packed(&with.program(ProgramKind::Train).unwrap()) {
                let has = |direction| directions.contains(&direction);
                assert!(
                    has(Direction::Forward) && has(Direction::BackwardData),
                    "{menu:?} {strategy}: {directions:?}"
                );
            }
            let none = packed(&without.program(ProgramKind::Train).unwrap());
            assert!(none.iter().all(Vec::is_empty));
            // Counts are compared with the program's in every step of a run.
            let (with, without) = (run(&with).unwrap(), run(&without).unwrap());
            assert_eq!(with, without, "{menu:?} {strategy}");
            assert!(with.losses.iter().all(|loss| loss.is_finite()));
        }
    }
}

/// Where a random case packs, equality with the exact reference is shown by the tests of the kernels.
#[test]
fn random_cases_pack_too() {
    let menu = CpuMenu {
        threads: 1,
        level: Level::Portable,
    };
    let kernels = |_: Mesh, _: Rank| -> Box<dyn Kernels> { panic!("nothing runs") };
    let packing = (0..100).filter(|&seed| {
        let case = random_case(seed);
        let setup = setup(&case.graph, case.strategy, &menu, &kernels);
        let program = setup.program(ProgramKind::Train).unwrap();
        packed(&program).iter().any(|of_class| !of_class.is_empty())
    });
    assert!(packing.count() >= 10);
}

#[test]
fn a_program_with_packed_weights_is_simulated_and_needs_its_packing() {
    let norm = "batch_norm c2 epsilon=1e-3 momentum=0.1";
    let graph = text::parse(&MODEL.replace(norm, "leaky_relu c2 slope=0.2")).unwrap();
    let menu = menus()[0];
    let kernels = |_: Mesh, _: Rank| -> Box<dyn Kernels> { panic!("nothing runs") };
    let setup = setup(&graph, "depth=2".parse().unwrap(), &menu, &kernels);
    let program = setup.program(ProgramKind::Train).unwrap();
    let costs = MachineCosts::new(
        Machine::load("lassen", &[]).unwrap(),
        partita_cluster::Software::load("partita-cudnn", &[]).unwrap(),
    );
    let report = simulate(&program, &costs, Mode::Ranks, 2).unwrap();
    assert!(report.makespan.0 > 0.0);
    let body = &program.bodies[0];
    let mut refused = 0;
    for (id, task) in body.tasks.iter().enumerate() {
        if task.work.name() != "pack_weights" {
            continue;
        }
        let mut mutant = program.clone();
        let tasks = &mut mutant.bodies[0].tasks;
        tasks.remove(id);
        for task in tasks {
            task.after.retain(|other| other.0 as usize != id);
            let late = task.after.iter_mut().filter(|other| other.0 as usize > id);
            late.for_each(|other| *other = TaskId(other.0 - 1));
        }
        assert!(partita_verify::verify(&mutant).is_err(), "without t{id}");
        refused += 1;
    }
    assert!(refused >= 2, "{refused}");
}
