//! Reading, printing, lowering and verifying take about four times the instructions for what is four times
//! as large; what grows with the square takes sixteen times as many.
//!
//! Instructions are counted by valgrind's tool callgrind, so the counts do not depend on what else the
//! machine does. Where valgrind is missing, the tests say so and count nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod request;

use partita_graph::{Graph, count, text};
use partita_lower::{Request, Strategy, lower};
use partita_program::{Algorithm, Choice, KernelShape, Menu, MenuError};
use partita_space::Bytes;
use partita_testkit::{not_run, verify};
use request::request;
use std::env;
use std::fmt::Write;
use std::io::ErrorKind;
use std::process::Command;

/// Offers every kernel, fused ones too.
struct Everything;

impl Menu for Everything {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm("any".to_owned()),
            workspace: Bytes(0),
            packed_weights: 0,
        })
    }
}

/// Work of a size, counted in a process of its own.
struct Case {
    name: &'static str,
    /// The smaller size; the larger one is [`FACTOR`] times that.
    size: usize,
    work: fn(usize),
}

const CASES: [Case; 6] = [
    Case {
        name: "texts of models",
        size: 1000,
        work: texts,
    },
    Case {
        name: "chains of activations",
        size: 100,
        work: activations,
    },
    Case {
        name: "chains of convolutions",
        size: 50,
        work: convolutions,
    },
    Case {
        name: "sums over sums",
        size: 50,
        work: sums,
    },
    Case {
        name: "micro-batches",
        size: 100,
        work: micro_batches,
    },
    Case {
        name: "micro-batches of a pipeline",
        size: 50,
        work: pipeline,
    },
];

const FACTOR: usize = 4;

/// How many times the instructions what is [`FACTOR`] times as large may take.
const RATIO_MAX: f64 = 5.0;

/// Tell the process that is counted which case and size to work on.
const CASE: &str = "PARTITA_GROWTH_CASE";
const SIZE: &str = "PARTITA_GROWTH_SIZE";

/// What callgrind counts while a process does the work; `None` without valgrind.
fn instructions(case: &Case, size: usize) -> Option<u64> {
    let counted = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "instructions_grow_with_the_size"])
        .env(CASE, case.name)
        .env(SIZE, size.to_string())
        .output();
    let output = match counted {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        counted => counted.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", case.name);
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    Some(line.expect(&said).1.trim().parse().unwrap())
}

fn lowered(graph: &Graph, strategy: &str, batch: usize) {
    let strategy: Strategy = strategy.parse().unwrap();
    let program = lower(&Request {
        menu: &Everything,
        ..request(graph, &strategy, batch)
    });
    verify::verify(&program.unwrap()).unwrap();
}

fn model(layers: usize, mut layer: impl FnMut(usize, &str) -> String) -> Graph {
    let mut model = "model long\ninput x channels=1 extent=8\n".to_owned();
    model += "c = conv x filters=1 kernel=3 pad=1 bias=true\n";
    let mut last = "c".to_owned();
    for at in 0..layers {
        writeln!(model, "l{at} = {}", layer(at, &last)).unwrap();
        last = format!("l{at}");
    }
    writeln!(model, "loss = mse {last}").unwrap();
    text::parse(&model).unwrap()
}

/// Activations, convolutions of which every second one shares the weights of the first, and auxiliary losses.
fn shared_and_auxiliary(layers: usize) -> String {
    let mut model = "model long\ninput x channels=1 extent=8\n".to_owned();
    let conv = "filters=1 kernel=3 pad=1 bias=false";
    writeln!(model, "l0 = conv x {conv}").unwrap();
    for at in 1..layers {
        let last = format!("l{}", at - 1);
        match at % 4 {
            0 => writeln!(model, "l{at} = conv {last} {conv}").unwrap(),
            2 => writeln!(
                model,
                "l{at} = conv {last} {conv} weight=l{}.weight",
                at - 2
            )
            .unwrap(),
            _ => {
                writeln!(model, "l{at} = relu {last}").unwrap();
                writeln!(model, "aux{at} = mse {last} weight=0.1").unwrap();
            }
        }
    }
    writeln!(model, "loss = mse l{}", layers - 1).unwrap();
    model
}

fn texts(layers: usize) {
    let model = shared_and_auxiliary(layers);
    let graph = text::parse(&model).unwrap();
    assert_eq!(count(&graph).layers.len(), graph.nodes.len());
    assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph);
}

fn activations(layers: usize) {
    let graph = model(layers, |_, last| format!("relu {last}"));
    lowered(&graph, "width=2", 1);
}

fn convolutions(layers: usize) {
    let conv = "filters=1 kernel=3 pad=1 bias=true";
    let graph = model(layers, |_, last| format!("conv {last} {conv}"));
    lowered(&graph, "width=2", 1);
}

fn sums(layers: usize) {
    let sum = |at: usize, last: &str| match at % 2 {
        0 => format!("conv {last} filters=1 kernel=3 pad=1 bias=false"),
        _ if at < 3 => format!("add c {last}"),
        _ => format!("add l{} {last}", at - 3),
    };
    lowered(&model(layers, sum), "width=2", 1);
}

fn micro_batches(micro: usize) {
    let graph = model(1, |_, last| format!("relu {last}"));
    lowered(&graph, &format!("width=2,micro={micro}"), 2 * micro);
}

fn pipeline(micro: usize) {
    let graph = model(1, |_, last| format!("relu {last}"));
    let strategy = format!("stages=[width=2|1],schedule=1f1b,micro={micro}");
    lowered(&graph, &strategy, micro);
}

/// Calls itself under valgrind with a case to work on.
#[test]
fn instructions_grow_with_the_size() {
    if let (Ok(name), Ok(size)) = (env::var(CASE), env::var(SIZE)) {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        return (case.work)(size.parse().unwrap());
    }
    for case in &CASES {
        let sizes = [case.size, FACTOR * case.size];
        let [Some(small), Some(large)] = sizes.map(|size| instructions(case, size)) else {
            return not_run(
                "instructions_grow_with_the_size",
                "valgrind is missing (Debian: apt-get install valgrind)",
            );
        };
        let ratio = large as f64 / small as f64;
        let text = format!(
            "{} {sizes:?}: {small} and {large} instructions, {ratio:.1} times as many",
            case.name
        );
        eprintln!("{text}");
        assert!(ratio < RATIO_MAX, "{text}");
    }
}
