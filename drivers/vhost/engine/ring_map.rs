// SPDX-License-Identifier: GPL-2.0

//! Rings behind a device IOTLB.
//!
//! [`Mapped`] is memory whose ring addresses go through the IOTLB. What a ring
//! needs is looked up once, before a run: whoever changes the IOTLB takes the
//! vring's lock, so it stays as it is until the run's end, and nothing is kept
//! longer. C: `vq_meta_prefetch()`, `__vhost_get_user()`. Where they differ
//! from here: fields are read where reading and written where writing is
//! allowed. C asks for reading only where a part is not in one piece.

use super::addr::Iova;
use super::addr::RingAddr;
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
use super::split::SplitQueue;
use super::translate::Translator;

/// A part of a ring.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    size: u64,
    /// Where it is, if it is in one piece.
    at: Option<u64>,
}

impl Part {
    /// Looks `size` bytes at `start` up; all of them must allow `access`.
    fn look_up(map: AddressMap<'_>, start: RingAddr, size: u64, access: Access) -> Result<Self> {
        let len = u32::try_from(size).map_err(|_| Error::BadRing)?;
        let start = start.0;
        if start.checked_add(size.wrapping_sub(1)).is_none() {
            // It goes over the end of the address space. C asks for its first
            // byte, again and again: no answer is one.
            return Err(Error::BadRing);
        }

        let mut at = None;
        let mut whole = true;
        let mut next = 0_u64;
        Translator::new(map).pieces(Iova(start), len, access, |piece| {
            whole &= at.is_none() || piece.addr == Uva(next);
            at = at.or(Some(piece.addr.0));
            next = piece.addr.0.wrapping_add(piece.len);
            Ok(())
        })?;
        let at = at.filter(|_| whole);
        Ok(Self { start, size, at })
    }

    /// Where `addr` is.
    #[inline]
    fn place(&self, addr: RingAddr) -> Option<RingAddr> {
        let offset = addr.0.wrapping_sub(self.start);
        let at = self.at.filter(|_| offset < self.size)?;
        Some(RingAddr(at.wrapping_add(offset)))
    }
}

/// Memory in which the parts of one virtqueue are where an IOTLB says.
///
/// It is as good as the IOTLB that it was made from: for one run.
pub struct Mapped<'a, M> {
    mem: &'a M,
    map: Option<AddressMap<'a>>,
    desc: Part,
    avail: Part,
    used: Part,
}

impl<'a, M: GuestMemory> Mapped<'a, M> {
    /// Rings that are where their addresses say: there is no IOTLB.
    pub fn direct(mem: &'a M) -> Self {
        let all = Part {
            start: 0,
            size: u64::MAX,
            at: Some(0),
        };
        Self {
            mem,
            map: None,
            desc: all,
            avail: all,
            used: all,
        }
    }

    /// Looks the rings of `queue` up: what its driver writes must be readable
    /// by the device, the used ring writable.
    ///
    /// # Errors
    ///
    /// [`Error::Unmapped`] for the first hole, [`Error::Denied`] for the first
    /// entry that does not allow it, [`Error::BadRing`] if a part goes over the
    /// end of the address space.
    pub fn new(mem: &'a M, map: AddressMap<'a>, queue: &SplitQueue) -> Result<Self> {
        let [desc, avail, used] = queue.addresses();
        let (num, event_idx) = (queue.num(), queue.event_idx());
        let avail_bytes = layout::avail_bytes(num, event_idx);
        let used_bytes = layout::used_bytes(num, event_idx);
        Ok(Self {
            mem,
            map: Some(map),
            desc: Part::look_up(map, desc, layout::desc_bytes(num), Access::Read)?,
            avail: Part::look_up(map, avail, avail_bytes, Access::Read)?,
            used: Part::look_up(map, used, used_bytes, Access::Write)?,
        })
    }

    /// Looks up what [`SplitQueue::start`] needs: flags and index of the used
    /// ring, to be read and written.
    ///
    /// # Errors
    ///
    /// As [`Mapped::new`].
    pub fn for_start(mem: &'a M, map: AddressMap<'a>, queue: &SplitQueue) -> Result<Self> {
        let [_, _, used] = queue.addresses();
        Part::look_up(map, used, layout::USED_RING, Access::Read)?;
        let used = Part::look_up(map, used, layout::USED_RING, Access::Write)?;
        let none = Part { size: 0, ..used };
        Ok(Self {
            mem,
            map: Some(map),
            desc: none,
            avail: none,
            used,
        })
    }

