// SPDX-License-Identifier: GPL-2.0

//! What `export` writes, read by a parser that takes nothing but what the formats' specifications allow.

mod recorded;

use openmetrics_parser::{openmetrics, prometheus};
use recorded::{lay_out, MIXED};
use vhostctl::args::Format;
use vhostctl::device::snapshot;
use vhostctl::export::render;

fn text(recording: &str, format: Format) -> String {
    let (_folder, host) = lay_out(recording);
    render(&snapshot(&host), format)
}

#[test]
fn openmetrics_is_what_the_specification_says() {
    let text = text(MIXED, Format::Openmetrics);
    let parsed =
        openmetrics::parse_openmetrics(&text).unwrap_or_else(|err| panic!("{err}\n{text}"));
    for (family, samples) in [
        ("vhost_vring_packets", 6),
        ("vhost_device", 5),
        ("vhost_worker_cpu_seconds", 4),
    ] {
        let family = parsed
            .families
            .get(family)
            .unwrap_or_else(|| panic!("{family} in {text}"));
        assert_eq!(family.iter_samples().count(), samples, "{text}");
    }
}

#[test]
fn older_format_is_what_its_specification_says() {
    let text = text(MIXED, Format::Prometheus);
    let parsed = prometheus::parse_prometheus(&text).unwrap_or_else(|err| panic!("{err}\n{text}"));
    let family = &parsed.families["vhost_vring_packets_total"];
    assert_eq!(family.iter_samples().count(), 6);
    assert!(!text.contains("EOF"));
}

#[test]
fn values_are_the_drivers_and_times_are_seconds() {
    let text = text(MIXED, Format::Openmetrics);
    for line in [
        r#"vhost_vring_packets_total{device="2100:31",vm="web-1",vring="rx"} 10"#,
        r#"vhost_vring_window_seconds{device="2100:31",vm="web-1",vring="rx"} 0.000051200"#,
        r#"vhost_worker_cpu_seconds_total{device="4000:12",vm="old-1"} 0.005000000"#,
        r#"vhost_vring_info{device="2100:31",vm="web-1",vring="rx",backend="vnet0",policy="fixed"} 1"#,
        "# UNIT vhost_vring_window_seconds seconds",
        "# TYPE vhost_vring_size gauge",
    ] {
        assert!(
            text.lines().any(|written| written == line),
            "{line} in {text}"
        );
    }
}

#[test]
fn name_of_a_guest_cannot_break_the_format() {
    let recording = MIXED.replace("guest=web-1", r#"guest=a"b\c{}"#);
    for format in [Format::Openmetrics, Format::Prometheus] {
        let text = text(&recording, format);
        assert!(text.contains(r#"vm="a\"b\\c{}""#), "{text}");
    }
    openmetrics::parse_openmetrics(&text(&recording, Format::Openmetrics)).unwrap();
}

#[test]
fn host_without_devices_has_a_file_all_the_same() {
    let text = text("== proc/misc\n238 vhost-net\n", Format::Openmetrics);
    openmetrics::parse_openmetrics(&text).unwrap();
    assert!(text.contains("vhost_devices 0\n") && text.ends_with("# EOF\n"));
}

#[test]
fn dashboard_asks_for_what_is_exported() {
    let dashboard = include_str!("../grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let text = text(MIXED, Format::Openmetrics);
    let mut asked = 0;
    for panel in panels {
        let expression = panel["targets"][0]["expr"].as_str().unwrap();
        for name in expression.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            if name.starts_with("vhost_") && !name.ends_with('_') {
                asked += 1;
                assert!(
                    text.lines()
                        .any(|line| line.starts_with(&format!("{name}{{"))),
                    "{name}"
                );
            }
        }
    }
    // Drops and errors are asked for by a pattern of names.
    assert!(asked + 2 >= panels.len(), "{asked} names");
}
