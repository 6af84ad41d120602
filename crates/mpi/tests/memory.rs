//! Ranks that are processes allocate what their programs specify, and nothing else in proportion to the model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use partita_mpi::{Collectives, Family, Library, LibrarySearch, World, WorldOptions};
use partita_program::Program;
use partita_space::Seconds;
use partita_testkit::{
    Case, CountedCase, CountingAllocator, not_run, random_case, random_layer_case,
    random_staged_case,
};
use std::process::{Command, Stdio, abort};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const RANKS: usize = 4;
/// Names the family of the launcher to the ranks that it starts.
const FAMILY: &str = "PARTITA_TEST_MPI_FAMILY";

/// By family, the launcher and its arguments.
const LAUNCHERS: [(&str, &str, &[&str]); 2] = [
    (
        "openmpi",
        "mpirun.openmpi",
        &["--oversubscribe", "--allow-run-as-root"],
    ),
    ("mpich", "mpirun.mpich", &[]),
];

#[test]
fn processes_allocate_what_their_programs_specify() {
    if let Ok(family) = std::env::var(FAMILY) {
        // A rank that this test has started.
        return run_cases(&family);
    }
    for (family, program, arguments) in LAUNCHERS {
        let mut command = Command::new(program);
        command.args(arguments).args(["-n", &RANKS.to_string()]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--nocapture", "--test-threads=1"]);
        command.env(FAMILY, family).stdin(Stdio::null());
        match command.output() {
            Ok(output) => assert!(
                output.status.success(),
                "{program}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => {
                not_run(program, error);
            }
        }
    }
}

fn exit_on_timeout(what: &str) -> ! {
    eprintln!("{what}");
    abort()
}

fn run_cases(family: &str) {
    let family = match family {
        "openmpi" => Family::OpenMpi,
        "mpich" => Family::Mpich,
        other => panic!("no family: {other}"),
    };
    let wanted = LibrarySearch {
        family: Some(family),
        ..LibrarySearch::default()
    };
    let options = WorldOptions {
        limit: Seconds(60.0),
        on_timeout: Arc::new(|what| exit_on_timeout(what)),
    };
    let world = World::open(Library::load(&wanted).unwrap(), options).unwrap();
    assert_eq!(world.size(), RANKS);
    for draw in [random_case, random_layer_case, random_staged_case] {
        let cases = (0..).map(draw);
        let cases = cases.filter(|case: &Case| case.strategy.ranks() == RANKS);
        cases.take(6).for_each(|case| {
            check(&world, &case, Collectives::Ordered);
            check(&world, &case, Collectives::Library);
        });
    }
    world.close().unwrap();
}

fn check(world: &World, case: &Case, collectives: Collectives) {
    let (counted, rank) = (CountedCase::new(case), world.rank());
    let programs: Vec<&Program> = counted.programs().iter().collect();
    let cancel = AtomicBool::new(false);
    let mesh = programs[1].mesh;
    let before = ALLOCATOR.reset();
    let transport = world.transport(mesh, &programs, collectives, Seconds(0.0), &cancel);
    let transport = Box::new(transport.unwrap());
    // Allocations of the rank's kernels and samples are not counted.
    let (own, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let of_transport = ALLOCATOR.peak_above(before);
    let barrier = || match own.fetch_add(1, Ordering::SeqCst) {
        0 => made.store(ALLOCATOR.reset(), Ordering::SeqCst),
        _ => made.store(
            ALLOCATOR.peak_above(made.load(Ordering::SeqCst)) as usize,
            Ordering::SeqCst,
        ),
    };
    let name = format!("seed {} {} {collectives:?}", case.seed, case.strategy);
    let played = counted.run(rank, transport, &cancel, &barrier);
    played.unwrap_or_else(|error| panic!("{name}: {error}"));
    let allocated = of_transport + made.load(Ordering::SeqCst) as u64;
    let (predicted, allowed) = (counted.predicted(rank).0, counted.allowance(rank).0);
    assert!(
        (predicted..=predicted + allowed).contains(&allocated),
        "{name}: rank {rank} holds {allocated}, {predicted} predicted, {allowed} allowed beside that"
    );
}
