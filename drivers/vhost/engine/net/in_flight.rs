// SPDX-License-Identifier: GPL-2.0

//! Packets that the socket sends from the guest's memory, and when to let it.
//!
//! A chain goes back to the driver once nobody reads it any more, in the order
//! in which chains were sent. C: `vhost_zerocopy_signal_used()`,
//! `vhost_exceeds_maxpend()`, `vhost_net_tx_select_zcopy()`.

use super::super::counters::Counter;
use super::super::error::Result;
use super::super::features;
use super::super::memory::GuestMemory;
use super::super::memory::UsedElem;
use super::super::split::SplitQueue;
use super::backend::Completion;
use super::backend::Completions;

/// Bytes from which on a packet is worth it (C: `VHOST_GOODCOPY_LEN`).
pub const MIN_LEN: usize = 256;
/// Packets that may be in flight when one more is sent, if the ring is not
/// small (C: `VHOST_MAX_PEND`).
pub const MAX_PENDING: u16 = 128;
/// Chains that wait for those before them, and places of packets in flight.
pub const SLOTS: usize = 256;

/// Packets after which the kernel's copies are forgotten.
const MEMORY: u16 = 1024;
/// Packets that make up for one that the kernel had to copy.
const PER_COPY: u16 = 64;

/// Chains that go back at once outside of a run, which has no scratch for
/// them.
const AT_ONCE: usize = 16;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS == 2 * 128 && MAX_PENDING == 128);

/// The chain in a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) head: u16,
    /// The socket has it, or had it.
    pub(crate) in_place: bool,
}

/// The chains of one vring that were sent and are not returned, the oldest
/// first.
///
/// All zero it is empty: the module takes it from zeroed heap memory, and looks
/// at the types of its fields.
#[derive(Debug)]
pub struct InFlight {
    pub(crate) entries: [Entry; SLOTS],
    /// The oldest, free-running (C: `done_idx`).
    pub(crate) first: u16,
    /// One behind the latest (C: `upend_idx`).
    pub(crate) next: u16,
    /// Those of them that are in place.
    pub(crate) pending: u16,
    /// Packets lately sent, in whatever way.
    pub(crate) packets: u16,
    /// Packets that the kernel lately had to copy.
    pub(crate) copied: u16,
}

/// The place of the free-running `index`.
#[inline]
fn slot(index: u16) -> usize {
    usize::from(index) & (SLOTS - 1)
}

impl InFlight {
    /// Nothing is in flight.
    pub const fn new() -> Self {
        const FREE: Entry = Entry {
            head: 0,
            in_place: false,
        };

        Self {
            entries: [FREE; SLOTS],
            first: 0,
            next: 0,
            pending: 0,
            packets: 0,
            copied: 0,
        }
    }

    /// Chains that are not returned.
    fn len(&self) -> u16 {
        self.next.wrapping_sub(self.first)
    }

    /// Whether all that was sent is returned.
    pub fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// Whether no chain can join before one is returned.
    pub fn is_full(&self) -> bool {
        self.is_full_after(0)
    }

    /// Whether none can after `more` others did.
    pub fn is_full_after(&self, more: u16) -> bool {
        usize::from(self.len().saturating_add(more)) >= SLOTS
    }

    /// Packets in place: the socket has them, or one before them.
    pub fn pending(&self) -> u16 {
        self.pending
    }

    /// Whether no packet is to be sent in place, in a ring of `num` entries,
    /// after `more` others are. C: `vhost_exceeds_maxpend()`.
    pub fn exceeds_pending(&self, num: u16, more: u16) -> bool {
        self.pending.saturating_add(more) > MAX_PENDING.min(num >> 2)
    }

    /// Whether the next packet is to be sent in place, if it is long enough.
    ///
    /// Not while more of them than one in 64 had to be copied after all.
    pub fn select(&self, num: u16) -> bool {
        !self.is_full() && !self.exceeds_pending(num, 0) && self.packets / PER_COPY >= self.copied
    }

