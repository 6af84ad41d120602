//! Rules on the text of the repository. Each is a function from a file to its faults.
//!
//! Code is judged without comments and literals; where a rule spares tests it spares what stands
//! under `#[cfg(test)]`, in a file `tests.rs`, or in a folder `tests`, `benches` or `examples`.

use crate::Fault;
use crate::cycles::Crate;
use crate::dependencies;
use crate::kinds::{KERNELS, Kinds};
use crate::matches;
use crate::source::{Source, line_of, words};
use crate::test_files::{self, Codes};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use toml::Table;

/// Lines that a file may have.
const LINES_MAX: usize = 800;
/// Lines of documentation that open a library.
const OPENING_LINES_MIN: usize = 5;
/// Module names that name nothing.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "misc", "helpers"];
/// Rooms that are no part of the product.
const TESTING_ROOMS: [&str; 3] = ["testkit", "fuzz", "xtask"];
/// Rooms that may print.
const PRINTERS: [&str; 4] = ["cli", "xtask", "testkit", "fuzz"];
/// Rooms that may read the environment.
const ENVIRONMENT_READERS: [&str; 4] = ["cli", "xtask", "testkit", "fuzz"];
/// All faults of the repository at `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Fault>, String> {
    let mut paths = Vec::new();
    collect(root, "crates", &mut paths)?;
    let mut faults = Vec::new();
    let mut manifests = Vec::new();
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    let mut tests: BTreeMap<String, Codes> = BTreeMap::new();
    let mut kinds = Kinds::of(&Source::new(&read(root, KERNELS)?).code);
    for path in &paths {
        if path.ends_with(".rs") {
            let file = File::new(path, &read(root, path)?);
            faults.extend(check_file(&file));
            if !TESTING_ROOMS.contains(&file.room.as_str()) {
                kinds.note(path, &file.product_code);
            }
            let below_tests = format!("crates/{}/tests/", file.room);
            if let Some(below_tests) = path.strip_prefix(&below_tests) {
                let codes = tests.entry(file.room.clone()).or_default();
                codes.insert(below_tests.to_owned(), file.source.code.clone());
            }
            let src = format!("crates/{}/src/", file.room);
            if let Some(below_src) = path.strip_prefix(&src).filter(|_| !file.is_test) {
                let room = crates.entry(file.room.clone()).or_default();
                room.note(below_src, path, &file.product_code);
            }
        } else if path.ends_with("/Cargo.toml") {
            let manifest = manifest(root, path)?;
            faults.extend(dependencies::inherited(&manifest, path));
            manifests.push((path, manifest));
        }
    }
    for (path, manifest) in &manifests {
        let room = path.split('/').nth(1).unwrap_or_default();
        let codes = tests.get(room);
        faults.extend(
            codes
                .map(|codes| test_files::listed(manifest, path, codes))
                .unwrap_or_default(),
        );
    }
    let manifests: Vec<Table> = manifests
        .into_iter()
        .map(|(_, manifest)| manifest)
        .collect();
    let document = read(root, "DEPENDENCIES.md")?;
    let root_manifest = manifest(root, "Cargo.toml")?;
    faults.extend(dependencies::documented(&root_manifest, &document));
    faults.extend(dependencies::used(&root_manifest, &manifests));
    faults.extend(kinds.faults());
    faults.extend(crates.values().flat_map(Crate::faults));
    Ok(faults)
}

/// All faults of one Rust file.
fn check_file(file: &File) -> Vec<Fault> {
    let rules = [
        length,
        ignored,
        empty_names,
        opening,
        wildcards,
        printing,
        environment,
    ];
    rules.iter().flat_map(|rule| rule(file)).collect()
}

/// A Rust file as the rules see it.
struct File {
    path: String,
    /// The folder under `crates`.
    room: String,
    source: Source,
    /// Whether the whole file is a test.
    is_test: bool,
    /// The code that is not a test.
    product_code: String,
}

