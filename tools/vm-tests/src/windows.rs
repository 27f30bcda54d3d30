// SPDX-License-Identifier: GPL-2.0

//! A busy-polling window closes: a device on which nothing happens costs nothing, and wants kicks.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::features;

use crate::report::{Report, Test};
use crate::rig::{Rig, PACKET};

/// The window, in microseconds.
const WINDOW: u32 = 20_000;
const ROUNDS: u16 = 6;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = Vec::new();
    for event_idx in [true, false] {
        for (what, rx_chains) in [("chains are there", true), ("the rx ring is empty", false)] {
            let event = if event_idx { "on" } else { "off" };
            let name = format!("both rings polled and kicked, {what}, event_idx {event}");
            tests.push(Test::new(name, move || closes(node, event_idx, rx_chains)));
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// Gives both rings work at the same moment, again and again; then lets them alone.
fn closes(node: &Path, event_idx: bool, rx_chains: bool) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1 | u128::from(event_idx) << features::EVENT_IDX,
        ring_size: 64,
        buffer_bytes: [256 << 10; 2],
        busyloop: Some(WINDOW),
        ..SessionOptions::default()
    })?;
    let worker = rig.session.worker.as_ref().context("no worker was found")?;
    let cpu = || worker.cpu_time().context("the worker is gone");
    let window = Duration::from_micros(u64::from(WINDOW));
    let (tx, rx) = (rig.ring(TX), rig.ring(RX));
    for at in 0..ROUNDS {
        let before = cpu()?;
        rig.good(TX, at, at);
        tx.publish(at + 1);
        if rx_chains {
            rig.good(RX, at, at);
            rx.publish(at + 1);
        }
        // In the middle of whatever window is open, or in none.
        rig.send(u64::from(at))?;
        rig.kick(TX)?;
        rig.kick(RX)?;
        rig.expect_frame(u64::from(at))?;
        rig.expect_used(TX, at + 1)?;
        if rx_chains {
            rig.expect_received(at, at, u64::from(at))?;
        }
        if at % 2 == 1 {
            // What is left of one, then one of each ring.
            std::thread::sleep(window * 5);
            let spent = cpu()?.saturating_sub(before);
            ensure!(
                spent < window * 4,
                "the worker spent {spent:?} where windows are {window:?}"
            );
            rig.expect_quiet()?;
            ensure!(
                tx.wants_kick(at + 1, at + 2),
                "the window is closed, and no kick is wanted"
            );
        }
    }
    if !rx_chains {
        // The packets waited in the tap.
        for at in 0..ROUNDS {
            rig.good(RX, at, at);
        }
        ensure!(rx.wants_kick(0, ROUNDS), "no kick is wanted for rx chains");
        rx.publish(ROUNDS);
        rig.kick(RX)?;
        rig.expect_used(RX, ROUNDS)?;
        for at in 0..ROUNDS {
            rig.expect_entry(RX, at, (at, PACKET))?;
        }
    }
    Ok(())
}
