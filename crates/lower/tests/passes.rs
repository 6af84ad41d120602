//! Small texts, one behavior each: what stands after a pass of lowering.
//!
//! A file of `tests/passes` says what it shows, the request, what of it to print, and the model; what
//! stands under `---` is compared. `UPDATE=1 cargo test -p partita-lower --test it passes` rewrites it.
//!
//! ```text
//! # The sentence that the text proves.
//! strategy width=2
//! batch 1
//! pass emit
//! show c1 forward        tasks of a layer, of one phase or of all; `*` for all layers
//! show buffers c1        buffers whose names begin so; with a blank behind, of this name
//! class 0                of these ranks alone
//! model
//! input x channels=1 extent=8
//! ...
//! ---
//! ```
//!
//! In tasks, views carry the name of their buffer. `menu` is `unpinned`, or offers `fused` kernels, or
//! `packed` weights, or a `workspace` of a kibibyte; `kind` is `train`, `evaluate` or `fetch`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::menus;
use crate::request;

use menus::{Everything, Packer, Workspaces};
use partita_graph::text;
use partita_lower::{LoweringPass, Request, Strategy, lower, lower_after};
use partita_program::{Menu, Optimizer, ProgramKind, UnpinnedMenu};
use request::request;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

/// What of the text is printed.
enum Show {
    /// Where the name ends in a blank, of this name alone.
    Buffers(String),
    Tasks {
        layer: String,
        phase: String,
    },
}

struct Case {
    strategy: Strategy,
    batch: usize,
    pass: LoweringPass,
    kind: ProgramKind,
    menu: Box<dyn Menu>,
    shows: Vec<Show>,
    class: Option<String>,
    model: String,
}

impl Case {
    fn parse(header: &str) -> Case {
        let (keys, model) = header.split_once("\nmodel\n").expect("a model");
        let mut case = Case {
            strategy: "data=1".parse().unwrap(),
            batch: 1,
            pass: LoweringPass::Emit,
            kind: ProgramKind::Train,
            menu: Box::new(UnpinnedMenu),
            shows: Vec::new(),
            class: None,
            model: format!("model small\n{model}"),
        };
        for line in keys.lines().filter(|line| !line.starts_with('#')) {
            let (key, value) = line.split_once(' ').expect("a key and a value");
            match key {
                "strategy" => case.strategy = value.parse().unwrap(),
                "batch" => case.batch = value.parse().unwrap(),
                "pass" => case.pass = value.parse().unwrap(),
                "class" => case.class = Some(value.to_owned()),
                "kind" => {
                    case.kind = match value {
                        "train" => ProgramKind::Train,
                        "evaluate" => ProgramKind::Evaluate,
                        "fetch" => ProgramKind::Fetch,
                        other => panic!("no kind `{other}`"),
                    }
                }
                "menu" => {
                    case.menu = match value {
                        "unpinned" => Box::new(UnpinnedMenu),
                        "fused" => Box::new(Everything),
                        "packed" => Box::new(Packer),
                        "workspace" => Box::new(Workspaces),
                        other => panic!("no menu `{other}`"),
                    }
                }
                "show" => case.shows.push(Show::parse(value)),
                other => panic!("no key `{other}`"),
            }
        }
        case
    }

    fn text(&self) -> String {
        let graph = text::parse(&self.model).unwrap();
        let request = Request {
            optimizer: Optimizer::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            kind: self.kind,
            menu: &*self.menu,
            ..request(&graph, &self.strategy, self.batch)
        };
        let text = lower_after(&request, self.pass).unwrap();
        match self.pass {
            LoweringPass::LayOut => text,
            LoweringPass::Emit
            | LoweringPass::Fuse
            | LoweringPass::Pack
            | LoweringPass::Select
            | LoweringPass::Arena
            | LoweringPass::Staging => self.excerpt(&text),
        }
    }

    fn excerpt(&self, program: &str) -> String {
        let (mut text, mut names) = (String::new(), HashMap::new());
        let mut is_shown = false;
        for line in program.lines() {
            if line.starts_with("class ") {
                let class = line.split_whitespace().nth(1).unwrap();
                is_shown = self.class.as_deref().is_none_or(|only| only == class);
                names.clear();
                if is_shown {
                    let _ = writeln!(text, "class {class}");
                }
                continue;
            }
            if let Some(buffer) = line.strip_prefix("  buffer ") {
                let (id, rest) = buffer.split_once(' ').unwrap();
                let name = rest.split(' ').next().unwrap();
                names.insert(id.to_owned(), name.to_owned());
            }
            if is_shown && self.shows.iter().any(|show| show.has(line)) {
                let _ = writeln!(text, "  {}", self.short(line.trim_start(), &names));
            }
        }
        text
    }

