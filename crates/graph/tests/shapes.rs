//! Shape inference, parameters and counts against values worked out by hand.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::{
    Convolution, Graph, GraphBuilder, Initialization, Loss, Op, ParameterRole, ParameterSource,
    Pool, PoolKind, count, fans, text,
};
use partita_space::Window;

fn model(body: &str) -> Graph {
    text::parse(&format!("model m\n{body}")).unwrap_or_else(|error| panic!("{error}"))
}

fn shape(graph: &Graph, name: &str) -> [usize; 4] {
    let shape = graph.node(graph.find(name).unwrap()).shape;
    let [d, h, w] = shape.extent;
    [d, h, w, shape.channels]
}

fn parameter_shape(graph: &Graph, name: &str) -> [usize; 5] {
    graph
        .parameters
        .iter()
        .find(|parameter| parameter.name == name)
        .unwrap()
        .shape
}

#[test]
fn one_dim() {
    let graph = model(
        "input x channels=3 extent=50
         c = conv x filters=8 kernel=5 stride=2 dilation=3 pad=1:4 bias=true
         p = max_pool c kernel=4 stride=3 pad=2:1
         f = flatten p
         l = linear f features=10 bias=true
         loss = softmax_cross_entropy l",
    );
    assert_eq!(graph.spatial_rank, 1);
    // (50 + 5 - 13) / 2 + 1, then (22 + 3 - 4) / 3 + 1.
    assert_eq!(shape(&graph, "c"), [1, 1, 22, 8]);
    assert_eq!(shape(&graph, "p"), [1, 1, 8, 8]);
    assert_eq!(shape(&graph, "f"), [1, 1, 1, 64]);
    assert_eq!(shape(&graph, "loss"), [1, 1, 1, 10]);
    assert_eq!(parameter_shape(&graph, "c.weight"), [1, 1, 5, 3, 8]);
    assert_eq!(parameter_shape(&graph, "l.weight"), [1, 1, 1, 64, 10]);
    assert_eq!(parameter_shape(&graph, "l.bias"), [1, 1, 1, 1, 10]);
    let Op::Convolution(convolution) = &graph.nodes[1].op else {
        panic!("not a convolution");
    };
    assert_eq!(convolution.window[..2], [Window::ONE; 2]);
    let counts = count(&graph);
    assert_eq!(counts.parameters, 5 * 3 * 8 + 8 + 64 * 10 + 10);
    assert_eq!(counts.forward_flops.0, 2 * 5 * 3 * 8 * 22);
    assert_eq!(counts.linear_flops.0, 2 * 64 * 10);
    assert_eq!(
        counts.executed_flops.0,
        2 * 2 * 5 * 3 * 8 * 22 + 3 * 2 * 64 * 10
    );
    assert_eq!(
        counts.memory_bytes_per_sample.0,
        8 * (2 * 150 + 22 * 8 + 8 * 8)
    );
}

#[test]
fn two_dims_with_groups_and_a_residual() {
    let graph = model(
        "input x channels=6 extent=17x24
         c1 = conv x filters=12 kernel=3x5 stride=1x2 pad=1x2:1 groups=3 bias=false
         b = batch_norm c1 epsilon=1e-5 momentum=0.1
         c2 = conv c1 filters=12 kernel=3 pad=1 padding=periodic groups=12 bias=false
         s = add b c2
         loss = softmax_cross_entropy s",
    );
    // H: (17 + 2 - 3) + 1; W: (24 + 3 - 5) / 2 + 1.
    assert_eq!(shape(&graph, "c1"), [1, 17, 12, 12]);
    assert_eq!(shape(&graph, "s"), [1, 17, 12, 12]);
    assert_eq!(parameter_shape(&graph, "c1.weight"), [1, 3, 5, 2, 12]);
    assert_eq!(parameter_shape(&graph, "c2.weight"), [1, 3, 3, 1, 12]);
    let counts = count(&graph);
    let outputs = 17 * 12;
    let (first, second) = (2 * 15 * 2 * 12 * outputs, 2 * 9 * 12 * outputs);
    assert_eq!(counts.forward_flops.0, first + second);
    assert_eq!(counts.executed_flops.0, 2 * first + 3 * second);
    assert_eq!(counts.parameters, 15 * 2 * 12 + 2 * 12 + 9 * 12);
    assert_eq!(
        counts.memory_bytes_per_sample.0,
        8 * (2 * 6 * 17 * 24 + 4 * 12 * outputs)
    );
    assert_eq!(graph.consumers(graph.find("c1").unwrap()).len(), 2);
}

