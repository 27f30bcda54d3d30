// SPDX-License-Identifier: GPL-2.0

//! `vhostctl trace`: the module's tracepoints, for chosen devices, in a trace buffer of its own.

mod line;
mod tracefs;

use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use crate::app::App;
use crate::args::TraceOptions;
use crate::device::{Device, Snapshot};
use crate::failure::{Failure, Result};
use crate::fdinfo::number;
use crate::signals::Event;
use line::Line;
use tracefs::Instance;

/// Runs the command until a signal comes or so many events, and returns what it saw at the start.
///
/// # Errors
///
/// Without tracefs, without the right to it, or if the output fails.
pub fn run(app: &App, options: &TraceOptions, out: &mut dyn Write) -> Result<Snapshot> {
    let targets = &options.selection.targets;
    let seen = app.selected(targets)?;
    let instance = Instance::new(&app.host)?;
    let chosen = (!targets.is_empty()).then_some(seen.devices.as_slice());
    for event in instance.events(&options.event)? {
        instance.enable(&event, chosen.map(|devices| filter(&event.fields, devices)))?;
    }
    let path = instance.path("trace_pipe");
    let pipe = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(&path);
    let pipe = pipe.map_err(|err| Failure::file(&path, &err))?;
    follow(app, pipe, options.count, out)?;
    Ok(seen)
}

/// A condition for the kernel's filter that holds for events of these devices; nothing if the event does not name its device.
fn filter(fields: &[String], devices: &[Device]) -> Option<String> {
    let has = |name: &str| fields.iter().any(|field| field == name);
    let numbers: Vec<u64> = devices
        .iter()
        .filter_map(|device| number(&device.keys, "device"))
        .collect();
    let ids: Vec<String> = if has("device") && numbers.len() == devices.len() {
        numbers
            .iter()
            .map(|number| format!("device == {number}"))
            .collect()
    } else if has("worker") {
        let tids = devices.iter().flat_map(|device| &device.workers);
        tids.map(|worker| format!("worker == {}", worker.tid))
            .collect()
    } else if has("owner") {
        let owners = devices.iter().filter_map(|device| device.owner);
        owners.map(|owner| format!("owner == {owner}")).collect()
    } else {
        return None;
    };
    // A device that has no owner has no events.
    let none = || "common_pid == -1".to_owned();
    Some(if ids.is_empty() {
        none()
    } else {
        ids.join(" || ")
    })
}

/// Prints lines as they come.
fn follow(app: &App, mut pipe: File, count: Option<u64>, out: &mut dyn Write) -> Result {
    let mut left = count;
    let mut pending = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match pipe.read(&mut buffer) {
            Ok(read) => pending.extend(buffer.iter().take(read)),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(Failure::Other(format!("trace_pipe: {err}"))),
        }
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let text: Vec<u8> = pending.drain(..=end).collect();
            print(out, String::from_utf8_lossy(&text).trim_end(), app.json)?;
            left = left.map(|left| left.saturating_sub(1));
            if left == Some(0) {
                return Ok(());
            }
        }
        out.flush()?;
        let second = Duration::from_secs(1);
        if app.signals.wait_for(second, Some(pipe.as_fd()))? == Event::End {
            return Ok(());
        }
    }
}

fn print(out: &mut dyn Write, text: &str, json: bool) -> Result {
    if !json {
        return Ok(writeln!(out, "{text}")?);
    }
    let value = match Line::parse(text) {
        Some(line) => serde_json::to_string(&line),
        None => serde_json::to_string(&serde_json::json!({ "text": text })),
    };
    Ok(writeln!(out, "{}", value.unwrap_or_default())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Driver, Worker};
    use crate::fdinfo::Keys;

    fn device(owner: Option<u32>, worker: Option<u32>) -> Device {
        Device {
            id: String::new(),
            node: String::new(),
            minor: 0,
            driver: Driver::Rust,
            vm: String::new(),
            owner,
            workers: worker
                .map(|tid| Worker { tid, cpu_ns: None })
                .into_iter()
                .collect(),
            interfaces: Vec::new(),
            holders: Vec::new(),
            keys: Keys::new(),
            vrings: Vec::new(),
        }
    }

    #[test]
    fn filter_names_the_devices_by_what_the_event_has() {
        let devices = [device(Some(1), Some(2)), device(Some(3), Some(4))];
        let fields = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let by = |names: &[&str]| filter(&fields(names), &devices);
        assert_eq!(
            by(&["worker", "owner"]).as_deref(),
            Some("worker == 2 || worker == 4")
        );
        assert_eq!(
            by(&["vring", "owner"]).as_deref(),
            Some("owner == 1 || owner == 3")
        );
        assert_eq!(by(&["vring"]), None);
        let mut known = [device(Some(1), Some(2))];
        known[0].keys.insert("device".into(), 7.into());
        let names = fields(&["device", "owner"]);
        assert_eq!(filter(&names, &known).as_deref(), Some("device == 7"));
        let idle = [device(None, None)];
        assert_eq!(
            filter(&fields(&["worker"]), &idle).as_deref(),
            Some("common_pid == -1")
        );
    }
}
