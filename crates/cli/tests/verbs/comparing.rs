//! `partita compare`.

use crate::command::{answer, json, refusal};
use partita_program::Program;
use serde_json::{Value, json as record};
use std::fs;
use std::path::{Path, PathBuf};

const TRAINING: [&str; 7] = [
    "cosmoflow@32",
    "--ranks",
    "2",
    "--batch",
    "2",
    "--strategy",
    "depth=2",
];

fn predict(more: &[&str]) -> String {
    let tail = ["--machine", "lassen", "--kernels", "reference", "--json"];
    answer(&[&["predict"][..], &TRAINING, &tail, more].concat())
}

/// Files of a prediction and of a run that took `slower` times as long in every task.
fn files(folder: &Path, slower: f64) -> (PathBuf, PathBuf) {
    let prediction = predict(&["--tasks"]);
    let text = answer(&[&["lower"][..], &TRAINING].concat());
    let program = Program::parse(&text).unwrap();
    let predicted: Value = serde_json::from_str(&prediction).unwrap();
    let mut events = Vec::new();
    let mut end = 0.0f64;
    for rank in 0..2 {
        let mut clock = 0.0;
        for task in predicted["tasks"].as_array().unwrap() {
            if task["class"] != program.class_of[rank] {
                continue;
            }
            let micros = 1e6 * slower * task["seconds"].as_f64().unwrap();
            events.push(record!({
                "name": "task", "ph": "X", "pid": rank, "tid": 0, "ts": clock, "dur": micros,
                "args": { "task": task["task"], "step": 3, "lane": "compute" },
            }));
            clock += micros;
        }
        end = end.max(clock);
    }
    let trace = record!({
        "digest": program.digest(), "program": text, "traceEvents": events,
        "steps": [3], "span_us": [0.0, end],
    });
    let paths = (folder.join("prediction.json"), folder.join("trace.json"));
    fs::write(&paths.0, prediction).unwrap();
    fs::write(&paths.1, trace.to_string()).unwrap();
    paths
}

fn compare<'a>(prediction: &'a Path, trace: &'a Path) -> [&'a str; 3] {
    [
        "compare",
        prediction.to_str().unwrap(),
        trace.to_str().unwrap(),
    ]
}

#[test]
fn a_run_is_held_against_its_prediction() {
    let folder = tempfile::tempdir().unwrap();
    for (slower, accuracy) in [(1.0, 1.0), (2.0, 0.5)] {
        let (prediction, trace) = files(folder.path(), slower);
        let arguments = compare(&prediction, &trace);
        let comparison = json(&[&arguments[..], &["--json"]].concat());
        assert_eq!(comparison["steps"], 1);
        let compute = comparison["compute"]["accuracy"].as_f64().unwrap();
        assert!((compute - accuracy).abs() < 1e-3, "{compute} {accuracy}");
        assert!(answer(&arguments).contains("iteration"));
    }
}

#[test]
fn different_programs_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let (prediction, trace) = files(folder.path(), 1.0);
    fs::write(&prediction, predict(&["--tasks", "--optimizer", "sgd"])).unwrap();
    let text = refusal(&compare(&prediction, &trace));
    assert!(text.contains("the same program"), "{text}");
    fs::write(&prediction, predict(&[])).unwrap();
    let text = refusal(&compare(&prediction, &trace));
    assert!(text.contains("predict again with tasks"), "{text}");
}

#[test]
fn files_of_another_kind_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (prediction, trace) = files(folder.path(), 1.0);
    let text = refusal(&compare(&trace, &trace));
    assert!(text.contains("is no prediction"), "{text}");
    let text = refusal(&compare(&prediction, &prediction));
    assert!(text.contains("is not a trace"), "{text}");
    let text = refusal(&compare(&prediction, Path::new("no/such.json")));
    assert!(text.contains("no/such.json cannot be read"), "{text}");
    let whole = fs::read_to_string(&trace).unwrap();
    fs::write(&trace, whole.replace("\"pid\":1", "\"pid\":7")).unwrap();
    let text = refusal(&compare(&prediction, &trace));
    assert!(text.contains("on rank 7"), "{text}");
}

