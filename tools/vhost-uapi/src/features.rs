// SPDX-License-Identifier: GPL-2.0

//! Feature bits that vhost-net may offer, by the names of the virtio specification in lower case.

/// `VIRTIO_NET_F_MRG_RXBUF`.
pub const MRG_RXBUF: u32 = 15;
/// `VIRTIO_F_NOTIFY_ON_EMPTY`.
pub const NOTIFY_ON_EMPTY: u32 = 24;
/// `VHOST_F_LOG_ALL`.
pub const LOG_ALL: u32 = 26;
/// `VIRTIO_F_ANY_LAYOUT`. To vhost the same bit is `VHOST_NET_F_VIRTIO_NET_HDR`: it makes and strips the header itself.
pub const ANY_LAYOUT: u32 = 27;
/// `VIRTIO_F_INDIRECT_DESC`.
pub const INDIRECT: u32 = 28;
/// `VIRTIO_F_EVENT_IDX`.
pub const EVENT_IDX: u32 = 29;
/// `VIRTIO_F_VERSION_1`.
pub const VERSION_1: u32 = 32;
/// `VIRTIO_F_ACCESS_PLATFORM`.
pub const ACCESS_PLATFORM: u32 = 33;
/// `VIRTIO_F_IN_ORDER`.
pub const IN_ORDER: u32 = 35;
/// `VIRTIO_F_RING_RESET`.
pub const RING_RESET: u32 = 40;

/// Name and bit of each feature above.
pub const NAMES: &[(&str, u32)] = &[
    ("mrg_rxbuf", MRG_RXBUF),
    ("notify_on_empty", NOTIFY_ON_EMPTY),
    ("log_all", LOG_ALL),
    ("any_layout", ANY_LAYOUT),
    ("indirect", INDIRECT),
    ("event_idx", EVENT_IDX),
    ("version_1", VERSION_1),
    ("access_platform", ACCESS_PLATFORM),
    ("in_order", IN_ORDER),
    ("ring_reset", RING_RESET),
];

/// Whether `bit` is set in the feature word.
pub fn has(features: u64, bit: u32) -> bool {
    features & 1u64.checked_shl(bit).unwrap_or(0) != 0
}

/// Names of the bits set in `features`, separated by commas; a bit without a name as its number.
pub fn describe(features: u64) -> String {
    let name = |bit: u32| match NAMES.iter().find(|(_, number)| *number == bit) {
        Some((name, _)) => (*name).to_owned(),
        None => bit.to_string(),
    };
    let set: Vec<String> = (0..u64::BITS)
        .filter(|bit| has(features, *bit))
        .map(name)
        .collect();
    set.join(",")
}

/// Bytes of the virtio-net header at the front of each packet under `features` (virtio 1.3, section 5.1.6).
pub fn net_header_size(features: u64) -> u32 {
    if has(features, MRG_RXBUF) || has(features, VERSION_1) {
        12
    } else {
        10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_names_known_bits_and_numbers_the_others() {
        assert_eq!(
            describe(1 << 29 | 1 << 32 | 1 << 3),
            "3,event_idx,version_1"
        );
    }

    #[test]
    fn header_grows_with_num_buffers() {
        assert_eq!(net_header_size(1 << EVENT_IDX), 10);
        assert_eq!(net_header_size(1 << MRG_RXBUF), 12);
        assert_eq!(net_header_size(1 << VERSION_1), 12);
    }
}
