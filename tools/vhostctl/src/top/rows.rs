// SPDX-License-Identifier: GPL-2.0

//! The lines of `vhostctl top`: one a vring.

use serde::Serialize;
use serde_json::Value;

use crate::args::Column;
use crate::device::{Device, Driver, Snapshot, Vring};
use crate::fdinfo::{number, sum, Keys};
use crate::list;
use crate::rates::{change, earlier, millis, per_second};
use crate::table::{name, or_dash, Align};

/// One vring, or a device of which no vring is known. Rates are a second's; nothing where the driver does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// `PID:FD`.
    pub device: String,
    /// Virtual machine.
    pub vm: String,
    /// Who serves it.
    pub driver: Driver,
    /// `rx` or `tx`.
    pub vring: Option<&'static str>,
    /// Interfaces.
    pub interface: String,
    /// Packets.
    pub packets: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
    /// Kicks.
    pub kicks: Option<u64>,
    /// Calls.
    pub calls: Option<u64>,
    /// Busy-poll windows.
    pub polls: Option<u64>,
    /// Windows after which there was something to do, in percent.
    pub won: Option<u64>,
    /// Packets dropped, for any reason.
    pub drops: Option<u64>,
    /// Errors of any kind.
    pub errors: Option<u64>,
    /// The current window in the kernel's microseconds, of 1,024 ns.
    pub window_us: Option<u64>,
    /// The polling policy.
    pub policy: Option<String>,
    /// Buffers with the device, of descriptors.
    pub fill: Option<String>,
    /// CPU of the worker, which serves all vrings of the device: tenths of a percent of a CPU, or milliseconds in totals.
    pub cpu: Option<u64>,
    #[serde(skip)]
    descriptor: (u32, i32),
}

/// The headings, in the order of [`Row::cells`].
pub const COLUMNS: [(&str, Align); 16] = [
    ("PID:FD", Align::Right),
    ("VM", Align::Left),
    ("Q", Align::Left),
    ("IF", Align::Left),
    ("PKT", Align::Right),
    ("BYTES", Align::Right),
    ("KICK", Align::Right),
    ("CALL", Align::Right),
    ("POLL", Align::Right),
    ("WON%", Align::Right),
    ("DROP", Align::Right),
    ("ERR", Align::Right),
    ("WIN", Align::Right),
    ("POLICY", Align::Left),
    ("FILL", Align::Right),
    ("CPU", Align::Right),
];

impl Row {
    /// The cells, numbers in full or short.
    pub fn cells(&self, totals: bool, short: bool) -> Vec<String> {
        let show = |value: Option<u64>| match value {
            Some(value) if short => shorten(value),
            other => or_dash(other),
        };
        let cpu = self.cpu.map(|cpu| match totals {
            true => format!("{}.{:03}s", cpu / 1000, cpu % 1000),
            false => format!("{}.{}%", cpu / 10, cpu % 10),
        });
        vec![
            self.device.clone(),
            name(&self.vm),
            self.vring.unwrap_or("-").into(),
            name(&self.interface),
            show(self.packets),
            show(self.bytes),
            show(self.kicks),
            show(self.calls),
            show(self.polls),
            or_dash(self.won),
            show(self.drops),
            show(self.errors),
            or_dash(self.window_us),
            or_dash(self.policy.clone()),
            or_dash(self.fill.clone()),
            or_dash(cpu),
        ]
    }

    fn key(&self, column: Column) -> Option<u64> {
        match column {
            Column::Cpu => self.cpu,
            Column::Packets => self.packets,
            Column::Bytes => self.bytes,
            Column::Kicks => self.kicks,
            Column::Calls => self.calls,
            Column::Polls => self.polls,
            Column::Won => self.won,
            Column::Drops => self.drops,
            Column::Errors => self.errors,
            Column::Pid | Column::Vm => None,
        }
    }
}

/// At most five characters: `99999`, `100k`, `12.3M` is `12M`.
pub fn shorten(value: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut rest = value;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while rest > 99_999 {
        rest /= 1000;
        unit = units.next();
    }
    format!("{rest}{}", unit.unwrap_or(&""))
}

