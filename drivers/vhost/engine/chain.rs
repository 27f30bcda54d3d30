// SPDX-License-Identifier: GPL-2.0

//! Walks one descriptor chain, direct or indirect (virtio 1.3, section 2.7.5).
//!
//! C: `vhost_get_vq_desc_n()`, `get_indirect()`. Where they differ from here:
//!
//! - An indirect table is walked by `next`, as section 2.7.5.3 says. C reads it
//!   in memory order and ignores the field; drivers that work with both, all
//!   that are known, fill it in order.
//! - A packet has at most [`MAX_SEGMENTS`] descriptors, empty ones included. C
//!   counts the non-empty ones only, so a guest can make it walk 65,536 in each
//!   of 1,024 chains.
//! - A range that wraps the address space, and a descriptor with both `NEXT`
//!   and `INDIRECT`, break the ring.
//!
//! As in C, indirect tables work whether or not the feature was acknowledged:
//! there are owners that never tell.
//!
//! [`MAX_SEGMENTS`]: super::scratch::MAX_SEGMENTS

use super::addr::Iova;
use super::addr::RingAddr;
use super::addr::Segment;
use super::desc::Desc;
use super::error::Access;
use super::error::Error;
use super::error::Result;
use super::layout;
use super::memory::GuestMemory;
use super::memory::RawDesc;
use super::scratch::Scratch;
use super::scratch::Segments;
use super::scratch::TABLE_BYTES;
use super::scratch::TABLE_WINDOW;
use super::translate::Translator;

/// Entries of the longest indirect table: `next` has 16 bits.
const MAX_TABLE: u32 = 65536;
/// [`layout::DESC_BYTES`], as a power of two.
const DESC_SHIFT: u32 = 4;
const _: () = assert!(layout::DESC_BYTES == 1 << DESC_SHIFT);
/// The same, as lengths of tables are counted.
const ENTRY: u32 = 1 << DESC_SHIFT;

/// The bytes of a chain, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Bytes that the device may read.
    pub readable: u64,
    /// Bytes that the device may write.
    pub writable: u64,
}

/// The segment of a chain for `access` that is `first` alone, if it is in one
/// piece of the last hit. `None` if it may be anything else.
#[inline]
pub fn one(translator: &Translator<'_>, first: Desc, access: Access) -> Option<Segment> {
    if !first.is_alone_for(access) {
        return None;
    }
    translator.hit(first.addr, first.len, access)
}

/// Makes the buffers of the table that `first` refers to the segments of the
/// packet in hand, if it is a common table: short, in order, all of its buffers
/// for `access`, each in one piece. Answers their bytes, and how many they are.
///
/// None if it may be anything else: [`Walker::walk`] finds out, and reads it
/// again.
#[inline]
pub fn table<M: GuestMemory>(
    mem: &M,
    translator: &mut Translator<'_>,
    first: Desc,
    access: Access,
    scratch: &mut Scratch,
) -> (u64, usize) {
    let Scratch {
        segments, table, ..
    } = scratch;
    let Some(table) = read_table(mem, translator, first, table) else {
        return (0, 0);
    };
    let found = translator.reach(access).and_then(|reach| {
        entries(table, segments, access, |addr, len| {
            reach.segment(addr, len)
        })
    });
    match found {
        Some(found) => found,
        None => spread(translator, table, segments, access),
    }
}

/// Copies the table that `first` refers to into `room`, if it is short and in
/// one piece.
#[inline(always)]
fn read_table<'t, M: GuestMemory>(
    mem: &M,
    translator: &mut Translator<'_>,
    first: Desc,
    room: &'t mut [u8; TABLE_BYTES],
) -> Option<&'t [u8]> {
    if !first.is_indirect() || first.next().is_some() || first.len % ENTRY != 0 {
        return None;
    }
    let table = room.get_mut(..usize::try_from(first.len).ok()?)?;
    let place = translator.find(first.addr, first.len, Access::Read)?;
    mem.read(place.addr, table).ok()?;
    Some(table)
}

/// [`table`] where not all buffers are where the last one was.
#[cold]
#[inline(never)]
fn spread(
    translator: &mut Translator<'_>,
    table: &[u8],
    segments: &mut [Segment],
    access: Access,
) -> (u64, usize) {
    let found = entries(table, segments, access, |addr, len| {
        translator.find(addr, len, access)
    });
    found.unwrap_or_default()
}

/// The buffers of the entries of `table`, as [`table`] answers them.
#[inline(always)]
fn entries(
    table: &[u8],
    segments: &mut [Segment],
    access: Access,
    mut find: impl FnMut(Iova, u32) -> Option<Segment>,
) -> Option<(u64, usize)> {
    let (mut bytes, mut count) = (0_u64, 0_u16);
    for (entry, segment) in table.chunks_exact(size_of::<RawDesc>()).zip(segments) {
        let desc = Desc::new(RawDesc::from_bytes(entry.first_chunk()?));
        if !desc.is_buffer(access) {
            return None;
        }
        *segment = find(desc.addr, desc.len)?;
        bytes = bytes.wrapping_add(segment.len);
        count = count.wrapping_add(1);
        match desc.next() {
            None => return Some((bytes, count.into())),
            Some(next) if next == count => {}
            Some(_) => return None,
        }
    }
    None
}

