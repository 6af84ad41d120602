//! Prints a random case.
use partita_local::ReferenceMenu;
use partita_program::{Dtype, Optimizer, ProgramKind};
use partita_testkit::{Setup, random_case, reference_kernels};
fn main() {
    let seed: u64 = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let case = random_case(seed);
    let (samples, parameters) = Setup::draw(&case.graph, case.batch, seed);
    let kernels = reference_kernels(Dtype::F64);
    let setup = Setup {
        graph: &case.graph,
        strategy: case.strategy,
        dtype: Dtype::F64,
        menu: &ReferenceMenu,
        kernels: &kernels,
        optimizer: Optimizer::Sgd {
            momentum: 0.5,
            weight_decay: 0.01,
        },
        clip: seed.is_multiple_of(3).then_some(0.5),
        learning_rate: 0.1,
        samples,
        parameters,
        steps: 3,
        seed,
    };
    println!(
        "{} batch {}\n{}",
        case.strategy,
        case.batch,
        partita_graph::text::print(&case.graph)
    );
    println!(
        "{}",
        setup
            .program(ProgramKind::Train)
            .expect("a case can be lowered")
            .to_text()
    );
}
