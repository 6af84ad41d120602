//! Lowered programs of small cases, as text. `UPDATE=1 cargo test -p partita-lower` rewrites them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::menus;
use crate::request;

use menus::{Everything, Packer};
use partita_graph::text;
use partita_lower::{Request, SampleFormat, Strategy, lower};
use partita_program::{Dtype, Menu, Optimizer, Transform, UnpinnedMenu};
use request::request;
use std::path::Path;

const LINE: &str = "model line
input x channels=1 extent=8
c1 = conv x filters=2 kernel=3 stride=1 pad=1 bias=true
a1 = leaky_relu c1 slope=0.1
p1 = max_pool a1 kernel=3 stride=2 pad=1
f = flatten p1
fc = linear f features=2 bias=false
loss = mse fc
";

const IMAGE: &str = "model image
input x channels=2 extent=6x6
c1 = conv x filters=2 kernel=3 stride=1 pad=1 bias=false
b1 = batch_norm c1 epsilon=1e-5 momentum=0.1
a1 = relu b1
c2 = conv a1 filters=3 kernel=3 stride=1 pad=1 bias=false
loss = softmax_cross_entropy c2
";

const GROWING: &str = "model growing
input x channels=1 extent=5
c1 = conv x filters=3 kernel=2 stride=2 pad=0:1 bias=false
u1 = conv_transpose c1 filters=2 kernel=3 stride=2 pad=1 output_padding=1 bias=true
a1 = relu u1
loss = mse a1
";

const LEVELS: &str = "model levels
input x channels=1 extent=6
e = conv x filters=2 kernel=3 pad=1 bias=true
a = relu e
p = max_pool a kernel=2 stride=2
u = conv_transpose p filters=3 kernel=2 stride=2 bias=true
k = concat a u
c = conv k filters=2 kernel=1 bias=false
loss = mse c
";

fn check(name: &str, model: &str, strategy: &str, batch: usize, menu: &dyn Menu) {
    let graph = text::parse(model).unwrap();
    let strategy: Strategy = strategy.parse().unwrap();
    let request = Request {
        optimizer: Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
        samples: SampleFormat {
            dtype: Dtype::I16,
            transform: Transform::LogOnePlus,
        },
        menu,
        ..request(&graph, &strategy, batch)
    };
    let got = lower(&request).unwrap().to_text();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (got, expected)) in got.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "line {} of {name}", number + 1);
    }
    assert_eq!(
        got.lines().count(),
        expected.lines().count(),
        "lines of {name}"
    );
}

#[test]
fn a_line_over_two_ranks() {
    check("line-width2", LINE, "width=2", 1, &UnpinnedMenu);
}

#[test]
fn a_line_over_samples() {
    check("line-data2", LINE, "data=2", 3, &UnpinnedMenu);
}

#[test]
fn an_image_over_tiles() {
    check(
        "image-height2-width2",
        IMAGE,
        "height=2,width=2",
        1,
        &UnpinnedMenu,
    );
}

#[test]
fn a_growing_line_over_two_ranks() {
    check("growing-width2", GROWING, "width=2", 1, &UnpinnedMenu);
}

#[test]
fn levels_over_two_ranks() {
    check(
        "levels-width2",
        LEVELS,
        "width=2,fuse=off",
        1,
        &UnpinnedMenu,
    );
}

#[test]
fn levels_over_two_ranks_with_fused_kernels() {
    check("levels-width2-fused", LEVELS, "width=2", 1, &Everything);
}

#[test]
fn a_line_over_two_ranks_with_fused_kernels() {
    check("line-width2-fused", LINE, "width=2", 1, &Everything);
}

#[test]
fn an_image_over_tiles_with_fused_kernels() {
    let strategy = "height=2,width=2";
    check(
        "image-height2-width2-fused",
        IMAGE,
        strategy,
        1,
        &Everything,
    );
}

#[test]
fn a_line_over_two_ranks_with_packed_weights() {
    check("line-width2-packed", LINE, "width=2", 1, &Packer);
}

#[test]
fn an_image_over_tiles_with_one_wide_halo() {
    let strategy = "height=2,width=2; c1..c2: halo=grouped";
    check(
        "image-height2-width2-grouped",
        IMAGE,
        strategy,
        1,
        &UnpinnedMenu,
    );
}

#[test]
fn a_line_over_two_stages() {
    check(
        "line-stages2",
        LINE,
        "micro=2,stages=[..a1: 1|p1..: 1],schedule=1f1b",
        2,
        &UnpinnedMenu,
    );
}