/// What a walk needs besides the chain.
pub struct Walker<'w, 'a, M> {
    /// The memory that descriptors are read from.
    pub mem: &'w M,
    /// The descriptor table.
    pub table: RingAddr,
    /// Its entries.
    pub num: u16,
    /// Finds the buffers.
    pub translator: &'w mut Translator<'a>,
}

/// The chain being walked.
struct Walk<'w, 's> {
    chain: Chain,
    /// Descriptors of this chain seen.
    seen: usize,
    out: &'w mut Segments<'s>,
    window: &'w mut [u8; TABLE_BYTES],
}

impl<M: GuestMemory> Walker<'_, '_, M> {
    /// Adds the segments of the chain that begins with `first` to `out`.
    ///
    /// `window` is room for entries of an indirect table. On an error `out` has
    /// segments of a part of the chain.
    ///
    /// # Errors
    ///
    /// - [`Error::BadRing`] if the chain breaks the rules of section 2.7.5.
    /// - [`Error::TooManySegments`] if the packet in `out` gets too long.
    /// - what the memory and the address map answer.
    pub fn walk(
        &mut self,
        first: Desc,
        out: &mut Segments<'_>,
        window: &mut [u8; TABLE_BYTES],
    ) -> Result<Chain> {
        let mut walk = Walk {
            chain: Chain::default(),
            seen: 0,
            out,
            window,
        };
        let mut desc = first;

        loop {
            let next = desc.next();
            if desc.is_indirect() {
                // Section 2.7.5.3.1: never both flags, and at most one table.
                if next.is_some() {
                    return Err(Error::BadRing);
                }
                self.table(desc, &mut walk)?;
                return Ok(walk.chain);
            }
            self.buffer(desc, usize::from(self.num), &mut walk)?;
            match next {
                Some(index) => desc = self.desc(index)?,
                None => return Ok(walk.chain),
            }
        }
    }

    /// Descriptor `index` of the ring's table.
    fn desc(&self, index: u16) -> Result<Desc> {
        if index >= self.num {
            return Err(Error::BadRing);
        }
        let mut raw = [RawDesc::default()];
        self.mem
            .read_descs(self.table, self.num, &[index], &mut raw)?;
        let [raw] = raw;
        Ok(Desc::new(raw))
    }

    /// Adds one buffer of a chain that has at most `limit` descriptors.
    fn buffer(&mut self, desc: Desc, limit: usize, walk: &mut Walk<'_, '_>) -> Result {
        walk.seen = walk.seen.saturating_add(1);
        if walk.seen > limit {
            // It visits a descriptor twice.
            return Err(Error::BadRing);
        }
        walk.out.count_desc()?;

        let len = u64::from(desc.len);
        let access = desc.access();
        let chain = &mut walk.chain;
        match access {
            Access::Write => chain.writable = chain.writable.saturating_add(len),
            // Section 2.7.4.2: readable buffers come before writable ones.
            Access::Read if chain.writable > 0 => return Err(Error::BadRing),
            Access::Read => chain.readable = chain.readable.saturating_add(len),
        }
        self.translator
            .segments(desc.addr, desc.len, access, walk.out)
    }

    /// Adds the buffers of the table that `desc` refers to.
    ///
    /// The device must ignore `WRITE` in `desc` (section 2.7.5.3.2).
    fn table(&mut self, desc: Desc, walk: &mut Walk<'_, '_>) -> Result {
        let count = desc.len >> DESC_SHIFT;
        if count << DESC_SHIFT != desc.len || count == 0 || count > MAX_TABLE {
            return Err(Error::BadRing);
        }
        let count = usize::try_from(count).map_err(|_| Error::BadRing)?;
        let limit = count.saturating_add(walk.seen);

        let mut index = 0_usize;
        // Entries `start` to `end` are in the window.
        let (mut start, mut end) = (0, 0);
        loop {
            if index < start || index >= end {
                // Tables are in order as a rule: one jump reads one entry.
                let ahead = if index == end { TABLE_WINDOW } else { 1 };
                start = index;
                end = count.min(index.saturating_add(ahead));
                self.fill_window(desc.addr, start, end, walk.window)?;
            }
            let entry = entry(walk.window, index.wrapping_sub(start)).ok_or(Error::BadRing)?;
            if entry.is_indirect() {
                return Err(Error::BadRing);
            }
            self.buffer(entry, limit, walk)?;

            match entry.next().map(usize::from) {
                None => return Ok(()),
                Some(next) if next >= count => return Err(Error::BadRing),
                Some(next) => index = next,
            }
        }
    }

    /// Reads entries `start` to `end` of the table at `table`.
    fn fill_window(
        &mut self,
        table: Iova,
        start: usize,
        end: usize,
        window: &mut [u8; TABLE_BYTES],
    ) -> Result {
        let bytes = |entries: usize| entries << DESC_SHIFT;
        let dst = window
            .get_mut(..bytes(end.wrapping_sub(start)))
            .ok_or(Error::BadRing)?;
        let offset = u64::try_from(bytes(start)).map_err(|_| Error::BadRing)?;
        let from = table.0.checked_add(offset).ok_or(Error::BadRing)?;
        self.translator.read(self.mem, Iova(from), dst)
    }
}

/// Entry `at` of the window.
fn entry(window: &[u8; TABLE_BYTES], at: usize) -> Option<Desc> {
    let bytes = window.get(at << DESC_SHIFT..)?.first_chunk()?;
    Some(Desc::new(RawDesc::from_bytes(bytes)))
}
