// SPDX-License-Identifier: GPL-2.0

//! The address map: ranges of [`Iova`] and where they lie in the owner's memory.
//!
//! The memory table and the device IOTLB are such maps. The glue owns and grows
//! the array; the rules are here. It is sorted by start, equal starts in the
//! order of insertion, and each range carries the highest end up to itself, so
//! that one binary search finds the *lowest start that overlaps*: the entry
//! that C's interval tree answers with when entries overlap, which is allowed.

use super::addr::Iova;
use super::addr::Segment;
use super::addr::Uva;
use super::error::Access;
use super::error::Error;
use super::error::Result;
use core::mem;
use core::ops::DerefMut;

/// The device may read the range (C: `VHOST_ACCESS_RO`).
pub const ACCESS_READ: u32 = 1;
/// The device may write the range (C: `VHOST_ACCESS_WO`).
pub const ACCESS_WRITE: u32 = 2;
/// Both (C: `VHOST_ACCESS_RW`).
pub const ACCESS_BOTH: u32 = ACCESS_READ | ACCESS_WRITE;

/// Entries of the first room of an [`Iotlb`].
const MIN_ROOM: usize = 16;

/// One entry of an address map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    start: u64,
    last: u64,
    uva: u64,
    max_last: u64,
    /// When it came to the IOTLB, counted in entries.
    serial: u64,
    access: u32,
}

/// What of an entry may be reached in one way: for one look after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    start: u64,
    /// One less than its bytes.
    span: u64,
    uva: u64,
}

impl Reach {
    /// The segment for `len` bytes at `start`, if all of it is there; none for
    /// no bytes.
    #[inline(always)]
    pub fn segment(&self, start: Iova, len: u32) -> Option<Segment> {
        let offset = start.0.wrapping_sub(self.start);
        let room = self.span.checked_sub(offset)?;
        let len = u64::from(len);
        // Without overflow: nothing has a last byte that fits.
        (len.wrapping_sub(1) <= room).then_some(Segment {
            addr: Uva(self.uva.wrapping_add(offset)),
            len,
        })
    }
}

impl Range {
    /// An entry that holds no address and allows nothing.
    pub const EMPTY: Self = Self {
        start: u64::MAX,
        last: 0,
        uva: 0,
        max_last: 0,
        serial: 0,
        access: 0,
    };

    /// The entry for `start` to `last`, both included.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if `last` is below `start`, or if the range is the whole
    /// address space, whose size does not fit: see [`Range::of_region`].
    pub fn new(start: u64, last: u64, uva: u64, access: u32) -> Result<Self> {
        if last < start || (start == 0 && last == u64::MAX) {
            return Err(Error::Fault);
        }
        Ok(Self {
            start,
            last,
            uva,
            max_last: last,
            serial: 0,
            access: access & ACCESS_BOTH,
        })
    }

    /// The entries for `size` bytes at `start`, which the device may read and
    /// write. C: `vhost_iotlb_add_range()`.
    ///
    /// `size` 0 at 0 is the whole address space, which takes two entries.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if the range wraps, or `size` is 0 elsewhere.
    pub fn of_region(start: u64, size: u64, uva: u64) -> Result<[Option<Self>; 2]> {
        const HALF: u64 = 1 << 63;

        let last = start.wrapping_add(size).wrapping_sub(1);
        if start != 0 || last != u64::MAX {
            let range = Self::new(start, last, uva, ACCESS_BOTH)?;
            return Ok([Some(range), None]);
        }
        let low = Self::new(0, HALF - 1, uva, ACCESS_BOTH)?;
        let high = Self::new(HALF, u64::MAX, uva.wrapping_add(HALF), ACCESS_BOTH)?;
        Ok([Some(low), Some(high)])
    }

    /// First address.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Last address.
    #[inline]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// In bytes; at most 2^64 - 1, as [`Range::new`] sees to.
    pub fn size(&self) -> u64 {
        self.last.wrapping_sub(self.start).wrapping_add(1)
    }