    /// A line with names for numbers of buffers, without numbers of tasks and what nobody has chosen yet.
    fn short(&self, line: &str, names: &HashMap<String, String>) -> String {
        if let Some(buffer) = line.strip_prefix("buffer ") {
            let (_, rest) = buffer.split_once(' ').unwrap();
            let words: Vec<&str> = rest.splitn(6, ' ').collect();
            let [name, role, dtype, dims, offset, tensor] = words[..] else {
                panic!("a buffer is `{line}`");
            };
            let tensor = match tensor {
                "None" => String::new(),
                tensor => format!(" {tensor}"),
            };
            return match self.pass {
                LoweringPass::Arena => format!("buffer {name} {role} {dtype} {dims} {offset}"),
                _ => format!("buffer {name} {role} {dtype} {dims}{tensor}"),
            };
        }
        let line = match self.pass {
            LoweringPass::Arena => line.to_owned(),
            _ => {
                let (_, line) = line.split_once(' ').unwrap();
                line.replacen(" after []", ":", 1)
            }
        };
        let mut line = line
            .replace(",algorithm:\"unpinned\"", "")
            .replace(",workspace:None", "")
            .replace(",on:None", "")
            .replace(",bias:None", "")
            .replace(",accumulate:false", "");
        let mut numbers: Vec<(&String, &String)> = names.iter().collect();
        numbers.sort();
        for (id, name) in numbers {
            line = line.replace(&format!("\"{id}["), &format!("\"{name}["));
        }
        line
    }
}

impl Show {
    fn parse(value: &str) -> Show {
        match value.split_once(' ') {
            None => Show::Tasks {
                layer: value.to_owned(),
                phase: "*".to_owned(),
            },
            Some(("buffers", name)) => Show::Buffers(name.to_owned()),
            Some((layer, phase)) => Show::Tasks {
                layer: layer.to_owned(),
                phase: phase.to_owned(),
            },
        }
    }

    fn has(&self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let is = |asked: &str, word: &str| asked == "*" || asked == word;
        match (self, &words[..]) {
            (Show::Buffers(name), ["buffer", _, buffer, ..]) => {
                format!("{buffer} ").starts_with(&name[..])
            }
            (Show::Tasks { layer, phase }, [task, _, of_phase, of_layer]) => {
                task.starts_with('t') && is(layer, of_layer) && is(phase, of_phase)
            }
            (Show::Buffers(_) | Show::Tasks { .. }, _) => false,
        }
    }
}

#[test]
fn every_text_is_what_the_pass_makes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes");
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut differing = Vec::new();
    for path in &paths {
        let file = std::fs::read_to_string(path).unwrap();
        let (header, expected) = file.split_once("---\n").expect("a line `---`");
        assert!(
            header.starts_with("# "),
            "{path:?} begins with what it shows"
        );
        let got = Case::parse(header.trim_end()).text();
        assert!(got.lines().count() > 1, "{path:?} shows nothing");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{header}---\n{got}")).unwrap();
        } else if got != expected {
            differing.push(format!("{}:\n{got}", path.display()));
        }
    }
    println!("{} texts", paths.len());
    assert!(paths.len() >= 60, "{} texts", paths.len());
    assert!(
        differing.is_empty(),
        "{} of {} texts differ; what comes now:\n{}",
        differing.len(),
        paths.len(),
        differing.join("\n")
    );
}

/// The last pass makes the program that [`lower`] gives.
#[test]
fn the_last_pass_makes_the_program() {
    let model = "model line\ninput x channels=1 extent=8\nc = conv x filters=2 kernel=3 pad=1 bias=true\n\
                 loss = mse c\n";
    let graph = text::parse(model).unwrap();
    let strategy: Strategy = "width=2".parse().unwrap();
    let request = request(&graph, &strategy, 1);
    let last = LoweringPass::ALL[LoweringPass::ALL.len() - 1];
    let got = lower_after(&request, last).unwrap();
    assert_eq!(got, lower(&request).unwrap().to_text());
}

#[test]
fn a_word_that_is_no_pass_is_answered_with_all() {
    let refused = "fus".parse::<LoweringPass>().unwrap_err().to_string();
    for pass in LoweringPass::ALL {
        assert!(refused.contains(pass.name()), "{refused}");
    }
}
