// SPDX-License-Identifier: GPL-2.0

//! The virtio-net header (virtio 1.3, section 5.1.6).

use super::super::addr::Segment;
use super::super::addr::Uva;
use super::super::error::Error;
use super::super::error::Result;
use super::super::memory::GuestMemory;

/// Offset of `num_buffers`.
pub const NUM_BUFFERS: u64 = 10;
/// Bytes of a header that has it.
pub const NUM_BUFFERS_LEN: usize = 12;
/// The longest header that is known.
pub const MAX_LEN: usize = 24;

/// `csum_start` and `csum_offset` say where a checksum is wanted.
const F_NEEDS_CSUM: u8 = 1;

/// Makes `hdr_len` cover the checksum. `false` if the frame does not.
///
/// `frame` is the frame's length, its header included, as C compares it
/// (`vhost_net_build_xdp()`). A frame whose header is not on the socket has none
/// to check. The sum takes 32 bits: C's wraps at 16 and lets 0xffff pass.
#[inline]
pub fn fix_csum(header: &mut [u8], frame: usize) -> bool {
    let [flags, _, len_low, len_high, _, _, start_low, start_high, offset_low, offset_high, ..] =
        header
    else {
        return true;
    };
    if *flags & F_NEEDS_CSUM == 0 {
        return true;
    }

    let start = u16::from_le_bytes([*start_low, *start_high]);
    let offset = u16::from_le_bytes([*offset_low, *offset_high]);
    let end = u32::from(start)
        .wrapping_add(u32::from(offset))
        .wrapping_add(2);
    // A frame of this path fits a page, so an end inside it fits 16 bits.
    let Ok(end) = u16::try_from(end) else {
        return false;
    };
    if usize::from(end) > frame {
        return false;
    }
    if end > u16::from_le_bytes([*len_low, *len_high]) {
        [*len_low, *len_high] = end.to_le_bytes();
    }
    true
}

/// A header that says nothing but `num_buffers`.
pub fn blank([low, high]: [u8; 2]) -> [u8; MAX_LEN] {
    let mut header = [0; MAX_LEN];
    [header[10], header[11]] = [low, high];
    header
}

/// Takes `bytes` off the front of `segments`. Answers how many are left; they
/// are the first ones then.
pub fn skip(segments: &mut [Segment], bytes: usize) -> usize {
    let mut left = u64::try_from(bytes).unwrap_or(u64::MAX);
    let mut count = 0_usize;

    for at in 0..segments.len() {
        let Some(mut segment) = segments.get(at).copied() else {
            break;
        };
        let gone = left.min(segment.len);
        left = left.wrapping_sub(gone);
        segment.addr.0 = segment.addr.0.wrapping_add(gone);
        segment.len = segment.len.wrapping_sub(gone);
        if segment.len > 0 {
            if let Some(place) = segments.get_mut(count) {
                *place = segment;
                count = count.wrapping_add(1);
            }
        }
    }
    count
}

/// Writes `bytes` at `offset` of the stream that `segments` make.
///
/// # Errors
///
/// What the memory answers; [`Error::Fault`] past the end.
#[inline]
pub fn write_at<M: GuestMemory>(
    mem: &M,
    segments: &[Segment],
    offset: u64,
    bytes: &[u8],
) -> Result {
    let end = u64::try_from(bytes.len()).map_or(u64::MAX, |len| offset.saturating_add(len));
    match segments.first() {
        Some(first) if end <= first.len => mem.write(Uva(first.addr.0.wrapping_add(offset)), bytes),
        _ => write_split(mem, segments, offset, bytes),
    }
}

/// [`write_at`] where the first segment is too short.
#[inline(never)]
fn write_split<M: GuestMemory>(mem: &M, segments: &[Segment], offset: u64, bytes: &[u8]) -> Result {
    let mut skip = offset;
    let mut rest = bytes;

    for segment in segments {
        let Some(room) = segment.len.checked_sub(skip).filter(|room| *room > 0) else {
            skip = skip.wrapping_sub(segment.len);
            continue;
        };
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
        mem.write(Uva(segment.addr.0.wrapping_add(skip)), now)?;
        if later.is_empty() {
            return Ok(());
        }
        rest = later;
        skip = 0;
    }
    Err(Error::Fault)
}
