//! What a refusal calls the nearest valid choice is accepted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, text, zoo};
use partita_lower::{LowerError, Strategy, StrategyError};
use partita_testkit::Typed;

const MODEL: &str = "model m
input x channels=2 extent=8
c1 = conv x filters=4 kernel=3 pad=1 bias=true
a1 = relu c1
c2 = conv a1 filters=4 kernel=3 pad=1 bias=true
a2 = relu c2
f = flatten a2
l = linear f features=4 bias=true
loss = softmax_cross_entropy l
";

fn check(graph: &Graph, strategy: &str, batch: usize) -> Result<(), StrategyError> {
    strategy.parse::<Strategy>()?.check(graph, batch)
}

fn variant(error: &StrategyError) -> String {
    let text = format!("{error:?}");
    text.split(' ').next().unwrap().to_owned()
}

/// Asserts that a strategy is refused, and that each suggestion of the refusal is accepted; the refusal.
fn assert_helped(graph: &Graph, strategy: &str, batch: usize) -> String {
    let ranks = strategy
        .parse::<Strategy>()
        .map_or(2, |strategy| strategy.ranks());
    let typed = Typed {
        strategy: strategy.to_owned(),
        ranks,
        batch,
    };
    let refusal = typed.refusal(graph).unwrap();
    let suggestions = typed.suggestions(&refusal);
    assert!(!suggestions.is_empty(), "nothing is near: {refusal}");
    for mut next in suggestions {
        if let (Err(_), Ok(strategy)) = (
            strategy.parse::<Strategy>(),
            next.strategy.parse::<Strategy>(),
        ) {
            next.ranks = strategy.ranks();
        }
        assert_eq!(next.refusal(graph), None, "{refusal}: then {next:?}");
    }
    refusal
}

#[test]
fn a_split_that_several_layers_refuse_names_what_all_of_them_allow() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    for (asked, batch, nearest) in [
        (
            "filter=32",
            8,
            "help: try data=8,filter=4, or `; conv1: F=-; ",
        ),
        (
            "data=2,filter=64",
            8,
            "help: try filter=4 with ranks = 8, or `; conv1: F=-; ",
        ),
        (
            "channel=64",
            8,
            "help: try data=4,channel=16, or `; conv1: C=-; ",
        ),
        (
            "filter=8",
            64,
            "help: try data=2,filter=4, or `; fc3: F=-` to leave this layer out",
        ),
        (
            "filter=8",
            1,
            "help: try filter=4 with ranks = 4, or `; fc3: F=-` to leave this layer out",
        ),
    ] {
        let error = assert_helped(&graph, asked, batch);
        assert!(error.contains(nearest), "{error}");
    }
}

#[test]
fn groups_of_several_layers_are_divided_together() {
    let grouped = "model m
input x channels=6 extent=8
c1 = conv x filters=12 kernel=3 pad=1 groups=6 bias=true
c2 = conv c1 filters=12 kernel=3 pad=1 groups=4 bias=true
f = flatten c2
l = linear f features=12 bias=true
loss = mse l
";
    let graph = text::parse(grouped).unwrap();
    check(&graph, "filter=4", 6).unwrap_err();
    let error = assert_helped(&graph, "filter=6", 6);
    assert!(error.contains("help: try data=3,filter=2"), "{error}");
}

/// The axes of channels and filters change places where the input then stays, so that `; c2: F=-` would leave the
/// channels split.
#[test]
fn a_layer_is_left_out_by_the_dim_that_frees_it() {
    let model = "model m\ninput x channels=4 extent=8\nc1 = conv x filters=4 kernel=3 pad=1 bias=true\n\
                 c2 = conv c1 filters=2 kernel=3 pad=1 bias=true\nc3 = conv c2 filters=4 kernel=3 pad=1 bias=true\n\
                 loss = mse c3\n";
    let graph = text::parse(model).unwrap();
    let mut refused = 0;
    for filters in 1..=5 {
        for channels in 1..=4 {
            let strategy = format!("filter={filters},channel={channels}");
            if check(&graph, &strategy, 8).is_err() {
                refused += 1;
                assert_helped(&graph, &strategy, 8);
            }
        }
    }
    assert!(refused > 5, "{refused} are refused");
}

