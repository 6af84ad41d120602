//! The commands of the pages, run as they stand there.

use crate::output::{is_shown, trimmed};
use crate::page::{self, Block};
use crate::{pages, root};
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// How the binary begins what it says of errors and of its progress.
const VOICE: &str = "partita: ";

/// A shell to run the commands of a page.
struct Shell {
    folder: TempDir,
    path: std::ffi::OsString,
}

impl Shell {
    fn new() -> Self {
        let binary = Path::new(env!("CARGO_BIN_EXE_partita"));
        let searched = env::var_os("PATH").unwrap_or_default();
        let folders = [binary.parent().unwrap().to_path_buf()];
        let folders = folders.into_iter().chain(env::split_paths(&searched));
        Self {
            folder: tempfile::tempdir().unwrap(),
            path: env::join_paths(folders).unwrap(),
        }
    }

    /// What a command prints, and whether it succeeds. What it says of its progress is left out, which depends on the time; of
    /// a successful one, warnings are, too.
    fn run(&self, text: &str) -> (Vec<String>, bool) {
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {text}")])
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .env("HOME", self.folder.path())
            .env("XDG_CACHE_HOME", self.folder.path().join(".cache"))
            .env("PARTITA_MACHINES", root().join("machines"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let succeeds = output.status.success();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.trim_end().to_owned());
        let is_progress = |line: &String| line.ends_with(" ...");
        let lines =
            lines.filter(|line| !line.starts_with(VOICE) || !succeeds && !is_progress(line));
        (lines.collect(), succeeds)
    }
}

/// A page that is being compared.
struct Page {
    name: String,
    lines: Vec<String>,
    faults: Vec<String>,
    /// Lines of the page, and what comes in their place; the last ones first.
    changes: Vec<(std::ops::Range<usize>, Vec<String>)>,
}

impl Page {
    fn read(name: String) -> Self {
        let text = fs::read_to_string(root().join(&name)).unwrap();
        Self {
            name,
            lines: text.lines().map(str::to_owned).collect(),
            faults: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn check(&mut self) {
        let shell = Shell::new();
        for block in page::blocks(&self.lines) {
            if let Some(file) = block.file() {
                let content = self.lines[block.lines.clone()].join("\n") + "\n";
                fs::write(shell.folder.path().join(file), content).unwrap();
            } else if block.has("console") && !block.has("norun") {
                self.check_block(&shell, &block);
            }
        }
    }

    fn check_block(&mut self, shell: &Shell, block: &Block) {
        for command in page::commands(&self.lines, block) {
            let shown = self.lines[command.output.clone()].to_vec();
            let (actual, succeeds) = shell.run(&command.text);
            let is_refusal = shown.iter().any(|line| line.starts_with(VOICE));
            if succeeds != is_refusal && is_shown(&shown, &actual, block.has("times")) {
                continue;
            }
            self.faults.push(format!(
                "{}, line {}: `{}` {} and prints\n{}\n",
                self.name,
                command.output.start,
                command.text,
                if succeeds { "succeeds" } else { "fails" },
                actual.join("\n")
            ));
            let renewed = trimmed(&shown, &actual);
            self.changes.insert(0, (command.output, renewed));
        }
    }

    fn update(mut self) {
        for (lines, renewed) in std::mem::take(&mut self.changes) {
            self.lines.splice(lines, renewed);
        }
        fs::write(root().join(&self.name), self.lines.join("\n") + "\n").unwrap();
    }
}

#[test]
fn the_commands_of_the_pages_print_what_the_pages_show() {
    let only = env::var("PAGE").unwrap_or_default();
    let mut faults = Vec::new();
    for name in pages().into_iter().filter(|name| name.contains(&only)) {
        let mut page = Page::read(name);
        page.check();
        if page.faults.is_empty() {
            continue;
        }
        faults.append(&mut page.faults);
        if env::var_os("UPDATE").is_some() {
            page.update();
        }
    }
    assert!(
        faults.is_empty(),
        "{}\nUPDATE=1 writes what is printed into the pages (now, if it was set); read the diff",
        faults.join("\n")
    );
}

/// Few commands may stand in the pages without being run.
#[test]
fn few_commands_are_not_run() {
    const LEFT_OUT_MAX: usize = 10;
    let mut count = 0;
    for name in pages() {
        let page = Page::read(name);
        let blocks = page::blocks(&page.lines);
        count += blocks.iter().filter(|block| block.has("norun")).count();
        for block in blocks.iter().filter(|block| block.has("norun")) {
            assert!(block.has("console"), "{}: norun without console", page.name);
        }
    }
    assert!(
        count <= LEFT_OUT_MAX,
        "{count} blocks are not run, at most {LEFT_OUT_MAX}"
    );
}
