//! What a refusal calls the nearest valid choice is accepted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, text, zoo};
use partita_lower::{LowerError, Strategy, StrategyError};

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

/// What is asked for with a word of a strategy replaced, or added.
fn with_word(strategy: &str, word: &str) -> String {
    let (key, _) = word.split_once('=').unwrap();
    let (mut words, mut depth) = (vec![String::new()], 0);
    for letter in strategy.chars() {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        match letter {
            ',' if depth == 0 => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|one| one.split_once('=').unwrap().0 != key);
    words.push(word.to_owned());
    words.join(",")
}

fn check(graph: &Graph, strategy: &str, batch: usize) -> Result<(), StrategyError> {
    strategy.parse::<Strategy>()?.check(graph, batch)
}

fn variant(error: &StrategyError) -> String {
    let text = format!("{error:?}");
    text.split(' ').next().unwrap().to_owned()
}

/// The strategy and the mini-batch that an error names as nearest.
fn nearest(strategy: &str, batch: usize, error: &str) -> (String, usize) {
    let (_, choice) = error
        .split_once("; nearest is `")
        .or_else(|| error.split_once("the nearest valid choice is "))
        .unwrap_or_else(|| panic!("nothing is near: {error}"));
    let choice = choice.trim_end_matches('`');
    let (words, batch) = match choice.split_once(" with a mini-batch of ") {
        Some((words, batch)) => (words, batch.parse().unwrap()),
        None => (choice, batch),
    };
    let one_by_one = words.split(',');
    let strategy = one_by_one.fold(strategy.to_owned(), |all, word| with_word(&all, word));
    (strategy, batch)
}

/// The refusal of a strategy as users see it.
fn explained(graph: &Graph, strategy: &str, batch: usize) -> String {
    let strategy: Strategy = strategy.parse().unwrap();
    let error = strategy.check_layout(graph, batch).unwrap_err();
    strategy.explain(graph, batch, error).to_string()
}

#[test]
fn a_split_that_several_layers_refuse_names_what_all_of_them_allow() {
    let graph = zoo::build("cosmoflow@32").unwrap();
    for asked in ["filter=32", "filter=64", "data=2,filter=64"] {
        let error = explained(&graph, asked, 64);
        let (_, nearest) = error.split_once("the nearest valid choice is ").unwrap();
        let (word, others) = nearest.split_once(" for all layers, or `").unwrap();
        check(&graph, &with_word(asked, word), 64).unwrap();
        let (words, end) = others.split_once('`').unwrap();
        assert_eq!(end, " to leave these layers out", "{error}");
        check(&graph, &format!("{asked}{words}"), 64).unwrap();
    }
    let error = explained(&graph, "channel=64", 64);
    assert!(error.ends_with("is channel=16"), "{error}");
    check(&graph, "channel=16", 64).unwrap();
    let error = explained(&graph, "filter=8", 64);
    assert!(
        error.ends_with("is filter=4, or `; fc3: F=-` to leave this layer out"),
        "{error}"
    );
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
    let (asked, batch) = ("filter=6", 6);
    let alone = check(&graph, asked, batch).unwrap_err().to_string();
    assert!(alone.contains("the nearest valid choice is 4"), "{alone}");
    check(&graph, "filter=4", batch).unwrap_err();
    let error = explained(&graph, asked, batch);
    assert!(error.contains("the nearest valid choice is 2"), "{error}");
    check(&graph, "filter=2", batch).unwrap();
}

#[test]
fn a_suggested_word_is_accepted() {
    let graph = text::parse(MODEL).unwrap();
    for (strategy, batch, expected) in [
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
        ("stages=0", 2, "Value"),
        ("stages=-2", 2, "Value"),
        ("width=2.5", 2, "Value"),
        ("width=1e400", 2, "Value"),
        ("data=2,micro=2.5", 4, "Value"),
        ("data=2,micro=3", 4, "Micro"),
        ("data=4,micro=16384", 16, "Micro"),
    ] {
        let error = check(&graph, strategy, batch).unwrap_err();
        assert_eq!(variant(&error), expected, "{strategy}: {error}");
        let error = error.to_string();
        if strategy.starts_with("width=1e400") {
            // That many ranks are too many for this model, which the strategy alone does not tell.
            continue;
        }
        let (other, batch) = nearest(strategy, batch, &error);
        if let Err(again) = check(&graph, &other, batch) {
            panic!("{strategy}: {error}: then {other} with {batch}: {again}");
        }
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
        let error = check(&graph, strategy, 16384).unwrap_err();
        assert_eq!(variant(&error), "Passes", "{error}");
        let (other, batch) = nearest(strategy, 16384, &error.to_string());
        check(&graph, &other, batch).unwrap();
    }
}

/// Errors travel through many results that hold little else.
#[test]
fn errors_are_small() {
    assert!(size_of::<StrategyError>() < 128);
    assert!(size_of::<LowerError>() < 128);
}
