// SPDX-License-Identifier: GPL-2.0

//! The driver's half of a ring, field by field: any value can be written anywhere.

use std::sync::atomic::{fence, Ordering};

use vhost_driver::{Gpa, GuestMemory, RingLayout};

/// Descriptor flag: the chain goes on.
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// A descriptor, as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Desc {
    /// Address.
    pub addr: Gpa,
    /// Bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// Next descriptor.
    pub next: u16,
}

/// The driver's half of a ring, field by field.
#[derive(Clone, Debug)]
pub struct RawRing {
    memory: GuestMemory,
    ring: RingLayout,
    event_idx: bool,
}

impl RawRing {
    /// The fields of a ring in `memory`.
    pub fn new(memory: GuestMemory, ring: RingLayout, event_idx: bool) -> Self {
        Self {
            memory,
            ring,
            event_idx,
        }
    }

    /// Sets all indices and flags to 0, as before a start.
    pub fn reset(&self) {
        let ring = &self.ring;
        for at in [
            ring.avail_flags(),
            ring.avail_idx(),
            ring.used_event(),
            ring.used_flags(),
            ring.used_idx(),
            ring.avail_event(),
        ] {
            self.memory.store_u16(at, 0, Ordering::Relaxed);
        }
    }

    /// Number of descriptors.
    pub fn num(&self) -> u16 {
        self.ring.num
    }

    /// Writes descriptor `index` of the ring's own table.
    pub fn desc(&self, index: u16, desc: Desc) {
        self.desc_at(self.ring.desc, index, desc);
    }

    /// Writes descriptor `index` of a table anywhere.
    pub fn desc_at(&self, table: Gpa, index: u16, desc: Desc) {
        let at = table + 16 * u64::from(index);
        let memory = &self.memory;
        memory.store_u64(at, desc.addr.0);
        memory.store_u32(at + 8, desc.len);
        memory.store_u16(at + 12, desc.flags, Ordering::Relaxed);
        memory.store_u16(at + 14, desc.next, Ordering::Relaxed);
    }

    /// Writes the avail entry for `index`.
    pub fn avail(&self, index: u16, head: u16) {
        let at = self.ring.avail_entry(index);
        self.memory.store_u16(at, head, Ordering::Relaxed);
    }

    /// Shows the device an avail index.
    pub fn publish(&self, index: u16) {
        let at = self.ring.avail_idx();
        self.memory.store_u16(at, index, Ordering::Release);
    }

    /// Asks for a call when the chain for avail index `at` is returned.
    pub fn want_call(&self, at: u16) {
        if self.event_idx {
            let event = self.ring.used_event();
            self.memory.store_u16(event, at, Ordering::SeqCst);
        } else {
            let flags = self.ring.avail_flags();
            self.memory.store_u16(flags, 0, Ordering::SeqCst);
        }
    }

    /// The used index.
    pub fn used_idx(&self) -> u16 {
        self.memory
            .load_u16(self.ring.used_idx(), Ordering::Acquire)
    }

    /// The used entry for `index`: head and length.
    pub fn used(&self, index: u16) -> (u32, u32) {
        let at = self.ring.used_entry(index);
        (self.memory.load_u32(at), self.memory.load_u32(at + 4))
    }

    /// Whether a driver that moved its avail index from `old` to `new` has to kick (virtio 1.3, section 2.7.10.1).
    pub fn wants_kick(&self, old: u16, new: u16) -> bool {
        fence(Ordering::SeqCst);
        let load = |at| self.memory.load_u16(at, Ordering::Relaxed);
        if self.event_idx {
            let event = load(self.ring.avail_event());
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            load(self.ring.used_flags()) & 1 == 0
        }
    }
}
