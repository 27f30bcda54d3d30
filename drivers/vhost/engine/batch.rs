// SPDX-License-Identifier: GPL-2.0

//! The chains that a run has read ahead, and those it has taken.
//!
//! Both live for one run under the vring's lock. What was read ahead and not
//! taken is forgotten at its end; what was taken and not published stays the
//! ring's: the queue's `next_avail` moves in [`Batch::publish`] only.

use super::desc::Desc;
use super::error::Error;
use super::error::Result;
use super::memory::GuestMemory;
use super::memory::UsedElem;
use super::scratch::Scratch;
use super::scratch::BATCH;
use super::split::SplitQueue;

/// A chain that was read ahead: its head and its first descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Index of the head, below the ring size.
    pub id: u16,
    /// The descriptor there.
    pub desc: Desc,
}

/// The position of a run in the avail ring.
#[derive(Debug)]
pub struct Batch {
    /// Next entry of `Scratch::heads` and `Scratch::descs`.
    at: usize,
    /// Entries of them that were read.
    count: usize,
    /// Entries to read next time.
    want: usize,
    /// Chains taken and not yet published; so many of `Scratch::used` count.
    taken: u16,
}

impl Batch {
    /// At the queue's `next_avail`; reads `want` chains ahead at first, then
    /// more each time.
    pub const fn new(want: usize) -> Self {
        Self {
            at: 0,
            count: 0,
            want,
            taken: 0,
        }
    }

    /// Chains taken and not yet published.
    #[inline]
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Whether another chain was read ahead behind the next one.
    #[inline]
    pub fn has_two(&self) -> bool {
        self.at.saturating_add(1) < self.count
    }

    /// Whether there is another chain; reads more ahead if need be.
    ///
    /// # Errors
    ///
    /// As [`Batch::fetch`].
    #[inline]
    pub fn ready<M: GuestMemory>(
        &mut self,
        queue: &mut SplitQueue,
        mem: &M,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        if self.at < self.count {
            return Ok(true);
        }
        self.fetch(queue, mem, scratch)
    }

    /// The next chain, once [`Batch::ready`] is true. It stays where it is until
    /// [`Batch::take`].
    ///
    /// # Errors
    ///
    /// [`Error::BadRing`] for a head that is no index of the table.
    #[inline]
    pub fn head(&self, queue: &SplitQueue, scratch: &Scratch) -> Result<Head> {
        match (scratch.heads.get(self.at), scratch.descs.get(self.at)) {
            (Some(&id), Some(&raw)) if id < queue.num() => Ok(Head {
                id,
                desc: Desc::new(raw),
            }),
            _ => Err(Error::BadRing),
        }
    }

    /// Takes the chain that [`Batch::head`] showed: it will be returned with
    /// `len` bytes written.
    #[inline]
    pub fn take(&mut self, scratch: &mut Scratch, head: u16, len: u32) {
        if let Some(elem) = scratch.used.get_mut(usize::from(self.taken)) {
            *elem = UsedElem {
                id: u32::from(head).to_le(),
                len: len.to_le(),
            };
            self.at = self.at.wrapping_add(1);
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// Puts the last `count` chains taken back.
    pub fn put_back(&mut self, count: u16) {
        self.taken = self.taken.saturating_sub(count);
        match self.at.checked_sub(usize::from(count)) {
            Some(at) => self.at = at,
            // They were read before the last fetch: read them again.
            None => (self.at, self.count) = (0, 0),
        }
    }

    /// Reads chains ahead, if none are. `false` if there are none.
    ///
    /// # Errors
    ///
    /// [`Error::BadRing`] if the avail index jumped; what the memory answers.
    #[inline(never)]
    pub fn fetch<M: GuestMemory>(
        &mut self,
        queue: &mut SplitQueue,
        mem: &M,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        (self.at, self.count) = (0, 0);

        let next = queue.base().wrapping_add(self.taken);
        let want = self.want.min(BATCH);
        self.want = want.saturating_mul(4);
        let heads = scratch.heads.get_mut(..want).unwrap_or_default();
        let fetched = mem.fetch_heads(queue.avail(), queue.num(), next, heads)?;

        let available = queue.accept_avail_idx(fetched.avail_idx, self.taken)?;
        if available == 0 {
            return Ok(false);
        }
        let count = fetched.count.min(usize::from(available));
        let (Some(heads), Some(descs)) = (heads.get(..count), scratch.descs.get_mut(..count))
        else {
            return Err(Error::Fault);
        };
        if heads.is_empty() {
            return Err(Error::Fault);
        }
        mem.read_descs(queue.desc(), queue.num(), heads, descs)?;
        self.count = count;
        Ok(true)
    }

    /// Returns the taken chains to the driver. `None` if there are none, else
    /// whether the driver wants a call.
    ///
    /// # Errors
    ///
    /// The used ring cannot be written; the chains are still taken.
    #[inline]
    pub fn publish<M: GuestMemory>(
        &mut self,
        queue: &mut SplitQueue,
        mem: &M,
        scratch: &Scratch,
    ) -> Result<Option<bool>> {
        let Some(elems) = scratch.used.get(..usize::from(self.taken)) else {
            return Err(Error::Fault);
        };
        if elems.is_empty() {
            return Ok(None);
        }
        queue.publish(mem, elems, self.taken)?;
        self.taken = 0;
        Ok(Some(queue.wants_call(mem)))
    }
}
