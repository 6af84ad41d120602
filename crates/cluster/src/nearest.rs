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
///
/// Source: the restricted Damerau-Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut count = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                count = count.min(rows[i - 2][j - 2] + 1);
            }
            row.push(count);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
