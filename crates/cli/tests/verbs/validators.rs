//! Validators in processes of their own: the metrics of the same epochs, although the training has gone on.

use crate::metrics::LOADS;
use crate::offload::{SAMPLES, Server, bits, refusal, run_file, stored, trained};
use crate::trainee::{Case, Trainee};
use serde_json::Value;
use std::fs;

#[test]
fn metrics_of_every_epoch_have_the_bits_of_those_of_the_ranks() {
    let case = Case::new();
    for (ranks, strategy) in [
        (1, "data=1"),
        (2, "depth=2"),
        (2, "data=2,shard=parameters"),
    ] {
        let top = format!(
            "{SAMPLES}\nranks = {ranks}\nstrategy = \"{strategy}\"\noverwrite = true\nmetrics = [\"jsonl\"]"
        );
        let plain = run_file(&case, "plain", 4, &top, "");
        assert_eq!(trained(&case, &plain), "");
        // Slow enough that the next epoch has begun when its results come.
        let validator = Server::of(
            "validator",
            &case,
            &plain,
            "127.0.0.1:0",
            &["--delay", "30ms"],
        );
        let table = format!("[offload]\nvalidators = [\"{}\"]", validator.address);
        let with = run_file(&case, "with", 4, &top, &table);
        assert_eq!(trained(&case, &with), "", "{strategy}");
        assert!(bits(&case, "with") == bits(&case, "plain"), "{strategy}");
        assert_eq!(
            epochs_of_metrics(&case, "with"),
            epochs_of_metrics(&case, "plain")
        );
        let said = validator.end();
        assert!(said.contains("4 snapshots"), "{said}");
    }
}

