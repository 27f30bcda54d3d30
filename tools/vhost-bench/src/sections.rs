// SPDX-License-Identifier: GPL-2.0

//! Boots in which both drivers take turns: runs, put together by what they are about.

use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::figure::Figure;
use crate::results::{report, Output};
use crate::table::per;

/// One number of a report.
struct Measure {
    title: &'static str,
    digits: usize,
    of: fn(&Value) -> Option<f64>,
}

/// What runs are about.
struct Kind {
    /// Its name in the machine's output.
    name: &'static str,
    title: &'static str,
    measures: &'static [Measure],
    /// Each measure has a line of its own.
    lines: bool,
}

fn number(report: &Value, key: &str) -> Option<u64> {
    report.get(key)?.as_u64()
}

fn per_packet(report: &Value, key: &str) -> Option<f64> {
    let packets = number(report, "packets").filter(|packets| *packets > 0)?;
    Some(per(number(report, key)?, packets))
}

fn thousandths(report: &Value, key: &str) -> Option<f64> {
    Some(per(number(report, key)?, 1000))
}

fn kib(report: &Value, key: &str) -> Option<f64> {
    Some(per(number(report, key)?, 1024))
}

macro_rules! measure {
    ($title:literal, $digits:literal, $of:expr) => {
        Measure {
            title: $title,
            digits: $digits,
            of: $of,
        }
    };
}

const WORKER: Measure = measure!("worker", 1, |report| per_packet(report, "worker_cpu_ns"));
const SYSTEM: Measure = measure!("system", 1, |report| per_packet(report, "elapsed_ns"));
const KICKS: Measure = measure!("kicks", 4, |report| per_packet(report, "kicks"));
const CALLS: Measure = measure!("calls", 4, |report| per_packet(report, "calls"));
const RATE: Measure = measure!("packets/M", 1, |report| {
    let elapsed = number(report, "elapsed_ns").filter(|elapsed| *elapsed > 0)?;
    Some(per(number(report, "packets")? * 1_000_000, elapsed))
});

const KINDS: [Kind; 6] = [
    Kind {
        name: "costs",
        title: "instructions per packet of the worker and of the whole system; packets per million instructions of the system",
        measures: &[WORKER, SYSTEM, RATE],
        lines: false,
    },
    Kind {
        name: "plain",
        title: "the same on a CPU without fast string instructions, where a copied byte is less than an instruction",
        measures: &[WORKER, SYSTEM, RATE],
        lines: false,
    },
    Kind {
        name: "notify",
        title: "kicks and calls per packet",
        measures: &[KICKS, CALLS],
        lines: false,
    },
    Kind {
        name: "pingpong",
        title: "round trip in virtual microseconds, of which one is 1,000 instructions",
        measures: &[
            measure!("p50", 1, |report| thousandths(report, "p50_ns")),
            measure!("p99", 1, |report| thousandths(report, "p99_ns")),
            measure!("max", 1, |report| thousandths(report, "max_ns")),
        ],
        lines: false,
    },
    Kind {
        name: "devices",
        title: "an open device",
        measures: &[
            measure!("opened, KiB", 1, |report| kib(report, "open_bytes")),
            measure!("with an owner, KiB", 1, |report| kib(report, "owned_bytes")),
            measure!("of which the worker's stack", 1, |report| kib(report, "owned_stack_bytes")),
            measure!("started, KiB", 1, |report| kib(report, "started_bytes")),
            measure!("open, us", 1, |report| thousandths(report, "open_ns")),
            measure!("set owner, us", 1, |report| thousandths(report, "owner_ns")),
            measure!("start, us", 1, |report| thousandths(report, "start_ns")),
            measure!("stop, us", 1, |report| thousandths(report, "stop_ns")),
            measure!("close, us", 1, |report| thousandths(report, "close_ns")),
            measure!("close all at once, us", 1, |report| thousandths(report, "close_all_ns")),
            measure!("kill owner of all, taps too, us", 1, |report| thousandths(report, "exit_all_ns")),
        ],
        lines: true,
    },
    Kind {
        name: "growth",
        title: "many devices: instructions per packet",
        measures: &[WORKER, SYSTEM, KICKS, CALLS],
        lines: false,
    },
];