#[test]
fn layers_have_the_names_that_the_model_has() {
    let model = "model m\ninput x channels=2 extent=8\nc1 = conv x filters=2 kernel=3 pad=1 padding=reflect bias=true\n\
                 c2 = conv c1 filters=2 kernel=3 pad=1 padding=reflect bias=true\n\
                 c3 = conv c2 filters=2 kernel=3 pad=1 padding=replicate bias=true\nloss = mse c3\n";
    let graph = text::parse(model).unwrap();
    assert!(graph.find("c2.pad").is_some());
    // The padding goes with its convolution.
    for stages in [
        "stages=[..c1: 1|c2..: 1]",
        "stages=[..c1: 1|c2: 1|c3..: 1]",
        "stages=3",
    ] {
        check(&graph, stages, 2).unwrap();
    }
    let chosen: Strategy = "stages=3".parse().unwrap();
    let chosen = chosen.resolved(&graph).unwrap().to_string();
    assert_eq!(chosen, "stages=[..c1: 1|c2: 1|c3..: 1],schedule=1f1b");
    let error = assert_helped(&graph, "stages=5", 2);
    assert!(
        error.contains("has 4 layers") && error.contains("help: try stages=[1|1|1|1]"),
        "{error}"
    );
    let error = assert_helped(&graph, "stages=[..c1: 1|c3..: 1]", 2);
    assert!(
        error.contains("begins at `c2`") && !error.contains(".pad"),
        "{error}"
    );
    let error = check(&graph, "width=2; c2.pa: W=-", 2)
        .unwrap_err()
        .to_string();
    assert!(error.contains("help: try `c2`"), "{error}");
    check(&graph, "channel=2; c2: C=-", 2).unwrap();
    check(&graph, "width=2; c2..: halo=grouped", 2).unwrap();
    // A name that the model's text lacks is still that of a node.
    check(&graph, "stages=[..c2.pad: 1|c2..: 1]", 2).unwrap();
}

/// Strategies, mini-batches, and what is wrong with them.
const REFUSED: [(&str, usize, &str); 41] = [
    ("micro=2,stages=[1|1],schedule=gems*1000000", 2, "Value"),
    ("micro=2,stages=[1|1],schedule=gems*0", 2, "Value"),
    ("micro=2,stages=[1|1],schedule=gems*16384", 2, "Value"),
    ("stages=[1|1],schedule=gems*0", 2, "Value"),
    ("micro=12,stages=[1|1],schedule=gems*-5", 12, "Value"),
    ("micro=12,stages=[1|1],schedule=gems*5", 12, "Scheduled"),
    ("micro=2,stages=[1|1],schedule=gems*8192", 2, "Scheduled"),
    ("micro=3,stages=[1|1],schedule=gems", 3, "Scheduled"),
    ("micro=2,stages=[1|1],schedule=gems", 3, "Micro"),
    (
        "data=2048,micro=2,stages=[1|1],schedule=gems*8192",
        4096,
        "Scheduled",
    ),
    ("micro=2,stages=[1|1],schedule=interleaved*1", 2, "Value"),
    (
        "micro=2,stages=[1|1],schedule=interleaved*99999",
        2,
        "Value",
    ),
    (
        "micro=2,stages=[1|1],schedule=interleaved*16384",
        2,
        "TooManyStages",
    ),
    (
        "micro=2,stages=[1|1|1|1],schedule=interleaved*2",
        4,
        "TooManyStages",
    ),
    (
        "micro=2,stages=[1|1|1],schedule=interleaved*2",
        3,
        "Scheduled",
    ),
    ("stages=[1|1|1],schedule=chimera,micro=2", 2, "StageCount"),
    (
        "stages=[width=2|1],schedule=gems,micro=2",
        2,
        "ReplicasMeet",
    ),
    ("stages=[1|1],schedule=gems,micro=2,shard=state", 2, "Value"),
    ("data=2,stages=[data=2|1]", 3, "TooFine"),
    ("stages=[..c1: 1|c2..: 1]", 2, "StageLayers"),
    ("stages=0", 2, "Value"),
    ("stages=-2", 2, "Value"),
    ("width=2.5", 2, "Value"),
    ("data=2,micro=2.5", 4, "Value"),
    ("data=2,micro=3", 4, "Micro"),
    ("data=4,micro=16384", 16, "Micro"),
    ("width=16", 2, "TooFine"),
    ("data=8", 3, "TooFine"),
    ("depth=2", 2, "Axis"),
    ("branch=2", 2, "Axis"),
    ("width=2; c2..c1: W=-", 2, "Backwards"),
    ("filter=2; a1: F=filter", 2, "Dim"),
    ("filter=2; c1: F=filter,C=filter", 2, "AxisTwice"),
    (
        "width=2; c1..c2: recompute=on; a1..f: recompute=on",
        2,
        "TwoBlocks",
    ),
    (
        "width=2; c1..c2: recompute=on; a1..a2: chunks=2",
        2,
        "TwoBlocks",
    ),
    ("width=2; ..a1: chunks=2000", 2, "ManyChunks"),
    ("width=2; c1..a1: chunks=200", 2, "ManyChunks"),
    ("width=8; c1..a1: chunks=2", 2, "ManyChunks"),
    ("width=2; c1..a1: chunks=2,recompute=on", 2, "TwoBlocks"),
    ("data=1; c1..: chunks=2", 2, "Chunks"),
    (
        "width=2; c1..c2: halo=grouped; a1..a2: halo=grouped",
        2,
        "TwoGroups",
    ),
];