#[test]
fn transposed_convolutions_invert_the_extents_of_convolutions() {
    let graph = model(
        "input x channels=6 extent=17x24
         c = conv x filters=4 kernel=3x5 stride=2x3 dilation=2x1 pad=1x2:1 groups=2 bias=false
         u = conv_transpose c filters=6 kernel=3x5 stride=2x3 dilation=2x1 pad=1x2:1 \
             output_padding=0x1 groups=2 bias=true
         loss = mse u",
    );
    assert_eq!(shape(&graph, "c"), [1, 8, 8, 4]);
    // H: 7 * 2 + 5 - 2; W: 7 * 3 + 5 - 3 + 1.
    assert_eq!(shape(&graph, "u"), [1, 17, 24, 6]);
    let weight = parameter_shape(&graph, "c.weight");
    assert_eq!(parameter_shape(&graph, "u.weight"), weight);
    assert_eq!(weight, [1, 3, 5, 3, 4]);
    let counts = count(&graph);
    assert_eq!(counts.parameters, 2 * 3 * 5 * 3 * 4 + 6);
    // Each weight is multiplied once per position of `c`, in either layer.
    assert_eq!(counts.forward_flops.0, 2 * 2 * 3 * 5 * 3 * 4 * 8 * 8);
    assert_eq!(counts.executed_flops.0, 5 * 2 * 3 * 5 * 3 * 4 * 8 * 8);
    assert_eq!(
        counts.layers[1].forward_flops,
        counts.layers[2].forward_flops
    );
    assert_eq!(
        counts.memory_bytes_per_sample.0,
        8 * (17 * 24 * (2 * 6 + 6) + 8 * 8 * 4)
    );
}

#[test]
fn a_concatenation_has_all_channels_and_computes_nothing() {
    let graph = model(
        "input x channels=6 extent=7x4
         c = conv x filters=4 kernel=3 pad=1 bias=false
         k = concat c x c
         d = conv k filters=2 kernel=1 bias=false
         loss = mse d",
    );
    assert_eq!(shape(&graph, "k"), [1, 7, 4, 14]);
    assert_eq!(parameter_shape(&graph, "d.weight"), [1, 1, 1, 14, 2]);
    let counts = count(&graph);
    assert_eq!(counts.layers[2].executed_flops.0, 0);
    assert_eq!(counts.layers[2].memory_bytes.0, 8 * 7 * 4 * 14);
}

#[test]
fn three_dims_with_a_value_per_dim() {
    let graph = model(
        "input x channels=2 extent=9x10x11
         c = conv x filters=4 kernel=3x2x1 stride=2x1x3 pad=0x1x0:1 bias=false
         p = average_pool c kernel=2x3x2 stride=1x2x2 pad=1x1x0 count_padding=false
         r = relu p
         loss = mse r",
    );
    // 9 -> (9-3)/2+1; 10 -> 12-2+1; 11 -> (12-1)/3+1.
    assert_eq!(shape(&graph, "c"), [4, 11, 4, 4]);
    // 4 -> 6-2+1; 11 -> (13-3)/2+1; 4 -> (4-2)/2+1.
    assert_eq!(shape(&graph, "p"), [5, 6, 2, 4]);
    assert_eq!(shape(&graph, "r"), [5, 6, 2, 4]);
    assert_eq!(parameter_shape(&graph, "c.weight"), [3, 2, 1, 2, 4]);
}

