//! Whether every file of tests is part of a test binary: cargo does not look for them where a crate lists its binaries.

use crate::Fault;
use crate::source::words;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// The test files of a crate by their path below `tests`, as code without comments.
pub(crate) type Codes = BTreeMap<String, String>;

/// Faults of one crate, whose manifest is at `path`.
pub(crate) fn listed(manifest: &Table, path: &str, codes: &Codes) -> Vec<Fault> {
    let package = manifest.get("package");
    let looks = package.and_then(|package| package.get("autotests"));
    if looks.and_then(Value::as_bool).unwrap_or(true) {
        return Vec::new();
    }
    let tests = manifest.get("test").and_then(Value::as_array);
    let tests = tests.into_iter().flatten();
    let paths: Vec<&str> = tests
        .filter_map(|test| test.get("path").and_then(Value::as_str))
        .collect();
    let main = codes.get("main.rs").map(String::as_str).unwrap_or_default();
    let is_part = |file: &str| {
        let module = format!("mod {}", file.trim_end_matches(".rs"));
        paths.contains(&format!("tests/{file}").as_str()) || words(main, &module).next().is_some()
    };
    let is_root = |file: &str| !file.contains('/') || file.ends_with("/main.rs");
    let lost = codes.keys().filter(|file| is_root(file) && !is_part(file));
    let folder = path.replace("Cargo.toml", "tests");
    lost.map(|file| Fault {
        path: format!("{folder}/{file}"),
        line: 0,
        message: format!(
            "its tests do not run: add `mod` to {folder}/main.rs, or `[[test]]` to {path}"
        ),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(manifest: &str) -> Vec<String> {
        let main = "mod gained;\n\nmod hand;\nmod kept;\n";
        let codes = [
            ("main.rs", main),
            ("gained.rs", ""),
            ("kept.rs", ""),
            ("kept_apart.rs", ""),
            ("hand/mod.rs", ""),
            ("verbs/main.rs", "mod cores;"),
            ("verbs/cores.rs", ""),
        ];
        let codes = codes.map(|(file, code)| (file.to_owned(), code.to_owned()));
        let faults = listed(
            &manifest.parse().unwrap(),
            "crates/a/Cargo.toml",
            &codes.into(),
        );
        faults.into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn files_in_no_binary_are_caught() {
        let some =
            "[package]\nautotests = false\n[[test]]\nname = \"it\"\npath = \"tests/main.rs\"\n";
        assert_eq!(
            lost(some),
            [
                "crates/a/tests/kept_apart.rs",
                "crates/a/tests/verbs/main.rs"
            ]
        );
        let more =
            "[[test]]\npath = \"tests/kept_apart.rs\"\n[[test]]\npath = \"tests/verbs/main.rs\"\n";
        assert!(lost(&format!("{some}{more}")).is_empty());
    }

    #[test]
    fn cargo_finds_the_files_of_other_crates() {
        assert!(lost("[package]\nname = \"a\"\n").is_empty());
    }
}
