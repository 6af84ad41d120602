//! Dependency cycles between the files of a crate.

use crate::Fault;
use crate::source::words;
use std::collections::{BTreeMap, BTreeSet};

/// Longest chain of re-exports that is followed.
const REEXPORTS_MAX: usize = 8;

/// The path of a module from the crate's root; empty for the root.
type Module = Vec<String>;

/// The files of a crate by module, and their dependencies.
#[derive(Default)]
pub(crate) struct Crate {
    files: BTreeMap<Module, File>,
}

#[derive(Default)]
struct File {
    path: String,
    /// Paths in code and in `use`.
    named: Vec<Vec<String>>,
    /// Imported paths, by local name.
    used: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// Adds a file of the crate by its path below `src`, with its code without tests.
    pub(crate) fn note(&mut self, below_src: &str, path: &str, code: &str) {
        let file = self.files.entry(module(below_src)).or_default();
        path.clone_into(&mut file.path);
        for tree in use_trees(code) {
            for path in flattened(tree) {
                if let Some(name) = path.last() {
                    file.used.insert(name.clone(), path.clone());
                }
                file.named.push(path);
            }
        }
        file.named.extend(paths(code));
    }

    /// Files that need each other. A module and its submodules may.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let fault = |cycle: Vec<&str>| Fault {
            path: cycle[0].to_owned(),
            line: 0,
            message: format!(
                "{} files need each other: move what they share into a file below them ({})",
                cycle.len(),
                cycle.join(", ")
            ),
        };
        self.cycles().into_iter().map(fault).collect()
    }

    /// Strongly connected components of files, each in the order of its modules.
    fn cycles(&self) -> Vec<Vec<&str>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> = self
            .files
            .keys()
            .map(|from| (from, self.reached(from)))
            .collect();
        let mut reported = BTreeSet::new();
        let mut cycles = Vec::new();
        for (from, ways) in &reached {
            let cycle: Vec<&Module> = ways
                .iter()
                .copied()
                .filter(|to| reached[to].contains(from))
                .collect();
            if cycle.len() > 1 && !reported.contains(from) {
                reported.extend(cycle.iter().copied());
                cycles.push(cycle.iter().map(|at| &*self.files[*at].path).collect());
            }
        }
        cycles
    }

    /// All direct and indirect dependencies of a module.
    fn reached(&self, from: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut open = self.needs(from);
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(self.needs(next));
            }
        }
        reached
    }

    fn needs(&self, from: &Module) -> Vec<&Module> {
        let named = self.files[from].named.iter();
        let modules = named.filter_map(|path| self.resolve(from, path, REEXPORTS_MAX));
        modules
            .filter(|to| !to.starts_with(from) && !from.starts_with(to))
            .collect()
    }

    /// The module that a path in another module refers to; `None` for a foreign one.
    fn resolve(&self, from: &Module, path: &[String], reexports: usize) -> Option<&Module> {
        let mut at = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            name if self
                .files
                .contains_key(&[from.as_slice(), &[name.to_owned()]].concat()) => {}
            _ => return None,
        }
        while let Some(name) = rest.first() {
            at.push(name.clone());
            if !self.files.contains_key(&at) {
                at.pop();
                break;
            }
            rest = &rest[1..];
        }
        let (here, file) = self.files.get_key_value(&at)?;
        let reexport = rest.first().and_then(|name| file.used.get(name));
        let further = reexport.filter(|_| reexports > 0).and_then(|path| {
            let path = [path.as_slice(), &rest[1..]].concat();
            self.resolve(here, &path, reexports - 1)
        });
        further.or(Some(here))
    }
}

fn module(below_src: &str) -> Module {
    let name = below_src.strip_suffix(".rs").unwrap_or(below_src);
    let mut parts: Module = name.split('/').map(str::to_owned).collect();
    let is_folder = |name: &String| ["lib", "main", "mod"].contains(&name.as_str());
    if parts.last().is_some_and(is_folder) {
        parts.pop();
    }
    parts
}

/// The trees of `use` declarations.
fn use_trees(code: &str) -> impl Iterator<Item = &str> {
    words(code, "use").filter_map(move |offset| {
        let before = code[..offset].rsplit(['\n', ';', '{', '}']).next()?.trim();
        let tree = code[offset..].strip_prefix("use")?;
        let is_use = tree.starts_with(char::is_whitespace);
        let is_statement = before.is_empty() || before.starts_with("pub");
        (is_use && is_statement).then(|| tree.split(';').next())?
    })
}

/// The paths of a `use`: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn flattened(tree: &str) -> Vec<Vec<String>> {
    let names = |text: &str| -> Vec<String> {
        let plain = text.split_whitespace().next().unwrap_or_default();
        let names = plain.split("::").filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    };
    let tree = tree.trim();
    let Some((head, inside)) = tree.split_once('{') else {
        return vec![names(tree)];
    };
    let inside = inside.trim_end().strip_suffix('}').unwrap_or(inside);
    let mut depth = 0;
    let parts = inside.split(|letter| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.trim().is_empty());
    let head = names(head);
    parts
        .flat_map(flattened)
        .map(|path| [head.as_slice(), &path].concat())
        .collect()
}

/// Paths that begin with `crate`, `self` or `super`.
fn paths(code: &str) -> impl Iterator<Item = Vec<String>> {
    let starts = ["crate::", "self::", "super::"].into_iter();
    starts.flat_map(move |start| {
        words(code, start).map(move |offset| {
            let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let text = &code[offset..];
            let end = text.find(|c| !is_of_path(c)).unwrap_or(text.len());
            let names = text[..end].split("::").filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = Crate::default();
        for (path, code) in files {
            all.note(path, path, code);
        }
        let cycles = all.cycles().into_iter();
        cycles.map(|cycle| cycle.join(" ")).collect()
    }

    #[test]
    fn files_that_name_each_other_are_a_cycle() {
        let one_way = [("a.rs", "use crate::b::B;"), ("b.rs", "struct B;")];
        assert!(cycles(&one_way).is_empty());
        for back in [
            "use crate::a::A;",
            "fn f() -> crate::a::A {}",
            "pub(crate) use super::a::A;",
        ] {
            assert_eq!(
                cycles(&[one_way[0], ("b.rs", back)]),
                ["a.rs b.rs"],
                "{back}"
            );
        }
        let three = [
            ("a.rs", "use crate::{b::B, c::{self, C}};"),
            ("b.rs", "use crate::d::D;"),
            ("c.rs", ""),
            ("d.rs", "use crate::a;"),
        ];
        assert_eq!(cycles(&three), ["a.rs b.rs d.rs"]);
    }

    #[test]
    fn names_are_followed_through_reexports() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::inner::B;"),
            ("a.rs", "use crate::B;"),
            ("b.rs", "mod inner; pub use self::inner::B;"),
            ("b/inner.rs", "fn f(a: super::super::a::A) {}"),
        ];
        assert_eq!(cycles(&files), ["a.rs b/inner.rs"]);
    }

    #[test]
    fn a_module_and_its_submodules_are_no_cycle() {
        let files = [
            ("lib.rs", "mod a; use a::A; use other::b::B;"),
            ("a/mod.rs", "mod inner; use self::inner::I; use crate::C;"),
            ("a/inner.rs", "use super::A; use crate::C;"),
        ];
        assert!(cycles(&files).is_empty());
    }
}
