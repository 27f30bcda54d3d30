// SPDX-License-Identifier: GPL-2.0

//! What one boot of a machine gave: its output and the files of `vhost-count`.

use anyhow::{ensure, Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::counts::Counts;
use crate::symbols::Symbols;

/// One run of `vhost-load`.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What `vhost-load` said.
    pub report: Value,
    /// What was counted meanwhile.
    pub counts: Counts,
}

impl Case {
    /// A number of the report.
    ///
    /// # Errors
    ///
    /// If there is none of this name.
    pub fn number(&self, key: &str) -> Result<u64> {
        let number = self.report.get(key).and_then(Value::as_u64);
        number.with_context(|| format!("{}: vhost-load gave no {key}", self.name))
    }

    /// Packets that arrived.
    ///
    /// # Errors
    ///
    /// If `vhost-load` did not say.
    pub fn packets(&self) -> Result<u64> {
        self.number("packets")
    }
}

/// One boot.
#[derive(Clone, Debug)]
pub struct Boot {
    /// What it was counted on.
    pub environment: BTreeMap<String, String>,
    /// What was run.
    pub cases: Vec<Case>,
}

/// What a boot printed, and what it ran on.
#[derive(Clone, Debug)]
pub struct Output {
    /// What it ran on.
    pub environment: BTreeMap<String, String>,
    /// Its lines.
    pub text: String,
}

impl Output {
    /// Reads a boot's `environment` and `out`.
    ///
    /// # Errors
    ///
    /// A file that is missing, or has no end.
    pub fn read(folder: &Path) -> Result<Self> {
        let file = folder.join("environment");
        let host = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let file = folder.join("out");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        // Without all symbols, instructions would be nobody's.
        ensure!(
            text.ends_with("\nend\n"),
            "{}: the end is missing",
            file.display()
        );
        let environment = host.lines().chain(starting(&text, "env "));
        Ok(Self {
            environment: environment
                .filter_map(|line| line.split_once(": "))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            text,
        })
    }

    /// What follows `start` in the lines that begin with it.
    pub fn lines<'a>(&'a self, start: &'static str) -> impl Iterator<Item = &'a str> {
        starting(&self.text, start)
    }
}

fn starting<'a>(text: &'a str, start: &'static str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(move |line| line.strip_prefix(start))
}

/// Reads the folder of one boot: `environment`, what it ran on, `out`, what the machine printed, and the files of `vhost-count`, one for each case in `out`.
///
/// # Errors
///
/// A file that is missing or is not what it should be, a case that failed.
pub fn read(folder: &Path) -> Result<Boot> {
    let output = Output::read(folder)?;
    let place = folder.display();
    let symbols = Symbols::parse(output.lines("k ")).with_context(|| place.to_string())?;
    let mut cases = Vec::new();
    for (number, line) in output.lines("case ").enumerate() {
        let case = case(line, &folder.join(number.to_string()), &symbols);
        cases.push(case.with_context(|| format!("{place}: case {line}"))?);
    }
    ensure!(!cases.is_empty(), "{place}: no case was run");
    Ok(Boot {
        environment: output.environment,
        cases,
    })
}

/// What a program said in JSON, if it found all in order.
///
/// # Errors
///
/// What is no JSON, or has a result that is not `OK`.
pub fn report(text: &str) -> Result<Value> {
    let report: Value = serde_json::from_str(text).context("no report")?;
    let result = report.get("result").and_then(Value::as_str);
    ensure!(result == Some("OK"), "a fault was found");
    Ok(report)
}

fn case(line: &str, file: &Path, symbols: &Symbols) -> Result<Case> {
    let (name, report) = line.split_once(' ').context("no result")?;
    let report = self::report(report)?;
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(Case {
        name: name.to_owned(),
        report,
        counts: Counts::parse(&text, symbols).with_context(|| file.display().to_string())?,
    })
}