#[test]
fn parameters_start_by_default_or_as_said() {
    let graph = model(
        "input x channels=2 extent=4x4
         c = conv x filters=4 kernel=3 bias=true
         b = batch_norm c epsilon=1e-5 momentum=0.1 init_gamma=0.5
         f = flatten b
         l = linear f features=2 bias=true init=he_normal init_bias=0.1
         loss = mse l",
    );
    let starts: Vec<(&str, Initialization)> = graph
        .parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), parameter.initialization))
        .collect();
    assert_eq!(
        starts,
        [
            ("c.weight", Initialization::GlorotUniform),
            ("c.bias", Initialization::Constant(0.0)),
            ("b.gamma", Initialization::Constant(0.5)),
            ("b.beta", Initialization::Constant(0.0)),
            ("b.running_mean", Initialization::Constant(0.0)),
            ("b.running_variance", Initialization::Constant(1.0)),
            ("l.weight", Initialization::HeNormal),
            ("l.bias", Initialization::Constant(0.1)),
        ]
    );
    assert_eq!(fans(&graph.parameters[0]), (9 * 2, 9 * 4));
    assert_eq!(fans(&graph.parameters[1]), (1, 4));
    assert_eq!(fans(&graph.parameters[6]), (16, 2));
}

#[test]
fn a_shared_parameter_is_one_parameter() {
    let convolution = Convolution {
        filters: 5,
        window: [Window::ONE; 3],
        periodic: false,
        groups: 1,
        bias: true,
    };
    let mut builder = GraphBuilder::new("shared").unwrap();
    let x = builder.input("x", &[4], 5).unwrap();
    let a = builder.convolution("a", x, convolution.clone()).unwrap();
    let weight = builder.find_parameter("a.weight").unwrap();
    let sources = [(ParameterRole::Weight, ParameterSource::Shared(weight))];
    let b = builder
        .node("b", Op::Convolution(convolution), &[a], &sources)
        .unwrap();
    builder.loss("loss", b, Loss::MeanSquaredError).unwrap();
    let graph = builder.build().unwrap();
    assert_eq!(graph.nodes[1].parameters[0], graph.nodes[2].parameters[0]);
    assert_eq!(graph.parameters.len(), 3);
    let counts = count(&graph);
    assert_eq!(counts.parameters, 25 + 5 + 5);
    assert_eq!(
        [counts.layers[1].parameters, counts.layers[2].parameters],
        [30, 5]
    );
}

#[test]
fn a_gradient_is_needed_from_the_first_trained_parameter_on() {
    let mut builder = GraphBuilder::new("late").unwrap();
    let x = builder.input("x", &[8, 8], 1).unwrap();
    let pool = Pool::new(PoolKind::Max, builder.windows(Window::tile(2)));
    let p = builder.pool("p", x, pool).unwrap();
    let n = builder.batch_norm("n", p, 1e-5, 0.1).unwrap();
    let d = builder.dropout("d", n, 0.5).unwrap();
    builder.loss("loss", d, Loss::MeanSquaredError).unwrap();
    let graph = builder.build().unwrap();
    assert_eq!(graph.needs_gradient(), [false, false, true, true, true]);
    assert_eq!(graph.nodes[1].shape.extent, [1, 4, 4]);
}

