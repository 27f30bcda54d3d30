// SPDX-License-Identifier: GPL-2.0

//! The chains that a run has read ahead, and those it has taken.
//!
//! Both live for one run under the vring's lock. What was read ahead and not
//! taken is forgotten at its end; what was taken and not published stays the
//! ring's: the queue's `next_avail` moves in [`Batch::publish`] only.
//!
//! With `VIRTIO_F_IN_ORDER` (virtio 1.3, section 2.7.9) one used element can
//! return several chains: it names the last of them and lies where the first
//! one's would. Heads are read from the avail ring all the same. They could be
//! counted from chain to chain, as C does, but then no descriptor can be read
//! before the chain in front of it is walked; and after a stop and a start the
//! count would have to be guessed.

use super::addr::Segment;
use super::desc::Desc;
use super::error::Error;
use super::error::Result;
use super::memory::GuestMemory;
use super::memory::UsedElem;
use super::scratch::Scratch;
use super::scratch::BATCH;
use super::split::SplitQueue;
use core::ops::Range;
use core::slice;

/// A chain that was read ahead: its head and its first descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Index of the head, below the ring size.
    pub id: u16,
    /// The descriptor there.
    pub desc: Desc,
}

impl UsedElem {
    /// The element that returns the chain of `head` with `len` bytes written.
    #[inline]
    fn of(head: u16, len: u32) -> Self {
        Self {
            id: u32::from(head).to_le(),
            len: len.to_le(),
        }
    }
}

/// Stands where an element before it returns the chain too: no driver's head.
const SKIPPED: UsedElem = UsedElem {
    id: u32::MAX,
    len: 0,
};

/// The position of a run in the avail ring.
#[derive(Debug)]
pub struct Batch {
    /// Next entry of `Scratch::heads` and `Scratch::descs`.
    at: usize,
    /// Entries of them that were read.
    count: usize,
    /// Entries to read next time.
    want: usize,
    /// The last time there were fewer: there may be none now.
    drained: bool,
    /// Chains taken and not yet published; so many of `Scratch::used` count.
    taken: u16,
    /// The last element is enough to return them all.
    as_one: bool,
    /// There may be a [`SKIPPED`] element.
    merged: bool,
}

impl Batch {
    /// At the queue's `next_avail`; reads `want` chains ahead at first, then
    /// more each time.
    pub const fn new(want: usize) -> Self {
        Self {
            at: 0,
            count: 0,
            want,
            drained: false,
            taken: 0,
            as_one: false,
            merged: false,
        }
    }

    /// From now on one element returns all that was taken. For a driver that has
    /// `VIRTIO_F_IN_ORDER`, and chains into which nothing is written.
    pub fn return_as_one(&mut self) {
        self.as_one = true;
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

    /// Whether a chain that was read ahead is left.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.at < self.count
    }

    /// The next chain, once [`Batch::has_next`]. It stays where it is until
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
            *elem = UsedElem::of(head, len);
            self.at = self.at.wrapping_add(1);
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// Takes chains that were read ahead as long as `each` answers how many bytes
    /// are written into the chain that begins with the descriptor it is shown.
    /// It also gets a segment to fill in, the next one of `places`; their end ends
    /// it, and so does a head that is not below `num`, the ring's size. Answers how
    /// many were taken.
    #[inline]
    pub fn take_while(
        &mut self,
        scratch: &mut Scratch,
        num: u16,
        places: Range<usize>,
        mut each: impl FnMut(Desc, &mut Segment) -> Option<u32>,
    ) -> u16 {
        let ahead = self.at..self.count;
        let (Some(heads), Some(descs), Some(segments), Some(used)) = (
            scratch.heads.get(ahead.clone()),
            scratch.descs.get(ahead),
            scratch.segments.get_mut(places),
            scratch.used.get_mut(self.taken.into()..),
        ) else {
            return 0;
        };
        let places = segments.iter_mut().zip(used);

        let mut count = 0_u16;
        for ((&id, &raw), (segment, elem)) in heads.iter().zip(descs).zip(places) {
            if id >= num {
                break;
            }
            let Some(len) = each(Desc::new(raw), segment) else {
                break;
            };
            *elem = UsedElem::of(id, len);
            count = count.wrapping_add(1);
        }
        self.at = self.at.wrapping_add(count.into());
        self.taken = self.taken.wrapping_add(count);
        count
    }

    /// Steps over the chain that [`Batch::head`] showed: it is not among the
    /// taken ones, and returned in some other way.
    pub fn step_over(&mut self, queue: &mut SplitQueue) {
        self.at = self.at.wrapping_add(1);
        queue.step_over();
    }

    /// Lets one element return the last `count` chains taken, all of which but
    /// the last are full. For a driver that has `VIRTIO_F_IN_ORDER`.
    pub fn merge(&mut self, scratch: &mut Scratch, count: u16) {
        let (end, count) = (usize::from(self.taken), usize::from(count));
        let chains = end.checked_sub(count).and_then(|start| {
            let taken = scratch.used.get_mut(start..end)?;
            taken.split_first_mut()
        });
        if let Some((first, rest)) = chains {
            if let Some(last) = rest.last() {
                *first = *last;
                rest.fill(SKIPPED);
                self.merged = true;
            }
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

    /// Whether there may be no chain now: the last time there were fewer than
    /// asked for. To look at the index alone costs less than to find no heads.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Reads chains ahead, if none are. `false` if there are none.
    ///
    /// # Errors
    ///
    /// [`Error::BadRing`] if the avail index jumped; what the memory answers.
    #[inline]
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
        let descs = &mut scratch.descs;
        let fetched = mem.fetch_chains(&queue.rings(), next, heads, descs)?;

        let available = queue.accept_avail_idx(fetched.avail_idx, self.taken)?;
        self.drained = usize::from(available) < want;
        if available == 0 {
            return Ok(false);
        }
        self.count = fetched.count.min(usize::from(available));
        if self.count == 0 {
            return Err(Error::Fault);
        }
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
        let Some(last) = elems.last() else {
            return Ok(None);
        };
        let elems = if self.as_one {
            slice::from_ref(last)
        } else if self.merged {
            write_merged(queue, mem, elems)?;
            &[]
        } else {
            elems
        };
        let asked = queue.publish(mem, elems, self.taken)?;
        self.taken = 0;
        self.merged = false;
        Ok(Some(queue.wants_call(asked)))
    }
}

/// Writes the elements that are not [`SKIPPED`], each where it belongs.
#[inline(never)]
fn write_merged<M: GuestMemory>(queue: &SplitQueue, mem: &M, elems: &[UsedElem]) -> Result {
    let mut rest = elems;
    let mut ahead = 0_u16;

    while let Some(first) = rest.first() {
        let skipped = *first == SKIPPED;
        let same = rest
            .iter()
            .take_while(|elem| (**elem == SKIPPED) == skipped);
        let (run, later) = rest.split_at_checked(same.count()).unwrap_or((rest, &[]));
        if !skipped {
            queue.write_used(mem, ahead, run)?;
        }
        // Of the elements of one batch: it fits.
        ahead = ahead.wrapping_add(u16::try_from(run.len()).unwrap_or(0));
        rest = later;
    }
    Ok(())
}
