// SPDX-License-Identifier: GPL-2.0

//! A split virtqueue, from the driver's side.

use std::sync::atomic::{fence, Ordering};

use crate::error::{Error, Result};
use crate::layout::{RingLayout, DESC_SIZE};
use crate::memory::{Gpa, GuestMemory};

const DESC_F_NEXT: u16 = 1;
const DESC_F_WRITE: u16 = 2;
const DESC_F_INDIRECT: u16 = 4;
const AVAIL_F_NO_INTERRUPT: u16 = 1;
const USED_F_NO_NOTIFY: u16 = 1;

/// A piece of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub addr: Gpa,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes to it; if not, the device reads it.
    pub writable: bool,
}

/// Room for indirect tables: one for each descriptor of the ring, `entries` long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indirect {
    /// The first table, aligned to 16.
    pub tables: Gpa,
    /// Descriptors of one table. A chain with more goes direct.
    pub entries: u16,
}

impl Indirect {
    /// Bytes of the tables of a ring of `num` descriptors.
    pub fn size(num: u16, entries: u16) -> u64 {
        u64::from(num) * u64::from(entries) * DESC_SIZE
    }

    fn table(&self, head: u16) -> Gpa {
        self.tables + Self::size(head, self.entries)
    }
}

/// What driver and device agreed on, as far as the ring knows of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingFeatures {
    /// `VIRTIO_F_EVENT_IDX`: indices in place of flags say when to kick and to call.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`: chains of two segments and more go into tables of their own.
    pub indirect: Option<Indirect>,
    /// `VIRTIO_F_NOTIFY_ON_EMPTY` (legacy): the device calls when it runs out of chains, calls wanted or not.
    pub notify_on_empty: bool,
    /// `VIRTIO_F_IN_ORDER`: chains are used in the order of the avail ring, and one used entry may return several of them.
    pub in_order: bool,
}

/// When the driver wants a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWhen {
    /// As soon as one more chain is used.
    Next,
    /// When all chains are used. Without `EVENT_IDX` and `NOTIFY_ON_EMPTY` there is no way to say so, and it is as `Next`.
    All,
}

/// A chain that the device is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// What the chain was added with.
    pub token: u32,
    /// Bytes that the device wrote to it.
    pub len: u32,
}

/// A chain that the device has.
#[derive(Clone, Copy, Debug)]
struct Chain {
    token: u32,
    /// Its index in the avail ring.
    index: u16,
    descriptors: u16,
    last: u16,
    room: u32,
}

/// What a used entry says (virtio 1.3, section 2.7.8).
#[derive(Clone, Copy, Debug)]
struct UsedEntry {
    index: u16,
    id: u32,
    len: u32,
}

/// The driver's half of a split virtqueue.
///
/// A chain is added, then [published](Virtqueue::publish) with others, then the device is kicked if it
/// [wants](Virtqueue::wants_kick) to be.
#[derive(Debug)]
pub struct Virtqueue {
    memory: GuestMemory,
    ring: RingLayout,
    features: RingFeatures,
    /// The free descriptors as a list, and of each chain the order of its descriptors. The table in memory is not read back.
    /// In order, the list is the table, which is gone through in circles.
    next: Vec<u16>,
    free_head: u16,
    free: u16,
    chains: Vec<Option<Chain>>,
    outstanding: u16,
    /// Heads as they were made available, by slot of the avail ring.
    heads: Vec<u16>,
    /// In order: the entry of the batch in hand, of which chains have yet to be taken back.
    batch: Option<UsedEntry>,
    avail_idx: u16,
    /// The avail index when a kick was last decided on.
    kicked_idx: u16,
    next_used: u16,
}

