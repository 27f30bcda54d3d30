// SPDX-License-Identifier: GPL-2.0

//! `vhostctl list`.

use std::io::Write;

use crate::device::{Device, Driver, Vring};
use crate::failure::Result;
use crate::fdinfo::number;
use crate::table::{layout, name, or_dash, Align};

const COLUMNS: [(&str, Align); 9] = [
    ("DEVICE", Align::Left),
    ("VM", Align::Left),
    ("DRIVER", Align::Left),
    ("OWNER", Align::Right),
    ("WORKER", Align::Right),
    ("INTERFACE", Align::Left),
    ("RX", Align::Left),
    ("TX", Align::Left),
    ("FEATURES", Align::Left),
];

/// Prints a line a device, or all as JSON.
pub fn print(out: &mut dyn Write, devices: &[Device], json: bool) -> Result {
    if json {
        writeln!(
            out,
            "{}",
            serde_json::to_string(devices).unwrap_or_default()
        )?;
    } else {
        let rows: Vec<Vec<String>> = devices.iter().map(row).collect();
        write!(out, "{}", layout(&COLUMNS, &rows))?;
    }
    Ok(())
}

/// The name of a driver in tables.
pub fn driver(device: &Device) -> &'static str {
    match device.driver {
        Driver::Rust => "rust",
        Driver::C => "c",
    }
}

fn row(device: &Device) -> Vec<String> {
    let tids: Vec<String> = device
        .workers
        .iter()
        .map(|worker| worker.tid.to_string())
        .collect();
    let tids = (!tids.is_empty()).then(|| tids.join(","));
    let features = device.keys.get("features");
    let features = features.map(|bits| {
        bits.as_str()
            .map_or_else(|| bits.to_string(), str::to_owned)
    });
    let ring = |index| or_dash(device.vrings.get(index).and_then(fill));
    vec![
        device.id.clone(),
        name(&device.vm),
        driver(device).into(),
        or_dash(device.owner),
        or_dash(tids),
        name(&device.interfaces.join(",")),
        ring(0),
        ring(1),
        or_dash(features),
    ]
}

/// How many buffers are with the device, of how many descriptors: `12/256`.
pub fn fill(vring: &Vring) -> Option<String> {
    let with_device = with_device(vring)?;
    Some(format!("{with_device}/{}", number(&vring.keys, "size")?))
}

/// Buffers that the driver made available and the device has not used yet.
pub fn with_device(vring: &Vring) -> Option<u64> {
    let index = |key| number(&vring.keys, key);
    // Indices of 16 bits that wrap.
    Some(index("avail")?.wrapping_sub(index("used")?) & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdinfo::Keys;

    #[test]
    fn fill_knows_that_indices_wrap() {
        let keys: Keys = [("size", 256), ("avail", 3), ("used", 65530)]
            .map(|(key, value): (&str, u64)| (key.to_owned(), value.into()))
            .into_iter()
            .collect();
        let vring = Vring { name: "rx", keys };
        assert_eq!(fill(&vring).as_deref(), Some("9/256"));
    }
}
