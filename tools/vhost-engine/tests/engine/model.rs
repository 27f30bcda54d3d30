// SPDX-License-Identifier: GPL-2.0

//! The driver's half of a split virtqueue, from virtio 1.3, section 2.7.

use std::collections::HashMap;

use crate::arena::{Arena, BASE};

/// One element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buf {
    pub addr: u64,
    pub len: u32,
    pub write: bool,
}

pub fn out(addr: u64, len: u32) -> Buf {
    let write = false;
    Buf { addr, len, write }
}

pub fn inp(addr: u64, len: u32) -> Buf {
    let write = true;
    Buf { addr, len, write }
}

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// Where the parts of a ring are.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub num: u16,
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
}

impl Place {
    /// A ring from `at` on, its parts 64 bytes apart.
    pub fn at(at: u64, num: u16) -> Self {
        let n = u64::from(num);
        let desc = at.next_multiple_of(16);
        let avail = desc + 16 * n + 64;
        let used = (avail + 6 + 2 * n + 64).next_multiple_of(4);
        Self {
            num,
            desc,
            avail,
            used,
        }
    }

    pub fn end(&self) -> u64 {
        self.used + 6 + 8 * u64::from(self.num)
    }

    pub fn avail_idx(&self) -> u64 {
        self.avail + 2
    }

    pub fn avail_slot(&self, idx: u16) -> u64 {
        self.avail + 4 + 2 * u64::from(idx % self.num)
    }

    pub fn used_event(&self) -> u64 {
        self.avail + 4 + 2 * u64::from(self.num)
    }

    pub fn used_idx(&self) -> u64 {
        self.used + 2
    }

    pub fn used_slot(&self, idx: u16) -> u64 {
        self.used + 4 + 8 * u64::from(idx % self.num)
    }

    pub fn avail_event(&self) -> u64 {
        self.used + 4 + 8 * u64::from(self.num)
    }
}

/// A descriptor as 16 bytes.
pub fn desc_bytes(addr: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    let mut bytes = addr.to_le_bytes().to_vec();
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&next.to_le_bytes());
    bytes
}

pub struct Driver<'m, 'a> {
    mem: &'m Arena<'a>,
    pub place: Place,
    pub event_idx: bool,
    free: Vec<u16>,
    /// The descriptors of each chain that the device has.
    pub out: HashMap<u16, Vec<u16>>,
    pub avail_idx: u16,
    pub last_used: u16,
}

impl<'m, 'a> Driver<'m, 'a> {
    /// A ring whose indices start at `base`.
    pub fn new(mem: &'m Arena<'a>, place: Place, base: u16) -> Self {
        mem.poke_u16(place.avail_idx(), base);
        mem.poke_u16(place.used_idx(), base);
        Self {
            mem,
            place,
            event_idx: false,
            free: (0..place.num).rev().collect(),
            out: HashMap::new(),
            avail_idx: base,
            last_used: base,
        }
    }

    /// Whether the driver kicks if it adds one chain now.
    pub fn would_kick(&self) -> bool {
        self.kicks_for(self.avail_idx, 1)
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The head of the next chain.
    pub fn next_free(&self) -> u16 {
        *self.free.last().unwrap()
    }

    /// Hands descriptors out in another order.
    pub fn shuffle(&mut self, seed: u64) {
        let mut x = seed | 1;
        for i in (1..self.free.len()).rev() {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.free.swap(i, (x >> 33) as usize % (i + 1));
        }
    }

    /// Writes a descriptor of [`desc_bytes`].
    pub fn poke_desc(&self, index: u16, bytes: &[u8]) {
        self.mem
            .poke(self.place.desc + 16 * u64::from(index), bytes);
    }

    /// Section 2.7.13.1: places `bufs`; the last may be followed by a table of
    /// `indirect` elements at an address that has room.
    pub fn place_chain(&mut self, bufs: &[Buf], indirect: Option<(u64, u64, &[Buf])>) -> u16 {
        let count = bufs.len() + usize::from(indirect.is_some());
        let ids: Vec<u16> = (0..count).map(|_| self.free.pop().unwrap()).collect();
        for (i, buf) in bufs.iter().enumerate() {
            let flags = if buf.write { WRITE } else { 0 };
            match ids.get(i + 1) {
                Some(&next) => {
                    self.poke_desc(ids[i], &desc_bytes(buf.addr, buf.len, flags | NEXT, next))
                }
                None => self.poke_desc(ids[i], &desc_bytes(buf.addr, buf.len, flags, 0xdead)),
            }
        }
        if let Some((iova, uva, table)) = indirect {
            let len = 16 * table.len() as u32;
            self.poke_desc(
                *ids.last().unwrap(),
                &desc_bytes(iova, len, INDIRECT, 0xbeef),
            );
            self.mem.poke(uva, &table_bytes(table));
        }
        let head = ids[0];
        self.out.insert(head, ids);
        head
    }

    /// Sections 2.7.13.2 and 2.7.13.3: makes a chain available.
    pub fn offer(&mut self, head: u16) {
        let slot = self.place.avail_slot(self.avail_idx);
        self.mem.poke_u16(slot, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.mem.poke_u16(self.place.avail_idx(), self.avail_idx);
    }

    pub fn add(&mut self, bufs: &[Buf]) -> u16 {
        let head = self.place_chain(bufs, None);
        self.offer(head);
        head
    }

    /// A chain that is one table at `iova`, which is `uva` here.
    pub fn add_indirect(&mut self, iova: u64, uva: u64, bufs: &[Buf]) -> u16 {
        let head = self.place_chain(&[], Some((iova, uva, bufs)));
        self.offer(head);
        head
    }

    /// Section 2.7.14: takes back what the device has used.
    pub fn collect(&mut self) -> Vec<(u16, u32)> {
        let idx = self.mem.peek_u16(self.place.used_idx());
        let mut used = Vec::new();
        while self.last_used != idx {
            let at = self.place.used_slot(self.last_used);
            let id = u32::from_le_bytes(self.mem.peek(at));
            let len = u32::from_le_bytes(self.mem.peek(at + 4));
            let id = u16::try_from(id).expect("an id that was never offered");
            let ids = self.out.remove(&id).expect("a head returned twice");
            self.free.extend(ids);
            used.push((id, len));
            self.last_used = self.last_used.wrapping_add(1);
        }
        used
    }

    /// Section 2.7.10.1: whether to kick after `count` entries from `old` on.
    pub fn kicks_for(&self, old: u16, count: u16) -> bool {
        if !self.event_idx {
            return self.mem.peek_u16(self.place.used) == 0;
        }
        let event = self.mem.peek_u16(self.place.avail_event());
        (0..count).any(|i| old.wrapping_add(i) == event)
    }
}

/// A table in memory order.
pub fn table_bytes(table: &[Buf]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, buf) in table.iter().enumerate() {
        let more = if i + 1 < table.len() { NEXT } else { 0 };
        let flags = more | if buf.write { WRITE } else { 0 };
        bytes.extend(desc_bytes(buf.addr, buf.len, flags, i as u16 + 1));
    }
    bytes
}

/// The first byte that is free for a ring.
pub const RING: u64 = BASE;
