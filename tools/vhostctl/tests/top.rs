// SPDX-License-Identifier: GPL-2.0

//! What `top` shows of two snapshots.

mod recorded;

use clap::Parser;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use recorded::{lay_out, MIXED};
use std::time::Duration;
use vhostctl::args::{Cli, Column, Command};
use vhostctl::device::{snapshot, Snapshot};
use vhostctl::rates;
use vhostctl::top::rows::{rows, sort, Row};
use vhostctl::top::screen::{draw, visible, Summary};
use vhostctl::top::state::State;

const DOCUMENT: &str = include_str!("../../../Documentation/tools/vhostctl.rst");

/// The recorded host, and what it is two seconds later.
fn two_seconds() -> (Snapshot, Snapshot) {
    let (_folder, host) = lay_out(MIXED);
    let old = snapshot(&host);
    let mut new = old.clone();
    new.at = old.at + Duration::from_secs(2);
    new.ticks = Some((1400, 823));
    let web = &mut new.devices[0];
    let changes = [
        [
            ("packets", 810_010),
            ("bytes", 51_840_640),
            ("kicks", 7),
            ("calls", 20_004),
            ("polls", 1008),
            ("poll-won", 906),
        ],
        [
            ("packets", 402_020),
            ("bytes", 26_532_000),
            ("kicks", 1),
            ("calls", 12),
            ("polls", 34),
            ("poll-won", 33),
        ],
    ];
    for (vring, changes) in web.vrings.iter_mut().zip(changes) {
        for (key, value) in changes {
            vring.keys.insert(key.to_owned(), u64::into(value));
        }
    }
    web.workers[0].cpu_ns = Some(123_456_789 + 1_430_000_000);
    (old, new)
}

fn row<'a>(rows: &'a [Row], device: &str, vring: &str) -> &'a Row {
    rows.iter()
        .find(|row| row.device == device && row.vring == Some(vring))
        .unwrap()
}

#[test]
fn rates_are_a_seconds() {
    let (old, new) = two_seconds();
    let rows = rows(Some(&old), &new);
    let rx = row(&rows, "2100:31", "rx");
    assert_eq!(
        (rx.packets, rx.bytes, rx.kicks),
        (Some(405_000), Some(25_920_000), Some(2))
    );
    assert_eq!((rx.polls, rx.won), (Some(500), Some(90)));
    assert_eq!((rx.drops, rx.errors), (Some(0), Some(0)));
    assert_eq!(
        (rx.window_us, rx.policy.as_deref(), rx.fill.as_deref()),
        (Some(50), Some("fixed"), Some("76/256"))
    );
    assert_eq!(rx.cpu, Some(715), "tenths of a percent");
}

#[test]
fn window_of_the_adaptive_policy_is_the_one_that_it_chose() {
    let (old, mut new) = two_seconds();
    let window = |new: &Snapshot| row(&rows(Some(&old), new), "2100:31", "tx").window_us;
    assert_eq!(window(&new), Some(50), "an older driver does not say");
    new.devices[0].vrings[1]
        .keys
        .insert("adaptive-ns".into(), 12_288.into());
    assert_eq!(window(&new), Some(12));
}

#[test]
fn totals_are_what_the_driver_says() {
    let (old, _) = two_seconds();
    let rows = rows(None, &old);
    let rx = row(&rows, "2100:31", "rx");
    assert_eq!(
        (rx.packets, rx.drops, rx.errors),
        (Some(10), Some(3), Some(2))
    );
    assert_eq!(rx.cpu, Some(123), "milliseconds");
    assert_eq!(row(&rows, "3000:3", "tx").polls, None);
}

#[test]
fn counter_that_fell_since_began_again() {
    let (old, new) = two_seconds();
    let rows = rows(Some(&old), &new);
    assert_eq!(
        row(&rows, "2100:31", "tx").kicks,
        Some(0),
        "1 in two seconds"
    );
    let (mut before, mut after) = (old, new);
    before.devices[0].vrings[1]
        .keys
        .insert("packets".into(), 1000.into());
    after.devices[0].vrings[1]
        .keys
        .insert("packets".into(), 600.into());
    let rows = vhostctl::top::rows::rows(Some(&before), &after);
    assert_eq!(row(&rows, "2100:31", "tx").packets, Some(300));
}

#[test]
fn device_that_was_not_there_before_has_no_rate_yet() {
    let (mut old, new) = two_seconds();
    old.devices.remove(0);
    assert_eq!(
        row(&rows(Some(&old), &new), "2100:31", "rx").packets,
        Some(0)
    );
}

#[test]
fn device_of_c_has_one_line_with_its_workers_cpu() {
    let (old, new) = two_seconds();
    let rows = rows(Some(&old), &new);
    let of_c: Vec<&Row> = rows.iter().filter(|row| row.device == "4000:12").collect();
    assert_eq!(of_c.len(), 1);
    assert_eq!(
        (of_c[0].vring, of_c[0].packets, of_c[0].cpu),
        (None, None, Some(0))
    );
}

#[test]
fn lines_are_sorted_by_any_column() {
    let (old, new) = two_seconds();
    let mut rows = rows(Some(&old), &new);
    sort(&mut rows, Column::Packets, false);
    assert_eq!(
        (rows[0].device.as_str(), rows[0].vring),
        ("2100:31", Some("rx"))
    );
    sort(&mut rows, Column::Pid, true);
    assert_eq!(rows[0].device, "5000:5");
}

fn picture(keys: &str) -> String {
    let Command::Top(options) = Cli::parse_from(["vhostctl", "top"]).command else {
        unreachable!()
    };
    let mut state = State::new(&options);
    for key in keys.chars() {
        state.key(KeyEvent::from(KeyCode::Char(key)));
    }
    let (old, new) = two_seconds();
    let summary = Summary::new(
        "09:41:07 UTC".into(),
        rates::idle_permille(&old, &new),
        &new,
        Vec::new(),
    );
    let lines = visible(&state, rows(Some(&old), &new));
    let mut terminal = Terminal::new(TestBackend::new(96, 12)).unwrap();
    terminal
        .draw(|frame| draw(frame, &state, &summary, &lines))
        .unwrap();
    let buffer = terminal.backend().buffer().clone();
    let text = buffer.content.chunks(96).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    text.collect::<String>().trim_end().to_owned()
}

#[test]
fn document_shows_the_screen_as_it_is() {
    let indented: String = picture("")
        .lines()
        .map(|line| format!("  {line}").trim_end().to_owned() + "\n")
        .collect();
    assert!(
        DOCUMENT.contains(&indented),
        "the document does not have:\n{indented}"
    );
}

#[test]
fn filter_leaves_lines_with_its_text() {
    let shown = picture("/web-1");
    assert!(
        shown.contains("only lines with: web-1_") && !shown.contains("vhost-load"),
        "{shown}"
    );
}

#[test]
fn help_says_what_every_key_does() {
    let help = picture("h");
    for key in [
        "q F10", "P ", "N V", "p b", "K C", "w ", "D E", "d s", "< > F6", "R I", "t ", "/ F4",
        "space",
    ] {
        assert!(help.contains(key), "{key} in {help}");
    }
}
