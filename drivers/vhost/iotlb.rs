// SPDX-License-Identifier: GPL-2.0

//! The device IOTLB: a vring's copy of it, and the messages of a device.
//!
//! Each vring has a copy of its own under its own lock, so that nobody needs
//! two vrings' locks, and a change has reached a vring when its lock was had.

use crate::{
    engine::{
        iotlb::{Iotlb, Range},
        miss::{Miss, Misses, MSG_BYTES},
    },
    kapi::{chrdev::Poll, iter::Dest, param, user_memory::access_ok},
};
use kernel::{
    current,
    prelude::*,
    static_lock_class,
    sync::{new_mutex, poll::PollCondVarBox, Mutex},
};

/// A vring's copy of the IOTLB.
pub(crate) type VringIotlb = Iotlb<KVVec<Range>>;

/// An empty IOTLB.
///
/// # Errors
///
/// `EFAULT` if the module's parameters allow no entry.
pub(crate) fn empty() -> Result<VringIotlb> {
    let limit = param::max_iotlb_entries().ok_or(EFAULT)?;
    Ok(Iotlb::new(KVVec::new(), limit.get()))
}

/// Sees to it that an entry can be added.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn make_room(iotlb: &mut VringIotlb) -> Result {
    let Some(wanted) = iotlb.wanted() else {
        return Ok(());
    };
    let mut new = KVVec::with_capacity(wanted, GFP_KERNEL)?;
    let room = iotlb.room();

    for at in 0..wanted {
        let range = room.get(at).copied().unwrap_or(Range::EMPTY);
        new.push_within_capacity(range).map_err(|_| ENOMEM)?;
    }
    *room = new;
    Ok(())
}

/// The entry for `size` bytes at `iova`, which lie at `uva` in the owner's
/// memory.
///
/// # Errors
///
/// `EFAULT` if one of the ranges wraps, or does not lie where user memory may.
pub(crate) fn entry(iova: u64, size: u64, uva: u64, access: u32) -> Result<Range> {
    let range = Range::new(iova, last_of(iova, size), uva, access)?;

    uva.checked_add(size.wrapping_sub(1)).ok_or(EFAULT)?;
    if range.is_usable() && !access_ok(uva, size) {
        return Err(EFAULT);
    }
    Ok(range)
}

/// The last address of a range that is not empty. It may wrap.
pub(crate) fn last_of(start: u64, size: u64) -> u64 {
    start.wrapping_add(size).wrapping_sub(1)
}

/// What the lock of a channel protects.
struct State<const N: usize> {
    misses: Misses<N>,
    /// There is an IOTLB.
    open: bool,
}

/// The messages of a device with `N` vrings: misses that the owner reads.
#[pin_data]
pub(crate) struct Channel<const N: usize> {
    #[pin]
    state: Mutex<State<N>>,
    /// There is something to read, or the channel was closed.
    news: PollCondVarBox,
}

impl<const N: usize> Channel<N> {
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            state <- new_mutex!(
                State {
                    misses: Misses::new(),
                    open: false,
                },
                "Channel::state"
            ),
            news: PollCondVarBox::new(c"Channel::news", static_lock_class!())?,
        })
    }

    /// Asks the owner for the vring `index`, unless it has been asked.
    pub(crate) fn ask(&self, index: usize, miss: Miss) {
        if self.state.lock().misses.ask(index, miss) {
            self.news.notify_all();
        }
    }

    /// Ends the misses from `start` to `last` that the owner has read. Answers
    /// of each vring whether its own did.
    pub(crate) fn answer(&self, start: u64, last: u64) -> [bool; N] {
        self.state.lock().misses.answer(start, last)
    }

    /// Forgets the miss of the vring `index`.
    pub(crate) fn forget(&self, index: usize) {
        self.state.lock().misses.forget(index);
    }

    /// Forgets all misses. Answers of each vring whether it had one.
    pub(crate) fn clear(&self) -> [bool; N] {
        self.state.lock().misses.clear()
    }

    /// There is an IOTLB from now on. Misses of the one before stay, as in C.
    pub(crate) fn open(&self) {
        self.state.lock().open = true;
    }

    /// There is no IOTLB any more: nobody waits for a miss.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.misses.clear();
        state.open = false;
        drop(state);
        self.news.notify_all();
    }

    /// Serves `read(2)`. C: `vhost_chr_read_iter()`.
    ///
    /// # Errors
    ///
    /// If there is no miss: `EAGAIN` unless it may `wait`; `ERESTARTSYS` for a
    /// signal; `EBADFD` without an IOTLB.
    pub(crate) fn read(&self, to: &mut Dest<'_>, wait: bool) -> Result<usize> {
        if to.len() < MSG_BYTES {
            return Ok(0);
        }

        let mut state = self.state.lock();
        let (ticket, miss) = loop {
            if let Some(found) = state.misses.read() {
                break found;
            }
            if !wait {
                return Err(EAGAIN);
            }
            if current!().signal_pending() {
                return Err(ERESTARTSYS);
            }
            if !state.open {
                return Err(EBADFD);
            }
            // Woken or not, all is looked at again.
            let _ = self.news.wait_interruptible(&mut state);
        };
        drop(state);

        let done = to.write(&miss.message());
        if done != MSG_BYTES {
            self.state.lock().misses.lose(ticket);
        }
        Ok(done)
    }

    /// Serves `poll(2)`. C: `vhost_chr_poll()`.
    pub(crate) fn poll(&self, poll: &Poll<'_>) -> bool {
        poll.wait_for(&self.news);
        self.state.lock().misses.is_readable()
    }
}