impl File {
    fn new(path: &str, text: &str) -> File {
        let parts: Vec<&str> = path.split('/').collect();
        let is_test = parts
            .iter()
            .any(|part| ["tests", "tests.rs", "benches", "examples"].contains(part));
        let source = Source::new(text);
        let product_code = if is_test {
            String::new()
        } else {
            source.code_outside_tests()
        };
        File {
            path: path.to_owned(),
            room: parts.get(1).copied().unwrap_or_default().to_owned(),
            source,
            is_test,
            product_code,
        }
    }

    fn fault(&self, line: usize, message: String) -> Fault {
        Fault {
            path: self.path.clone(),
            line,
            message,
        }
    }

    /// A fault for each place of `code` (of this file) where one of `found` stands.
    fn each(&self, code: &str, found: &[&str], message: &str) -> Vec<Fault> {
        let fault =
            |word: &str, offset| self.fault(line_of(code, offset), format!("`{word}`: {message}"));
        found
            .iter()
            .flat_map(|word| words(code, word).map(|offset| fault(word, offset)))
            .collect()
    }

    fn is_build_script(&self) -> bool {
        self.path.ends_with("/build.rs")
    }
}

fn length(file: &File) -> Vec<Fault> {
    let lines = file.source.text.lines().count();
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![file.fault(0, format!("{lines} lines, at most {LINES_MAX}: split it"))]
}

fn ignored(file: &File) -> Vec<Fault> {
    let message = "a test runs, or says that it did not run";
    file.each(&file.source.code, &["#[ignore"], message)
}

fn empty_names(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for name in EMPTY_NAMES {
        let message = format!("`{name}` names nothing: call the module by what it holds");
        let mut parts = file.path.split('/');
        if parts.any(|part| part == name || part == format!("{name}.rs")) {
            faults.push(file.fault(0, message.clone()));
        }
        let inline = format!("mod {name}");
        let code = &file.source.code;
        let lines = words(code, &inline).map(|offset| line_of(code, offset));
        faults.extend(lines.map(|line| file.fault(line, message.clone())));
    }
    faults
}

fn opening(file: &File) -> Vec<Fault> {
    let lines = file.source.text.lines();
    let count = lines.take_while(|line| line.starts_with("//!")).count();
    let (least, wanted) = if file.path.ends_with("/src/lib.rs") {
        (
            OPENING_LINES_MIN,
            "what it does, what it knows, what it must not know",
        )
    } else {
        (1, "what it holds")
    };
    if count >= least {
        return Vec::new();
    }
    let message = format!("opens with {count} lines of `//!`, at least {least}: {wanted}");
    vec![file.fault(1, message)]
}

fn wildcards(file: &File) -> Vec<Fault> {
    let message = "a catch-all arm in a match over work or kernels: name every kind";
    matches::wildcards(&file.product_code)
        .into_iter()
        .map(|line| file.fault(line, message.to_owned()))
        .collect()
}

fn printing(file: &File) -> Vec<Fault> {
    if PRINTERS.contains(&file.room.as_str()) || file.is_build_script() {
        return Vec::new();
    }
    let found = ["println!", "eprintln!", "print!", "eprint!"];
    let message = format!("return it instead; only {} print", PRINTERS.join(", "));
    file.each(&file.product_code, &found, &message)
}

fn environment(file: &File) -> Vec<Fault> {
    if ENVIRONMENT_READERS.contains(&file.room.as_str()) || file.is_build_script() {
        return Vec::new();
    }
    let readers = ENVIRONMENT_READERS.join(", ");
    let message = format!("take it as an argument; only {readers} read the environment");
    file.each(&file.product_code, &["env::", "std::env"], &message)
}

/// Paths of all files below `folder`, relative to `root`, with `/` between their parts.
fn collect(root: &Path, folder: &str, paths: &mut Vec<String>) -> Result<(), String> {
    let unreadable = |error| format!("{folder} cannot be listed: {error}");
    for entry in fs::read_dir(root.join(folder)).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(root, &path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("{path} cannot be read: {error}"))
}

