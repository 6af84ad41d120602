//! Which crate may depend on which: the table of rooms in ARCHITECTURE.md against cargo's own word.

use crate::Fault;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TABLE_FILE: &str = "ARCHITECTURE.md";
const COLUMNS: [&str; 4] = ["level", "crate", "what it holds", "may depend on"];
/// The room through which, and only through which, a crate may have dev-dependencies.
const TESTKIT: &str = "testkit";
/// Libraries that the binary may need: libc, libm, libgcc_s, the loader, the kernel's own.
const LIBRARIES: [&str; 5] = [
    "libc.so",
    "libm.so",
    "libgcc_s.so",
    "ld-linux",
    "linux-vdso.so",
];

/// A wall: no path of dependencies leads from the first rooms to the second.
struct Wall {
    name: &'static str,
    from: &'static [&'static str],
    to: &'static [&'static str],
}

/// Walls hold whatever the table says, so that nobody opens one by editing a document.
const WALLS: [Wall; 3] = [
    Wall {
        name: "wall I, the model knows no rank",
        from: &["graph"],
        to: &["cluster", "program"],
    },
    Wall {
        name: "wall II, the runner knows no model",
        from: &[
            "run",
            "session",
            "reference",
            "threads",
            "cpu",
            "mpi",
            "gpu",
            "onednn",
            "site",
        ],
        to: &["graph", "lower"],
    },
    Wall {
        name: "wall III, the oracle knows no model",
        from: &["oracle"],
        to: &["graph", "lower"],
    },
];

/// All faults of the repository at `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Fault>, String> {
    let document = fs::read_to_string(root.join(TABLE_FILE))
        .map_err(|error| format!("{TABLE_FILE} cannot be read: {error}"))?;
    let (table, mut faults) = parse(&document);
    let metadata = metadata(root)?;
    let crates = crates(&metadata)?;
    faults.extend(check_table(&table, &crates));
    faults.extend(check_walls(&crates));
    let target = metadata["target_directory"]
        .as_str()
        .ok_or("cargo metadata names no target directory")?;
    // That of `make test`, or else of `make`.
    let binaries =
        ["suite", "release"].map(|profile| PathBuf::from(target).join(profile).join("partita"));
    let built = binaries.iter().find(|binary| binary.is_file());
    faults.extend(check_binary(built.unwrap_or(&binaries[0])));
    Ok(faults)
}

/// A row's rooms share what they may depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Room {
    line: usize,
    level: String,
    may: May,
}

/// What a room may depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum May {
    All,
    These(BTreeSet<String>),
}

type Rooms = BTreeMap<String, Room>;

/// A crate of the workspace and the rooms it depends on.
#[derive(Debug, Default)]
struct Crate {
    uses: BTreeSet<String>,
    dev_uses: BTreeSet<String>,
}

fn fault(line: usize, message: String) -> Fault {
    Fault {
        path: TABLE_FILE.to_owned(),
        line,
        message,
    }
}

/// The table of rooms, and what is wrong with it. Rooms that do not exist yet may stand in it.
fn parse(document: &str) -> (Rooms, Vec<Fault>) {
    let mut rooms = Rooms::new();
    let mut faults = Vec::new();
    let mut inside = false;
    for (index, line) in document.lines().enumerate() {
        let Some(cells) = cells(line) else {
            inside = false;
            continue;
        };
        if cells == COLUMNS {
            inside = true;
            continue;
        }
        let is_rule = cells
            .iter()
            .all(|cell| cell.chars().all(|c| c == '-' || c == ':'));
        if !inside || is_rule {
            continue;
        }
        let [level, names, _, may] = cells[..] else {
            faults.push(fault(index + 1, format!("{} cells, not 4", cells.len())));
            continue;
        };
        for name in names.split('`').skip(1).step_by(2) {
            let room = Room {
                line: index + 1,
                level: level.to_owned(),
                may: may_depend_on(may),
            };
            if rooms.insert(name.to_owned(), room).is_some() {
                faults.push(fault(index + 1, format!("`{name}` has two rows")));
            }
        }
    }
    if rooms.is_empty() {
        let columns = COLUMNS.join(" | ");
        faults.push(fault(0, format!("no table with the columns {columns}")));
    }
    faults.extend(check_rows(&rooms));
    (rooms, faults)
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

fn may_depend_on(cell: &str) -> May {
    let words: BTreeSet<String> = cell
        .split(|c: char| c.is_whitespace() || c == ',' || c == '`')
        .filter(|word| !word.is_empty() && *word != "-")
        .map(str::to_owned)
        .collect();
    if words.contains("all") {
        May::All
    } else {
        May::These(words)
    }
}

/// Rows that allow a room that the table does not know, or one of a higher level.
fn check_rows(rooms: &Rooms) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, room) in rooms {
        let May::These(allowed) = &room.may else {
            continue;
        };
        for other in allowed {
            match rooms.get(other) {
                None => faults.push(fault(
                    room.line,
                    format!("`{name}` may depend on `{other}`, which has no row"),
                )),
                Some(above) if above.level > room.level => faults.push(fault(
                    room.line,
                    format!("`{name}` may depend on `{other}`, which is of a higher level"),
                )),
                Some(_) => {}
            }
        }
    }
    faults
}