/// Without gradients of frozen weights, and of what lies before the first trained one.
#[test]
fn frozen_layers_cost_less() {
    let model = "model m\ninput x channels=2 extent=4x4\na = conv x filters=3 kernel=1 bias=true\n\
        b = conv a filters=3 kernel=1 bias=true\nc = conv b filters=2 kernel=1 bias=true\nloss = mse c\n";
    let graph = text::parse(model).unwrap();
    let frozen = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|&one| one.to_owned()).collect();
        graph.with_frozen(&patterns, false).map_err(Box::new)
    };
    let flops = |graph: &Graph| {
        let counts = count(graph);
        let layers = counts.layers.iter();
        layers
            .map(|layer| layer.executed_flops.0 / layer.forward_flops.0.max(1))
            .collect::<Vec<_>>()
    };
    assert_eq!(flops(&graph), [0, 2, 3, 3, 0]);
    assert_eq!(flops(&frozen(&["a"]).unwrap()), [0, 1, 2, 3, 0]);
    assert_eq!(flops(&frozen(&["b"]).unwrap()), [0, 2, 2, 3, 0]);
    assert_eq!(flops(&frozen(&["c"]).unwrap()), [0, 2, 3, 2, 0]);
    let bias = frozen(&["a.w*", "b.bias"]).unwrap();
    let kept = bias.parameters.iter().filter(|one| one.is_frozen);
    assert_eq!(
        kept.map(|one| &one.name[..]).collect::<Vec<_>>(),
        ["a.weight", "b.bias"]
    );
    assert_eq!(frozen(&[]).unwrap(), graph);
    let error = frozen(&["bb"]).unwrap_err().to_string();
    assert!(
        error.contains("`bb`") && error.contains("help: try b"),
        "{error}"
    );
    let error = frozen(&["*"]).unwrap_err().to_string();
    assert!(error.contains("help: try to train c"), "{error}");
}

/// Norms without scale and offset have none to count, to freeze, to share or to start.
#[test]
fn norms_without_parameters() {
    let model = |norm: &str| {
        format!(
            "model m\ninput x channels=2 extent=4x4\na = conv x filters=3 kernel=1 bias=true\nn = {norm}\n\
             b = conv n filters=2 kernel=1 bias=false\nloss = mse b\n"
        )
    };
    for (norm, stored) in [
        ("instance_norm a epsilon=1e-5 affine=false", &[][..]),
        ("group_norm a groups=3 epsilon=1e-5 affine=false", &[]),
        ("layer_norm a epsilon=1e-5 affine=false", &[]),
        ("layer_norm a epsilon=1e-5 bias=false", &["n.gamma"]),
        (
            "batch_norm a epsilon=1e-5 momentum=0.1 affine=false",
            &["n.running_mean", "n.running_variance"],
        ),
    ] {
        let graph = text::parse(&model(norm)).unwrap();
        assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph);
        assert!(text::print(&graph).contains(norm), "{norm}");
        let names = graph.stored_parameters().map(|one| one.name.as_str());
        let expected = [&["a.weight", "a.bias"], stored, &["b.weight"]].concat();
        assert_eq!(names.collect::<Vec<_>>(), expected);
        let trained = stored.iter().filter(|name| name.ends_with("gamma")).count();
        assert_eq!(count(&graph).parameters, 6 + 3 + 3 * trained as u64 + 6);
        let frozen = graph.with_frozen(&["n".to_owned()], false);
        assert_eq!(frozen.is_ok(), trained > 0, "{norm}");
        let frozen = graph
            .with_frozen(&["n.beta".to_owned()], false)
            .unwrap_err();
        assert!(!frozen.to_string().contains("help: try n.beta"), "{frozen}");
    }
    for (norm, expected) in [
        (
            "batch_norm a epsilon=1e-5 momentum=0.1 affine=false init_gamma=2",
            "`affine=false` means that there is no gamma",
        ),
        (
            "layer_norm a epsilon=1e-5 bias=false init_beta=2",
            "`bias=false` means that there is no beta",
        ),
        ("instance_norm a epsilon=1e-5 affine=no", "true or false"),
        (
            "instance_norm a epsilon=1e-5 affine=false\no = instance_norm n epsilon=1e-5 gamma=n.gamma",
            "`n.gamma`",
        ),
    ] {
        let error = text::parse(&model(norm)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
