//! Links between the pages, and from them to files.

use crate::page::is_fenced;
use crate::{pages, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages outside of the book.
const OTHERS: [&str; 4] = [
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "DEPENDENCIES.md",
];

/// The lines of a page that are text.
fn text_of(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let fenced = is_fenced(&lines);
    let open = lines.into_iter().zip(fenced);
    open.filter(|(_, is_fenced)| !is_fenced)
        .map(|(line, _)| line)
        .collect()
}

/// What stands between `](` and `)` in a line, outside of code.
fn links(line: &str) -> Vec<String> {
    let outside_code: Vec<&str> = line.split('`').step_by(2).collect();
    let line = outside_code.join("`");
    let after = line.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.to_owned())
        .collect()
}

/// The anchors of a page: its headings as GitHub and mdBook name them.
fn anchors(path: &Path) -> BTreeSet<String> {
    let lines = text_of(path);
    let headings = lines.iter().filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then_some(title.trim())
    });
    headings.map(anchor).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// What is wrong with a link from a page.
fn fault(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        page.to_path_buf()
    } else {
        page.parent().unwrap().join(file)
    };
    if !target.exists() {
        return Some(format!("{}: no file {link}", page.display()));
    }
    let is_missing = !wanted.is_empty() && !anchors(&target).contains(wanted);
    is_missing.then(|| {
        let known = anchors(&target);
        format!("{}: no heading {link}; there are {known:?}", page.display())
    })
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = root();
    let names = pages().into_iter().chain(OTHERS.map(str::to_owned));
    let mut count = 0;
    let mut faults = Vec::new();
    for name in names {
        let page: PathBuf = root.join(name);
        for link in text_of(&page).iter().flat_map(|line| links(line)) {
            count += 1;
            faults.extend(fault(&page, &link));
        }
    }
    assert!(count > 50, "only {count} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_page_stands_in_the_summary() {
    let summary = root().join("docs/src/SUMMARY.md");
    let listed: BTreeSet<String> = text_of(&summary)
        .iter()
        .flat_map(|line| links(line))
        .map(|link| format!("docs/src/{link}"))
        .collect();
    let pages = pages().into_iter();
    let pages = pages.filter(|page| page.starts_with("docs/") && !page.ends_with("SUMMARY.md"));
    assert_eq!(listed, pages.collect());
}

/// Folders of the repository whose files pages name in code.
const FOLDERS: [&str; 6] = [
    "crates/",
    "bench/",
    "fixtures/",
    "machines/",
    "records/",
    "docs/",
];

#[test]
fn files_that_pages_name_exist() {
    let root = root();
    let names = pages().into_iter().chain(OTHERS.map(str::to_owned));
    let mut count = 0;
    let mut faults = Vec::new();
    for name in names {
        let text = text_of(&root.join(&name));
        let words = text
            .iter()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        let is_file = |word: &&str| FOLDERS.iter().any(|folder| word.starts_with(folder));
        // `NAME` and `*` stand for any name; what is built is not there yet.
        let is_pattern = |word: &str| word.contains("NAME") || word.contains(['*', ' ']);
        for word in words.filter(is_file).filter(|word| !is_pattern(word)) {
            count += 1;
            if word != "docs/book" && !root.join(word).exists() {
                faults.push(format!("{name}: no file {word}"));
            }
        }
    }
    assert!(count > 50, "only {count} files were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn links_and_headings_are_found() {
    assert_eq!(links("a [b](c.md#d) `[x](y)` [e](f)"), ["c.md#d", "f"]);
    assert_eq!(
        anchor("The life of a halo: 2 `x_y`"),
        "the-life-of-a-halo-2-x_y"
    );
}