impl Virtqueue {
    /// Sets up an empty ring whose indices begin at `start`. Calls are off.
    ///
    /// # Errors
    ///
    /// [`Error::BadLayout`] if a part is not inside of the memory. That each is in one region, if the device is told of
    /// regions, is for others to see to.
    pub fn new(
        memory: GuestMemory,
        ring: RingLayout,
        features: RingFeatures,
        start: u16,
    ) -> Result<Self> {
        let parts = [
            (ring.desc, DESC_SIZE * u64::from(ring.num)),
            (ring.avail, 6 + 2 * u64::from(ring.num)),
            (ring.used, 6 + 8 * u64::from(ring.num)),
        ];
        if parts
            .iter()
            .any(|(start, len)| !memory.contains(*start, *len))
        {
            return Err(Error::BadLayout(u32::from(ring.num)));
        }
        let queue = Self {
            next: (1..ring.num).chain([0]).collect(),
            free_head: 0,
            free: ring.num,
            chains: vec![None; usize::from(ring.num)],
            outstanding: 0,
            heads: vec![0; usize::from(ring.num)],
            batch: None,
            avail_idx: start,
            kicked_idx: start,
            next_used: start,
            memory,
            ring,
            features,
        };
        queue
            .memory
            .store_u16(ring.used_flags(), 0, Ordering::Relaxed);
        queue
            .memory
            .store_u16(ring.used_idx(), start, Ordering::Relaxed);
        queue.disable_calls();
        queue.publish();
        Ok(queue)
    }

    /// Where the ring is.
    pub fn layout(&self) -> &RingLayout {
        &self.ring
    }

    /// The memory the ring is in.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Chains that the device has.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// The index that the next chain added will have.
    pub fn avail_idx(&self) -> u16 {
        self.avail_idx
    }

    /// The index of the next used entry.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Whether a chain of `segments` segments can be added now.
    pub fn has_room(&self, segments: usize) -> bool {
        self.descriptors_for(segments) <= usize::from(self.free)
    }

    fn descriptors_for(&self, segments: usize) -> usize {
        if self.table_for(segments).is_some() {
            1
        } else {
            segments
        }
    }

    fn table_for(&self, segments: usize) -> Option<Indirect> {
        let fits = |indirect: &Indirect| segments >= 2 && segments <= usize::from(indirect.entries);
        self.features.indirect.filter(fits)
    }

    /// Adds a chain; the device sees it when it is published. `token` comes back when it is used.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::BadChain`].
    pub fn add(&mut self, segments: &[Segment], token: u32) -> Result {
        let mixed = segments
            .windows(2)
            .any(|pair| pair[0].writable && !pair[1].writable);
        if segments.is_empty() || mixed {
            return Err(Error::BadChain);
        }
        let wanted = self.descriptors_for(segments.len());
        if wanted > usize::from(self.free) {
            let free = usize::from(self.free);
            return Err(Error::Full { wanted, free });
        }

        let head = self.free_head;
        let last = match self.table_for(segments.len()) {
            Some(indirect) => self.write_indirect(head, indirect.table(head), segments),
            None => self.write_direct(head, segments),
        };
        self.free_head = self.next[usize::from(last)];
        // CAST: At most `free`, a u16.
        let descriptors = wanted as u16;
        self.free -= descriptors;
        self.chains[usize::from(head)] = Some(Chain {
            token,
            index: self.avail_idx,
            descriptors,
            last,
            room: segments
                .iter()
                .filter(|segment| segment.writable)
                .map(|segment| segment.len)
                .sum(),
        });
        self.outstanding += 1;
        let slot = self.slot(self.avail_idx);
        self.heads[slot] = head;
        self.memory.store_u16(
            self.ring.avail_entry(self.avail_idx),
            head,
            Ordering::Relaxed,
        );
        self.avail_idx = self.avail_idx.wrapping_add(1);
        Ok(())
    }

    /// Writes a chain into descriptors of the ring, along the free list. Returns the last one.
    fn write_direct(&self, head: u16, segments: &[Segment]) -> u16 {
        let mut index = head;
        let mut last = head;
        for (position, segment) in segments.iter().enumerate() {
            let next = self.next[usize::from(index)];
            let more = position + 1 < segments.len();
            self.write_desc(
                self.ring.desc,
                index,
                segment,
                if more { Some(next) } else { None },
            );
            last = index;
            index = next;
        }
        last
    }

