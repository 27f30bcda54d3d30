// SPDX-License-Identifier: GPL-2.0

//! `vhostctl tune`: windows by the load of the host, through the ioctls that all may use who have the right.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::time::Duration;

use crate::app::App;
use crate::args::TuneOptions;
use crate::control::Duplicate;
use crate::device::{Device, Driver, Snapshot, Vring};
use crate::failure::{Failure, Result};
use crate::fdinfo::{number, VRINGS};
use crate::governor::{Activity, Governor};
use crate::host::Host;
use crate::rates::{change, earlier, idle_permille};

/// A device from its owner to the end of it: id, owner, worker.
type Key = (String, Option<u32>, Option<u32>);

/// A window in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    /// What it was before we came.
    found: u32,
    /// What we set last.
    set: u32,
}

/// Runs the command until a signal comes or the count is over, and gives back what it found.
///
/// # Errors
///
/// If the devices that are there cannot be set, or a window cannot be given back.
pub fn run(app: &App, options: &TuneOptions, out: &mut dyn Write) -> Result<Snapshot> {
    let seen = app.selected(&options.selection.targets)?;
    let mut tuner = Tuner {
        app,
        governor: Governor {
            idle_min: u64::from(options.idle_min) * 10,
            window_max: options.window_max,
        },
        windows: BTreeMap::new(),
        ignored: BTreeSet::new(),
    };
    for device in &seen.devices {
        if device.driver == Driver::Rust && device.owner.is_some() {
            tuner.adopt(device)?;
        }
    }
    let tuned = tuner.go_on(options, seen, out);
    let restored = tuner.restore(&app.still(&[]), out);
    let seen = tuned?;
    restored?;
    Ok(seen)
}

struct Tuner<'a> {
    app: &'a App,
    governor: Governor,
    windows: BTreeMap<Key, [Window; 2]>,
    /// Devices that cannot be set, as was said.
    ignored: BTreeSet<Key>,
}

fn key(device: &Device) -> Key {
    let worker = device.workers.first().map(|worker| worker.tid);
    (device.id.clone(), device.owner, worker)
}

