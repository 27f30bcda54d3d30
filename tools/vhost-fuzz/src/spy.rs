// SPDX-License-Identifier: GPL-2.0

//! Memory that remembers which heads the engine was given and what it returned.
//!
//! A driver that rewrites its ring cannot tell this afterwards; what passes the
//! engine's own interface can.

use std::cell::RefCell;
use std::collections::BTreeMap;

use vhost_engine::engine::addr::{RingAddr, Segment, Uva};
use vhost_engine::engine::error::Result;
use vhost_engine::engine::memory::{Fetched, GuestMemory, RawDesc, UsedElem};
use vhost_engine::engine::split::SplitQueue;

/// Indices of a queue at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    base: u16,
    used: u16,
}

impl Mark {
    pub fn of(queue: &SplitQueue) -> Self {
        let [_, used] = queue.indices();
        let base = queue.base();
        Self { base, used }
    }

    /// Chains taken since.
    pub fn chains(self, queue: &SplitQueue) -> u16 {
        queue.base().wrapping_sub(self.base)
    }
}

/// What the engine was told and has told, by place in the rings.
#[derive(Default)]
pub struct Seen {
    /// The head that was handed out last, by avail index.
    heads: BTreeMap<u16, u16>,
    /// The element that was written last, by slot.
    elems: BTreeMap<u64, UsedElem>,
    /// The used index that was stored last.
    index: Option<u16>,
    /// Heads of chains that were taken and are not returned.
    out: Vec<u16>,
}

pub struct Spy<'s, M> {
    mem: &'s M,
    used: RingAddr,
    seen: &'s RefCell<Seen>,
}

impl<'s, M> Spy<'s, M> {
    pub fn new(mem: &'s M, queue: &SplitQueue, seen: &'s RefCell<Seen>) -> Self {
        let [_, _, used] = queue.addresses();
        Self { mem, used, seen }
    }
}

impl Seen {
    /// Forgets what a run saw, but for chains that are out.
    fn forget(&mut self) {
        self.heads.clear();
        self.elems.clear();
        self.index = None;
    }

    /// The elements written since `before`, and how far behind it each is.
    fn returned(&self, before: Mark, queue: &SplitQueue) -> Vec<(u16, UsedElem)> {
        let count = Mark::of(queue).used.wrapping_sub(before.used);
        let first = count.saturating_sub(queue.num());
        let elem = |i: u16| {
            let slot = before.used.wrapping_add(i) % queue.num();
            Some((i, *self.elems.get(&slot.into())?))
        };
        (first..count).filter_map(elem).collect()
    }

    /// After a run: each chain that is gone was returned once, in its place,
    /// under the head that was handed out for it, and no other.
    pub fn check(&mut self, before: Mark, queue: &SplitQueue, in_order: bool) {
        let now = Mark::of(queue);
        let count = before.chains(queue);
        assert_eq!(
            now.used.wrapping_sub(before.used),
            count,
            "each chain that is gone was returned, and no other"
        );
        self.check_index(before, now);
        let returned = self.returned(before, queue);
        if !in_order {
            let first = count.saturating_sub(queue.num());
            let all = (first..count).eq(returned.iter().map(|(i, _)| *i));
            assert!(all, "elements are missing: {returned:?} of {count}");
        }
        for (n, (i, elem)) in returned.iter().enumerate() {
            // In order an element holds until the next one.
            let last = match returned.get(n + 1) {
                Some((next, _)) => next - 1,
                None => count - 1,
            };
            assert!(in_order || last == *i);
            let head = self.heads.get(&before.base.wrapping_add(last));
            assert!(u32::from_le(elem.id) < queue.num().into(), "no descriptor");
            assert_eq!(
                Some(u32::from_le(elem.id)),
                head.copied().map(u32::from),
                "chain {last} of {count}"
            );
        }
        self.forget();
    }

    /// [`Seen::check`] where chains may be returned later, and others before
    /// them. Answers how many were returned.
    pub fn check_late(&mut self, before: Mark, queue: &SplitQueue) -> u16 {
        let now = Mark::of(queue);
        for i in 0..before.chains(queue) {
            let at = before.base.wrapping_add(i);
            let head = self.heads.get(&at).expect("a chain that nobody offered");
            self.out.push(*head);
        }
        self.check_index(before, now);
        let count = now.used.wrapping_sub(before.used);
        let returned = self.returned(before, queue);
        for (_, elem) in &returned {
            let id = u32::from_le(elem.id);
            let at = self.out.iter().position(|head| u32::from(*head) == id);
            self.out.swap_remove(at.expect("a head that is not out"));
        }
        self.forget();
        count
    }

    /// Chains that are out.
    pub fn out(&self) -> usize {
        self.out.len()
    }

    /// The driver was told the index that the queue has, if it moved.
    fn check_index(&self, before: Mark, now: Mark) {
        if now.used != before.used {
            assert_eq!(self.index, Some(now.used), "the index that was told");
        }
    }
}

impl<M: GuestMemory> GuestMemory for Spy<'_, M> {
    fn fetch_heads(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched> {
        let fetched = self.mem.fetch_heads(avail, num, next, heads)?;
        let mut seen = self.seen.borrow_mut();
        for (i, head) in (0..).zip(&heads[..fetched.count]) {
            seen.heads.insert(next.wrapping_add(i), *head);
        }
        Ok(fetched)
    }

    fn read_descs(&self, table: RingAddr, num: u16, heads: &[u16], out: &mut [RawDesc]) -> Result {
        self.mem.read_descs(table, num, heads, out)
    }

    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> Result {
        self.mem.write_used(to, elems)?;
        let offset = to.0.wrapping_sub(self.used.0);
        assert!(
            offset >= 4 && (offset - 4) % 8 == 0,
            "no place for an element"
        );
        let mut seen = self.seen.borrow_mut();
        for (slot, elem) in ((offset - 4) / 8..).zip(elems) {
            seen.elems.insert(slot, *elem);
        }
        Ok(())
    }

    fn load_u16(&self, from: RingAddr) -> Result<u16> {
        self.mem.load_u16(from)
    }

    fn store_u16(&self, to: RingAddr, value: u16) -> Result {
        self.mem.store_u16(to, value)?;
        if to == self.used.add(2) {
            self.seen.borrow_mut().index = Some(value);
        }
        Ok(())
    }

    fn fence(&self) {
        self.mem.fence();
    }

    fn read(&self, from: Uva, dst: &mut [u8]) -> Result {
        self.mem.read(from, dst)
    }

    fn write(&self, to: Uva, src: &[u8]) -> Result {
        self.mem.write(to, src)
    }

    fn written(&self, segments: &[Segment], len: u64) {
        self.mem.written(segments, len);
    }
}
