//! How long lowering takes for chains of residual blocks: `chain [BLOCKS]...`.
#![allow(clippy::unwrap_used, reason = "a tool for measurements")]

use partita_graph::text;
use partita_lower::{Request, SampleFormat, lower};
use partita_program::{
    Algorithm, Choice, Dtype, KernelShape, Menu, MenuError, Optimizer, ProgramKind, Transform,
};
use partita_space::Bytes;
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

/// Each block adds a convolution with an activation to its input.
fn model(blocks: usize) -> String {
    let mut model = "model chain\ninput x channels=1 extent=8\n".to_owned();
    let mut last = "x".to_owned();
    for i in 0..blocks {
        let conv = "filters=1 kernel=3 stride=1 pad=1 bias=true";
        writeln!(model, "c{i} = conv {last} {conv}").unwrap();
        writeln!(model, "r{i} = relu c{i}").unwrap();
        writeln!(model, "s{i} = add {last} r{i}").unwrap();
        last = format!("s{i}");
    }
    writeln!(model, "loss = mse {last}").unwrap();
    model
}

fn main() {
    for blocks in std::env::args().skip(1) {
        let graph = text::parse(&model(blocks.parse().unwrap())).unwrap();
        let request = Request {
            graph: &graph,
            strategy: &"width=2".parse().unwrap(),
            batch: 1,
            kind: ProgramKind::Train,
            dtype: Dtype::F32,
            optimizer: Optimizer::Sgd {
                momentum: 0.9,
                weight_decay: 0.0,
            },
            decay_norms: true,
            ema: None,
            clip: Some(1.0),
            samples: SampleFormat {
                dtype: Dtype::F32,
                transform: Transform::Identity,
            },
            menu: &Everything,
        };
        let mut best = f64::INFINITY;
        let mut tasks = 0;
        for _ in 0..3 {
            let start = Instant::now();
            tasks = lower(&request).unwrap().bodies[0].tasks.len();
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!(
            "{blocks} blocks, {} layers, {tasks} tasks: {best:.4} s",
            graph.nodes.len()
        );
    }
}
