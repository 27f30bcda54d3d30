// SPDX-License-Identifier: GPL-2.0

//! The numbers of a snapshot by their Prometheus names.

use serde_json::Value;
use std::collections::BTreeMap;

use crate::device::{Device, Driver, Snapshot, Vring};
use crate::rates::is_counter;

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// 1: the labels are what matters.
    Info,
}

/// The numbers of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) kind: Kind,
    /// Whether they are times, in nanoseconds here.
    pub(super) seconds: bool,
    pub(super) help: String,
    /// Labels and value of each.
    pub(super) samples: Vec<(Vec<(&'static str, String)>, u64)>,
}

/// By name, without the ending that tells the kind.
pub(super) type Families = BTreeMap<String, Family>;

type Labels = Vec<(&'static str, String)>;

struct Collector(Families);

impl Collector {
    fn add(&mut self, name: &str, kind: Kind, help: &str, sample: (Labels, u64)) {
        let family = self.0.entry(name.to_owned()).or_insert_with(|| Family {
            kind,
            seconds: name.ends_with("_seconds"),
            help: help.to_owned(),
            samples: Vec::new(),
        });
        family.samples.push(sample);
    }
}

/// All numbers of a snapshot.
pub(super) fn families(seen: &Snapshot) -> Families {
    let mut all = Collector(Families::new());
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let sample = |value| (Labels::new(), value);
    all.add(
        "vhost_devices",
        Kind::Gauge,
        "Live vhost-net devices that are seen.",
        sample(count(seen.devices.len())),
    );
    all.add(
        "vhost_processes_unseen",
        Kind::Gauge,
        "Processes that may not be looked into.",
        sample(count(seen.unseen.len())),
    );
    for device in &seen.devices {
        add_device(&mut all, device);
        for vring in &device.vrings {
            add_vring(&mut all, device, vring);
        }
    }
    all.0
}

fn labels(device: &Device) -> Labels {
    vec![("device", device.id.clone()), ("vm", device.vm.clone())]
}

fn add_device(all: &mut Collector, device: &Device) {
    let driver = match device.driver {
        Driver::Rust => "vhost_net_rs",
        Driver::C => "vhost_net",
    };
    let mut about = labels(device);
    about.extend([
        ("driver", driver.to_owned()),
        (
            "owner",
            device.owner.map_or_else(String::new, |pid| pid.to_string()),
        ),
        ("interface", device.interfaces.join(",")),
    ]);
    all.add("vhost_device", Kind::Info, "A live device.", (about, 1));
    if let Some(ns) = device.cpu_ns() {
        let help = "CPU time of the device's worker.";
        all.add(
            "vhost_worker_cpu_seconds",
            Kind::Counter,
            help,
            (labels(device), ns),
        );
    }
}

fn add_vring(all: &mut Collector, device: &Device, vring: &Vring) {
    let mut labels = labels(device);
    labels.push(("vring", vring.name.to_owned()));
    let text = |key| {
        vring
            .keys
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut about = labels.clone();
    about.extend([("backend", text("backend")), ("policy", text("policy"))]);
    for (key, value) in &vring.keys {
        let Some(value) = value.as_u64() else {
            continue;
        };
        let kind = if is_counter(key) {
            Kind::Counter
        } else {
            Kind::Gauge
        };
        let help = format!("vhost-Q-{key} of /proc/PID/fdinfo/FD.");
        all.add(&name(key), kind, &help, (labels.clone(), value));
    }
    all.add(
        "vhost_vring",
        Kind::Info,
        "A vring, and what of it is text.",
        (about, 1),
    );
}

/// `poll-won` is `vhost_vring_poll_won`, `poll-ns-won` is `vhost_vring_poll_won_seconds`.
fn name(key: &str) -> String {
    let mut name = String::from("vhost_vring");
    let mut seconds = false;
    for word in key.split('-') {
        if word == "ns" {
            seconds = true;
            continue;
        }
        name.push('_');
        name.extend(
            word.chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }),
        );
    }
    if seconds {
        name.push_str("_seconds");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_with_their_unit_at_the_end() {
        assert_eq!(name("poll-won"), "vhost_vring_poll_won");
        assert_eq!(name("poll-ns-won"), "vhost_vring_poll_won_seconds");
        assert_eq!(name("window-ns"), "vhost_vring_window_seconds");
        assert_eq!(name("odd.key"), "vhost_vring_odd_key");
    }
}
