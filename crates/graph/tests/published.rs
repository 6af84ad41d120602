//! The zoo against the figures of its publications.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::zoo::ModelError;
use partita_graph::{
    Counts, Graph, Initialization, LayerCount, Loss, Op, ParameterId, ParameterRole, count, text,
    zoo,
};

const SIZES: [usize; 5] = [32, 64, 128, 256, 512];

fn counts(name: &str) -> Counts {
    count(&zoo::build(name).unwrap())
}

fn giga(flops: partita_space::Flops) -> String {
    format!("{:.2}", flops.0 as f64 / 1e9)
}

fn gib(bytes: partita_space::Bytes) -> String {
    format!("{:.4}", bytes.0 as f64 / f64::from(1 << 30))
}

fn names_of(graph: &Graph, wanted: fn(&Op) -> bool) -> Vec<&str> {
    let nodes = graph.nodes.iter().filter(|node| wanted(&node.op));
    nodes.map(|node| node.name.as_str()).collect()
}

/// Name, trained parameters, multiply-adds of the convolutions and of the linear layers.
///
/// Source: torchvision 0.29.2 with PyTorch 2.15.0, `inception_v3(aux_logits=False)` unless `+aux`: `numel` of
/// `parameters()`, and the outputs per sample times the weights that forward hooks saw. The figures at
/// the published sizes are those of its model cards.
const TORCHVISION: [(&str, u64, u64, u64); 23] = [
    ("alexnet@224", 61_100_840, 655_566_528, 58_621_952),
    ("alexnet@416", 61_100_840, 2_381_815_488, 58_621_952),
    ("vgg16@224", 138_357_544, 15_346_630_656, 123_633_664),
    ("vgg16@448", 138_357_544, 61_386_522_624, 123_633_664),
    ("vgg16@224+bn", 138_365_992, 15_346_630_656, 123_633_664),
    ("resnet18@32", 11_689_512, 37_011_456, 512_000),
    ("resnet18@64", 11_689_512, 148_045_824, 512_000),
    ("resnet18@224", 11_689_512, 1_813_561_344, 512_000),
    ("resnet18@512", 11_689_512, 9_474_932_736, 512_000),
    ("resnet50@32", 25_557_032, 83_410_944, 2_048_000),
    ("resnet50@224", 25_557_032, 4_087_136_256, 2_048_000),
    ("resnet50@1024", 25_557_032, 85_412_806_656, 2_048_000),
    ("resnet101@224", 44_549_160, 7_799_357_440, 2_048_000),
    ("resnet152@224", 60_192_808, 11_511_578_624, 2_048_000),
    ("densenet121@32", 7_978_856, 57_819_136, 1_024_000),
    ("densenet121@224", 7_978_856, 2_833_137_664, 1_024_000),
    ("densenet121@256", 7_978_856, 3_700_424_704, 1_024_000),
    ("inceptionv3@128", 23_834_568, 730_653_024, 2_048_000),
    ("inceptionv3@299", 23_834_568, 5_711_168_096, 2_048_000),
    ("inceptionv3@299+aux", 27_161_264, 5_716_083_296, 2_816_000),
    ("inceptionv3@512+aux", 27_161_264, 17_589_211_488, 2_816_000),
    ("inceptionv3@512", 23_834_568, 17_519_808_864, 2_048_000),
    // No model of torchvision: the layers of the table in PyTorch 2.15.0, counted in the same way.
    ("unet3d@64", 19_070_560, 244_251_099_136, 0),
];

#[test]
fn torchvision_and_unet_have_the_figures_that_pytorch_counts() {
    for (name, parameters, convolutions, linear) in TORCHVISION {
        let counts = counts(name);
        assert_eq!(counts.parameters, parameters, "{name}");
        assert_eq!(counts.forward_flops.0, 2 * convolutions, "{name}");
        assert_eq!(counts.linear_flops.0, 2 * linear, "{name}");
    }
}

