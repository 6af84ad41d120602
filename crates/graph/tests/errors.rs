//! Every kind of error, by what it says.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::{
    Convolution, GraphBuilder, GraphError, Initialization, Loss, NodeId, Op, ParameterId,
    ParameterRole, ParameterSource, Pool, PoolKind, text,
};
use partita_space::Window;

/// Parses `body` behind a model line, so that its first line is line 2.
fn refusal(body: &str) -> String {
    text::parse(&format!("model m\n{body}"))
        .unwrap_err()
        .to_string()
}

/// Refusal of `line` behind an input of 4 channels and 8x8x8 positions, and a convolution `c`.
fn refusal_of(line: &str) -> String {
    refusal(&format!(
        "input x channels=4 extent=8x8x8\nc = conv x filters=6 kernel=3 pad=1 bias=true\n{line}"
    ))
}

fn check(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

/// The line is refused with these words, as the layer `d` in line 4.
fn assert_refused(line: &str, parts: [&str; 3]) {
    let error = refusal_of(line);
    check(&error, &parts);
    check(&error, &["line 4", "`d`"]);
}

#[test]
fn convolutions_out_of_range() {
    for (line, parts) in [
        (
            "d = conv c filters=0 kernel=3 bias=false",
            ["filters=0", "1 to 2^31", "help: try 1"],
        ),
        (
            "d = conv c filters=2 kernel=0 bias=false",
            ["kernel=0", "1 to 2^31", "help: try 1"],
        ),
        (
            "d = conv c filters=2 kernel=1 stride=0 bias=false",
            ["stride=0", "1 to", "help: try 1"],
        ),
        (
            "d = conv c filters=2 kernel=1 dilation=0 bias=false",
            ["dilation=0", "1", "help: try 1"],
        ),
        (
            "d = conv c filters=2 kernel=1 groups=0 bias=false",
            ["groups=0", "1", "help: try 1"],
        ),
        (
            "d = conv c filters=2 kernel=1 pad=9999999999 bias=false",
            ["pad=9", "0 to", "2147483648"],
        ),
        (
            "d = conv c filters=2 kernel=1 bias=false init=normal:1e39",
            ["normal:1e39", "f32", "help: try 0"],
        ),
    ] {
        assert_refused(line, parts);
    }
}

#[test]
fn slopes_and_rates_out_of_range() {
    for (line, parts) in [
        (
            "d = leaky_relu c slope=-0.5",
            ["slope=-0.5", "at least 0", "help: try 0"],
        ),
        (
            "d = leaky_relu c slope=nan",
            ["slope=NaN", "at least 0", "help: try 0"],
        ),
        (
            "d = leaky_relu c slope=1e39",
            [
                "slope=1e39",
                "as f32 holds it",
                "help: try 3.4028234663852886e38",
            ],
        ),
        (
            "d = leaky_relu c slope=1e-60",
            ["slope=0.000", "as f32 holds it", "help: try 0"],
        ),
        (
            "d = dropout c rate=0.9999999999",
            ["rate=0.9999999999", "as f32 holds it", "help: try 0.99"],
        ),
        (
            "d = dropout c rate=1e-60",
            ["rate=0.000", "as f32 holds it", "help: try 0"],
        ),
        (
            "d = dropout c rate=1",
            ["rate=1", "below 1", "help: try 0.99"],
        ),
        (
            "d = dropout c rate=-1",
            ["rate=-1", "below 1", "help: try 0"],
        ),
        (
            "d = mse c weight=1e39",
            ["weight=1", "as f32 holds it", "help: try 1"],
        ),
    ] {
        assert_refused(line, parts);
    }
}

#[test]
fn batch_norms_out_of_range() {
    for (line, parts) in [
        (
            "d = batch_norm c epsilon=0 momentum=0.1",
            ["epsilon=0", "above 0", "0.00001"],
        ),
        (
            "d = batch_norm c epsilon=1e39 momentum=0.1",
            ["epsilon=1", "f32", "0.00001"],
        ),
        (
            "d = batch_norm c epsilon=1e-60 momentum=0.1",
            ["epsilon=0.000", "f32", "0.00001"],
        ),
        (
            "d = batch_norm c epsilon=1e-5 momentum=2",
            ["momentum=2", "0 to 1", "help: try 1"],
        ),
        (
            "d = batch_norm c epsilon=1e-5 momentum=1e-60",
            ["momentum=0.000", "as f32 holds it", "help: try 0"],
        ),
    ] {
        assert_refused(line, parts);
    }
}

#[test]
fn inputs_out_of_range() {
    check(
        &refusal("input x channels=0 extent=8"),
        &["line 2", "`x`", "channels=0"],
    );
    check(
        &refusal("input x channels=1 extent=8x0"),
        &["line 2", "`x`", "extent=0", "help: try 1"],
    );
}

#[test]
fn windows_and_groups() {
    check(
        &refusal_of("d = conv c filters=9 kernel=1 groups=4 bias=false"),
        &[
            "`d`: groups=4",
            "6 input channels",
            "9 filters",
            "possible values: 1, 3",
            "help: try 3",
        ],
    );
    check(
        &refusal_of("d = conv c filters=9 kernel=1x5x1 dilation=1x3x1 pad=0x1:2x0 bias=false"),
        &[
            "kernel 5",
            "spans 13 along H",
            "extent 8",
            "padding, 11",
            "kernels up to 4",
        ],
    );
    check(
        &refusal_of("d = max_pool c kernel=2 stride=2 pad=0x0:2x0"),
        &["`d`: pad=2 along H", "kernel 2", "0 to 1", "help: try 1"],
    );
    check(
        &refusal_of("d = conv c filters=2 kernel=9 pad=9 padding=periodic bias=false"),
        &["`d`: periodic pad=9 along D", "extent 8", "help: try 8"],
    );
    check(
        &refusal_of("d = flatten c\ne = flatten d\nf = max_pool e kernel=2 stride=1"),
        &["line 6", "kernel 2", "extent 1", "help: try 1"],
    );
}

#[test]
fn transposed_convolutions() {
    for (keys, parts) in [
        (
            "kernel=3 stride=2x2x1 output_padding=0x2x0",
            &[
                "output_padding=2 along H",
                "stride 2",
                "0 to 1",
                "help: try 1",
            ][..],
        ),
        (
            "kernel=3 output_padding=1",
            &["output_padding=1 along D", "dilation 1", "help: try 0"],
        ),
        (
            "kernel=2 pad=0x0x4:5",
            &["pad=4:5 along W", "9 outputs", "help: try pad=4"],
        ),
        (
            "kernel=1 groups=4",
            &["groups=4", "6 input channels", "3 filters", "help: try 3"],
        ),
        ("kernel=0", &["kernel=0", "1 to 2^31", "help: try 1"]),
        (
            "kernel=2 output_padding=-1",
            &[
                "output_padding=-1",
                "a whole number",
                "help: try `output_padding=0`",
            ],
        ),
        (
            "kernel=2 stride=2 outputpadding=1",
            &["conv_transpose has no key", "help: try `output_padding`"],
        ),
        (
            "kernel=2 padding=periodic",
            &["conv_transpose has no key `padding`", "output_padding"],
        ),
        (
            "kernel=2 stride=2147483648 dilation=2147483648",
            &["`d`", "are too many"],
        ),
    ] {
        let error = refusal_of(&format!("d = conv_transpose c filters=3 {keys} bias=true"));
        check(&error, parts);
        check(&error, &["line 4"]);
    }
    check(
        &refusal_of("d = conv_transposed c filters=3 kernel=2 bias=true"),
        &[
            "no operation `conv_transposed`",
            "help: try `conv_transpose`",
        ],
    );
    check(
        &refusal_of("d = conv_transpose c kernel=2 bias=true"),
        &["conv_transpose needs the key `filters`"],
    );
}

#[test]
fn concatenations() {
    for (line, parts) in [
        (
            "d = concat c",
            &["concat reads 2 tensors or more, 1 given", "help: try 2"][..],
        ),
        ("d = concat", &["2 tensors or more, 0 given"]),
        ("d = concat c y", &["no node `y`", "help: try `x`"]),
        (
            "d = concat c x axis=1",
            &["concat has no key `axis`", "none"],
        ),
        (
            "p = max_pool c kernel=2 stride=2\nd = concat c x p",
            &[
                "8x8x8 with 6 channels",
                "4x4x4 with 6",
                "help: try 8x8x8 for the latter",
            ],
        ),
        (
            "d = concats c x",
            &["no operation `concats`", "help: try `concat`"],
        ),
    ] {
        check(&refusal_of(line), parts);
    }
}

#[test]
fn shapes_that_do_not_fit() {
    check(
        &refusal_of("d = linear c features=3 bias=false"),
        &[
            "`d`: linear",
            "8x8x8 with 6 channels",
            "flatten",
            "3072 features",
        ],
    );
    check(
        &refusal_of("d = add c x"),
        &["8x8x8 with 6", "8x8x8 with 4", "1x1x1 convolution"],
    );
    check(
        &refusal_of("d = max_pool c kernel=2 stride=2\ne = add c d"),
        &[
            "line 5",
            "`e`",
            "4x4x4",
            "8x8x8",
            "the other side would need",
        ],
    );
    check(
        &refusal_of("d = add c"),
        &["`d`: add reads 2 tensor(s), 1 given"],
    );
    check(
        &refusal_of("d = flatten"),
        &["`d`: flatten reads 1 tensor(s), 0 given"],
    );
    check(
        &refusal("input x channels=2147483648 extent=2147483648"),
        &[
            "`x`",
            "4611686018427387904 elements",
            "up to 281474976710656",
        ],
    );
    check(
        &refusal(
            "input x channels=65536 extent=1\nc = conv x filters=2147483648 kernel=1000 pad=999 bias=false",
        ),
        &["`c`", "flop per sample", "up to"],
    );
    check(
        &refusal("input x channels=1 extent=8x8x8x8"),
        &["4 spatial dims", "help: try 3"],
    );
}

#[test]
fn names_and_order() {
    check(
        &refusal_of("c = relu x"),
        &["line 4", "`c` is the name", "`c_2`"],
    );
    check(
        &refusal_of("d = relu cc"),
        &["no node `cc`", "possible values: x, c", "help: try `c`"],
    );
    check(
        &refusal_of("d,e = relu c"),
        &["\"d,e\"", "_-./", "help: try `d_e`"],
    );
    check(
        &refusal_of("input y channels=1 extent=8"),
        &["`y` is a second input", "`x`"],
    );
    check(
        &refusal_of("l = mse c\nd = relu c"),
        &["line 5", "`d` comes after the loss `l`"],
    );
    check(
        &refusal_of("l = mse c\nk = mse c"),
        &["line 5", "`k` comes after the loss `l`"],
    );
    check(
        &refusal_of("d = relu c"),
        &["line 4", "`m` has no loss", "its last node, `d`"],
    );
    check(
        &refusal_of("d = relu c\n\ne = relu c\nl = mse e"),
        &["line 4", "nothing reads `d`", "`e`"],
    );
    check(&refusal("d = relu x"), &["line 2", "`d` has no input"]);
    check(&refusal(""), &["`m` has no input"]);
}

#[test]
fn auxiliary_losses() {
    let body = |lines: &str| refusal_of(&format!("a = mse c weight=0.5\n{lines}"));
    check(
        &refusal_of("a = mse c weight=0"),
        &["line 4", "weight=0", "finite and above 0", "help: try 1"],
    );
    check(
        &refusal_of("a = mse c weight=inf"),
        &["weight=inf", "help: try 1"],
    );
    check(
        &refusal_of("a = mse c weight=c.weight"),
        &["`weight=c.weight`", "a number"],
    );
    check(
        &refusal_of("a = mse c weight=0.4"),
        &["`m` has no loss without a weight", "`a`"],
    );
    check(
        &body("l = softmax_cross_entropy x"),
        &[
            "line 5",
            "`l` is the softmax_cross_entropy of 8x8x8 with 4 channels",
            "`a` is the mse of 8x8x8 with 6 channels",
            "help: try the mse",
        ],
    );
    check(
        &body("l = mse x"),
        &["mse of 8x8x8 with 4 channels", "mse of 8x8x8 with 6"],
    );
    check(
        &body("l = mse c"),
        &[
            "`l` reads `c`, of which `a` is a loss already",
            "another weight",
        ],
    );
    check(
        &body("d = relu a"),
        &["`d` reads the loss `a`", "help: try to read `c`"],
    );
    check(
        &refusal_of("l = mse c\nd = relu c"),
        &["auxiliary loss by giving it a weight"],
    );
}

#[test]
fn parameters() {
    let conv = "d = conv c filters=6 kernel=3 bias=false";
    check(
        &refusal_of(&format!("{conv} weight=c.weight")),
        &[
            "`d`: its weight 3x3x3x6x6",
            "`c.weight`, a weight 3x3x3x4x6",
            "one of its own",
        ],
    );
    check(
        &refusal_of(&format!("{conv} weight=c.bias")),
        &["`c.bias`, a bias", "help: try one of its own"],
    );
    check(
        &refusal_of(&format!("{conv} weight=c.wait")),
        &[
            "no parameter `c.wait`",
            "c.weight, c.bias",
            "help: try `c.weight`",
        ],
    );
    check(
        &refusal_of("d = conv x filters=6 kernel=3 bias=false weight=c.weight init=he_normal"),
        &["`init=he_normal`", "leave it out"],
    );
    check(
        &refusal_of("d = conv c filters=6 kernel=3 bias=true init_bias=he_normal"),
        &[
            "`d`: its bias",
            "he_normal",
            "a constant that f32 holds",
            "help: try 0",
        ],
    );
    check(
        &refusal_of("d = batch_norm c epsilon=1e-5 momentum=0.1 init_gamma=inf"),
        &["`d`: its gamma", "constant:inf", "help: try 1"],
    );
    check(
        &refusal_of(&format!("{conv} init_bias=1")),
        &["conv has no bias", "possible values: weight"],
    );
}

#[test]
fn the_form_of_a_text() {
    let first = |text: &str| text::parse(text).unwrap_err().to_string();
    check(&first(""), &["line 1", "`model NAME`"]);
    check(
        &first("# x\n\ninput x channels=1"),
        &["line 3", "\"input x channels=1\"", "model unnamed"],
    );
    check(&first("model a b"), &["line 1", "help: try `model a`"]);
    check(
        &first("model a=b"),
        &["line 1", "\"a=b\"", "help: try `a_b`"],
    );
    check(
        &refusal_of("d=relu c"),
        &["line 4", "help: try `d = relu c`"],
    );
    check(&refusal_of("relu c"), &["line 4", "no node"]);
    check(
        &refusal("input channels=1 extent=8"),
        &["help: try `input x channels=1 extent=8`"],
    );
    check(
        &refusal("input x y channels=1 extent=8"),
        &["help: try `input x channels=1 extent=8`"],
    );
    check(
        &refusal_of("d = cnov c"),
        &["operation `cnov`", "max_pool", "help: try `conv`"],
    );
    check(
        &refusal_of("d = relu c slope=1"),
        &["relu has no key `slope`", "none", "no key"],
    );
    check(
        &refusal_of("d = conv c filters=1 kernle=3 bias=true"),
        &[
            "conv has no key `kernle`",
            "filters, kernel, stride",
            "help: try `kernel`",
        ],
    );
    check(
        &refusal_of("d = conv c filters=1 filters=2 kernel=3 bias=true"),
        &["key `filters` is given twice", "`filters=1`"],
    );
    check(
        &refusal_of("d = conv c filters=1"),
        &["needs the key `kernel`", "help: try `kernel=1`"],
    );
}

#[test]
fn the_values_of_keys() {
    let conv = |rest: &str| refusal_of(&format!("d = conv c filters=2 bias=false {rest}"));
    check(
        &conv("kernel=3x3"),
        &["`kernel=3x3`", "3 dim(s)", "`kernel=3x3x3`"],
    );
    check(
        &conv("kernel=2.6"),
        &["`kernel=2.6`", "whole number", "`kernel=3`"],
    );
    check(&conv("kernel=-2"), &["`kernel=-2`", "`kernel=1`"]);
    check(
        &conv("kernel=3 pad=1:b"),
        &["`pad=1:b`", "LOW:HIGH", "`pad=0`"],
    );
    check(
        &conv("kernel=3 pad=1x1x1x1"),
        &["`pad=1x1x1x1`", "`pad=1x1x1`"],
    );
    check(
        &conv("kernel=3 padding=periodc"),
        &["zero, periodic, replicate or reflect", "`padding=periodic`"],
    );
    check(
        &conv("kernel=3 init=he"),
        &["`init=he`", "glorot_uniform, he_normal"],
    );
    check(
        &conv("kernel=3 init=constant:x"),
        &["`init=constant:x`", "`init=constant:0`"],
    );
    check(
        &refusal_of("d = leaky_relu c slope=big"),
        &["`slope=big`", "a number", "`slope=0`"],
    );
    check(
        &refusal_of("d = linear c features=1 bias=yes"),
        &["`bias=yes`", "true, false"],
    );
    check(
        &refusal_of("d = average_pool c kernel=2 stride=2 count_padding=True"),
        &["`count_padding=True`", "help: try `count_padding=true`"],
    );
    check(
        &refusal("input x channels=1 extent=8,8"),
        &["`extent=8,8`", "DxHxW"],
    );
}

fn builder() -> (GraphBuilder, NodeId) {
    let mut builder = GraphBuilder::new("m").unwrap();
    let x = builder.input("x", &[8, 8], 4).unwrap();
    (builder, x)
}

#[test]
fn what_only_the_builder_can_be_asked() {
    let (mut builder, x) = builder();
    let kernel = Window {
        kernel: 2,
        ..Window::ONE
    };
    let max = |window| Pool::new(PoolKind::Max, window);
    let error = builder.pool("p", x, max([kernel; 3])).unwrap_err();
    check(
        &error.to_string(),
        &["`p` slides along D", "2 spatial dim(s)", "Window::ONE"],
    );
    let dilated = Window {
        dilation: 2,
        ..kernel
    };
    let error = builder
        .pool("p", x, max(builder.windows(dilated)))
        .unwrap_err();
    check(
        &error.to_string(),
        &["`p`: dilation=2 along H", "help: try 1"],
    );
    let error = builder.relu("r", NodeId(7)).unwrap_err();
    check(
        &error.to_string(),
        &["`r` uses node 7", "there are 1", "help: try 0"],
    );
    let error = builder.node("y", Op::Input, &[], &[]).unwrap_err();
    assert!(matches!(error, GraphError::SecondInput { .. }), "{error}");
    let shared = ParameterSource::Shared(ParameterId(3));
    let sources = [(ParameterRole::Gamma, shared)];
    let error = builder.node("f", Op::Flatten, &[x], &sources).unwrap_err();
    check(
        &error.to_string(),
        &["`f`: flatten has no gamma", "possible values: none"],
    );
    let norm = Op::BatchNorm {
        epsilon: 1.0,
        momentum: 0.5,
    };
    let error = builder.node("b", norm.clone(), &[x], &sources).unwrap_err();
    check(
        &error.to_string(),
        &["`b` uses parameter 3", "there are 0 so far, counted from 0"],
    );
    builder.batch_norm("b", x, 1.0, 0.5).unwrap();
    let mean = builder.find_parameter("b.running_mean").unwrap();
    let sources = [(ParameterRole::RunningMean, ParameterSource::Shared(mean))];
    let error = builder.node("b2", norm, &[x], &sources).unwrap_err();
    check(
        &error.to_string(),
        &["`b2`: its running_mean cannot be shared"],
    );
    let mut empty = GraphBuilder::new("m").unwrap();
    let error = empty.relu("r", NodeId(0)).unwrap_err();
    assert!(matches!(error, GraphError::NoInput { .. }), "{error}");
    assert!(matches!(
        GraphBuilder::new("a b"),
        Err(GraphError::InvalidName { .. })
    ));
}

#[test]
fn a_parameter_too_large_to_count_is_refused() {
    let mut builder = GraphBuilder::new("m").unwrap();
    let x = builder.input("x", &[1], 1 << 31).unwrap();
    let error = builder.linear("l", x, 1 << 19, false).unwrap_err();
    check(&error.to_string(), &["`l`", "elements of a parameter"]);
}

#[test]
fn a_refused_call_leaves_the_builder_as_it_was() {
    let (mut builder, x) = builder();
    let convolution = Convolution {
        filters: 4,
        window: [Window::ONE; 3],
        periodic: false,
        groups: 1,
        bias: true,
    };
    let bad = ParameterSource::Own(Initialization::HeNormal);
    let op = Op::Convolution(convolution.clone());
    builder
        .node("c", op, &[x], &[(ParameterRole::Bias, bad)])
        .unwrap_err();
    let c = builder.convolution("c", x, convolution).unwrap();
    builder.loss("l", c, Loss::MeanSquaredError).unwrap();
    let graph = builder.build().unwrap();
    let names: Vec<&str> = graph.parameters.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["c.weight", "c.bias"]);
}

