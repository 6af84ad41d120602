//! Parameters that layers of several stages hold, with one replica of the model and with two.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::menus;
use crate::request;

use partita_graph::{Graph, text};
use partita_lower::{Request, Strategy, StrategyError, lower};
use partita_program::{Program, ProgramKind, Work};
use partita_testkit::{Typed, verify};
use request::request;

/// An embedding at both ends, and between them convolutions of which the first and the last share weights.
const TIED: &str = "model m
input x channels=1 extent=7
e1 = embedding x rows=5 channels=4
c0e = embedding x rows=5 channels=4 weight=e1.weight
c0 = add e1 c0e
c1 = conv c0 filters=4 kernel=3 pad=1 bias=false
c2 = conv c1 filters=4 kernel=3 pad=1 bias=false
c3 = conv c2 filters=4 kernel=3 pad=1 bias=true weight=c1.weight
c6 = relu c3
c7e = embedding x rows=5 channels=4 weight=e1.weight
c7 = add c6 c7e
fl = flatten c7
li = linear fl features=4 bias=true
loss = softmax_cross_entropy li
";

fn program(graph: &Graph, strategy: &str, clip: Option<f64>) -> Program {
    let parsed: Strategy = strategy.parse().unwrap();
    parsed.check(graph, 4).unwrap();
    let request = Request {
        decay_norms: true,
        ema: None,
        clip,
        ..request(graph, &parsed, 4)
    };
    // With weights packed once for several micro-batches, too.
    let menu = &menus::Packer;
    check(&lower(&Request { menu, ..request }).unwrap());
    let program = lower(&request).unwrap();
    check(&program);
    program
}

fn check(program: &Program) {
    let faults = verify::verify(program).err();
    let other = faults.iter().flat_map(|faults| &faults.0);
    // The menu pins nothing.
    let other = other.filter(|fault| !matches!(fault, verify::Fault::Unpinned { .. }));
    let other: Vec<String> = other.map(ToString::to_string).collect();
    assert!(other.is_empty(), "{}: {other:?}", program.title);
}

#[test]
fn stages_of_two_replicas_share_parameters_on_the_same_ranks() {
    let graph = text::parse(TIED).unwrap();
    for schedule in ["gems", "gems*2", "chimera", "1f1b"] {
        for stages in [
            "..c2: channel=2|c3..: width=2",
            "..c2: filter=2|c3..: width=2",
            "..c2: channel=2|c3..: filter=2",
            "..c2: channel=3|c3..: filter=3",
            "..c0: channel=2|c1..c1: filter=2|c2..c2: width=2|c3..: filter=2",
        ] {
            for rest in ["", "; c1..c6: recompute=on"] {
                let strategy = format!("micro=4,stages=[{stages}],schedule={schedule}{rest}");
                program(&graph, &strategy, Some(1.0));
            }
        }
    }
}

/// What a rank sends and what it receives of a parameter that is handed out is one exchange.
#[test]
fn numbers_of_exchanges_are_distinct_on_each_rank() {
    let graph = text::parse(TIED).unwrap();
    let strategy = "micro=4,stages=[..c2: channel=2|c3..: width=2],schedule=chimera";
    let program = program(&graph, strategy, None);
    let mut both_ways = 0;
    for body in &program.bodies {
        let exchanges = body.tasks.iter().filter_map(|task| match &task.work {
            Work::Exchange(exchange) => Some((task.origin.layer.as_str(), exchange)),
            Work::Compute { .. } | Work::Collective(_) | Work::Load(_) | Work::Store(_) => None,
        });
        let mut numbers = std::collections::BTreeSet::new();
        for (layer, exchange) in exchanges {
            assert!(numbers.insert(exchange.sequence), "{layer}");
            let is_both = !exchange.sends.is_empty() && !exchange.receives.is_empty();
            both_ways += usize::from(is_both && layer == "c1.weight");
        }
    }
    assert!(both_ways > 0);
}

/// As many holders as a pipeline has stages, twice, and more uses than any fixed range of numbers has.
#[test]
fn any_number_of_stages_shares_a_parameter() {
    let mut model = String::from(
        "model long\ninput x channels=1 extent=4\nh0 = embedding x rows=3 channels=2\n",
    );
    let uses = 72;
    for at in 1..=uses {
        let before = at - 1;
        model += &format!("e{at} = embedding x rows=3 channels=2 weight=h0.weight\n");
        model += &format!("h{at} = add h{before} e{at}\n");
    }
    model += &format!("loss = mse h{uses}\n");
    let graph = text::parse(&model).unwrap();
    let stages: Vec<String> = (1..=uses)
        .map(|at| match at {
            1 => "..h1: width=1".to_owned(),
            _ if at == uses => format!("e{at}..: width=1"),
            _ => format!("e{at}..h{at}: width=1"),
        })
        .collect();
    let strategy = format!("micro=2,stages=[{}],schedule=gems", stages.join("|"));
    let parsed: Strategy = strategy.parse().unwrap();
    let program = lower(&request(&graph, &parsed, 2)).unwrap();
    assert_eq!(program.mesh.ranks(), uses);
    check(&program);
}