fn manifest(root: &Path, path: &str) -> Result<Table, String> {
    let text = read(root, path)?;
    text.parse()
        .map_err(|error| format!("{path} is not TOML: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! 1\n//! 2\n//! 3\n//! 4\n//! 5\n";

    fn all_lines(path: &str, text: &str) -> Vec<usize> {
        let faults = check_file(&File::new(path, text));
        faults.iter().map(|fault| fault.line).collect()
    }

    /// Lines of the faults, the opening left aside.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let opened = check_file(&File::new(path, &format!("{LIB}{text}")));
        let above = LIB.lines().count();
        let lines = opened.iter().map(|fault| fault.line.saturating_sub(above));
        lines.collect()
    }

    #[test]
    fn long_files_are_caught() {
        assert!(lines("crates/run/src/a.rs", &"\n".repeat(795)).is_empty());
        assert_eq!(lines("crates/run/src/a.rs", &"\n".repeat(796)), [0]);
    }

    #[test]
    fn ignored_tests_are_caught() {
        for bad in ["#[ignore]", "#[ignore = \"slow\"]"] {
            let text = format!("#[test]\n{bad}\nfn t() {{}}");
            assert_eq!(lines("crates/run/src/a.rs", &text), [2], "{bad}");
            assert_eq!(lines("crates/run/tests/a.rs", &text), [2], "{bad}");
        }
        assert!(
            lines(
                "crates/run/src/a.rs",
                "// #[ignore]\nlet a = \"#[ignore]\";"
            )
            .is_empty()
        );
    }

    #[test]
    fn empty_names_are_caught() {
        assert_eq!(lines("crates/run/src/utils.rs", ""), [0]);
        assert_eq!(lines("crates/run/src/common/a.rs", ""), [0]);
        assert_eq!(lines("crates/run/src/a.rs", "\nmod misc {}"), [2]);
        assert!(lines("crates/run/src/a.rs", "mod miscellany {}").is_empty());
    }

    #[test]
    fn libraries_open_with_their_contract_and_files_with_what_they_hold() {
        assert!(all_lines("crates/run/src/lib.rs", LIB).is_empty());
        assert_eq!(all_lines("crates/run/src/lib.rs", "//! 1\n\n//! 2\n"), [1]);
        for path in ["crates/run/src/a.rs", "crates/run/tests/a.rs"] {
            assert!(all_lines(path, "//! 1\n").is_empty(), "{path}");
            assert_eq!(all_lines(path, "use std::fs;\n"), [1], "{path}");
        }
    }

    #[test]
    fn wildcards_are_caught_outside_tests() {
        let bad = "fn f() {\n match w { Work::A => 1,\n _ => 2 }\n}";
        assert_eq!(lines("crates/oracle/src/cost.rs", bad), [3]);
        assert!(lines("crates/oracle/tests/cost.rs", bad).is_empty());
        let tested = format!("#[cfg(test)]\nmod tests {{ {bad} }}");
        assert!(lines("crates/oracle/src/cost.rs", &tested).is_empty());
    }

    #[test]
    fn printing_and_the_environment_belong_to_few_rooms() {
        for bad in [
            "fn f() { println!(); }",
            "fn f() { eprint!(\"x\"); }",
            "fn f() { env::var(\"HOME\"); }",
            "use std::env;",
        ] {
            assert_eq!(lines("crates/run/src/a.rs", bad), [1], "{bad}");
            assert!(lines("crates/cli/src/a.rs", bad).is_empty(), "{bad}");
            assert!(lines("crates/run/examples/a.rs", bad).is_empty(), "{bad}");
            assert!(lines("crates/cuda/build.rs", bad).is_empty(), "{bad}");
        }
        assert!(lines("crates/run/src/a.rs", "include_str!(env!(\"A\"));").is_empty());
    }
}
