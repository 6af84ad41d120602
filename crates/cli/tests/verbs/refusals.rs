//! What a user may get wrong, and what is said then.

use crate::command::{answer, refusal};

fn lower<'a>(ranks: &'a str, batch: &'a str, strategy: &'a str) -> Vec<&'a str> {
    let head = ["lower", "cosmoflow@32", "--ranks", ranks];
    [&head[..], &["--batch", batch, "--strategy", strategy]].concat()
}

/// Asserts that `lower` refuses each case of ranks, mini-batch and strategy, and says what is expected.
fn assert_refused(cases: &[(&str, &str, &str, &str)]) {
    for (ranks, batch, strategy, expected) in cases {
        let text = refusal(&lower(ranks, batch, strategy));
        assert!(text.contains(expected), "{strategy}: {text}");
    }
}

#[test]
fn axes_and_values_that_do_not_exist_are_refused_with_the_nearest() {
    assert_refused(&[
        ("2", "2", "dept=2", "help: try `depth`"),
        ("2", "2", "time=2", "the axes are data, depth"),
        ("2", "2", "depth", "not of the form axis=number"),
        ("2", "2", "data:2", "help: try `data=2`"),
        ("2", "2", "depth2", "help: try `depth=2`"),
        ("2", "2", "depth=2; dta 2", "help: try `data=2`"),
        ("4", "2", "data=2 depth=2", "help: try `data=2,depth=2`"),
        ("2", "2", "dp=2", "help: try `data`"),
        ("2", "2", "D=2", "help: try `depth`"),
        ("2", "2", "tp=2", "help: try `filter`"),
        ("2", "2", "pp=2", "help: try `stages`"),
        (
            "2",
            "2",
            "depth=two",
            "possible values: a whole number, at least 1",
        ),
        ("2", "2", "depth=0", "help: try `depth=1`"),
        ("2", "2", "data=2,micro=-4", "help: try `micro=4`"),
        (
            "2",
            "2",
            "data=2,shard=optimiser",
            "help: try `shard=optimizer`",
        ),
        ("2", "2", "data=2,overlap=no", "help: try `overlap=off`"),
        ("2", "2", "data=2,fuse=true", "help: try `fuse=on`"),
        (
            "2",
            "2",
            "depth=2; conv1: halo=group",
            "help: try `halo=grouped`",
        ),
        (
            "2",
            "2",
            "depth=2; conv1: recompute=yes",
            "help: try `recompute=on`",
        ),
        (
            "2",
            "2",
            "depth=2; ..: recompute=selectiv",
            "help: try `recompute=selective`",
        ),
        (
            "2",
            "2",
            "depth=2; conv1..pool1: chunk=2",
            "help: try `chunks=2`",
        ),
        (
            "2",
            "2",
            "depth=2; x: chunks=2",
            "cannot be computed in chunks, as it is read from files",
        ),
        ("2", "2", "auto", "such as `data=2`"),
        ("2", "2", "", "not of the form axis=number"),
        ("4", "2", "depth=2,depth=2", "given twice"),
        ("2", "2", "overlap=maybe", "overlap=maybe"),
        (
            "2",
            "2",
            "data=4294967296,depth=4294967296",
            "help: try `data=1048576`",
        ),
    ]);
}

#[test]
fn settings_on_the_wrong_side_of_a_semicolon_are_moved() {
    assert_refused(&[
        (
            "2",
            "2",
            "depth=2,recompute=on,overlap=off; conv2: halo=own",
            "help: try `depth=2,overlap=off; ..: recompute=on; conv2: halo=own`",
        ),
        (
            "2",
            "2",
            "depth=2; ..: shard=parameters; conv2: halo=own",
            "help: try `depth=2,shard=parameters; conv2: halo=own`",
        ),
        (
            "2",
            "2",
            "depth=2; conv2: halo=own,micro=2",
            "help: try `depth=2,micro=2; conv2: halo=own`",
        ),
    ]);
}

#[test]
fn strategies_that_do_not_fit_ranks_and_batch_are_refused_with_the_nearest() {
    assert_refused(&[
        ("8", "8", "data=3,depth=2", "`data=4,depth=2` for 8"),
        ("3", "8", "depth=2", "`data=3` for 3"),
        ("9", "8", "depth=2", "help: try ranks = 2"),
        ("8", "8", "filter=8", "the filters of `fc3` of 4"),
        (
            "64",
            "8",
            "filter=64",
            "help: try filter=4 with ranks = 4, or `; conv1: F=-; ",
        ),
        ("33", "2", "depth=33", "depth=32"),
        ("4", "2", "data=4", "data=2"),
        ("2", "2", "micro=3,data=2", "micro=1"),
        ("2", "8", "data=2,micro=8", "micro=4"),
    ]);
}

#[test]
fn strategies_that_do_not_fit_layers_are_refused_with_the_nearest() {
    assert_refused(&[
        (
            "2",
            "2",
            "depth=2; conv*..: D=-",
            "in which `*` cannot stand",
        ),
        ("2", "2", "filter=2; fc9: F=-", "help: try `fc1`"),
        (
            "2",
            "2",
            "depth=2; conv1: D=width",
            "possible values: `depth`",
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
            "possible values: data, depth, height, width, filter, channel",
        ),
        (
            "2",
            "2",
            "depth=2; pool1: F=depth",
            "possible values: N, D, H, W and C",
        ),
        (
            "2",
            "2",
            "depth=2; conv2: F=depth,D=depth",
            "in layer `conv2` depth splits both D and F",
        ),
        (
            "2",
            "2",
            "depth=2,halo=grouped",
            "; conv1..conv4: halo=grouped",
        ),
    ]);
}

