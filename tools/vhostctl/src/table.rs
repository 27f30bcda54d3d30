// SPDX-License-Identifier: GPL-2.0

//! Columns of text.

use std::fmt::Write;

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// Lays out a heading and rows, each column as wide as its longest cell.
pub fn layout(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let width = |(index, (name, _)): (usize, &(&str, Align))| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(name.len())
    };
    let widths: Vec<usize> = columns.iter().enumerate().map(width).collect();
    let heading: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for ((cell, (_, align)), width) in row.iter().zip(columns).zip(&widths) {
            let written = match align {
                Align::Left => write!(line, "{cell:<width$}  "),
                Align::Right => write!(line, "{cell:>width$}  "),
            };
            debug_assert!(written.is_ok(), "a string takes all");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A value, or `-`.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A name, or `-`; control characters, which a process may have in its name, are replaced.
pub fn name(text: &str) -> String {
    if text.is_empty() {
        return "-".into();
    }
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let columns = [("ID", Align::Left), ("N", Align::Right)];
        let rows = [
            vec!["a".into(), "100".into()],
            vec!["long".into(), "7".into()],
        ];
        assert_eq!(layout(&columns, &rows), "ID      N\na     100\nlong    7\n");
    }

    #[test]
    fn name_of_a_process_cannot_drive_the_terminal() {
        assert_eq!(name("\x1b[2Jx\n"), "?[2Jx?");
        assert_eq!(name(""), "-");
    }
}
