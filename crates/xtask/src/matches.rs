//! No catch-all arms over closed enums.

use crate::source::{block_start, closing, line_of, words};

/// Enums without catch-all arms: the kinds of work of programs.
const CLOSED: [&str; 2] = ["Work::", "Kernel::"];

/// Lines of catch-all arms in a match in which another arm names a closed enum.
///
/// Such an arm would handle a new kind of work without a decision. A catch-all arm is `_` or a single lower-case
/// name, with or without a guard. An arm that panics is allowed: it is in a second match after one that names
/// every kind.
pub(crate) fn wildcards(code: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for start in words(code, "match") {
        let Some(open) = block_start(code, start + "match".len()) else {
            continue;
        };
        let end = closing(code, open);
        let arms = arms(&code[open + 1..end - 1], open + 1);
        let closed = arms
            .iter()
            .any(|arm| CLOSED.iter().any(|name| words(arm.1, name).count() > 0));
        if closed {
            let caught = arms.iter().filter(|arm| catches_all(arm.1) && !arm.2);
            lines.extend(caught.map(|arm| line_of(code, arm.0)));
        }
    }
    lines
}

/// Offset and pattern of each arm of a match body at offset `base`, and whether it only panics.
fn arms(body: &str, base: usize) -> Vec<(usize, &str, bool)> {
    let mut arms = Vec::new();
    let mut from = 0;
    while let Some(arrow) = outside_brackets(body, from, "=>") {
        let pattern = &body[from..arrow];
        let lead = pattern.len() - pattern.trim_start().len();
        let value = arrow + 2;
        let panics = body[value..].trim_start().starts_with("panic!(");
        arms.push((base + from + lead, pattern.trim(), panics));
        let blank = body[value..].len() - body[value..].trim_start().len();
        from = if body[value + blank..].starts_with('{') {
            let end = closing(body, value + blank);
            let tail = body[end..].trim_start();
            if tail.starts_with(',') {
                body.len() - tail.len() + 1
            } else {
                end
            }
        } else {
            match outside_brackets(body, value, ",") {
                Some(comma) => comma + 1,
                None => break,
            }
        };
    }
    arms
}

fn outside_brackets(body: &str, from: usize, wanted: &str) -> Option<usize> {
    let mut offset = from;
    while offset < body.len() {
        let byte = body.as_bytes()[offset];
        if body.as_bytes()[offset..].starts_with(wanted.as_bytes()) {
            return Some(offset);
        }
        offset = match byte {
            b'{' | b'(' | b'[' => closing(body, offset),
            _ => offset + 1,
        };
    }
    None
}

fn catches_all(pattern: &str) -> bool {
    let bare = pattern.split(" if ").next().unwrap_or(pattern).trim();
    let name = bare.strip_prefix("ref ").unwrap_or(bare);
    let lower = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    !name.is_empty()
        && name != "true"
        && name != "false"
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name.chars().all(|letter| lower(letter) || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_beside_a_closed_enum_is_caught() {
        let code = "match work {\n  Work::Load(x) => { f(x) }\n  _ => 0,\n}";
        assert_eq!(wildcards(code), [3]);
        let code = "match (a, b) {\n  (Kernel::Conv { x, .. }, 1) => 1,\n  other => 0,\n}";
        assert_eq!(wildcards(code), [3]);
        let code = "match k { Kernel::A => 1,\n _ if x > 0 => 2, Kernel::B => 3 }";
        assert_eq!(wildcards(code), [2]);
    }

    #[test]
    fn an_arm_that_panics_passes() {
        assert!(wildcards("match w { Work::A => 1, other => panic!(\"{other}\") }").is_empty());
        assert_eq!(wildcards("match w { Work::A => 1, _ => f(panic!()) }"), [1]);
    }

    #[test]
    fn inner_matches_are_judged_by_their_own_arms() {
        let inner = "match w { Work::A => match n { 0 => 1, _ => 2 }, Work::B(_) => 3 }";
        assert!(wildcards(inner).is_empty());
        let inner = "match n { 0 => match w {\n Work::A => 1,\n _ => 2 }, _ => 3 }";
        assert_eq!(wildcards(inner), [3]);
    }

    #[test]
    fn exhaustive_and_foreign_matches_pass() {
        assert!(wildcards("match w { Work::A | Work::B => 1, Work::C { .. } => 2 }").is_empty());
        assert!(wildcards("match n { 1 => Work::A, _ => Work::B }").is_empty());
        assert!(wildcards("match f(|x| { x }) { MyWork::A => 1, _ => 2 }").is_empty());
    }
}
