// SPDX-License-Identifier: GPL-2.0

//! Checksums of frames, and what they are filled with.

use std::sync::LazyLock;

use crate::frame::{Stamp, SIZES, STAMP_SIZE};

/// CRC of a frame from its stamp on, with four zero bytes in place of the checksum, which ends the stamp.
pub fn checksum(stamped: &[u8]) -> u32 {
    let (stamp, rest) = stamped.split_at(STAMP_SIZE.min(stamped.len()));
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&stamp[..stamp.len().saturating_sub(4)]);
    hasher.update(&[0; 4]);
    hasher.update(rest);
    hasher.finalize()
}

/// Filler of `len` bytes: a window into random bytes that moves with the stamp.
pub fn filler(stamp: Stamp, len: usize) -> &'static [u8] {
    const WINDOWS: u64 = 251;
    static RANDOM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[7]
        };
        (0..SIZES.end + 256).map(|_| next()).collect()
    });
    let start = (stamp.sequence.wrapping_add(u64::from(stamp.flow)) % WINDOWS) as usize; // CAST: Below 251.
    &RANDOM[start..start + len]
}

/// Sum of big-endian 16-bit words as the Internet checksum takes it.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16 // CAST: Folded above.
}
