// SPDX-License-Identifier: GPL-2.0

//! What `/proc/PID/fdinfo/FD` of a vhost-net device says.

use serde::Serialize;
use serde_json::Map;

/// Keys and values, in the kernel's order. A number is one, anything else text.
pub type Keys = Map<String, serde_json::Value>;

/// The two vrings' names, in the order of their index.
pub const VRINGS: [&str; 2] = ["rx", "tx"];

/// The lines of one device, sorted by whom they are about.
///
/// Keys that this program does not know are kept, and shown by those commands that show all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FdInfo {
    /// Of the device.
    pub device: Keys,
    /// Of its vrings, in the order of [`VRINGS`].
    pub vrings: [Keys; 2],
}

impl FdInfo {
    /// Sorts the lines; nothing if there is none of ours, as the C module has none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut info = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.strip_prefix("vhost-").and_then(|l| l.split_once(':'))
            else {
                continue;
            };
            let value = value.trim();
            let value = value
                .parse::<u64>()
                .map_or_else(|_| value.into(), Into::into);
            let (keys, key) = match key.split_once('-') {
                Some(("rx", key)) => (&mut info.vrings[0], key),
                Some(("tx", key)) => (&mut info.vrings[1], key),
                _ => (&mut info.device, key),
            };
            keys.insert(key.to_owned(), value);
        }
        (!info.device.is_empty()).then_some(info)
    }
}

/// A number among the keys.
pub fn number(keys: &Keys, name: &str) -> Option<u64> {
    keys.get(name)?.as_u64()
}

/// The sum of the numbers whose keys satisfy a condition; nothing if there are none.
pub fn sum(keys: &Keys, wanted: impl Fn(&str) -> bool) -> Option<u64> {
    let matching = keys.iter().filter(|(key, _)| wanted(key));
    let values = matching.filter_map(|(_, value)| value.as_u64());
    values.reduce(u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t83\n\
        vhost-owner:\t812\nvhost-worker:\t815\n\
        vhost-rx-kicks:\t3\nvhost-rx-packets:\t18446744073709551615\n\
        vhost-tx-backend:\tpacket:eth0\nvhost-tx-a-key-of-later:\t7\n";

    #[test]
    fn lines_are_sorted_by_whom_they_are_about() {
        let info = FdInfo::parse(TEXT).unwrap();
        assert_eq!(number(&info.device, "owner"), Some(812));
        assert_eq!(number(&info.vrings[0], "packets"), Some(u64::MAX));
        assert_eq!(info.vrings[1]["backend"], "packet:eth0");
        assert_eq!(number(&info.vrings[1], "backend"), None);
        assert_eq!(info.device.get("pos"), None);
    }

    #[test]
    fn unknown_keys_are_kept() {
        let info = FdInfo::parse(TEXT).unwrap();
        assert_eq!(number(&info.vrings[1], "a-key-of-later"), Some(7));
    }

    #[test]
    fn device_of_the_c_module_has_no_lines() {
        assert_eq!(FdInfo::parse("pos:\t0\nflags:\t02100002\n"), None);
    }

    #[test]
    fn sums_are_nothing_without_a_key() {
        let info =
            FdInfo::parse("vhost-owner:\t0\nvhost-tx-drop-length:\t2\nvhost-tx-drop-memory:\t3\n");
        let info = info.unwrap();
        assert_eq!(
            sum(&info.vrings[1], |key| key.starts_with("drop-")),
            Some(5)
        );
        assert_eq!(sum(&info.vrings[0], |key| key.starts_with("drop-")), None);
    }
}
