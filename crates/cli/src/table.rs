//! Prints tables in boxes, in the format of etcd's tools since 3.7.

use std::fmt;

/// A table, which displays as a box of text that ends with a newline.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these columns. Headings are converted to upper case, and `_` is replaced by a
    /// space.
    pub fn new<S: AsRef<str>>(header: impl IntoIterator<Item = S>) -> Table {
        let header = header.into_iter().map(|name| name.as_ref().to_uppercase().replace('_', " ")).collect();
        Table { header, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Panics if the row does not have one cell per column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.header.len(), "a cell per column");
        self.rows.push(cells);
    }
}

fn lines(cell: &str) -> Vec<&str> {
    if cell.is_empty() { vec![""] } else { cell.lines().collect() }
}

/// Returns the number of terminal columns that a text takes. One column per character is right for the
/// scripts in which names and errors of etcd are usually written, but not for wide characters such as Chinese
/// ones.
fn width(text: &str) -> usize {
    text.chars().count()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|at| {
                let cells = self.rows.iter().map(|row| &row[at]).chain([&self.header[at]]);
                cells.flat_map(|cell| lines(cell)).map(width).max().unwrap_or(0)
            })
            .collect();
        let rule = |f: &mut fmt::Formatter<'_>, left: char, middle: char, right: char| {
            let bars: Vec<String> = widths.iter().map(|width| "\u{2500}".repeat(width + 2)).collect();
            writeln!(f, "{left}{}{right}", bars.join(&middle.to_string()))
        };
        rule(f, '\u{250c}', '\u{252c}', '\u{2510}')?;
        write!(f, "\u{2502}")?;
        for (cell, wide) in self.header.iter().zip(&widths) {
            let spare = wide - width(cell);
            write!(f, " {}{cell}{} \u{2502}", " ".repeat(spare / 2), " ".repeat(spare - spare / 2))?;
        }
        writeln!(f)?;
        if !self.rows.is_empty() {
            rule(f, '\u{251c}', '\u{253c}', '\u{2524}')?;
        }
        for row in &self.rows {
            let height = row.iter().map(|cell| lines(cell).len()).max().unwrap_or(1);
            for line in 0..height {
                write!(f, "\u{2502}")?;
                for (cell, wide) in row.iter().zip(&widths) {
                    let text = lines(cell).get(line).copied().unwrap_or("");
                    write!(f, " {}{text} \u{2502}", " ".repeat(wide - width(text)))?;
                }
                writeln!(f)?;
            }
        }
        rule(f, '\u{2514}', '\u{2534}', '\u{2518}')
    }
}