/// At scale 5 as its authors print them, 5,423,238 parameters and 49.2 Gflop; at other scales by the formulas of its layers.
#[test]
fn scaffold_has_the_figures_of_its_benchmark() {
    let smallest = counts("scaffold@32");
    assert_eq!(smallest.parameters, 5_423_238);
    let convolutions = format!("{:.1}", smallest.forward_flops.0 as f64 / 1e9);
    assert_eq!(convolutions, "49.2");
    for size in [32u64, 256, 2048] {
        let levels = (size / 8).ilog2();
        let (mut parameters, mut multiplied) = (0, 0);
        let mut conv = |inputs: u64, filters: u64, side: u64| {
            parameters += 27 * inputs * filters + 2 * filters;
            multiplied += 27 * inputs * filters * side.pow(3);
        };
        for level in 0..=levels {
            let (filters, side) = (64 << level, size >> level);
            conv(if level == 0 { 3 } else { filters / 2 }, filters, side);
            conv(filters, filters, side);
            if level < levels {
                conv(2 * filters, filters, side);
                conv(filters, filters, side);
            }
        }
        for level in 0..levels {
            let (filters, side) = (64 << level, size >> (level + 1));
            parameters += 8 * 2 * filters * filters + filters;
            multiplied += 8 * 2 * filters * filters * side.pow(3);
        }
        parameters += 64 * 6 + 6;
        multiplied += 64 * 6 * size.pow(3);
        let counts = counts(&format!("scaffold@{size}"));
        assert_eq!(counts.parameters, parameters, "{size}");
        assert_eq!(counts.forward_flops.0, 2 * multiplied, "{size}");
    }
}

/// Levels down to 8^3; what is skipped comes first in each concatenation, and half of its channels come from below.
#[test]
fn scaffold_has_the_levels_of_its_scale() {
    let graph = zoo::build("scaffold@256").unwrap();
    let shape = |name: &str| graph.node(graph.find(name).unwrap()).shape;
    assert_eq!(shape("bottom.relu2").extent, [8; 3]);
    assert_eq!(shape("bottom.relu2").channels, 64 << 5);
    assert_eq!(names_of(&graph, |op| matches!(op, Op::Pool(_))).len(), 5);
    for level in 1..=5 {
        let concat = graph.node(graph.find(&format!("up{level}.concat")).unwrap());
        let inputs = concat.inputs.iter().map(|&id| graph.node(id));
        let inputs: Vec<(String, usize)> = inputs
            .map(|node| (node.name.clone(), node.shape.channels))
            .collect();
        let channels = 64 << (5 - level);
        let expected = [
            (format!("down{}.relu2", 6 - level), channels),
            (format!("up{level}.deconv"), channels),
        ];
        assert_eq!(inputs, expected);
    }
    assert_eq!(shape("head").channels, 6);
    let printed = text::print(&graph);
    let loss = printed.lines().find(|line| line.starts_with("loss "));
    let expected = "loss = dice_cross_entropy head smooth=1e-6 background=false cross_entropy_weights=inverse_frequency";
    assert_eq!(loss, Some(expected));
}

/// Without biases, as T5 has them, but norms with a shift.
#[test]
fn transformers_have_the_parameters_of_their_layers() {
    for (layers, channels, heads) in [(1, 16, 2), (2, 64, 4), (6, 512, 8)] {
        for length in [5, 64] {
            let (l, c, w) = (layers as u64, channels as u64, length as u64);
            let counts = counts(&format!("t5-{layers}-{channels}-{heads}@{length}"));
            // Projections, feed-forward layers and norms of an encoder and a decoder layer.
            let layer = (4 + 8) * c * c + 4 * c + (8 + 8) * c * c + 6 * c;
            let rest = 2 * 16 * c + 4 * c;
            assert_eq!(counts.parameters, l * layer + rest);
            let pointwise = l * 28 * c * c + 16 * c;
            assert_eq!(counts.forward_flops.0, 2 * w * pointwise);
            assert_eq!(counts.attention_flops.0, 3 * l * 4 * w * w * c);
        }
    }
}

