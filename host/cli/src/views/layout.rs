//! Lays out tables and texts for the width of the terminal. Without a terminal their width is
//! unlimited.

use std::fmt;

use comfy_table::{ContentArrangement, presets};

/// The variable that sets the width of the terminal, for programs whose output goes through
/// another.
const COLUMNS: &str = "COLUMNS";

/// Smallest width for a layout. In fewer columns, names and numbers would be cut to pieces.
const NARROWEST: usize = 40;

/// Returns the columns of the terminal that shows the reports, or `None` for a file or another
/// program.
pub fn width() -> Option<usize> {
    let said = std::env::var(COLUMNS).ok().and_then(|columns| columns.parse().ok());
    let terminal = console::Term::stdout();
    let there = || terminal.size_checked().filter(|_| terminal.is_term()).map(|(_, columns)| columns.into());
    said.or_else(there).map(|columns: usize| columns.max(NARROWEST))
}

/// Returns the columns of the terminal that shows standard error, if one does.
pub fn width_of_notes() -> Option<usize> {
    let terminal = console::Term::stderr();
    let size = terminal.size_checked().filter(|_| terminal.is_term());
    size.map(|(_, columns)| usize::from(columns).max(NARROWEST))
}

/// A table without lines. The last column ends where its text ends.
pub struct Table(comfy_table::Table);

impl Table {
    pub fn new(header: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING).set_header(header.iter().copied());
        if let Some(width) = width().and_then(|width| u16::try_from(width).ok()) {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        Table(table)
    }

    /// Adds a row, with as many cells as the header.
    pub fn add_row(&mut self, row: impl Into<comfy_table::Row>) {
        self.0.add_row(row);
    }

    /// Checks whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = self.0.clone();
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        formatter.write_str(&lines.join("\n"))
    }
}

/// Wraps lines that are wider than the screen between words. Continued lines are indented by
/// `indent` columns.
pub fn wrapped(text: &str, indent: usize) -> String {
    wrapped_at(text, indent, width())
}

/// Wraps lines like [`wrapped`], but at a given width. `None` leaves lines as they are.
pub fn wrapped_at(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut lines = String::new();
    let mut column = 0;
    for (index, word) in text.split(' ').enumerate() {
        let length = console::measure_text_width(word);
        if index > 0 && column + 1 + length > width && column > indent {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if index > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let text = "note: a line of words that is wider than it may be";
        assert_eq!(wrapped_at(text, 2, None), text);
        assert_eq!(
            wrapped_at(text, 2, Some(20)),
            "note: a line of\n  words that is\n  wider than it may\n  be"
        );
        // Long words are not broken, and existing indentation stays.
        assert_eq!(
            wrapped_at("  aaaaaaaaaaaaaaaaaaaaaaaaa b", 4, Some(10)),
            "  aaaaaaaaaaaaaaaaaaaaaaaaa\n    b"
        );
    }

    #[test]
    fn nothing_stands_behind_the_last_column() {
        let mut table = Table::new(&["name", "what it is"]);
        table.add_row(["a", "short"]);
        table.add_row(["longer", "a cell"]);
        assert_eq!(table.to_string(), "name    what it is\na       short\nlonger  a cell");
        assert!(!table.is_empty() && Table::new(&["name"]).is_empty());
    }
}
