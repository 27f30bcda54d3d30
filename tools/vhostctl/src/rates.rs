// SPDX-License-Identifier: GPL-2.0

//! What changed from one snapshot to the next.

use serde_json::Value;

use crate::device::{Device, Snapshot};
use crate::fdinfo::Keys;

/// Keys of a vring whose numbers go up and down, besides times (`window-ns`), which end in their unit.
const GAUGES: [&str; 4] = ["size", "avail", "used", "zerocopy-in-flight"];

/// Whether a number of a vring counts events, or sums times up (`poll-ns-won`).
pub fn is_counter(key: &str) -> bool {
    !key.ends_with("-ns") && !GAUGES.contains(&key)
}

/// How far a counter went. One that fell began again at VHOST_RESET_OWNER.
pub fn change(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

/// How far a counter went, a second.
pub fn per_second(old: u64, new: u64, millis: u64) -> u64 {
    let scaled = u128::from(change(old, new)) * 1000 / u128::from(millis.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Milliseconds between two snapshots, at least one.
pub fn millis(old: &Snapshot, new: &Snapshot) -> u64 {
    let elapsed = new.at.saturating_duration_since(old.at).as_millis();
    u64::try_from(elapsed).unwrap_or(u64::MAX).max(1)
}

/// The same device in an earlier snapshot.
pub fn earlier<'a>(old: &'a Snapshot, device: &Device) -> Option<&'a Device> {
    let tids = |device: &Device| -> Vec<u32> { device.workers.iter().map(|w| w.tid).collect() };
    old.devices.iter().find(|other| {
        other.id == device.id && other.owner == device.owner && tids(other) == tids(device)
    })
}

/// The keys, with the change of each counter in its place.
pub fn changes(old: Option<&Keys>, new: &Keys) -> Keys {
    let changed = new.iter().map(|(key, value)| {
        let before = old.and_then(|old| old.get(key)).and_then(Value::as_u64);
        let value = match value.as_u64() {
            Some(now) if is_counter(key) => change(before.unwrap_or(0), now).into(),
            _ => value.clone(),
        };
        (key.clone(), value)
    });
    changed.collect()
}

/// The host's idle share in thousandths.
pub fn idle_permille(old: &Snapshot, new: &Snapshot) -> Option<u64> {
    let ((all_before, idle_before), (all, idle)) = (old.ticks?, new.ticks?);
    let all = all.checked_sub(all_before).filter(|all| *all > 0)?;
    let idle = idle.saturating_sub(idle_before).min(all);
    idle.checked_mul(1000).map(|idle| idle / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_that_fell_began_again() {
        assert_eq!(change(100, 130), 30);
        assert_eq!(change(100, 7), 7);
        assert_eq!(per_second(0, 50, 500), 100);
        assert_eq!(per_second(0, u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn gauges_are_not_subtracted() {
        let keys = |packets: u64, window: u64| -> Keys {
            let all = [
                ("packets", packets.into()),
                ("window-ns", window.into()),
                ("policy", "fixed".into()),
            ];
            all.into_iter()
                .map(|(key, value): (_, Value)| (key.to_owned(), value))
                .collect()
        };
        assert_eq!(changes(Some(&keys(5, 9)), &keys(8, 4)), keys(3, 4));
        assert_eq!(changes(None, &keys(8, 4)), keys(8, 4));
    }
}