    /// The memory behind it.
    pub fn inner(&self) -> &'a M {
        self.mem
    }

    /// The IOTLB, if there is one.
    pub fn iotlb(&self) -> Option<AddressMap<'a>> {
        self.map
    }

    /// Finds what is not in one piece.
    fn translator(&self) -> Translator<'a> {
        Translator::new(self.map.unwrap_or(AddressMap::new(&[], false)))
    }

    /// Where the field of two bytes at `addr` is. It must be in one piece: it
    /// is read and written at once.
    fn field(&self, addr: RingAddr, access: Access) -> Result<RingAddr> {
        let mut at = Err(Error::Fault);
        self.translator().pieces(Iova(addr.0), 2, access, |piece| {
            at = match piece.len {
                2 => Ok(RingAddr(piece.addr.0)),
                _ => Err(Error::Fault),
            };
            at.map(|_| ())
        })?;
        at
    }

    /// [`GuestMemory::fetch_heads`] where the avail ring is in pieces.
    fn fetch_pieces(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched> {
        let avail_idx = self.load_u16(avail.add(layout::AVAIL_IDX))?;
        let available = avail_idx.wrapping_sub(next);
        if available > num {
            let count = 0;
            return Ok(Fetched { avail_idx, count });
        }

        let wanted = heads.iter_mut().take(available.into());
        let mut count = 0_usize;
        let mut index = next;
        for head in wanted {
            let slot = index & num.wrapping_sub(1);
            let offset = u64::from(slot).wrapping_mul(2);
            let entry = avail.add(layout::AVAIL_RING).add(offset);
            *head = self.load_u16(entry)?;
            index = index.wrapping_add(1);
            count = count.wrapping_add(1);
        }
        Ok(Fetched { avail_idx, count })
    }

    /// [`GuestMemory::read_descs`] where the table is in pieces.
    fn read_pieces(&self, table: RingAddr, num: u16, heads: &[u16], out: &mut [RawDesc]) -> Result {
        let mut translator = self.translator();
        for (&head, out) in heads.iter().zip(out) {
            if head >= num {
                continue;
            }
            let at = table.add(u64::from(head).wrapping_mul(layout::DESC_BYTES));
            let mut bytes = [0; size_of::<RawDesc>()];
            translator.read(self.mem, Iova(at.0), &mut bytes)?;
            *out = RawDesc::from_bytes(&bytes);
        }
        Ok(())
    }
}

impl<M: GuestMemory> GuestMemory for Mapped<'_, M> {
    #[inline]
    fn fetch_heads(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched> {
        match self.avail.place(avail) {
            Some(avail) => self.mem.fetch_heads(avail, num, next, heads),
            None => self.fetch_pieces(avail, num, next, heads),
        }
    }

    #[inline]
    fn read_descs(&self, table: RingAddr, num: u16, heads: &[u16], out: &mut [RawDesc]) -> Result {
        match self.desc.place(table) {
            Some(table) => self.mem.read_descs(table, num, heads, out),
            None => self.read_pieces(table, num, heads, out),
        }
    }

    #[inline]
    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> Result {
        if let Some(to) = self.used.place(to) {
            return self.mem.write_used(to, elems);
        }
        let mut translator = self.translator();
        let mut at = to;
        for elem in elems {
            translator.write(self.mem, Iova(at.0), &elem.to_bytes())?;
            at = at.add(layout::USED_ELEM_BYTES);
        }
        Ok(())
    }

    /// The device loads from the avail ring, but for the used index at the
    /// start.
    #[inline]
    fn load_u16(&self, from: RingAddr) -> Result<u16> {
        match self.avail.place(from) {
            Some(from) => self.mem.load_u16(from),
            None => self.mem.load_u16(self.field(from, Access::Read)?),
        }
    }

    /// The device stores nowhere but in the used ring.
    #[inline]
    fn store_u16(&self, to: RingAddr, value: u16) -> Result {
        match self.used.place(to) {
            Some(to) => self.mem.store_u16(to, value),
            None => self.mem.store_u16(self.field(to, Access::Write)?, value),
        }
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
}
