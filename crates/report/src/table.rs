//! Text tables.

use partita_space::printable;
use std::io::{self, Write};

/// Alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A text table with columns as wide as their widest cell.
#[derive(Clone, Debug)]
pub struct Table {
    sides: Vec<Side>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(columns: &[(&str, Side)]) -> Self {
        Self {
            sides: columns.iter().map(|&(_, side)| side).collect(),
            rows: vec![columns.iter().map(|&(name, _)| name.to_owned()).collect()],
        }
    }

    /// Adds a row; it has a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(
            cells.len(),
            self.sides.len(),
            "a row has a cell for each column"
        );
        let printable = |cell: String| printable::name(&cell).into_owned();
        self.rows.push(cells.into_iter().map(printable).collect());
    }

    /// Writes it, two blanks between columns and none at the ends of lines.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |column: usize| {
            let widths = self.rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), side) in row.iter().zip(&widths).zip(&self.sides) {
                let blanks = " ".repeat(width - cell.chars().count());
                match side {
                    Side::Left => line.extend([cell.as_str(), &blanks]),
                    Side::Right => line.extend([blanks.as_str(), cell]),
                }
                line.push_str("  ");
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Lines `name  value` under each other.
pub fn write_pairs(out: &mut dyn Write, pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or(0);
    for (name, value) in pairs {
        writeln!(out, "{name:width$}  {}", printable::name(value))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("layer", Side::Left), ("flops", Side::Right)]);
        table.row(vec!["c1".to_owned(), "1234".to_owned()]);
        table.row(vec!["dropout".to_owned(), "5".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "layer    flops\nc1        1234\ndropout      5\n");
    }

    #[test]
    fn a_name_makes_no_row() {
        let mut table = Table::new(&[("class", Side::Left)]);
        table.row(vec!["liver\ntumor\u{1b}[1A".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        write_pairs(&mut out, &[("data", "a\nb".to_owned())]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "class\nliver\\ntumor\\u001b[1A\ndata  a\\nb\n");
    }
}