#[test]
fn replicas_on_the_same_ranks_must_split_a_parameter_alike() {
    let graph = text::parse(TIED).unwrap();
    let refused = |rest: &str, schedule: &str| {
        let text =
            format!("micro=4,stages=[..c2: filter=2|c3..: filter=2],schedule={schedule}{rest}");
        let strategy: Strategy = text.parse().unwrap();
        strategy
            .check(&graph, 4)
            .err()
            .map(|error| error.to_string())
    };
    for schedule in ["gems", "1f1b"] {
        assert_eq!(refused("", schedule), None);
    }
    // Stages on ranks of their own may.
    assert_eq!(refused("; c7e: F=-", "1f1b"), None);
    let error = refused("; c7e: F=-", "gems").unwrap();
    for part in [
        "`e1` and `c7e` share `e1.weight`",
        "`e1` has C=-,F=filter (by default)",
        "`c7e` has C=-,F=- (`c7e: F=-`)",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

/// Layers in front of which axes are swapped, or might be, and that share their weights.
const TURNING: &str = "model m
input x channels=1 extent=8
a = embedding x rows=5 channels=4
e1 = conv a filters=4 kernel=3 pad=1 bias=true
r = relu e1
m1 = conv r filters=6 kernel=3 pad=1 bias=true
m2 = conv m1 filters=4 kernel=3 pad=1 bias=true
e2 = conv m2 filters=4 kernel=3 pad=1 bias=true weight=e1.weight
b = embedding x rows=5 channels=4 weight=a.weight
s = add e2 b
f = flatten s
l = linear f features=4 bias=true
loss = softmax_cross_entropy l
";

#[test]
fn layers_that_share_weights_assign_axes_alike_by_default() {
    let graph = text::parse(TURNING).unwrap();
    for strategy in [
        "filter=2,channel=2",
        "filter=2,channel=2; m1: C=-",
        "channel=2; m2: C=-",
        "micro=4,stages=[1|channel=2|channel=2|1],schedule=gems",
        "micro=4,stages=[channel=2|1|1|channel=2],schedule=chimera",
    ] {
        program(&graph, strategy, None);
    }
}

#[test]
fn the_strategy_that_a_refusal_of_shared_parameters_names_is_accepted() {
    let (tied, turning) = (text::parse(TIED).unwrap(), text::parse(TURNING).unwrap());
    for (graph, strategy) in [
        (&tied, "filter=2; c7e: F=-"),
        (&tied, "filter=2; e1: F=-"),
        (&tied, "width=2; c1: W=-,F=width"),
        (
            &tied,
            "micro=4,stages=[filter=2|filter=2],schedule=gems; c7e: F=-",
        ),
        (&turning, "filter=2,channel=2; e1: F=filter+channel,C=-"),
        (&turning, "filter=2,channel=2; a..r: F=-; m2..: C=-"),
    ] {
        let parsed: Strategy = strategy.parse().unwrap();
        let refused = parsed.check(graph, 4).unwrap_err();
        assert!(matches!(refused, StrategyError::Shared(_)), "{refused}");
        let typed = Typed {
            strategy: strategy.to_owned(),
            ranks: parsed.ranks(),
            batch: 4,
        };
        let refusal = typed.refusal(graph).unwrap();
        let suggestions = typed.suggestions(&refusal);
        assert!(!suggestions.is_empty(), "{refusal}");
        for next in suggestions {
            let alike = next.strategy.parse::<Strategy>().unwrap().to_string();
            assert!(alike.starts_with(&parsed.to_string()), "{refusal}");
            program(graph, &next.strategy, None);
        }
    }
}

#[test]
fn evaluations_hold_shared_parameters_as_training_does() {
    let graph = text::parse(TIED).unwrap();
    let strategy = "micro=4,stages=[..c2: channel=2|c3..: width=2],schedule=chimera";
    let strategy: Strategy = strategy.parse().unwrap();
    let [train, evaluate] = [ProgramKind::Train, ProgramKind::Evaluate].map(|kind| {
        let request = Request {
            kind,
            ..request(&graph, &strategy, 4)
        };
        lower(&request).unwrap()
    });
    for rank in 0..train.mesh.ranks() {
        let kept = |program: &Program| -> Vec<(String, u64)> {
            let buffers = program.body(rank).buffers.iter();
            let kept = buffers.filter(|buffer| buffer.role.is_persistent());
            kept.map(|buffer| (buffer.name.clone(), buffer.offset.0))
                .collect()
        };
        assert_eq!(kept(&train), kept(&evaluate));
    }
}