/// The head hangs on the layers before it, and nothing else of the network is another one.
#[test]
fn inception_is_the_same_without_its_auxiliary_classifier() {
    let plain = zoo::build("inceptionv3@299").unwrap();
    let whole = zoo::build("inceptionv3@299+aux").unwrap();
    let find = |name: &str| whole.node(whole.find(name).unwrap());
    let before = find("AuxLogits.pool").inputs[0];
    assert_eq!(whole.node(before).name, "Mixed_6e.concat");
    let loss = Op::AuxiliaryLoss {
        loss: Loss::CROSS_ENTROPY,
        weight: 0.4,
    };
    assert_eq!(find("AuxLogits.loss").op, loss);
    let nodes = whole.nodes.iter();
    let rest: Vec<(&str, &Op)> = nodes
        .filter(|node| !node.name.starts_with("AuxLogits."))
        .map(|node| (node.name.as_str(), &node.op))
        .collect();
    let nodes = plain.nodes.iter();
    let expected: Vec<(&str, &Op)> = nodes.map(|node| (node.name.as_str(), &node.op)).collect();
    assert_eq!(rest, expected);
}

/// Trained parameters and multiply-adds of the convolutions at 32.
///
/// Source: the network of `examples/cifar10_resnet.py` as Keras 3.15.1 builds it. HyPar-Flow (Awan et
/// al., ISC 2020) states 30 million parameters for 1001 layers.
#[test]
fn pre_activation_resnets_have_the_figures_that_keras_counts() {
    for (depth, parameters, convolutions) in [
        (110, 3_302_442, 383_434_752),
        (164, 4_941_546, 573_751_296),
        (1001, 30_347_658, 3_523_657_728),
    ] {
        for size in [32, 128] {
            let counts = counts(&format!("resnet{depth}v2@{size}"));
            assert_eq!(counts.parameters, parameters, "{depth}");
            let positions = (size / 32) * (size / 32);
            assert_eq!(counts.forward_flops.0, 2 * convolutions * positions);
        }
        let graph = zoo::build(&format!("resnet{depth}v2@32")).unwrap();
        let layers = |op: &Op| matches!(op, Op::Convolution(_) | Op::Linear { .. });
        let layers = names_of(&graph, layers);
        let shortcuts = layers.iter().filter(|name| name.ends_with("shortcut"));
        assert_eq!(layers.len() - shortcuts.count(), depth);
    }
}

/// Layers, filters, size, trained parameters and multiply-adds of the convolutions, for ten classes.
///
/// Source: torchgpipe 0.0.7, `benchmarks/models/amoebanet`, with PyTorch 2.15.0, counted as above, the
/// pooling before the scores being over all positions.
const AMOEBANET: [(usize, usize, usize, u64, u64); 6] = [
    (3, 16, 64, 100_886, 1_544_192),
    (18, 208, 224, 78_209_830, 10_015_229_952),
    (18, 214, 1024, 81_242_028, 217_354_092_544),
    (18, 256, 224, 118_414_090, 15_165_997_056),
    (18, 416, 224, 312_433_690, 40_025_696_256),
    (18, 416, 1024, 312_433_690, 836_455_366_656),
];

#[test]
fn amoebanets_have_the_figures_that_pytorch_counts() {
    for (layers, filters, size, parameters, convolutions) in AMOEBANET {
        let name = format!("amoebanetd-{layers}-{filters}@{size}");
        let counts = counts(&name);
        assert_eq!(counts.parameters, parameters, "{name}");
        assert_eq!(counts.forward_flops.0, 2 * convolutions, "{name}");
        assert_eq!(counts.linear_flops.0, 2 * 10 * 64 * (filters / 4) as u64);
    }
}

/// Millions of parameters for 1000 classes. Source: torchgpipe's documentation, which reproduces table 1
/// of Huang et al. 2019, 82, 318 and 542 million.
#[test]
fn amoebanets_have_the_published_parameters() {
    for (layers, filters, millions) in [
        (18, 208, "81.5"),
        (18, 416, "319.0"),
        (18, 544, "542.7"),
        (36, 544, "1055.8"),
    ] {
        let counts = counts(&format!("amoebanetd-{layers}-{filters}@224"));
        let features = 64 * (filters / 4);
        let parameters = counts.parameters + 990 * (features + 1);
        assert_eq!(format!("{:.1}", parameters as f64 / 1e6), millions);
    }
}