    /// Writes a chain into a table, and the table's address into `head`. Returns the last descriptor, which is `head`.
    fn write_indirect(&self, head: u16, table: Gpa, segments: &[Segment]) -> u16 {
        for (position, segment) in (0u16..).zip(segments) {
            let more = usize::from(position) + 1 < segments.len();
            self.write_desc(table, position, segment, more.then_some(position + 1));
        }
        let at = self.ring.desc + DESC_SIZE * u64::from(head);
        self.memory.store_u64(at, table.0);
        // CAST: A table has at most 32768 descriptors of 16 bytes.
        self.memory
            .store_u32(at + 8, segments.len() as u32 * DESC_SIZE as u32);
        self.memory
            .store_u16(at + 12, DESC_F_INDIRECT, Ordering::Relaxed);
        self.memory.store_u16(at + 14, 0, Ordering::Relaxed);
        head
    }

    fn write_desc(&self, table: Gpa, index: u16, segment: &Segment, next: Option<u16>) {
        let at = table + DESC_SIZE * u64::from(index);
        let write = if segment.writable { DESC_F_WRITE } else { 0 };
        let flags = write | next.map_or(0, |_| DESC_F_NEXT);
        self.memory.store_u64(at, segment.addr.0);
        self.memory.store_u32(at + 8, segment.len);
        self.memory.store_u16(at + 12, flags, Ordering::Relaxed);
        self.memory
            .store_u16(at + 14, next.unwrap_or(0), Ordering::Relaxed);
    }

    /// Shows the device all chains added (virtio 1.3, section 2.7.13.3).
    pub fn publish(&self) {
        // Release: descriptors and entries are visible before the index. Pairs with the device's read barrier between its
        // look at the index and at the entries.
        self.memory
            .store_u16(self.ring.avail_idx(), self.avail_idx, Ordering::Release);
    }

    /// Whether the device wants a kick for what was published since this was last asked (virtio 1.3, section 2.7.13.4).
    pub fn wants_kick(&mut self) -> bool {
        // Full barrier: our index must be visible before we look at what the device wants, or both sleep. Pairs with the
        // device's between its store to `avail_event` (or flags) and its last look at the index.
        fence(Ordering::SeqCst);
        let old = std::mem::replace(&mut self.kicked_idx, self.avail_idx);
        if old == self.avail_idx {
            return false;
        }
        if self.features.event_idx {
            let event = self
                .memory
                .load_u16(self.ring.avail_event(), Ordering::Relaxed);
            // The event is crossed if it lies in old..avail_idx.
            event.wrapping_sub(old) < self.avail_idx.wrapping_sub(old)
        } else {
            self.memory
                .load_u16(self.ring.used_flags(), Ordering::Relaxed)
                & USED_F_NO_NOTIFY
                == 0
        }
    }

    /// The used index as the device shows it now.
    pub fn used_idx(&self) -> u16 {
        // Acquire: used entries and buffers are read after the index.
        self.memory
            .load_u16(self.ring.used_idx(), Ordering::Acquire)
    }

