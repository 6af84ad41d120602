//! A world in a process where another library has initialized MPI, as mpi4py does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_os = "linux")]

use libloading::os::unix::Library as Object;
use partita_mpi::{Family, Library, LibrarySearch, World, WorldError, WorldOptions};
use partita_space::Seconds;
use partita_testkit::not_run;
use std::ffi::{c_int, c_void};
use std::process::{Command, Stdio, abort};
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;

const RANKS: usize = 2;
/// Names the family of the launcher and the level of threads to the ranks that it starts.
const RANK: &str = "PARTITA_TEST_MPI_INITIALIZED";
/// Index of the level of threads of one thread, and of any thread at a time.
const LEVELS: [usize; 2] = [1, 2];

/// The launcher of each family and its arguments.
const LAUNCHERS: [(&str, &[&str], Family); 2] = [
    (
        "mpirun.openmpi",
        &["--oversubscribe", "--allow-run-as-root"],
        Family::OpenMpi,
    ),
    ("mpirun.mpich", &[], Family::Mpich),
];

#[test]
fn a_world_neither_initializes_nor_finalizes_an_mpi_that_runs() {
    if let Ok(words) = std::env::var(RANK) {
        // A rank that this test has started.
        let numbers: Vec<usize> = words.split(' ').map(|it| it.parse().unwrap()).collect();
        return as_rank(LAUNCHERS[numbers[0]].2, numbers[1]);
    }
    for (index, (program, arguments, _)) in LAUNCHERS.into_iter().enumerate() {
        for level in LEVELS {
            let mut command = Command::new(program);
            command.args(arguments).args(["-n", &RANKS.to_string()]);
            command.arg(std::env::current_exe().unwrap());
            // In the threads of a test harness no one is the first of the process.
            command.args(["--nocapture", "--test-threads=1"]);
            command.env(RANK, format!("{index} {level}"));
            match command.stdin(Stdio::null()).output() {
                Ok(output) => assert!(
                    output.status.success(),
                    "{program}, level {level}: {}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                ),
                Err(error) => {
                    not_run(program, error);
                }
            }
        }
    }
}

fn open(search: &LibrarySearch) -> Result<World, WorldError> {
    let options = WorldOptions {
        limit: Seconds(60.0),
        on_timeout: Arc::new(|what| {
            eprintln!("{what}");
            abort()
        }),
    };
    World::open(Library::load(search).unwrap(), options)
}

/// Initializes MPI as another library would, opens worlds, and finalizes MPI.
fn as_rank(family: Family, level: usize) {
    let wanted = LibrarySearch {
        family: Some(family),
        ..LibrarySearch::default()
    };
    let library = Library::load(&wanted).unwrap();
    let (file, levels) = (
        library.file.clone(),
        library.family.constants().thread_levels,
    );
    drop(library);
    let mut provided: c_int = -1;
    // SAFETY: the signatures are those of the standard.
    let (init, finalize, is_finalized) = unsafe {
        let object = Object::new(&file).unwrap();
        type Init = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_int) -> c_int;
        type Flag = unsafe extern "C" fn(*mut c_int) -> c_int;
        let init = *object.get::<Init>(b"MPI_Init_thread").unwrap();
        let finalize = *object
            .get::<unsafe extern "C" fn() -> c_int>(b"MPI_Finalize")
            .unwrap();
        let is_finalized = *object.get::<Flag>(b"MPI_Finalized").unwrap();
        std::mem::forget(object);
        (init, finalize, is_finalized)
    };
    // SAFETY: the standard allows null for both arguments of `main`.
    let code = unsafe { init(null_mut(), null_mut(), levels[level], &mut provided) };
    assert_eq!(code, 0);
    // Any family is found without a word on it: its library is loaded.
    let any = LibrarySearch::default();
    for _ in 0..2 {
        use_world(open(&any).unwrap());
    }
    let elsewhere = thread::spawn(move || open(&LibrarySearch::default()).map(use_world));
    let elsewhere = elsewhere.join().unwrap();
    if provided < levels[2] {
        assert!(matches!(elsewhere, Err(WorldError::Thread { .. })));
    } else {
        elsewhere.unwrap();
    }
    let mut flag = 1;
    // SAFETY: as above; no world is left.
    unsafe {
        assert_eq!((is_finalized(&mut flag), flag), (0, 0));
        assert_eq!(finalize(), 0);
    }
    assert_eq!(open(&any).err(), Some(WorldError::Finalized));
}

/// Uses a world, on another thread where that is allowed.
fn use_world(world: World) {
    let work = |world: World| {
        assert_eq!(world.size(), RANKS);
        assert_eq!(world.broadcast(b"of rank 0").unwrap(), b"of rank 0");
        let own = [world.rank() as u8];
        let all = world.gather(&own).unwrap();
        assert!(world.rank() > 0 || all == [[0], [1]]);
        world.close().unwrap();
    };
    if ["serialized", "multiple"].contains(&world.thread_level()) {
        thread::spawn(move || work(world)).join().unwrap();
    } else {
        work(world);
    }
}