impl Tuner<'_> {
    /// Notes what windows a device has.
    fn adopt(&mut self, device: &Device) -> Result {
        let duplicate = Duplicate::take(&self.app.host, device)?;
        let window = |index| {
            duplicate.get(index).map(|(window, _)| Window {
                found: window,
                set: window,
            })
        };
        self.windows.insert(key(device), [window(0)?, window(1)?]);
        Ok(())
    }

    fn go_on(
        &mut self,
        options: &TuneOptions,
        mut old: Snapshot,
        out: &mut dyn Write,
    ) -> Result<Snapshot> {
        let mut left = options.count;
        while left != Some(0)
            && self
                .app
                .signals
                .wait(Duration::from_secs(options.interval))?
        {
            let new = self.app.still(&options.selection.targets);
            if let Some(idle) = idle_permille(&old, &new) {
                self.step(idle, &old, &new, out)?;
            }
            let keys: BTreeSet<Key> = new.devices.iter().map(key).collect();
            self.windows.retain(|key, _| keys.contains(key));
            self.ignored.retain(|key| keys.contains(key));
            old = new;
            left = left.map(|left| left - 1);
        }
        Ok(old)
    }

    fn step(&mut self, idle: u64, old: &Snapshot, new: &Snapshot, out: &mut dyn Write) -> Result {
        for device in &new.devices {
            let key = key(device);
            if device.driver == Driver::C || device.owner.is_none() || self.ignored.contains(&key) {
                continue;
            }
            let before = earlier(old, device);
            if let Err(failure) = self.tune(idle, before, device, out) {
                if matches!(failure, Failure::Closed) {
                    return Err(failure);
                }
                // One that has gone meanwhile is no fault, and is not there at the next look.
                if !matches!(failure, Failure::NoDevice(_)) {
                    eprintln!("vhostctl: {failure}");
                    self.ignored.insert(key);
                }
            }
        }
        Ok(())
    }

    fn tune(
        &mut self,
        idle: u64,
        before: Option<&Device>,
        device: &Device,
        out: &mut dyn Write,
    ) -> Result {
        let key = key(device);
        let Some(mut windows) = self.windows.remove(&key) else {
            return self.adopt(device);
        };
        let mut vrings = device.vrings.iter().enumerate().zip(&mut windows);
        let done = vrings.try_for_each(|((index, vring), window)| {
            let before = before.and_then(|before| before.vrings.get(index));
            let activity = activity(before, vring);
            let wanted = self
                .governor
                .window(idle, window.set, window.found, activity);
            if wanted == window.set {
                return Ok(());
            }
            match replace(&self.app.host, device, vring, *window, wanted)? {
                Ok(()) => {}
                // Somebody else has set it: that is what is to be given back.
                Err(other) => {
                    *window = Window {
                        found: other,
                        set: other,
                    };
                    return Ok(());
                }
            }
            let from = std::mem::replace(&mut window.set, wanted);
            let change = Change {
                device: &device.id,
                vring: vring.name,
                from_us: from,
                to_us: wanted,
                idle_permille: Some(idle),
            };
            self.say(out, &change)
        });
        self.windows.insert(key, windows);
        done
    }

    /// Gives back what was found, where it is still as we set it.
    fn restore(&self, seen: &Snapshot, out: &mut dyn Write) -> Result {
        let mut first = Ok(());
        for device in &seen.devices {
            let windows = self.windows.get(&key(device));
            for (window, vring) in windows.into_iter().flatten().zip(&device.vrings) {
                if window.set == window.found {
                    continue;
                }
                let said = match replace(&self.app.host, device, vring, *window, window.found) {
                    Ok(Ok(())) => {
                        let change = Change {
                            device: &device.id,
                            vring: vring.name,
                            from_us: window.set,
                            to_us: window.found,
                            idle_permille: None,
                        };
                        self.say(out, &change)
                    }
                    Ok(Err(_)) => Ok(()),
                    Err(failure) => Err(failure),
                };
                match said {
                    // Nothing is left to be given back to one that has gone, and nobody reads an output that is closed.
                    Ok(()) | Err(Failure::NoDevice(_) | Failure::Closed) => {}
                    Err(failure) => first = first.and(Err(failure)),
                }
            }
        }
        first
    }

    fn say(&self, out: &mut dyn Write, change: &Change<'_>) -> Result {
        if self.app.json {
            let text = serde_json::to_string(change).unwrap_or_default();
            writeln!(out, "{text}")?;
        } else {
            writeln!(out, "{change}")?;
        }
        out.flush()?;
        Ok(())
    }
}

/// What was set, and why.
#[derive(Debug, Serialize)]
struct Change<'a> {
    device: &'a str,
    vring: &'a str,
    from_us: u32,
    to_us: u32,
    /// The host's idle share; nothing at the end.
    idle_permille: Option<u64>,
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            vring,
            from_us,
            to_us,
            ..
        } = self;
        write!(f, "{device} {vring}: window {from_us} -> {to_us} us ")?;
        match self.idle_permille {
            Some(idle) => write!(f, "(host {}.{}% idle)", idle / 10, idle % 10),
            None => f.write_str("(given back)"),
        }
    }
}

/// Sets a window, if it still is what we set; else returns what it is.
fn replace(
    host: &Host,
    device: &Device,
    vring: &Vring,
    window: Window,
    wanted: u32,
) -> Result<std::result::Result<(), u32>> {
    let index = VRINGS
        .into_iter()
        .zip(0..)
        .find(|(name, _)| *name == vring.name);
    let index = index.map_or(0, |(_, index)| index);
    let duplicate = Duplicate::take(host, device)?;
    let (now, _) = duplicate.get(index)?;
    if now != window.set {
        return Ok(Err(now));
    }
    duplicate.set_window(index, wanted).map(Ok)
}

fn activity(before: Option<&Vring>, now: &Vring) -> Activity {
    let grown = |key| {
        let then = before.and_then(|before| number(&before.keys, key));
        let now = number(&now.keys, key).unwrap_or(0);
        change(then.unwrap_or(now), now)
    };
    Activity {
        events: grown("kicks").saturating_add(grown("packets")),
        polls: grown("polls"),
        won: grown("poll-won"),
    }
}
