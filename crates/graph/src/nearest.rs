//! The nearest valid choice in errors.

/// The candidate with the fewest typing errors from `asked`, the first of equals; none of none.
///
/// Counts insertions, deletions, replacements and swaps of neighbors.
/// Source: Damerau, Communications of the ACM 7(3), 1964.
pub fn nearest<'a>(asked: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .min_by_key(|candidate| strsim::damerau_levenshtein(asked, candidate))
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_the_fewest_typing_errors() {
        let names = ["stride", "kernel", "pad", "padding"];
        assert_eq!(nearest("kernle", names), Some("kernel"));
        assert_eq!(nearest("padd", names), Some("pad"));
        assert_eq!(nearest("x", []), None);
    }
}
