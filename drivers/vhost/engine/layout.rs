// SPDX-License-Identifier: GPL-2.0

//! Sizes, offsets and flags of a split virtqueue (virtio 1.3, section 2.7).

/// Entries of the largest ring (virtio 1.3, section 2.7).
pub const MAX_NUM: u16 = 32768;

/// The buffer continues in descriptor `next` (section 2.7.5).
pub const DESC_F_NEXT: u16 = 1;
/// The device writes the buffer, else it reads it.
pub const DESC_F_WRITE: u16 = 2;
/// The buffer holds a table of descriptors (section 2.7.5.3).
pub const DESC_F_INDIRECT: u16 = 4;
/// The driver wants no calls (section 2.7.6).
pub const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// The device wants no kicks (section 2.7.8).
pub const USED_F_NO_NOTIFY: u16 = 1;

/// Bytes of a descriptor.
pub const DESC_BYTES: u64 = 16;
/// Bytes of a used element.
pub const USED_ELEM_BYTES: u64 = 8;

/// Offset of `avail->flags`, in bytes, as all below.
pub const AVAIL_FLAGS: u64 = 0;
/// Offset of `avail->idx`.
pub const AVAIL_IDX: u64 = 2;
/// Offset of `avail->ring`.
pub const AVAIL_RING: u64 = 4;
/// Offset of `used->flags`.
pub const USED_FLAGS: u64 = 0;
/// Offset of `used->idx`.
pub const USED_IDX: u64 = 2;
/// Offset of `used->ring`.
pub const USED_RING: u64 = 4;

/// Alignment of the avail ring, in bytes (section 2.7).
pub const AVAIL_ALIGN: u64 = 2;
/// Alignment of the used ring, in bytes.
pub const USED_ALIGN: u64 = 4;

/// Offset of `used_event` in an avail ring of `num` entries.
#[inline]
pub fn used_event(num: u16) -> u64 {
    u64::from(num).wrapping_mul(2).wrapping_add(AVAIL_RING)
}

/// Offset of used element `slot` in the used ring.
#[inline]
pub fn used_elem(slot: u16) -> u64 {
    u64::from(slot)
        .wrapping_mul(USED_ELEM_BYTES)
        .wrapping_add(USED_RING)
}

/// Offset of `avail_event` in a used ring of `num` entries.
#[inline]
pub fn avail_event(num: u16) -> u64 {
    used_elem(num)
}

/// Bytes of a descriptor table of `num` entries.
pub fn desc_bytes(num: u16) -> u64 {
    u64::from(num).wrapping_mul(DESC_BYTES)
}

/// Bytes of an avail ring. C: `vhost_get_avail_size()`.
pub fn avail_bytes(num: u16, event_idx: bool) -> u64 {
    used_event(num).wrapping_add(event_bytes(event_idx))
}

/// Bytes of a used ring. C: `vhost_get_used_size()`.
pub fn used_bytes(num: u16, event_idx: bool) -> u64 {
    avail_event(num).wrapping_add(event_bytes(event_idx))
}

/// Both rings end in an event index only with `VIRTIO_F_EVENT_IDX`.
fn event_bytes(event_idx: bool) -> u64 {
    if event_idx {
        2
    } else {
        0
    }
}

/// `num` as a ring size: a power of two from 1 to [`MAX_NUM`].
pub fn check_num(num: u32) -> Option<u16> {
    let num = u16::try_from(num).ok()?;
    num.is_power_of_two().then_some(num)
}

/// Whether a ring may start at these addresses.
///
/// The alignment of the descriptor table is not checked, as in C: drivers that
/// get it wrong work.
pub fn aligned(avail: u64, used: u64) -> bool {
    avail & AVAIL_ALIGN.wrapping_sub(1) == 0 && used & USED_ALIGN.wrapping_sub(1) == 0
}
