// SPDX-License-Identifier: GPL-2.0

//! What can be seen of a device: fdinfo and tracepoints agree with each other and with what was done.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::features;

use crate::raw_ring::WRITE;
use crate::report::{Report, Test};
use crate::rig::{name, Rig};

const TRACEFS: &str = "/sys/kernel/tracing";
const PACKETS: u16 = 40;
/// A window that is open for longer than a test looks, in microseconds.
const LONG: u32 = 60_000_000;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = vec![
        Test::new("each event is traced as often as it is counted", || {
            traced(node)
        }),
        Test::new("a run in an open window is seen", || seen_in_window(node)),
    ];
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

fn open(node: &Path, busyloop: u32) -> Result<Rig> {
    Rig::new(&SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1,
        ring_size: 128,
        buffer_bytes: [1 << 20; 2],
        busyloop: Some(busyloop),
        ..SessionOptions::default()
    })
}

/// The file that shows a device to others.
fn fdinfo(rig: &Rig) -> String {
    let fd = rig.vhost().as_fd().as_raw_fd();
    format!("/proc/{}/fdinfo/{fd}", std::process::id())
}

fn keys(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (key, value) = line.split_once(":\t")?;
        Some((key.strip_prefix("vhost-")?.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

fn number(keys: &BTreeMap<String, String>, key: &str) -> Result<u64> {
    let value = keys.get(key);
    let value = value.with_context(|| format!("fdinfo has no {key}"))?;
    Ok(value.parse()?)
}

/// Traffic on both rings, a dropped packet, a broken chain.
fn traffic(rig: &Rig) -> Result<()> {
    for at in 0..PACKETS {
        rig.good(RX, at, at);
        rig.ring(RX).publish(at + 1);
        rig.good(TX, at, at);
        rig.ring(TX).publish(at + 1);
        rig.kick(TX)?;
        rig.expect_frame(u64::from(at))?;
        rig.expect_used(TX, at + 1)?;
        rig.send(u64::from(at))?;
        rig.expect_received(at, at, u64::from(at))?;
    }
    // The device may not write to what it sends.
    let ring = rig.ring(TX);
    let mut wrong = rig.whole(TX, PACKETS);
    wrong.flags |= WRITE;
    ring.desc(PACKETS, wrong);
    ring.avail(PACKETS, PACKETS);
    ring.publish(PACKETS + 1);
    rig.kick(TX)?;
    rig.expect_used(TX, PACKETS + 1)?;
    // There is no such head.
    ring.avail(PACKETS + 1, u16::MAX);
    ring.publish(PACKETS + 2);
    rig.kick(TX)?;
    rig.expect_error(TX)?;
    rig.flush()
}

/// Events of a device: `name vring reason` and how often, then what their numbers add up to.
struct Trace {
    events: BTreeMap<String, u64>,
    sums: BTreeMap<String, u64>,
}

fn read_trace(device: u64) -> Result<Trace> {
    let text = fs::read_to_string(format!("{TRACEFS}/trace"))?;
    ensure!(!text.contains("LOST"), "the trace has lost events");
    let mut trace = Trace {
        events: BTreeMap::new(),
        sums: BTreeMap::new(),
    };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((head, fields)) = line.split_once(": device=") else {
            continue;
        };
        let mut fields = fields.split(' ');
        if fields.next() != Some(device.to_string().as_str()) {
            continue;
        }
        let event = head.rsplit(' ').next().unwrap_or_default();
        let mut key = event.to_owned();
        for (field, value) in fields.filter_map(|field| field.split_once('=')) {
            match value.parse::<u64>() {
                Ok(value) => *trace.sums.entry(format!("{key} {field}")).or_default() += value,
                Err(_) => key = format!("{key} {value}"),
            }
        }
        *trace.events.entry(key).or_default() += 1;
    }
    Ok(trace)
}

/// Turns all tracepoints on or off.
fn set_tracing(on: bool) -> Result<()> {
    let value = if on { "1" } else { "0" };
    Ok(fs::write(
        format!("{TRACEFS}/events/vhost_net_rs/enable"),
        value,
    )?)
}

fn traced(node: &Path) -> Result<()> {
    fs::write(format!("{TRACEFS}/trace"), "")?;
    fs::write(format!("{TRACEFS}/buffer_size_kb"), "4096")?;
    set_tracing(true)?;
    let rig = open(node, 50)?;
    let done = traffic(&rig);
    let text = fs::read_to_string(fdinfo(&rig))?;
    let keys = keys(&text);
    let device = number(&keys, "device")?;
    let (owner, worker) = (number(&keys, "owner")?, number(&keys, "worker")?);
    drop(rig);
    set_tracing(false)?;
    done?;

    let trace = read_trace(device)?;
    for index in [RX, TX] {
        agree(&trace, &keys, name(index))?;
    }
    ensure!(number(&keys, "tx-drop-direction")? == 1, "{text}");
    ensure!(number(&keys, "tx-ring-errors")? >= 1, "{text}");
    ensure!(number(&keys, "tx-kicks")? > 0, "{text}");
    ensure!(
        number(&keys, "tx-polls")? > 0,
        "no window was opened: {text}"
    );
    let events = |event: &str| trace.events.get(event).copied().unwrap_or(0);
    ensure!((events("worker_create"), events("worker_exit")) == (1, 1));
    let sum = |field: &str| trace.sums.get(field).copied().unwrap_or(0);
    ensure!(sum("worker_create owner") == owner, "another owner");
    ensure!(sum("worker_exit worker") == worker, "another worker");
    Ok(())
}

/// Whether trace and counters of one vring are the same.
fn agree(trace: &Trace, keys: &BTreeMap<String, String>, vring: &str) -> Result<()> {
    let count = |event: &str| -> u64 {
        let name = format!("{event} {vring}");
        let same = |key: &str| key == name || key.starts_with(&format!("{name} "));
        let hits = trace.events.iter().filter(|(key, _)| same(key));
        hits.map(|(_, count)| count).sum()
    };
    let sum = |event: &str, field: &str| -> u64 {
        let begins = format!("{event} {vring} ");
        let ends = format!(" {field}");
        let hits = trace
            .sums
            .iter()
            .filter(|(key, _)| key.starts_with(&begins) && key.ends_with(&ends));
        hits.map(|(_, sum)| sum).sum()
    };
    let of = |key: &str| number(keys, &format!("{vring}-{key}"));
    for (what, found, key) in [
        ("kick", count("kick"), "kicks"),
        ("run_begin", count("run_begin"), "runs"),
        ("run_end", count("run_end"), "runs"),
        ("run_end packets", sum("run_end", "packets"), "packets"),
        ("run_end bytes", sum("run_end", "bytes"), "bytes"),
        ("poll_begin", count("poll_begin"), "polls"),
        ("poll_end", count("poll_end"), "polls"),
        ("call_made", count("call_made"), "calls"),
        (
            "call_suppressed",
            count("call_suppressed"),
            "calls-suppressed",
        ),
    ] {
        let wanted = of(key)?;
        ensure!(
            found == wanted,
            "{vring}: {what}: traced {found}, counted {wanted}"
        );
    }
    let polled = of("poll-ns-won")? + of("poll-ns-lost")?;
    ensure!(sum("poll_end", "ns") == polled, "{vring}: other times");
    reasons_agree(trace, keys, vring)
}

/// Each reason is the key that counts it, and each such key is traced.
fn reasons_agree(trace: &Trace, keys: &BTreeMap<String, String>, vring: &str) -> Result<()> {
    let of = |key: &str| number(keys, &format!("{vring}-{key}"));
    let short = |key: &String| key.strip_prefix(&format!("{vring}-")).map(str::to_owned);
    for key in keys.keys().filter_map(short) {
        let event = match &*key {
            key if key.starts_with("left-") => "run_end",
            key if key.starts_with("poll-end-") => "poll_end",
            key if key.starts_with("drop-") => "drop",
            "ring-errors" | "iotlb-misses" | "log-errors" => "error",
            _ => continue,
        };
        let name = format!("{event} {vring} {key}");
        let found = match event {
            "drop" | "error" => trace.sums.get(&format!("{name} count")),
            _ => trace.events.get(&name),
        };
        let (found, wanted) = (found.copied().unwrap_or(0), of(&key)?);
        ensure!(found == wanted, "{name}: traced {found}, counted {wanted}");
    }
    Ok(())
}

/// Windows to open, one of which is to last. A task that wants the CPU, the reader for one, ends a window.
const WINDOWS: usize = 10;

/// A reader waits for no window, and sees what was done before it.
fn seen_in_window(node: &Path) -> Result<()> {
    for _ in 0..WINDOWS {
        if shows_before_window(node)? {
            return Ok(());
        }
    }
    bail!("all of {WINDOWS} windows were over when they were read of")
}

/// Whether the window was open while it was read of; if it was, all shows that was done before.
fn shows_before_window(node: &Path) -> Result<bool> {
    let rig = open(node, LONG)?;
    // A worker that was slow to start had a window while it was set up, which a call ended.
    rig.flush()?;
    let before = keys(&fs::read_to_string(fdinfo(&rig))?);
    rig.good(TX, 0, 0);
    rig.ring(TX).publish(1);
    rig.kick(TX)?;
    rig.expect_frame(0)?;
    rig.expect_used(TX, 1)?;
    crate::patience::wait_for(|| {
        let text = fs::read_to_string(fdinfo(&rig)).unwrap_or_default();
        let keys = keys(&text);
        let of = |key: &str| number(&keys, key).ok();
        of("tx-packets") == Some(1) && of("tx-avail") == Some(1) && of("tx-used") == Some(1)
    })
    .context("the packet that was sent before the window does not show")?;
    let keys = keys(&fs::read_to_string(fdinfo(&rig))?);
    let since = |key: &str| -> Result<u64> { Ok(number(&keys, key)? - number(&before, key)?) };
    let over = since("tx-left-empty")?;
    ensure!(over <= since("tx-poll-end-resched")?, "the window is over");
    ensure!(number(&keys, "tx-size")? == 128);
    ensure!(number(&keys, "tx-window-ns")? == u64::from(LONG) * 1024);
    let backend = rig.session.device.backend.name();
    let shown = keys.get("tx-backend").map(String::as_str);
    ensure!(shown == Some(backend), "{shown:?} is not {backend}");
    let features = format!("{:#x}", 1_u64 << features::VERSION_1);
    ensure!(keys.get("features") == Some(&features), "other features");
    Ok(over == 0)
}
