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

#[test]
fn a_pooling_over_the_whole_input_is_refused() {
    for layer in [
        "p = global_average_pool c",
        "p = global_max_pool c",
        "p = adaptive_average_pool c output=1",
        "p = l2_pool c kernel=8 stride=8",
    ] {
        let graph = model(layer);
        assert_eq!(graph.with_extent([8; 3]), Ok(graph.clone()));
        let error = graph.with_extent(EXTENT).unwrap_err();
        assert!(
            error.contains("`p` pools its whole input of 8x8x8"),
            "{layer}: {error}"
        );
    }
}
