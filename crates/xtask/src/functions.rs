//! Lengths of functions.

use crate::source::{block_start, closing, line_of, words};

/// A function that has a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// Line of its `fn`.
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace, nested items included.
    pub(crate) lines: usize,
}

/// All functions of `code`, nested ones and tests included.
pub(crate) fn functions(code: &str) -> impl Iterator<Item = Function<'_>> {
    words(code, "fn").filter_map(|start| {
        let after = &code[start + "fn".len()..];
        let from = code.len() - after.trim_start().len();
        let rest = &code[from..];
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let end = rest.find(|letter| !is_name(letter))?;
        // The type of a function has no name, and a function of a trait may have no body.
        let name = Some(&rest[..end]).filter(|name| !name.is_empty())?;
        let open = block_start(code, from)?;
        let line = line_of(code, start);
        let last = line_of(code, closing(code, open) - 1);
        Some(Function {
            name,
            line,
            lines: last + 1 - line,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(code: &str) -> Vec<(&str, usize, usize)> {
        let all = functions(code);
        all.map(|one| (one.name, one.line, one.lines)).collect()
    }

    #[test]
    fn functions_go_from_their_name_to_their_last_brace() {
        let code = "struct A;\npub(crate) fn f<T>(\n    a: [u8; 4],\n) -> T\nwhere\n    T: B,\n{\n    { g() }\n}\nfn g() {}\n";
        assert_eq!(lines(code), [("f", 2, 8), ("g", 10, 1)]);
    }

    #[test]
    fn functions_inside_of_others_are_found_and_count_for_both() {
        let code = "fn f() {\n    fn g() {\n    }\n}";
        assert_eq!(lines(code), [("f", 1, 4), ("g", 2, 2)]);
        let code = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {\n    }\n}";
        assert_eq!(lines(code), [("t", 4, 2)]);
    }

    #[test]
    fn what_has_no_body_or_no_name_is_no_function() {
        let code = "trait A {\n    fn f(&self, by: fn(u8) -> u8) -> u8;\n}\ntype B = fn();\nstruct C {\n    d: fn(u8),\n}";
        assert_eq!(lines(code), []);
    }
}
