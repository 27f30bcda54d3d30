// SPDX-License-Identifier: GPL-2.0

//! Turns a wake-up of a kick eventfd or of a socket into work.

use crate::{
    kapi::{atomic::Bits, index::VringIndex, wait::Wake, work::WorkItem},
    worker::{Work, Worker},
};
use kernel::sync::Arc;

/// What woke a vring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The driver kicked.
    Kick,
    /// The socket has a packet, or room for one, or is done with some.
    Socket,
}

/// The work bit of an event of the vring `index` (0 or 1).
pub(crate) const fn bit(index: usize, event: Event) -> u32 {
    let bit: u32 = match event {
        Event::Kick => 1,
        Event::Socket => 2,
    };
    // Two bits a vring; the shift is masked, so it cannot overflow.
    bit.wrapping_shl((index as u32).wrapping_mul(2))
}

/// Queues work of one device when it is woken.
///
/// It keeps the device alive, which owns it: whoever ends the device takes the
/// wakers out of it.
pub(crate) struct Waker<W: Work> {
    item: Arc<WorkItem<W>>,
    worker: Arc<Worker<W>>,
    bit: u32,
    is_kick: bool,
}

impl<W: Work> Waker<W> {
    /// Makes the waker for one event of the vring `index`.
    pub(crate) fn new(
        item: Arc<WorkItem<W>>,
        worker: Arc<Worker<W>>,
        index: VringIndex,
        event: Event,
    ) -> Self {
        let bit = bit(index.get(), event);
        Self {
            item,
            worker,
            bit,
            is_kick: event == Event::Kick,
        }
    }
}

impl<W: Work> Wake for Waker<W> {
    fn wake(&self) {
        if self.is_kick {
            self.item.kicked(self.bit);
        }
        self.worker.queue(self.item.as_arc_borrow(), self.bit);
    }

    fn is_superfluous(&self) -> Option<(&Bits, u32)> {
        // Each kick counts.
        (!self.is_kick).then_some((self.item.pending(), self.bit))
    }
}