/// The lines of epochs in a metrics file, without times.
fn epochs_of_metrics(case: &Case, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(case.path(name).join("metrics.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let epochs = lines.filter(|line| line.to_string().contains("validation"));
    let mut epochs: Vec<Value> = epochs.collect();
    assert_eq!(epochs.len(), 4, "{text}");
    for epoch in &mut epochs {
        let epoch = epoch.as_object_mut().unwrap();
        // Validators read their samples themselves.
        epoch.retain(|key, _| !key.contains("second") && !LOADS.contains(&key.as_str()));
        let validation = epoch["validation"].as_object_mut().unwrap();
        validation.remove("seconds");
    }
    epochs
}

#[test]
fn a_training_starts_loaders_and_validators_and_divides_the_validation() {
    let case = Case::new();
    let top = format!("{SAMPLES}\nranks = 1");
    let plain = run_file(&case, "plain", 3, &top, "");
    trained(&case, &plain);
    let table = "[offload]\nloaders = 1\nvalidators = 1\ncores = \"0\"";
    let with = run_file(&case, "with", 3, &top, table);
    assert_eq!(trained(&case, &with), "");
    assert!(bits(&case, "with") == bits(&case, "plain"));
    // Two validation samples are one mini-batch.
    let many = run_file(&case, "many", 3, &top, "[offload]\nvalidators = 2");
    let text = refusal(&case, &many);
    assert!(text.contains("help: try 1"), "{text}");
}

#[test]
fn two_validators_evaluate_one_mini_batch_each() {
    let case = Case::new();
    let write = |name: &str, table: &str| {
        let run = run_file(&case, name, 3, SAMPLES, table);
        let text = fs::read_to_string(case.path(&run)).unwrap();
        fs::write(case.path(&run), text.replace("batch = 3", "batch = 1")).unwrap();
        run
    };
    trained(&case, &write("plain", ""));
    assert_eq!(
        trained(&case, &write("with", "[offload]\nvalidators = 2")),
        ""
    );
    assert!(bits(&case, "with") == bits(&case, "plain"));
}

#[test]
fn a_schedule_and_a_best_checkpoint_wait_for_the_validation() {
    let case = Case::new();
    let tables =
        "kind = \"plateau\"\npatience = 0\n[checkpoint]\nbest = \"validation_loss\"\nkeep = 1";
    let plain = run_file(&case, "plain", 4, SAMPLES, tables);
    trained(&case, &plain);
    let with = format!("{tables}\n[offload]\nvalidators = 1");
    let with = run_file(&case, "with", 4, SAMPLES, &with);
    assert_eq!(trained(&case, &with), "");
    assert!(bits(&case, "with") == bits(&case, "plain"));
    let kept = ["with", "plain"].map(|name| {
        let folder = case.path(name).join("checkpoints");
        crate::trainee::names(&folder)
    });
    assert_eq!(kept[0], kept[1]);
}

/// Trains with a validator that gets a signal in the third epoch.
fn disturbed(signal: &str, more: &str, has_store: bool) -> String {
    let case = Case::new();
    let top = format!("{SAMPLES}\nranks = 2\nstrategy = \"data=2\"");
    let plain = run_file(&case, "plain", 8, &top, "");
    trained(&case, &plain);
    let validator = Server::of(
        "validator",
        &case,
        &plain,
        "127.0.0.1:0",
        &["--delay", "100ms"],
    );
    let address = &validator.address;
    let table = format!("[offload]\nvalidators = [\"{address}\"]\n{more}");
    let run = run_file(&case, "disturbed", 8, &top, &table);
    if has_store {
        stored(&case, &run);
    }
    let trainee = Trainee::started(&mut case.command(&run), "epoch 1/");
    validator.signal(signal);
    let (status, said) = trainee.end();
    assert!(status.success(), "{said}");
    // The epoch under way, too, is validated with the parameters of its end.
    assert!(bits(&case, "disturbed") == bits(&case, "plain"), "{said}");
    let warning = "a validator was lost at the validation of epoch ";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    said
}

#[test]
fn ranks_validate_themselves_to_the_same_bits_when_a_validator_is_killed() {
    let said = disturbed("KILL", "", false);
    assert!(said.contains("it closed the connection"), "{said}");
}

#[test]
fn ranks_validate_themselves_to_the_same_bits_when_a_validator_hangs() {
    let said = disturbed("STOP", "timeout = \"500 ms\"", false);
    assert!(said.contains("it did not answer in time"), "{said}");
}

/// The samples of the validation, too, come from the store then.
#[test]
fn ranks_with_samples_in_memory_validate_themselves_to_the_same_bits() {
    let said = disturbed("KILL", "", true);
    assert!(said.contains("store: whole samples in memory"), "{said}");
}

#[test]
fn validators_leave_the_store_of_the_ranks_alone() {
    let case = Case::new();
    let layers = "freeze = [\"c1\"]";
    for (ranks, strategy, top) in [
        (1, "data=1", SAMPLES),
        (2, "data=2", SAMPLES),
        (2, "depth=2", layers),
        (2, "stages=2", layers),
    ] {
        let top = format!("{top}\nranks = {ranks}\nstrategy = \"{strategy}\"\noverwrite = true");
        let plain = run_file(&case, "plain", 3, &top, "");
        trained(&case, &plain);
        let with = run_file(&case, "with", 3, &top, "[offload]\nvalidators = 1");
        stored(&case, &with);
        let said = trained(&case, &with);
        assert!(!said.contains("warning"), "{strategy}: {said}");
        assert!(bits(&case, "with") == bits(&case, "plain"), "{strategy}");
        let epochs = epochs_of_result(&case, "with");
        let read: Vec<u64> = epochs
            .iter()
            .map(|epoch| epoch["read_bytes"].as_u64().unwrap())
            .collect();
        // The ranks read 8 training samples of 512 values and 2 targets once, and none of the validation.
        assert_eq!(read, [8 * 4 * 514, 0, 0], "{strategy}");
    }
}

fn epochs_of_result(case: &Case, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(case.path(name).join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    result["epochs"].as_array().unwrap().clone()
}

/// Frozen layers are part of the model that loaders and validators are told.
#[test]
fn frozen_layers_keep_their_bits_with_loaders_and_validators() {
    let case = Case::new();
    let top = format!("{SAMPLES}\nranks = 2\nstrategy = \"depth=2\"");
    let free = run_file(&case, "free", 3, &top, "");
    trained(&case, &free);
    let top = format!("{top}\nfreeze = [\"c1\"]");
    let plain = run_file(&case, "plain", 3, &top, "");
    trained(&case, &plain);
    let table = "[offload]\nloaders = 1\nvalidators = 1";
    let with = run_file(&case, "with", 3, &top, table);
    assert_eq!(trained(&case, &with), "");
    assert!(bits(&case, "with") == bits(&case, "plain"));
    assert!(bits(&case, "with") != bits(&case, "free"));
    // A validator may be told so by its own run file, or not: frozen layers are evaluated as others are.
    let validator = Server::of("validator", &case, &free, "127.0.0.1:0", &[]);
    let table = format!("[offload]\nvalidators = [\"{}\"]", validator.address);
    let other = run_file(&case, "other", 3, &top, &table);
    assert_eq!(trained(&case, &other), "");
    assert!(bits(&case, "other") == bits(&case, "plain"));
}

#[test]
fn a_validation_under_another_strategy_is_equal_up_to_rounding() {
    let case = Case::new();
    let top = format!("{SAMPLES}\nranks = 2\nstrategy = \"depth=2\"");
    let plain = run_file(&case, "plain", 2, &top, "");
    trained(&case, &plain);
    let more = ["--ranks", "1", "--strategy", "data=1"];
    let validator = Server::of("validator", &case, &plain, "127.0.0.1:0", &more);
    let table = format!("[offload]\nvalidators = [\"{}\"]", validator.address);
    trained(&case, &run_file(&case, "with", 2, &top, &table));
    let [with, plain] = ["with", "plain"].map(|name| bits(&case, name));
    assert!(with.1 == plain.1, "the training does not depend on it");
    for (a, b) in with.0.iter().zip(&plain.0) {
        let [a, b] = [a, b].map(|epoch| epoch["validation"]["loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-4 * b.abs(), "{a} is not near {b}");
    }
}

#[test]
fn a_resumed_training_validates_what_its_checkpoint_waited_for() {
    let case = Case::new();
    let tables = "[checkpoint]\nevery_epochs = 1\nkeep = 9";
    let plain = run_file(&case, "plain", 3, SAMPLES, tables);
    trained(&case, &plain);
    let validator = Server::of(
        "validator",
        &case,
        &plain,
        "127.0.0.1:0",
        &["--delay", "80ms"],
    );
    let table = format!(
        "{tables}\n[offload]\nvalidators = [\"{}\"]",
        validator.address
    );
    let with = run_file(&case, "with", 3, SAMPLES, &table);
    trained(&case, &with);
    let mut command = case.command("with.toml");
    command.args(["--resume", "with/checkpoints/step-000000006"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(bits(&case, "with") == bits(&case, "plain"));
}

#[test]
fn a_validator_of_another_run_refuses() {
    let case = Case::new();
    let own = run_file(&case, "own", 1, SAMPLES, "");
    let validator = Server::of("validator", &case, &own, "127.0.0.1:0", &[]);
    let table = format!("[offload]\nvalidators = [\"{}\"]", validator.address);
    let other = run_file(
        &case,
        "other",
        1,
        &format!("{SAMPLES}\naccumulate = 2"),
        &table,
    );
    let text = refusal(&case, &other);
    assert!(
        text.contains("`batch` times `accumulate` is 3 at the validator, and 6"),
        "{text}"
    );
    let table = format!("[offload]\nloaders = [\"{}\"]", validator.address);
    let text = refusal(&case, &run_file(&case, "role", 1, SAMPLES, &table));
    assert!(
        text.contains("it is a validator, and the trainer wants a loader"),
        "{text}"
    );
}
