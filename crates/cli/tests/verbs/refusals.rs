//! What a user may get wrong, and what is said then.

use crate::command::{answer, refusal};

fn lower<'a>(ranks: &'a str, batch: &'a str, strategy: &'a str) -> Vec<&'a str> {
    let head = ["lower", "cosmoflow@32", "--ranks", ranks];
    [&head[..], &["--batch", batch, "--strategy", strategy]].concat()
}

#[test]
fn strategies_that_do_not_fit_are_refused_with_the_nearest() {
    for (ranks, batch, strategy, expected) in [
        ("2", "2", "dept=2", "did you mean `depth`?"),
        ("2", "2", "time=2", "the axes are data, depth"),
        ("2", "2", "depth", "not of the form axis=number"),
        (
            "2",
            "2",
            "depth=two",
            "possible is a whole number, at least 1",
        ),
        ("2", "2", "depth=0", "nearest is `depth=1`"),
        ("2", "2", "data=2,micro=-4", "nearest is `micro=4`"),
        (
            "2",
            "2",
            "data=2,shard=optimiser",
            "nearest is `shard=optimizer`",
        ),
        ("2", "2", "data=2,overlap=no", "nearest is `overlap=off`"),
        ("2", "2", "data=2,fuse=true", "nearest is `fuse=on`"),
        (
            "2",
            "2",
            "depth=2; conv1: halo=group",
            "nearest is `halo=grouped`",
        ),
        (
            "2",
            "2",
            "depth=2; conv1: recompute=yes",
            "nearest is `recompute=on`",
        ),
        ("2", "2", "auto", "one of them is `data=2`"),
        ("2", "2", "", "not of the form axis=number"),
        ("4", "2", "depth=2,depth=2", "given twice"),
        ("8", "8", "data=3,depth=2", "`data=4,depth=2` for 8"),
        ("3", "8", "depth=2", "`data=3` for 3"),
        ("9", "8", "depth=2", "choose ranks = 2"),
        (
            "2",
            "2",
            "depth=2; conv*..: D=-",
            "in which `*` cannot stand",
        ),
        (
            "2",
            "2",
            "depth=2; overlap=off; conv1..pool1: branches=2",
            "no layers of the model have any",
        ),
        (
            "2",
            "2",
            "branch=2",
            "the axes possible here are data, depth, height, width, filter, channel",
        ),
        ("8", "8", "filter=8", "the filters of `fc3` of 4"),
        ("2", "2", "filter=2; fc9: F=-", "nearest is `fc1`"),
        (
            "2",
            "2",
            "depth=2; pool1: F=depth",
            "possible are N, D, H, W and C",
        ),
        (
            "2",
            "2",
            "depth=2; conv2: F=depth,D=depth",
            "in layer `conv2` depth splits both D and F",
        ),
        ("2", "2", "micro=3,data=2", "micro=1"),
        ("2", "8", "data=2,micro=8", "micro=4"),
        (
            "2",
            "2",
            "depth=2,halo=grouped",
            "; conv1..conv4: halo=grouped",
        ),
        ("2", "2", "depth=2; conv1: D=width", "possible are `depth`"),
        ("33", "2", "depth=33", "depth=32"),
        ("4", "2", "data=4", "data=2"),
        ("2", "2", "overlap=maybe", "overlap=maybe"),
        (
            "2",
            "2",
            "data=4294967296,depth=4294967296",
            "at most 1048576 are possible",
        ),
    ] {
        let text = refusal(&lower(ranks, batch, strategy));
        assert!(text.contains(expected), "{strategy}: {text}");
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    for (ranks, batch) in [
        ("0", "1"),
        ("1", "0"),
        ("x", "1"),
        ("1", "1.5"),
        ("1", "-2"),
    ] {
        let text = refusal(&lower(ranks, batch, "data=1"));
        assert!(
            text.contains("nearest is 1") || text.contains("unexpected argument"),
            "{text}"
        );
    }
    let text = refusal(&lower("99999999999999999999", "1", "data=1"));
    assert!(text.contains("16777216"), "{text}");
    let plan = [
        "plan",
        "cosmoflow@32",
        "--ranks",
        "1",
        "--batch",
        "1",
        "--memory",
        "16",
    ];
    assert!(refusal(&plan).contains("16GiB"));
}

#[test]
fn verbs_and_options_that_do_not_exist_are_refused_with_the_nearest() {
    assert!(refusal(&["inspekt", "cosmoflow@32"]).contains("'inspect'"));
    assert!(refusal(&["models", "--jsn"]).contains("'--json'"));
    assert!(refusal(&["data", "cosmolgy"]).contains("'cosmology'"));
    assert!(refusal(&["inspect"]).contains("<MODEL>"));
    let wrong_kind = [&lower("1", "1", "data=1")[..], &["--kind", "trian"]].concat();
    assert!(refusal(&wrong_kind).contains("'train'"));
    refusal(&["inspect", "cosmoflow@32", "--text", "--json"]);
    refusal(&[]);
}

#[test]
fn help_is_an_answer() {
    let text = answer(&["--help"]);
    for verb in [
        "models", "inspect", "lower", "predict", "plan", "compare", "data", "doctor",
    ] {
        assert!(text.contains(verb), "no `{verb}` in\n{text}");
        assert!(answer(&[verb, "--help"]).contains("Usage"));
    }
    assert!(answer(&["--version"]).starts_with("partita "));
}
