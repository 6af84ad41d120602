//! Soft links, and external links, whose files are looked for beside that of the link.
//!
//! Source: HDF5 File Format Specification 3.0, section IV.A.2.g (link message).

use std::path::{Path, PathBuf};

use rust_hdf5::{H5File, LinkClass};

use crate::array::Access;
use crate::read_error::ReadError;

/// Most links that are followed one after the other.
const LINKS_MAX: usize = 32;

/// Where links lead.
pub(super) enum Target {
    /// A path without links in the same file.
    Here(String),
    Elsewhere {
        file: Beside,
        key: String,
    },
}

/// Follows the links of a path, up to another file.
///
/// Errors: links that lead nowhere, or out of the folder unless that is allowed, and cycles.
pub(super) fn follow(
    path: &Path,
    file: &H5File,
    key: &str,
    access: Access,
) -> Result<Target, ReadError> {
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
                let found = beside(path, &file, access)
                    .map_err(|error| error.map(|reason| format!("the link `{link}`: {reason}")))?;
                let found = found.ok_or_else(|| {
                    ReadError::Unsupported(format!(
                        "the link `{link}` leads to the file {file}, which does not exist beside it; put it there"
                    ))
                })?;
                return Ok(Target::Elsewhere {
                    file: found,
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

/// A file that another one names.
pub(super) struct Beside {
    pub(super) path: PathBuf,
    /// Whether it lies neither in the folder of the other nor below.
    pub(super) is_outside: bool,
}

/// Finds a file that another one names: where it says, else beside it. `.` is the file itself. Links of the file system
/// count as where they lead.
///
/// Errors: a file elsewhere than in the folder of the other or below, unless that is allowed.
/// Source: HDF5 reference manual, `H5Lcreate_external` and `H5Pset_virtual`, without the search by environment
/// variables.
pub(super) fn beside(path: &Path, name: &str, access: Access) -> Result<Option<Beside>, ReadError> {
    if name == "." {
        let path = path.to_path_buf();
        return Ok(Some(Beside {
            path,
            is_outside: false,
        }));
    }
    let name = Path::new(name);
    let relative = match name.file_name() {
        Some(last) if name.is_absolute() => Path::new(last),
        Some(_) => name,
        None => return Ok(None),
    };
    let real = path.canonicalize().ok();
    let folders: Vec<&Path> = [Some(path), real.as_deref()]
        .into_iter()
        .flatten()
        .map(partita_files::parent)
        .collect();
    let beside = folders.iter().map(|folder| folder.join(relative));
    let stated = name.is_absolute().then(|| name.to_path_buf());
    let Some(path) = stated.into_iter().chain(beside).find(|path| path.is_file()) else {
        return Ok(None);
    };
    let found = path.canonicalize()?;
    let is_in = |folder: &&Path| {
        folder
            .canonicalize()
            .is_ok_and(|folder| found.starts_with(folder))
    };
    let is_outside = !folders.iter().any(is_in);
    if is_outside && !access.external {
        return Err(not_allowed("it leads", &[found]));
    }
    Ok(Some(Beside { path, is_outside }))
}

/// Files that are named.
const NAMED_MAX: usize = 3;

/// The error that values lie in other files, which may be any of this machine.
pub(super) fn not_allowed(what: &str, files: &[PathBuf]) -> ReadError {
    let names = files
        .iter()
        .take(NAMED_MAX)
        .map(|file| file.display().to_string());
    let mut names = names.collect::<Vec<_>>().join(", ");
    if files.len() > NAMED_MAX {
        names.push_str(&format!(" and {} more", files.len() - NAMED_MAX));
    }
    ReadError::Unsupported(format!(
        "{what} outside of it, in {names}, and a file may so name any file of this machine; if it is trusted, allow it \
         with `--allow-external` of `partita data convert`, or `allow_external = true` in the run file; or copy the array to an \
         ordinary one with h5py"
    ))
}
