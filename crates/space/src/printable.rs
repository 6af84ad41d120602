//! Text for terminals and logs: names in it come from files and from peers, and may hold anything.

use std::borrow::Cow;
use std::fmt::Write;

/// Most characters of a word of a message.
const WORD_MAX: usize = 400;
/// Most characters of a line of a message: its beginning and its end are kept.
const LINE_MAX: usize = 8000;
/// What stands for characters that are left out.
const CUT: &str = "...";
/// Beginnings of lines that continue a message: help, and what is indented below it.
const CONTINUED: [&str; 2] = ["help: ", "  "];

/// Whether a character moves the cursor, or changes the order or look of others, and shows nothing itself.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A name on one line: control characters are escaped as in JSON.
pub fn name(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        push(&mut escaped, character);
    }
    Cow::Owned(escaped)
}

/// Whole lines of output, as [`name`] line by line.
pub fn lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|character| character != '\n' && is_control(character)) {
        return Cow::Borrowed(text);
    }
    let each: Vec<Cow<'_, str>> = text.split('\n').map(name).collect();
    Cow::Owned(each.join("\n"))
}

/// A message: control characters are escaped, and so are the ends of lines but before help and before what is indented.
/// Words of more than 400 characters end in `...`, and lines of more than 8000 lack their middle.
pub fn message(text: &str) -> String {
    let mut rows: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let is_own = CONTINUED.iter().any(|start| line.starts_with(start));
        match rows.last_mut() {
            Some(last) if !is_own => {
                last.push('\n');
                last.push_str(line);
            }
            Some(_) | None => rows.push(line.to_owned()),
        }
    }
    let last = rows.len() - 1;
    let mut whole = String::new();
    for (at, row) in rows.iter().enumerate() {
        // The end of a text is none within it.
        let (row, ends) = match row.strip_suffix('\n').filter(|_| at == last) {
            Some(row) => (row, true),
            None => (row.as_str(), false),
        };
        let row = name(row);
        let row = if row.starts_with(CONTINUED[0]) {
            row
        } else {
            short_words(&row).into()
        };
        whole.push_str(&short_line(&row));
        if ends || at < last {
            whole.push('\n');
        }
    }
    whole
}

fn push(text: &mut String, character: char) {
    match character {
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        character if is_control(character) => {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{:04x}", u32::from(character));
        }
        character => text.push(character),
    }
}

fn short_words(line: &str) -> String {
    let mut words = String::with_capacity(line.len().min(4 * LINE_MAX));
    for word in line.split_inclusive(char::is_whitespace) {
        match word.char_indices().nth(WORD_MAX + 1) {
            // A blank ends it.
            Some(_) => {
                words.extend(word.chars().take(WORD_MAX - CUT.len()));
                words.push_str(CUT);
                words.extend(word.chars().next_back().filter(|end| end.is_whitespace()));
            }
            None => words.push_str(word),
        }
    }
    words
}

fn short_line(line: &str) -> Cow<'_, str> {
    if line.len() <= LINE_MAX {
        return Cow::Borrowed(line);
    }
    let count = line.chars().count();
    if count <= LINE_MAX {
        return Cow::Borrowed(line);
    }
    let kept = (LINE_MAX - CUT.len() - 2) / 2;
    let start: String = line.chars().take(kept).collect();
    let end: String = line.chars().skip(count - kept).collect();
    Cow::Owned(format!("{start} {CUT} {end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(name("conv1"), "conv1");
        assert_eq!(name("a\u{1b}[2J\u{7f}\u{9b}"), "a\\u001b[2J\\u007f\\u009b");
        assert_eq!(name("x\n\r\ty\u{202e}"), "x\\n\\r\\ty\\u202e");
        assert_eq!(lines("a\tb\nc\u{7}\n"), "a\\tb\nc\\u0007\n");
        assert_eq!(lines("größe 5³\n"), "größe 5³\n");
    }

    #[test]
    fn a_name_makes_no_line_of_a_message() {
        let forged =
            "the key `x\npartita: all ranks have ended` is unknown\nhelp: try `y`\n  1 | more";
        let told =
            "the key `x\\npartita: all ranks have ended` is unknown\nhelp: try `y`\n  1 | more";
        assert_eq!(message(forged), told);
        assert_eq!(message(told), told);
        assert_eq!(message("told\n"), "told\n");
        assert_eq!(message(""), "");
    }

    #[test]
    fn long_names_end_in_dots() {
        let long = "n".repeat(6 << 20);
        let told = message(&format!("the key `{long}` is unknown\nhelp: try `{long}`"));
        let short = format!(
            "the key `{}... is unknown\nhelp: try `nnn",
            "n".repeat(WORD_MAX - 4)
        );
        assert!(told.starts_with(&short), "{}", &told[..500]);
        assert!(told.len() < 2 * LINE_MAX, "{}", told.len());
        assert_eq!(message(&told), told);
        let words = message(&"a b ".repeat(1 << 20));
        assert!(words.chars().count() <= LINE_MAX, "{}", words.len());
    }
}