#[test]
fn what_a_refusal_suggests_is_accepted() {
    let graph = text::parse(MODEL).unwrap();
    for (strategy, batch, expected) in REFUSED {
        let asked = check(&graph, strategy, batch).unwrap_err();
        assert_eq!(variant(&asked), expected, "{strategy}: {asked}");
        assert_helped(&graph, strategy, batch);
    }
}

#[test]
fn a_batch_norm_over_one_value_names_what_leaves_it_two() {
    let norm = "model norm\ninput x channels=2 extent=4\nc = conv x filters=4 kernel=4 bias=false\n\
                n = batch_norm c epsilon=1e-5 momentum=0.1\nl = conv n filters=2 kernel=1 bias=true\nloss = mse l\n";
    let graph = text::parse(norm).unwrap();
    for (strategy, batch, nearest) in [
        ("data=1", 1, "help: try a mini-batch of 2"),
        (
            "data=1,micro=4",
            4,
            "help: try micro=2, or a mini-batch of 8",
        ),
        (
            "micro=4,stages=[1|1],schedule=gems*2",
            4,
            "help: try a mini-batch of 8",
        ),
        (
            "data=2,batch_norm=local",
            2,
            "help: try batch_norm=synchronized, or a mini-batch of 4",
        ),
        (
            "data=2,batch_norm=local; n: N=-",
            4,
            "help: try `; n: N=data`, or batch_norm=synchronized",
        ),
        (
            "stages=[data=2|1],batch_norm=local",
            4,
            "batch_norm=synchronized",
        ),
    ] {
        let error = assert_helped(&graph, strategy, batch);
        assert!(error.contains(nearest), "{error}");
    }
}

#[test]
fn passes_beyond_what_can_be_ordered_name_fewer_micro_batches() {
    let mut model = String::from("model long\ninput x channels=1 extent=2\n");
    let mut before = "x".to_owned();
    for layer in 0..100 {
        model += &format!("r{layer} = relu {before}\n");
        before = format!("r{layer}");
    }
    model += &format!("c = conv {before} filters=1 kernel=1 bias=false\nloss = mse c\n");
    let graph = text::parse(&model).unwrap();
    for strategy in [
        "micro=16384,stages=80,schedule=1f1b",
        "micro=16384,stages=80,schedule=gems",
    ] {
        let asked = check(&graph, strategy, 16384).unwrap_err();
        assert_eq!(variant(&asked), "Passes", "{asked}");
        assert_helped(&graph, strategy, 16384);
    }
}

#[test]
fn where_nothing_near_is_valid_nothing_is_suggested() {
    let graph = text::parse(MODEL).unwrap();
    let typed = Typed {
        strategy: "stages=[..c2: 1|a1..c1: depth=2]".to_owned(),
        ranks: 3,
        batch: 2,
    };
    let refusal = typed.refusal(&graph).unwrap();
    assert!(
        refusal.contains("; no similar strategy is valid\nhelp: possible values: "),
        "{refusal}"
    );
    assert_eq!(typed.suggestions(&refusal), []);
}

/// Errors travel through many results that hold little else.
#[test]
fn errors_are_small() {
    assert!(size_of::<StrategyError>() < 128);
    assert!(size_of::<LowerError>() < 128);
}
