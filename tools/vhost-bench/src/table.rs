// SPDX-License-Identifier: GPL-2.0

//! C and ours, side by side.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;

use crate::results::Case;

/// What one driver takes for a packet.
#[derive(Clone, Debug, Serialize)]
pub struct Costs {
    /// Instructions of its own, with what Rust brings along.
    pub column_1: f64,
    /// And of what it calls, copies excluded.
    pub column_2: f64,
    /// All of the worker's instructions.
    pub worker: f64,
    /// All of the machine's.
    pub system: f64,
    /// Kicks.
    pub kicks: f64,
    /// Calls.
    pub calls: f64,
}

/// One case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub case: String,
    /// Packets that were moved.
    pub packets: u64,
    /// C's driver.
    pub c: Costs,
    /// Ours.
    pub ours: Costs,
    /// Ours in another boot: column 1.
    pub again: Option<f64>,
}

/// `part` for each of `whole`, 0 if there is none.
#[expect(clippy::float_arithmetic, reason = "a ratio for people to read")]
pub fn per(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 // CAST: Exact up to 2^53.
}

fn costs(case: &Case) -> Result<Costs> {
    let packets = case.packets()?;
    Ok(Costs {
        column_1: per(case.counts.first(), packets),
        column_2: per(case.counts.second(), packets),
        worker: per(case.number("worker_cpu_ns")?, packets),
        system: per(case.number("elapsed_ns")?, packets),
        kicks: per(case.number("kicks")?, packets),
        calls: per(case.number("calls")?, packets),
    })
}

/// Puts the boots' cases side by side.
///
/// # Errors
///
/// A case that is not in all of them, or a report without a number.
pub fn rows(c: &[Case], ours: &[Case], again: Option<&[Case]>) -> Result<Vec<Row>> {
    let find = |cases: &[Case], name: &str| -> Result<Costs> {
        let case = cases.iter().find(|case| case.name == name);
        costs(case.with_context(|| format!("case {name} was run with one driver only"))?)
    };
    ours.iter()
        .map(|case| {
            let again = again.map(|cases| find(cases, &case.name)).transpose()?;
            Ok(Row {
                case: case.name.clone(),
                packets: case.packets()?,
                c: find(c, &case.name)?,
                ours: costs(case)?,
                again: again.map(|costs| costs.column_1),
            })
        })
        .collect()
}

#[expect(clippy::float_arithmetic, reason = "a ratio for people to read")]
fn percent(part: f64, whole: f64) -> f64 {
    100.0 * part / whole
}

#[expect(clippy::float_arithmetic, reason = "a ratio for people to read")]
fn difference(one: f64, other: f64) -> f64 {
    (percent(one, other) - 100.0).abs()
}

/// The table for people.
pub fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:24} {:^26} {:^26} {:^26} {:^17} {:^17} {:>7}",
        "instructions",
        "the driver's own",
        "and what it calls",
        "the whole worker",
        "kicks per packet",
        "calls per packet",
        "noise"
    );
    let three = format!("{:>9} {:>9} {:>6}", "C", "ours", "ratio");
    let two = format!("{:>8} {:>8}", "C", "ours");
    let _ = writeln!(
        text,
        "{:24} {three} {three} {three} {two} {two} {:>7}",
        "per packet", "of own"
    );
    for row in rows {
        let (c, ours) = (&row.c, &row.ours);
        let _ = write!(text, "{:24}", row.case);
        for (c, ours) in [
            (c.column_1, ours.column_1),
            (c.column_2, ours.column_2),
            (c.worker, ours.worker),
        ] {
            let _ = write!(text, " {c:9.1} {ours:9.1} {:5.1}%", percent(ours, c));
        }
        for (c, ours) in [(c.kicks, ours.kicks), (c.calls, ours.calls)] {
            let _ = write!(text, " {c:8.4} {ours:8.4}");
        }
        let noise = row
            .again
            .map(|again| format!("{:.2}%", difference(again, ours.column_1)));
        let _ = writeln!(text, " {:>7}", noise.as_deref().unwrap_or("-"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;
    use serde_json::json;

    fn boot(name: &str, own: u64) -> Vec<Case> {
        let report = json!({
            "packets": 100, "worker_cpu_ns": 30_000, "elapsed_ns": 50_000, "kicks": 1, "calls": 2,
        });
        let counts = Counts {
            own: [("run".to_owned(), own)].into(),
            called: [("kfree".to_owned(), 1000)].into(),
            ..Counts::default()
        };
        let name = name.to_owned();
        vec![Case {
            name,
            report,
            counts,
        }]
    }

    #[test]
    fn boots_are_put_side_by_side_per_packet() {
        let rows = rows(
            &boot("tx", 40_000),
            &boot("tx", 20_000),
            Some(&boot("tx", 20_100)),
        );
        let rows = rows.unwrap();
        let shown = text(&rows);
        for figure in [
            "400.0", "200.0", "50.0%", "410.0", "300.0", "0.0200", "0.50%",
        ] {
            assert!(shown.contains(figure), "{figure} is not in\n{shown}");
        }
        assert_eq!(rows[0].ours.system.to_bits(), 500f64.to_bits());
    }

    #[test]
    fn case_of_one_driver_is_an_error() {
        assert!(rows(&boot("tx", 1), &boot("rx", 1), None).is_err());
    }
}
