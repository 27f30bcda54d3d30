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
/// `VIRTIO_NET_F_GUEST_UDP_TUNNEL_GSO`.
pub const GUEST_UDP_TUNNEL_GSO: u32 = 65;
/// `VIRTIO_NET_F_HOST_UDP_TUNNEL_GSO`.
pub const HOST_UDP_TUNNEL_GSO: u32 = 67;

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
    ("guest_udp_tunnel_gso", GUEST_UDP_TUNNEL_GSO),
    ("host_udp_tunnel_gso", HOST_UDP_TUNNEL_GSO),
];

/// Whether `bit` is set in the features.
pub fn has(features: u128, bit: u32) -> bool {
    features & 1u128.checked_shl(bit).unwrap_or(0) != 0
}

/// The words of a feature array, the low one first.
pub fn words(features: u128) -> [u64; 2] {
    // CAST: The lower half, and what is above it.
    [features as u64, (features >> 64) as u64]
}

/// The features of an array of two words.
pub fn from_words([low, high]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Names of the bits set in `features`, separated by commas; a bit without a name as its number.
pub fn describe(features: u128) -> String {
    let name = |bit: u32| match NAMES.iter().find(|(_, number)| *number == bit) {
        Some((name, _)) => (*name).to_owned(),
        None => bit.to_string(),
    };
    let set: Vec<String> = (0..u128::BITS)
        .filter(|bit| has(features, *bit))
        .map(name)
        .collect();
    set.join(",")
}

/// Bytes of the virtio-net header at the front of each packet under `features` (virtio 1.3, section 5.1.6).
pub fn net_header_size(features: u128) -> u32 {
    if has(features, GUEST_UDP_TUNNEL_GSO) || has(features, HOST_UDP_TUNNEL_GSO) {
        24
    } else if has(features, MRG_RXBUF) || has(features, VERSION_1) {
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
    fn bits_above_63_are_in_the_second_word() {
        let features = 1 << EVENT_IDX | 1 << GUEST_UDP_TUNNEL_GSO;
        assert_eq!(words(features), [1 << 29, 2]);
        assert_eq!(from_words([1 << 29, 2]), features);
    }

    #[test]
    fn header_grows_with_num_buffers_and_tunnels() {
        assert_eq!(net_header_size(1 << EVENT_IDX), 10);
        assert_eq!(net_header_size(1 << MRG_RXBUF), 12);
        assert_eq!(net_header_size(1 << VERSION_1), 12);
        assert_eq!(net_header_size(1 << HOST_UDP_TUNNEL_GSO), 24);
    }
}
