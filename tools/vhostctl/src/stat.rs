// SPDX-License-Identifier: GPL-2.0

//! `vhostctl stat`.

use serde_json::Value;
use std::io::Write;
use std::time::Duration;

use crate::app::App;
use crate::args::StatOptions;
use crate::device::{Device, Snapshot};
use crate::failure::Result;
use crate::list::driver;
use crate::rates;
use crate::table::{layout, name, or_dash, Align};

/// Runs the command, and returns what it saw last.
///
/// # Errors
///
/// If a device is named that is not there, or the output fails.
pub fn run(app: &App, options: &StatOptions, out: &mut dyn Write) -> Result<Snapshot> {
    let targets = &options.selection.targets;
    let mut old = app.selected(targets)?;
    let Some(seconds) = options.interval else {
        print(out, &old.devices, app.json)?;
        return Ok(old);
    };
    let mut left = options.count;
    while left != Some(0) && app.signals.wait(Duration::from_secs(seconds))? {
        let new = app.still(targets);
        print_changes(out, &old, &new, app.json)?;
        old = new;
        left = left.map(|left| left - 1);
    }
    Ok(old)
}

fn print(out: &mut dyn Write, devices: &[Device], json: bool) -> Result {
    if json {
        writeln!(
            out,
            "{}",
            serde_json::to_string(devices).unwrap_or_default()
        )?;
    } else {
        for device in devices {
            write!(out, "{}", text(device))?;
        }
    }
    out.flush()?;
    Ok(())
}

fn print_changes(out: &mut dyn Write, old: &Snapshot, new: &Snapshot, json: bool) -> Result {
    let devices: Vec<Device> = new
        .devices
        .iter()
        .map(|device| changed(old, device))
        .collect();
    let millis = rates::millis(old, new);
    if json {
        let value = serde_json::json!({ "elapsed_ms": millis, "devices": devices });
        writeln!(out, "{value}")?;
        out.flush()?;
        return Ok(());
    }
    writeln!(out, "--- changes in {millis} ms")?;
    print(out, &devices, false)
}

/// The device with the changes of its counters in place of them.
fn changed(old: &Snapshot, device: &Device) -> Device {
    let before = rates::earlier(old, device);
    let mut device = device.clone();
    for (index, vring) in device.vrings.iter_mut().enumerate() {
        let keys = before
            .and_then(|before| before.vrings.get(index))
            .map(|vring| &vring.keys);
        vring.keys = rates::changes(keys, &vring.keys);
    }
    for worker in &mut device.workers {
        let mut workers = before.iter().flat_map(|before| &before.workers);
        let earlier = workers.find(|earlier| earlier.tid == worker.tid);
        let earlier = earlier.and_then(|earlier| earlier.cpu_ns).unwrap_or(0);
        worker.cpu_ns = worker.cpu_ns.map(|now| rates::change(earlier, now));
    }
    device
}

/// A heading, what is known of the device, and a table of the vrings' keys.
fn text(device: &Device) -> String {
    let interfaces = name(&device.interfaces.join(","));
    let mut text = format!(
        "{}  {}  driver {}  owner {}  interface {interfaces}\n",
        device.id,
        name(&device.vm),
        driver(device),
        or_dash(device.owner),
    );
    for worker in &device.workers {
        let cpu = or_dash(worker.cpu_ns);
        text.push_str(&format!("  worker {}: cpu-ns {cpu}\n", worker.tid));
    }
    for (key, value) in &device.keys {
        text.push_str(&format!("  {key}: {}\n", cell(Some(value))));
    }
    text.push_str(&vrings(device));
    text
}

fn vrings(device: &Device) -> String {
    let [rx, tx] = device.vrings.as_slice() else {
        return "  C's module does not say more\n".into();
    };
    let mut keys: Vec<&String> = rx.keys.keys().collect();
    keys.extend(tx.keys.keys().filter(|key| !rx.keys.contains_key(*key)));
    let row = |key: &&String| {
        let cells = [rx, tx].map(|vring| cell(vring.keys.get(*key)));
        let [rx, tx] = cells;
        vec![format!("  {key}"), rx, tx]
    };
    let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
    let columns = [
        ("  KEY", Align::Left),
        ("RX", Align::Right),
        ("TX", Align::Right),
    ];
    layout(&columns, &rows)
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None => "-".into(),
        Some(Value::String(text)) => name(text),
        Some(other) => other.to_string(),
    }
}