/// What each of the 24 parts of the original gives at 1024: positions a side and channels.
#[test]
fn amoebanet_cells_read_the_two_before_them() {
    let graph = zoo::build("amoebanetd-18-416@1024").unwrap();
    let mut parts: Vec<(&str, usize, usize)> = Vec::new();
    for node in &graph.nodes {
        let Some((part, _)) = node.name.split_once('.') else {
            continue;
        };
        let shape = (part, node.shape.extent[2], node.shape.channels);
        match parts.last_mut() {
            Some(last) if last.0 == part => *last = shape,
            Some(_) | None => parts.push(shape),
        }
    }
    let shapes: Vec<(usize, usize)> = parts.iter().map(|part| (part.1, part.2)).collect();
    let mut expected = vec![(512, 104), (256, 624), (128, 1248)];
    expected.extend([(128, 1664); 6]);
    expected.push((64, 2496));
    expected.extend([(64, 3328); 6]);
    expected.push((32, 4992));
    expected.extend([(32, 6656); 6]);
    expected.push((1, 10));
    assert_eq!(shapes, expected);
    assert_eq!(parts.len(), 24);
    let output = |name: &str| match name {
        "stem1" => "stem1.bn".to_owned(),
        cell => format!("{cell}.concat"),
    };
    for of_three in parts[..23].windows(3) {
        let [before, last, cell] = [of_three[0].0, of_three[1].0, of_three[2].0];
        let from_outside = graph.nodes.iter().filter(|node| {
            let is_other = |&id: &partita_graph::NodeId| !graph.node(id).name.starts_with(cell);
            node.name.starts_with(&format!("{cell}.")) && node.inputs.iter().any(is_other)
        });
        let mut read: Vec<&str> = from_outside
            .flat_map(|node| node.inputs.iter().map(|&id| graph.node(id).name.as_str()))
            .filter(|name| !name.starts_with(cell))
            .collect();
        read.sort_unstable();
        read.dedup();
        let mut expected = [output(before), output(last)];
        expected.sort_unstable();
        assert_eq!(read, expected, "{cell}");
    }
}

fn start(model: &str, parameter: &str) -> Initialization {
    let graph = zoo::build(model).unwrap();
    let mut parameters = graph.parameters.into_iter();
    let found = parameters.find(|other| other.name == parameter);
    found.unwrap().initialization
}

#[test]
fn layers_start_as_in_the_originals() {
    let uniform = |fan_in: f64| Initialization::Uniform(1.0 / fan_in.sqrt());
    let zero = Initialization::Constant(0.0);
    for (model, parameter, expected) in [
        ("alexnet@224", "features.3.weight", uniform(1600.0)),
        ("alexnet@224", "features.3.bias", uniform(1600.0)),
        ("alexnet@224", "classifier.1.bias", uniform(9216.0)),
        (
            "vgg16@224",
            "features.28.weight",
            Initialization::HeNormalFanOut,
        ),
        ("vgg16@224+bn", "features.40.bias", zero),
        (
            "vgg16@224",
            "classifier.0.weight",
            Initialization::Normal(0.01),
        ),
        ("vgg16@224", "classifier.6.bias", zero),
        (
            "resnet50@224",
            "layer2.0.downsample.0.weight",
            Initialization::HeNormalFanOut,
        ),
        ("resnet50@224", "fc.weight", uniform(2048.0)),
        (
            "densenet121@224",
            "features.denseblock4.denselayer16.conv2.weight",
            Initialization::HeNormal,
        ),
        ("densenet121@224", "classifier.weight", uniform(1024.0)),
        ("densenet121@224", "classifier.bias", zero),
        (
            "inceptionv3@299",
            "Mixed_7c.branch3x3dbl_3b.conv.weight",
            Initialization::Normal(0.1),
        ),
        ("inceptionv3@299", "fc.bias", uniform(2048.0)),
        (
            "inceptionv3@299+aux",
            "AuxLogits.conv1.conv.weight",
            Initialization::Normal(0.01),
        ),
        (
            "inceptionv3@299+aux",
            "Mixed_7a.branch3x3_1.conv.weight",
            Initialization::Normal(0.1),
        ),
        (
            "inceptionv3@299+aux",
            "AuxLogits.fc.weight",
            Initialization::Normal(0.001),
        ),
        ("resnet110v2@32", "fc.weight", Initialization::HeNormal),
        ("resnet110v2@32", "stage2.block0.shortcut.bias", zero),
        ("unet3d@32", "up1.deconv.weight", Initialization::HeNormal),
        ("scaffold@32", "down1.conv2.weight", uniform(27.0 * 64.0)),
        ("scaffold@32", "up1.deconv.weight", uniform(8.0 * 128.0)),
        ("scaffold@32", "up1.deconv.bias", uniform(8.0 * 128.0)),
        ("scaffold@32", "head.bias", uniform(64.0)),
        (
            "amoebanetd-18-416@224",
            "cell1_normal1.operations.3.module.4.weight",
            uniform(728.0),
        ),
        ("amoebanetd-18-416@224", "classify.fc.bias", uniform(6656.0)),
    ] {
        assert_eq!(start(model, parameter), expected, "{model} {parameter}");
    }
}

