//! Prints a random case.
use partita_program::{Dtype, ProgramKind};
use partita_testkit::{Setup, random_case, reference_kernels};
fn main() {
    let seed: u64 = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let case = random_case(seed);
    let kernels = reference_kernels(Dtype::F64);
    let setup = Setup::of_case(&case, &kernels);
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