#[test]
fn sizes_that_cannot_be_counted() {
    // 2^40 outputs of 2^20 taps each.
    check(
        &refusal("input x channels=1 extent=2097152x2097152\np = max_pool x kernel=1024 stride=2"),
        &["`p`", "flop per sample", "too many"],
    );
    // Each padding alone would fit.
    let pads = "a = conv x filters=1 kernel=1x1 pad=1073741824x0 bias=false\n\
                b = conv x filters=1 kernel=1x1 pad=0x1073741824 bias=false\n\
                c = slice x start=0 channels=1\nf = flatten c\n";
    let error = refusal(&format!(
        "input x channels=1 extent=1x1\n{pads}\
         g = flatten a\nh = flatten b\ns = concat f g h\nl = linear s features=1 bias=true\n\
         loss = mse l"
    ));
    check(&error, &["`x`", "padding", "too many"]);
    let layers: String = (1..=256)
        .map(|i| {
            format!(
                "r{i} = relu {}\n",
                if i == 1 {
                    "x".into()
                } else {
                    format!("r{}", i - 1)
                }
            )
        })
        .collect();
    let error = refusal(&format!(
        "input x channels=1 extent=16777216x16777216\n{layers}loss = mse r256"
    ));
    check(&error, &["`r256`", "all layers up to it", "too many"]);
}

#[test]
fn factors_of_other_shapes() {
    check(
        &refusal_of("d = multiply c x"),
        &["8x8x8 with 6", "8x8x8 with 4", "1 or 6 filters"],
    );
    let map = "d = conv x filters=1 kernel=1 bias=true\n";
    check(
        &refusal_of(&format!("{map}e = multiply d c")),
        &["`e`", "the other order is possible"],
    );
    check(
        &refusal_of(&format!("{map}p = global_average_pool d\ne = multiply c p")),
        &["`e`", "1x1x1 with 1", "the second 6 filters"],
    );
    check(
        &refusal_of(&format!(
            "{map}p = max_pool d kernel=2 stride=2\ne = multiply c p"
        )),
        &["`e`", "4x4x4 with 1", "the second would need"],
    );
}