/// Extents at which the original pools adaptively, by what stands there.
#[test]
fn adaptive_poolings_become_even_windows() {
    let poolings = |name: &str| -> Vec<usize> {
        let graph = zoo::build(name).unwrap();
        let of_head = |node: &&partita_graph::Node| node.name.starts_with("avgpool");
        let kernel = |node: &partita_graph::Node| match &node.op {
            Op::Pool(pool) => {
                assert_eq!(pool.window[1], pool.window[2]);
                assert_eq!(pool.window[2].stride, pool.window[2].kernel);
                pool.window[2].kernel
            }
            other => panic!("{other:?}"),
        };
        graph.nodes.iter().filter(of_head).map(kernel).collect()
    };
    for (name, expected) in [
        ("alexnet@224", &[] as &[usize]),
        ("alexnet@992", &[5]),
        ("vgg16@224", &[]),
        ("vgg16@1792", &[8]),
        ("resnet50@32", &[]),
        ("resnet50@224", &[7]),
        ("resnet50@1024", &[8, 4]),
        ("densenet121@512", &[8, 2]),
        ("inceptionv3@299", &[8]),
        ("inceptionv3@512", &[14]),
        ("resnet110v2@32", &[8]),
        ("resnet110v2@16384", &[8, 8, 8, 8]),
    ] {
        assert_eq!(poolings(name), expected, "{name}");
    }
}

/// Oyama et al., table 1, with the digits that its formulas give.
#[test]
fn cosmoflow_has_the_published_flops_and_memory() {
    let published = [
        (128, "18.52", "55.55", "0.8236"),
        (256, "147.93", "443.78", "6.5888"),
        (512, "1183.42", "3550.27", "52.7103"),
    ];
    for (size, forward, training, memory) in published {
        let counts = counts(&format!("cosmoflow@{size}"));
        assert_eq!(counts.parameters, 9_435_328, "{size}");
        assert_eq!(giga(counts.forward_flops), forward);
        assert_eq!(giga(counts.training_flops), training);
        assert_eq!(gib(counts.memory_bytes_per_sample), memory);
        assert_eq!(
            counts.linear_flops.0,
            2 * (2048 * 2048 + 2048 * 256 + 256 * 4)
        );
    }
}

#[test]
fn linear_layers_would_change_a_printed_digit() {
    for size in [128, 256, 512] {
        let counts = counts(&format!("cosmoflow@{size}"));
        let both = counts.forward_flops + counts.linear_flops;
        assert_ne!(giga(both), giga(counts.forward_flops), "{size}");
    }
}

#[test]
fn every_size_ends_at_the_published_features() {
    for size in SIZES {
        for suffix in ["", "+bn"] {
            let graph = zoo::build(&format!("cosmoflow@{size}{suffix}")).unwrap();
            let flatten = graph.node(graph.find("flatten").unwrap());
            let last = graph.node(flatten.inputs[0]);
            assert_eq!(last.shape.batched(1), [1, 2, 2, 2, 256], "{size}{suffix}");
            assert_eq!(flatten.shape.channels, 2048);
            assert_eq!(graph.nodes.last().unwrap().shape.channels, 4);
        }
    }
}