/// Both drivers' reports of one case.
#[derive(Clone, Debug, Default)]
struct Runs {
    c: Vec<Value>,
    ours: Vec<Value>,
    failed: Vec<String>,
}

/// One figure of a case for both drivers. Nothing where one was not run.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// C's driver.
    pub c: Option<Figure>,
    /// Ours.
    pub ours: Option<Figure>,
    /// Ours for each of C's.
    pub ratio: Option<f64>,
}

/// One case: its figures by their titles, in their order.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub case: String,
    /// Its figures.
    pub figures: Vec<(&'static str, Pair)>,
    /// Runs that failed: the driver, and what was said. No figure is of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// The cases that are about one thing.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// What it is about.
    pub name: &'static str,
    /// In words.
    pub title: &'static str,
    /// The cases, in the order in which they were run.
    pub rows: Vec<Row>,
    /// What they ran on.
    pub environment: BTreeMap<String, String>,
}

/// Reads the folder of a boot in which lines `run KIND CASE DRIVER REPORT` were printed.
///
/// # Errors
///
/// A file that is missing, a line that is none. Runs that failed are noted in their case.
pub fn read(folder: &Path) -> Result<Vec<Section>> {
    let output = Output::read(folder)?;
    let place = folder.display().to_string();
    let sections = sections(&output).context(place)?;
    ensure!(
        !sections.is_empty(),
        "{}: nothing was run",
        folder.display()
    );
    Ok(sections)
}

fn sections(output: &Output) -> Result<Vec<Section>> {
    let mut found: Vec<Vec<(String, Runs)>> = KINDS.iter().map(|_| Vec::new()).collect();
    for line in output.lines("run ") {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [kind, case, driver, text] = *words else {
            bail!("not a run: `{line}`");
        };
        let index = KINDS.iter().position(|known| known.name == kind);
        let cases = index.and_then(|index| found.get_mut(index));
        let cases = cases.with_context(|| format!("no kind `{kind}`: `{line}`"))?;
        if cases.last().is_none_or(|(last, _)| last != case) {
            cases.push((case.to_owned(), Runs::default()));
        }
        let Some((_, runs)) = cases.last_mut() else {
            continue;
        };
        let reports = match driver {
            "c" => &mut runs.c,
            "ours" => &mut runs.ours,
            _ => bail!("no driver `{driver}`: `{line}`"),
        };
        match report(text) {
            Ok(report) => reports.push(report),
            Err(_) => runs.failed.push(format!("{driver}: {text}")),
        }
    }
    let section = |(kind, cases): (&'static Kind, Vec<(String, Runs)>)| Section {
        name: kind.name,
        title: kind.title,
        rows: cases
            .iter()
            .map(|(case, runs)| row(kind, case, runs))
            .collect(),
        environment: output.environment.clone(),
    };
    let sections = KINDS.iter().zip(found);
    Ok(sections
        .filter(|(_, cases)| !cases.is_empty())
        .map(section)
        .collect())
}

fn row(kind: &Kind, case: &str, runs: &Runs) -> Row {
    let figures = kind.measures.iter().map(|measure| {
        let figure = |reports: &[Value]| Figure::new(reports.iter().filter_map(measure.of));
        let (c, ours) = (figure(&runs.c), figure(&runs.ours));
        let ratio = c
            .zip(ours)
            .and_then(|(c, ours)| ratio(ours.median, c.median));
        (measure.title, Pair { c, ours, ratio })
    });
    Row {
        case: case.to_owned(),
        figures: figures.collect(),
        failed: runs.failed.clone(),
    }
}

/// How many runs failed.
pub fn failed(sections: &[Section]) -> usize {
    let rows = sections.iter().flat_map(|section| &section.rows);
    rows.map(|row| row.failed.len()).sum()
}

#[expect(clippy::float_arithmetic, reason = "a ratio for people to read")]
fn ratio(ours: f64, c: f64) -> Option<f64> {
    (c > 0.0).then(|| 100.0 * ours / c)
}

/// The tables for people.
pub fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        let Some(kind) = KINDS.iter().find(|kind| kind.name == section.name) else {
            continue;
        };
        let of = section.rows.iter().flat_map(|row| &row.figures);
        let most = of.filter_map(|(_, pair)| pair.ours).map(|figure| figure.of);
        let most = most.max().unwrap_or(0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{}\nmedians of {most}, both drivers in turns in one boot",
            section.title
        );
        if kind.lines {
            by_line(&mut text, kind, section);
        } else {
            by_column(&mut text, kind, section);
        }
        for row in &section.rows {
            for failed in &row.failed {
                let _ = writeln!(text, "FAILED: {}, {failed}", row.case);
            }
        }
    }
    text
}