/// What a refusal says, and the change to a file that it refuses.
type Change = (&'static str, fn(&mut Value));

/// Asserts that a comparison is refused after each change to `changed`, which is one of the files, and
/// that the refusal names the file and what is possible. The files are as before afterwards.
fn assert_refused(files: &(PathBuf, PathBuf), changed: &Path, changes: &[Change]) {
    let whole: Value = serde_json::from_str(&fs::read_to_string(changed).unwrap()).unwrap();
    for (expected, change) in changes {
        let mut other = whole.clone();
        change(&mut other);
        fs::write(changed, other.to_string()).unwrap();
        let text = refusal(&compare(&files.0, &files.1));
        fs::write(changed, whole.to_string()).unwrap();
        assert!(text.contains(changed.to_str().unwrap()), "{text}");
        assert!(
            ["possible", "predict again", "as in traces of"]
                .iter()
                .any(|help| text.contains(help)),
            "{text}"
        );
        // A refusal writes numbers in full.
        let expected = expected.replace("1e300", &1e300.to_string());
        assert!(text.contains(&expected), "{text}");
    }
    answer(&compare(&files.0, &files.1));
}

#[test]
fn predicted_times_and_tasks_that_cannot_be_are_refused_with_file_and_entry() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), 1.0);
    let changes: [Change; 10] = [
        ("`kind` of tasks[3] (task 3 of class 0) is `magic`", |all| {
            all["tasks"][3]["kind"] = record!("magic")
        }),
        ("`phase` of tasks[3]", |all| {
            let other = ["load", "update"].map(|phase| record!(phase));
            let same = all["tasks"][3]["phase"] == other[0];
            all["tasks"][3]["phase"] = other[usize::from(same)].clone();
        }),
        ("has no entry for task 2 of class 0 (", |all| {
            all["tasks"].as_array_mut().unwrap().remove(2);
        }),
        ("`seconds` of tasks[3]", |all| {
            all["tasks"][3]["seconds"] = record!(-1e-3)
        }),
        ("is 1e300", |all| {
            all["tasks"][3]["seconds"] = record!(1e300)
        }),
        ("iteration_seconds is -1", |all| {
            all["iteration_seconds"] = record!(-1.0)
        }),
        ("has no tasks", |all| all["tasks"] = record!([])),
        ("tasks[2] and tasks[5] are both task", |all| {
            all["tasks"][5] = all["tasks"][2].clone();
        }),
        ("tasks[1] is task 99999 of class 0", |all| {
            all["tasks"][1]["task"] = record!(99999)
        }),
        ("of class 7, but the program has classes 0 to", |all| {
            all["tasks"][1]["class"] = record!(7);
        }),
    ];
    assert_refused(&files, &files.0, &changes);
}

#[test]
fn recorded_times_and_tasks_that_cannot_be_are_refused_with_file_and_entry() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), 1.0);
    let changes: [Change; 15] = [
        ("step 3 has task 2 of rank 0 (", |all| {
            all["traceEvents"].as_array_mut().unwrap().remove(2);
        }),
        ("step 3 has task 0 of rank 1 (", |all| {
            let events = all["traceEvents"].as_array_mut().unwrap();
            events.retain(|event| event["pid"] == 0);
        }),
        (") 0 times; each of the", |all| {
            let events = all["traceEvents"].as_array_mut().unwrap();
            events.retain(|event| event["args"]["task"] == 5);
        }),
        (
            "is 1099511627776\nhelp: possible values: its `steps` 3",
            |all| {
                all["traceEvents"][4]["args"]["step"] = record!(1u64 << 40);
                all["traceEvents"][4]["ts"] = record!(1e12);
            },
        ),
        ("no task of step 2", |all| all["steps"] = record!([2, 3])),
        ("its `span_us`", |all| {
            let last = all["traceEvents"].as_array().unwrap().len() - 1;
            all["traceEvents"][last]["dur"] = record!(1e7);
        }),
        ("`ph` of traceEvents[4] is \"B\"", |all| {
            all["traceEvents"][4]["ph"] = record!("B");
        }),
        ("rank 0 in step 3 take 0 s", |all| {
            for event in all["traceEvents"].as_array_mut().unwrap() {
                event["dur"] = record!(0);
            }
        }),
        ("which waits for it, starts at", |all| {
            all["traceEvents"][0]["dur"] = record!(1e10);
            all.as_object_mut().unwrap().remove("span_us");
        }),
        ("`digest` is 0123456789abcdef", |all| {
            all["digest"] = record!("0123456789abcdef");
        }),
        ("`dur` of traceEvents[3] (task", |all| {
            all["traceEvents"][3]["dur"] = record!(-1.0);
        }),
        ("`ts` of traceEvents[3] (task", |all| {
            all["traceEvents"][3]["ts"] = record!(1e200);
        }),
        ("`dur` of traceEvents[0] (task", |all| {
            all["traceEvents"][0]["dur"] = record!(1e16);
        }),
        ("hold no task", |all| all["traceEvents"] = record!([])),
        ("traceEvents[2] and traceEvents[4] are both task", |all| {
            all["traceEvents"][4] = all["traceEvents"][2].clone();
        }),
    ];
    assert_refused(&files, &files.1, &changes);
}

