// SPDX-License-Identifier: GPL-2.0

//! Whether a driver's own instructions are what they were when they were recorded.

use anyhow::{Context, Result};
use std::fmt::Write;

use crate::results::Case;
use crate::table::per;

/// How much more than recorded is let pass, in per cent.
const TOLERANCE: u64 = 3;

/// Compares the cases with `recorded`: lines of a case and its instructions per packet, `#` before others. Answers lines for
/// `scripts/test`.
///
/// # Errors
///
/// A line that is none, a case that was not run.
pub fn text(cases: &[Case], recorded: &str) -> Result<String> {
    let mut text = String::new();
    let lines = recorded.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, figure) = line
            .split_once(char::is_whitespace)
            .with_context(|| format!("not a case and its figure: `{line}`"))?;
        let figure: u64 = figure.trim().parse().with_context(|| line.to_owned())?;
        let case = cases.iter().find(|case| case.name == name);
        let case = case.with_context(|| format!("case {name} was not run"))?;
        let packets = case.packets()?;
        let own = case.counts.first();
        let good = own * 100 <= packets * figure * (100 + TOLERANCE);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} {name} takes no more than {TOLERANCE} % above {figure} instructions of the driver a packet{}",
            if good { "ok" } else { "not ok" },
            if good { String::new() } else { format!("\n#   it takes {:.1}: see scripts/bench --keep", per(own, packets)) },
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;
    use serde_json::json;

    fn cases(own: u64) -> Vec<Case> {
        vec![Case {
            name: "tx".to_owned(),
            report: json!({ "packets": 100 }),
            counts: Counts {
                own: [("run".to_owned(), own)].into(),
                ..Counts::default()
            },
        }]
    }

    #[test]
    fn three_per_cent_more_pass_and_no_more() {
        let recorded = "# a comment\ntx 200\n";
        assert!(text(&cases(20_600), recorded)
            .unwrap()
            .starts_with("ok tx "));
        assert!(text(&cases(20_601), recorded)
            .unwrap()
            .starts_with("not ok tx "));
    }

    #[test]
    fn cases_that_were_not_run_are_an_error() {
        assert!(text(&cases(1), "rx 200").is_err());
        assert!(text(&cases(1), "tx").is_err());
    }
}
