// SPDX-License-Identifier: GPL-2.0

//! `vhostctl top`.

pub mod rows;
pub mod screen;
pub mod state;

use nix::time::ClockId;
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind};
use std::io::{stdin, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::app::App;
use crate::args::TopOptions;
use crate::device::Snapshot;
use crate::failure::{Failure, Result};
use crate::rates::idle_permille;
use crate::rights::Rights;
use crate::signals::Event;
use crate::table::layout;
use rows::{rows, Row, COLUMNS};
use screen::Summary;
use state::{State, Wish};

/// Runs the command, and returns what it saw last.
///
/// # Errors
///
/// If a device is named that is not there, or the terminal fails.
pub fn run(app: &App, options: &TopOptions, out: &mut dyn Write) -> Result<Snapshot> {
    let mut view = View {
        app,
        options,
        state: State::new(options),
        old: app.selected(&options.selection.targets)?,
        left: options.iterations,
    };
    if options.batch || app.json {
        view.batch(out)?;
    } else if stdin().is_terminal() && std::io::stdout().is_terminal() {
        let mut terminal = ratatui::try_init().map_err(Failure::from)?;
        let done = view.live(&mut terminal);
        ratatui::restore();
        done?;
    } else {
        return Err(Failure::Other(
            "top needs a terminal: give -b to print to a file or pipe".into(),
        ));
    }
    Ok(view.old)
}

struct View<'a> {
    app: &'a App,
    options: &'a TopOptions,
    state: State,
    old: Snapshot,
    left: Option<u64>,
}

impl View<'_> {
    fn delay(&self) -> Duration {
        Duration::from_millis(self.state.delay)
    }

    /// Reads the counters: the lines, and what stands above them. The reading becomes the one to compare with.
    fn read(&mut self) -> (Summary, Vec<Row>) {
        let new = self.app.still(&self.options.selection.targets);
        let old = (!self.state.totals).then_some(&self.old);
        let lines = rows(old, &new);
        let left_out = Rights::of_this_process(&self.app.host).left_out(&self.app.host, &new);
        let summary = Summary::new(
            time_of_day(),
            idle_permille(&self.old, &new),
            &new,
            left_out,
        );
        self.old = new;
        (summary, lines)
    }

    /// Counts an iteration; true if it was the last.
    fn last(&mut self) -> bool {
        self.left = self.left.map(|left| left - 1);
        self.left == Some(0)
    }

    fn batch(&mut self, out: &mut dyn Write) -> Result {
        while self.app.signals.wait(self.delay())? {
            let (summary, lines) = self.read();
            let lines = screen::visible(&self.state, lines);
            if self.app.json {
                let value = serde_json::json!({
                    "totals": self.state.totals,
                    "idle_permille": summary.idle,
                    "vrings": lines,
                });
                writeln!(out, "{value}")?;
            } else {
                let cells: Vec<Vec<String>> = lines
                    .iter()
                    .map(|row| row.cells(self.state.totals, false))
                    .collect();
                writeln!(out, "{}", summary.heading(self.state.totals))?;
                writeln!(out, "{}", layout(&COLUMNS, &cells))?;
            }
            out.flush()?;
            if self.last() {
                break;
            }
        }
        Ok(())
    }

    fn live(&mut self, terminal: &mut ratatui::DefaultTerminal) -> Result {
        // The first rates are not to be waited for as long as the others.
        if !self
            .app
            .signals
            .wait(self.delay().min(Duration::from_millis(250)))?
        {
            return Ok(());
        }
        loop {
            let (summary, lines) = self.read();
            let due = Instant::now() + self.delay();
            loop {
                let shown = screen::visible(&self.state, lines.clone());
                terminal.draw(|frame| screen::draw(frame, &self.state, &summary, &shown))?;
                match self.wish(due)? {
                    Wish::Draw => {}
                    Wish::Read => break,
                    Wish::Quit => return Ok(()),
                }
            }
            if self.last() {
                return Ok(());
            }
        }
    }

    /// Waits for a key, the time to read again, or a signal.
    fn wish(&mut self, due: Instant) -> Result<Wish> {
        while !event::poll(Duration::ZERO)? {
            let left = due.saturating_duration_since(Instant::now());
            let stdin = stdin();
            match self.app.signals.wait_for(left, Some(stdin.as_fd()))? {
                Event::Time => return Ok(Wish::Read),
                Event::End => return Ok(Wish::Quit),
                Event::Input => {}
            }
        }
        match event::read()? {
            Input::Key(key) if key.kind != KeyEventKind::Release => Ok(self.state.key(key)),
            _ => Ok(Wish::Draw),
        }
    }
}

/// The time of day in UTC.
fn time_of_day() -> String {
    let now = nix::time::clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |now| now.tv_sec());
    let second = now.rem_euclid(86_400);
    format!(
        "{:02}:{:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}
