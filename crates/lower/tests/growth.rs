//! Reading, printing, lowering and verifying take about eight times as long for what is eight times as
//! large. What grows with the square takes sixty times as long; on a busy machine the times of one thread
//! stay within a third of that.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod request;

use partita_graph::{Graph, count, text};
use partita_lower::{Request, Strategy, lower};
use partita_program::{Algorithm, Choice, KernelShape, Menu, MenuError};
use partita_space::Bytes;
use partita_testkit::verify;
use request::request;
use std::fmt::Write;
use std::time::Instant;

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

/// How many times as long what is eight times as large may take.
const RATIO_MAX: f64 = 22.0;

/// Seconds that this thread has computed, or where the system does not tell, that have passed.
fn seconds(start: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat");
    let nanoseconds = stat
        .ok()
        .and_then(|stat| stat.split(' ').next()?.parse().ok());
    nanoseconds.map_or(start.elapsed().as_secs_f64(), |ns: f64| 1e-9 * ns)
}

fn least_seconds(work: impl Fn()) -> f64 {
    let start = Instant::now();
    let times = (0..2).map(|_| {
        let before = seconds(start);
        work();
        seconds(start) - before
    });
    times.fold(f64::INFINITY, f64::min)
}

fn check(what: &str, sizes: [usize; 2], work: impl Fn(usize)) {
    assert_eq!(sizes[1], 8 * sizes[0], "{what}");
    let [small, large] = sizes.map(|size| least_seconds(|| work(size)));
    let ratio = large / small;
    eprintln!("{what} {sizes:?}: {small:.3} s, {large:.3} s, {ratio:.1} times as long");
    assert!(
        ratio < RATIO_MAX,
        "{what} {sizes:?}: {ratio:.1} times as long"
    );
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

#[test]
fn reading_and_printing_grow_with_the_layers() {
    check("texts of models", [3_000, 24_000], |layers| {
        let model = shared_and_auxiliary(layers);
        let graph = text::parse(&model).unwrap();
        assert_eq!(count(&graph).layers.len(), graph.nodes.len());
        assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph);
    });
}

#[test]
fn lowering_grows_with_the_layers() {
    check("chains of activations", [400, 3200], |layers| {
        lowered(
            &model(layers, |_, last| format!("relu {last}")),
            "width=2",
            1,
        );
    });
    check("chains of convolutions", [100, 800], |layers| {
        let conv = "filters=1 kernel=3 pad=1 bias=true";
        lowered(
            &model(layers, |_, last| format!("conv {last} {conv}")),
            "width=2",
            1,
        );
    });
    check("sums over sums", [100, 800], |layers| {
        let sum = |at: usize, last: &str| match at % 2 {
            0 => format!("conv {last} filters=1 kernel=3 pad=1 bias=false"),
            _ if at < 3 => format!("add c {last}"),
            _ => format!("add l{} {last}", at - 3),
        };
        lowered(&model(layers, sum), "width=2", 1);
    });
}

#[test]
fn lowering_grows_with_the_micro_batches() {
    let graph = model(1, |_, last| format!("relu {last}"));
    check("micro-batches", [500, 4000], |micro| {
        lowered(&graph, &format!("width=2,micro={micro}"), 2 * micro);
    });
    check("micro-batches of a pipeline", [100, 800], |micro| {
        let strategy = format!("stages=[width=2|1],schedule=1f1b,micro={micro}");
        lowered(&graph, &strategy, micro);
    });
}