/// Crates without a row, and edges that the table does not allow.
fn check_table(rooms: &Rooms, crates: &BTreeMap<String, Crate>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, found) in crates {
        let manifest = format!("crates/{name}/Cargo.toml");
        let mut add = |message| {
            faults.push(Fault {
                path: manifest.clone(),
                line: 0,
                message,
            });
        };
        let Some(room) = rooms.get(name) else {
            add(format!("`{name}` has no row in {TABLE_FILE}"));
            continue;
        };
        for other in &found.uses {
            let allowed = match &room.may {
                May::All => {
                    room.level == "dev" || rooms.get(other).is_none_or(|r| r.level != "dev")
                }
                May::These(allowed) => allowed.contains(other),
            };
            if !allowed {
                let table = format!("the table of rooms ({TABLE_FILE})");
                add(format!(
                    "`{name}` depends on `{other}`: {table} does not allow it"
                ));
            }
        }
        for other in found.dev_uses.iter().filter(|other| *other != TESTKIT) {
            add(format!(
                "`{name}` has `{other}` as dev-dependency: only `{TESTKIT}` may be one"
            ));
        }
    }
    faults
}

/// Walls that some path of dependencies crosses.
fn check_walls(crates: &BTreeMap<String, Crate>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for wall in &WALLS {
        for from in wall.from {
            for to in wall.to {
                if let Some(path) = path(crates, from, to) {
                    faults.push(Fault {
                        path: format!("crates/{from}/Cargo.toml"),
                        line: 0,
                        message: format!("{} crosses {}", path.join(" -> "), wall.name),
                    });
                }
            }
        }
    }
    faults
}

/// The shortest path of dependencies between two rooms.
fn path(crates: &BTreeMap<String, Crate>, from: &str, to: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut paths = vec![vec![from.to_owned()]];
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            let last = path.last()?;
            if last == to {
                return Some(path);
            }
            for next in crates.get(last).into_iter().flat_map(|found| &found.uses) {
                if seen.insert(next.clone()) {
                    longer.push([path.clone(), vec![next.clone()]].concat());
                }
            }
        }
        paths = longer;
    }
    None
}

fn metadata(root: &Path) -> Result<Value, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {message}"));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata is not JSON: {error}"))
}

/// The crates of the workspace by the folder they lie in, which is the name of their room.
fn crates(metadata: &Value) -> Result<BTreeMap<String, Crate>, String> {
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    let mut crates = BTreeMap::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let folder = Path::new(manifest).parent();
        let name = room_name(folder).ok_or(format!("{manifest} lies in no folder"))?;
        let mut found = Crate::default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let folder = dependency["path"].as_str().map(Path::new);
            let Some(other) = room_name(folder) else {
                continue;
            };
            if dependency["kind"] == "dev" {
                found.dev_uses.insert(other);
            } else {
                found.uses.insert(other);
            }
        }
        crates.insert(name, found);
    }
    Ok(crates)
}

fn room_name(folder: Option<&Path>) -> Option<String> {
    Some(folder?.file_name()?.to_str()?.to_owned())
}

/// Wall IV. Without a binary, or where there is no `ldd`, there is nothing to look at; it says so.
fn check_binary(binary: &Path) -> Vec<Fault> {
    const WALL: &str = "wall IV, the binary links nothing foreign";
    if !binary.is_file() {
        println!("walls: no binary yet, so {WALL}, was not looked at");
        return Vec::new();
    }
    let Ok(output) = Command::new("ldd").arg(binary).output() else {
        println!("walls: no ldd here, so {WALL}, was not looked at");
        return Vec::new();
    };
    let listing = String::from_utf8_lossy(&output.stdout);
    foreign_libraries(&listing)
        .into_iter()
        .map(|library| Fault {
            path: "partita".to_owned(),
            line: 0,
            message: format!("needs {library}: {WALL}"),
        })
        .collect()
}

fn foreign_libraries(listing: &str) -> Vec<String> {
    listing
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| !matches!(*name, "statically" | "not"))
        .map(|path| path.rsplit('/').next().unwrap_or(path))
        .filter(|name| !LIBRARIES.iter().any(|library| name.starts_with(library)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests;