#[test]
fn pools_follow_the_table_and_its_rule() {
    let pools = |size: usize| {
        let graph = zoo::build(&format!("cosmoflow@{size}")).unwrap();
        names_of(&graph, |op| matches!(op, Op::Pool(_))).join(" ")
    };
    assert_eq!(pools(32), "pool1 pool2 pool3");
    assert_eq!(pools(64), "pool1 pool2 pool3 pool4");
    assert_eq!(pools(128), "pool1 pool2 pool3 pool4 pool5");
    assert_eq!(pools(256), "pool1 pool2 pool3 pool4 pool5 pool6");
    assert_eq!(pools(512), "pool1 pool2 pool3 pool4 pool5 pool6 pool7");
}

#[test]
fn batch_norms_add_parameters_and_memory_but_no_flops() {
    for size in SIZES {
        let plain = counts(&format!("cosmoflow@{size}"));
        let normed = counts(&format!("cosmoflow@{size}+bn"));
        let filters: u64 = [16, 32, 64, 128, 256, 256, 256].iter().sum();
        assert_eq!(normed.parameters, plain.parameters + 2 * filters);
        assert_eq!(normed.forward_flops, plain.forward_flops);
        let convolutions = plain
            .layers
            .iter()
            .filter(|layer| layer.operation == "conv");
        let added: u64 = convolutions.map(|layer| layer.memory_bytes.0).sum();
        assert_eq!(
            normed.memory_bytes_per_sample.0,
            plain.memory_bytes_per_sample.0 + added
        );
    }
    assert_eq!(counts("cosmoflow@512+bn").parameters, 9_437_344);
}

#[test]
fn rows_sum_to_totals_and_the_first_convolution_has_no_backward_data() {
    for name in zoo::names() {
        let counts = counts(&name);
        let forward: u64 = counts
            .layers
            .iter()
            .map(|layer| layer.forward_flops.0)
            .sum();
        let of_weights = counts.forward_flops.0 + counts.linear_flops.0;
        assert_eq!(forward, of_weights + counts.attention_flops.0);
        if name.starts_with("t5") {
            // An embedding comes before all, and attention computes its scores again.
            let twice = counts.attention_flops.0 / 2;
            assert_eq!(counts.executed_flops.0, 3 * forward + twice);
            continue;
        }
        let is_first = |layer: &&LayerCount| layer.operation == "conv";
        let first = counts.layers.iter().find(is_first).unwrap();
        assert_eq!(first.executed_flops.0, 2 * first.forward_flops.0);
        assert_eq!(counts.executed_flops.0, 3 * forward - first.forward_flops.0);
    }
}

#[test]
fn normalization_comes_between_convolution_and_activation() {
    let graph = zoo::build("cosmoflow@32+bn").unwrap();
    let order: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(order[..5], ["x", "conv1", "bn1", "act1", "pool1"]);
    let tail = [
        "flatten", "drop1", "fc1", "fc1_act", "drop2", "fc2", "fc2_act", "drop3", "fc3", "loss",
    ];
    assert_eq!(order[order.len() - tail.len()..], tail);
    let norm = &graph.node(graph.find("bn1").unwrap()).op;
    let expected = Op::BatchNorm {
        epsilon: 1e-5,
        momentum: 0.001,
    };
    assert_eq!(*norm, expected);
    let roles = &graph.node(graph.find("bn1").unwrap()).parameters;
    let roles: Vec<_> = roles.iter().map(|&id| graph.parameter(id).role).collect();
    assert_eq!(
        roles,
        [
            ParameterRole::Gamma,
            ParameterRole::Beta,
            ParameterRole::RunningMean,
            ParameterRole::RunningVariance
        ]
    );
    assert_eq!(graph.parameter(ParameterId(0)).name, "conv1.weight");
}

#[test]
fn every_name_builds_a_graph_of_that_name_that_its_text_gives_back() {
    let names = zoo::names();
    let sizes = |family: zoo::Family| -> usize {
        let of_suffix = |suffix: &&str| family.sizes_of(suffix).len();
        family.suffixes().iter().map(of_suffix).sum()
    };
    assert_eq!(
        names.len(),
        zoo::Family::ALL.map(sizes).iter().sum::<usize>()
    );
    for name in names {
        let graph = zoo::build(&name).unwrap();
        assert_eq!(graph.name, name);
        assert_eq!(text::parse(&text::print(&graph)).unwrap(), graph);
    }
}

