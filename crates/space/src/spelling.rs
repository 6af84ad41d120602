//! Spelling suggestions for errors.

/// Characters of a name that are compared: time and memory grow with their square.
const COMPARED_MAX: usize = 128;

/// The candidate with the smallest edit distance to `asked`, the first of equals.
///
/// Counts insertions, deletions, replacements and swaps of neighbors; case costs nothing.
/// Source: Damerau, Communications of the ACM 7(3), 1964.
pub fn nearest<'a>(asked: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .min_by_key(|candidate| edits(asked, candidate))
}

/// As [`nearest`], but none if more than half of its letters differ.
pub fn near<'a>(asked: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_near = |found: &&str| 2 * edits(asked, found) <= found.chars().count();
    nearest(asked, candidates).filter(is_near)
}

/// Whether a name fits a pattern, in which `*` stands for any characters.
pub fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn edits(a: &str, b: &str) -> usize {
    let beginning = |text: &str| -> String {
        let lower = text.chars().flat_map(char::to_lowercase);
        lower.take(COMPARED_MAX).collect()
    };
    strsim::damerau_levenshtein(&beginning(a), &beginning(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_fewest_typing_errors() {
        let names = ["stride", "kernel", "pad", "padding"];
        assert_eq!(nearest("kernle", names), Some("kernel"));
        assert_eq!(nearest("padd", names), Some("pad"));
        assert_eq!(nearest("x", []), None);
        assert_eq!(edits("KB", "kB"), 0);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits(&"k".repeat(6 << 20), ""), COMPARED_MAX);
    }

    #[test]
    fn stars_stand_for_any_characters() {
        let fit = |pattern: &str| ["a.norm1.weight", "norm", "b"].map(|name| fits(pattern, name));
        assert_eq!(fit("*norm*"), [true, true, false]);
        assert_eq!(fit("norm"), [false, true, false]);
        assert_eq!(fit("a*norm*weight"), [true, false, false]);
        assert_eq!(fit("*m"), [false, true, false]);
        assert_eq!(fit("*"), [true; 3]);
        assert!(!fits("ab*ba", "aba"), "the ends do not overlap");
    }

    #[test]
    fn advises_only_what_is_close() {
        assert_eq!(near("lasen", ["abci", "lassen"]), Some("lassen"));
        assert_eq!(near("frontier", ["abci", "lassen"]), None);
        assert_eq!(near("unitPar", ["namePar", "unitpar"]), Some("unitpar"));
        assert_eq!(near("full", ["unitpar", "namePar", "redshifts"]), None);
    }
}
