// SPDX-License-Identifier: GPL-2.0

//! The memory of the owner and the guest, as the engine may touch it.

use super::addr::RingAddr;
use super::addr::Segment;
use super::addr::Uva;
use super::error::Result;

/// A descriptor as it lies in memory, little-endian (virtio 1.3, 2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RawDesc {
    /// Address of the buffer.
    pub addr: u64,
    /// Length of the buffer, in bytes.
    pub len: u32,
    /// `VIRTQ_DESC_F_*`.
    pub flags: u16,
    /// Next descriptor of the chain, with `VIRTQ_DESC_F_NEXT`.
    pub next: u16,
}

impl RawDesc {
    /// The descriptor that lies in memory as `bytes`.
    pub(super) fn from_bytes(bytes: &[u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Self {
            addr: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_ne_bytes([i, j, k, l]),
            flags: u16::from_ne_bytes([m, n]),
            next: u16::from_ne_bytes([o, p]),
        }
    }
}

/// A used element as it lies in memory, little-endian (virtio 1.3, 2.7.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UsedElem {
    /// Head of the chain that was used.
    pub id: u32,
    /// Bytes written into the chain.
    pub len: u32,
}

impl UsedElem {
    /// The element as it lies in memory.
    pub(super) fn to_bytes(self) -> [u8; 8] {
        let [a, b, c, d] = self.id.to_ne_bytes();
        let [e, f, g, h] = self.len.to_ne_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

/// Where the parts of a ring that the driver writes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rings {
    /// The descriptor table.
    pub desc: RingAddr,
    /// The avail ring.
    pub avail: RingAddr,
    /// Entries of both, a power of two.
    pub num: u32,
}

/// Used elements, and the index that returns them.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    /// Where the elements go.
    pub to: RingAddr,
    /// The elements; they lie behind each other.
    pub elems: &'a [UsedElem],
    /// Where the used index is.
    pub index_at: RingAddr,
    /// Its new value.
    pub index: u16,
}

/// What [`GuestMemory::fetch_heads`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// `avail->idx`, as read.
    pub avail_idx: u16,
    /// How many heads were copied.
    pub count: usize,
}

/// Guest memory, as mapped in the owner's address space.
///
/// Every method copies. None hands out a reference: the guest may write at any
/// time, so the engine checks its own copy and reads no field twice. Every
/// method may fail with [`Error::Fault`], or as an address map fails.
///
/// The memory order is part of the contract; an implementation names, next to
/// each method, the barrier that keeps it. Ring fields are little-endian in
/// memory; `u16` values are in host order here, [`RawDesc`] and [`UsedElem`]
/// are as in memory.
///
/// [`Error::Fault`]: super::error::Error::Fault
pub trait GuestMemory {
    /// Loads `avail->idx` and then copies the heads of the next chains.
    ///
    /// `avail` is the avail ring of `num` entries (a power of two) and `next`
    /// the index of the first head wanted. Copies at most `heads.len()` heads,
    /// and at most the `avail_idx - next` that are there; none if that
    /// difference is 0 or above `num`. May stop early, at the ring's end or at
    /// the end of a mapping, but after one head at the earliest.
    ///
    /// All that the driver wrote before it stored the index is seen by later
    /// reads (acquire).
    fn fetch_heads(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched>;

    /// Copies, for each head, its descriptor from the table of `num` entries.
    ///
    /// `out[i]` is the descriptor `heads[i]`, up to the shorter of the two. A
    /// head that is not below `num` is not read and leaves `out[i]` as it was.
    fn read_descs(&self, table: RingAddr, num: u16, heads: &[u16], out: &mut [RawDesc]) -> Result;

    /// [`GuestMemory::fetch_heads`], and their descriptors as
    /// [`GuestMemory::read_descs`] copies them.
    #[inline]
    fn fetch_chains(
        &self,
        rings: &Rings,
        next: u16,
        heads: &mut [u16],
        descs: &mut [RawDesc],
    ) -> Result<Fetched> {
        let num = u16::try_from(rings.num).unwrap_or(0);
        let fetched = self.fetch_heads(rings.avail, num, next, heads)?;
        let heads = heads.get(..fetched.count).unwrap_or_default();
        if !heads.is_empty() {
            self.read_descs(rings.desc, num, heads, descs)?;
        }
        Ok(fetched)
    }

    /// Copies `elems` to `to`, a place in the used ring. No ordering.
    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> Result;

    /// Loads an index or a flags field. Later reads see all that the driver
    /// wrote before it stored the value (acquire).
    fn load_u16(&self, from: RingAddr) -> Result<u16>;

    /// Stores an index or a flags field, after all earlier writes (release).
    fn store_u16(&self, to: RingAddr, value: u16) -> Result;

    /// Orders earlier stores against later loads (full barrier).
    fn fence(&self);

    /// Writes the elements of `what`, stores its index (release), and then, after
    /// a full barrier, loads the field `ask`.
    ///
    /// # Errors
    ///
    /// The outer one if something could not be written, the inner one if `ask`
    /// could not be read.
    #[inline]
    fn publish(&self, what: Publication<'_>, ask: RingAddr) -> Result<Result<u16>> {
        if !what.elems.is_empty() {
            self.write_used(what.to, what.elems)?;
        }
        self.store_and_ask(what.index_at, what.index, ask)
    }

    /// Stores `value` (release), and then, after a full barrier, loads the field
    /// `ask`.
    ///
    /// # Errors
    ///
    /// As of [`GuestMemory::publish`].
    #[inline]
    fn store_and_ask(&self, to: RingAddr, value: u16, ask: RingAddr) -> Result<Result<u16>> {
        self.store_u16(to, value)?;
        self.fence();
        Ok(self.load_u16(ask))
    }

    /// Copies `dst.len()` bytes from the owner's memory. No ordering.
    fn read(&self, from: Uva, dst: &mut [u8]) -> Result;

    /// Copies `src` to the owner's memory. No ordering.
    fn write(&self, to: Uva, src: &[u8]) -> Result;

    /// Hears that the first `len` bytes of `segments`, a buffer of the guest,
    /// may have been written: for a log. Without one nothing is done.
    #[inline]
    fn written(&self, segments: &[Segment], len: u64) {
        let _ = (segments, len);
    }
}
