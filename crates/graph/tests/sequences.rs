//! Operations on sequences: their text, shapes, counts and refusals.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::{Initialization, count, initial_values, text};

/// Lines in their printed form.
const PRINTED: &str = "model sequences
input x channels=2 extent=6
s = slice x start=0 channels=1
e = embedding s rows=5 channels=8
t = slice x start=1 channels=1
f = embedding t rows=5 channels=8 weight=e.weight
g = embedding t rows=3 channels=8 init=glorot_uniform
sum = add f g
p = positions sum
n = layer_norm p epsilon=1e-6
m = layer_norm e epsilon=0.001 gamma=n.gamma init_beta=0.5
a = attention n m m heads=4 causal=true
u = gelu a
early = softmax_cross_entropy u weight=0.5
c = conv u filters=8 kernel=1 stride=1 pad=0 bias=true
loss = softmax_cross_entropy c smoothing=0.1
";

#[test]
fn the_printed_form_is_stable() {
    let graph = text::parse(PRINTED).unwrap();
    assert_eq!(text::print(&graph), PRINTED);
    let starts = |name: &str| {
        let mut parameters = graph.parameters.iter();
        parameters.find(|p| p.name == name).unwrap().initialization
    };
    assert_eq!(starts("e.weight"), Initialization::Normal(1.0));
    assert_eq!(starts("g.weight"), Initialization::GlorotUniform);
    let embedding = &graph.parameters[0];
    assert_eq!(embedding.shape, [1, 1, 1, 5, 8]);
    let values = initial_values(embedding, 1);
    assert!(values.iter().any(|value| value.abs() > 1.0));
}

#[test]
fn attention_counts_two_products_forward_and_five_backward() {
    let graph = text::parse(PRINTED).unwrap();
    let counts = count(&graph);
    let attention = &counts.layers[graph.find("a").unwrap().0];
    assert_eq!(attention.forward_flops.0, 4 * 6 * 6 * 8);
    assert_eq!(attention.executed_flops.0, 14 * 6 * 6 * 8);
    // Two embeddings, three vectors of layer norms, a convolution.
    assert_eq!(counts.parameters, 5 * 8 + 3 * 8 + 3 * 8 + 8 * 8 + 8);
}

/// Refused behind an input of 3 channels and 6 positions, of which `k` is one and `e` its embedding.
fn assert_refused(line: &str, parts: &[&str]) {
    let model = "model m\ninput x channels=3 extent=6\nk = slice x start=0 channels=1\n\
        e = embedding k rows=4 channels=6\n";
    let read = text::parse(&format!("{model}{line}"));
    let error = read.unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn slices_and_embeddings_that_do_not_fit_are_refused() {
    for (line, parts) in [
        (
            "d = slice x start=2 channels=2",
            &[
                "start=2 channels=2",
                "3 channels",
                "nearest is start=2 channels=1",
            ][..],
        ),
        (
            "d = slice x start=9 channels=1",
            &["nearest is start=2 channels=1"],
        ),
        (
            "d = slice x start=0 channels=0",
            &["channels=0", "nearest is 1"],
        ),
        (
            "d = embedding x rows=4 channels=2",
            &["one channel of class numbers", "has 3", "`slice`"],
        ),
        (
            "c = conv e filters=1 kernel=1 bias=false\nd = embedding c rows=4 channels=2",
            &[
                "line 6",
                "`c` depends on parameters",
                "nearest is to read `x`",
            ],
        ),
        (
            "d = embedding k rows=0 channels=2",
            &["rows=0", "nearest is 1"],
        ),
        (
            "d = embedding k rows=4 channels=2 bias=true",
            &["no key `bias`"],
        ),
    ] {
        assert_refused(line, parts);
    }
}

#[test]
fn layers_of_sequences_that_do_not_fit_are_refused() {
    for (line, parts) in [
        ("d = layer_norm e epsilon=0", &["epsilon=0", "above 0"][..]),
        (
            "d = attention e e e heads=4 causal=true",
            &["heads=4 must divide 6", "1, 2, 3, 6", "nearest is 3"],
        ),
        (
            "d = attention e e heads=2 causal=true",
            &["reads 3 tensor(s), 2 given"],
        ),
        (
            "d = attention e x x heads=2 causal=true",
            &[
                "1x1x6 with 6 channels, 1x1x6 with 3 channels",
                "nearest for k and v is",
            ],
        ),
        (
            "d = attention e e e heads=2",
            &["needs the key `causal`", "causal=false"],
        ),
        (
            "d = softmax_cross_entropy e smoothing=1",
            &["smoothing=1", "below 1", "nearest is 0.99"],
        ),
        ("d = mse e smoothing=0.1", &["mse has no key `smoothing`"]),
    ] {
        assert_refused(line, parts);
    }
}

#[test]
fn planes_have_no_positions() {
    let plane = "model m\ninput x channels=2 extent=3x4\nd = positions x";
    let error = text::parse(plane).unwrap_err().to_string();
    assert!(error.contains("sequences along W"), "{error}");
    assert!(error.contains("1x3x4 with 2 channels"), "{error}");
}

#[test]
fn losses_of_other_smoothing_share_a_target() {
    let text = "model m\ninput x channels=3 extent=6\nc = conv x filters=3 kernel=1 bias=true\n\
        early = softmax_cross_entropy c weight=0.5 smoothing=0.2\n\
        d = conv c filters=3 kernel=1 bias=true\nloss = softmax_cross_entropy d\n";
    text::parse(text).unwrap();
}
