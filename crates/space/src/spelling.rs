//! Spelling suggestions for errors.

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

fn edits(a: &str, b: &str) -> usize {
    strsim::damerau_levenshtein(&a.to_lowercase(), &b.to_lowercase())
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
    }

    #[test]
    fn advises_only_what_is_close() {
        assert_eq!(near("lasen", ["abci", "lassen"]), Some("lassen"));
        assert_eq!(near("frontier", ["abci", "lassen"]), None);
        assert_eq!(near("unitPar", ["namePar", "unitpar"]), Some("unitpar"));
        assert_eq!(near("full", ["unitpar", "namePar", "redshifts"]), None);
    }
}