/// The lines of a snapshot: rates since an earlier one, or totals without one.
pub fn rows(old: Option<&Snapshot>, new: &Snapshot) -> Vec<Row> {
    let lines = new.devices.iter().flat_map(|device| {
        let before = old.map(|old| (millis(old, new), earlier(old, device)));
        device_rows(before, device)
    });
    lines.collect()
}

fn device_rows(before: Option<(u64, Option<&Device>)>, device: &Device) -> Vec<Row> {
    let cpu = device.cpu_ns().map(|now| match before {
        None => now / 1_000_000,
        Some((millis, before)) => {
            let then = before.and_then(Device::cpu_ns).unwrap_or(now);
            // Nanoseconds a millisecond are millionths: a thousand of them are a thousandth.
            change(then, now) / (millis * 1000)
        }
    });
    let blank = Row {
        device: device.id.clone(),
        vm: device.vm.clone(),
        driver: device.driver,
        vring: None,
        interface: device.interfaces.join(","),
        packets: None,
        bytes: None,
        kicks: None,
        calls: None,
        polls: None,
        won: None,
        drops: None,
        errors: None,
        window_us: None,
        policy: None,
        fill: None,
        cpu,
        descriptor: device.descriptor(),
    };
    if device.vrings.is_empty() {
        return vec![blank];
    }
    let vrings = device.vrings.iter().enumerate().map(|(index, vring)| {
        let before = before.map(|(millis, before)| {
            let keys = before.and_then(|before| before.vrings.get(index));
            (millis, keys.map(|vring| &vring.keys))
        });
        vring_row(blank.clone(), before, vring)
    });
    vrings.collect()
}

fn vring_row(blank: Row, before: Option<(u64, Option<&Keys>)>, vring: &Vring) -> Row {
    let read = |reader: &dyn Fn(&Keys) -> Option<u64>| {
        let now = reader(&vring.keys)?;
        let Some((millis, keys)) = before else {
            return Some(now);
        };
        // A device that was not there before has no rate yet.
        Some(per_second(
            keys.and_then(reader).unwrap_or(now),
            now,
            millis,
        ))
    };
    let rate = |key: &str| read(&|keys| number(keys, key));
    let polls = rate("polls");
    let won = rate("poll-won");
    let backend = vring.keys.get("backend").and_then(Value::as_str);
    let policy = vring.keys.get("policy").and_then(Value::as_str);
    let chosen = number(&vring.keys, "adaptive-ns").filter(|_| policy == Some("adaptive"));
    let window = chosen.or_else(|| number(&vring.keys, "window-ns"));
    Row {
        vring: Some(vring.name),
        interface: backend.map_or_else(|| blank.interface.clone(), str::to_owned),
        packets: rate("packets"),
        bytes: rate("bytes"),
        kicks: rate("kicks"),
        calls: rate("calls"),
        polls,
        won: polls
            .filter(|polls| *polls > 0)
            .zip(won)
            .map(|(polls, won)| percent(won, polls)),
        drops: read(&|keys| sum(keys, |key| key.starts_with("drop-"))),
        errors: read(&|keys| sum(keys, |key| key.ends_with("-errors"))),
        // In the unit that it was set in.
        window_us: window.map(|ns| ns / 1024),
        policy: policy.map(str::to_owned),
        fill: list::fill(vring),
        ..blank
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(100).min(100)
}

/// Sorts the lines: the largest first, or by name.
pub fn sort(rows: &mut [Row], column: Column, reverse: bool) {
    rows.sort_by(|a, b| {
        let order = match column {
            Column::Pid => a.descriptor.cmp(&b.descriptor),
            Column::Vm => a.vm.cmp(&b.vm),
            _ => b.key(column).cmp(&a.key(column)),
        };
        if reverse {
            order.reverse()
        } else {
            order
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_have_five_characters_at_most() {
        assert_eq!(shorten(0), "0");
        assert_eq!(shorten(99_999), "99999");
        assert_eq!(shorten(100_000), "100k");
        assert_eq!(shorten(99_999_999), "99999k");
        assert_eq!(shorten(123_456_789), "123M");
        assert_eq!(shorten(u64::MAX), "18446P");
    }
}
