//! Upsampling, padding and adaptive poolings: shapes, texts and refusals.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{
    Graph, GraphBuilder, Interpolation, Op, PadMode, ParameterRole, PoolKind, Resample, count, text,
};
use partita_space::Window;

fn model(line: &str) -> String {
    format!(
        "model m\ninput x channels=2 extent=4x6x8\nc = conv x filters=3 kernel=1 bias=true\n\
         {line}\nloss = mse d\n"
    )
}

fn check(line: &str, parts: &[&str]) {
    let error = text::parse(&model(line)).unwrap_err().to_string();
    for part in parts.iter().chain(&["line 4"]) {
        assert!(error.contains(part), "{line}: {error} lacks {part}");
    }
}

#[test]
fn what_is_not_possible_is_refused() {
    check("d = upsample c factor=0", &["`d`: factor=0", "help: try 1"]);
    check("d = upsample c", &["upsample", "factor"]);
    check("d = upsample c factor=2x2", &["3 dim(s)", "`factor=2x2x2`"]);
    check(
        "d = upsample c factor=2 mode=bilinear",
        &["nearest or linear", "`mode=linear`"],
    );
    check(
        "d = upsample c factor=2 align_corners=true",
        &[
            "align_corners=true",
            "unless mode=linear",
            "`align_corners=false`",
        ],
    );
    check(
        "d = upsample c factor=1x1x2000000000 mode=linear align_corners=true",
        &["factor=2000000000", "2^31 outputs", "help: try 268435456"],
    );
    check(
        "d = upsample c factor=2000000000",
        &["flop per sample are too many"],
    );
    check(
        "d = pad c pad=1x6:0x1 padding=reflect",
        &["`d`: reflect pad=6 along H", "extent 6", "help: try 5"],
    );
    check(
        "d = pad c pad=1 padding=periodic",
        &["zero, replicate or reflect", "padding"],
    );
    check(
        "d = conv c filters=1 kernel=9 pad=4 padding=reflect bias=true",
        &["`d.pad`: reflect pad=4 along D", "extent 4", "help: try 3"],
    );
    check(
        "d = adaptive_average_pool c output=0",
        &["`d`: output=0", "help: try 1"],
    );
    check(
        "d = global_max_pool c kernel=2",
        &["kernel", "none", "no key"],
    );
    check("d = global_average_pool", &["`d`"]);
}

/// A line that pads is printed as two, and read back as the same graph; parameters keep their names.
#[test]
fn padding_of_a_convolution_is_an_operation_before_it() {
    for mode in ["replicate", "reflect"] {
        let keys = "filters=2 kernel=3x5x1 stride=2x1x1 bias=true";
        let short = model(&format!("d = conv c pad=1:0x2x0 padding={mode} {keys}"));
        let long = model(&format!(
            "d.pad = pad c pad=1:0x2x0 padding={mode}\nd = conv d.pad {keys}"
        ));
        let [short, long] = [short, long].map(|text| text::parse(&text).unwrap());
        assert_eq!(short, long);
        assert_eq!(text::parse(&text::print(&short)).unwrap(), short);
        let names: Vec<&str> = short.parameters.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["c.weight", "c.bias", "d.weight", "d.bias"]);
        assert_eq!(short.parameters[2].role, ParameterRole::Weight);
        assert_eq!(short.nodes[2].shape.extent, [5, 10, 8]);
        assert_eq!(short.nodes[3].shape.extent, [2, 6, 8]);
    }
    // Lines after such a one are still named right.
    let text = model("d = conv c filters=1 kernel=3 pad=1 padding=reflect bias=true\ne = relu d");
    let error = text::parse(&text).unwrap_err().to_string();
    assert!(error.contains("line 5") && error.contains("`e`"), "{error}");
    // Nothing to pad, nothing before it.
    let text = model("d = conv c filters=1 kernel=1 padding=reflect bias=true");
    assert_eq!(text::parse(&text).unwrap().nodes.len(), 4);
}

#[test]
fn texts_of_resamplings_are_read_as_they_are_printed() {
    for (line, extent) in [
        ("upsample c factor=2 mode=nearest", [8, 12, 16]),
        (
            "upsample c factor=2x1x3 mode=linear align_corners=false",
            [8, 6, 24],
        ),
        (
            "upsample c factor=2 mode=linear align_corners=true",
            [8, 12, 16],
        ),
        ("adaptive_average_pool c output=3x4x5", [3, 4, 5]),
        ("adaptive_average_pool c output=8", [8, 8, 8]),
        ("pad c pad=1:2x0x3 padding=zero", [7, 6, 14]),
        ("pad c pad=3 padding=reflect", [10, 12, 14]),
        ("pad c pad=9x0x1:0 padding=replicate", [22, 6, 9]),
    ] {
        let graph = text::parse(&model(&format!("d = {line}"))).unwrap();
        assert_eq!(graph.nodes[2].shape.extent, extent, "{line}");
        let printed = text::print(&graph);
        assert!(printed.contains(&format!("d = {line}\n")), "{printed}");
        assert_eq!(text::parse(&printed).unwrap(), graph);
        assert_eq!(count(&graph).layers[2].forward_flops.0, 0, "{line}");
    }
}

fn pooling(graph: &Graph) -> (PoolKind, [Window; 3]) {
    match &graph.nodes[2].op {
        Op::Pool(pool) => (pool.kind, pool.window),
        other => panic!("{other:?} is no pooling"),
    }
}

/// They have the windows of ordinary poolings.
#[test]
fn adaptive_poolings_over_equal_tiles_are_poolings() {
    for (line, same) in [
        (
            "d = global_average_pool c",
            "d = average_pool c kernel=4x6x8 stride=4x6x8 count_padding=false",
        ),
        (
            "d = global_max_pool c",
            "d = max_pool c kernel=4x6x8 stride=4x6x8",
        ),
        (
            "d = adaptive_average_pool c output=2x6x1",
            "d = average_pool c kernel=2x1x8 stride=2x1x8 count_padding=false",
        ),
    ] {
        let [short, long] = [line, same].map(|line| text::parse(&model(line)).unwrap());
        let [(kind, window), fixed] = [&short, &long].map(pooling);
        assert_eq!((kind, window), fixed, "{line}");
        assert_eq!(text::parse(&text::print(&short)).unwrap(), short, "{line}");
    }
}

#[test]
fn dims_that_the_model_lacks_keep_their_extent() {
    let mut builder = GraphBuilder::new("m").unwrap();
    let x = builder.input("x", &[8, 8], 4).unwrap();
    for resample in [
        Resample::Upsample {
            factors: [2; 3],
            interpolation: Interpolation::Nearest,
        },
        Resample::AdaptiveAverage { outputs: [3; 3] },
        Resample::Pad {
            sides: [(0, 1), (0, 0), (0, 0)],
            mode: PadMode::Zero,
        },
    ] {
        let error = builder.resample("p", x, resample).unwrap_err().to_string();
        assert!(error.contains("`p` slides along D") && error.contains("2 spatial dim(s)"));
    }
    let tiles = Resample::AdaptiveAverage { outputs: [1, 4, 2] };
    let p = builder.resample("p", x, tiles).unwrap();
    assert_eq!(builder.shape(p).extent, [1, 4, 2]);
    let loss = partita_graph::Loss::MeanSquaredError;
    builder.loss("loss", p, loss).unwrap();
    assert!(matches!(builder.build().unwrap().nodes[1].op, Op::Pool(_)));
}
