// SPDX-License-Identifier: GPL-2.0

//! From a driver's addresses to segments of the owner's memory.

use super::addr::Iova;
use super::addr::Segment;
use super::addr::Uva;
use super::error::Access;
use super::error::Error;
use super::error::Result;
use super::iotlb::AddressMap;
use super::iotlb::Range;
use super::memory::GuestMemory;
use super::scratch::Segments;

/// An address map and the entry that was hit last.
///
/// It lives for one run under the vring's lock, so the entry cannot get stale.
pub struct Translator<'a> {
    map: AddressMap<'a>,
    hit: Range,
}

impl<'a> Translator<'a> {
    /// A translator by `map`, nothing remembered.
    pub fn new(map: AddressMap<'a>) -> Self {
        Self {
            map,
            hit: Range::EMPTY,
        }
    }

    /// Adds the segments for `len` bytes at `start`. C: `translate_desc()`.
    ///
    /// # Errors
    ///
    /// - [`Error::BadRing`] if the range wraps.
    /// - [`Error::Unmapped`], [`Error::Denied`], as [`Translator::piece`].
    /// - [`Error::TooManySegments`] if they do not fit.
    #[inline]
    pub fn segments(
        &mut self,
        start: Iova,
        len: u32,
        access: Access,
        out: &mut Segments<'_>,
    ) -> Result {
        let Some(last) = last_of(start, len)? else {
            return Ok(());
        };

        let first = self.piece(start.0, last, access)?;
        out.push(first)?;
        if first.len < u64::from(len) {
            return self.more_segments(start.0.wrapping_add(first.len), last, access, out);
        }
        Ok(())
    }

    /// Copies `dst.len()` bytes at `start`.
    ///
    /// # Errors
    ///
    /// As [`Translator::segments`], and what the memory answers.
    pub fn read<M: GuestMemory>(&mut self, mem: &M, start: Iova, dst: &mut [u8]) -> Result {
        let len = u32::try_from(dst.len()).map_err(|_| Error::BadRing)?;
        let Some(last) = last_of(start, len)? else {
            return Ok(());
        };

        let mut addr = start.0;
        let mut rest = dst;
        while !rest.is_empty() {
            let piece = self.piece(addr, last, Access::Read)?;
            let bytes = usize::try_from(piece.len).map_err(|_| Error::BadRing)?;
            let Some((now, later)) = rest.split_at_mut_checked(bytes) else {
                return Err(Error::BadRing);
            };
            mem.read(piece.addr, now)?;
            addr = addr.wrapping_add(piece.len);
            rest = later;
        }
        Ok(())
    }

    /// The rest of a range that lies in more than one entry.
    #[cold]
    #[inline(never)]
    fn more_segments(
        &mut self,
        from: u64,
        last: u64,
        access: Access,
        out: &mut Segments<'_>,
    ) -> Result {
        let mut addr = from;
        loop {
            let piece = self.piece(addr, last, access)?;
            out.push(piece)?;
            // A piece ends at `last` or before; it is never empty.
            let end = addr.wrapping_add(piece.len).wrapping_sub(1);
            if end >= last {
                return Ok(());
            }
            addr = end.wrapping_add(1);
        }
    }

    /// The contiguous piece that `addr`, of a range up to `last`, begins.
    ///
    /// # Errors
    ///
    /// [`Error::Unmapped`] without an entry, [`Error::Denied`] if the entry does
    /// not allow `access`.
    #[inline]
    fn piece(&mut self, addr: u64, last: u64, access: Access) -> Result<Segment> {
        if self.map.overlaps() || !self.hit.contains(addr) {
            self.look_up(addr, last, access)?;
        }
        let hit = &self.hit;
        if !hit.allows(access) {
            return Err(Error::Denied);
        }

        let end = last.min(hit.last());
        Ok(Segment {
            addr: Uva(addr.wrapping_sub(hit.start()).wrapping_add(hit.uva())),
            len: end.wrapping_sub(addr).wrapping_add(1),
        })
    }

    /// Makes the entry that answers for `addr` the last hit.
    #[inline(never)]
    fn look_up(&mut self, addr: u64, last: u64, access: Access) -> Result {
        match self.map.find(addr, last) {
            Some(range) if range.contains(addr) => {
                self.hit = *range;
                Ok(())
            }
            _ => Err(Error::Unmapped {
                iova: Iova(addr),
                access,
            }),
        }
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