#[test]
fn what_a_refusal_suggests_is_possible() {
    let staged = "micro=2,stages=[1|1]";
    for asked in [
        "schedule=gems*1000000",
        "schedule=gems*0",
        "schedule=gems*16384",
    ] {
        let text = refusal(&lower("2", "2", &format!("{staged},{asked}")));
        let (_, nearest) = text.split_once("help: try `").unwrap();
        let (nearest, _) = nearest.split_once('`').unwrap();
        answer(&lower("2", "2", &format!("{staged},{nearest}")));
    }
    let text = refusal(&lower("8", "8", "filter=8"));
    let nearest = "help: try data=2,filter=4, or `; fc3: F=-` to leave this layer out";
    assert!(text.trim_end().ends_with(nearest), "{text}");
    answer(&lower("8", "8", "data=2,filter=4"));
    answer(&lower("8", "8", "filter=8; fc3: F=-"));
    let text = refusal(&lower("2", "2", "depth=2.5"));
    assert!(text.contains("help: try `depth=2`"), "{text}");
    answer(&lower("2", "2", "depth=2"));
    let plan = |memory: &str| {
        let asked = ["--ranks", "1", "--batch", "1", "--memory", memory];
        let machine = ["--machine", "lassen", "--no-io"];
        [&["plan", "cosmoflow@32"][..], &asked, &machine]
            .concat()
            .join(" ")
    };
    let memory = plan("18446744073709551616B");
    let text = refusal(&memory.split(' ').collect::<Vec<_>>());
    assert!(text.contains("help: try `8192TiB`"), "{text}");
    answer(&plan("8192TiB").split(' ').collect::<Vec<_>>());
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
            text.contains("help: try 1") || text.contains("unexpected argument"),
            "{text}"
        );
    }
    let text = refusal(&lower("99999999999999999999", "1", "data=1"));
    assert!(text.contains("1048576"), "{text}");
    let text = refusal(&lower("1", "99999999999999999999", "data=1"));
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
fn sizes_that_cannot_be_counted_are_refused_by_name() {
    for (strategy, expected) in [
        (
            "micro=2,stages=[1|1],schedule=gems*9223372036854775808",
            "help: try `schedule=gems`; possible values: gems*N with N from 1 to 8192",
        ),
        (
            "micro=2,stages=[1|1],schedule=interleaved*9223372036854775808",
            "help: try `schedule=interleaved*2`",
        ),
        (
            "data=2,micro=9223372036854775808",
            "help: try `micro=16384`",
        ),
    ] {
        let text = refusal(&lower("2", "2", strategy));
        assert!(text.contains(expected), "{strategy}: {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.model");
    let head = "model m\ninput x channels=1 extent=2097152x2097152\n";
    let pooled = "p = max_pool x kernel=1024 stride=1024\nf = flatten p\n";
    let tail = "l = linear f features=2 bias=true\nloss = mse l\n";
    std::fs::write(&path, [head, pooled, tail].concat()).unwrap();
    let model = path.to_str().unwrap();
    for verb in ["lower", "predict"] {
        let batch = [verb, model, "--ranks", "1", "--batch", "65"];
        let text = refusal(&[&batch[..], &["--strategy", "data=1"]].concat());
        let nearest = "help: try a mini-batch of 64";
        assert!(text.contains(nearest), "{text}");
    }
    let plan = ["plan", model, "--ranks", "1", "--batch", "65"];
    let text = refusal(&[&plan[..], &["--machine", "lassen", "--no-io"]].concat());
    assert!(text.contains("a mini-batch of at most 64"), "{text}");
    let large = pooled.replace("kernel=1024", "kernel=2097152 pad=1048576");
    std::fs::write(&path, [head, &large, tail].concat()).unwrap();
    let text = refusal(&["inspect", model]);
    assert!(
        text.contains("`p`") && text.contains("are too many"),
        "{text}"
    );
}

/// A process that gets less address space than it needs says so and ends as after other failures.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_system_does_not_give_is_told() {
    let call = format!(
        "ulimit -v 90000; exec {} lower resnet1001v2@1024 --ranks 8 --batch 8 \
         --strategy data=2,height=4 --json",
        env!("CARGO_BIN_EXE_partita")
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &call])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("out of memory"), "{text}");
    assert!(text.contains("ulimit -v"), "{text}");
}

/// More threads than the system allows would abort the process when they start.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_started_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    let calibrate = ["calibrate", "--ranks", "1", "--threads", "16777216"];
    let text = refusal(&[&calibrate[..], &["--output", file.to_str().unwrap()]].concat());
    assert!(text.contains("1 rank(s) of 16777216 thread(s)"), "{text}");
    assert!(text.contains("help: try `threads = "), "{text}");
    let calibrate = ["calibrate", "--ranks", "1048576", "--threads", "1"];
    let text = refusal(&[&calibrate[..], &["--output", file.to_str().unwrap()]].concat());
    assert!(text.contains("help: try `ranks = "), "{text}");
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