    /// Where the first address lies in the owner's memory.
    #[inline]
    pub fn uva(&self) -> u64 {
        self.uva
    }

    /// Where `addr`, which is in the range, lies in the owner's memory.
    #[inline]
    pub fn uva_of(&self, addr: u64) -> Uva {
        Uva(addr.wrapping_sub(self.start).wrapping_add(self.uva))
    }

    /// The segment for `len` bytes at `start`, if the range has them all and the
    /// device may do `access` there.
    #[inline]
    pub fn segment(&self, start: Iova, len: u32, access: Access) -> Option<Segment> {
        self.reach(access)?.segment(start, len)
    }

    /// The range, if the device may do `access` there.
    #[inline]
    pub fn reach(&self, access: Access) -> Option<Reach> {
        self.allows(access).then_some(Reach {
            start: self.start,
            span: self.last.wrapping_sub(self.start),
            uva: self.uva,
        })
    }

    /// How far `addr`, in the owner's memory, is from the first address. `None`
    /// if it is not in the range.
    #[inline]
    pub fn offset_of(&self, addr: Uva) -> Option<u64> {
        let offset = addr.0.wrapping_sub(self.uva);
        (offset <= self.last.wrapping_sub(self.start)).then_some(offset)
    }

    /// Whether `addr` is in the range.
    #[inline]
    pub fn contains(&self, addr: u64) -> bool {
        self.start <= addr && addr <= self.last
    }

    /// Whether the range and that from `start` to `last` have an address in
    /// common. As in C a range that wraps is one of those that hold its ends.
    fn meets(&self, start: u64, last: u64) -> bool {
        self.start <= last && start <= self.last
    }

    /// Whether the device may do anything here.
    pub fn is_usable(&self) -> bool {
        self.access != 0
    }

    /// Whether the device may do `access` here.
    #[inline]
    pub fn allows(&self, access: Access) -> bool {
        let bit = match access {
            Access::Read => ACCESS_READ,
            Access::Write => ACCESS_WRITE,
        };
        self.access & bit != 0
    }
}

/// The lowest index whose range fails `before`; `ranges` is sorted by it.
///
/// `slice::partition_point()` leaves a panic in the object.
#[inline]
fn search(ranges: &[Range], before: impl Fn(&Range) -> bool) -> usize {
    let mut low = 0_usize;
    let mut len = ranges.len();

    while len > 0 {
        let half = len >> 1;
        let mid = low.wrapping_add(half);
        match ranges.get(mid) {
            Some(range) if before(range) => {
                low = mid.wrapping_add(1);
                len = len.wrapping_sub(half).wrapping_sub(1);
            }
            _ => len = half,
        }
    }
    low
}

/// Where a range that begins at `start` goes in `ranges`: after its equals.
pub fn insert_at(ranges: &[Range], start: u64) -> usize {
    search(ranges, |range| range.start <= start)
}

/// Makes `ranges` fit for [`AddressMap`] after a change. `true` if any overlap.
pub fn index(ranges: &mut [Range]) -> bool {
    let mut overlap = false;
    let mut max_last = None;

    for range in ranges {
        overlap |= max_last.is_some_and(|max| range.start <= max);
        let max = range.last.max(max_last.unwrap_or(0));
        range.max_last = max;
        max_last = Some(max);
    }
    overlap
}

/// A view of an address map.
#[derive(Clone, Copy, Debug)]
pub struct AddressMap<'a> {
    ranges: &'a [Range],
    overlap: bool,
}

impl<'a> AddressMap<'a> {
    /// A view of `ranges`, sorted as [`insert_at`] says; `overlap` is what
    /// [`index`] answered for them.
    pub fn new(ranges: &'a [Range], overlap: bool) -> Self {
        Self { ranges, overlap }
    }

    /// Whether entries overlap: then what is found depends on the whole range
    /// asked for, and no answer can be kept for another question.
    #[inline]
    pub fn overlaps(&self) -> bool {
        self.overlap
    }

