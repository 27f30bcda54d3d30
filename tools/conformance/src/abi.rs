// SPDX-License-Identifier: GPL-2.0

//! The table of differences in `Documentation/abi.rst`: the only ones that are accepted.

use anyhow::{ensure, Context, Result};

/// The title of the table.
const TITLE: &str = ".. list-table:: Calls that answer otherwise";

/// A difference that is listed. The first four are globs: `*` is any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Cases.
    pub case: String,
    /// What is different of them.
    pub field: String,
    /// What C has there.
    pub c: String,
    /// What this driver has there.
    pub here: String,
}

/// The listed differences, and which of them were met.
#[derive(Debug)]
pub struct Listed {
    rows: Vec<(Row, usize)>,
}

impl Listed {
    /// Reads the table.
    ///
    /// # Errors
    ///
    /// There is no such table, or a row that is not as it must be.
    pub fn parse(text: &str) -> Result<Self> {
        let start = text
            .find(TITLE)
            .with_context(|| format!("there is no '{TITLE}'"))?;
        let body = text[start..].lines().skip(1);
        let body = body.take_while(|line| line.is_empty() || line.starts_with("   "));
        let mut rows: Vec<Vec<String>> = Vec::new();
        for line in body {
            if let Some(cell) = line.strip_prefix("   * - ") {
                rows.push(vec![cell.to_owned()]);
            } else if let Some(row) = rows.last_mut() {
                if let Some(cell) = line.strip_prefix("     - ") {
                    row.push(cell.to_owned());
                } else if let Some(cell) = row.last_mut() {
                    cell.push(' ');
                    cell.push_str(line.trim());
                }
            }
        }
        // The first row has the headings.
        let rows = rows.into_iter().skip(1).map(|cells| Ok((row(&cells)?, 0)));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        Ok(Self { rows })
    }

    /// Whether the difference is listed. Notes that it was met.
    pub fn meet(&mut self, case: &str, field: &str, c: &str, here: &str) -> bool {
        let fits = |row: &Row| {
            matches(&row.case, case)
                && matches(&row.field, field)
                && matches(&row.c, c)
                && matches(&row.here, here)
        };
        let mut met = false;
        for (row, count) in &mut self.rows {
            if fits(row) {
                *count += 1;
                met = true;
            }
        }
        met
    }

    /// How many differences were met.
    pub fn met(&self) -> usize {
        self.rows.iter().map(|(_, count)| count).sum()
    }

    /// Rows that no difference was met for.
    pub fn idle(&self) -> Vec<&Row> {
        let idle = self.rows.iter().filter(|(_, count)| *count == 0);
        idle.map(|(row, _)| row).collect()
    }
}

fn row(cells: &[String]) -> Result<Row> {
    ensure!(cells.len() == 5, "not 5 cells in a row: {cells:?}");
    let literal = |index: usize| {
        let cell = cells[index].trim();
        let literal = cell
            .strip_prefix("``")
            .and_then(|rest| rest.strip_suffix("``"));
        literal
            .map(str::to_owned)
            .with_context(|| format!("no ``literal``: {cell}"))
    };
    ensure!(
        !cells[4].trim().is_empty(),
        "a row without a reason: {cells:?}"
    );
    Ok(Row {
        case: literal(0)?,
        field: literal(1)?,
        c: literal(2)?,
        here: literal(3)?,
    })
}

/// Whether `text` is as `glob` says.
fn matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut open = false;
    for part in parts {
        open = true;
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    // What comes last must be at the end.
    let last = glob.rsplit('*').next().unwrap_or_default();
    rest.is_empty() || open && text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
Text

.. list-table:: Calls that answer otherwise
   :header-rows: 1

   * - case
     - field
     - C
     - here
     - why
   * - ``*: SET *``
     - ``base*``
     - ``EBUSY``
     - ``0``
     - because
       of it

More
";

    #[test]
    fn a_listed_difference_is_met_and_no_other() {
        let mut listed = Listed::parse(PAGE).unwrap();
        assert_eq!(listed.idle().len(), 1);
        assert!(!listed.meet("ready: GET it", "base0", "EBUSY", "0"));
        assert!(!listed.meet("ready: SET it", "window0", "EBUSY", "0"));
        assert!(!listed.meet("ready: SET it", "base0", "EFAULT", "0"));
        assert!(!listed.meet("ready: SET it", "base0", "EBUSY", "17"));
        assert!(listed.meet("ready: SET it", "base0", "EBUSY", "0"));
        assert!(listed.idle().is_empty());
        assert_eq!(listed.met(), 1);
    }

    #[test]
    fn a_page_without_the_table_and_rows_that_are_odd_are_refused() {
        assert!(Listed::parse("Text").is_err());
        assert!(Listed::parse(&PAGE.replace("     - ``0``\n", "")).is_err());
        assert!(Listed::parse(&PAGE.replace("``0``", "0")).is_err());
        assert!(Listed::parse(&PAGE.replace("because\n       of it", "")).is_err());
    }

    #[test]
    fn globs() {
        for (glob, text) in [
            ("a", "a"),
            ("*", ""),
            ("*", "x"),
            ("a*", "abc"),
            ("*c", "abc"),
            ("a*c", "ac"),
            ("*b*", "abc"),
            ("*a", "aba"),
        ] {
            assert!(matches(glob, text), "{glob} is {text}");
        }
        for (glob, text) in [
            ("a", "ab"),
            ("a*", "ba"),
            ("*c", "cb"),
            ("a*a", "a"),
            ("*b*", "ac"),
            ("", "a"),
        ] {
            assert!(!matches(glob, text), "{glob} is not {text}");
        }
    }
}
