//! What a refusal of a strategy suggests is accepted when it is typed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, text};
use partita_space::AXES;
use partita_testkit::{Draws, Typed, any_random_case, choices, is_of_word, seeds};

/// Corrections of a strategy with several errors in it.
const STEPS: usize = 12;

#[test]
fn every_suggestion_leads_to_an_accepted_strategy() {
    let range = seeds(1200, 3, 20_000);
    let cases = range.end - range.start;
    let (mut failures, mut followed, mut refused, mut helped) = (Vec::new(), 0, 0, 0);
    for seed in range {
        let mut draws = Draws::new(seed);
        let (graph, typed) = random_request(&mut draws, seed);
        let Some(refusal) = typed.refusal(&graph) else {
            continue;
        };
        refused += 1;
        helped += u64::from(!typed.suggestions(&refusal).is_empty());
        if let Err(what) = follow(
            &graph,
            std::slice::from_ref(&typed),
            &refusal,
            &mut followed,
        ) {
            let model = text::print(&graph);
            failures.push(format!("PARTITA_SEED={seed} {typed:?}:\n{what}\n{model}"));
        }
    }
    let all = failures.len();
    failures.truncate(6);
    assert!(all == 0, "{all} of {refused}: {}", failures.join("\n"));
    assert!(3 * refused > cases, "{refused} of {cases} are refused");
    assert!(
        5 * helped > 4 * refused,
        "{helped} of {refused} refusals suggest something"
    );
    assert!(
        followed > refused,
        "{followed} suggestions of {refused} refusals"
    );
}

/// Types all suggestions of the refusal of what was typed last, and those of what is refused then.
fn follow(graph: &Graph, typed: &[Typed], refusal: &str, followed: &mut u64) -> Result<(), String> {
    if refusal.contains(".pad") {
        return Err(format!("names a layer that nobody wrote: {refusal}"));
    }
    let is_read = !refusal.contains("there is no schedule");
    let of_model = is_read && !is_of_word(refusal) && choices(refusal).is_some();
    let Some(last) = typed.last() else {
        return Ok(());
    };
    for next in last.suggestions(refusal) {
        *followed += 1;
        let Some(again) = next.refusal(graph) else {
            continue;
        };
        let step = format!("{refusal}\n then {next:?}: {again}");
        if of_model || typed.len() == STEPS || typed.contains(&next) {
            return Err(step);
        }
        let all = [typed, &[next]].concat();
        follow(graph, &all, &again, followed).map_err(|what| format!("{step}\n{what}"))?;
    }
    Ok(())
}

/// A model with a strategy that fits it but for a few changes.
fn random_request(draws: &mut Draws, seed: u64) -> (Graph, Typed) {
    let (graph, mut typed) = if draws.one_in(3) {
        let typed = Typed {
            strategy: "data=1".to_owned(),
            ranks: 1,
            batch: draws.between(1, 6),
        };
        (padded(draws), typed)
    } else {
        let case = any_random_case(seed);
        let typed = Typed {
            strategy: case.strategy.to_string(),
            ranks: case.strategy.ranks(),
            batch: case.batch,
        };
        (case.graph, typed)
    };
    for _ in 0..draws.between(1, 3) {
        change(draws, &graph, &mut typed);
    }
    // Mostly on as many ranks as it is for.
    if let Ok(strategy) = typed.strategy.parse::<partita_testkit::Strategy>()
        && !draws.one_in(8)
    {
        typed.ranks = strategy.ranks();
    }
    (graph, typed)
}

/// Convolutions with all kinds of padding, some normalized, that split their channels in groups or share weights.
fn padded(draws: &mut Draws) -> Graph {
    let extent = draws.between(6, 12);
    let mut model = format!("model padded\ninput x channels=2 extent={extent}\n");
    let mut head = "x".to_owned();
    for layer in 1..=draws.between(2, 5) {
        let padding = draws.pick(&["zero", "periodic", "replicate", "reflect", "reflect"]);
        let (groups, filters) = (draws.pick(&[1, 1, 2]), 2 * draws.between(1, 3));
        model += &format!(
            "c{layer} = conv {head} filters={filters} kernel=3 pad=1 padding={padding} groups={groups} bias=true\n"
        );
        head = format!("c{layer}");
        if draws.one_in(3) {
            model += &format!("n{layer} = batch_norm {head} epsilon=1e-5 momentum=0.1\n");
            head = format!("n{layer}");
        }
        if draws.one_in(2) {
            model += &format!("r{layer} = relu {head}\n");
            head = format!("r{layer}");
        }
    }
    model += &format!("f = flatten {head}\nl = linear f features=3 bias=true\nloss = mse l\n");
    text::parse(&model).unwrap()
}

/// Changes what is typed so that it may be refused.
fn change(draws: &mut Draws, graph: &Graph, typed: &mut Typed) {
    let names: Vec<&str> = graph.layer_names().collect();
    let name = |draws: &mut Draws| names[draws.between(0, names.len() - 1)];
    let strategy = &mut typed.strategy;
    match draws.between(0, 13) {
        0..=2 => {
            let axis = AXES[draws.between(0, 6)].name();
            set(strategy, &format!("{axis}={}", draws.between(2, 9)));
        }
        3 => set(strategy, &format!("micro={}", draws.between(2, 9))),
        4 => typed.batch = draws.between(1, 9),
        5 => {
            let stages = [
                "stages=2",
                "stages=9",
                "stages=[data=2|1]",
                "stages=[1|filter=3]",
            ];
            set(strategy, draws.pick(&stages));
        }
        6 => {
            let [a, b, c] = [(); 3].map(|()| name(draws));
            let stages = [
                format!("stages=[..{a}: 1|{b}..: depth=2]"),
                format!("stages=[..{a}: 1|{b}..{c}: 1|{c}..: 1]"),
                format!("stages=[{a}: width=2|{b}: 1]"),
            ];
            set(strategy, &stages[draws.between(0, 2)]);
        }
        7 => {
            let schedules = [
                "gems",
                "gems*2",
                "chimera",
                "interleaved*2",
                "interleaved*3",
                "gpipe",
            ];
            set(strategy, &format!("schedule={}", draws.pick(&schedules)));
        }
        8 => {
            let words = [
                "batch_norm=local",
                "shard=optimizer",
                "shard=parameters",
                "micro=0",
            ];
            set(strategy, draws.pick(&words));
        }
        // All of it is ASCII.
        9 => drop(strategy.remove(draws.between(0, strategy.len() - 1))),
        10 => {
            let choice = draws.pick(&[
                "recompute=on",
                "halo=grouped",
                "branches=2",
                "branches=[2|1]",
            ]);
            *strategy += &format!("; {}..{}: {choice}", name(draws), name(draws));
        }
        _ => {
            let dim = draws.pick(&["N", "D", "H", "W", "C", "F"]);
            let axes = ["-", "data", "filter", "channel", "width", "filter+channel"];
            *strategy += &format!("; {}: {dim}={}", name(draws), draws.pick(&axes));
        }
    }
}

/// Sets a word before the first semicolon.
fn set(strategy: &mut String, word: &str) {
    let (key, _) = word.split_once('=').unwrap();
    let (head, entries) = match strategy.split_once(';') {
        Some((head, entries)) => (head.to_owned(), format!(";{entries}")),
        None => (strategy.clone(), String::new()),
    };
    let (mut words, mut depth) = (vec![String::new()], 0);
    for letter in head.chars() {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        match letter {
            ',' if depth == 0 => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|one| !one.starts_with(&format!("{key}=")) && !one.is_empty());
    words.push(word.to_owned());
    *strategy = words.join(",") + &entries;
}
