//! Run files: keys, values, and what is refused.

use crate::train::run_file::{RunFile, TrainConfig};
use partita_program::{Optimizer, Transform};
use partita_session::{LearningRateSchedule, Milestones, WarmupLength};
use partita_site::kernel_set::{KernelSet, Precision};
use partita_space::{Bytes, Seconds};

const FULL: &str = r#"
model = "cosmoflow@32"
data = "sets/a"
output = "runs/demo"
ranks = 2
threads = 3
strategy = "depth=2"
kernels = "reference"
precision = "f64"
batch = 16
epochs = 20
seed = 7
transform = { scale = 0.01 }
watchdog = "1.5 min"
memory = "16GiB"
[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 1e-4
clip = 1
[schedule]
kind = "cosine"
learning_rate = 0.001
final_factor = 0.1
"#;

const SHORT: &str = r#"
model = "m"
data = "d"
output = "o"
batch = 4
epochs = 2
[schedule]
learning_rate = 1e-3
"#;

#[test]
fn everything_that_can_be_said_is_read() {
    let run = RunFile::parse(FULL, "RUN.toml").unwrap().config;
    assert_eq!(
        (run.ranks, run.threads, run.batch, run.epochs, run.seed),
        (2, 3, 16, 20, 7)
    );
    assert_eq!(
        (run.kernels, run.precision),
        (KernelSet::REFERENCE, Precision::F64)
    );
    assert_eq!(run.samples.transform, Transform::Scale { factor: 0.01 });
    assert_eq!(
        (run.watchdog, run.memory),
        (Seconds(90.0), Some(Bytes(16 << 30)))
    );
    let sgd = Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 1e-4,
    };
    assert_eq!((run.optimizer, run.clip), (sgd, Some(1.0)));
    let cosine = LearningRateSchedule::Cosine {
        rate: 0.001,
        final_factor: 0.1,
        epochs: 20.0,
    };
    assert_eq!((run.schedule, run.strategy.as_str()), (cosine, "depth=2"));
}

#[test]
fn what_is_not_said_has_the_documented_default() {
    let run = RunFile::parse(SHORT, "RUN.toml").unwrap().config;
    assert_eq!((run.ranks, run.threads, run.seed), (1, 1, 1));
    assert_eq!(
        (run.kernels, run.precision),
        (KernelSet::CPU, Precision::F32)
    );
    assert_eq!(
        (run.samples.transform, run.watchdog),
        (Transform::Identity, Seconds(60.0))
    );
    assert_eq!(
        (run.memory, run.clip, run.strategy.as_str()),
        (None, None, "auto")
    );
    let adam = Optimizer::Adam {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
    };
    assert_eq!(run.optimizer, adam);
    assert_eq!(run.schedule, LearningRateSchedule::Constant { rate: 1e-3 });
    let log = SHORT.replace("batch = 4", "batch = 4\ntransform = \"log1p\"");
    assert_eq!(
        RunFile::parse(&log, "r").unwrap().config.samples.transform,
        Transform::LogOnePlus
    );
}

/// The full text with one line replaced.
fn refused(line: &str, by: &str) -> String {
    assert!(FULL.contains(line), "{line}");
    RunFile::parse(&FULL.replace(line, by), "RUN.toml")
        .unwrap_err()
        .to_string()
}

/// Asserts that each replacement of a line is refused in one line, with help below it, with all expected parts.
fn assert_refused(cases: &[(&str, &str, [&str; 3])]) {
    for (line, by, parts) in cases {
        let error = refused(line, by);
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        let mut rest = error.lines().skip(1);
        assert!(rest.all(|line| line.starts_with("help: ")), "{error}");
    }
}

#[test]
fn faults_of_keys_and_syntax_name_key_line_and_what_is_possible() {
    assert_refused(&[
        (
            "epochs = 20",
            "epoch = 20",
            ["line 11", "`epoch`", "help: try `epochs`"],
        ),
        (
            "momentum = 0.9",
            "beta1 = 0.9",
            [
                "line 18",
                "`optimizer.beta1`",
                "possible values: kind, momentum",
            ],
        ),
        (
            "[optimizer]",
            "[optimiser]",
            ["line 16", "`optimiser`", "help: try `optimizer`"],
        ),
        (
            "learning_rate = 0.001",
            "",
            [
                "line 21",
                "`schedule.learning_rate` is missing",
                "like 0.001",
            ],
        ),
        (
            "model = \"cosmoflow@32\"",
            "",
            ["line 1", "`model` is missing", "partita models"],
        ),
        ("seed = 7", "seed = = 7", ["RUN.toml", "line 12", ""]),
    ]);
}

