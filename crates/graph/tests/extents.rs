//! The same model on samples of other extents.

use partita_graph::{Graph, text};

const EXTENT: [usize; 3] = [16; 3];

fn model(layer: &str) -> Graph {
    let lines = [
        "model m",
        "input x channels=2 extent=8x8x8",
        "c = conv x filters=2 kernel=3 pad=1 bias=true",
        layer,
        "loss = mse p",
    ];
    text::parse(&lines.join("\n")).expect("a model")
}

#[test]
fn windows_and_strides_stay() {
    let graph = model("p = max_pool c kernel=2 stride=2");
    let wide = graph.with_extent(EXTENT).unwrap();
    assert_eq!(wide.nodes[2].shape.extent, [8; 3]);
    assert_eq!(wide.parameters, graph.parameters);
}

/// Windows that divide the extents before, after, or in neither.
#[test]
fn global_and_adaptive_poolings_keep_their_outputs() {
    for (layer, outputs) in [
        ("p = global_average_pool c", [1; 3]),
        ("p = global_max_pool c", [1; 3]),
        ("p = adaptive_average_pool c output=1", [1; 3]),
        ("p = adaptive_average_pool c output=4x2x1", [4, 2, 1]),
        ("p = adaptive_average_pool c output=8", [8; 3]),
        ("p = adaptive_average_pool c output=3", [3; 3]),
        ("p = adaptive_average_pool c output=5x8x1", [5, 8, 1]),
    ] {
        let graph = model(layer);
        for extent in [EXTENT, [10; 3], [15, 9, 24]] {
            let other = graph.with_extent(extent).unwrap();
            assert_eq!(other.nodes[2].shape.extent, outputs, "{layer}");
            let text =
                text::print(&graph).replace("8x8x8", &extent.map(|n| n.to_string()).join("x"));
            assert_eq!(text::parse(&text), Ok(other.clone()), "{layer}");
            assert_eq!(other.with_extent([8; 3]), Ok(graph.clone()), "{layer}");
        }
    }
}

#[test]
fn the_text_says_that_a_pooling_is_global() {
    for (layer, printed) in [
        (
            "p = global_average_pool c",
            "p = adaptive_average_pool c output=1",
        ),
        ("p = global_max_pool c", "p = global_max_pool c"),
        (
            "p = max_pool c kernel=8 stride=8",
            "p = max_pool c kernel=8 stride=8 pad=0",
        ),
    ] {
        let text = text::print(&model(layer));
        assert_eq!(text.lines().nth(3), Some(printed));
    }
}

#[test]
fn a_fixed_window_over_the_whole_input_is_refused() {
    for layer in [
        "p = max_pool c kernel=8 stride=8",
        "p = average_pool c kernel=8 stride=8 count_padding=false",
        "p = l2_pool c kernel=8 stride=8",
    ] {
        let graph = model(layer);
        assert_eq!(graph.with_extent([8; 3]), Ok(graph.clone()));
        let error = graph.with_extent(EXTENT).unwrap_err().to_string();
        let expected = "`p` pools its whole input of 8x8x8 by a fixed window";
        assert!(error.contains(expected), "{layer}: {error}");
    }
}

#[test]
fn means_that_would_leave_positions_out_are_refused() {
    let graph = model("p = average_pool c kernel=4 stride=4 count_padding=true");
    assert!(graph.with_extent([12, 16, 8]).is_ok());
    let error = graph.with_extent([8, 8, 18]).unwrap_err().to_string();
    assert!(error.contains("would leave out some of 8x8x18"), "{error}");
}
