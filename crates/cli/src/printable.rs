//! Standard output without control characters, which names in files may hold.

use partita_space::printable;
use std::io::{self, Write};

/// Escapes control characters as JSON does, so that JSON stays what it is. Whole texts go through it.
pub struct Printable<W: Write> {
    to: W,
    /// The beginning of a character.
    rest: Vec<u8>,
}

impl<W: Write> Printable<W> {
    /// Writes there.
    pub fn new(to: W) -> Self {
        Self {
            to,
            rest: Vec::new(),
        }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.to.write_all(printable::lines(text).as_bytes())
    }
}

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        for chunk in all.utf8_chunks() {
            self.put(chunk.valid())?;
            let rest = chunk.invalid();
            // A character that goes on with the next bytes.
            let is_begun = std::str::from_utf8(rest).is_err_and(|it| it.error_len().is_none());
            if is_begun && all.ends_with(rest) {
                self.rest = rest.to_vec();
            } else if !rest.is_empty() {
                self.put("\u{fffd}")?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.rest).is_empty() {
            self.put("\u{fffd}")?;
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_may_come_in_parts() {
        let text = "größe\u{1b}[2J\u{9b}1A\nok\u{7f}".as_bytes();
        for part in 1..text.len() {
            let mut out = Printable::new(Vec::new());
            for bytes in text.chunks(part) {
                out.write_all(bytes).unwrap();
            }
            out.flush().unwrap();
            let told = String::from_utf8(out.to).unwrap();
            assert_eq!(told, "größe\\u001b[2J\\u009b1A\nok\\u007f");
        }
        let mut out = Printable::new(Vec::new());
        out.write_all(b"a\xffb\xc3").unwrap();
        out.flush().unwrap();
        assert_eq!(out.to, "a\u{fffd}b\u{fffd}".as_bytes());
    }
}
