// SPDX-License-Identifier: GPL-2.0

//! A busy-polling worker must not sit on what it has finished: used entry, call and frame are seen at once, not when the
//! window closes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_load::worker::pin_self;
use vhost_uapi::features;

use crate::patience::scaled;
use crate::report::{Report, Test};
use crate::rig::{name, Rig};

/// The window, in microseconds.
const WINDOW: u32 = 100_000;
const ROUNDS: u16 = 50;
/// What is finished is to be seen within this time, on a machine whose CPUs are its own: `scripts/vm --icount`.
const ALLOWED: Duration = Duration::from_millis(1);
/// The first packet needs a kick. In the window that is open then, none does.
const KICKS: u16 = 1;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = Vec::new();
    for (index, event_idx) in [(TX, true), (TX, false), (RX, true), (RX, false)] {
        let what = name(index);
        let event = if event_idx { "on" } else { "off" };
        let name = format!("{what}, event_idx {event}, in a window of 100 ms");
        tests.push(Test::new(name, move || published(node, index, event_idx)));
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// When something was seen, counted from when it could be.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    used: Duration,
    call: Duration,
    frame: Duration,
}

fn published(node: &Path, index: u32, event_idx: bool) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1 | u128::from(event_idx) << features::EVENT_IDX,
        ring_size: 16,
        buffer_bytes: [64 << 10; 2],
        busyloop: Some(WINDOW),
        ..SessionOptions::default()
    })?;
    // Two that spin on one CPU would wait for each other.
    pin_self(0)?;
    rig.session
        .worker
        .as_ref()
        .context("no worker was found")?
        .pin(1)?;
    let mut kicks = 0;
    let mut seen = Vec::new();
    for at in 0..ROUNDS {
        seen.push(round(&rig, index, at, &mut kicks)?);
    }
    println!(
        "# published: {}, event_idx {event_idx}: used within {:?}, call {:?}, frame {:?}; {kicks} kicks",
        name(index),
        longest(&seen, |seen| seen.used)?,
        longest(&seen, |seen| seen.call)?,
        longest(&seen, |seen| seen.frame)?,
    );
    ensure!(kicks <= KICKS, "{kicks} of {ROUNDS} packets needed a kick");
    Ok(())
}

/// One packet, from the moment that the worker can see it.
fn round(rig: &Rig, index: u32, at: u16, kicks: &mut u16) -> Result<Seen> {
    let ring = rig.ring(index);
    let call = &rig.vring(index).call;
    let slot = at % ring.num();
    rig.good(index, at, slot);
    ring.want_call(at);
    call.take()?;

    let mut start = Instant::now();
    ring.publish(at + 1);
    if ring.wants_kick(at, at + 1) {
        rig.kick(index)?;
        *kicks += 1;
    }
    if index == RX {
        start = Instant::now();
        rig.send(u64::from(at))?;
    }
    let (mut used, mut called, mut frame) = (None, None, (index == RX).then_some(Duration::ZERO));
    while used.is_none() || called.is_none() || frame.is_none() {
        let now = start.elapsed();
        ensure!(
            now < scaled(Duration::from_secs(2)),
            "packet {at}: used entry seen: {used:?}, call: {called:?}, frame: {frame:?}"
        );
        if used.is_none() && ring.used_idx() == at + 1 {
            used = Some(now);
        }
        if called.is_none() && call.take()? > 0 {
            called = Some(now);
        }
        if frame.is_none() && rig.next_frame(Duration::ZERO)?.is_some() {
            frame = Some(now);
        }
    }
    let unpack = |seen: Option<Duration>| seen.unwrap_or_default();
    Ok(Seen {
        used: unpack(used),
        call: unpack(called),
        frame: unpack(frame),
    })
}

/// The longest of some times, if that is good.
fn longest(seen: &[Seen], what: fn(&Seen) -> Duration) -> Result<Duration> {
    let longest = seen.iter().map(what).max().unwrap_or_default();
    ensure!(longest <= scaled(ALLOWED), "it took {longest:?}");
    Ok(longest)
}