    /// The entries, sorted by start.
    pub fn ranges(&self) -> &'a [Range] {
        self.ranges
    }

    /// The entry with the lowest start that overlaps `addr` to `last`.
    pub fn find(&self, addr: u64, last: u64) -> Option<&'a Range> {
        self.find_at(addr, last).map(|(_, range)| range)
    }

    /// [`AddressMap::find`], with its place among the entries.
    pub fn find_at(&self, addr: u64, last: u64) -> Option<(usize, &'a Range)> {
        // The first entry at which the highest end so far reaches `addr` is the
        // first whose own end does.
        let at = search(self.ranges, |range| range.max_last < addr);
        let range = self.ranges.get(at).filter(|range| range.start <= last)?;
        Some((at, range))
    }
}

/// A device IOTLB: an address map that the owner keeps up to date. C: `struct
/// vhost_iotlb` with `VHOST_IOTLB_FLAG_RETIRE`.
///
/// `R` is room for its entries, which the glue provides.
#[derive(Debug)]
pub struct Iotlb<R> {
    room: R,
    len: usize,
    limit: usize,
    overlap: bool,
    added: u64,
}

impl<R: DerefMut<Target = [Range]>> Iotlb<R> {
    /// An empty IOTLB of at most `limit` entries, in `room`.
    pub fn new(room: R, limit: usize) -> Self {
        Self {
            room,
            len: 0,
            limit,
            overlap: false,
            added: 0,
        }
    }

    /// The room; what is in it means nothing to others.
    pub fn room(&mut self) -> &mut R {
        &mut self.room
    }

    /// Entries that the room must have so that one can be added.
    fn needed(&self) -> usize {
        self.limit.min(self.len.saturating_add(1))
    }

    /// Entries that new room should have, if one cannot be added to this.
    pub fn wanted(&self) -> Option<usize> {
        let needed = self.needed();
        let more = needed.saturating_mul(2).max(MIN_ROOM).min(self.limit);
        (self.room.len() < needed).then_some(more)
    }

    /// The entries, for lookups.
    #[inline]
    pub fn map(&self) -> AddressMap<'_> {
        let ranges = self.room.get(..self.len).unwrap_or_default();
        AddressMap::new(ranges, self.overlap)
    }

    /// Adds an entry. If the limit is reached the oldest one goes. C:
    /// `vhost_iotlb_add_range()`.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] without room.
    pub fn add(&mut self, range: Range) -> Result {
        if self.room.len() < self.needed() || self.limit == 0 {
            return Err(Error::Fault);
        }
        if self.len >= self.limit {
            self.retire();
        }

        let mut moving = range;
        moving.serial = self.added;
        self.added = self.added.wrapping_add(1);
        let at = insert_at(self.map().ranges(), range.start);
        let tail = self.room.get_mut(at..=self.len).unwrap_or_default();
        for slot in tail {
            mem::swap(slot, &mut moving);
        }
        self.set_len(self.len.wrapping_add(1));
        Ok(())
    }

    /// Takes out every entry that has an address from `start` to `last`. C:
    /// `vhost_iotlb_del_range()`.
    pub fn remove(&mut self, start: u64, last: u64) {
        self.retain(|range| !range.meets(start, last));
    }

    /// Takes out the oldest entry.
    fn retire(&mut self) {
        let serials = self.map().ranges().iter().map(|range| range.serial);
        if let Some(oldest) = serials.min() {
            self.retain(|range| range.serial != oldest);
        }
    }

    /// Keeps the entries that `keep` wants.
    fn retain(&mut self, keep: impl Fn(&Range) -> bool) {
        let mut kept = 0_usize;
        for at in 0..self.len {
            let Some(range) = self.room.get(at).copied().filter(&keep) else {
                continue;
            };
            if let Some(slot) = self.room.get_mut(kept) {
                *slot = range;
                kept = kept.wrapping_add(1);
            }
        }
        self.set_len(kept);
    }

    /// Takes over that the first `len` entries have changed.
    fn set_len(&mut self, len: usize) {
        self.len = len;
        self.overlap = index(self.room.get_mut(..len).unwrap_or_default());
    }
}
