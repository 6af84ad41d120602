//! The fenced blocks of a page.

use std::ops::Range;

/// A fenced block.
pub struct Block {
    /// The words after the fence: a language and attributes.
    pub info: Vec<String>,
    /// Its lines in the page, without the fences.
    pub lines: Range<usize>,
}

impl Block {
    /// Whether the info string has this word.
    pub fn has(&self, word: &str) -> bool {
        self.info.iter().any(|other| other == word)
    }

    /// The file that the block is the content of.
    pub fn file(&self) -> Option<&str> {
        self.info.iter().find_map(|word| word.strip_prefix("file="))
    }
}

/// The fenced blocks among the lines of a page, in order.
pub fn blocks(lines: &[String]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Vec<String>)> = None;
    for (at, line) in lines.iter().enumerate() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        open = match open.take() {
            None => Some((at + 1, info.split_whitespace().map(str::to_owned).collect())),
            Some((start, info)) => {
                let lines = start..at;
                blocks.push(Block { info, lines });
                None
            }
        };
    }
    assert!(open.is_none(), "a block is not closed: {open:?}");
    blocks
}

/// For each line of a page, whether it stands in a fenced block or is a fence.
pub fn is_fenced(lines: &[String]) -> Vec<bool> {
    let mut fenced = vec![false; lines.len()];
    for block in blocks(lines) {
        fenced[block.lines.start - 1..=block.lines.end].fill(true);
    }
    fenced
}

/// A command of a block and the output that stands below it.
pub struct Command {
    /// As it is typed, without the `$ `.
    pub text: String,
    /// The lines of its output in the page.
    pub output: Range<usize>,
}

/// The commands of a block. What stands before the first belongs to none of them.
pub fn commands(lines: &[String], block: &Block) -> Vec<Command> {
    let starts: Vec<usize> = block
        .lines
        .clone()
        .filter(|&at| lines[at].starts_with("$ "))
        .collect();
    assert_eq!(
        starts.first(),
        Some(&block.lines.start),
        "a block of commands begins with one: {:?}",
        &lines[block.lines.clone()]
    );
    let ends = starts.iter().skip(1).copied().chain([block.lines.end]);
    let command = |(&start, end): (&usize, usize)| Command {
        text: lines[start]["$ ".len()..].to_owned(),
        output: start + 1..end,
    };
    starts.iter().zip(ends).map(command).collect()
}
