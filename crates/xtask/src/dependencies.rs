//! Rules on foreign dependencies.

use crate::Fault;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// Foreign dependencies of the workspace without a line in DEPENDENCIES.md, and the reverse.
///
/// The line is a row of a table that opens with the name between backticks.
pub(crate) fn documented(root_manifest: &Table, document: &str) -> Vec<Fault> {
    let foreign = foreign(root_manifest);
    let rows: Vec<(usize, &str)> = document
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, row_name(line)?)))
        .collect();
    let fault = |line, message| Fault {
        path: "DEPENDENCIES.md".to_owned(),
        line,
        message,
    };
    let mut faults = Vec::new();
    for name in &foreign {
        if !rows.iter().any(|(_, row)| row == name) {
            faults.push(fault(
                0,
                format!("no row for `{name}`: say why it and not another"),
            ));
        }
    }
    for (line, row) in rows {
        if !foreign.iter().any(|name| name == row) {
            faults.push(fault(
                line,
                format!("`{row}` is not in [workspace.dependencies]"),
            ));
        }
    }
    faults
}

/// Dependencies of one crate that do not take their version from the workspace.
pub(crate) fn inherited(manifest: &Table, path: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for section in sections(manifest) {
        for (name, entry) in section {
            let inherits = entry.get("workspace").and_then(Value::as_bool) == Some(true);
            if !inherits {
                faults.push(Fault {
                    path: path.to_owned(),
                    line: 0,
                    message: format!("`{name}` must be written `{{ workspace = true }}`"),
                });
            }
        }
    }
    faults
}

/// Foreign dependencies of the workspace that none of its crates takes.
pub(crate) fn used(root_manifest: &Table, manifests: &[Table]) -> Vec<Fault> {
    let sections = manifests.iter().flat_map(sections);
    let taken: BTreeSet<&String> = sections.flat_map(Table::keys).collect();
    let unused = foreign(root_manifest);
    let unused = unused.iter().filter(|name| !taken.contains(name));
    let fault = |name: &String| Fault {
        path: "Cargo.toml".to_owned(),
        line: 0,
        message: format!("no crate takes `{name}`: leave it out"),
    };
    unused.map(fault).collect()
}

fn foreign(root_manifest: &Table) -> Vec<String> {
    let dependencies = root_manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies"))
        .and_then(Value::as_table);
    let is_foreign = |entry: &Value| entry.get("path").is_none();
    dependencies
        .into_iter()
        .flatten()
        .filter(|(_, entry)| is_foreign(entry))
        .map(|(name, _)| name.clone())
        .collect()
}

fn sections(manifest: &Table) -> Vec<&Table> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest
        .get("target")
        .and_then(Value::as_table)
        .into_iter()
        .flatten();
    let holders = targets.filter_map(|(_, target)| target.as_table());
    std::iter::once(manifest)
        .chain(holders)
        .flat_map(|holder| KINDS.map(|kind| holder.get(kind)))
        .filter_map(|section| section?.as_table())
        .collect()
}

fn row_name(line: &str) -> Option<&str> {
    let cell = line.trim().strip_prefix('|')?.split('|').next()?.trim();
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().expect("TOML")
    }

    #[test]
    fn every_foreign_dependency_needs_its_row() {
        let manifest = table(
            "[workspace.dependencies]\nserde = \"1\"\nrayon = \"1\"\n\
             ours = { path = \"crates/ours\" }",
        );
        let document = "| crate | why |\n|---|---|\n| `serde` | x |\n| `gone` | y |\n";
        let faults = documented(&manifest, document);
        assert_eq!(faults.len(), 2);
        assert!(faults[0].message.contains("`rayon`"));
        assert_eq!(
            (faults[1].line, faults[1].path.as_str()),
            (4, "DEPENDENCIES.md")
        );
        assert!(faults[1].message.contains("`gone`"));
    }

    #[test]
    fn a_dependency_that_nobody_takes_is_a_fault() {
        let root = "[workspace.dependencies]\nserde = \"1\"\nrayon = \"1\"\nlibc = \"0.2\"\n\
                    ours = { path = \"crates/ours\" }";
        let crates = [
            "[dependencies]\nserde.workspace = true",
            "[target.'cfg(unix)'.dev-dependencies]\nlibc = { workspace = true }",
        ];
        let faults = used(&table(root), &crates.map(table));
        let messages: Vec<&str> = faults.iter().map(|fault| &*fault.message).collect();
        assert_eq!(messages, ["no crate takes `rayon`: leave it out"]);
    }

    #[test]
    fn versions_come_from_the_workspace() {
        let good = "[dependencies]\nserde = { workspace = true }\ntoml.workspace = true";
        assert!(inherited(&table(good), "a").is_empty());
        let bad = "[dependencies]\nserde = \"1\"\n[dev-dependencies]\nx = { version = \"1\" }\n\
                   [target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"";
        assert_eq!(inherited(&table(bad), "a").len(), 3);
    }
}
