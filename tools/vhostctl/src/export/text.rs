// SPDX-License-Identifier: GPL-2.0

//! The two formats of Prometheus: OpenMetrics 1.0, and the older text format 0.0.4, which node_exporter's textfile collector reads.

use std::fmt::Write;

use super::families::{Families, Family, Kind};
use crate::args::Format;

/// Writes all numbers.
pub(super) fn render(families: &Families, format: Format) -> String {
    let mut text = String::new();
    for (name, family) in families {
        let written = head(&mut text, name, family, format);
        debug_assert!(written.is_ok(), "a string takes all");
        for (labels, value) in &family.samples {
            text.push_str(name);
            text.push_str(ending(family.kind));
            text.push_str(&label_list(labels));
            text.push(' ');
            text.push_str(&number(*value, family.seconds));
            text.push('\n');
        }
    }
    if format == Format::Openmetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn head(text: &mut String, name: &str, family: &Family, format: Format) -> std::fmt::Result {
    let help = escape(&family.help);
    let (kind, name) = match (format, family.kind) {
        (Format::Openmetrics, Kind::Counter) => ("counter", name.to_owned()),
        (Format::Openmetrics, Kind::Info) => ("info", name.to_owned()),
        (Format::Prometheus, Kind::Counter) => ("counter", format!("{name}_total")),
        (Format::Prometheus, Kind::Info) => ("gauge", format!("{name}_info")),
        (_, Kind::Gauge) => ("gauge", name.to_owned()),
    };
    writeln!(text, "# TYPE {name} {kind}")?;
    if format == Format::Openmetrics && family.seconds {
        writeln!(text, "# UNIT {name} seconds")?;
    }
    writeln!(text, "# HELP {name} {help}")
}

fn ending(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "_total",
        Kind::Gauge => "",
        Kind::Info => "_info",
    }
}

fn label_list(labels: &[(&'static str, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
        .collect();
    format!("{{{}}}", labels.join(","))
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// A number, or nanoseconds as seconds.
fn number(value: u64, seconds: bool) -> String {
    const NANOS: u64 = 1_000_000_000;
    if seconds {
        format!("{}.{:09}", value / NANOS, value % NANOS)
    } else {
        value.to_string()
    }
}
