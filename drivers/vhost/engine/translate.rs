// SPDX-License-Identifier: GPL-2.0

//! From a driver's addresses to segments of the owner's memory.

use super::addr::Iova;
use super::addr::Segment;
use super::error::Access;
use super::error::Error;
use super::error::Result;
use super::iotlb::AddressMap;
use super::iotlb::Range;
use super::iotlb::Reach;
use super::memory::GuestMemory;
use super::scratch::Segments;

/// An address map and the entry that was hit last, if none overlap.
///
/// It lives for one run under the vring's lock, so the entry cannot get stale.
/// What goes from one run to the next is a guess, where in the map to look first.
pub struct Translator<'a> {
    map: AddressMap<'a>,
    hit: &'a Range,
    /// Its place in the map.
    at: usize,
}

impl<'a> Translator<'a> {
    /// A translator by `map`, nothing remembered.
    pub fn new(map: AddressMap<'a>) -> Self {
        Self::guessing(map, usize::MAX)
    }

    /// A translator by `map` that looks at its entry `at` first, as if that were
    /// the last hit.
    #[inline]
    pub fn guessing(map: AddressMap<'a>, at: usize) -> Self {
        const NONE: &Range = &Range::EMPTY;

        let hit = match map.ranges().get(at) {
            Some(hit) if !map.overlaps() => hit,
            _ => NONE,
        };
        Self { map, hit, at }
    }

    /// The place in the map of the entry that was hit last.
    #[inline]
    pub fn place(&self) -> usize {
        self.at
    }

    /// The segment for `len` bytes at `start`, if it is one and the last hit
    /// has it.
    #[inline]
    pub fn hit(&self, start: Iova, len: u32, access: Access) -> Option<Segment> {
        self.hit.segment(start, len, access)
    }

    /// The entry that was hit last, if it may be reached so.
    #[inline]
    pub fn reach(&self, access: Access) -> Option<Reach> {
        self.hit.reach(access)
    }

    /// [`Translator::hit`] in the entry for `start`, which becomes the last hit.
    #[inline(never)]
    pub fn miss(&mut self, start: Iova, len: u32, access: Access) -> Option<Segment> {
        self.look_up(start.0, last_of(start, len).ok()??)?;
        self.hit(start, len, access)
    }

    /// The segment for `len` bytes at `start`, if it is one, and no entries
    /// overlap. What has it becomes the last hit.
    #[inline]
    pub fn find(&mut self, start: Iova, len: u32, access: Access) -> Option<Segment> {
        match self.hit(start, len, access) {
            None => self.miss(start, len, access),
            segment => segment,
        }
    }

    /// Adds the segments for `len` bytes at `start`. C: `translate_desc()`.
    ///
    /// # Errors
    ///
    /// - [`Error::BadRing`] if the range wraps.
    /// - [`Error::Unmapped`] without an entry, [`Error::Denied`] if an entry does
    ///   not allow `access`.
    /// - [`Error::TooManySegments`] if they do not fit.
    #[inline]
    pub fn segments(
        &mut self,
        start: Iova,
        len: u32,
        access: Access,
        out: &mut Segments<'_>,
    ) -> Result {
        match self.hit(start, len, access) {
            Some(segment) => out.push(segment),
            None => self.pieces(start, len, access, |piece| out.push(piece)),
        }
    }

    /// Copies `dst.len()` bytes at `start`.
    ///
    /// # Errors
    ///
    /// As [`Translator::segments`], and what the memory answers.
    pub fn read<M: GuestMemory>(&mut self, mem: &M, start: Iova, dst: &mut [u8]) -> Result {
        let len = u32::try_from(dst.len()).map_err(|_| Error::BadRing)?;
        if let Some(segment) = self.hit(start, len, Access::Read) {
            return mem.read(segment.addr, dst);
        }

        let mut rest = Some(dst);
        self.pieces(start, len, Access::Read, |piece| {
            let bytes = usize::try_from(piece.len).map_err(|_| Error::BadRing)?;
            let all = rest.take().unwrap_or_default();
            let (now, later) = all.split_at_mut_checked(bytes).ok_or(Error::BadRing)?;
            rest = Some(later);
            mem.read(piece.addr, now)
        })
    }

    /// Copies `src` to `start`.
    ///
    /// # Errors
    ///
    /// As [`Translator::segments`], and what the memory answers.
    pub fn write<M: GuestMemory>(&mut self, mem: &M, start: Iova, src: &[u8]) -> Result {
        let len = u32::try_from(src.len()).map_err(|_| Error::BadRing)?;
        let mut rest = src;
        self.pieces(start, len, Access::Write, |piece| {
            let bytes = usize::try_from(piece.len).map_err(|_| Error::BadRing)?;
            let (now, later) = rest.split_at_checked(bytes).ok_or(Error::BadRing)?;
            rest = later;
            mem.write(piece.addr, now)
        })
    }

    /// Calls `f` with each contiguous piece of `len` bytes at `start`.
    ///
    /// # Errors
    ///
    /// As [`Translator::segments`], and what `f` answers.
    pub fn pieces(
        &mut self,
        start: Iova,
        len: u32,
        access: Access,
        mut f: impl FnMut(Segment) -> Result,
    ) -> Result {
        let Some(last) = last_of(start, len)? else {
            return Ok(());
        };

        let mut addr = start.0;
        loop {
            let range = self.look_up(addr, last).ok_or(Error::Unmapped {
                iova: Iova(addr),
                access,
            })?;
            if !range.allows(access) {
                return Err(Error::Denied);
            }
            let end = last.min(range.last());
            f(Segment {
                addr: range.uva_of(addr),
                len: end.wrapping_sub(addr).wrapping_add(1),
            })?;
            if end == last {
                return Ok(());
            }
            addr = end.wrapping_add(1);
        }
    }

    /// The entry that answers for `addr`, of a range up to `last`.
    fn look_up(&mut self, addr: u64, last: u64) -> Option<&'a Range> {
        let (at, range) = self.map.find_at(addr, last)?;
        if !range.contains(addr) {
            return None;
        }
        // Where entries overlap, it may not answer for the next range.
        if !self.map.overlaps() {
            (self.hit, self.at) = (range, at);
        }
        Some(range)
    }
}

/// The last address of a range. `None` if it is empty.
#[inline]
fn last_of(start: Iova, len: u32) -> Result<Option<u64>> {
    let Some(more) = len.checked_sub(1) else {
        return Ok(None);
    };
    match start.0.checked_add(u64::from(more)) {
        Some(last) => Ok(Some(last)),
        None => Err(Error::BadRing),
    }
}
