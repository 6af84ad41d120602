//! The tables of constants against the headers of the libraries, where these are installed.

#![allow(clippy::disallowed_methods, reason = "tests read what they wrote")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use partita_mpi::{Family, Predefined};
use partita_testkit::not_run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of a header: in one of the folders for an architecture under `root`, or in `root`.
fn find(root: &Path, header: &str) -> Option<PathBuf> {
    let below = fs::read_dir(root).into_iter().flatten().flatten();
    let mut files = vec![root.join(header)];
    files.extend(below.map(|entry| entry.path().join(header)));
    let file = files.into_iter().find(|file| file.is_file())?;
    Some(file.parent().unwrap().to_owned())
}

fn wheel() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap()
        .join("mpi-wheel/include")
}

/// What the compiler makes of expressions under a header.
fn values(include: &Path, header: &str, expressions: &[String]) -> Option<Vec<i64>> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("values.c"), folder.path().join("values"));
    let prints = expressions
        .iter()
        .map(|one| format!("    printf(\"%lld\\n\", (long long)({one}));\n"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <{header}>\nint main(void) {{\n{}    return \
         0;\n}}\n",
        prints.collect::<String>()
    );
    fs::write(&source, text).unwrap();
    let compiled = Command::new("cc")
        .args(["-w", "-I"])
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .ok()?;
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.parse().unwrap()).collect())
}

fn compare(test: &str, family: Family, include: Option<PathBuf>, header: &str) {
    let Some(include) = include else {
        let reason = format!(
            "no {header} of {}; crates/mpi/install-test-mpi.sh installs it",
            family.name()
        );
        return not_run(test, reason);
    };
    let mut expected: Vec<(String, i64)> = Vec::new();
    for (name, value) in family.constants().named() {
        expected.push((name.to_owned(), value));
    }
    for (name, handle) in family.handles().named() {
        match handle {
            Predefined::Value(value) => expected.push((name.to_owned(), value as i64)),
            Predefined::Symbol(symbol) => is_the_address_of(&include, name, symbol),
        }
    }
    let size = if family.handles().are_int { 4 } else { 8 };
    expected.push(("sizeof(MPI_Comm)".to_owned(), size));
    let expressions: Vec<String> = expected.iter().map(|(name, _)| name.clone()).collect();
    let Some(found) = values(&include, header, &expressions) else {
        return not_run(test, "no C compiler (cc)");
    };
    let found: Vec<(String, i64)> = expressions.into_iter().zip(found).collect();
    assert_eq!(found, expected, "{}", include.display());
}

/// The header's macro names the object whose address the table takes.
fn is_the_address_of(include: &Path, name: &str, symbol: &str) {
    let header = fs::read_to_string(include.join("mpi.h")).unwrap();
    let line = header.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("#define") && words.next() == Some(name)
    });
    let line = line.unwrap_or_else(|| panic!("no {name} in {}", include.display()));
    let names = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    assert!(names.into_iter().any(|word| word == symbol), "{line}");
}

#[test]
fn the_standard_abi_is_that_of_its_header() {
    let include = find(&wheel(), "mpi_abi.h");
    let test = "the_standard_abi_is_that_of_its_header";
    compare(test, Family::Standard, include, "mpi_abi.h");
}

#[test]
fn mpich_5_is_that_of_its_header() {
    let test = "mpich_5_is_that_of_its_header";
    compare(test, Family::Mpich, find(&wheel(), "mpi.h"), "mpi.h");
}

#[test]
fn mpich_is_that_of_its_header() {
    let include = find(Path::new("/usr/include"), "mpich/mpi.h");
    compare(
        "mpich_is_that_of_its_header",
        Family::Mpich,
        include,
        "mpi.h",
    );
}

#[test]
fn open_mpi_is_that_of_its_header() {
    let include = find(Path::new("/usr/lib"), "openmpi/include/mpi.h");
    compare(
        "open_mpi_is_that_of_its_header",
        Family::OpenMpi,
        include,
        "mpi.h",
    );
}
