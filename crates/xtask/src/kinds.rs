//! Limits the number of files that name a kind of kernel: kernels are described in one place.

use crate::Fault;
use crate::source::words;
use std::collections::BTreeMap;

/// The definition of the kinds of kernels.
pub(crate) const KERNELS: &str = "crates/program/src/kernel.rs";
/// Most product files that may name a kind, by the recipe in CONTRIBUTING.md.
const FILES_MAX: usize = 10;
/// Kinds without limit: `Copy` moves data for any layer, `Fused` contains other kernels.
const ANYWHERE: [&str; 2] = ["Copy", "Fused"];

/// The product files that name each kind of kernel.
#[derive(Default)]
pub(crate) struct Kinds {
    files: BTreeMap<String, Vec<String>>,
}

impl Kinds {
    /// The kinds that the code of [`KERNELS`] defines.
    pub(crate) fn of(kernels: &str) -> Self {
        // A macro before them uses the same names.
        let body = kernels
            .rsplit_once("pub enum Kernel {")
            .map_or("", |(_, body)| body);
        let lines = body.lines().filter(|line| !line.trim().is_empty());
        let indent = |line: &&str| line.len() - line.trim_start().len();
        let depth = lines.clone().next().map_or(0, |first| indent(&first));
        let inside = lines.take_while(|line| indent(line) >= depth);
        let kinds = inside.filter(|line| line.contains('{') && indent(line) == depth);
        let names = kinds.filter_map(|line| line.split_whitespace().next());
        let is_kind = |name: &&str| name.starts_with(|letter: char| letter.is_ascii_uppercase());
        let names = names.filter(is_kind);
        let none = |name: &str| (name.to_owned(), Vec::new());
        Self {
            files: names.map(none).collect(),
        }
    }

    /// Adds the kinds that a file names.
    pub(crate) fn note(&mut self, path: &str, code: &str) {
        for (kind, files) in &mut self.files {
            if words(code, &format!("Kernel::{kind}")).next().is_some() {
                files.push(path.to_owned());
            }
        }
    }

    /// Kinds that are named in too many files, or in none.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let fault = |message| Fault {
            path: KERNELS.to_owned(),
            line: 0,
            message,
        };
        if self.files.is_empty() {
            return vec![fault("no kind of kernel is found here".to_owned())];
        }
        let many = self
            .files
            .iter()
            .filter(|(kind, files)| files.len() > FILES_MAX && !ANYWHERE.contains(&kind.as_str()));
        let messages = many.map(|(kind, files)| {
            let (count, all) = (files.len(), files.join(", "));
            format!(
                "`{kind}` stands in {count} files, at most {FILES_MAX}: let them read its descriptor \
                 ({all})"
            )
        });
        messages.map(fault).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: &str = "kernels! {\n    pub enum Kernel {\n        Add { a: View },\n        Copy {\n            \
                         source: View,\n        },\n    }\n}\n";

    #[test]
    fn a_kind_in_many_files_is_a_fault() {
        for (kind, count, faults) in [("Add", 10, 0), ("Add", 11, 1), ("Copy", 30, 0)] {
            let mut kinds = Kinds::of(KINDS);
            for file in 0..count {
                kinds.note(
                    &format!("{file}.rs"),
                    &format!("f(Kernel::{kind} {{ .. }})"),
                );
                kinds.note("other.rs", "Kernel::AddOn, kernel::Add");
            }
            assert_eq!(kinds.faults().len(), faults, "{kind} in {count} files");
        }
        assert_eq!(Kinds::of("pub enum Other {}").faults().len(), 1);
    }
}
