// SPDX-License-Identifier: GPL-2.0

//! Feature bits, by number, and the header lengths they imply.
//!
//! Bits 0 to 63 are in word 0 of a feature array, 64 to 127 in word 1.

/// Packets may be merged from several receive buffers (virtio 1.3, 5.1.3).
pub const NET_MRG_RXBUF: u32 = 15;
/// Call when the ring runs empty, even if calls are off (0.9.5 drivers).
pub const NOTIFY_ON_EMPTY: u32 = 24;
/// Log every write to guest memory (C: `VHOST_F_LOG_ALL`).
pub const LOG_ALL: u32 = 26;
/// The device adds and strips the virtio-net header: the socket has none (C:
/// `VHOST_NET_F_VIRTIO_NET_HDR`). The same bit as `VIRTIO_F_ANY_LAYOUT`.
pub const NET_VIRTIO_NET_HDR: u32 = 27;
/// Descriptor tables in a descriptor (virtio 1.3, section 2.7.5.3).
pub const INDIRECT_DESC: u32 = 28;
/// Event indices (virtio 1.3, sections 2.7.7 and 2.7.10).
pub const EVENT_IDX: u32 = 29;
/// virtio 1.0 or later.
pub const VERSION_1: u32 = 32;
/// Addresses are I/O virtual addresses.
pub const ACCESS_PLATFORM: u32 = 33;
/// Buffers are used in the order in which they were made available.
pub const IN_ORDER: u32 = 35;
/// A single queue can be reset.
pub const RING_RESET: u32 = 40;
/// UDP tunnel segmentation, guest side (virtio-net).
pub const NET_GUEST_UDP_TUNNEL_GSO: u32 = 65;
/// UDP tunnel segmentation, host side (virtio-net).
pub const NET_HOST_UDP_TUNNEL_GSO: u32 = 67;

/// What the device offers: what works.
pub const OFFERED: [u64; 2] = [
    1 << NET_MRG_RXBUF
        | 1 << NOTIFY_ON_EMPTY
        | 1 << LOG_ALL
        | 1 << NET_VIRTIO_NET_HDR
        | 1 << INDIRECT_DESC
        | 1 << EVENT_IDX
        | 1 << VERSION_1
        | 1 << ACCESS_PLATFORM
        | 1 << IN_ORDER
        | 1 << RING_RESET,
    1 << (NET_GUEST_UDP_TUNNEL_GSO - 64) | 1 << (NET_HOST_UDP_TUNNEL_GSO - 64),
];

/// Whether `bit` is set in `features`.
#[inline]
pub fn has(features: &[u64; 2], bit: u32) -> bool {
    let [low, high] = *features;
    let word = if bit < 64 { low } else { high };
    word >> (bit & 63) & 1 == 1
}

/// Bytes of virtio-net header that a frame starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLen {
    /// In the guest's buffer only: the device adds and strips it.
    pub vhost: usize,
    /// On the socket too.
    pub sock: usize,
}

impl HeaderLen {
    /// Before features are set.
    pub const NONE: Self = Self { vhost: 0, sock: 0 };

    /// The lengths with `features` set. C: `vhost_net_set_features()`.
    pub fn of(features: &[u64; 2]) -> Self {
        let tunnel =
            has(features, NET_GUEST_UDP_TUNNEL_GSO) || has(features, NET_HOST_UDP_TUNNEL_GSO);
        let long = has(features, NET_MRG_RXBUF) || has(features, VERSION_1);
        let len = match (tunnel, long) {
            (true, _) => 24,
            (false, true) => 12,
            (false, false) => 10,
        };

        if has(features, NET_VIRTIO_NET_HDR) {
            Self {
                vhost: len,
                sock: 0,
            }
        } else {
            Self {
                vhost: 0,
                sock: len,
            }
        }
    }
}
