//! Rust files with comments and literals blanked.

/// A Rust file with its comments and literals blanked, so that rules see only code.
///
/// Blanking keeps every line break and every byte offset.
pub(crate) struct Source {
    /// The text of the file.
    pub(crate) text: String,
    /// The text with comments and the contents of literals replaced by spaces.
    pub(crate) code: String,
}

impl Source {
    /// Reads the lexical structure of a file.
    pub(crate) fn new(text: &str) -> Source {
        Source {
            text: text.to_owned(),
            code: blanked(text),
        }
    }

    /// The code with the modules and functions under `#[cfg(test)]` blanked as well.
    pub(crate) fn code_outside_tests(&self) -> String {
        let mut code = self.code.clone();
        while let Some(start) = code.find("#[cfg(test)]") {
            let end = item_end(&code, start);
            let blank = spaces(&code[start..end]);
            code.replace_range(start..end, &blank);
        }
        code
    }
}

/// The line (from 1) of a byte offset.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Offsets of `word` in `code` as a whole identifier.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(offset, _)| offset)
        .filter(move |&offset| {
            let before = code[..offset].chars().next_back();
            let after = code[offset + word.len()..].chars().next();
            let joins = |letter: Option<char>| {
                letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
            };
            let starts = word.starts_with(|letter: char| letter.is_alphanumeric());
            let ends = word.ends_with(|letter: char| letter.is_alphanumeric());
            !(starts && joins(before) || ends && joins(after))
        })
}

/// The offset after the bracket that closes the one at `open`; the end if none does.
pub(crate) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (index, letter) in code[open..].char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return open + index + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The brace that opens a block: the first outside of brackets, if no semicolon comes before it.
pub(crate) fn block_start(code: &str, from: usize) -> Option<usize> {
    let mut offset = from;
    while offset < code.len() {
        match code.as_bytes()[offset] {
            b'{' => return Some(offset),
            b'(' | b'[' => offset = closing(code, offset),
            b'}' | b')' | b']' | b';' => return None,
            _ => offset += 1,
        }
    }
    None
}

/// The end of the item with the attribute at `start`: after its block or its semicolon.
fn item_end(code: &str, start: usize) -> usize {
    let mut offset = start;
    // Attributes have brackets of their own.
    while code[offset..].trim_start().starts_with("#[") {
        offset += code[offset..].find('[').unwrap_or(0);
        offset = closing(code, offset);
    }
    let block = code[offset..].find('{').map(|index| offset + index);
    let semicolon = code[offset..].find(';').map(|index| offset + index);
    match (block, semicolon) {
        (Some(block), Some(semicolon)) if semicolon < block => semicolon + 1,
        (Some(block), _) => closing(code, block),
        (None, Some(semicolon)) => semicolon + 1,
        (None, None) => code.len(),
    }
}

fn spaces(text: &str) -> String {
    let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
    text.bytes().map(blank).collect()
}

fn blanked(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let after_identifier = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = literal_length(rest, after_identifier);
        if length > 0 {
            code.push_str(&spaces(&rest[..length]));
            rest = &rest[length..];
        } else {
            code.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    code
}

/// Bytes of the comment or literal at the start of `rest`; 0 if there is none.
fn literal_length(rest: &str, after_identifier: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if rest.starts_with('\'') {
        return char_length(rest);
    }
    if rest.starts_with('"') {
        return string_length(rest);
    }
    if after_identifier {
        return 0;
    }
    for prefix in ["r", "br", "cr"] {
        let Some(tail) = rest.strip_prefix(prefix) else {
            continue;
        };
        let hashes = tail.len() - tail.trim_start_matches('#').len();
        if tail[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let from = prefix.len() + hashes + 1;
            let found = rest[from..].find(&end);
            return found.map_or(rest.len(), |index| from + index + end.len());
        }
    }
    0
}

fn block_comment_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut index) = (0usize, 0);
    while index + 1 < bytes.len() {
        match &bytes[index..index + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                index += 1;
                continue;
            }
        }
        index += 2;
        if depth == 0 {
            return index;
        }
    }
    rest.len()
}

fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (index, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Bytes of a character literal; 0 for a lifetime, which has no closing quote.
fn char_length(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            let from = 3;
            let found = rest.get(from..).and_then(|tail| tail.find('\''));
            found.map_or(0, |index| from + index + 1)
        }
        Some(_) => match letters.next() {
            Some((index, '\'')) => index + 1,
            Some(_) | None => 0,
        },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blanked_in_place() {
        let text =
            "let a = \"todo!\\\"()\"; // dbg!\n/* a /* dbg! */ b */ f('\"', r#\"x\"y\"#, 'a')";
        let code = blanked(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.find('\n'), text.find('\n'));
        assert!(!code.contains("todo") && !code.contains("dbg") && !code.contains('"'));
        assert_eq!(code.replace(' ', ""), "leta=;\nf(,,)");
    }

    #[test]
    fn lifetimes_and_escaped_quotes_do_not_open_literals() {
        let code = blanked("fn f<'a>(x: &'a str) -> char { let _ = '\\''; '\\u{41}' } dbg!()");
        assert!(code.contains("fn f<'a>(x: &'a str)"), "{code}");
        assert!(code.contains("dbg!()"), "{code}");
        assert!(!code.contains("u{41}"), "{code}");
    }

    #[test]
    fn words_end_where_identifiers_end() {
        assert_eq!(words("println!() eprintln!()", "println!").count(), 1);
        assert_eq!(words("my_todo!() todo!()", "todo!").count(), 1);
        assert_eq!(words("env::var myenv::var", "env::").count(), 1);
    }

    #[test]
    fn test_items_are_blanked_and_what_follows_is_not() {
        let text = "a();\n#[cfg(test)]\n#[allow(x)]\nmod tests { fn t() { b(); } }\nc();\n\
                    #[cfg(test)]\nmod other;\nd();";
        let code = Source::new(text).code_outside_tests();
        assert_eq!(code.split_whitespace().collect::<String>(), "a();c();d();");
        assert_eq!(line_of(&code, code.find("c()").expect("kept")), 5);
    }
}
