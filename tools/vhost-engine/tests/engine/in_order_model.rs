// SPDX-License-Identifier: GPL-2.0

//! A driver that has negotiated `VIRTIO_F_IN_ORDER` (virtio 1.3, section 2.7.9).

use std::collections::VecDeque;

use crate::arena::Arena;
use crate::model::*;
use crate::rig::*;

/// Bytes that each buffer of a test may have.
pub const STRIDE: u64 = 4096;

/// A chain that the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain {
    head: u16,
    descs: u16,
    room: u32,
}

/// A chain that the device is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    pub head: u16,
    pub len: u32,
}

/// A driver that has negotiated the feature: descriptors are used in the order
/// of the table, and so is the avail ring.
pub struct InOrder<'m, 'a> {
    mem: &'m Arena<'a>,
    place: Place,
    /// The descriptor of the next chain, and how many are free.
    pub next: u16,
    free: u16,
    out: VecDeque<Chain>,
    pub avail_idx: u16,
    pub last_used: u16,
}

impl<'m, 'a> InOrder<'m, 'a> {
    pub fn new(rig: &Rig<'m, 'a>, base: u16) -> Self {
        let place = rig.driver.place;
        Self {
            mem: rig.mem,
            place,
            next: 0,
            free: place.num,
            out: VecDeque::new(),
            avail_idx: base,
            last_used: base,
        }
    }

    pub fn has_room(&self, descs: usize) -> bool {
        descs <= usize::from(self.free)
    }

    /// Sections 2.7.5 and 2.7.9.1: `next` is the following descriptor, and 0
    /// behind the last of the table.
    pub fn add(&mut self, bufs: &[Buf]) -> u16 {
        let (head, descs) = (self.next, bufs.len() as u16);
        assert!(descs <= self.free, "the table is full");
        for (i, buf) in bufs.iter().enumerate() {
            let after = (self.next + 1) % self.place.num;
            let write = if buf.write { WRITE } else { 0 };
            let more = if i + 1 < bufs.len() { NEXT } else { 0 };
            let bytes = desc_bytes(buf.addr, buf.len, write | more, after);
            let at = self.place.desc + 16 * u64::from(self.next);
            self.mem.poke(at, &bytes);
            self.next = after;
        }
        self.free -= descs;
        let room = bufs.iter().filter(|buf| buf.write).map(|buf| buf.len).sum();
        self.out.push_back(Chain { head, descs, room });
        let slot = self.place.avail_slot(self.avail_idx);
        self.mem.poke_u16(slot, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.mem.poke_u16(self.place.avail_idx(), self.avail_idx);
        head
    }

    /// Section 2.7.9: an element names the last chain of its batch and lies
    /// where that of the first would. The others were used up.
    pub fn collect(&mut self) -> Vec<Used> {
        let idx = self.mem.peek_u16(self.place.used_idx());
        let mut used = Vec::new();
        while self.last_used != idx {
            let at = self.place.used_slot(self.last_used);
            let id = u32::from_le_bytes(self.mem.peek(at));
            let len = u32::from_le_bytes(self.mem.peek(at + 4));
            loop {
                assert_ne!(self.last_used, idx, "a batch goes on behind the index");
                let chain = self.out.pop_front().expect("a batch without its last");
                self.last_used = self.last_used.wrapping_add(1);
                self.free += chain.descs;
                let last = u32::from(chain.head) == id;
                let len = if last { len } else { chain.room };
                assert!(len <= chain.room);
                let head = chain.head;
                used.push(Used { head, len });
                if last {
                    break;
                }
            }
        }
        used
    }
}

pub fn used(head: u16, len: u32) -> Used {
    Used { head, len }
}

/// A frame that says which one it is.
pub fn frame(id: u16) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend([id.to_le_bytes(); 30].concat());
    bytes
}

/// Offers the frame `id` as a chain of `descs` descriptors.
pub fn offer_frame(rig: &Rig<'_, '_>, driver: &mut InOrder<'_, '_>, id: u16, descs: usize) {
    let at = STRIDE * u64::from(driver.next);
    rig.mem.poke(rig.buffers + at, &frame(id));
    let each = 72 / descs as u32;
    let piece = |i: usize| {
        let start = each * i as u32;
        let end = if i + 1 == descs { 72 } else { start + each };
        out(GPA + at + u64::from(start), end - start)
    };
    driver.add(&(0..descs).map(piece).collect::<Vec<_>>());
}
