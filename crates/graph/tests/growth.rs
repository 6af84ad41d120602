//! Reading and printing a model of eight times as many layers takes about eight times as long; what grows
//! with the square would take sixty times as long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{count, text};
use std::fmt::Write;
use std::time::Instant;

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

/// Activations, convolutions of which every second one shares the weights of the first, and auxiliary losses.
fn model(layers: usize) -> String {
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
    let [small, large] = [3_000, 24_000].map(|layers| {
        let model = model(layers);
        least_seconds(|| {
            let graph = text::parse(&model).unwrap();
            assert_eq!(count(&graph).layers.len(), graph.nodes.len());
            assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph);
        })
    });
    let ratio = large / small;
    assert!(
        ratio < RATIO_MAX,
        "{small:.3} s, {large:.3} s: {ratio:.1} times as long"
    );
}