#[test]
fn faults_of_values_name_key_line_and_what_is_possible() {
    assert_refused(&[
        (
            "output = \"runs/demo\"",
            "output = \"\"",
            ["line 4", "`output` is \"\"", "path of a folder"],
        ),
        (
            "batch = 16",
            "batch = 0",
            ["line 10", "`batch` is 0", "from 1 to"],
        ),
        (
            "batch = 16",
            "batch = \"x\"",
            ["line 10", "`batch` is \"x\"", "whole number"],
        ),
        (
            "ranks = 2",
            "ranks = -2",
            ["line 5", "`ranks` is -2", "whole number"],
        ),
        (
            "kind = \"cosine\"",
            "kind = \"cosin\"",
            ["line 22", "`schedule.kind`", "help: try \"cosine\""],
        ),
        (
            "kernels = \"reference\"",
            "kernels = \"cpu\"",
            ["line 9", "`precision` is \"f64\"", "\"f32\""],
        ),
        (
            "watchdog = \"1.5 min\"",
            "watchdog = \"1.5\"",
            ["line 14", "`watchdog`", "like \"60 s\""],
        ),
        (
            "memory = \"16GiB\"",
            "memory = 16",
            ["line 15", "`memory` is 16", "like \"16GiB\""],
        ),
        (
            "transform = { scale = 0.01 }",
            "transform = { scal = 1 }",
            ["line 13", "`transform`", "{scale = NUMBER}"],
        ),
        (
            "transform = { scale = 0.01 }",
            "transform = \"log2\"",
            ["line 13", "\"log\"", "\"log1p\""],
        ),
        (
            "momentum = 0.9",
            "momentum = nan",
            ["line 18", "`optimizer.momentum` is nan", "not including, 1"],
        ),
    ]);
}

#[test]
fn scales_and_sizes_beyond_what_is_held_are_refused_with_ones_that_are_read() {
    let suggested = |error: String| -> String {
        let (_, nearest) = error.split_once("help: try ").unwrap();
        nearest.to_owned()
    };
    let scale = "transform = { scale = 0.01 }";
    for asked in ["1e300", "-1e300", "-1e-300"] {
        let error = refused(scale, &format!("transform = {{ scale = {asked} }}"));
        assert!(
            error.contains("line 13") && error.contains("single precision"),
            "{error}"
        );
        let nearest = format!("transform = {}", suggested(error));
        RunFile::parse(&FULL.replace(scale, &nearest), "RUN.toml").unwrap();
    }
    let rate = "learning_rate = 0.001";
    for asked in ["1e300", "1e-300", "inf"] {
        let error = refused(rate, &format!("learning_rate = {asked}"));
        assert!(
            error.contains("from 1.1754944e-38 to 3.4028235e38"),
            "{error}"
        );
        let nearest = format!("learning_rate = {}", suggested(error));
        RunFile::parse(&FULL.replace(rate, &nearest), "RUN.toml").unwrap();
    }
    refused("momentum = 0.9", "momentum = 0.9999999999");
    let memory = "memory = \"16GiB\"";
    for asked in ["18446744073709551616B", "0GiB", "16 gib", "16"] {
        let error = refused(memory, &format!("memory = \"{asked}\""));
        assert!(error.contains("line 15"), "{error}");
        let nearest = format!("memory = {}", suggested(error));
        RunFile::parse(&FULL.replace(memory, &nearest), "RUN.toml").unwrap();
    }
}

/// A short run file with another optimizer and another schedule.
fn with(optimizer: &str, schedule: &str) -> Result<TrainConfig, String> {
    let tables = format!("[optimizer]\n{optimizer}\n[schedule]\nlearning_rate = 1e-3\n{schedule}");
    let text = SHORT.replace("[schedule]\nlearning_rate = 1e-3\n", &tables);
    let read = RunFile::parse(&text, "r");
    read.map(|file| file.config)
        .map_err(|error| error.to_string())
}

