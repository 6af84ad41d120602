//! Soft links, and external links, whose files are looked for beside that of the link.
//!
//! Source: HDF5 File Format Specification 3.0, section IV.A.2.g (link message).

use std::path::{Path, PathBuf};

use rust_hdf5::{H5File, LinkClass};

use crate::read_error::ReadError;

/// Most links that are followed one after the other.
const LINKS_MAX: usize = 32;

/// Where links lead.
pub(super) enum Target {
    /// A path without links in the same file.
    Here(String),
    Elsewhere {
        path: PathBuf,
        key: String,
    },
}

/// Follows the links of a path, up to another file.
///
/// Errors: links that lead nowhere, and cycles.
pub(super) fn follow(path: &Path, file: &H5File, key: &str) -> Result<Target, ReadError> {
    let root = file.root_group();
    let mut key = key.trim_matches('/').to_owned();
    for _ in 0..LINKS_MAX {
        let Some((end, class)) = first_link(&root, &key) else {
            return Ok(Target::Here(key));
        };
        let (link, rest) = key.split_at(end);
        match class {
            LinkClass::Soft { path } => key = join(link, &path) + rest,
            LinkClass::External { file, path: target } => {
                let found = beside(path, &file).ok_or_else(|| {
                    ReadError::Unsupported(format!(
                        "the link `{link}` leads to the file {file}, which does not exist beside it; put it there"
                    ))
                })?;
                return Ok(Target::Elsewhere {
                    path: found,
                    key: format!("{}{rest}", target.trim_matches('/')),
                });
            }
            LinkClass::Hard | LinkClass::UserDefined { .. } => return Ok(Target::Here(key)),
        }
    }
    Err(cycle(&key))
}

pub(super) fn cycle(key: &str) -> ReadError {
    ReadError::Unsupported(format!(
        "its links lead in a circle, or over more than {LINKS_MAX} links (at `{key}`); let one lead to the array"
    ))
}

/// Whether a path is a soft or external link, or leads through one.
pub(super) fn has_link(file: &H5File, key: &str) -> bool {
    first_link(&file.root_group(), key.trim_matches('/')).is_some()
}

/// The first part of a path that is a soft or external link: where its name ends.
fn first_link(root: &rust_hdf5::H5Group, key: &str) -> Option<(usize, LinkClass)> {
    let ends = key.match_indices('/').map(|(at, _)| at).chain([key.len()]);
    for end in ends {
        match root.link_class(&key[..end]) {
            Ok(class @ (LinkClass::Soft { .. } | LinkClass::External { .. })) => {
                return Some((end, class));
            }
            Ok(LinkClass::Hard | LinkClass::UserDefined { .. }) => {}
            Err(_) => return None,
        }
    }
    None
}

/// The path that a soft link in a group leads to.
fn join(link: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        link.split('/').rev().skip(1).collect()
    };
    parts.reverse();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// All external links of a file.
pub(super) fn external(file: &H5File) -> Vec<String> {
    let mut found = Vec::new();
    let mut groups = vec![String::new()];
    while let Some(group) = groups.pop() {
        let Ok(of_group) = (match group.as_str() {
            "" => Ok(file.root_group()),
            name => file.root_group().group(name),
        }) else {
            continue;
        };
        let below = |name: String| match group.as_str() {
            "" => name,
            group => format!("{group}/{name}"),
        };
        for name in of_group.link_names().unwrap_or_default() {
            if let Ok(LinkClass::External { .. }) = of_group.link_class(&name) {
                found.push(below(name));
            }
        }
        groups.extend(
            of_group
                .group_names()
                .unwrap_or_default()
                .into_iter()
                .map(below),
        );
    }
    found
}

/// A file that another one names: where it says, else beside it. `.` is the file itself.
///
/// Source: HDF5 reference manual, `H5Lcreate_external` and `H5Pset_virtual`, without the search by environment
/// variables.
pub(super) fn beside(path: &Path, name: &str) -> Option<PathBuf> {
    if name == "." {
        return Some(path.to_path_buf());
    }
    let name = Path::new(name);
    let relative = if name.is_absolute() {
        Path::new(name.file_name()?)
    } else {
        name
    };
    let real = path.canonicalize().ok();
    let folders = [Some(path), real.as_deref()].into_iter().flatten();
    let beside = folders.filter_map(|file| Some(file.parent()?.join(relative)));
    let stated = name.is_absolute().then(|| name.to_path_buf());
    stated.into_iter().chain(beside).find(|path| path.is_file())
}