    /// Takes back a chain that the device is done with, if there is one (virtio 1.3, section 2.7.14).
    ///
    /// # Errors
    ///
    /// [`Error::UsedIndexJumped`], [`Error::NotOutstanding`], [`Error::BatchTooLong`], [`Error::UsedTooLong`]: the device
    /// broke the rules.
    pub fn pop_used(&mut self) -> Result<Option<Used>> {
        let used_idx = self.used_idx();
        let pending = used_idx.wrapping_sub(self.next_used);
        if pending == 0 {
            return Ok(None);
        }
        if pending > self.outstanding {
            return Err(Error::UsedIndexJumped {
                from: self.next_used,
                to: used_idx,
                outstanding: self.outstanding,
            });
        }

        let used = if self.features.in_order {
            self.next_in_order(pending)?
        } else {
            self.entry(self.next_used)
        };
        let UsedEntry { index, id, len } = used;
        let slot = usize::try_from(id)
            .ok()
            .and_then(|id| self.chains.get_mut(id));
        let chain = slot
            .and_then(Option::take)
            .ok_or(Error::NotOutstanding { index, id })?;
        // CAST: An index into `chains`, which has at most 32768 elements.
        self.release(id as u16, &chain);
        self.next_used = self.next_used.wrapping_add(1);
        let room = chain.room;
        if len > room {
            return Err(Error::UsedTooLong { index, len, room });
        }
        let token = chain.token;
        Ok(Some(Used { token, len }))
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.ring.num - 1))
    }

    fn entry(&self, index: u16) -> UsedEntry {
        let at = self.ring.used_entry(index);
        let (id, len) = (self.memory.load_u32(at), self.memory.load_u32(at + 4));
        UsedEntry { index, id, len }
    }

    /// The next chain of the batch in hand, or of a new one: an entry names the last chain of its batch, and lies where the
    /// first one's would. The others were used up (virtio 1.3, section 2.7.9).
    fn next_in_order(&mut self, pending: u16) -> Result<UsedEntry> {
        let last = self.batch.unwrap_or_else(|| self.entry(self.next_used));
        let UsedEntry { index, id, .. } = last;
        let chain = usize::try_from(id)
            .ok()
            .and_then(|id| self.chains.get(id).copied().flatten())
            .ok_or(Error::NotOutstanding { index, id })?;
        let rest = chain.index.wrapping_sub(self.next_used);
        if rest >= pending {
            return Err(Error::BatchTooLong { index, id, pending });
        }
        if rest == 0 {
            self.batch = None;
            return Ok(last);
        }
        self.batch = Some(last);
        let head = self.heads[self.slot(self.next_used)];
        let full = self.chains[usize::from(head)].map_or(0, |chain| chain.room);
        Ok(UsedEntry {
            index,
            id: u32::from(head),
            len: full,
        })
    }

    /// Frees the descriptors of a chain: in front of the free list, or, in order, at the end of what is free of the circle.
    fn release(&mut self, head: u16, chain: &Chain) {
        if !self.features.in_order {
            self.next[usize::from(chain.last)] = self.free_head;
            self.free_head = head;
        }
        self.free += chain.descriptors;
        self.outstanding -= 1;
    }

    /// Says that no call is wanted. The device may call all the same (virtio 1.3, section 2.7.7).
    pub fn disable_calls(&self) {
        if self.features.event_idx {
            // The flags are to be 0 then; an event just passed is the one that lies furthest ahead.
            self.memory
                .store_u16(self.ring.avail_flags(), 0, Ordering::Relaxed);
            self.memory.store_u16(
                self.ring.used_event(),
                self.next_used.wrapping_sub(1),
                Ordering::Relaxed,
            );
        } else {
            self.memory.store_u16(
                self.ring.avail_flags(),
                AVAIL_F_NO_INTERRUPT,
                Ordering::Relaxed,
            );
        }
    }

    /// Says that a call is wanted, and when. Returns whether it is safe to wait for it: if not, what it would have announced
    /// is already there.
    pub fn enable_calls(&self, when: CallWhen) -> bool {
        let ahead = match when {
            CallWhen::Next => 0,
            CallWhen::All => self.outstanding.saturating_sub(1),
        };
        let by_empty = when == CallWhen::All && self.features.notify_on_empty;
        if by_empty {
            self.disable_calls();
        } else if self.features.event_idx {
            let event = self.next_used.wrapping_add(ahead);
            self.memory
                .store_u16(self.ring.used_event(), event, Ordering::Relaxed);
        } else {
            self.memory
                .store_u16(self.ring.avail_flags(), 0, Ordering::Relaxed);
        }
        // Full barrier: our wish must be visible before we look again. Pairs with the device's between its store to the used
        // index and its look at `used_event` (or flags).
        fence(Ordering::SeqCst);
        let used = self.used_idx().wrapping_sub(self.next_used);
        if by_empty || self.features.event_idx {
            used <= ahead
        } else {
            used == 0
        }
    }
}
