// SPDX-License-Identifier: GPL-2.0

//! Draws `vhostctl top`.

use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row as Cells, Table};
use ratatui::Frame;

use super::rows::{sort, Row, COLUMNS};
use super::state::State;
use crate::args::Column;
use crate::device::Snapshot;
use crate::table::Align;

const HELP: &str = "\
q F10     quit                      d s       seconds between readings
P         sort by CPU               < > F6    sort by the column beside
N V       sort by PID, VM           R I       the other way round
p b       sort by packets, bytes    t         totals or rates
K C       sort by kicks, calls      / F4      only lines with a text; Esc ends
w         sort by windows won       space     read now
D E       sort by drops, errors     arrows, PgUp, PgDn, Home

PKT to ERR are a second's; WON% is of the busy-poll windows; WIN is the window in
microseconds; FILL is buffers with the device of the ring's size; CPU is the worker's,
which serves both vrings. Any key goes back.";

/// What the first lines say.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Time of day.
    pub clock: String,
    /// Devices, vrings.
    pub counts: (usize, usize),
    /// The host's idle share in thousandths.
    pub idle: Option<u64>,
    /// What is not seen.
    pub left_out: Vec<String>,
}

impl Summary {
    /// Of a snapshot.
    pub fn new(
        clock: String,
        idle: Option<u64>,
        snapshot: &Snapshot,
        left_out: Vec<String>,
    ) -> Self {
        let vrings = snapshot
            .devices
            .iter()
            .map(|device| device.vrings.len())
            .sum();
        Self {
            clock,
            counts: (snapshot.devices.len(), vrings),
            idle,
            left_out,
        }
    }

    /// The first line.
    pub fn heading(&self, totals: bool) -> String {
        let idle = self.idle.map_or_else(String::new, |idle| {
            format!(", host {}.{}% idle", idle / 10, idle % 10)
        });
        let (devices, vrings) = self.counts;
        let what = if totals { "totals" } else { "per second" };
        format!(
            "vhostctl top - {}{idle}, {devices} devices, {vrings} vrings, {what}",
            self.clock
        )
    }
}

/// The lines to be shown, in order.
pub fn visible(state: &State, mut rows: Vec<Row>) -> Vec<Row> {
    if !state.filter.is_empty() {
        rows.retain(|row| {
            row.cells(false, false)
                .iter()
                .any(|cell| cell.contains(&state.filter))
        });
    }
    sort(&mut rows, state.sort, state.reverse);
    rows
}

/// Draws all.
pub fn draw(frame: &mut Frame<'_>, state: &State, summary: &Summary, rows: &[Row]) {
    if state.help {
        frame.render_widget(Paragraph::new(HELP), frame.area());
        return;
    }
    let mut head = vec![Line::from(summary.heading(state.totals))];
    head.extend(
        summary
            .left_out
            .iter()
            .map(|line| Line::from(line.as_str())),
    );
    head.push(Line::from(status(state)));
    let height = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let parts = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]);
    let [top, rest] = parts.areas(frame.area());
    frame.render_widget(Paragraph::new(Text::from(head)), top);

    let room = usize::from(rest.height.saturating_sub(1));
    let first = state.first.min(rows.len().saturating_sub(room));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .skip(first)
        .map(|row| row.cells(state.totals, true))
        .collect();
    let widths = widths(&cells);
    let marked = heading_of(state.sort);
    let headings = COLUMNS.iter().map(|(name, align)| {
        let style = if *name == marked {
            Modifier::REVERSED | Modifier::BOLD
        } else {
            Modifier::REVERSED
        };
        aligned((*name).to_owned(), *align).style(Style::new().add_modifier(style))
    });
    let header = Cells::new(headings).style(Style::new().add_modifier(Modifier::REVERSED));
    let lines = cells.into_iter().map(|row| {
        let row = row
            .into_iter()
            .zip(COLUMNS)
            .map(|(cell, (_, align))| aligned(cell, align));
        Cells::new(row)
    });
    frame.render_widget(Table::new(lines, widths).header(header), rest);
}

fn aligned(text: String, align: Align) -> Text<'static> {
    match align {
        Align::Left => Text::from(text),
        Align::Right => Text::from(text).right_aligned(),
    }
}

fn status(state: &State) -> String {
    match (&state.typed, state.filtering) {
        (Some(typed), _) => format!("seconds between readings: {typed}_"),
        (None, true) => format!("only lines with: {}_", state.filter),
        _ if !state.filter.is_empty() => format!("only lines with: {}", state.filter),
        _ => format!(
            "every {}.{:03} s, h for help",
            state.delay / 1000,
            state.delay % 1000
        ),
    }
}

fn widths(rows: &[Vec<String>]) -> Vec<Constraint> {
    let width = |(index, (name, _)): (usize, &(&str, Align))| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        // Names may be long; the numbers behind them matter more.
        let limit = if matches!(*name, "VM" | "IF") {
            12
        } else {
            usize::MAX
        };
        let width = longest.min(limit).max(name.len());
        Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX))
    };
    COLUMNS.iter().enumerate().map(width).collect()
}

fn heading_of(column: Column) -> &'static str {
    match column {
        Column::Cpu => "CPU",
        Column::Packets => "PKT",
        Column::Bytes => "BYTES",
        Column::Kicks => "KICK",
        Column::Calls => "CALL",
        Column::Polls => "POLL",
        Column::Won => "WON%",
        Column::Drops => "DROP",
        Column::Errors => "ERR",
        Column::Pid => "PID:FD",
        Column::Vm => "VM",
    }
}
