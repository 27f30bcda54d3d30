// SPDX-License-Identifier: GPL-2.0

//! Guest memory of which the engine's part is all that costs: arrays.

use std::cell::{Cell, RefCell};

use vhost_engine::engine::addr::{RingAddr, Uva};
use vhost_engine::engine::error::{Error, Result};
use vhost_engine::engine::memory::{Fetched, GuestMemory, RawDesc, UsedElem};

/// Entries of the ring.
pub const NUM: u16 = 256;
/// Where the descriptor table is.
pub const DESC: u64 = 0x1000;
/// Where the avail ring is.
pub const AVAIL: u64 = 0x3000;
/// Where the used ring is.
pub const USED: u64 = 0x4000;
/// Where an indirect table is, in the driver's addresses.
pub const TABLE: u64 = 0x8000;

const NEXT: u16 = 1;
const INDIRECT: u16 = 4;
const CHAIN: u16 = 3;
const DESC_SIZE: usize = 16;

/// A descriptor that is a chain by itself.
pub fn buffer(number: u64) -> RawDesc {
    RawDesc {
        addr: (number << 6).to_le(),
        len: 64_u32.to_le(),
        flags: 0,
        next: 0,
    }
}

/// A descriptor of a chain of three, the one after it is next, and the third the last.
pub fn chain(number: u16) -> RawDesc {
    let last = number % CHAIN == CHAIN - 1;
    RawDesc {
        flags: if last { 0 } else { NEXT.to_le() },
        next: if last { 0 } else { (number + 1).to_le() },
        ..buffer(number.into())
    }
}

/// A descriptor of a table of three.
pub fn indirect(table: u64) -> RawDesc {
    RawDesc {
        addr: table.to_le(),
        len: (u32::from(CHAIN) * DESC_SIZE as u32).to_le(), // CAST: 16.
        flags: INDIRECT.to_le(),
        next: 0,
    }
}

/// The memory: 64 chains are always there, and a call is never wanted.
#[derive(Debug)]
pub struct Memory {
    heads: [u16; NUM as usize],
    descs: [RawDesc; NUM as usize],
    table: [u8; DESC_SIZE * CHAIN as usize],
    used: RefCell<[UsedElem; NUM as usize]>,
    used_idx: Cell<u16>,
}

impl Memory {
    /// A ring of chains of three descriptors.
    #[expect(clippy::new_without_default, reason = "nothing wants a default")]
    pub fn new() -> Self {
        let mut table = [0; DESC_SIZE * CHAIN as usize];
        for (number, bytes) in (0..).zip(table.chunks_exact_mut(DESC_SIZE)) {
            let RawDesc {
                addr,
                len,
                flags,
                next,
            } = chain(number);
            bytes[..8].copy_from_slice(&addr.to_ne_bytes());
            bytes[8..12].copy_from_slice(&len.to_ne_bytes());
            bytes[12..14].copy_from_slice(&flags.to_ne_bytes());
            bytes[14..].copy_from_slice(&next.to_ne_bytes());
        }
        Self {
            heads: std::array::from_fn(|index| (index * 3 % usize::from(NUM)) as u16), // CAST: Below 256.
            descs: std::array::from_fn(|index| chain(index as u16)), // CAST: Below 256.
            table,
            used: RefCell::new([UsedElem::default(); NUM as usize]),
            used_idx: Cell::new(0),
        }
    }

    /// The used index.
    pub fn published(&self) -> u16 {
        self.used_idx.get()
    }
}

impl GuestMemory for Memory {
    fn fetch_heads(
        &self,
        _avail: RingAddr,
        _num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched> {
        let there = self.heads.get(..heads.len()).ok_or(Error::Fault)?;
        heads.copy_from_slice(there);
        Ok(Fetched {
            avail_idx: next.wrapping_add(64),
            count: heads.len(),
        })
    }

    fn read_descs(
        &self,
        _table: RingAddr,
        _num: u16,
        heads: &[u16],
        out: &mut [RawDesc],
    ) -> Result {
        for (head, out) in heads.iter().zip(out) {
            *out = *self.descs.get(usize::from(*head)).ok_or(Error::Fault)?;
        }
        Ok(())
    }

    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> Result {
        let start = ((to.0 - USED - 4) / 8) as usize; // CAST: Below 256.
        let mut used = self.used.borrow_mut();
        let place = used.get_mut(start..start + elems.len());
        place.ok_or(Error::Fault)?.copy_from_slice(elems);
        Ok(())
    }

    fn load_u16(&self, _from: RingAddr) -> Result<u16> {
        Ok(self.used_idx.get())
    }

    fn store_u16(&self, to: RingAddr, value: u16) -> Result {
        if to.0 == USED + 2 {
            self.used_idx.set(value);
        }
        Ok(())
    }

    fn fence(&self) {}

    fn read(&self, _from: Uva, dst: &mut [u8]) -> Result {
        dst.copy_from_slice(self.table.get(..dst.len()).ok_or(Error::Fault)?);
        Ok(())
    }

    fn write(&self, _to: Uva, _src: &[u8]) -> Result {
        Ok(())
    }
}