#[test]
fn wrong_names_have_a_nearest_valid_name() {
    let no_model: fn(&ModelError) -> bool = |error| {
        matches!(
            error,
            ModelError::UnknownModel { .. } | ModelError::BadScale { .. }
        )
    };
    let no_size: fn(&ModelError) -> bool = |error| matches!(error, ModelError::MissingSize { .. });
    let bad_size: fn(&ModelError) -> bool = |error| matches!(error, ModelError::BadSize { .. });
    let no_variant: fn(&ModelError) -> bool =
        |error| matches!(error, ModelError::UnknownSuffix { .. });
    let bad_dimensions: fn(&ModelError) -> bool =
        |error| matches!(error, ModelError::BadDimensions { .. });
    for (asked, is_expected, expected) in [
        ("cosmoflw@128", no_model, "cosmoflow@128"),
        ("", no_model, "vgg16@224"),
        ("resnet51", no_model, "resnet50@224"),
        ("cosmoflow", no_size, "cosmoflow@32"),
        ("cosmoflow@100", bad_size, "cosmoflow@128"),
        ("cosmoflow@1024", bad_size, "cosmoflow@512"),
        (
            "cosmoflow@99999999999999999999999+bn",
            bad_size,
            "cosmoflow@512+bn",
        ),
        ("cosmoflow@big", bad_size, "cosmoflow@32"),
        ("cosmoflow@048", bad_size, "cosmoflow@32"),
        ("cosmoflow@64+gn", no_variant, "cosmoflow@64+bn"),
        ("cosmoflow@64+", no_variant, "cosmoflow@64+bn"),
        ("cosmoflow@64+bn+bn", no_variant, "cosmoflow@64+bn"),
        ("resnet50@224+bn", no_variant, "resnet50@224"),
        ("vgg16@256", bad_size, "vgg16@224"),
        ("alexnet@64", bad_size, "alexnet@224"),
        ("resnet20v2@32", no_model, "resnet110v2@32"),
        ("amoebanetd-17-416@64", no_model, "amoebanetd-18-416@64"),
        ("amoebanetd-1-7@65", no_model, "amoebanetd-3-8@224"),
        ("amoebanetd@1024", no_model, "amoebanetd-18-416@1024"),
        ("amoebanetd-018-416@64", no_model, "amoebanetd-18-416@64"),
        ("amoebanetd-6-100@16000", bad_size, "amoebanetd-6-100@16384"),
        ("amoebanetd-6-100", no_size, "amoebanetd-6-100@64"),
        ("t5", bad_dimensions, "t5-2-64-4@16"),
        ("t5-2-64-4", bad_dimensions, "t5-2-64-4@16"),
        ("t5-0-64-5@32", bad_dimensions, "t5-1-64-4@32"),
        ("t5-2-64-4@032", bad_dimensions, "t5-2-64-4@16"),
        ("t5-2-64-4-1@32+bn", bad_dimensions, "t5-2-64-4@16"),
        ("t5-2-64@99999999", bad_dimensions, "t5-2-64-4@1048576"),
        ("t6-2-64-4@16", no_model, "t5-2-64-4@16"),
        ("inceptionv3@256+aux", bad_size, "inceptionv3@299+aux"),
        ("inceptionv3@299+axu", no_variant, "inceptionv3@299+aux"),
    ] {
        let error = zoo::build(asked).unwrap_err();
        assert!(is_expected(&error), "{asked}: {error}");
        let (ModelError::UnknownModel { nearest, .. }
        | ModelError::BadScale { nearest, .. }
        | ModelError::MissingSize { nearest, .. }
        | ModelError::BadSize { nearest, .. }
        | ModelError::UnknownSuffix { nearest, .. }
        | ModelError::BadDimensions { nearest, .. }) = &error
        else {
            panic!("{error}")
        };
        assert_eq!(nearest, expected, "{asked}");
    }
}
