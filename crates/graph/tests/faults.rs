//! All faults of a text at once, and what a line may leave out.

use partita_graph::text::{TextError, parse, print};

/// What is wrong with a text, a fault each.
fn faults(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(_) => Vec::new(),
        Err(TextError::Several { faults }) => faults.iter().map(ToString::to_string).collect(),
        Err(fault) => vec![fault.to_string()],
    }
}

fn check(text: &str, expected: &[&str]) {
    let found = faults(text);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{expected} is not {found}");
    }
}

#[test]
fn each_faulty_line_is_told() {
    let text = "model m
input x channels=4 extent=8x8
a = conv2d x out_channels=3 kernel_size=3
b = relu x slope=2
c = conv x filters=2 kernel=3 pad=-1 groups=big
d = cnv b
e = add c d
f = max_pool x kernel=9
loss = mse e";
    check(
        text,
        &[
            "line 3: there is no operation `conv2d`",
            "line 4: relu has no key `slope`",
            "line 5: `pad=-1`",
            "line 5: `groups=big`",
            "line 6: there is no operation `cnv`",
            "line 8: `f`: kernel 9",
        ],
    );
}

#[test]
fn each_fault_of_a_line_is_told() {
    let text = "model m
input x channels=4 extent=8x8
c = conv x out_channels=3 kernel_size=3 padding=1 bias=maybe groups=1.5
loss = mse c";
    check(
        text,
        &[
            "line 3: conv has no key `out_channels`",
            "line 3: conv has no key `kernel_size`",
            "line 3: `padding=1`",
            "line 3: `groups=1.5`",
            "line 3: `bias=maybe`",
        ],
    );
}

#[test]
fn what_follows_from_a_fault_is_not_told() {
    // `add` has other shapes, and `loss` reads it.
    let text = "model m
input x channels=4 extent=8x8
c = conv x filters=4 kernel=0
s = add c x
t = conv s filters=2 kernel=3 weight=c.weight
loss = mse t";
    check(text, &["line 3: `c`: kernel=0"]);
    // But values of theirs are.
    check(
        &text.replace("add c x", "add c x slope=1"),
        &["line 3: `c`: kernel=0", "line 4: add has no key `slope`"],
    );
}

#[test]
fn a_model_without_name_or_input_is_told_with_the_rest() {
    check(
        "modle m\ninput x channels=4 extent=8x8\nloss = mle x",
        &["line 1: \"modle m\"", "line 3: there is no operation `mle`"],
    );
    check(
        "model a=b\ninput x chanels=4 extent=8x8\ny = cnv x",
        &[
            "line 1: \"a=b\" is no valid name",
            "line 2: input has no key `chanels`",
        ],
    );
}

#[test]
fn missing_inputs_are_told_beside_other_faults() {
    let text = "model m
input x channels=4 extent=8x8
input t features=0
c = conv y filter=2 kernel=3
d = add c zz
k = concat x t
loss = mse k";
    check(
        text,
        &[
            "line 3: `t`: features=0",
            "line 4: conv has no key `filter`",
            "line 4: there is no node `y`",
            "line 5: there is no node `zz`",
        ],
    );
    check("model m\nc = relu x\nd = conv c", &["line 2: `c`"]);
    check(
        "input x channels=4 extent=8x8\nloss = mse y",
        &["line 1: \"input", "line 2: there is no node `y`"],
    );
}

#[test]
fn all_unread_layers_are_told() {
    let text =
        "model m\ninput x channels=1 extent=8\na = relu x\nb = relu x\nc = relu x\nloss = mse c";
    check(
        text,
        &["line 3: nothing reads `a`", "line 4: nothing reads `b`"],
    );
}

#[test]
fn long_lists_end() {
    let lines: String = (0..30).map(|i| format!("l{i} = nothing x\n")).collect();
    let error = parse(&format!("model m\ninput x channels=1 extent=8\n{lines}")).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("30 faults:\n  line 3: "), "{text}");
    assert!(text.ends_with("\n  and 10 more"), "{text}");
}

/// A line without what it may leave out is the line with PyTorch's defaults.
#[test]
fn defaults_are_those_of_pytorch() {
    for (short, full) in [
        (
            "conv x filters=2 kernel=3",
            "conv x filters=2 kernel=3 bias=true",
        ),
        (
            "conv_transpose x filters=2 kernel=3",
            "conv_transpose x filters=2 kernel=3 bias=true",
        ),
        ("linear x features=2", "linear x features=2 bias=true"),
        ("batch_norm x", "batch_norm x epsilon=1e-5 momentum=0.1"),
        ("layer_norm x", "layer_norm x epsilon=1e-5"),
        ("rms_norm x", "rms_norm x epsilon=1.1920928955078125e-7"),
        (
            "group_norm x groups=2",
            "group_norm x groups=2 epsilon=1e-5",
        ),
        ("instance_norm x", "instance_norm x epsilon=1e-5"),
        ("max_pool x kernel=2x1", "max_pool x kernel=2x1 stride=2x1"),
        (
            "average_pool x kernel=2",
            "average_pool x kernel=2 stride=2 count_padding=true",
        ),
        ("l2_pool x kernel=2", "l2_pool x kernel=2 stride=2"),
        ("leaky_relu x", "leaky_relu x slope=0.01"),
        ("prelu x", "prelu x slopes=one"),
        ("dropout x", "dropout x rate=0.5"),
        (
            "attention x x x heads=2",
            "attention x x x heads=2 causal=false",
        ),
    ] {
        let of = |line: &str| {
            let flat = if line.starts_with("linear") {
                "f = flatten i"
            } else {
                "f = relu i"
            };
            let line = line.replace(" x", " f");
            let text =
                format!("model m\ninput i channels=4 extent=8x8\n{flat}\nd = {line}\nloss = mse d");
            let graph = parse(&text).unwrap_or_else(|error| panic!("{line}: {error}"));
            print(&graph)
        };
        assert_eq!(of(short), of(full), "{short}");
    }
}
