//! Tables for people. Scripts use `--json`.

use crate::output::{Output, Paint};
use crate::plain_text::plain;

const GAP: &str = "  ";

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&'static str]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }

    fn lines(&self) -> Vec<String> {
        let heading: Vec<String> = self.heading.iter().map(|word| (*word).to_owned()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let width = |column: usize| {
            all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let line = |row: &&Vec<String>| {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = width(column).unwrap_or(0);
                format!("{cell:width$}")
            });
            cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        };
        all.iter().map(line).collect()
    }

    /// Prints the table, or the note `empty` if it has no rows.
    pub(crate) fn say(&self, output: &Output, empty: &str) {
        if self.rows.is_empty() {
            output.note(empty);
            return;
        }
        for (n, line) in self.lines().iter().enumerate() {
            let line = if n == 0 { output.paint(Paint::Strong, line) } else { line.clone() };
            output.say(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_columns_and_keeps_cells_in_one_line() {
        let mut table = Table::new(&["NAME", "N"]);
        table.row(["grün".to_owned(), "1".to_owned()]);
        table.row(["a\nb\u{1b}[31m".to_owned(), String::new()]);
        assert_eq!(table.lines(), ["NAME            N", "grün            1", "a\\nb\\u{1b}[31m"]);
    }
}
