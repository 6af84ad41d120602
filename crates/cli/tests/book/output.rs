//! Whether an output is what a page shows.

/// What stands for lines, or for the rest of a line, that a page leaves out.
pub const LEFT_OUT: &str = "...";

/// Units that change with the size of what was measured.
const UNITS: [&str; 10] = ["ns", "us", "ms", "s", "min", "B", "KiB", "MiB", "GiB", "kB"];

/// Whether lines are those that a page shows; with `times` whatever their numbers are.
pub fn is_shown(shown: &[String], actual: &[String], times: bool) -> bool {
    match shown.split_first() {
        None => actual.is_empty(),
        Some((first, rest)) if first.trim() == LEFT_OUT => {
            (0..=actual.len()).any(|skipped| is_shown(rest, &actual[skipped..], times))
        }
        Some((first, rest)) => actual.split_first().is_some_and(|(line, others)| {
            is_line_shown(first, line, times) && is_shown(rest, others, times)
        }),
    }
}

fn is_line_shown(shown: &str, actual: &str, times: bool) -> bool {
    let [shown, actual] = [shown, actual].map(|line| {
        if times {
            without_numbers(line)
        } else {
            line.trim_end().to_owned()
        }
    });
    match shown.strip_suffix(" ...") {
        Some(start) => actual.starts_with(start.trim_end()),
        None => shown == actual,
    }
}

/// A line with `#` for each number and its unit, and one blank between words.
fn without_numbers(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(['(', ')', ',', ';', ':']);
        let is_unit = UNITS.contains(&bare) && words.last().is_some_and(|last| last.contains('#'));
        if !is_unit {
            words.push(marked(word));
        }
    }
    words.join(" ")
}

fn marked(word: &str) -> String {
    let mut marked = String::new();
    let mut letters = word.strip_prefix('-').unwrap_or(word).chars().peekable();
    if word.starts_with('-') && !letters.peek().is_some_and(char::is_ascii_digit) {
        marked.push('-');
    }
    while let Some(letter) = letters.next() {
        if !letter.is_ascii_digit() {
            marked.push(letter);
            continue;
        }
        marked.push('#');
        let mut rest = letters.clone();
        while let Some(next) = rest.next() {
            let is_point = ['.', ','].contains(&next);
            let goes_on = rest.peek().is_some_and(char::is_ascii_digit);
            if !(next.is_ascii_digit() || is_point && goes_on) {
                break;
            }
            letters.next();
        }
    }
    marked
}

/// The output with the same lines left out as a page leaves out, each kept run of lines being found by its
/// first and last; all of it where they are not found, or a page leaves out nothing.
pub fn trimmed(shown: &[String], actual: &[String]) -> Vec<String> {
    trim_as(shown, actual).unwrap_or_else(|| actual.to_vec())
}

fn trim_as(shown: &[String], actual: &[String]) -> Option<Vec<String>> {
    shown.iter().find(|line| line.ends_with(LEFT_OUT))?;
    let mut kept = Vec::new();
    let mut at = 0;
    for (i, run) in shown.split(|line| line.trim() == LEFT_OUT).enumerate() {
        if i > 0 {
            kept.push(LEFT_OUT.to_owned());
        }
        let Some((first, last)) = run.first().zip(run.last()) else {
            continue;
        };
        let is_like = |shown: &str, line: &str| first_word(shown) == first_word(line);
        let start = (at..actual.len()).find(|&at| is_like(first, &actual[at]))?;
        let end = start + run.len();
        if end > actual.len() || !is_like(last, &actual[end - 1]) {
            return None;
        }
        kept.extend(
            run.iter()
                .zip(&actual[start..end])
                .map(|(shown, line)| cut(shown, line)),
        );
        at = end;
    }
    Some(kept)
}

fn first_word(line: &str) -> String {
    let marked = without_numbers(line);
    marked.split(' ').next().unwrap_or_default().to_owned()
}

/// A line, cut off where the page cuts it off.
fn cut(shown: &str, line: &str) -> String {
    match shown.strip_suffix(" ...") {
        Some(start) => {
            let start: String = line.chars().take(start.chars().count()).collect();
            format!("{} ...", start.trim_end())
        }
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    fn holds(shown: &str, actual: &str, times: bool) -> bool {
        is_shown(&lines(shown), &lines(actual), times)
    }

    #[test]
    fn an_output_is_compared_line_by_line() {
        assert!(holds("a\nb", "a\nb", false));
        assert!(!holds("a\nb", "a\nb\nc", false));
        assert!(!holds("a 1", "a 2", false));
        assert!(!holds("", "a", false));
    }

    #[test]
    fn what_is_left_out_may_be_anything() {
        assert!(holds("a\n...\nd", "a\nb\nc\nd", false));
        assert!(holds("...\nd", "d", false));
        assert!(!holds("a\n...\nc", "a\nb\nc\nd", false));
        assert!(holds("a b ...", "a b c d", false));
        assert!(!holds("a b ...", "a c", false));
    }

    #[test]
    fn times_may_differ_and_words_may_not() {
        assert!(holds("step   5.30 ms, 2", "step  912.10 us, 12", true));
        assert!(holds("a  -9.1 %", "a  79.6 %", true));
        assert!(holds(
            "loss 0.4, 7.2 samples/s",
            "loss 0.39, 12 samples/s",
            true
        ));
        assert!(!holds("step 5.30 ms", "stop 5.30 ms", true));
        assert!(!holds("a 5 b", "a b", true));
        assert!(!holds("depth=2", "height=2", true));
    }

    #[test]
    fn what_was_left_out_stays_left_out() {
        let shown = lines("head\n...\nsum 3 and ...\n...");
        let actual = lines("head\nx\nsum 4 and more\ny");
        let expected = lines("head\n...\nsum 4 and ...\n...");
        assert_eq!(trimmed(&shown, &actual), expected);
        let other = lines("new\nlines");
        assert_eq!(trimmed(&shown, &other), other);
        assert_eq!(trimmed(&[], &other), other);
    }
}
