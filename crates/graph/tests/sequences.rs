//! Operations on sequences: their text, shapes, counts and refusals.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::text::TextError;
use partita_graph::{GraphError, Initialization, count, initial_values, text};

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

/// The error of a line after an input of 3 channels and 6 positions, its first channel `k`, and an embedding
/// `e` of that.
fn refusal(line: &str) -> TextError {
    let model = "model m\ninput x channels=3 extent=6\nk = slice x start=0 channels=1\n\
        e = embedding k rows=4 channels=6\n";
    text::parse(&format!("{model}{line}")).unwrap_err()
}

fn graph_refusal(line: &str) -> GraphError {
    match refusal(line) {
        TextError::Graph { error, .. } => *error,
        other => panic!("{line}: {other}"),
    }
}

/// Key and nearest valid value of a number out of range.
fn out_of_range(line: &str) -> (&'static str, String) {
    match graph_refusal(line) {
        GraphError::OutOfRange { key, nearest, .. } => (key, nearest),
        other => panic!("{line}: {other}"),
    }
}

#[test]
fn slices_and_embeddings_that_do_not_fit_are_refused() {
    for (start, asked) in [(2, 2), (9, 1)] {
        let error = graph_refusal(&format!("d = slice x start={start} channels={asked}"));
        let GraphError::Slice { input, nearest, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((*input, nearest.as_str()), (3, "start=2 channels=1"));
    }
    for (line, key) in [
        ("d = slice x start=0 channels=0", "channels"),
        ("d = embedding k rows=0 channels=2", "rows"),
    ] {
        assert_eq!(out_of_range(line), (key, "1".to_owned()));
    }
    let error = graph_refusal("d = embedding x rows=4 channels=2");
    assert!(
        matches!(error, GraphError::EmbeddingChannels { asked: 3, .. }),
        "{error}"
    );
    let trained = "c = conv e filters=1 kernel=1 bias=false\nd = embedding c rows=4 channels=2";
    let GraphError::EmbeddingOfTrained { input, nearest, .. } = graph_refusal(trained) else {
        panic!("`c` depends on parameters")
    };
    assert_eq!((input.as_str(), nearest.as_str()), ("c", "x"));
}

#[test]
fn layers_of_sequences_that_do_not_fit_are_refused() {
    assert_eq!(out_of_range("d = layer_norm e epsilon=0").0, "epsilon");
    let (key, nearest) = out_of_range("d = softmax_cross_entropy e smoothing=1");
    assert!(
        key == "smoothing" && nearest.starts_with("0.99"),
        "{nearest}"
    );
    let heads = graph_refusal("d = attention e e e heads=4 causal=true");
    assert!(
        matches!(&heads, GraphError::Heads { possible, nearest: 3, .. } if possible == "1, 2, 3, 6"),
        "{heads}"
    );
    let two = graph_refusal("d = attention e e heads=2 causal=true");
    assert!(
        matches!(
            two,
            GraphError::InputCount {
                asked: 2,
                expected: 3,
                ..
            }
        ),
        "{two}"
    );
    let shapes = graph_refusal("d = attention e x x heads=2 causal=true");
    assert!(
        matches!(shapes, GraphError::AttentionShapes { .. }),
        "{shapes}"
    );
    let heads = refusal("d = attention e e e");
    assert!(
        matches!(heads, TextError::MissingKey { key: "heads", .. }),
        "{heads}"
    );
    for line in [
        "d = embedding k rows=4 channels=2 bias=true",
        "d = mse e smoothing=0.1",
    ] {
        let error = refusal(line);
        assert!(matches!(error, TextError::UnknownKey { .. }), "{error}");
    }
}

#[test]
fn planes_have_no_positions() {
    let plane = "model m\ninput x channels=2 extent=3x4\nd = positions x";
    let error = text::parse(plane).unwrap_err();
    let TextError::Graph { error, .. } = error else {
        panic!("{error}")
    };
    assert!(matches!(*error, GraphError::NoSequence { .. }), "{error}");
}

#[test]
fn rows_and_reshapes_that_do_not_fit_are_refused() {
    let rows = graph_refusal("d = position_embedding e rows=7");
    assert!(
        matches!(
            rows,
            GraphError::PositionRows {
                rows: 7,
                positions: 6,
                ..
            }
        ),
        "{rows}"
    );
    assert_eq!(out_of_range("d = position_embedding e rows=0").0, "rows");
    let error = graph_refusal("d = reshape e extent=5");
    assert!(
        matches!(error, GraphError::ReshapeExtent { nearest: 6, .. }),
        "{error}"
    );
    assert_eq!(out_of_range("d = reshape e extent=0").0, "extent");
}

#[test]
fn volumes_have_attention_and_become_sequences() {
    let text = "model m\ninput x channels=4 extent=2x3x4\np = position_embedding x\n\
        a = attention p p p heads=2 causal=false\ns = reshape a extent=1x1x24\n\
        d = pad s pad=0x0x1:0\nt = position_embedding d rows=1\nloss = mse t\n";
    let graph = text::parse(text).unwrap();
    let shapes: Vec<_> = graph.parameters.iter().map(|one| one.shape).collect();
    assert_eq!(shapes, [[1, 1, 1, 24, 4], [1, 1, 1, 1, 4]]);
    let again = text::parse(&text::print(&graph)).unwrap();
    assert_eq!(again, graph);
    // Of 4 channels, two products of 24 by 24 positions.
    assert_eq!(count(&graph).attention_flops.0, 4 * 4 * 24 * 24);
}

#[test]
fn attention_has_windows_and_biases() {
    let lines = [
        "a = attention x x x heads=2 causal=false window=2x3x2 shift=1x0x1 bias=relative table=2x3x2",
        "b = attention a a a heads=4 causal=false window=2 shift=1 mask=-2.5 bias=pairs init=normal:1.0",
        "c = attention b b b heads=2 causal=false bias=relative table=4x6x9",
        "d = attention c a a heads=1 causal=true bias=pairs",
        "e = attention d d d heads=2 causal=false window=2x3x2 bias=relative table=2x3x2 weight=a.weight",
    ];
    let model = |lines: &[&str]| {
        let lines = lines.join("\n");
        format!("model m\ninput x channels=4 extent=4x6x8\n{lines}\nloss = mse e\n")
    };
    let graph = text::parse(&model(&lines)).unwrap();
    assert_eq!(text::print(&graph), model(&lines));
    let shapes: Vec<_> = graph.parameters.iter().map(|one| one.shape).collect();
    let rows = |rows, heads| [1, 1, 1, rows, heads];
    let positions = 4 * 6 * 8;
    assert_eq!(
        shapes,
        [
            rows(3 * 5 * 3, 2),
            rows(8 * 8, 4),
            rows(7 * 11 * 17, 2),
            rows(positions * positions, 1),
        ]
    );
    let counts = count(&graph);
    let first = &counts.layers[graph.find("a").unwrap().0];
    assert_eq!(first.forward_flops.0, 4 * 4 * 192 * 12);
    // Its bias is trained, and nothing before it.
    assert_eq!(first.executed_flops.0, 2 * first.forward_flops.0);
    // A table is that of the windows, or of all positions.
    let short = "a = attention x x x heads=2 causal=false window=2x3x2 bias=relative\n\
        e = attention a a a heads=2 causal=false bias=relative";
    let tables = text::print(&text::parse(&model(&[short])).unwrap());
    assert!(
        tables.contains(" table=2x3x2\n") && tables.contains(" table=4x6x8\n"),
        "{tables}"
    );
}

#[test]
fn windows_and_biases_that_attention_cannot_have_are_refused() {
    for (keys, expected) in [
        ("causal=false window=4", "which do not divide 6"),
        ("causal=true window=3", "causal mask"),
        ("causal=false window=3 shift=3", "by 3"),
        ("causal=false bias=relative table=4", "with a table for"),
        ("causal=false window=3 mask=1e39", "masks scores"),
    ] {
        let error = graph_refusal(&format!("d = attention e e e heads=2 {keys}")).to_string();
        assert!(error.contains(expected), "{keys}: {error}");
    }
    for (keys, key) in [
        ("shift=1", "shift"),
        ("mask=-1", "mask"),
        ("table=6", "table"),
        ("bias=pairs table=6", "table"),
        ("bias=pair", "bias"),
    ] {
        let error = refusal(&format!("d = attention e e e heads=2 causal=false {keys}"));
        let TextError::Value { key: found, .. } = error else {
            panic!("{keys}: {error}");
        };
        assert_eq!(found, key, "{keys}");
    }
    let unused = graph_refusal("d = attention e e e heads=2 causal=false init=normal:1");
    assert!(unused.to_string().contains("weight"), "{unused}");
}

#[test]
fn losses_of_other_smoothing_share_a_target() {
    let text = "model m\ninput x channels=3 extent=6\nc = conv x filters=3 kernel=1 bias=true\n\
        early = softmax_cross_entropy c weight=0.5 smoothing=0.2\n\
        d = conv c filters=3 kernel=1 bias=true\nloss = softmax_cross_entropy d\n";
    text::parse(text).unwrap();
}
