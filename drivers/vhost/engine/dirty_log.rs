// SPDX-License-Identifier: GPL-2.0

//! Logs which pages of the guest are written, for live migration.
//!
//! [`Logged`] is memory whose writes are logged: it stands between the loops
//! and the owner's memory while there is something to log, and is left out of
//! them otherwise, so that a run without a log does not even ask. C:
//! `log_used()`, `vhost_log_write()`. Where they differ from here:
//!
//! - What is logged of the used ring is what is written, element by element.
//! - A buffer is looked up in the memory table by where it lies, so that every
//!   guest-physical address of it is logged; C does so with an IOTLB only.
//! - What was written of a packet that did not arrive whole is logged, too.

use super::addr::Iova;
use super::addr::RingAddr;
use super::addr::Segment;
use super::addr::Uva;
use super::error::Access;
use super::error::Error;
use super::error::Result;
use super::iotlb::AddressMap;
use super::layout;
use super::memory::Fetched;
use super::memory::GuestMemory;
use super::memory::RawDesc;
use super::memory::UsedElem;
use super::translate::Translator;
use core::cell::Cell;

/// A map of the guest's pages, one bit each, that the owner reads and clears.
pub trait Bitmap {
    /// Marks the pages of `len` bytes at the guest-physical address `gpa`,
    /// after all earlier writes (release). Marks nothing if `len` is 0.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if the map cannot be written.
    fn mark(&self, gpa: u64, len: u64) -> Result;

    /// Tells the owner that there is news, if it wants to know.
    fn signal(&self);
}

/// What of a vring is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// The used ring, at this guest-physical address (C: `log_used`,
    /// `log_addr`).
    pub used: Option<u64>,
    /// Buffers (C: `VHOST_F_LOG_ALL`).
    pub buffers: bool,
}

impl What {
    /// Whether that is nothing.
    #[inline]
    pub fn is_nothing(&self) -> bool {
        self.used.is_none() && !self.buffers
    }
}

/// The memory `M`, with a log of what is written in the map `B`.
///
/// A write that cannot be logged is counted and stays: the owner has taken its
/// map away.
pub struct Logged<'a, M, B> {
    mem: &'a M,
    bitmap: B,
    what: What,
    used_ring: RingAddr,
    table: AddressMap<'a>,
    /// Where the used ring is, if its address is an I/O virtual one.
    iotlb: Option<AddressMap<'a>>,
    failed: Cell<u64>,
}

impl<'a, M: GuestMemory, B: Bitmap> Logged<'a, M, B> {
    /// Memory of a vring whose used ring is at `used_ring` and whose guest's
    /// memory lies as `table` says.
    pub fn new(
        mem: &'a M,
        bitmap: B,
        what: What,
        used_ring: RingAddr,
        table: AddressMap<'a>,
    ) -> Self {
        Self {
            mem,
            bitmap,
            what,
            used_ring,
            table,
            iotlb: None,
            failed: Cell::new(0),
        }
    }

    /// The same, the used ring being where `iotlb` says. It is logged as a
    /// buffer is; the address for it in [`What`] means nothing then.
    pub fn behind(self, iotlb: Option<AddressMap<'a>>) -> Self {
        Self { iotlb, ..self }
    }

    /// Writes that could not be logged.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// Logs `len` bytes at `to`, a place in the used ring. Answers whether the
    /// used ring is logged.
    fn used(&self, to: RingAddr, len: u64) -> bool {
        let Some(gpa) = self.what.used else {
            return false;
        };
        let Some(iotlb) = self.iotlb else {
            let offset = to.0.wrapping_sub(self.used_ring.0);
            self.note(self.bitmap.mark(gpa.wrapping_add(offset), len));
            return true;
        };
        // The pieces of a ring that was just written are all there.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let found = Translator::new(iotlb).pieces(Iova(to.0), len, Access::Write, |piece| {
            self.note(self.mark_uva(piece.addr, piece.len));
            Ok(())
        });
        self.note(found);
        true
    }

    /// Logs `len` bytes at `start` under every guest-physical address that they
    /// have. C: `log_write_hva()`.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if some of them have none, or the map cannot be
    /// written; the others are logged.
    fn mark_uva(&self, start: Uva, len: u64) -> Result {
        let mut result = Ok(());
        let mut at = start.0;
        let mut left = len;

        while left > 0 {
            // As far as the same entries hold the bytes.
            let mut step = left;
            let mut known = false;
            for range in self.table.ranges() {
                match range.offset_of(Uva(at)) {
                    Some(offset) => {
                        known = true;
                        step = step.min(range.size().wrapping_sub(offset));
                    }
                    None => {
                        // Where it begins, if it lies ahead.
                        step = step.min(range.uva().wrapping_sub(at).max(1));
                    }
                }
            }
            for range in self.table.ranges() {
                if let Some(offset) = range.offset_of(Uva(at)) {
                    let gpa = range.start().wrapping_add(offset);
                    result = result.and(self.bitmap.mark(gpa, step));
                }
            }
            if !known {
                result = Err(Error::Fault);
            }
            at = at.wrapping_add(step);
            left = left.wrapping_sub(step);
        }
        result
    }

    /// Counts a write that could not be logged.
    fn note(&self, result: Result) {
        if result.is_err() {
            self.failed.set(self.failed.get().wrapping_add(1));
        }
    }
}

impl<M: GuestMemory, B: Bitmap> GuestMemory for Logged<'_, M, B> {
    #[inline]
    fn fetch_heads(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched> {
        self.mem.fetch_heads(avail, num, next, heads)
    }

    #[inline]
    fn read_descs(&self, table: RingAddr, num: u16, heads: &[u16], out: &mut [RawDesc]) -> Result {
        self.mem.read_descs(table, num, heads, out)
    }

    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> Result {
        let written = self.mem.write_used(to, elems);
        // Also what was written before a fault.
        let count = u64::try_from(elems.len()).unwrap_or(u64::MAX);
        self.used(to, count.saturating_mul(layout::USED_ELEM_BYTES));
        written
    }

    #[inline]
    fn load_u16(&self, from: RingAddr) -> Result<u16> {
        self.mem.load_u16(from)
    }

    /// The device stores nowhere but in the used ring.
    fn store_u16(&self, to: RingAddr, value: u16) -> Result {
        self.mem.store_u16(to, value)?;
        if self.used(to, 2) {
            self.bitmap.signal();
        }
        Ok(())
    }

    #[inline]
    fn fence(&self) {
        self.mem.fence();
    }

    #[inline]
    fn read(&self, from: Uva, dst: &mut [u8]) -> Result {
        self.mem.read(from, dst)
    }

    #[inline]
    fn write(&self, to: Uva, src: &[u8]) -> Result {
        self.mem.write(to, src)
    }

    fn written(&self, segments: &[Segment], len: u64) {
        if !self.what.buffers {
            return;
        }

        let mut left = len;
        for segment in segments {
            let now = left.min(segment.len);
            self.note(self.mark_uva(segment.addr, now));
            left = left.wrapping_sub(now);
        }
        self.bitmap.signal();
    }
}