    /// The slot of the next chain.
    pub fn slot(&self) -> usize {
        slot(self.next)
    }

    /// Adds a chain; it goes back when those before it do, and it is done
    /// itself. One that is not `in_place` is done. Nothing happens if it is
    /// full.
    pub fn push(&mut self, head: u16, in_place: bool) {
        if self.is_full() {
            return;
        }
        if let Some(entry) = self.entries.get_mut(slot(self.next)) {
            *entry = Entry { head, in_place };
            self.next = self.next.wrapping_add(1);
            self.pending = self.pending.wrapping_add(u16::from(in_place));
        }
    }

    /// Counts a packet that left, in whatever way. C: `vhost_net_tx_packet()`.
    pub fn sent(&mut self) {
        self.packets = self.packets.wrapping_add(1);
        if self.packets >= MEMORY {
            (self.packets, self.copied) = (0, 0);
        }
    }

    /// Takes off the oldest chain, if it is done. Answers its head, and what
    /// became of its packet if that was in place.
    pub fn pop(&mut self, done: &mut impl Completions) -> Option<(u16, Option<Completion>)> {
        if self.is_empty() {
            return None;
        }
        let entry = *self.entries.get(slot(self.first))?;
        let completion = if entry.in_place {
            let completion = done.complete(slot(self.first))?;
            self.pending = self.pending.wrapping_sub(1);
            Some(completion)
        } else {
            None
        };
        self.first = self.first.wrapping_add(1);
        if completion == Some(Completion::Copied) {
            self.copied = self.copied.saturating_add(1);
        }
        Some((entry.head, completion))
    }

    /// Returns all chains that are done, outside of a run; counts packets in
    /// place by `bump`. Answers whether the driver wants a call.
    ///
    /// # Errors
    ///
    /// The used ring cannot be written: chains are lost, as in C.
    #[inline(never)]
    pub fn return_done<M: GuestMemory>(
        &mut self,
        queue: &mut SplitQueue,
        mem: &M,
        done: &mut impl Completions,
        mut bump: impl FnMut(Counter),
    ) -> Result<bool> {
        let mut call = false;

        loop {
            let mut elems = [UsedElem::default(); AT_ONCE];
            let mut found = 0_usize;
            for elem in &mut elems {
                let Some((head, completion)) = self.pop(done) else {
                    break;
                };
                if let Some(completion) = completion {
                    count(completion, &mut bump);
                }
                *elem = used(head);
                found = found.wrapping_add(1);
            }
            let elems = elems.get(..found).unwrap_or_default();
            if elems.is_empty() {
                return Ok(call);
            }
            call |= give_back(queue, mem, elems)?;
        }
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self::new()
    }
}

/// Counts a packet in place that is done.
pub(super) fn count(completion: Completion, mut bump: impl FnMut(Counter)) {
    bump(Counter::ZerocopyDone);
    if completion == Completion::Copied {
        bump(Counter::ZerocopyErrors);
    }
}

/// The used element of a chain that the device only reads.
#[inline]
pub(super) fn used(head: u16) -> UsedElem {
    UsedElem {
        id: u32::from(head).to_le(),
        len: 0,
    }
}

/// Returns chains that were stepped over. Answers whether the driver wants a
/// call.
///
/// With `VIRTIO_F_IN_ORDER` one element would do for all; each chain has one
/// here, which is as good.
///
/// # Errors
///
/// The used ring cannot be written: the chains are lost, as in C.
pub(super) fn give_back<M: GuestMemory>(
    queue: &mut SplitQueue,
    mem: &M,
    elems: &[UsedElem],
) -> Result<bool> {
    // They are of one batch: it fits.
    let count = u16::try_from(elems.len()).unwrap_or(0);

    let asked = queue.return_used(mem, elems, count)?;
    Ok(queue.wants_call(asked))
}

/// Whether chains must go back in the order in which they came.
pub(super) fn in_order(queue: &SplitQueue) -> bool {
    queue.has(features::IN_ORDER)
}