#[test]
fn steps_follow_one_another_and_a_kind_without_time_has_no_accuracy() {
    let folder = tempfile::tempdir().unwrap();
    let (prediction, trace) = files(folder.path(), 1.0);
    let mut whole: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    // As earlier versions wrote it.
    for key in ["steps", "span_us"] {
        whole.as_object_mut().unwrap().remove(key);
    }
    let events = whole["traceEvents"].as_array().unwrap();
    let with_next = |later: f64| {
        let next = events.iter().cloned().map(|mut event| {
            event["args"]["step"] = record!(4);
            event["ts"] = record!(event["ts"].as_f64().unwrap() + later);
            event
        });
        let mut both = whole.clone();
        both["traceEvents"] = events.iter().cloned().chain(next).collect();
        fs::write(&trace, both.to_string()).unwrap();
    };
    with_next(1e9);
    assert_eq!(
        json(&[&compare(&prediction, &trace)[..], &["--json"]].concat())["steps"],
        2
    );
    with_next(0.0);
    let text = refusal(&compare(&prediction, &trace));
    assert!(text.contains("which is of a later step"), "{text}");
    let mut still = whole.clone();
    let predicted: Value = serde_json::from_str(&fs::read_to_string(&prediction).unwrap()).unwrap();
    let kind = "update";
    for event in still["traceEvents"].as_array_mut().unwrap() {
        let mut tasks = predicted["tasks"].as_array().unwrap().iter();
        // Each rank is a class of its own.
        let is_of =
            |task: &&Value| task["class"] == event["pid"] && task["task"] == event["args"]["task"];
        if tasks.find(is_of).unwrap()["kind"] == kind {
            event["dur"] = record!(0);
        }
    }
    fs::write(&trace, still.to_string()).unwrap();
    let text = answer(&compare(&prediction, &trace));
    assert!(text.contains(kind) && !text.contains("inf"), "{text}");
}

#[test]
fn a_program_that_was_changed_is_refused_before_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (prediction, trace) = files(folder.path(), 1.0);
    let whole = fs::read_to_string(&trace).unwrap();
    let start = whole.find("classes ").unwrap() + "classes ".len();
    let end = start + whole[start..].find("\\n").unwrap();
    let replaced = |at: std::ops::Range<usize>, with: &str| {
        let text = format!("{}{with}{}", &whole[..at.start], &whole[at.end..]);
        fs::write(&trace, text).unwrap();
        refusal(&compare(&prediction, &trace))
    };
    for (classes, reason) in [
        ("0*1", "classes are given for 1 ranks, the mesh has 2"),
        ("5*2", "of class 5"),
        ("0*99999999999", "of the 2 of the mesh 2 are left"),
        ("0*2274450605487904", "of the 2 of the mesh 2 are left"),
    ] {
        let text = replaced(start..end, classes);
        assert!(text.contains("is not a trace"), "{text}");
        assert!(text.contains(reason), "{classes}: {text}");
    }
    let start = whole.find("mesh ").unwrap() + "mesh ".len();
    let end = start + whole[start..].find("\\n").unwrap();
    for (mesh, reason) in [
        ("(1,0,1,1,1,1,1)", "extent 0"),
        ("(1,99999999999,1,1,1,1,1)", "at most 1048576"),
    ] {
        let text = replaced(start..end, mesh);
        assert!(text.contains(reason), "{mesh}: {text}");
    }
    // Elements of the first buffer.
    let start = whole.find("buffer b0 ").unwrap();
    let times = start + whole[start..].find("x").unwrap();
    let end = times + whole[times..].find(' ').unwrap();
    let start = whole[..times].rfind(' ').unwrap() + 1;
    let text = replaced(start..end, "3x3x3x4x2274450605487904");
    assert!(text.contains("elements"), "{text}");
}
