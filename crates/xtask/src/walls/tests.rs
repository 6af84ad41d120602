//! Tests of the walls on small tables.

use super::*;

const DOCUMENT: &str = "
| word | meaning |
|---|---|
| rank | one participant |

| level | crate | what it holds | may depend on |
|---|---|---|---|
| 0 | `space` | regions | - |
| 1 | `graph` | the model | space |
| 1 | `program` | tasks | space |
| 2 | `lower` | passes | space graph program |
| 2 | `run` | the driver | space, program |
| 3 | `tune` | menus | `space` `program` `run` |
| 3 | `oracle` | time | space program run tune |
| 5 | `mpi`, `gpu` (later `onednn`) | leaves | space program run |
| 6 | `cli` | the command line | all |
| dev | `testkit`, `xtask` | cases | all |

Prose.
";

fn rooms() -> Rooms {
    let (rooms, faults) = parse(DOCUMENT);
    assert_eq!(faults, []);
    rooms
}

fn workspace(edges: &[(&str, &[&str])]) -> BTreeMap<String, Crate> {
    let packages: Vec<Value> = edges
        .iter()
        .map(|(name, uses)| {
            let dependencies: Vec<Value> = uses.iter().map(|edge| dependency(edge)).collect();
            serde_json::json!({
                "manifest_path": format!("/somewhere/crates/{name}/Cargo.toml"),
                "dependencies": dependencies,
            })
        })
        .collect();
    crates(&serde_json::json!({ "packages": packages })).expect("packages")
}

/// `dev:NAME` is a dev-dependency, `registry:NAME` a foreign one.
fn dependency(edge: &str) -> Value {
    let path = |name: &str| format!("/somewhere/crates/{name}");
    match edge.split_once(':') {
        Some(("dev", name)) => serde_json::json!({ "kind": "dev", "path": path(name) }),
        Some((_, name)) => serde_json::json!({ "kind": null, "name": name }),
        None => serde_json::json!({ "kind": null, "path": path(edge) }),
    }
}

fn messages(edges: &[(&str, &[&str])]) -> Vec<String> {
    let crates = workspace(edges);
    let mut faults = check_table(&rooms(), &crates);
    faults.extend(check_walls(&crates));
    faults.into_iter().map(|fault| fault.message).collect()
}

#[test]
fn the_table_is_read() {
    let rooms = rooms();
    assert_eq!(rooms.len(), 13);
    assert_eq!(rooms["onednn"].may, rooms["mpi"].may);
    assert_eq!(rooms["cli"].may, May::All);
    assert_eq!(rooms["space"].may, May::These(BTreeSet::new()));
    let run: BTreeSet<String> = ["program", "space"].map(str::to_owned).into();
    assert_eq!(rooms["run"].may, May::These(run));
}

#[test]
fn faults_of_the_table_are_caught() {
    let bad = |from: &str, to: &str| parse(&DOCUMENT.replacen(from, to, 1)).1;
    assert_eq!(bad("the driver | space,", "the driver | spaces,").len(), 1);
    assert_eq!(bad("the model | space", "the model | space run").len(), 1);
    assert_eq!(bad("`tune` | menus", "`run` | menus").len(), 2);
    // The row with three cells, and the nine rooms that build on the room it would have named.
    assert_eq!(bad("| regions ", "").len(), 10);
    assert_eq!(parse("no table").1.len(), 1);
}

#[test]
fn allowed_edges_pass_and_rooms_may_be_absent() {
    let none: Vec<String> = Vec::new();
    assert_eq!(
        messages(&[
            ("space", &["registry:serde"]),
            ("graph", &["space", "dev:testkit"]),
            ("oracle", &["space", "program", "tune"]),
            ("cli", &["graph", "oracle", "mpi"]),
            ("testkit", &["graph", "lower"]),
        ]),
        none
    );
}

#[test]
fn crates_without_a_row_are_caught() {
    let found = messages(&[("extra", &["space"])]);
    assert_eq!(found, ["`extra` has no row in ARCHITECTURE.md"]);
}

#[test]
fn edges_that_the_table_forbids_are_caught() {
    let found = messages(&[("space", &["run"]), ("cli", &["testkit"])]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("`cli` depends on `testkit`"));
    assert!(found[1].contains("`space` depends on `run`"));
}

#[test]
fn dev_dependencies_go_through_the_testkit() {
    let found = messages(&[("oracle", &["dev:lower"])]);
    assert_eq!(
        found,
        ["`oracle` has `lower` as dev-dependency: only `testkit` may be one"]
    );
}

#[test]
fn crossed_walls_are_named() {
    for (from, to, name) in [
        ("graph", "program", "wall I,"),
        ("run", "graph", "wall II,"),
        ("gpu", "lower", "wall II,"),
        ("oracle", "graph", "wall III,"),
    ] {
        let found = messages(&[(from, &[to])]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].contains(name), "{found:?}");
    }
}

#[test]
fn walls_hold_along_paths_and_whatever_the_table_says() {
    let crates = workspace(&[("oracle", &["tune"]), ("tune", &["lower"])]);
    let faults = check_walls(&crates);
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0]
            .message
            .starts_with("oracle -> tune -> lower crosses wall III")
    );
}

#[test]
fn foreign_libraries_are_caught() {
    let good = "\tlinux-vdso.so.1 (0x1)\n\tlibgcc_s.so.1 => /lib/libgcc_s.so.1 (0x2)\n\
                \tlibm.so.6 => /lib/libm.so.6 (0x3)\n\tlibc.so.6 => /lib/libc.so.6 (0x4)\n\
                \t/lib64/ld-linux-x86-64.so.2 (0x5)\n";
    assert!(foreign_libraries(good).is_empty());
    assert!(foreign_libraries("\tstatically linked\n").is_empty());
    let bad = format!("{good}\tlibmpi.so.12 => not found\n\tlibcudart.so.12 => /a (0x6)\n");
    assert_eq!(foreign_libraries(&bad), ["libmpi.so.12", "libcudart.so.12"]);
}