fn by_column(text: &mut String, kind: &Kind, section: &Section) {
    let _ = write!(text, "{:24}", "");
    for measure in kind.measures {
        let _ = write!(
            text,
            " {:>13} {:>13} {:>6}",
            format!("{}: C", measure.title),
            "ours",
            "ratio"
        );
    }
    let _ = writeln!(text);
    for row in &section.rows {
        let _ = write!(text, "{:24}", row.case);
        for (measure, (_, pair)) in kind.measures.iter().zip(&row.figures) {
            let _ = write!(text, " {}", cells(pair, measure.digits));
        }
        let _ = writeln!(text);
    }
}

fn by_line(text: &mut String, kind: &Kind, section: &Section) {
    for row in &section.rows {
        let _ = writeln!(
            text,
            "{:30} {:>13} {:>13} {:>6}",
            row.case, "C", "ours", "ratio"
        );
        for (measure, (title, pair)) in kind.measures.iter().zip(&row.figures) {
            let _ = writeln!(text, "  {title:28} {}", cells(pair, measure.digits));
        }
    }
}

fn cells(pair: &Pair, digits: usize) -> String {
    let figure = |figure: Option<Figure>| {
        let text = figure.map(|figure| format!("{figure:.digits$}"));
        text.unwrap_or_else(|| "-".to_owned())
    };
    let ratio = pair.ratio.map(|ratio| format!("{ratio:.1}%"));
    let ratio = ratio.as_deref().unwrap_or("-");
    format!(
        "{:>13} {:>13} {ratio:>6}",
        figure(pair.c),
        figure(pair.ours)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Vec<Section>> {
        sections(&Output {
            environment: BTreeMap::new(),
            text: line.to_owned(),
        })
    }

    fn report(worker: u64) -> String {
        format!("{{\"result\":\"OK\",\"packets\":10,\"worker_cpu_ns\":{worker},\"elapsed_ns\":10000,\"kicks\":1,\"calls\":2,\"close_ns\":1500}}")
    }

    #[test]
    fn drivers_are_put_side_by_side() {
        let (c, ours) = (report(2000), report(1000));
        let lines =
            format!("run costs tx c {c}\nrun costs tx ours {ours}\nrun notify tx ours {ours}\n");
        let sections = run(&lines).unwrap();
        let shown = text(&sections);
        for figure in ["200.0", "100.0", "50.0%", "1000.0", "0.1000", "0.2000"] {
            assert!(shown.contains(figure), "{figure} is not in\n{shown}");
        }
        assert_eq!(sections.len(), 2);
        let pair = &sections[1].rows[0].figures[0].1;
        assert!(pair.c.is_none() && pair.ratio.is_none());
    }

    #[test]
    fn devices_have_a_line_for_each_measure() {
        let sections = run(&format!("run devices 64 c {}\n", report(1))).unwrap();
        let shown = text(&sections);
        let line = shown.lines().find(|line| line.contains("close, us"));
        assert!(line.unwrap().contains(" 1.5 "), "{shown}");
    }

    #[test]
    fn runs_that_failed_are_told_and_cost_no_other_figure() {
        let good = report(1000);
        let bad = "{\"result\":\"FAILED\",\"packets\":10}";
        let lines =
            format!("run costs tx c {bad}\nrun costs tx c no JSON\nrun costs tx ours {good}\n");
        let sections = run(&lines).unwrap();
        assert_eq!(failed(&sections), 2);
        let shown = text(&sections);
        assert!(shown.contains("FAILED: tx, c: no JSON"), "{shown}");
        let pair = &sections[0].rows[0].figures[0].1;
        assert!(pair.c.is_none() && pair.ours.is_some());
    }

    #[test]
    fn lines_that_are_no_runs_are_errors() {
        assert!(run(&format!("run cost tx c {}\n", report(1))).is_err());
        assert!(run(&format!("run costs tx d {}\n", report(1))).is_err());
        assert!(run("run costs tx\n").is_err());
    }
}
