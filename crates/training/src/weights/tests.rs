//! PyTorch's names and axis order, compared with torchvision's.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::pytorch::Layout;
use partita_graph::{text, zoo};
use std::collections::BTreeSet;

/// Names and shapes of torchvision's state dicts, made by `fixtures/torchvision/make.py`.
const NETWORKS: [(&str, &str); 7] = [
    (
        "alexnet@224",
        include_str!("../../../../fixtures/torchvision/alexnet.txt"),
    ),
    (
        "vgg16@224",
        include_str!("../../../../fixtures/torchvision/vgg16.txt"),
    ),
    (
        "vgg16@224+bn",
        include_str!("../../../../fixtures/torchvision/vgg16_bn.txt"),
    ),
    (
        "resnet18@224",
        include_str!("../../../../fixtures/torchvision/resnet18.txt"),
    ),
    (
        "resnet50@224",
        include_str!("../../../../fixtures/torchvision/resnet50.txt"),
    ),
    (
        "densenet121@224",
        include_str!("../../../../fixtures/torchvision/densenet121.txt"),
    ),
    (
        "inceptionv3@299",
        include_str!("../../../../fixtures/torchvision/inception_v3.txt"),
    ),
];

#[test]
fn the_zoo_has_the_names_and_shapes_of_torchvision() {
    for (model, listed) in NETWORKS {
        let graph = zoo::build(model).unwrap();
        let layout = Layout::pytorch(&graph);
        let mut found = BTreeSet::new();
        for parameter in &graph.parameters {
            let name = layout.name(parameter);
            let shape: Vec<String> = layout
                .shape(parameter)
                .iter()
                .map(usize::to_string)
                .collect();
            let counter = layout.counter(&name).map(|counter| format!("{counter} -"));
            found.extend(counter);
            found.insert(format!("{name} {}", shape.join(",")));
        }
        let expected: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
        let missing: Vec<&String> = expected.difference(&found).take(3).collect();
        let more: Vec<&String> = found.difference(&expected).take(3).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "{model}: {missing:?} {more:?}"
        );
    }
}

#[test]
fn a_linear_layer_after_a_flatten_has_its_columns_reordered() {
    let model = "model flat\ninput x channels=2 extent=1x3\nf = flatten x\n\
                 fc = linear f features=2 bias=true\nloss = mse fc\n";
    let graph = text::parse(model).unwrap();
    let layout = Layout::pytorch(&graph);
    let weight = &graph.parameters[0];
    assert_eq!(layout.shape(weight), [2, 6]);
    // Rows here are features (H, W, C), columns are outputs: the value tells both.
    let here: Vec<f32> = (0..6)
        .flat_map(|row| [row as f32, 10.0 + row as f32])
        .collect();
    let there = layout.to_file(weight, &here);
    // PyTorch orders features (C, H, W).
    let order = [0.0, 2.0, 4.0, 1.0, 3.0, 5.0];
    let expected: Vec<f32> = order
        .into_iter()
        .chain(order.map(|row| 10.0 + row))
        .collect();
    assert_eq!(there, expected);
    assert_eq!(layout.to_partita(weight, &there), here);
}

#[test]
fn a_flatten_among_other_features_has_its_columns_reordered() {
    let model = "model joined\ninput x channels=2 extent=1x3\ninput t features=2\nf = flatten x\n\
                 h = linear t features=1\nk = concat t f h\na = relu k\nfc = linear a features=1\nloss = mse fc\n";
    let graph = text::parse(model).unwrap();
    let layout = Layout::pytorch(&graph);
    let mut parameters = graph.parameters.iter();
    let weight = parameters.find(|one| one.name == "fc.weight").unwrap();
    let here: Vec<usize> = (0..9).collect();
    let there = layout.to_file(weight, &here);
    assert_eq!(there, [0, 1, 2, 4, 6, 3, 5, 7, 8]);
    assert_eq!(layout.to_partita(weight, &there), here);
}

#[test]
fn kernels_have_filters_first() {
    let model = "model two\ninput x channels=2 extent=4x4\n\
                 c = conv x filters=3 kernel=3 pad=1 bias=true\n\
                 loss = mse c\n";
    let graph = text::parse(model).unwrap();
    let layout = Layout::pytorch(&graph);
    let weight = &graph.parameters[0];
    assert_eq!(layout.shape(weight), [3, 2, 3, 3]);
    // (Kd, Kh, Kw, C, F) here.
    let here: Vec<usize> = (0..weight.volume()).collect();
    let there = layout.to_file(weight, &here);
    let (f, c, kh, kw) = (2, 1, 0, 2);
    assert_eq!(
        there[((f * 2 + c) * 3 + kh) * 3 + kw],
        ((kh * 3 + kw) * 2 + c) * 3 + f
    );
    assert_eq!(layout.to_partita(weight, &there), here);
}

/// A network on arrays of NiBabel: dims W, H, D of the samples here.
#[test]
fn kernels_and_features_along_other_axes_are_brought_to_d_h_w() {
    let model = "model turned\ninput x channels=2 extent=2x3x4\n\
                 c = conv x filters=3 kernel=1x2x3 pad=0x0x1 bias=false\n\
                 f = flatten c\nfc = linear f features=2 bias=true\nloss = mse fc\n";
    let graph = text::parse(model).unwrap();
    let layout = Layout::pytorch(&graph).along([2, 1, 0]);
    let [kernel, matrix] = [0, 1].map(|at| &graph.parameters[at]);
    assert_eq!(layout.shape(kernel), [3, 2, 3, 2, 1]);
    let here: Vec<usize> = (0..kernel.volume()).collect();
    let there = layout.to_file(kernel, &here);
    let (f, c, kh, kw) = (2, 1, 1, 2);
    assert_eq!(
        there[((f * 2 + c) * 3 + kw) * 2 + kh],
        ((kh * 3 + kw) * 2 + c) * 3 + f
    );
    assert_eq!(layout.to_partita(kernel, &there), here);
    // The flatten of C, W, H, D with the extents 3, 4, 2, 2.
    let here: Vec<usize> = (0..matrix.volume()).collect();
    let there = layout.to_file(matrix, &here);
    let (d, h, w) = (1, 0, 3);
    let row = ((d * 2 + h) * 4 + w) * 3 + c;
    assert_eq!(there[((c * 4 + w) * 2 + h) * 2 + d], 2 * row);
    assert_eq!(layout.to_partita(matrix, &there), here);
}
