//! The nearest valid choice in errors.

/// The candidate that `given` was probably meant to be.
///
/// None if even the closest differs in more than half of its letters: such advice misleads.
pub(crate) fn nearest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    candidates
        .into_iter()
        .map(|candidate| (edits(given, candidate), candidate))
        .min()
        .filter(|&(count, candidate)| 2 * count <= candidate.chars().count())
        .map(|(_, candidate)| candidate.to_owned())
}

/// Insertions, deletions, replacements and swaps of neighboring letters; case costs nothing.
fn edits(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(edits("latncy", "latency"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("KB", "kB"), 0);
        assert_eq!(edits("oi", "io"), 1);
    }

    #[test]
    fn advises_only_what_is_close() {
        assert_eq!(
            nearest("lasen", ["abci", "lassen"]),
            Some("lassen".to_owned())
        );
        assert_eq!(nearest("frontier", ["abci", "lassen"]), None);
    }
}
