//! Lays out tables and texts for the width of the terminal. Without a terminal their width is
//! unlimited.

use std::fmt;

use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Row, Width, presets};

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

/// Number of columns between two columns of a table.
const GAP: u16 = 2;

/// A table without lines. The last column ends where its text ends. Where words would be cut to
/// pieces, each cell has its own line.
pub struct Table {
    table: comfy_table::Table,
    width: Option<usize>,
}

impl Table {
    pub fn new(header: &[&str]) -> Self {
        Table::of_width(header, width())
    }

    fn of_width(header: &[&str], width: Option<usize>) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING).set_header(header.iter().copied());
        Table { table, width }
    }

    /// Adds a row, with as many cells as the header.
    pub fn add_row(&mut self, row: impl Into<Row>) {
        self.table.add_row(row);
    }

    /// Checks whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Lays out columns side by side, with a width that suits the table, or no narrower than their
    /// longest words.
    fn columns(&self, width: Option<usize>, whole_words: bool) -> String {
        let mut table = self.table.clone();
        if let Some(width) = width.and_then(|width| u16::try_from(width).ok()) {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP));
            if whole_words {
                let longest = u16::try_from(self.longest_word(column.index)).unwrap_or(u16::MAX);
                let least = Width::Fixed(longest.saturating_add(GAP));
                column.set_constraint(ColumnConstraint::LowerBoundary(least));
            }
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }

    /// Returns the width of the longest word in a column.
    fn longest_word(&self, column: usize) -> usize {
        let cells = self.table.column_cells_with_header_iter(column).flatten().map(Cell::content);
        let longest = cells.map(|cell| cell.split_whitespace().map(console::measure_text_width).max());
        longest.flatten().max().unwrap_or(0)
    }

    /// Returns whether a text has the same words as the table, and no line is too wide.
    fn is_intact(&self, text: &str, width: usize) -> bool {
        let rows = self.table.header().into_iter().chain(self.table.row_iter());
        let cells: Vec<String> = rows.flat_map(Row::cell_iter).map(Cell::content).collect();
        let mut wanted: Vec<&str> = cells.iter().flat_map(|cell| cell.split_whitespace()).collect();
        let mut found: Vec<&str> = text.split_whitespace().collect();
        wanted.sort_unstable();
        found.sort_unstable();
        wanted == found && text.lines().all(|line| console::measure_text_width(line) <= width)
    }

    /// Lays out each cell on its own line, as `name: value`.
    fn records(&self, width: usize) -> String {
        let header = self.table.header().into_iter().flat_map(Row::cell_iter).map(Cell::content);
        let header: Vec<String> = header.map(|name| name.replace('\n', " ")).collect();
        let record = |row: &Row| {
            let cells = header.iter().zip(row.cell_iter().map(Cell::content));
            let lines = cells.filter(|(_, cell)| !cell.trim().is_empty()).map(|(name, cell)| {
                let line = if name.is_empty() { cell } else { format!("{name}: {cell}") };
                wrapped_at(&line, 2, Some(width))
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        self.table.row_iter().map(record).collect::<Vec<_>>().join("\n\n")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.width {
            Some(width) => {
                let layouts = [false, true].map(|whole_words| self.columns(Some(width), whole_words));
                let intact = layouts.into_iter().find(|text| self.is_intact(text, width));
                intact.unwrap_or_else(|| self.records(width))
            }
            None => self.columns(None, false),
        };
        formatter.write_str(&text)
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

    #[test]
    fn no_word_of_a_table_is_cut_to_pieces() {
        let mut shims = Table::of_width(&["shim", "version", "state"], Some(40));
        let state = "no library was found: set SHARDWRIGHT_NEURON_LIB to an adapter";
        shims.add_row(["neuron", "0.1.0", state]);
        let shown = shims.to_string();
        assert!(shown.starts_with("shim") && shims.is_intact(&shown, 40), "{shown}");

        let header = ["shard", "components", "layers", "target", "ops", "weights", "artefact", ""];
        let mut shards = Table::of_width(&header, Some(40));
        shards.add_row([
            "0",
            "embed, per-layer-input, decoder, head",
            "0..8",
            "mt6989",
            "",
            "6 MiB",
            "8 MiB",
            "ok",
        ]);
        shards.add_row(["1", "head", "-", "cpu", "12", "1 MiB", "2 MiB", ""]);
        assert_eq!(
            shards.to_string(),
            "shard: 0\ncomponents: embed, per-layer-input,\n  decoder, head\nlayers: 0..8\ntarget: mt6989\n\
             weights: 6 MiB\nartefact: 8 MiB\nok\n\nshard: 1\ncomponents: head\nlayers: -\ntarget: cpu\nops: 12\n\
             weights: 1 MiB\nartefact: 2 MiB"
        );
        let mut sized = Table::of_width(&["shard", "artefact\n(modelled)"], Some(40));
        sized.add_row(["0", "8 MiB"]);
        assert_eq!(sized.to_string(), "shard  artefact\n       (modelled)\n0      8 MiB");
        assert_eq!(sized.records(40), "shard: 0\nartefact (modelled): 8 MiB");
        // With enough room it is a table.
        let mut wide = Table::of_width(&header, Some(100));
        wide.add_row(["1", "head", "-", "cpu", "12", "1 MiB", "2 MiB", ""]);
        assert!(wide.to_string().starts_with("shard  components  layers"), "{wide}");
    }
}