#[test]
fn optimizers_have_the_constants_of_their_papers() {
    let rule = |text: &str| {
        let run = with(text, "").unwrap();
        (run.optimizer, run.decay_norms)
    };
    assert_eq!(rule("kind = \"adamw\""), (partita_forecast::ADAMW, true));
    assert_eq!(rule("kind = \"lars\""), (partita_forecast::LARS, false));
    assert_eq!(rule("kind = \"lamb\""), (partita_forecast::LAMB, false));
    let nesterov = "kind = \"sgd\"\nmomentum = 0.9\nnesterov = true\ndecay_norms = false";
    assert_eq!(rule(nesterov), (partita_forecast::NESTEROV, false));
    let error = with("kind = \"sgd\"\nnesterov = true", "").unwrap_err();
    assert!(error.contains("`momentum = 0.9`"), "{error}");
    let error = with("kind = \"lars\"\nbeta1 = 0.5", "").unwrap_err();
    assert!(
        error.contains("possible values: kind, momentum, trust"),
        "{error}"
    );
}

#[test]
fn schedules_are_read_and_refused_by_key() {
    let schedule = |text: &str| with("", text).unwrap().schedule;
    let warm = "kind = \"step\"\nmilestones = [1, 1.5]\nwarmup_steps = 7\nwarmup_factor = 0.1";
    assert_eq!(
        schedule(warm),
        LearningRateSchedule::Warmup {
            length: WarmupLength::Steps(7),
            factor: 0.1,
            then: Box::new(LearningRateSchedule::Step {
                rate: 1e-3,
                gamma: 0.1,
                milestones: Milestones::At(vec![1.0, 1.5]),
            }),
        }
    );
    assert_eq!(
        schedule("kind = \"cosine_restarts\"\nperiod = 3\nmultiplier = 2\nfinal_factor = 0.1"),
        LearningRateSchedule::CosineRestarts {
            rate: 1e-3,
            final_factor: 0.1,
            period: 3.0,
            multiplier: 2.0,
        }
    );
    for (text, part) in [
        ("kind = \"step\"", "`every = 30`"),
        ("kind = \"step\"\nevery = 2\nmilestones = [1]", "not both"),
        ("kind = \"step\"\nmilestones = [2, 1]", "rising epochs"),
        ("kind = \"exponential\"", "`schedule.gamma`"),
        ("kind = \"cosine_restarts\"\nperiod = 0", "epochs above 0"),
        ("kind = \"plateau\"\nfactor = 1", "below 1"),
        (
            "kind = \"plateau\"\ngamma = 0.5",
            "possible values: kind, learning_rate",
        ),
        ("warmup_factor = 0.5", "`warmup_epochs = 5`"),
        ("warmup_epochs = 1\nwarmup_steps = 3", "not both"),
        ("kind = \"plateu\"", "help: try \"plateau\""),
    ] {
        let error = with("", text).unwrap_err();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    let zero = SHORT.replace("learning_rate = 1e-3", "learning_rate = 0");
    let run = RunFile::parse(&zero, "r").unwrap().config;
    assert_eq!(run.schedule, LearningRateSchedule::Constant { rate: 0.0 });
}

#[test]
fn a_loss_is_read_as_in_a_model() {
    let model = "model = \"cosmoflow@32\"";
    let with = |loss: &str| FULL.replace(model, &format!("{model}\nloss = {loss:?}"));
    let run = RunFile::parse(&with("huber delta=0.5 weights=1,2"), "RUN.toml");
    let run = run.unwrap().config;
    let huber = partita_graph::ElementLoss {
        function: partita_graph::ElementFunction::Huber { delta: 0.5 },
        weights: vec![1.0, 2.0],
    };
    assert_eq!(run.loss, Some(partita_graph::Loss::Elements(huber)));
    assert_eq!(RunFile::parse(FULL, "RUN.toml").unwrap().config.loss, None);
    for (asked, says) in [
        ("dise", "help: try `dice`"),
        ("", "possible values: mse, softmax_cross_entropy, dice"),
        ("dice smoth=1", "help: try `smooth`"),
        ("l1 weight=2", "l1 has no key `weight`"),
        (
            "softmax_cross_entropy ignore=none",
            "`ignore=none` is not possible",
        ),
        ("mse weights=1;2", "numbers separated by commas"),
    ] {
        let error = RunFile::parse(&with(asked), "RUN.toml")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 2") || error.contains("line 3"),
            "{error}"
        );
        assert!(error.contains(says) && error.contains("`loss`"), "{error}");
    }
}
